"""Converters for GradientBoosting and HistGradientBoosting of sklearn.ensemble.

Raw predictions are the sums of leaves, before the inverse of the loss's link turns them into predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Frames
from hbc.ir.types import Array, N
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.linear import Logistic, Softmax
from hbc.ops.tree import CategoryPlanes, Tree, TreeEnsemble, join
from hbc.parser.boosting import flat, leaves, staged
from hbc.parser.frame import Frame, Refusal, as_frame, as_matrix
from hbc.parser.front_door import note_input
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.release import since
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.tree import accepts_nan, read_tree, single
from hbc.parser.walk import child, transform_child

# --- losses ----------------------------------------------------------------------------------------------------------

INVERSE: dict[str, Callable[[Node], Node]] = {
    "IdentityLink": lambda raw: raw,
    "LogLink": t.exp,
    "LogitLink": Logistic(),
    "HalfLogitLink": lambda raw: Logistic()(t.mul(raw, 2.0)),
    "MultinomialLogit": lambda raw: Softmax()(raw),
}
"""The inverse of each link: predictions from raw predictions (sklearn._loss.link)."""


def _logit(p: Node) -> Node:
    return t.log(t.div(p, t.sub(1.0, p)))


def _multinomial_logit(p: Node) -> Node:
    logs = t.log(p)
    return t.sub(logs, t.div(t.sum_(logs, axis=1, keepdims=True), float(p.type.columns)))


LINK: dict[str, Callable[[Node], Node]] = {
    "IdentityLink": lambda p: p,
    "LogitLink": _logit,
    "HalfLogitLink": lambda p: t.mul(_logit(p), 0.5),
    "MultinomialLogit": _multinomial_logit,
}
"""Each link: raw predictions from the predictions of the init estimator."""


def _function(table: dict[str, Callable[[Node], Node]], m: Any) -> Callable[[Node], Node]:
    """The entry of `table` for the link of m's loss. Raises Refusal for an unknown link."""
    name = type(m._loss.link).__name__
    if name not in table:
        raise Refusal(f"its loss {m.loss!r} has the link {name}, which is not one of {', '.join(table)}.")
    return table[name]


def _probabilities(m: Any, raw: Node) -> Node:
    """Probabilities f64[N, …, K] from raw predictions f64[N, …, K], or f64[N, …, 1] for two classes (BaseLoss.predict_proba)."""
    positive = _function(INVERSE, m)(raw)
    axis = len(raw.type.shape) - 1
    return t.concat([t.sub(1.0, positive), positive], axis) if raw.type.shape[-1] == 1 else positive


# --- GradientBoosting ------------------------------------------------------------------------------------------------


def _least_probability() -> float:
    """The least probability that an init estimator is taken to give."""
    return float(np.finfo(np.float64 if since(1, 8) else np.float32).eps)


def _boosted(m: Any) -> TreeEnsemble:
    """The trees of all stages, their values multiplied by the learning rate. Their base is the init prediction if it is constant."""
    rounds, outputs = m.estimators_.shape
    trees = [tree.tree_ for tree in m.estimators_.ravel()]
    read = [read_tree(tree, m.learning_rate * tree.value.reshape(tree.node_count, 1)) for tree in trees]
    return join(read, _constant_init(m, outputs), np.tile(np.arange(outputs), rounds))


def _constant_init(m: Any, outputs: int) -> Array:
    """The raw prediction of the init estimator, f64[outputs], if it is the same for every row. Otherwise 0, and `_init` is added."""
    name = public_name(type(m.init_))
    if name == "sklearn.dummy.DummyClassifier" and m.init_.strategy == "prior":
        prior = np.asarray(m.init_.class_prior_)[None]
        eps = _least_probability()
        prior = np.clip(prior if m._loss.is_multiclass else prior[:, 1], eps, 1 - eps, dtype=np.float64)
        return np.asarray(m._loss.link.link(prior)).ravel()
    if name == "sklearn.dummy.DummyRegressor":
        return np.asarray(m._loss.link.link(m.init_.constant_.astype(np.float64))).ravel()
    return np.zeros(outputs)


def _has_constant_init(m: Any) -> bool:
    if isinstance(m.init_, str):
        return True
    name = public_name(type(m.init_))
    return name == "sklearn.dummy.DummyRegressor" or (name == "sklearn.dummy.DummyClassifier" and m.init_.strategy == "prior")


