"""Converters for the ensembles of sklearn.ensemble that take any estimator, Bagging and AdaBoost, and for RandomTreesEmbedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node
from hbc.ir.types import Array, DType, N
from hbc.ops import tensor as t
from hbc.ops.encoding import OneHot
from hbc.ops.linear import Softmax
from hbc.ops.median import WeightedMedian
from hbc.ops.tree import Tree, join
from hbc.parser.boosting import flat, leaves, staged
from hbc.parser.frame import Refusal, select_columns
from hbc.parser.front_door import computed_of_dense_only, in_dtype_of
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.members import added_in_order, total
from hbc.parser.sklearn.tree import accepts_nan, read_tree, single
from hbc.parser.walk import child

TREES = {
    f"sklearn.tree.{name}"
    for name in ("DecisionTreeClassifier", "ExtraTreeClassifier", "DecisionTreeRegressor", "ExtraTreeRegressor")
}


def _only_trees(estimators: Sequence[Any]) -> bool:
    """Whether all estimators are single decision trees. They then become one TreeEnsemble; others are converted one by one."""
    return all(public_name(type(estimator)) in TREES for estimator in estimators)


def _zero(x: Node, dtype: DType = "f64") -> Node:
    """A column of zeros, [N, 1], with as many rows as x."""
    first = t.take(x, np.array([0]), axis=1)
    return t.cast(t.less(first, first), dtype)


def _members(m: Any, x: Node) -> list[dict[str, tuple[Node, ...]]]:
    """The methods of each estimator of a Bagging, converted on the columns that it was fitted on."""
    pairs = zip(m.estimators_, m.estimators_features_, strict=True)
    return [
        child(e, select_columns(x, [int(f) for f in features]), f"estimators_[{i}]") for i, (e, features) in enumerate(pairs)
    ]


def _bagged_trees(m: Any, x: Node, values: list[Array]) -> Node:
    """The sum over the trees of the values of the leaves reached, f64[N, K]. `values`: for each tree the values of its nodes, f64[M, K].
    Only the columns that some tree was fitted on are read and checked."""
    used = np.unique(np.concatenate(m.estimators_features_))
    first = m.estimators_[0]
    x = single(first, select_columns(x, [int(i) for i in used]), allow_nan=accepts_nan(first))
    trees = [
        read_tree(tree.tree_, value, np.searchsorted(used, features))
        for tree, value, features in zip(m.estimators_, values, m.estimators_features_, strict=True)
    ]
    return join(trees, np.zeros(values[0].shape[1]))(x)


@converts("sklearn.ensemble.BaggingClassifier")
def bagging_classifier(m: Any, x: Node) -> Result:
    x = checked(m, x, allow_nan=True, allow_inf=True)
    classes, count = int(m.n_classes_), float(len(m.estimators_))
    outputs: dict[str, Node] = {}
    if _only_trees(m.estimators_):
        values = []
        for estimator in m.estimators_:
            tree = estimator.tree_
            values.append(np.zeros((tree.node_count, classes)))
            # The members are fitted on class numbers 0, 1, …, and may not have seen every class.
            values[-1][:, estimator.classes_.astype(int)] = tree.value[:, 0, : estimator.n_classes_]
        proba = _bagged_trees(m, x, values)
    else:
        members = _members(m, x)
        parts = [_member_proba(e, member, classes) for e, member in zip(m.estimators_, members, strict=True)]
        proba = total(parts)
        if hasattr(m, "decision_function"):
            outputs["decision_function"] = t.div(total([member["decision_function"][0] for member in members]), count)
        if hasattr(m.estimator_, "predict_log_proba"):
            logs = [_member_log_proba(e, member, classes) for e, member in zip(m.estimators_, members, strict=True)]
            outputs["predict_log_proba"] = t.sub(reduce(_log_add_exp, logs), np.log(count))
    proba = t.div(proba, count)
    outputs["predict"] = labels(m.classes_, t.argmax(proba if _only_trees(m.estimators_) else added_in_order(proba), 1))
    outputs["predict_proba"] = proba
    # For trees the source adds the exponentials of the members' logarithms, which gives the same number.
    outputs.setdefault("predict_log_proba", t.log(proba))
    return outputs


def _member_proba(estimator: Any, outputs: dict[str, tuple[Node, ...]], classes: int) -> Node:
    """The probabilities of one member, f64[N, classes], with 0 for classes that it does not know. A member without probabilities gives
    1 for the class that it predicts."""
    if "predict_proba" not in outputs:
        vote = t.reshape(t.cast(outputs["predict"][0], "i64"), N, 1)
        return t.cast(t.equal(vote, np.arange(classes)[None]), "f64")
    proba = t.cast(outputs["predict_proba"][0], "f64")
    known = np.asarray(estimator.classes_).astype(int)
    if len(known) == classes != proba.type.columns:  # HistGradientBoostingClassifier fitted on one class
        raise Refusal(
            f"an estimator in it gives {proba.type.columns} probabilities for {classes} classes, and the source fails too."
        )
    return _at_classes(proba, known, classes, _zero(proba))


def _member_log_proba(estimator: Any, outputs: dict[str, tuple[Node, ...]], classes: int) -> Node:
    """The logarithms of a member's probabilities, f64[N, classes], with -inf for classes that it has not seen."""
    logs = t.cast(outputs["predict_log_proba"][0], "f64")
    return _at_classes(logs, np.asarray(estimator.classes_).astype(int), classes, t.add(_zero(logs), -np.inf))


