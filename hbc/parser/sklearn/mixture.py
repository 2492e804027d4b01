"""Converters for estimators based on normal distributions: sklearn.mixture, discriminant_analysis, covariance, and NearestCentroid."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column
from hbc.ir.types import NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.linear import Softmax, log_sum_exp
from hbc.ops.nearest import Distances
from hbc.parser.frame import Refusal
from hbc.parser.front_door import note
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.release import since
from hbc.parser.sklearn.linear import affine, coefficients, float_type, logistic
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.distances import euclidean_distances, squared_expanded


def _product(x: Node, weights: Array) -> Node:
    """x · weights, in numpy's common dtype."""
    dtype = float_type(NUMPY_DTYPES[x.type.dtype], weights.dtype)
    return t.matmul(t.cast(x, dtype), weights.astype(NUMPY_DTYPES[dtype]))


def _with(combine: Any, x: Node, array: Array) -> Node:
    """combine(x, array), an elementwise operation in numpy's common dtype."""
    dtype = float_type(NUMPY_DTYPES[x.type.dtype], array.dtype)
    made: Node = combine(t.cast(x, dtype), array.astype(NUMPY_DTYPES[dtype]))
    return made


def _gaussian(m: Any, x: Node) -> Node:
    """The logarithm of the density of each component at each row, [N, K] (_estimate_log_gaussian_prob)."""
    from sklearn.mixture._gaussian_mixture import _compute_log_det_cholesky

    means, chol = np.asarray(m.means_), np.asarray(m.precisions_cholesky_)
    count, width = means.shape
    kind = m.covariance_type
    note(x, Column(integer_bits=64))  # the source computes X² and stores results in the dtype of X, so that int8 overflows
    if x.type.dtype not in ("f32", "f64", "i64"):
        raise Refusal(f"it squares numbers in their own dtype {NUMPY_DTYPES[x.type.dtype]}.", "Cast them to float before.")
    determinant = np.asarray(_compute_log_det_cholesky(chol, kind, width))
    if kind in ("full", "tied"):
        each = chol if kind == "full" else np.broadcast_to(chol, (count, width, width))
        flat = each.transpose(1, 0, 2).reshape(width, -1)
        offset = np.concatenate([mean @ matrix for mean, matrix in zip(means, each, strict=True)])
        y = _with(t.sub, _product(x, flat), offset)
        squares = t.sum_(t.reshape(t.mul(y, y), "N", count, width), 2)
        # The source stores these numbers in an array of X's dtype. For integers that cuts off their fractions.
        squares = t.cast(squares, x.type.dtype)
        squares = squares if squares.type.is_float else t.cast(squares, "f64")
    elif kind == "diag":
        precisions = chol**2
        linear = t.mul(_product(x, (means * precisions).T), 2.0)
        constant = np.sum(means**2 * precisions, axis=1)
        squares = _sum(_with(lambda a, b: t.sub(b, a), linear, constant), _product(t.mul(x, x), precisions.T))
    else:
        precisions = chol**2
        linear = t.mul(_with(t.mul, _product(x, means.T), precisions), 2.0)
        norms = _with(t.mul, t.sum_(t.mul(x, x), 1, keepdims=True), precisions[None])
        squares = _sum(_with(lambda a, b: t.sub(b, a), linear, np.sum(means**2, axis=1) * precisions), norms)
    constant = np.log(2 * np.pi)
    if not since(1, 8):  # before, the source casts it to the dtype of X: for integers that cuts off its fraction
        constant = constant.astype(NUMPY_DTYPES[x.type.dtype])
    return _with(t.add, t.mul(t.add(squares, float(width * constant)), -0.5), np.atleast_1d(determinant))


def _sum(a: Node, b: Node) -> Node:
    dtype = float_type(NUMPY_DTYPES[a.type.dtype], NUMPY_DTYPES[b.type.dtype])
    return t.add(t.cast(a, dtype), t.cast(b, dtype))


