"""Converters for sklearn.multiclass: one estimator for each class, for each pair of classes, or for each bit of a code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Input, Node, topological
from hbc.ir.signature import Arrays
from hbc.ir.types import NUMPY_DTYPES, N
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.parser.frame import Frame, Refusal, select_columns
from hbc.parser.front_door import keeps_dtypes, note_input
from hbc.parser.labels import labels
from hbc.parser.pairs import for_class, one_vs_rest
from hbc.parser.registry import Outputs, Result, converts, public_name
from hbc.parser.release import since
from hbc.parser.sklearn.pipeline import gives_input_to, taken_in_order
from hbc.parser.sklearn.shared.common import as_float, checked
from hbc.parser.sklearn.shared.members import (
    column,
    columns_of,
    constant_rows,
    convert_members,
    flat,
    is_classifier,
    joined,
    of_rows_only,
    positive_score,
    value,
)
from hbc.parser.walk import children

ONE_VS_REST = "sklearn.multiclass.OneVsRestClassifier"
OUTPUT_CODE = "sklearn.multiclass.OutputCodeClassifier"
CONSTANT = "sklearn.multiclass._ConstantPredictor"


@gives_input_to(ONE_VS_REST, OUTPUT_CODE)
def _estimators(m: Any) -> Sequence[Any]:
    return list(m.estimators_)


def _is_constant(m: Any) -> bool:
    """Whether m is a _ConstantPredictor, which stands for an estimator that would have been fitted on a single class."""
    return public_name(type(m)) == CONSTANT


def _members(m: Any, x: Node | Frame) -> list[Outputs]:
    """The outputs of every estimator by method. _ConstantPredictor is converted here, since it occurs in these classes only."""
    if any(map(_is_constant, m.estimators_)):
        taken_in_order(x)
    real = [e for e in m.estimators_ if not _is_constant(e)]
    converted = iter(convert_members(real, x))
    return [of_rows_only(e, _constant(e, x)) if _is_constant(e) else next(converted) for e in m.estimators_]


def _constant(m: Any, x: Node | Frame) -> Outputs:
    y = np.asarray(m.y_)[0]
    score = constant_rows(x, np.asarray(y))
    return {
        "predict": (score,),
        "decision_function": (score,),
        "predict_proba": (constant_rows(x, np.array([1 - y, y], np.float64)),),
    }


def _scores(m: Any, members: Sequence[Outputs]) -> list[Node]:
    """The score of the positive class of every estimator, [N] each."""
    return [positive_score(e, member) for e, member in zip(m.estimators_, members, strict=True)]


def _threshold(m: Any) -> float:
    """The score above which the positive class is predicted (sklearn.multiclass._threshold_for_binary_predict)."""
    return 0.0 if hasattr(m, "decision_function") and is_classifier(m) else 0.5


def _largest(scores: Node, otherwise: int) -> Node:
    """The first column with the largest score, i64[N]. The source goes from the last column to the first, and once it meets NaN it finds
    no larger score any more: it takes the columns behind the last NaN, and `otherwise` if there is none. That costs time, and is left out
    where no infinity of the input reaches the scores: NaN then needs numbers that overflow."""
    if not _takes_infinities(scores):
        return t.argmax(scores, 1)
    count = scores.type.columns
    places = np.arange(1, count + 1, dtype=np.float64)
    end = t.max_(t.where(t.isnan(scores), places, 0.0), 1, keepdims=True)  # how many columns the last NaN ends
    found = t.argmax(t.where(t.less(end, places), scores, -np.inf), 1)
    first = t.cast(t.reshape(end, N), "i64")
    return t.where(t.equal(first, count), np.int64(otherwise), t.maximum(found, first))


def _takes_infinities(x: Node) -> bool:
    """Whether infinities of the model's input are computed with: no check rejects them on the way, and no tree takes their place."""
    takes: dict[Node, bool] = {}
    for node in topological([x]):
        rejects = isinstance(node.op, Check) and not node.op.allow_inf
        replaces = node.op.removes_missing and not node.op.keeps_values
        some = isinstance(node.op, Input) or any(takes[source] for source in node.inputs)
        takes[node] = some and not rejects and not replaces and node.type.is_float
    return takes[x]


