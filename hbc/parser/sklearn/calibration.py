"""Converters for classifiers that wrap another classifier: calibrated probabilities, chosen decision thresholds, self-training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.errors import counted
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, N
from hbc.ops import tensor as t
from hbc.ops.checks import CheckAgreed
from hbc.ops.columns import Rank
from hbc.ops.linear import Softmax
from hbc.parser.frame import Frame, Refusal
from hbc.parser.labels import labels
from hbc.parser.registry import Outputs, Result, converts, public_name
from hbc.parser.sklearn.linear import float_type, logistic, normalized
from hbc.parser.sklearn.pipeline import gives_input_to, own_methods
from hbc.parser.sklearn.shared.common import as_float, checked
from hbc.parser.sklearn.shared.members import as_columns, constant_rows, convert_members, response, response_method, total
from hbc.parser.walk import children

CALIBRATED = "sklearn.calibration.CalibratedClassifierCV"
THRESHOLDS = ("sklearn.model_selection.FixedThresholdClassifier", "sklearn.model_selection.TunedThresholdClassifierCV")
SELF_TRAINING = "sklearn.semi_supervised.SelfTrainingClassifier"


# --- calibration -----------------------------------------------------------------------------------------------------


@gives_input_to(CALIBRATED)
def _calibrated_estimators(m: Any) -> Sequence[Any]:
    return [calibrated.estimator for calibrated in m.calibrated_classifiers_]


@converts(CALIBRATED, frame=True)
def calibrated_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict_proba` is the mean of the calibrated probabilities, f64[N, K]; `predict` takes the class of the largest mean."""
    members = convert_members(_calibrated_estimators(m), x, "calibrated_classifiers_")
    probas = []
    for k, (calibrated, outputs) in enumerate(zip(m.calibrated_classifiers_, members, strict=True)):
        method = response_method(calibrated.estimator, ("decision_function", "predict_proba"))
        found = response(calibrated.estimator, outputs, method)
        if found is None or len(calibrated.estimator.classes_) < min(len(m.classes_), 2):
            raise Refusal("one of its estimators was fitted on a single class, for which the source gives no probabilities.")
        scores = as_columns(found)
        if calibrated.method == "temperature":
            proba = _tempered(calibrated, scores, method)
        else:
            proba = _one_by_one(calibrated, scores, x, f"calibrated_classifiers_[{k}]")
        proba = t.cast(proba, "f64")
        over = t.logical_and(t.less(1.0, proba), t.less_equal(proba, 1.0 + 1e-5))
        probas.append(t.where(over, 1.0, proba))
    mean = t.div(total(probas), float(len(probas)))
    return {"predict": labels(m.classes_, t.argmax(mean, 1)), "predict_proba": mean}


def _one_by_one(calibrated: Any, scores: Node, x: Node | Frame, place: str) -> Node:
    """Probabilities f64[N, K] from one calibrator for each class that the estimator knows; other classes get 0, and rows are then
    normalized. For two classes there is one calibrator, that of the second class, and the first class gets 1 - p."""
    classes = calibrated.classes
    positions = np.searchsorted(classes, calibrated.estimator.classes_)
    shares: dict[int, Node] = {}
    # zip stops at the shortest, as in the source: an estimator that knows two of more classes has one column of scores.
    for k, (position, calibrator) in enumerate(zip(positions[: scores.type.columns], calibrated.calibrators, strict=False)):
        score = t.reshape(t.take(scores, np.array([k]), axis=1), N)
        shares[int(position) + (len(classes) == 2)] = as_columns(
            _calibrated(calibrated, calibrator, score, f"{place}.calibrators[{k}]")
        )
    if len(classes) == 2:
        return t.concat([t.sub(1.0, shares[1]), shares[1]])
    zero = as_columns(constant_rows(x, np.zeros(1)))
    return normalized(t.concat([shares.get(i, zero) for i in range(len(classes))]))


def _calibrated(calibrated: Any, calibrator: Any, score: Node, place: str) -> Node:
    """The prediction of an isotonic or sigmoid calibrator for score[N], f64[N]."""
    if calibrated.method == "isotonic":
        (outputs,) = children([(calibrator, score, place)])
        return t.cast(outputs["predict"][0], "f64")
    # a_ and b_ are numpy scalars, so they widen float32 scores. The source computes expit(-(a·s + b)).
    score = t.cast(
        score, float_type(NUMPY_DTYPES[score.type.dtype], np.asarray(calibrator.a_).dtype, np.asarray(calibrator.b_).dtype)
    )
    return t.cast(logistic(t.neg(t.add(t.mul(score, float(calibrator.a_)), float(calibrator.b_)))), "f64")


def _tempered(calibrated: Any, scores: Node, method: str) -> Node:
    """softmax(beta_ · logits), f[N, K]. The logits of one column x of decisions are (-x, x). For several columns see `_as_logits`."""
    if scores.type.columns == 1 and method == "predict_proba":
        scores = t.concat([t.sub(1.0, scores), scores])
    scores = as_float(checked(calibrated.calibrators[0], scores))
    if scores.type.columns == 1:
        logits = t.concat([t.neg(scores), scores])
    else:
        logits = _as_logits(scores, certain=method == "predict_proba" and _adds_up_to_one(calibrated.estimator))
    if logits.type.columns != len(calibrated.classes):
        raise Refusal("one of its estimators was not fitted on all classes, and the source fails too.")
    beta = np.asarray(calibrated.calibrators[0].beta_)
    logits = t.cast(logits, float_type(NUMPY_DTYPES[logits.type.dtype], beta.dtype))
    return Softmax()(t.mul(logits, float(beta)))