def _mixture(m: Any, log_prob: Node) -> Result:
    """The methods of a mixture, from the logarithm of the density of each component, [N, K]."""
    weighted = _with(t.add, log_prob, np.asarray(m._estimate_log_weights()))
    norm = log_sum_exp(weighted)
    return {
        "predict": t.argmax(weighted, 1),
        "predict_proba": t.exp(t.sub(weighted, norm)),
        "score_samples": t.reshape(norm, "N"),
    }


@converts("sklearn.mixture.GaussianMixture")
def gaussian_mixture(m: Any, x: Node) -> Result:
    return _mixture(m, _gaussian(m, checked(m, x)))


@converts("sklearn.mixture.BayesianGaussianMixture")
def bayesian_gaussian_mixture(m: Any, x: Node) -> Result:
    from sklearn.mixture._bayesian_mixture import digamma

    width = np.asarray(m.means_).shape[1]
    freedom = np.asarray(m.degrees_of_freedom_)
    density = _with(t.sub, _gaussian(m, checked(m, x)), np.atleast_1d(0.5 * width * np.log(freedom)))
    degrees = digamma(0.5 * (freedom - np.arange(width)[:, None]))
    log_lambda = width * np.log(2.0) + np.sum(degrees, 0)
    return _mixture(m, _with(t.add, density, np.atleast_1d(0.5 * (log_lambda - width / m.mean_precision_))))


# --- discriminant analysis -------------------------------------------------------------------------------------------


@converts("sklearn.discriminant_analysis.LinearDiscriminantAnalysis")
def linear_discriminant_analysis(m: Any, x: Node) -> Result:
    if len(m.classes_) == 1:
        reason = "it was fitted on one class, for which the source computes no probabilities, and has no label for positive decisions."
        raise Refusal(reason, "Fit it on two classes or more, or use a DummyClassifier.")
    x = checked(m, x)
    scores = affine(x, np.atleast_2d(coefficients(m)).T, m.intercept_)
    if scores.type.columns == 1:
        positive = logistic(scores)
        proba = t.concat([t.sub(1.0, positive), positive])
        decision = t.reshape(scores, "N")
        index = t.cast(t.less(0.0, decision), "i64")
    else:
        proba, decision, index = Softmax()(scores), scores, t.argmax(scores, 1)
    least = float(np.finfo(NUMPY_DTYPES[proba.type.dtype]).smallest_normal)
    outputs = {
        "predict": labels(np.asarray(m.classes_), index),
        "decision_function": decision,
        "predict_proba": proba,
        "predict_log_proba": t.log(t.where(t.equal(proba, 0.0), least, proba)),
    }
    if m.solver == "lsqr":
        return outputs  # the source's `transform` raises NotImplementedError for this solver
    centred = _with(t.sub, x, np.asarray(m.xbar_)) if m.solver == "svd" else x
    # The source computes all components and then drops those behind the first `_max_components`.
    return {**outputs, "transform": _product(centred, np.asarray(m.scalings_)[:, : m._max_components])}


def discriminant(m: Any, scores: Node) -> dict[str, Node]:
    """The methods of a classifier from its log-posteriors scores[N, C], up to a constant for each row
    (DiscriminantAnalysisPredictionMixin)."""
    shifted = t.sub(scores, t.max_(scores, 1, keepdims=True))
    log_proba = t.sub(shifted, t.log(t.sum_(t.exp(shifted), 1, keepdims=True)))
    decision = scores
    if len(m.classes_) == 2:
        first, second = (t.take(scores, np.array([i]), axis=1) for i in (0, 1))
        decision = t.reshape(t.sub(second, first), "N")
    return {
        "predict": labels(np.asarray(m.classes_), t.argmax(scores, 1)),
        "predict_proba": t.exp(log_proba),
        "predict_log_proba": log_proba,
        "decision_function": decision,
    }


