"""Kernel ridge, kernel PCA, label propagation, and approximate kernel maps."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import KernelPCA
from sklearn.kernel_approximation import AdditiveChi2Sampler, Nystroem, PolynomialCountSketch, RBFSampler, SkewedChi2Sampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import KernelCenterer
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from estimators.case import Case

SINGLE = "float32 input is computed in float32 up to exponentials or logarithms, in which backends differ by an ulp"


def _iris(model, dtype=np.float64):
    X, _ = load_iris(return_X_y=True)
    return model.fit(X[::3].astype(dtype)), X


def _frame(model):
    X, _ = load_iris(return_X_y=True, as_frame=True)
    return model.fit(X[::3]), X


def _skewed():
    return _iris(SkewedChi2Sampler(skewedness=0.5, n_components=20, random_state=0))


def _ridge(kernel, targets=1, dtype=np.float64, **options):
    X, y = load_iris(return_X_y=True)
    Y = np.stack([y, X[:, 0], X[:, 1] * y], 1)[:, :targets]
    return KernelRidge(alpha=0.5, kernel=kernel, **options).fit(X[::3].astype(dtype), Y[::3, 0] if targets == 1 else Y[::3]), X


def _centerer(dtype=np.float64):
    X, _ = load_diabetes(return_X_y=True)
    return KernelCenterer().fit(rbf_kernel(X[:30]).astype(dtype)), rbf_kernel(X[30:200], X[:30])


def _propagation(model):
    X, y = load_iris(return_X_y=True)
    partly = np.where(np.arange(len(y)) % 4 == 0, y * 2, -1)
    return model.fit(X[::2] + np.random.default_rng(0).normal(size=(75, 4)) * 0.01, partly[::2]), X


KERNELS = {
    "linear": {},
    "poly": {"degree": 2, "gamma": 0.1, "coef0": 0.5},
    "rbf": {"gamma": 0.3},
    "sigmoid": {"gamma": 0.01, "coef0": 0.1},
    "cosine": {},
}

CASES = [
    *(
        Case(f"KernelRidge {kernel}", lambda kernel=kernel, options=options: _ridge(kernel, **options))
        for kernel, options in KERNELS.items()
    ),
    Case("KernelRidge polynomial of degree 1.5", lambda: _ridge("polynomial", degree=1.5)),
    Case("KernelRidge laplacian, several targets", lambda: _ridge("laplacian", 3)),
    Case("KernelRidge chi2", lambda: _ridge("chi2", gamma=0.2)),
    Case("KernelRidge additive_chi2", lambda: _ridge("additive_chi2")),
    Case("KernelRidge float32", lambda: _ridge("rbf", 2, np.float32), rtol=1e-4, atol=1e-4, reason=SINGLE),
    *(
        Case(f"KernelPCA {kernel}", lambda kernel=kernel, options=options: _iris(KernelPCA(3, kernel=kernel, **options)))
        for kernel, options in KERNELS.items()
    ),
    Case("KernelPCA float32", lambda: _iris(KernelPCA(2, kernel="rbf"), np.float32), rtol=1e-4, atol=1e-4, reason=SINGLE),
    Case("KernelCenterer", _centerer),
    Case("KernelCenterer float32", lambda: _centerer(np.float32)),
    Case("LabelPropagation", lambda: _propagation(LabelPropagation(gamma=5))),
    Case("LabelPropagation knn", lambda: _propagation(LabelPropagation(kernel="knn", n_neighbors=5))),
    Case("LabelSpreading", lambda: _propagation(LabelSpreading(alpha=0.3))),
    Case("LabelSpreading knn", lambda: _propagation(LabelSpreading(kernel="knn"))),
    *(
        Case(
            f"Nystroem {kernel}",
            lambda kernel=kernel, options=options: _iris(Nystroem(kernel, n_components=8, random_state=0, **options)),
        )
        for kernel, options in {**KERNELS, "laplacian": {}, "chi2": {"gamma": 0.1}}.items()
    ),
    Case("Nystroem float32", lambda: _iris(Nystroem("laplacian", n_components=5, random_state=0), np.float32)),
    Case("Nystroem kernel_params", lambda: _iris(Nystroem(kernel_params={"gamma": 0.05}, n_components=5, random_state=0))),
    Case("RBFSampler", lambda: _iris(RBFSampler(gamma=0.2, n_components=20, random_state=0))),
    Case("RBFSampler float32", lambda: _iris(RBFSampler(gamma="scale", n_components=20, random_state=0), np.float32)),
    Case("SkewedChi2Sampler", _skewed, float32=False),
    Case("SkewedChi2Sampler of float32, weights of float64", _skewed, rtol=1e-5, atol=1e-6, reason=SINGLE),
    Case("SkewedChi2Sampler float32", lambda: _iris(SkewedChi2Sampler(n_components=20, random_state=0), np.float32)),
    *(
        Case(f"AdditiveChi2Sampler {steps}", lambda steps=steps: _iris(AdditiveChi2Sampler(sample_steps=steps)))
        for steps in (1, 2, 3)
    ),
    Case("AdditiveChi2Sampler interval", lambda: _iris(AdditiveChi2Sampler(sample_steps=4, sample_interval=np.float64(0.3)))),
    # Without 1e300: if a product overflows, the Fourier transform decides which results are infinite and which are NaN.
    Case(
        "PolynomialCountSketch frame",
        lambda: _frame(PolynomialCountSketch(n_components=15, random_state=0)),
        rounded_ends="zeros that the source's Fourier transforms leave, where other sums of the same numbers leave 1e-15",
    ),
    Case(
        "PolynomialCountSketch degree 3, coef0",
        lambda: _frame(PolynomialCountSketch(gamma=0.1, degree=3, coef0=1.5, n_components=20, random_state=0)),
    ),
]