def _init(m: Any, x: Node, classifier: bool) -> Node:
    """The raw predictions of the init estimator for each row, f64[N, K]. It is given the float32 matrix (_init_raw_predictions)."""
    outputs = child(m.init_, x, "init_")
    link = _function(LINK, m)
    if not classifier:
        (predictions,) = outputs["predict"]
        return link(t.reshape(t.cast(predictions, "f64"), N, 1))
    (proba,) = outputs["predict_proba"]
    proba = t.cast(proba, "f64")
    if not m._loss.is_multiclass:
        proba = t.take(proba, np.array([1]), axis=1)
    eps = _least_probability()
    return link(t.minimum(t.maximum(proba, eps), 1 - eps))


@record
class _Raw:
    """The outputs of a GradientBoosting model over S stages, before its loss's link."""

    last: Node
    """Raw predictions after all stages, f64[N, K]."""
    staged: Node
    """Raw predictions after each stage, f64[N, S, K]."""
    applied: Node
    """The leaves reached, f64[N, S, K], as `apply` numbers them."""


def _gradient_boosting(m: Any, x: Node, classifier: bool) -> _Raw:
    single_x = single(m, x, allow_nan=False)
    ensemble = _boosted(m)
    raw = ensemble(single_x)
    init = None if _has_constant_init(m) else _init(m, single_x, classifier)
    # The predictions reject NaN. `apply` leaves the input check to the first tree, which may accept NaN.
    applied = leaves(ensemble, single(m, x, allow_nan=accepts_nan(m.estimators_[0, 0])))
    return _Raw(
        last=raw if init is None else t.add(init, raw),
        staged=staged(ensemble, single_x, init),
        applied=t.reshape(t.cast(applied, "f64"), N, *m.estimators_.shape),
    )


@converts("sklearn.ensemble.GradientBoostingClassifier")
def gradient_boosting_classifier(m: Any, x: Node) -> Result:
    """For two classes and a single row, the source's staged_predict yields numbers. Here it yields arrays of length 1, as for more rows."""
    raw = _gradient_boosting(m, x, classifier=True)
    decision, proba = flat(raw.last), _probabilities(m, raw.last)
    return {
        "predict": labels(m.classes_, _class_index(raw.last)),
        "decision_function": decision,
        "predict_proba": proba,
        "predict_log_proba": t.log(proba),
        "apply": raw.applied,
        "staged_predict": labels(m.classes_, _class_index(raw.staged)),
        "staged_decision_function": raw.staged,
        "staged_predict_proba": _probabilities(m, raw.staged),
    }


def _class_index(raw: Node) -> Node:
    """The number of the predicted class from raw predictions f64[N, …, K], or f64[N, …, 1] for two classes: i64[N, …]."""
    if raw.type.shape[-1] == 1:
        return t.cast(t.less_equal(0.0, flat(raw)), "i64")
    return t.argmax(raw, len(raw.type.shape) - 1)


@converts("sklearn.ensemble.GradientBoostingRegressor")
def gradient_boosting_regressor(m: Any, x: Node) -> Result:
    raw = _gradient_boosting(m, x, classifier=False)
    applied = t.reshape(raw.applied, N, m.estimators_.size)
    return {"predict": flat(raw.last), "apply": applied, "staged_predict": flat(raw.staged)}


# --- HistGradientBoosting --------------------------------------------------------------------------------------------


def _histogram_raw(m: Any, x: Node | Frame) -> tuple[Node, Node]:
    """(raw predictions f64[N, K], raw predictions after each stage f64[N, S, K]): _raw_predict and _staged_raw_predict. The trees read a
    float64 matrix: first the categorical columns, encoded as 0, 1, … or NaN, then the others."""
    x = _numbers(m, as_matrix(x)) if m.is_categorical_ is None else _encoded(m, as_frame(x))
    predictors = [predictor for stage in m._predictors for predictor in stage]
    planes = _Planes(m, x.type.columns)
    trees = [planes.read(predictor) for predictor in predictors]
    if planes.keys:
        x = t.concat([x, planes.operator()(x)])
    base = np.asarray(m._baseline_prediction).ravel()
    ensemble = join(trees, base, np.tile(np.arange(len(base)), len(m._predictors)))
    return ensemble(x), staged(ensemble, x)


