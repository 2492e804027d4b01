"""Moves encoders of categories from before a tree ensemble into its trees, as tests of sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.compiler.base import Compiler
from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import Noted, rewrite_noting
from hbc.ir.types import NUMPY_DTYPES
from hbc.lazy import record
from hbc.ops.encoding import PLACES, OneHot
from hbc.ops.tensor import Cast, Concat
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.optimizer.columns.column import Column, earliest, side_by_side


@record
class CategoriesIntoTrees:
    """`TreeEnsemble(Concat(x, OneHot(codes)))` → `TreeEnsemble(Concat(y, CategoryPlanes(y)))` with y = `Concat(x, Cast(codes))`,
    or with y = the value from which both come. Only where the compiler tests sets itself. With 10 columns of 1,000 categories,
    a row then holds 10 codes instead of 10,000 numbers."""

    compiler: Compiler

    def __call__(self, graph: Graph) -> Noted:
        return rewrite_noting(graph, self._absorb)

    def _absorb(self, node: Node) -> tuple[Node, str] | None:
        op = node.op
        if type(op) is not TreeEnsemble or op.strategy != "scan":
            return None
        dtype = node.inputs[0].type.dtype
        columns = {feature: earliest((node.inputs[0], feature)) for feature in np.unique(op.feature[op.feature >= 0]).tolist()}
        codes = {column: code for column in columns.values() if (code := _code(column, dtype)) is not None}
        tested = op.threshold[np.isin(op.feature, [feature for feature, column in columns.items() if column in codes])]
        if not len(tested) or tested.min() < 0 or tested.max() >= 1:
            return None
        numbers = [column for column in columns.values() if column not in codes]
        y, position = side_by_side([*numbers, *(source for source, _ in codes.values())], dtype)
        value = np.array([value for _, value in codes.values()], np.float64)
        known = ~np.isnan(value)
        sets = CategoryPlanes(
            columns=np.array([position[source] for source, _ in codes.values()]),
            categories=value[known].astype(np.int64),
            offsets=np.append(0, np.cumsum(known)),
            inside=np.ones(len(value), bool),
            missing=~known,
            invalid=np.zeros(len(value), bool),
            limit=float(PLACES),
            whole=any(node.type.is_float for (node, _), _ in codes.values()),
        )
        if not self.compiler.supports(sets):
            return None
        read = len(set(sets.columns.tolist()))
        note = f"one-hot columns that became set tests: {len(codes)}; columns of codes that these read: {read}"
        position.update({column: y.type.columns + plane for plane, column in enumerate(codes)})
        number = np.full(op.feature.max() + 2, -1, op.feature.dtype)  # the last is that of leaves, -1
        number[list(columns)] = [position[column] for column in columns.values()]
        return replace(op, feature=number[op.feature])(Concat(1)(y, sets(y))), note


def _code(column: Column, dtype: str) -> tuple[Column, float] | None:
    """(the column of the categories, the category for which this column is 1), if the column is of a OneHot and its categories are
    exact in `dtype`; else None."""
    node, index = column
    op = node.op
    if type(op) is not OneHot:
        return None
    value, (node, index) = float(op.value[index]), earliest((node.inputs[0], int(op.source[index])))
    while isinstance(node.op, Cast) and node.type.dtype == "f64" and node.inputs[0].type.dtype == "f32":
        node, index = earliest((node.inputs[0], index))
    # A larger integer stays one in any float; of a float all digits count.
    exact = node.type.dtype in ("i32", "i64") or (
        node.type.is_float and np.can_cast(NUMPY_DTYPES[node.type.dtype], NUMPY_DTYPES[dtype])
    )
    fits = np.isnan(value) or (0 <= value < PLACES and value == int(value))
    return ((node, index), value) if exact and fits else None