@converts(ONE_VS_REST, frame=True)
def one_vs_rest_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict` gives the class with the highest score or, for multilabel targets, every label whose score is above the threshold."""
    members = _members(m, x)
    scores = as_float(columns_of(_scores(m, members)))
    kind = m.label_binarizer_.y_type_
    outputs: dict[str, Node] = {}
    if kind == "multiclass":
        if since(1, 8):
            outputs["predict"] = labels(m.classes_, _largest(scores, 0))
        else:  # before, of equal scores the last one wins
            last_first = np.arange(len(m.classes_))[::-1]
            outputs["predict"] = labels(
                m.classes_[last_first], _largest(t.take(scores, last_first, axis=1), len(last_first) - 1)
            )
        if keeps_dtypes(x):
            # The source compares scores of longdouble with their maxima in float64, and so finds no class.
            note_input(Arrays(plain_floats=True))
    else:
        indicator = t.cast(t.less(_threshold(m.estimators_[0]), scores), "i64")
        if kind == "multilabel-indicator":
            outputs["predict"] = indicator
        elif kind == "binary":
            outputs["predict"] = labels(m.classes_, t.mul(flat(indicator), min(len(m.classes_) - 1, 1)))
        else:
            raise Refusal(f"its targets are of the type {kind}.")
    if hasattr(m, "predict_proba"):
        pairs = zip(m.estimators_, members, strict=True)
        proba = columns_of([column(value(e, member, "predict_proba"), 1) for e, member in pairs])
        if len(m.estimators_) == 1:
            proba = t.concat([t.sub(1.0, proba), proba])
        if not m.multilabel_:
            sums = t.sum_(proba, 1, keepdims=True)
            one = np.ones((1, 1), NUMPY_DTYPES[proba.type.dtype])
            proba = t.div(proba, t.where(t.equal(sums, 0.0), one, sums))
        outputs["predict_proba"] = proba
    if hasattr(m, "decision_function"):
        decisions = [value(e, member, "decision_function") for e, member in zip(m.estimators_, members, strict=True)]
        outputs["decision_function"] = decisions[0] if len(decisions) == 1 else columns_of([flat(d) for d in decisions])
    return outputs


@converts("sklearn.multiclass.OneVsOneClassifier")
def one_vs_one_classifier(m: Any, x: Node) -> Result:
    """`decision_function` is `one_vs_rest` of the pairs' votes and confidences. A vote is a prediction that is just 0 or 1."""
    x = checked(m, x, allow_nan=True, allow_inf=True)
    kernels = m.pairwise_indices_
    chosen = [x if kernels is None else select_columns(x, [int(i) for i in kernels[k]]) for k in range(len(m.estimators_))]
    members = children((e, chosen[k], f"estimators_[{k}]") for k, e in enumerate(m.estimators_))
    predicted = columns_of(joined(zip(m.estimators_, members, strict=True)))
    confidences = t.cast(columns_of(_scores(m, members)), "f64")
    classes = len(m.classes_)
    votes = for_class(t.cast(t.concat([t.equal(predicted, 0), t.equal(predicted, 1)]), "f64"), classes)
    decision = one_vs_rest(votes, t.concat([t.neg(confidences), confidences]), classes)
    if classes == 2:
        decision = t.reshape(t.take(decision, np.array([1]), axis=1), N)
        above = t.less(_threshold(m.estimators_[0]), decision)
        return {"decision_function": decision, "predict": labels(m.classes_, t.cast(above, "i64"))}
    return {"decision_function": decision, "predict": labels(m.classes_, t.argmax(decision, 1))}


@converts(OUTPUT_CODE, frame=True)
def output_code_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict` gives the class whose code c is nearest to the scores y, by max(|y|² - 2 y·c + |c|², 0); the first of equally near ones."""
    code = np.asarray(m.code_book_, np.float64)
    scores = checked(m, t.cast(columns_of(_scores(m, _members(m, x))), "f64"))  # pairwise_distances_argmin rejects infinities
    products = t.matmul(scores, -2.0 * code.T)
    norms = t.sum_(t.mul(scores, scores), 1, keepdims=True)
    distances = t.maximum(t.add(t.add(norms, products), np.sum(code * code, axis=1)), 0.0)
    return {"predict": labels(m.classes_, t.argmax(t.neg(distances), 1))}
