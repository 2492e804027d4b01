"""Helpers for meta-estimators, whose members are other estimators: convert all members, and take predictions, scores and responses of
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from hbc.ir.graph import Node, topological
from hbc.ir.types import NUMPY_DTYPES, Array, DType, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.tree import TreeEnsemble
from hbc.parser.frame import Frame, Refusal, as_frame
from hbc.parser.order_of_sums import in_order
from hbc.parser.registry import Outputs, public_name, without_rows_of
from hbc.parser.sklearn.pipeline import given_to_all
from hbc.parser.walk import children


def convert_members(members: Sequence[Any], x: Node | Frame, place: str = "estimators_") -> list[Outputs]:
    """The outputs of every member by method. Each member is given x as it is; `place` is the attribute that holds them, for messages. A
    call without rows gets none of a member that returns an array [0, 0]: sources fail to join these, or give results of other shapes."""
    given_to_all(members, x)
    found = children((member, x, f"{place}[{i}]") for i, member in enumerate(members))
    return [
        of_rows_only(member, outputs) if any(shape == (0, 0) for _, shape in without_rows_of(member).values()) else outputs
        for member, outputs in zip(members, found, strict=True)
    ]


def of_rows_only(m: Any, outputs: Mapping[str, Node | tuple[Node, ...]]) -> Outputs:
    """The outputs of m, which a call without rows does not get. Members of scikit-learn reject such a call themselves; those of XGBoost and
    CatBoost answer it, and the source then fails to join their answers, or gives a result of another shape."""
    groups = {method: nodes if isinstance(nodes, tuple) else (nodes,) for method, nodes in outputs.items()}
    owner = public_name(type(m))
    return {
        method: nodes
        if any(isinstance(node.op, Check) and node.op.min_rows for node in topological(nodes))
        else tuple(Check(owner, allow_nan=True, allow_inf=True)(node) for node in nodes)
        for method, nodes in groups.items()
    }


def added_in_order(x: Node) -> Node:
    """x from sums of trees with the source's bits, for labels that do not follow from the largest sum of one ensemble: the kernels find
    only near ties of its largest two sums. Of 1,296 rows, 3 had another label in a forest of three trees for two outputs. This concerns
    leaves of several values: shares of few training rows tie often, and boosted leaves do not."""
    vectors = {node for node in topological([x]) if isinstance(node.op, TreeEnsemble) and node.op.values.shape[1] > 1}
    return in_order([x], vectors)[0]


def is_classifier(m: Any) -> bool:
    """Whether m is a classifier (sklearn.base.is_classifier)."""
    return bool(m.__sklearn_tags__().estimator_type == "classifier")


def is_regressor(m: Any) -> bool:
    """Whether m is a regressor (sklearn.base.is_regressor)."""
    return bool(m.__sklearn_tags__().estimator_type == "regressor")


def value(m: Any, outputs: Outputs, method: str) -> Node:
    """The output of a member's method. Raises Refusal if it is missing, or a list of arrays."""
    nodes = outputs.get(method, ())
    if len(nodes) != 1:
        found = "a list of arrays" if nodes else "nothing that could be converted"
        raise Refusal(f"the {method} of the {public_name(type(m))} in it gives {found}.")
    return nodes[0]


def flat(x: Node) -> Node:
    """x as a vector [N], from [N] or [N, 1]. Raises Refusal for more columns."""
    if len(x.type.shape) == 1:
        return x
    if x.type.columns != 1:
        raise Refusal(f"an estimator in it gives {x.type.columns} values for each row, where the source takes one.")
    return t.reshape(x, N)


def joined(pairs: Iterable[tuple[Any, Outputs]], method: str = "predict") -> list[Node]:
    """The outputs of a method of all (estimator, its outputs), vectors [N], of which the source makes one array. Raises Refusal for a
    matrix, also of one column, as CatBoost predicts for several classes: the source then fails, or gives an array of other axes."""
    nodes = []
    for m, outputs in pairs:
        nodes.append(value(m, outputs, method))
        if len(nodes[-1].type.shape) > 1:
            raise Refusal(
                f"the {method} of the {public_name(type(m))} in it is a matrix, which the source does not join with others."
            )
    return nodes


def column(x: Node, index: int) -> Node:
    """x[:, index], as a vector [N]."""
    return t.reshape(t.take(x, np.array([index]), axis=1), N)