def _at_classes(values: Node, known: Array, classes: int, absent: Node) -> Node:
    """values (one column for each of the `known` classes) as [N, classes], with the column `absent` for the other classes."""
    if len(known) == classes:
        return values
    place = np.full(classes, len(known))
    place[known] = np.arange(len(known))
    return t.take(t.concat([values, absent]), place, axis=1)


def _log_add_exp(a: Node, b: Node) -> Node:
    """ln(eᵃ + eᵇ), as numpy.logaddexp computes it: eᵃ itself may be too small for a float64."""
    larger, smaller = t.maximum(a, b), t.minimum(a, b)
    equal = t.equal(a, b)
    apart = t.where(equal, 0.0, t.sub(smaller, larger))  # inf - inf would be NaN
    return t.add(larger, t.where(equal, float(np.log(2.0)), t.log1p(t.exp(apart))))


@converts("sklearn.ensemble.BaggingRegressor")
def bagging_regressor(m: Any, x: Node) -> Result:
    x = checked(m, x, allow_nan=True, allow_inf=True)
    if _only_trees(m.estimators_):
        predicted = _bagged_trees(m, x, [e.tree_.value.reshape(e.tree_.node_count, -1) for e in m.estimators_])
        predicted = flat(predicted)
    else:
        predicted = total([member["predict"][0] for member in _members(m, x)])
    return {"predict": t.div(predicted, float(len(m.estimators_)))}


@converts("sklearn.ensemble.AdaBoostClassifier")
def adaboost_classifier(m: Any, x: Node) -> Result:
    given, x = x, checked(m, x)
    classes = int(m.n_classes_)
    if classes == 1:
        # For a sparse matrix the source returns Python objects.
        decision = computed_of_dense_only(in_dtype_of(x, _zero(x, x.type.dtype)))
        one = t.add(_zero(given), 1.0)  # the source looks at the number of rows only
        predict = labels(m.classes_, t.cast(t.reshape(decision, N), "i64"))
        return {"predict": predict, "decision_function": decision, "predict_proba": one, "predict_log_proba": t.log(one)}
    weights = m.estimator_weights_[: len(m.estimators_)]
    if _only_trees(m.estimators_):
        pairs = zip(m.estimators_, weights, strict=True)
        trees = [read_tree(e.tree_, _votes(m, e.classes_[e.tree_.value[:, 0].argmax(axis=1)], w)) for e, w in pairs]
        first = m.estimators_[0]
        ensemble, single_x = join(trees, np.zeros(classes)), single(first, x, allow_nan=accepts_nan(first))
        votes, stages = ensemble(single_x), staged(ensemble, single_x)
    else:
        members = [child(e, x, f"estimators_[{i}]") for i, e in enumerate(m.estimators_)]
        parts = []
        for member, weight in zip(members, weights, strict=True):
            known, index = _class_index(member["predict"][0])
            parts.append(t.take(_votes(m, known, weight), index, axis=0))
        votes = total(parts)
        stages = t.cumsum(t.concat([t.reshape(part, N, 1, classes) for part in parts]), 1)
    votes = t.div(votes, float(m.estimator_weights_.sum()))
    stages = t.div(stages, np.cumsum(weights)[None, :, None])
    last, each = _boosted_classes(m, votes), _boosted_classes(m, stages)
    return {
        **last,
        "predict_log_proba": t.log(last["predict_proba"]),
        **{f"staged_{method}": output for method, output in each.items()},
    }