@converts("sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis")
def quadratic_discriminant_analysis(m: Any, x: Node) -> Result:
    """score[n, c] = -½ (Σ ((x - mean) · R S^-½)² + Σ ln S) + ln prior, with the rotation R and the scaling S of each class."""
    x = checked(m, x)
    norms = []
    for rotation, scaling, mean in zip(m.rotations_, m.scalings_, m.means_, strict=True):
        y = _product(_with(t.sub, x, np.asarray(mean)), np.asarray(rotation * scaling**-0.5))
        norms.append(t.sum_(t.mul(y, y), 1, keepdims=True))
    constant = np.array([np.sum(np.log(scaling)) for scaling in m.scalings_])
    scores = t.mul(_with(t.add, t.concat(norms), constant), -0.5)
    return discriminant(m, _with(t.add, scores, np.log(np.asarray(m.priors_))))


@converts("sklearn.neighbors.NearestCentroid")
def nearest_centroid(m: Any, x: Node) -> Result:
    """`predict` gives the class of the nearest centroid. With unequal priors, and in all other methods, the score of a class is
    -|(x - centroid) / deviation|² + 2 ln prior instead."""
    x = checked(m, x)
    centroids = np.asarray(m.centroids_)
    deviation = np.asarray(m.within_class_std_dev_, np.float64)
    scale = np.where(deviation != 0, deviation, 1.0)
    wide = t.div(t.cast(x, "f64"), scale[None])
    if m.metric == "euclidean":
        distances = euclidean_distances(wide, centroids / scale)
    else:
        distances = Distances(np.asarray(centroids / scale, np.float64), "absolute")(wide)
    scores = t.add(t.neg(t.mul(distances, distances)), 2.0 * np.log(np.asarray(m.class_prior_, np.float64)))
    outputs = discriminant(m, scores)
    if np.isclose(m.class_prior_, 1 / len(m.classes_)).all():
        both = NUMPY_DTYPES[float_type(NUMPY_DTYPES[x.type.dtype], centroids.dtype)]
        if m.metric == "euclidean":
            squares = squared_expanded(x, centroids)
            near = t.where(t.less(0.0, squares), squares, 0.0)
        else:
            near = Distances(centroids.astype(both), "absolute")(t.cast(x, dtype_name(both)))
        outputs["predict"] = labels(np.asarray(m.classes_), t.argmax(t.neg(near), 1))
    if m.metric != "euclidean":
        return {"predict": outputs["predict"]}
    return outputs


# --- covariance ------------------------------------------------------------------------------------------------------


def _mahalanobis(m: Any, x: Node) -> Node:
    """The squared Mahalanobis distance of each row, f64[N]: (x - location)ᵀ · precision · (x - location). As in the source, its root is
    taken and squared again."""
    centred = t.sub(t.cast(checked(m, x), "f64"), np.asarray(m.location_, np.float64)[None])
    product = t.matmul(centred, np.asarray(m.get_precision(), np.float64))
    root = t.sqrt(t.sum_(t.mul(product, centred), 1))
    return t.mul(root, root)


@converts(
    *(
        f"sklearn.covariance.{name}"
        for name in (
            "EmpiricalCovariance",
            "GraphicalLasso",
            "GraphicalLassoCV",
            "LedoitWolf",
            "MinCovDet",
            "OAS",
            "ShrunkCovariance",
        )
    )
)
def covariance(m: Any, x: Node) -> Result:
    return {"mahalanobis": _mahalanobis(m, x)}


@converts("sklearn.covariance.EllipticEnvelope")
def elliptic_envelope(m: Any, x: Node) -> Result:
    """`predict` gives 1 (an inlier) if -mahalanobis - offset ≥ 0, else -1."""
    squares = _mahalanobis(m, x)
    score = t.neg(squares)
    decision = t.sub(score, float(m.offset_))
    predicted = t.sub(t.mul(t.cast(t.less_equal(0.0, decision), "i64"), 2), 1)
    return {"predict": predicted, "decision_function": decision, "score_samples": score, "mahalanobis": squares}