def as_columns(x: Node) -> Node:
    """x as a matrix: a vector becomes one column."""
    return t.reshape(x, N, 1) if len(x.type.shape) == 1 else x


def common_type(nodes: Sequence[Node]) -> DType:
    """The dtype of numpy.asarray(nodes). Raises Refusal for strings beside numbers."""
    kinds = {node.type.dtype for node in nodes}
    if "str" in kinds:
        if len(kinds) > 1:
            raise Refusal("its estimators predict strings beside numbers.")
        return "str"
    return dtype_name(np.result_type(*(NUMPY_DTYPES[kind] for kind in kinds)))


def in_common(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, cast to their common dtype."""
    dtype = common_type(nodes)
    return [node if dtype == "str" else t.cast(node, dtype) for node in nodes]


def columns_of(nodes: Sequence[Node]) -> Node:
    """numpy.asarray(vectors).T: the vectors as the columns of a matrix, in their common dtype."""
    return t.concat([as_columns(node) for node in in_common(nodes)])


def total(nodes: Sequence[Node]) -> Node:
    """The sum of the nodes, in their order. Raises Refusal if their types differ; numpy would raise at the call if their shapes do."""
    if len({node.type for node in nodes}) > 1:
        kinds = " and ".join(sorted({str(node.type) for node in nodes}))
        raise Refusal(f"its estimators return {kinds}, which cannot be added.")
    return reduce(t.add, nodes)


def constant_rows(x: Node | Frame, values: Array) -> Node:
    """`values` for every row of x, [N, *values.shape]. Raises Refusal if x has no column of numbers, from which the number of rows is
    read."""
    frame = as_frame(x)
    if not len(frame):
        raise Refusal(
            "it was fitted on no columns at all.", "Give it a column of numbers, from which hbc reads the number of rows."
        )
    numbers = [i for i, dtype in enumerate(frame.dtypes) if dtype != "str"]
    if not numbers:
        raise Refusal("it ignores its input, which has columns of strings only.", "Give it a column of numbers.")
    first = t.cast(frame.column(numbers[0]), "f64")
    never = t.reshape(t.less(first, first), N, *(1 for _ in values.shape))
    if values.dtype.kind in "OU":
        return t.take(values[None], t.reshape(t.cast(never, "i64"), N), axis=0)
    return t.where(never, t.constant(values[None]), t.constant(values[None]))


def positive_score(m: Any, outputs: Outputs) -> Node:
    """The score of the positive class, [N]: a regressor's prediction, else the decision, else a probability
    (sklearn.multiclass._predict_binary). Labels follow from comparing it with other scores, so a forest's has the source's bits: of
    3,888 rows, 4 had another label where an ExtraTreesRegressor of six trees stood for each of four classes."""
    if is_regressor(m):
        (predicted,) = in_order([value(m, outputs, "predict")])
        return flat(predicted)
    if hasattr(m, "decision_function"):
        return flat(value(m, outputs, "decision_function"))
    return column(added_in_order(value(m, outputs, "predict_proba")), 1)


def response_method(m: Any, preferred: Sequence[str]) -> str:
    """The first of the preferred methods that m has (sklearn.utils.validation._check_response_method). Raises Refusal if there is none."""
    for method in preferred:
        if hasattr(m, method):
            return method
    raise Refusal(f"the {public_name(type(m))} in it has none of the methods {', '.join(preferred)}.")


def response(m: Any, outputs: Outputs, method: str, positive: int = 1) -> Node | None:
    """The output of a method, as sklearn.utils._response._get_response_values gives it. For two classes it is a vector: the probability of
    class number `positive`, or the decision in its favour. None if the source raises an error: for probabilities of a single class."""
    if not is_classifier(m) or method == "predict":
        return value(m, outputs, method)
    classes = m.classes_
    if not isinstance(classes, np.ndarray) or (classes.dtype.kind == "f" and not np.all(classes == np.floor(classes))):
        raise Refusal(f"the classes of the {public_name(type(m))} in it are not those of one target.")
    if len(classes) == 1 and method != "decision_function":
        return None
    found = value(m, outputs, method)
    if len(classes) > 2:
        return found
    if method == "decision_function":
        return t.neg(found) if positive == 0 or len(classes) == 1 else found
    return column(found, positive)
