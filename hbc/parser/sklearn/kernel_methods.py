"""Converters for kernel methods: KernelRidge, KernelPCA, label propagation, and the approximations of sklearn.kernel_approximation."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column, Sparse
from hbc.ir.types import NUMPY_DTYPES, Array, DType, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import CheckLeast
from hbc.parser.frame import Refusal
from hbc.parser.front_door import note, note_input
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.linear import affine
from hbc.parser.sklearn.shared.common import as_float, checked, float_of, promote
from hbc.parser.sklearn.shared.distances import search
from hbc.parser.sklearn.shared.kernels import named, pairwise_kernel
from hbc.parser.sparsity import may_be_sparse


def _threaded(m: Any, kernel: Node, x: Node, points: Any) -> Node:
    """The kernel, in the dtype in which the source stores it. With n_jobs other than 1 that is the dtype of x and points; this makes a
    difference for the laplacian kernel only, which is float64 otherwise."""
    single = x.type.dtype == "f32" and points.dtype == np.float32
    return t.cast(kernel, "f32") if single and m.n_jobs not in (None, 1) else kernel


def _times(x: Node, weights: Array) -> Node:
    """x · weights, in their common dtype (numpy.dot)."""
    x, (weights,) = promote(x, weights)
    return t.matmul(x, weights)


def _in_place(op: type[t.Binary], x: Node, parameter: Node | Array) -> Node:
    """numpy's `x op= parameter`: computed in the common dtype, then rounded to x's dtype."""
    other = parameter if isinstance(parameter, Node) else t.constant(parameter)
    common = dtype_name(np.result_type(NUMPY_DTYPES[x.type.dtype], NUMPY_DTYPES[other.type.dtype]))
    return t.cast(op()(t.cast(x, common), t.cast(other, common)), x.type.dtype)


# --- exact kernels ---------------------------------------------------------------------------------------------------


@converts("sklearn.kernel_ridge.KernelRidge")
def kernel_ridge(m: Any, x: Node) -> Result:
    """`predict` gives K(x, X_fit_) · dual_coef_."""
    parameters = {"gamma": m.gamma, "degree": m.degree, "coef0": m.coef0}
    kernel = pairwise_kernel(m, checked(m, x), m.X_fit_, named(m.kernel), parameters)
    coef = np.asarray(m.dual_coef_)
    y = _times(kernel, coef.reshape(len(coef), -1))
    return {"predict": t.reshape(y, "N") if coef.ndim == 1 else y}


def _centred(m: Any, kernel: Node) -> Node:
    """K - K_fit_rows_ - (the mean of each row of K) + K_fit_all_, as KernelCenterer computes it."""
    rows, whole = np.asarray(m.K_fit_rows_), np.asarray(m.K_fit_all_)
    means = t.div(t.sum_(kernel, 1, keepdims=True), float(len(rows)))
    return _in_place(t.Add, _in_place(t.Sub, _in_place(t.Sub, kernel, rows), means), whole)


@converts("sklearn.preprocessing.KernelCenterer")
def kernel_centerer(m: Any, x: Node) -> Result:
    return _centred(m, float_of(checked(m, x)))


@converts("sklearn.decomposition.KernelPCA")
def kernel_pca(m: Any, x: Node) -> Result:
    """`transform` gives the centred K(x, X_fit_) times the eigenvectors, each divided by the root of its eigenvalue. Components with the
    eigenvalue 0 give 0."""
    parameters = {"gamma": m.gamma_, "degree": m.degree, "coef0": m.coef0}
    x = checked(m, x)
    return projected(m, _threaded(m, pairwise_kernel(m, x, m.X_fit_, named(m.kernel), parameters), x, m.X_fit_))


def projected(m: Any, kernel: Node) -> Node:
    """The output [N, K] of the KernelPCA m for the kernel K(x, X_fit_), [N, M]."""
    used = np.flatnonzero(m.eigenvalues_)
    vectors = np.zeros_like(m.eigenvectors_)
    vectors[:, used] = m.eigenvectors_[:, used] / np.sqrt(m.eigenvalues_[used])
    return _times(_centred(m._centerer, checked(m._centerer, kernel)), vectors)


@converts("sklearn.semi_supervised.LabelPropagation", "sklearn.semi_supervised.LabelSpreading")
def label_propagation(m: Any, x: Node) -> Result:
    """`predict_proba` gives the normalized sum of the training rows' distributions over the classes, weighted by the kernel (rbf) or over
    the nearest rows (knn). It is NaN if all weights are 0."""
    x, distributions = checked(m, x), np.asarray(m.label_distributions_)
    if m.kernel == "rbf":
        weights = pairwise_kernel(m, x, m.X_, "rbf", {"gamma": m.gamma})
        sums = _times(weights, distributions)
    elif m.kernel == "knn":
        if may_be_sparse(x):
            # The source searches sparse matrices in another order, which decides between equally near points.
            note_input(Sparse(accepted=False))
        found = search(m.nn_fit, x)
        sums = t.sum_(found.look_up(distributions, found.nearest(m.nn_fit.n_neighbors)), 1, ordered=True)
    else:
        raise Refusal("its kernel is a Python function.", "Use kernel='rbf' or kernel='knn'.")
    proba = t.div(sums, t.sum_(sums, 1, keepdims=True))
    return {"predict": labels(m.classes_, t.argmax(proba, 1)), "predict_proba": proba}


# --- approximations --------------------------------------------------------------------------------------------------


@converts("sklearn.kernel_approximation.Nystroem")
def nystroem(m: Any, x: Node) -> Result:
    """`transform` gives K(x, components_) · normalization_ᵀ."""
    given = {name: getattr(m, name) for name in ("gamma", "degree", "coef0") if getattr(m, name) is not None}
    x = checked(m, x)
    kernel = pairwise_kernel(m, x, m.components_, named(m.kernel), {**(m.kernel_params or {}), **given})
    return _times(_threaded(m, kernel, x, m.components_), np.asarray(m.normalization_).T)


def _cosines(x: Node, weights: Array, offset: Array, factor: Any) -> Node:
    """cos(x · weights + offset) · factor, rounded to the dtype of the cosine."""
    return _in_place(t.Mul, t.cos(affine(x, weights, offset)), np.asarray(factor))


@converts("sklearn.kernel_approximation.RBFSampler")
def rbf_sampler(m: Any, x: Node) -> Result:
    return _cosines(checked(m, x), m.random_weights_, m.random_offset_, (2.0 / m.n_components) ** 0.5)


@converts("sklearn.kernel_approximation.SkewedChi2Sampler")
def skewed_chi2_sampler(m: Any, x: Node) -> Result:
    """`transform` gives cos(ln(x + skewedness) · weights + offset) · √2 / √n_components. Numbers ≤ -skewedness are rejected."""
    x = float_of(checked(m, x))
    x = CheckLeast(public_name(type(m)), allow_nan=True, allow_inf=True, least=-float(m.skewedness), exclusive=True)(x)
    shifted = t.log(_in_place(t.Add, x, np.asarray(m.skewedness, NUMPY_DTYPES[x.type.dtype])))
    return _cosines(shifted, m.random_weights_, m.random_offset_, np.sqrt(2.0) / np.sqrt(m.n_components))


INTERVALS = {1: 0.8, 2: 0.5, 3: 0.4}
"""AdditiveChi2Sampler's default sample_interval, by sample_steps."""


