"""Converters for sklearn.linear_model and the linear estimators of sklearn.svm."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType, dtype_name
from hbc.ops import tensor as t
from hbc.ops.linear import Linear, Logistic, Softmax
from hbc.parser.frame import Frame, Refusal
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked, float_of, narrow_as_parameters
from hbc.parser.walk import child


def float_type(*types: Any) -> DType:
    """The float dtype in which numpy computes with these dtypes: numpy.result_type of them, or f64 if all are integers."""
    common = np.result_type(*types)
    return dtype_name(common) if common.kind == "f" else "f64"


def affine(x: Node, weights: Array, intercept: Any) -> Node:
    """x[N, F] · weights[F, K] + intercept, [N, K], in numpy's dtypes: the product in the common dtype of x and weights, then the sum. An
    intercept that is a Python number takes the dtype of the product; a numpy scalar or array may widen it (NEP 50). Raises Refusal for
    an intercept of another shape."""
    narrow_as_parameters(x, weights.dtype)
    common = float_type(NUMPY_DTYPES[x.type.dtype], weights.dtype)
    dtype = NUMPY_DTYPES[common]
    bias = np.asarray(intercept)
    weak = isinstance(intercept, (int, float)) and not isinstance(intercept, np.generic)
    total = common if weak else float_type(dtype, bias.dtype)
    if bias.ndim > 1 or bias.size not in (1, weights.shape[1]):
        raise Refusal(f"its intercept has shape {bias.shape} for {weights.shape[1]} outputs.")
    bias = np.broadcast_to(bias.astype(NUMPY_DTYPES[total]), weights.shape[1])
    x = t.cast(x, common)
    if total == common:
        return Linear(weights.astype(dtype, copy=False), bias)(x)
    return t.add(t.cast(t.matmul(x, weights.astype(dtype, copy=False)), total), bias)


def logistic(x: Node) -> Node:
    """1 / (1 + e^-x), element by element."""
    return Logistic()(x)


def coefficients(m: Any) -> Array:
    """m.coef_ as an array; `sparsify()` makes it a sparse matrix."""
    coef = m.coef_
    return np.asarray(coef.toarray() if hasattr(coef, "toarray") else coef)


# --- regressors ------------------------------------------------------------------------------------------------------


def _prediction(m: Any, x: Node) -> Node:
    """x · coef_ᵀ + intercept_: [N] if coef_ is a vector, otherwise [N, K]."""
    coef = coefficients(m)
    y = affine(x, np.atleast_2d(coef).T, m.intercept_)
    return t.reshape(y, "N") if coef.ndim == 1 else y


@converts(
    *(
        f"sklearn.linear_model.{name}"
        for name in (
            "ARDRegression",
            "BayesianRidge",
            "ElasticNet",
            "ElasticNetCV",
            "HuberRegressor",
            "Lars",
            "LarsCV",
            "Lasso",
            "LassoCV",
            "LassoLars",
            "LassoLarsCV",
            "LassoLarsIC",
            "LinearRegression",
            "MultiTaskElasticNet",
            "MultiTaskElasticNetCV",
            "MultiTaskLasso",
            "MultiTaskLassoCV",
            "OrthogonalMatchingPursuit",
            "OrthogonalMatchingPursuitCV",
            "PassiveAggressiveRegressor",
            "QuantileRegressor",
            "Ridge",
            "RidgeCV",
            "SGDRegressor",
            "TheilSenRegressor",
        )
    ),
    "sklearn.svm.LinearSVR",
)
def linear_regressor(m: Any, x: Node) -> Result:
    """`predict` as LinearModel computes it. None of these classes overrides it."""
    return {"predict": _prediction(m, checked(m, x))}


@converts(*(f"sklearn.linear_model.{name}" for name in ("PoissonRegressor", "GammaRegressor", "TweedieRegressor")))
def generalized_linear_regressor(m: Any, x: Node) -> Result:
    """`predict` gives the inverse of the link of the linear prediction. Integers become float64 first."""
    raw = _prediction(m, float_of(checked(m, x)))
    link = type(m._base_loss.link).__name__
    if link == "IdentityLink":
        return {"predict": raw}
    if link == "LogLink":
        return {"predict": t.exp(raw)}
    raise Refusal(f"its link {link} is unknown.")


@converts("sklearn.linear_model.RANSACRegressor", frame=True)
def ransac_regressor(m: Any, x: Node | Frame) -> Result:
    """`predict` of the estimator that was fitted on the inliers."""
    return {"predict": child(m.estimator_, x, "estimator_")["predict"]}


# --- classifiers -----------------------------------------------------------------------------------------------------


def _scores(m: Any, x: Node) -> Node:
    """LinearClassifierMixin.decision_function as a matrix [N, K], with K = 1 for two classes."""
    return affine(checked(m, x), np.atleast_2d(coefficients(m)).T, m.intercept_)


def _decided(m: Any, scores: Node) -> dict[str, Node]:
    """`decision_function` and `predict` from scores[N, K]. For two classes (K = 1) the second one is predicted if score > 0."""
    if scores.type.columns == 1:
        flat = t.reshape(scores, "N")
        return {"decision_function": flat, "predict": labels(m.classes_, t.cast(t.less(0.0, flat), "i64"))}
    return {"decision_function": scores, "predict": labels(m.classes_, t.argmax(scores, 1))}


def _with_log(proba: Node) -> dict[str, Node]:
    return {"predict_proba": proba, "predict_log_proba": t.log(proba)}


def normalized(proba: Node) -> Node:
    """Every row of proba[N, K] divided by its sum, or 1 / K everywhere if the sum is 0."""
    total = t.sum_(proba, 1, keepdims=True)
    share = np.full((1, 1), 1 / proba.type.columns, NUMPY_DTYPES[proba.type.dtype])
    return t.where(t.equal(total, 0.0), share, t.div(proba, total))


def _one_vs_rest_proba(scores: Node) -> Node:
    """Probabilities from scores by a logistic function for each class, then normalized (LinearClassifierMixin._predict_proba_lr)."""
    proba = logistic(scores)
    if proba.type.columns == 1:
        return t.concat([t.sub(1.0, proba), proba])
    return normalized(proba)


def _multinomial(m: Any) -> bool:
    """Whether `predict_proba` is a softmax. scikit-learn before 1.8 has the parameter `multi_class` for it. Later versions decide by the
    number of classes alone, and ignore this parameter of an old model."""
    classes = len(m.classes_)
    strategy = m.get_params(deep=False).get("multi_class")
    if strategy is None:
        return classes > 2
    if strategy in ("auto", "deprecated"):
        return classes > 2 and m.solver != "liblinear"
    return bool(strategy == "multinomial")


@converts("sklearn.linear_model.LogisticRegression", "sklearn.linear_model.LogisticRegressionCV")
def logistic_regression(m: Any, x: Node) -> Result:
    scores = _scores(m, x)
    if not _multinomial(m):
        proba = _one_vs_rest_proba(scores)
    elif scores.type.columns == 1:
        proba = Softmax()(t.concat([t.neg(scores), scores]))
    else:
        proba = Softmax()(scores)
    return {**_decided(m, scores), **_with_log(proba)}


@converts(
    "sklearn.linear_model.Perceptron",
    "sklearn.linear_model.PassiveAggressiveClassifier",
    "sklearn.svm.LinearSVC",
)
def linear_classifier(m: Any, x: Node) -> Result:
    return _decided(m, _scores(m, x))


@converts("sklearn.linear_model.RidgeClassifier", "sklearn.linear_model.RidgeClassifierCV")
def ridge_classifier(m: Any, x: Node) -> Result:
    scores = _scores(m, x)
    if m._label_binarizer.y_type_.startswith("multilabel"):
        return {"decision_function": scores, "predict": t.cast(t.less(0.0, scores), "i64")}
    return _decided(m, scores)


@converts("sklearn.linear_model.SGDClassifier")
def sgd_classifier(m: Any, x: Node) -> Result:
    scores = _scores(m, x)
    outputs = _decided(m, scores)
    if m.loss == "log_loss":
        outputs |= _with_log(_one_vs_rest_proba(scores))
    elif m.loss == "modified_huber":
        outputs |= _with_log(_modified_huber_proba(scores))
    return outputs


def _modified_huber_proba(scores: Node) -> Node:
    """(clip(score, -1, 1) + 1) / 2, normalized for several classes. For two classes it is float64, whatever the dtype of the score."""
    clipped = t.minimum(t.maximum(scores, -1.0), 1.0)
    if scores.type.columns > 1:
        return normalized(t.div(t.add(clipped, 1.0), 2.0))
    proba = t.div(t.add(t.cast(clipped, "f64"), 1.0), 2.0)
    return t.concat([t.sub(1.0, proba), proba])


@converts("sklearn.linear_model.SGDOneClassSVM")
def sgd_one_class_svm(m: Any, x: Node) -> Result:
    """`decision_function` gives x · coef_ - offset_. `predict` gives 1 (an inlier) if that is ≥ 0, else -1, as int32."""
    offset = np.asarray(m.offset_)
    flat = t.reshape(affine(checked(m, x), np.atleast_2d(coefficients(m)).T, -offset), "N")
    inlier = t.cast(t.less_equal(0.0, flat), "i32")
    return {
        "decision_function": flat,
        "score_samples": t.add(flat, offset.astype(NUMPY_DTYPES[flat.type.dtype]).reshape(-1)),
        "predict": t.sub(t.mul(inlier, 2), 1),
    }