def _as_logits(scores: Node, certain: bool) -> Node:
    """The logits of scores[N, K]: ln(p + 1e-12) if the source takes the scores for probabilities, otherwise the scores themselves.

    The source looks at the numbers of the whole batch, whatever method they come from: if all are in 0 … 1 and every row adds up to 1,
    they are probabilities (_convert_to_logits). In hbc a row does not depend on other rows, so a batch in which this holds for some rows
    only is rejected. `certain`: it is known that they are probabilities."""
    logarithms = t.log(t.add(scores, 1e-12))
    if certain:
        return logarithms
    inside = t.logical_and(
        t.less_equal(0.0, t.min_(scores, 1, keepdims=True)), t.less_equal(t.max_(scores, 1, keepdims=True), 1.0)
    )
    apart = t.absolute(t.sub(t.sum_(scores, 1, keepdims=True), 1.0))
    alike = t.logical_and(inside, t.less_equal(apart, 1e-8 + 1e-5))
    what = "scores are in 0 … 1 and add up to 1 (scikit-learn takes them for probabilities)"
    return t.where(CheckAgreed(CALIBRATED, True, True, min_rows=0, what=what)(alike), logarithms, scores)


NORMALIZED = {"DecisionTree", "ExtraTree", "ExtraTrees", "RandomForest", "KNeighbors", "MLP", "GaussianProcess", "XGB", "XGBRF"}
"""Classifiers whose probabilities of several classes add up to 1 in every row; names without their ending "Classifier"."""


def _adds_up_to_one(estimator: Any) -> bool:
    name = public_name(type(estimator))
    return name.startswith("sklearn.naive_bayes.") or name.rpartition(".")[2].removesuffix("Classifier") in NORMALIZED


# --- thresholds ------------------------------------------------------------------------------------------------------


@gives_input_to(*THRESHOLDS)
def _thresholded_estimator(m: Any) -> Sequence[Any]:
    return [getattr(m, "estimator_", m.estimator)]


@converts(*THRESHOLDS, frame=True)
def threshold_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict` gives the positive class if its score ≥ threshold, else the other one. The other methods are those of the estimator."""
    (estimator,) = _thresholded_estimator(m)
    (outputs,) = convert_members([estimator], x, "estimator")
    tuned = hasattr(m, "_curve_scorer")
    preferred = ("predict_proba", "decision_function") if m.response_method == "auto" else (m.response_method,)
    method = response_method(estimator, preferred)
    classes = np.asarray(estimator.classes_)
    label = m._curve_scorer._get_pos_label() if tuned else m.pos_label
    positive = 1 if label is None else int(np.flatnonzero(classes == label)[0])
    score = response(estimator, outputs, method, positive)
    if score is None or len(classes) != 2:
        raise Refusal(f"its estimator has {counted(len(classes), 'class', 'classes')}, expected 2.")
    threshold = m.best_threshold_ if tuned else m.threshold
    if isinstance(threshold, str):
        threshold = 0.5 if method == "predict_proba" else 0.0
    if isinstance(threshold, np.generic):  # a numpy scalar may widen the score in the comparison; a Python number does not
        score = t.cast(score, float_type(NUMPY_DTYPES[score.type.dtype], threshold.dtype))
    if np.isfinite(threshold):
        # Users choose the threshold among scores. `Rank` jumps, so that scores have the source's bits before it: of 3,888 rows of six
        # trees, 5 had another label at 0.4.
        below = np.nextafter(np.array([[threshold]], NUMPY_DTYPES[score.type.dtype]), -np.inf)
        reached = t.reshape(t.less(t.constant(0, "i32"), Rank(below)(as_columns(score))), N)
    else:
        reached = t.less_equal(float(threshold), score)
    chosen = t.where(reached, t.constant(positive), t.constant(1 - positive))
    return {**_except_predict(m, outputs), "predict": (labels(classes, chosen),)}


def _except_predict(m: Any, outputs: Outputs) -> Outputs:
    passed = ("predict_proba", "predict_log_proba", "decision_function")
    return {method: nodes for method, nodes in own_methods(m, outputs).items() if method in passed}


# --- self-training ---------------------------------------------------------------------------------------------------


@converts(SELF_TRAINING)
def self_training_classifier(m: Any, x: Node) -> Result:
    """The methods of the last fitted estimator. This class accepts NaN and ±inf itself; that estimator may reject them."""
    x = checked(m, x, allow_nan=True, allow_inf=True)
    (outputs,) = children([(m.estimator_, x, "estimator_")])
    passed = ("predict", "predict_proba", "predict_log_proba", "decision_function")
    return {method: nodes for method, nodes in own_methods(m, outputs).items() if method in passed}