@converts("sklearn.kernel_approximation.AdditiveChi2Sampler")
def additive_chi2_sampler(m: Any, x: Node) -> Result:
    """`transform` gives √(x L), then for each j = 1 … steps - 1 the number √(2 x L / cosh(π j L)) times cos(j L ln x) and times sin(j L
    ln x); 0 for x = 0. L is the sample interval.

    The result has the dtype of x, so for integers it is truncated.
    """
    if m.sample_interval is None and m.sample_steps not in INTERVALS:
        raise Refusal(f"it has sample_steps={m.sample_steps} without a sample_interval.", "Give it one.")
    interval = INTERVALS[m.sample_steps] if m.sample_interval is None else m.sample_interval
    note(x, Column(integer_bits=64))
    x = CheckLeast(public_name(type(m)), allow_nan=True, allow_inf=True)(checked(m, x))
    kept = x.type.dtype
    dtype: DType = "f32" if kept == "f32" and not isinstance(interval, np.float64) else "f64"
    wide, step = t.cast(x, dtype), float(interval)
    nothing = t.equal(x, 0)

    def stored(value: Node) -> Node:
        return t.cast(t.where(nothing, 0.0, t.cast(value, "f64")), kept)

    # The logarithm is in x's own dtype. The division by cosh, a numpy float64, makes everything after it float64.
    logarithm = t.log(t.where(nothing, t.constant(1.0, "f32" if kept == "f32" else "f64"), as_float(x)))
    angle = t.mul(t.cast(logarithm, dtype), step)
    blocks = [stored(t.sqrt(t.mul(wide, step)))]
    twice = t.cast(t.mul(t.mul(wide, 2.0), step), "f64")
    for j in range(1, m.sample_steps):
        factor = t.sqrt(t.div(twice, float(np.cosh(np.pi * j * interval))))
        turned = t.mul(angle, float(j))
        blocks += [stored(t.mul(factor, t.cast(function(turned), "f64"))) for function in (t.cos, t.sin)]
    return t.concat(blocks)


@converts("sklearn.kernel_approximation.PolynomialCountSketch")
def polynomial_count_sketch(m: Any, x: Node) -> Result:
    """`transform` gives the circular convolution of `degree` count sketches of √gamma · x (with √coef0 as one more column), f64[N, K].

    It is computed as the product of their Fourier transforms, which are linear in x, transformed back. If a product overflows, all of the
    row is NaN here; the source has an infinity among them."""
    size, degree = m.n_components, m.degree
    features = m.indexHash_.shape[1]
    scale = np.full(features, np.sqrt(float(m.gamma)))
    if m.coef0 != 0:
        scale[-1] = np.sqrt(float(m.coef0))
    forward = []
    for place, sign in zip(m.indexHash_, m.bitHash_, strict=True):
        sketch = np.zeros((features, size))
        sketch[np.arange(features), place] = sign * scale
        forward.append(np.fft.rfft(sketch, axis=1))
    bins = forward[0].shape[1]
    spectrum = np.concatenate([part for transform in forward for part in (transform.real, transform.imag)], axis=1)
    x = t.cast(checked(m, x), "f64")
    linear = spectrum[: x.type.columns]
    transformed = t.add(t.matmul(x, linear), spectrum[-1]) if m.coef0 != 0 else t.matmul(x, linear)
    parts = [t.take(transformed, np.arange(i * bins, (i + 1) * bins), axis=1) for i in range(2 * degree)]
    real, imaginary = parts[0], parts[1]
    for a, b in zip(parts[2::2], parts[3::2], strict=True):
        real, imaginary = (
            t.sub(t.mul(real, a), t.mul(imaginary, b)),
            t.add(t.mul(real, b), t.mul(imaginary, a)),
        )
    backward = np.concatenate([np.fft.irfft(np.eye(bins) * unit, size, axis=1) for unit in (1, 1j)])
    return t.matmul(t.concat([real, imaginary]), backward)
