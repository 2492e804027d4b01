"""Gaussian processes: every kernel and its compositions, targets and classes."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Matern,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from estimators.case import Case

SINGLE = "for float32 rows a product of rows is a float32 sum in any order, and what follows magnifies its rounding"


def _regressor(kernel, targets=1, dtype=np.float64, **options):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 2, size=(230, 3))
    Y = np.stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 2] ** 2 * 3, X.sum(axis=1)], 1)[:, :targets]
    model = GaussianProcessRegressor(kernel, **{"alpha": 1e-3, "optimizer": None, **options})
    return model.fit(X[:30].astype(dtype), Y[:30, 0] if targets == 1 else Y[:30]), X[30:]


def _classifier(kernel=None, classes=3, names=None, **options):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], y[y < classes] * 2
    y = y if names is None else np.asarray(names)[y // 2]
    return GaussianProcessClassifier(kernel, **{"optimizer": None, **options}).fit(X[::4], y[::4]), X + 0.05


OBJECTS = np.array(["x", "y", "z"], object)
"""Labels: `predict` returns them as such, or as strings of a fixed width."""

KERNELS = {
    "RBF": RBF(0.7),
    "RBF of every column": 2.0 * RBF([0.5, 1.0, 2.0]) + WhiteKernel(0.1),
    "Matern 0.5": Matern(0.8, nu=0.5),
    "Matern 1.5": Matern([1.0, 0.5, 2.0], nu=1.5),
    "Matern 2.5": Matern(1.5, nu=2.5),
    "Matern inf": Matern(1.5, nu=np.inf),
    "Matern 0.8": Matern(1.2, nu=0.8),
    "Matern 3.5": Matern(0.8, nu=3.5),
    "RationalQuadratic": RationalQuadratic(0.8, alpha=0.6),
    "ExpSineSquared": ExpSineSquared(1.1, periodicity=2.5) * RBF(3.0) + WhiteKernel(1.0),
    "DotProduct squared": DotProduct(0.5) ** 2,
    "Exponentiation": Exponentiation(RBF(1.0) + ConstantKernel(0.5), 1.5),
    "PairwiseKernel": PairwiseKernel(0.4, metric="laplacian") + PairwiseKernel(0.3, metric="polynomial"),
}

CASES = [
    *(Case(f"GaussianProcessRegressor {name}", lambda kernel=kernel: _regressor(kernel)) for name, kernel in KERNELS.items()),
    Case(
        "GaussianProcessRegressor, constants alone",
        lambda: _regressor(ConstantKernel(2.0) * 0.5 + WhiteKernel(0.5)),
        sample=True,
    ),
    Case("GaussianProcessRegressor, optimized", lambda: _regressor(None, optimizer="fmin_l_bfgs_b", normalize_y=True)),
    Case("GaussianProcessRegressor, several targets", lambda: _regressor(RBF() + DotProduct(), 3, normalize_y=True)),
    Case(
        "GaussianProcessRegressor float32",
        lambda: _regressor(RBF() + DotProduct(), 2, np.float32),
        rtol=1e-4,
        atol=1e-4,
        reason=SINGLE,
    ),
    Case(
        "GaussianProcessRegressor float32 DotProduct",
        lambda: _regressor(DotProduct(), 1, np.float32),
        rtol=1e-4,
        atol=1e-3,
        reason=SINGLE,
    ),
    Case("GaussianProcessClassifier two classes, strings", lambda: _classifier(classes=2, names=["a", "b"])),
    Case("GaussianProcessClassifier of _BinaryGaussianProcessClassifierLaplace", lambda: _classifier(1.5 * RBF(1.2))),
    Case(  # its predict_proba always raises
        "GaussianProcessClassifier one_vs_one",
        lambda: _classifier(Matern(nu=1.5), multi_class="one_vs_one"),
        methods=("predict",),
    ),
    Case("GaussianProcessClassifier, Python objects", lambda: _classifier(RBF(), names=OBJECTS)),
    Case("GaussianProcessClassifier, two Python objects", lambda: _classifier(RBF(), classes=2, names=OBJECTS)),
    Case(
        "GaussianProcessClassifier one_vs_one, Python objects",
        lambda: _classifier(RBF(), names=OBJECTS, multi_class="one_vs_one"),
        methods=("predict",),
    ),
    Case(
        "GaussianProcessClassifier DotProduct",
        lambda: _classifier(0.1 * DotProduct(), names=["x", "y", "z"]),
        rtol=1e-5,
        atol=1e-6,
        reason=SINGLE,
    ),
    Case(
        "GaussianProcessClassifier PairwiseKernel",
        lambda: _classifier(PairwiseKernel(0.2, metric="cosine") + RBF() * WhiteKernel(0.5) + 0.1 * DotProduct() ** 2, 2),
        rtol=1e-4,
        atol=1e-5,
        reason=SINGLE,
    ),
]
