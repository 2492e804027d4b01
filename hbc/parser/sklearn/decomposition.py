"""Converters for the linear projections of sklearn.decomposition, random_projection and cross_decomposition."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import FLOAT32_LIMIT, NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.scaling import Standardize
from hbc.parser.frame import Refusal
from hbc.parser.front_door import computed_if_it_can_be, computed_of_dense_only
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.linear import affine, float_type
from hbc.parser.sklearn.shared.common import as_float, checked, float_of, narrow_as_parameters, own_float, promote
from hbc.parser.sparsity import is_sparse


def _product(x: Node, weights: Array) -> Node:
    """x · weights in numpy's common dtype."""
    narrow_as_parameters(x, weights.dtype)
    dtype = float_type(NUMPY_DTYPES[x.type.dtype], weights.dtype)
    return t.matmul(t.cast(x, dtype), weights.astype(NUMPY_DTYPES[dtype]))


def _log_likelihood(centred: Node, precision: Array) -> Node:
    """The log-likelihood of each row, [N]: -½ Σ_f c_f · (c · P)_f - ½ (F ln 2π - ln |P|) for centred rows c and the precision matrix P."""
    from sklearn.utils.extmath import fast_logdet

    products = _product(centred, precision)
    squares = t.sum_(t.mul(t.cast(centred, products.type.dtype), products), 1)
    constant = 0.5 * (len(precision) * np.log(2.0 * np.pi) - fast_logdet(precision))
    return t.sub(t.mul(squares, -0.5), float(constant))


def _of_sparse() -> Array:
    raise TypeError("Sparse data was passed for X, but dense data is required.")


@converts("sklearn.decomposition.PCA", "sklearn.decomposition.IncrementalPCA")
def pca(m: Any, x: Node) -> Result:
    """x · componentsᵀ - mean · componentsᵀ; with `whiten` divided by the standard deviations of the components."""
    sparse = is_sparse(x)
    x = float_of(checked(m, x))
    dtype = NUMPY_DTYPES[float_type(NUMPY_DTYPES[x.type.dtype], m.components_.dtype)]
    offset = (m.mean_.reshape(1, -1) @ m.components_.T)[0]
    y = affine(x, m.components_.T, -offset.astype(dtype))
    if m.whiten:
        scale = np.sqrt(m.explained_variance_)
        scale = np.maximum(scale, np.finfo(scale.dtype).eps)
        y = t.div(y, scale.astype(dtype))
    outputs = {"transform": y}
    if hasattr(m, "score_samples"):
        centred, (mean,) = promote(x, m.mean_)
        precision = _of_sparse if sparse else m.get_precision
        scores = computed_if_it_can_be(precision, lambda precision: _log_likelihood(t.sub(centred, mean), precision))
        outputs["score_samples"] = computed_of_dense_only(scores)
    return outputs


@converts("sklearn.decomposition.TruncatedSVD")
def truncated_svd(m: Any, x: Node) -> Result:
    """x · componentsᵀ, in the common dtype."""
    return _product(checked(m, x), m.components_.T)


@converts("sklearn.decomposition.FastICA")
def fast_ica(m: Any, x: Node) -> Result:
    """(x - mean) · componentsᵀ. The mean is subtracted only with `whiten`, and the difference is rounded to x's dtype."""
    x = float_of(checked(m, x))
    if m.whiten:
        kept = x.type.dtype
        wide, (mean,) = promote(x, m.mean_)
        x = t.cast(t.sub(wide, mean), kept)
    return _product(x, m.components_.T)


@converts("sklearn.decomposition.FactorAnalysis")
def factor_analysis(m: Any, x: Node) -> Result:
    """(x - mean) · Wᵀ · (I + W · componentsᵀ)⁻¹ with W = components / noise_variance."""
    x, (mean,) = promote(checked(m, x), m.mean_)
    centred = t.sub(x, mean)
    weights = m.components_ / m.noise_variance_
    covariance = np.linalg.inv(np.eye(len(m.components_)) + weights @ m.components_.T)
    return {
        "transform": _product(_product(centred, weights.T), covariance),
        "score_samples": computed_if_it_can_be(m.get_precision, lambda precision: _log_likelihood(centred, precision)),
    }