def _boosted_classes(m: Any, votes: Node) -> dict[str, Node]:
    """The methods of an AdaBoostClassifier, computed from the weighted mean of its votes, f64[N, …, classes]."""
    axis, classes = len(votes.type.shape) - 1, int(m.n_classes_)
    if classes == 2:
        before, after = (t.take(votes, np.array([k]), axis=axis) for k in (0, 1))
        column = t.add(t.neg(before), after)
        decision = t.reshape(column, *votes.type.shape[:-1])
        index = t.cast(t.less(0.0, decision), "i64")
        proba = Softmax()(t.div(t.concat([t.neg(column), column], axis), 2.0))
    else:
        decision, index = votes, t.argmax(votes, axis)
        proba = Softmax()(t.div(votes, float(classes - 1)))
    return {"predict": labels(m.classes_, index), "decision_function": decision, "predict_proba": proba}


def _votes(m: Any, predicted: Array, weight: float) -> Array:
    """The votes of an estimator with `weight`, f64[labels, classes]: row i holds what it adds to each class if it predicts predicted[i]."""
    return np.where(predicted[:, None] == m.classes_[None], weight, -1 / (m.n_classes_ - 1) * weight)


def _class_index(predicted: Node) -> tuple[Array, Node]:
    """(the labels of a classifier, the index into them i64[N]), taken apart from the node of its `predict`, which looks labels up in a
    table. Raises Refusal if `predict` was built in another way."""
    if isinstance(predicted.op, t.Take) and isinstance(predicted.inputs[0].op, Constant):
        return predicted.inputs[0].op.value, predicted.inputs[1]
    raise Refusal("the labels of its estimators cannot be traced back to their classes.", "Use trees or linear models in it.")


@converts("sklearn.ensemble.AdaBoostRegressor")
def adaboost_regressor(m: Any, x: Node) -> Result:
    x = checked(m, x)
    if _only_trees(m.estimators_):
        trees: list[Tree] = [read_tree(e.tree_, e.tree_.value[:, 0]) for e in m.estimators_]
        first = m.estimators_[0]
        x = single(first, x, allow_nan=accepts_nan(first))
        predictions = join(trees, np.zeros(len(trees)), np.arange(len(trees)))(x)
    else:
        members = [child(e, x, f"estimators_[{i}]")["predict"][0] for i, e in enumerate(m.estimators_)]
        common: DType = "f32" if {member.type.dtype for member in members} == {"f32"} else "f64"
        predictions = t.concat([t.cast(t.reshape(member, N, 1), common) for member in members])
    weights = np.asarray(m.estimator_weights_[: len(m.estimators_)], np.float64)
    return {
        "predict": WeightedMedian(weights)(predictions),
        "staged_predict": WeightedMedian(weights, staged=True)(predictions),
    }


@converts("sklearn.ensemble.RandomTreesEmbedding")
def random_trees_embedding(m: Any, x: Node) -> Result:
    """`transform` has a column for each leaf of each tree: 1 if the row reaches that leaf, else 0."""
    x = single(m, x, allow_nan=accepts_nan(m.estimators_[0]))
    trees = [read_tree(e.tree_, np.zeros((e.tree_.node_count, 1))) for e in m.estimators_]
    applied = leaves(join(trees, np.zeros(1)), x)
    categories = m.one_hot_encoder_.categories_
    tree = np.repeat(np.arange(len(categories)), [len(one) for one in categories])
    return {"transform": OneHot(tree, np.concatenate(categories), "f64")(applied), "apply": applied}
