"""Converters for voting and stacking, the estimators of sklearn.ensemble that combine different estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, N, dtype_name
from hbc.ops import tensor as t
from hbc.parser.frame import Frame, Refusal, as_matrix
from hbc.parser.front_door import stacked_as_given
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.pipeline import gives_input_to, own_methods, taken_in_order
from hbc.parser.sklearn.shared.common import hstack
from hbc.parser.sklearn.shared.members import (
    added_in_order,
    as_columns,
    columns_of,
    convert_members,
    flat,
    in_common,
    joined,
    of_rows_only,
    total,
    value,
)
from hbc.parser.walk import children, note_unconvertible

VOTING = ("sklearn.ensemble.VotingClassifier", "sklearn.ensemble.VotingRegressor")
STACKING = ("sklearn.ensemble.StackingClassifier", "sklearn.ensemble.StackingRegressor")


@gives_input_to(*VOTING, *STACKING)
def _estimators(m: Any) -> Sequence[Any]:
    return list(m.estimators_)


def _average(nodes: Sequence[Node], weights: Any) -> Node:
    """The average over E members, as numpy.average computes it: Σ x / E or, in the common dtype of x and w, Σ w·x / Σ w."""
    nodes = in_common(nodes)
    if not nodes[0].type.is_float:
        nodes = [t.cast(node, "f64") for node in nodes]
    if weights is None:
        return t.div(total(nodes), float(len(nodes)))
    w = np.asarray(weights)
    dtype = dtype_name(np.result_type(NUMPY_DTYPES[nodes[0].type.dtype], w.dtype))
    scale = w.sum(dtype=NUMPY_DTYPES[dtype])
    return t.div(total([t.mul(t.cast(node, dtype), w[i]) for i, node in enumerate(nodes)]), scale)


@converts("sklearn.ensemble.VotingRegressor", frame=True)
def voting_regressor(m: Any, x: Node | Frame) -> Result:
    members = convert_members(m.estimators_, x)
    predicted = joined(zip(m.estimators_, members, strict=True))
    return of_rows_only(m, {"predict": _average(predicted, m._weights_not_none), "transform": columns_of(predicted)})


@converts("sklearn.ensemble.VotingClassifier", frame=True)
def voting_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict` gives, for soft voting, the class of the largest average probability; for hard voting, the first class with the most votes.
    `transform` is left out for soft voting with flatten_transform=False, where it is a three-dimensional array with members first."""
    members = list(zip(m.estimators_, convert_members(m.estimators_, x), strict=True))
    weights = m._weights_not_none
    if m.voting == "soft":
        each = [value(e, member, "predict_proba") for e, member in members]
        proba = _average(each, weights)
        outputs = {"predict": labels(m.classes_, t.argmax(added_in_order(proba), 1)), "predict_proba": proba}
        return of_rows_only(m, {**outputs, "transform": t.concat(in_common(each))} if m.flatten_transform else outputs)
    # The members are fitted on class numbers 0, 1, ….
    predicted = [t.cast(node, "i64") for node in joined(members)]
    if weights is not None and not all(weight >= 0 for weight in weights):
        raise Refusal("a weight is negative, so that the source's numpy.bincount does not find the class with the most votes.")
    shares = np.ones(len(predicted)) if weights is None else np.asarray(weights, np.float64)
    # Each member's votes are looked up in a table: row k votes for class k.
    votes = total([t.take(np.eye(len(m.classes_)) * share, one, axis=0) for share, one in zip(shares, predicted, strict=True)])
    return of_rows_only(m, {"predict": labels(m.classes_, t.argmax(votes, 1)), "transform": columns_of(predicted)})


def _stacked(m: Any, x: Node | Frame) -> Node:
    """The members' predictions side by side, with x behind them if `passthrough`. For two classes only the second probability is taken."""
    try:
        members = convert_members(m.estimators_, x)
    except UnsupportedOperatorError:
        with note_unconvertible(m.final_estimator_, "final_estimator_"):
            raise
    binary = len(m.classes_) == 2 if hasattr(m, "classes_") else False
    blocks = []
    for estimator, member, method in zip(m.estimators_, members, m.stack_method_, strict=True):
        nodes = member.get(method, ())
        if len(nodes) > 1 or (nodes and method == "predict_proba" and binary and len(nodes[0].type.shape) == 2):
            blocks += [t.take(node, np.arange(1, node.type.columns), axis=1) for node in nodes]
        else:
            blocks.append(as_columns(value(estimator, member, method)))
    if m.passthrough:
        taken_in_order(x)
        if isinstance(x, Frame):
            stacked_as_given(x)
        blocks.append(as_matrix(x))
    return hstack(blocks)


@converts(*STACKING, frame=True)
def stacking(m: Any, x: Node | Frame) -> Result:
    """The methods of final_estimator_, which is given the members' predictions. `transform` gives these predictions."""
    meta = _stacked(m, x)
    (final,) = children([(m.final_estimator_, meta, "final_estimator_")])
    outputs: dict[str, Node | tuple[Node, ...]] = {"transform": meta}
    encoder = getattr(m, "_label_encoder", None)
    for method, nodes in own_methods(m, final).items():
        if method == "transform":
            continue
        if method == "predict_proba" and isinstance(encoder, list):
            if len(nodes) > 1:  # for a single matrix of all labels the source's method fails
                outputs[method] = t.concat([t.take(node, np.array([0]), axis=1) for node in in_common(nodes)])
        elif method == "predict" and encoder is not None:
            outputs[method] = _decoded(encoder, t.cast(nodes[0], "i64"))
        else:
            outputs[method] = nodes
    return of_rows_only(m, outputs)


def _decoded(encoder: Any, predicted: Node) -> Node:
    """LabelEncoder.inverse_transform of the predicted class numbers, which makes a vector of one column (of CatBoost). For several labels
    each column has its own encoder."""
    if not isinstance(encoder, list):
        return labels(encoder.classes_, flat(predicted))
    each = [labels(one.classes_, t.reshape(t.take(predicted, np.array([k]), axis=1), N)) for k, one in enumerate(encoder)]
    return columns_of(each)