@converts("sklearn.decomposition.SparsePCA", "sklearn.decomposition.MiniBatchSparsePCA")
def sparse_pca(m: Any, x: Node) -> Result:
    """(x - mean) · Cᵀ · (C · Cᵀ + ridge_alpha · I)⁻¹, the ridge regression of x on the components C, in their dtype.

    An input of one row is rejected: the source returns a vector [K] for it, since its regression takes the row for a single target."""
    x, (mean,) = promote(checked(m, x, min_rows=2), m.mean_)
    components = np.asarray(m.components_, np.float64)
    try:
        weights = np.linalg.solve(components @ components.T + m.ridge_alpha * np.eye(len(components)), components).T
    except np.linalg.LinAlgError:
        raise Refusal("its components are linearly dependent and ridge_alpha is 0.", "Choose a positive ridge_alpha.") from None
    dtype = dtype_name(m.components_.dtype)
    centred = t.sub(x, mean)
    if dtype == "f32" and centred.type.dtype == "f64":
        centred = checked(m, centred, limit=FLOAT32_LIMIT)
    return t.matmul(t.cast(centred, dtype), weights.astype(NUMPY_DTYPES[dtype]))


@converts(
    "sklearn.decomposition.SparseCoder",
    "sklearn.decomposition.DictionaryLearning",
    "sklearn.decomposition.MiniBatchDictionaryLearning",
)
def sparse_coder(m: Any, x: Node) -> Result:
    """sign(c) · max(|c| - alpha, 0) with c = x · atomsᵀ, for transform_algorithm="threshold". Raises Refusal for other algorithms."""
    if m.transform_algorithm != "threshold":
        raise Refusal(
            f'its transform_algorithm "{m.transform_algorithm}" searches for the code of each row, one atom after the other.',
            'Use transform_algorithm="threshold".',
        )
    alpha = m.transform_alpha if m.transform_alpha is not None else getattr(m, "alpha", None)
    atoms = np.asarray(m.dictionary if hasattr(m, "dictionary") else m.components_)
    product = _product(as_float(checked(m, x)), atoms.T)
    magnitude = t.maximum(t.sub(t.absolute(product), 1.0 if alpha is None else float(alpha)), 0.0)
    code = t.where(t.less(product, 0.0), t.neg(magnitude), magnitude)
    if m.positive_code:
        code = t.maximum(code, 0.0)
    if not m.split_sign:
        return code
    code = t.cast(code, "f64")
    return t.concat([t.maximum(code, 0.0), t.neg(t.minimum(code, 0.0))])


@converts("sklearn.random_projection.GaussianRandomProjection", "sklearn.random_projection.SparseRandomProjection")
def random_projection(m: Any, x: Node) -> Result:
    """x · componentsᵀ. Integers become float64 first."""
    components = m.components_.toarray() if hasattr(m.components_, "toarray") else m.components_
    return _product(float_of(checked(m, x)), components.T)


# --- partial least squares -------------------------------------------------------------------------------------------


@converts(*(f"sklearn.cross_decomposition.{name}" for name in ("PLSRegression", "PLSCanonical", "CCA")))
def partial_least_squares(m: Any, x: Node) -> Result:
    """`transform`: (x - mean) / std · rotations. `predict`: (x - mean) · coefᵀ + intercept. Both standardize in x's own dtype."""
    x = own_float(checked(m, x))
    mean, std = np.asarray(m._x_mean), np.asarray(m._x_std)
    scores = _product(Standardize(mean, std)(x), m.x_rotations_)
    y = affine(Standardize(mean, None)(x), m.coef_.T, m.intercept_)
    return {"transform": scores, "predict": t.reshape(y, "N") if m._predict_1d else y}


@converts("sklearn.cross_decomposition.PLSSVD")
def pls_svd(m: Any, x: Node) -> Result:
    """(x - mean) / std · weights, in float64."""
    x = t.cast(checked(m, x), "f64")
    return _product(Standardize(np.asarray(m._x_mean), np.asarray(m._x_std))(x), m.x_weights_)