def _encoded(m: Any, frame: Frame) -> Node:
    """The output of the fitted `_preprocessor`, f64[N, F]: categorical columns encoded by an OrdinalEncoder, then the others as they
    are."""
    if all(column.origin == i for i, column in enumerate(frame.columns)):
        note_input(Frames(by_column=True))
    categorical, numerical = ([int(i) for i in np.flatnonzero(chosen)] for chosen in (m.is_categorical_, ~m.is_categorical_))
    parts = []
    if categorical:
        encoder = m._preprocessor.named_transformers_["encoder"]
        parts.append(t.cast(transform_child(encoder, frame.select(categorical), "_preprocessor.encoder"), "f64"))
    if numerical:
        parts.append(_numbers(m, frame.select(numerical).matrix()))
    return t.concat(parts)


def _numbers(m: Any, x: Node) -> Node:
    return t.cast(checked(m, x, allow_nan=True, allow_inf=True), "f64")


class _Planes:
    """Reads the trees of a model, and collects their tests for sets of categories. Each different test becomes a plane: a column of 0 and
    1 behind x, which the trees compare with 0.5."""

    def __init__(self, m: Any, columns: int) -> None:
        self.columns = columns
        known, place = m._bin_mapper.make_known_categories_bitsets()
        self.known = {int(f): _members(known[place[f]]) for f in np.flatnonzero(m._bin_mapper.is_categorical_)}
        self.keys: dict[tuple[int, bool, tuple[int, ...]], int] = {}

    def read(self, predictor: Any) -> Tree:
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        categorical = nodes["is_categorical"].astype(bool) & ~leaf
        feature = np.where(leaf, -1, nodes["feature_idx"].astype(np.int64))
        threshold = np.where(leaf, 0.0, nodes["num_threshold"])
        for i in np.flatnonzero(categorical):
            goes_left = _members(predictor.raw_left_cat_bitsets[nodes["bitset_idx"][i]])
            feature[i] = self.plane(int(feature[i]), bool(nodes["missing_go_to_left"][i]), goes_left)
            threshold[i] = 0.5
        return Tree(
            feature=feature,
            threshold=threshold,
            left=nodes["left"].astype(np.int64),
            right=nodes["right"].astype(np.int64),
            missing_left=nodes["missing_go_to_left"].astype(bool) & ~leaf & ~categorical,
            values=nodes["value"][:, None],
            cover=nodes["count"].astype(np.int32),
        )

    def plane(self, feature: int, missing_left: bool, goes_left: Array) -> int:
        """The number of the plane that is 0 where a row goes left. An unknown category goes to the side of missing values, so the plane
        tests for the set of known categories that go to the other side."""
        other_way = np.setdiff1d(self.known[feature], goes_left) if missing_left else goes_left
        key = (feature, missing_left, tuple(map(int, other_way)))
        return self.columns + self.keys.setdefault(key, len(self.keys))

    def operator(self) -> CategoryPlanes:
        right_inside = np.array([missing_left for _, missing_left, _ in self.keys])
        return CategoryPlanes.of_sets(
            [feature for feature, *_ in self.keys],
            [categories for *_, categories in self.keys],
            inside=right_inside,
            missing=~right_inside,
            invalid=~right_inside,
        )


def _members(bitset: Array) -> Array:
    """The positions of the bits that are set in bitset (uint32[8]), ascending."""
    return np.flatnonzero(np.unpackbits(np.ascontiguousarray(bitset, "<u4").view(np.uint8), bitorder="little"))


@converts("sklearn.ensemble.HistGradientBoostingRegressor", frame=True)
def histogram_regressor(m: Any, x: Node | Frame) -> Result:
    inverse = _function(INVERSE, m)
    last, stages = _histogram_raw(m, x)
    return {"predict": inverse(flat(last)), "staged_predict": inverse(flat(stages))}


@converts("sklearn.ensemble.HistGradientBoostingClassifier", frame=True)
def histogram_classifier(m: Any, x: Node | Frame) -> Result:
    result = {}
    for prefix, raw in zip(("", "staged_"), _histogram_raw(m, x), strict=True):
        decision = flat(raw)
        one = raw.type.shape[-1] == 1
        index = t.cast(t.less(0.0, decision), "i64") if one else t.argmax(raw, len(raw.type.shape) - 1)
        result[f"{prefix}predict"] = labels(m.classes_, index)
        result[f"{prefix}decision_function"] = decision
        result[f"{prefix}predict_proba"] = _probabilities(m, raw)
    return result
