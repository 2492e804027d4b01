"""Converters for sklearn.multioutput: an estimator for every target, independent or in a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.parser.frame import Frame, Refusal
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.pipeline import gives_input_to
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.sklearn.shared.members import (
    as_columns,
    columns_of,
    convert_members,
    is_classifier,
    joined,
    of_rows_only,
    response,
    value,
)
from hbc.parser.walk import children

MULTI_OUTPUT = ("sklearn.multioutput.MultiOutputClassifier", "sklearn.multioutput.MultiOutputRegressor")


@gives_input_to(*MULTI_OUTPUT)
def _estimators(m: Any) -> Sequence[Any]:
    return list(m.estimators_)


@converts(*MULTI_OUTPUT, frame=True)
def multi_output(m: Any, x: Node | Frame) -> Result:
    """`predict` gives the predictions of all targets as columns, `predict_proba` a list of one matrix for each target. `predict` is left
    out beside it where an estimator predicts a matrix, as CatBoost does for several classes: the source makes [1, N, targets] of these."""
    members = convert_members(m.estimators_, x)
    pairs = list(zip(m.estimators_, members, strict=True))
    outputs: dict[str, Node | tuple[Node, ...]] = {}
    matrices = any(len(value(e, member, "predict").type.shape) > 1 for e, member in pairs)
    if not (matrices and hasattr(m, "predict_proba")):
        outputs["predict"] = columns_of(joined(pairs))
    if hasattr(m, "predict_proba"):
        if len(members) == 1:
            raise Refusal("its predict_proba is a list of one array.", "Use the estimator itself if there is one target.")
        outputs["predict_proba"] = tuple(value(e, member, "predict_proba") for e, member in pairs)
    return of_rows_only(m, outputs) if is_classifier(m) else outputs


@converts("sklearn.multioutput.ClassifierChain", "sklearn.multioutput.RegressorChain")
def chain(m: Any, x: Node) -> Result:
    """Estimator k is given x and, behind it, the outputs of the estimators before it, in float64. The columns of the results are in the
    order of the targets. Raises Refusal if an estimator has no single number for every row to hand on."""
    features = t.cast(checked(m, x), "f64")
    said = getattr(m, "chain_method_", "predict")
    methods = [method for method in ("predict", "predict_proba", "decision_function") if hasattr(m, method)]
    found: dict[str, list[Node | None]] = {method: [] for method in methods}
    for k, estimator in enumerate(m.estimators_):
        (outputs,) = children([(estimator, features, f"estimators_[{k}]")])
        for method in methods:
            node = response(estimator, outputs, method)
            found[method].append(None if node is None else _number(node))
        link = found[said][-1] if said in found else _link(estimator, outputs, said)
        if link is None:
            raise Refusal(f"the {said} of an estimator in its chain is not a number for every row, and the source fails too.")
        features = t.concat([features, as_columns(link)])
    order = np.argsort(np.asarray(m.order_))
    result = {}
    for method, nodes in found.items():
        if all(node is not None for node in nodes):  # the source's method fails if one is missing
            result[method] = columns_of([nodes[k] for k in order])
    if "predict_proba" in result and hasattr(m, "predict_log_proba"):
        result["predict_log_proba"] = t.log(result["predict_proba"])
    return result


def _number(node: Node) -> Node | None:
    """The node as f64[N], as the source writes it into an array. None if it is strings, or a matrix."""
    if node.type.dtype == "str" or len(node.type.shape) > 1:
        return None
    return t.cast(node, "f64")


def _link(m: Any, outputs: Any, method: str) -> Node | None:
    """The response that an estimator hands on to the next one, f64[N]; None if there is none."""
    node = response(m, outputs, method)
    return None if node is None else _number(node)
