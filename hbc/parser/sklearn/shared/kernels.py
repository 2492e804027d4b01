"""Kernels between the rows of x and fixed points, as sklearn.metrics.pairwise computes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column, Sparse
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.checks import CheckLeast
from hbc.ops.nearest import Distances
from hbc.ops.scaling import Normalize
from hbc.parser.frame import Refusal
from hbc.parser.front_door import ANY_INTEGER, note, note_input
from hbc.parser.registry import public_name
from hbc.parser.sklearn.shared.distances import common_float, euclidean_distances
from hbc.parser.sparsity import may_be_sparse

PARAMETERS = {
    "additive_chi2": frozenset[str](),
    "chi2": frozenset({"gamma"}),
    "cosine": frozenset[str](),
    "laplacian": frozenset({"gamma"}),
    "linear": frozenset[str](),
    "poly": frozenset({"gamma", "degree", "coef0"}),
    "polynomial": frozenset({"gamma", "degree", "coef0"}),
    "rbf": frozenset({"gamma"}),
    "sigmoid": frozenset({"gamma", "coef0"}),
}
"""The parameters that each kernel takes; others are dropped (`filter_params`). From sklearn.metrics.pairwise.KERNEL_PARAMS."""

MOST_PRODUCTS = 64
"""The largest whole exponent that is computed by repeated products. The C library's `pow` takes as long as ten products."""


def dense(value: Any) -> Array:
    """value as an array; fitting on a sparse matrix may have left a sparse one."""
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


def named(kernel: Any) -> str:
    """The name of a kernel. Raises Refusal for functions and precomputed matrices."""
    if isinstance(kernel, str) and kernel in PARAMETERS:
        return kernel
    if kernel == "precomputed":
        raise Refusal("its kernel is precomputed: it takes distances to its training rows, not columns.", "Name a kernel.")
    raise Refusal(f"its kernel {kernel!r} is a Python function.", "Name one of scikit-learn's kernels.")


def whole_power(x: Node, exponent: Any) -> Node:
    """x^exponent. Whole exponents up to MOST_PRODUCTS by repeated squaring (libsvm's powi), others by numpy.power."""
    if float(exponent) != int(exponent) or not 0 < exponent <= MOST_PRODUCTS:
        return t.power(x, float(exponent))
    left, result = int(exponent), None
    while True:
        if left % 2:
            result = x if result is None else t.mul(result, x)
        left //= 2
        if not left:
            assert result is not None
            return result
        x = t.mul(x, x)


def pairwise_kernel(m: Any, x: Node, points: Any, metric: str, parameters: dict[str, Any]) -> Node:
    """K[N, M] = kernel(x[N, F], points[M, F]) (sklearn.metrics.pairwise.pairwise_kernels with `filter_params`). It is f32 if x and points
    are and the kernel keeps the dtype, otherwise f64. `m` is the estimator, for input checks."""
    points = dense(points)
    dtype = common_float(x, points)
    if points.dtype == np.float32:
        note(x, Column(integer_bits=ANY_INTEGER))  # the source computes float16 beside float32 in float64, hbc would in float32
    given = {name: value for name, value in parameters.items() if name in PARAMETERS[metric]}
    gamma = given.get("gamma")
    scale = float(gamma if gamma is not None else 1.0 if metric == "chi2" else 1.0 / points.shape[1])
    coef0 = float(given.get("coef0", 1.0))
    if metric in ("chi2", "additive_chi2"):
        if may_be_sparse(x):
            note_input(Sparse(accepted=False))  # the source rejects them
        x = CheckLeast(public_name(type(m)), allow_nan=True, allow_inf=True)(x)
    x, points = t.cast(x, dtype), points.astype(NUMPY_DTYPES[dtype])
    match metric:
        case "linear":
            return t.matmul(x, points.T)
        case "cosine":
            return t.matmul(Normalize("l2")(x), Normalize("l2").evaluate(points).T)
        case "poly" | "polynomial":
            return whole_power(t.add(t.mul(t.matmul(x, points.T), scale), coef0), given.get("degree", 3))
        case "sigmoid":
            return t.tanh(t.add(t.mul(t.matmul(x, points.T), scale), coef0))
        case "rbf":
            return t.exp(t.mul(euclidean_distances(x, points, squared=True), -scale))
        case "laplacian":  # scipy's cityblock distance is float64 for all dtypes
            return t.exp(t.mul(Distances(points.astype(np.float64), "absolute")(t.cast(x, "f64")), -scale))
    chi2 = t.neg(t.cast(Distances(points, "chi2")(x), dtype))
    return chi2 if metric == "additive_chi2" else t.exp(t.mul(chi2, scale))


def self_kernel(x: Node, metric: str, parameters: dict[str, Any]) -> Node | float:
    """kernel(x, x) for every row with itself: [N, 1], or one number if it is the same for all rows."""
    given = {name: value for name, value in parameters.items() if name in PARAMETERS[metric]}
    if metric in ("rbf", "laplacian", "chi2"):
        return 1.0
    if metric == "additive_chi2":
        return 0.0
    products = t.sum_(t.mul(x, x), 1, keepdims=True)
    if metric == "linear":
        return products
    if metric == "cosine":
        unit = Normalize("l2")(x)
        return t.sum_(t.mul(unit, unit), 1, keepdims=True)
    gamma, coef0 = given.get("gamma"), float(given.get("coef0", 1.0))
    inner = t.add(t.mul(products, float(1.0 / x.type.columns if gamma is None else gamma)), coef0)
    return t.tanh(inner) if metric == "sigmoid" else whole_power(inner, given.get("degree", 3))
