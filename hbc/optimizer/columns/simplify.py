"""Passes that need no knowledge of models: they fold constants, merge selections of columns, and remove operators that have done
their work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.ir.graph import Constant, Graph, Node
from hbc.ir.rewrite import rewrite
from hbc.lazy import record
from hbc.ops.checks import Beside, Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import OneHot
from hbc.ops.linear import Linear
from hbc.ops.tensor import Cast, Concat


@record
class RemoveChecks:
    """`Check(x)` → `x` and `Beside(x, dropped)` → `x`: the runtime has already tested the input (optimizer/limits/checks.py)."""

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, lambda node: node.inputs[0] if isinstance(node.op, (Beside, Check)) else None)


@record
class FoldConstants:
    """`Exp(Constant)` → `Constant`: a value that depends on no row is computed once, by the operators' own `evaluate`."""

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self._fold)

    @staticmethod
    def _fold(node: Node) -> Node | None:
        if not node.inputs or not all(isinstance(source.op, Constant) for source in node.inputs):
            return None
        with np.errstate(all="ignore"):
            return Constant(node.op.evaluate(*(source.op.evaluate() for source in node.inputs)))()


@record
class MergeColumns:
    """Selections of columns that follow one another, or stand side by side, become one:

    `SelectColumns(SelectColumns(x, a), b)` → `SelectColumns(x, a[b])`; a selection of all columns in order → `x`;
    `Concat(SelectColumns(x, a), SelectColumns(x, b))` → `SelectColumns(x, a + b)`; parts without columns are left out;
    `Linear(SelectColumns(x, p))`, where p holds all columns in another order, → `Linear'(x)` with its weights in that order.
    `Cast("f32", OneHot(c))` → `OneHot'(c)`, whose zeros and ones are float32 then.
    """

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self._merge)

    @staticmethod
    def _merge(node: Node) -> Node | None:
        if isinstance(node.op, SelectColumns):
            (x,) = node.inputs
            if isinstance(x.op, SelectColumns):
                return SelectColumns(x.op.indices[node.op.indices])(x.inputs[0])
            if np.array_equal(node.op.indices, np.arange(x.type.columns)):
                return x
        if isinstance(node.op, Linear) and isinstance(node.inputs[0].op, SelectColumns):
            (x,) = node.inputs[0].inputs
            place = np.argsort(node.inputs[0].op.indices)
            if np.array_equal(node.inputs[0].op.indices[place], np.arange(x.type.columns)):
                return Linear(node.op.coef[place], node.op.intercept)(x)
        if isinstance(node.op, Cast) and isinstance(node.inputs[0].op, OneHot) and node.type.is_float:
            return replace(node.inputs[0].op, dtype=node.op.dtype)(*node.inputs[0].inputs)
        if isinstance(node.op, Concat) and node.op.axis == 1 and len(node.type.shape) == 2:
            parts = [part for part in node.inputs if part.type.columns] or [node.inputs[0]]
            if len(parts) < len(node.inputs):
                return parts[0] if len(parts) == 1 else Concat(1)(*parts)
            return _merge_neighbours(node)
        return None


def _merge_neighbours(node: Node) -> Node | None:
    merged: list[Node] = []
    for part in node.inputs:
        if merged:
            source, indices = _selection(part)
            before_source, before = _selection(merged[-1])
            if source is before_source:
                merged[-1] = SelectColumns(np.concatenate([before, indices]))(source)
                continue
        merged.append(part)
    if len(merged) == len(node.inputs):
        return None
    return merged[0] if len(merged) == 1 else Concat(1)(*merged)


def _selection(node: Node) -> tuple[Node, np.ndarray]:
    if isinstance(node.op, SelectColumns):
        return node.inputs[0], node.op.indices
    return node, np.arange(node.type.columns)
