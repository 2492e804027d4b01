"""sklearn.decomposition: the linear projections."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.common import as_float, checked, promote
from hbc.parser.sklearn.linear import affine, float_type


def _product(x: Node, weights: Array) -> Node:
    """x · weights in numpy's common dtype."""
    dtype = float_type(NUMPY_DTYPES[x.type.dtype], weights.dtype)
    return t.matmul(t.cast(x, dtype), weights.astype(NUMPY_DTYPES[dtype]))


def _log_likelihood(centred: Node, precision: Array) -> Node:
    """[N]: -½ Σ_f c · (c · P) - ½ (F ln 2π - ln |P|), of centred rows c and the precision matrix P."""
    from sklearn.utils.extmath import fast_logdet

    products = _product(centred, precision)
    squares = t.sum_(t.mul(t.cast(centred, products.type.dtype), products), 1)
    constant = 0.5 * (len(precision) * np.log(2.0 * np.pi) - fast_logdet(precision))
    return t.sub(t.mul(squares, -0.5), float(constant))


@converts("sklearn.decomposition.PCA", "sklearn.decomposition.IncrementalPCA")
def pca(m: Any, x: Node) -> Result:
    """x · componentsᵀ - mean · componentsᵀ, over the standard deviations of the components where it whitens."""
    x = as_float(checked(m, x))
    dtype = NUMPY_DTYPES[float_type(NUMPY_DTYPES[x.type.dtype], m.components_.dtype)]
    offset = (m.mean_.reshape(1, -1) @ m.components_.T)[0]
    y = affine(x, m.components_.T, -offset.astype(dtype))
    if m.whiten:
        scale = np.sqrt(m.explained_variance_)
        scale = np.maximum(scale, np.finfo(scale.dtype).eps)
        y = t.div(y, scale.astype(dtype))
    outputs = {"transform": y}
    precision = _precision(m) if hasattr(m, "score_samples") else None
    if precision is not None:
        centred, (mean,) = promote(x, m.mean_)
        outputs["score_samples"] = _log_likelihood(t.sub(centred, mean), precision)
    return outputs


def _precision(m: Any) -> Array | None:
    """The inverse of the covariance; None where there is none, and the source's `score_samples` always raises."""
    try:
        return np.asarray(m.get_precision())
    except np.linalg.LinAlgError:
        return None


@converts("sklearn.decomposition.TruncatedSVD")
def truncated_svd(m: Any, x: Node) -> Result:
    """x · componentsᵀ"""
    return _product(checked(m, x), m.components_.T)


@converts("sklearn.decomposition.FastICA")
def fast_ica(m: Any, x: Node) -> Result:
    """(x - mean) · componentsᵀ; the mean is taken off in x's own dtype, and only where it whitens."""
    x = as_float(checked(m, x))
    if m.whiten:
        kept = x.type.dtype
        wide, (mean,) = promote(x, m.mean_)
        x = t.cast(t.sub(wide, mean), kept)
    return _product(x, m.components_.T)


@converts("sklearn.decomposition.FactorAnalysis")
def factor_analysis(m: Any, x: Node) -> Result:
    """(x - mean) · Wᵀ · (I + W · componentsᵀ)⁻¹ with W = components / noise_variance"""
    x, (mean,) = promote(checked(m, x), m.mean_)
    centred = t.sub(x, mean)
    weights = m.components_ / m.noise_variance_
    covariance = np.linalg.inv(np.eye(len(m.components_)) + weights @ m.components_.T)
    return {
        "transform": _product(_product(centred, weights.T), covariance),
        "score_samples": _log_likelihood(centred, m.get_precision()),
    }
