"""Tensor operators that move numbers and compute none: looked up, side by side, or in another shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Node, never_negative, operator
from hbc.ir.narrow import SideBySide
from hbc.ir.rows import Rows
from hbc.ir.spans import Span, union
from hbc.ir.types import NUMPY_DTYPES, Array, Dim, TensorType, require
from hbc.ops.tensor.base import TensorOperator
from hbc.ops.tensor.elementwise import Add, Minimum, divides_by_sum


@operator
class Take(TensorOperator):
    """y = values taken along an axis by indices (i32 or i64, in range, not negative), numpy.take.

    Either a table is looked up for every row (values have no rows, axis 0; indices [N, …]), or constant indices choose
    columns of batched values (axis ≥ 1). The indices' shape replaces the axis.
    """

    axis: int

    def infer(self, values: TensorType, indices: TensorType) -> TensorType:
        require(indices.dtype in ("i32", "i64"), "indices must be i32 or i64")
        require(0 <= self.axis < len(values.shape), f"there is no axis {self.axis}")
        if values.batched:
            require(self.axis >= 1 and not indices.batched, "batched values are taken by constant indices, axis ≥ 1")
        else:
            require(self.axis == 0 or not indices.batched, "a table is looked up along axis 0")
        return TensorType(values.dtype, (*values.shape[: self.axis], *indices.shape, *values.shape[self.axis + 1 :]))

    def evaluate(self, values: Array, indices: Array) -> Array:
        return values.take(indices, axis=self.axis)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {1: range(int(inputs[0].type.shape[self.axis]))}

    def alike(self, node: Node) -> Any:
        """Columns that are each looked up in a table of their own."""
        table, places = node.inputs
        return table.type.shape[1:] if isinstance(table.op, Constant) and len(places.type.shape) == 2 else None

    def joined(self, nodes: Sequence[Node], operand: Callable[[int], Node]) -> Node:
        """One look-up, in the tables of all columns one after the other."""
        tables = [node.inputs[0].op.evaluate() for node in nodes]
        sizes = [node.inputs[1].type.columns for node in nodes]
        first = np.cumsum([0, *map(len, tables[:-1])]).repeat(sizes)
        places = operand(1)
        shift = Constant(first.astype(NUMPY_DTYPES[places.type.dtype]))()
        return self(Constant(np.concatenate(tables))(), Add()(places, shift))

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return never_negative(inputs[0])

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return divides_by_sum(inputs[0])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.width, bounds[0].max(initial=0.0))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else spans[0]


@operator
class TakeAlong(TensorOperator):
    """y[n, t] = x[n, indices[n, t]]; indices i32 or i64, in range (numpy.take_along_axis, axis 1)"""

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        require(indices.dtype in ("i32", "i64"), "indices must be i32 or i64")
        require(len(x.shape) == 2 and len(indices.shape) == 2, "operands must be [N, F] and [N, T]")
        require(x.batched and indices.batched, "operands must have rows")
        return TensorType(x.dtype, indices.shape)

    def evaluate(self, x: Array, indices: Array) -> Array:
        return np.take_along_axis(x, indices, axis=1)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {1: range(inputs[0].type.columns)}

    def never_negative(self, inputs: Sequence[Node]) -> bool:
        return never_negative(inputs[0])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        """The i-th smallest of a row's numbers is at most the i-th smallest of their bounds."""
        x, places = node.inputs
        if isinstance(places.op, Minimum):
            places = places.inputs[0]
        if places.op.places_ascend and places.inputs[0] is x and (bounds[1] < len(bounds[0])).all():
            return np.sort(bounds[0])[: node.type.width]
        return np.full(node.type.width, bounds[0].max(initial=0.0))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else spans[0]


@operator
class Concat(SideBySide, TensorOperator):
    """y = the inputs one after the other along axis ≥ 1; one dtype"""

    axis: int = 1

    keeps_values = True
    rows = "keeps"
    keeps_sign = True

    def infer(self, *types: TensorType) -> TensorType:
        first = types[0]
        require(1 <= self.axis < len(first.shape), f"there is no axis {self.axis} to join along")
        total = 0
        for kind in types:
            require(kind.dtype == first.dtype, "inputs must have the same dtype")
            require(
                len(kind.shape) == len(first.shape)
                and all(a == b for i, (a, b) in enumerate(zip(kind.shape, first.shape, strict=True)) if i != self.axis),
                "inputs differ outside the axis",
            )
            total += int(kind.shape[self.axis])
        return TensorType(first.dtype, (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def of_rows(self, *parts: Rows) -> Rows:
        return Rows.beside(parts)

    def evaluate(self, *arrays: Array) -> Array:
        return np.concatenate(arrays, axis=self.axis)

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return all(map(divides_by_sum, inputs))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        return np.concatenate(bounds) if self.axis == 1 else None

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return (0, 1) if node.type.dtype == "bool" else union(spans)


@operator
class Reshape(TensorOperator):
    """y = x with another shape, same order of elements (C); a batched x keeps its rows: shape starts with N"""

    shape: tuple[Dim, ...]

    keeps_sign = True

    def infer(self, x: TensorType) -> TensorType:
        result = TensorType(x.dtype, self.shape)
        require(result.batched == x.batched, "rows must stay rows")
        sizes = [int(np.prod([d for d in shape if d != "N"], dtype=np.int64)) for shape in (x.shape, self.shape)]
        require(sizes[0] == sizes[1], f"{x} has not the elements of {result}")
        return result

    def evaluate(self, x: Array) -> Array:
        return x.reshape([len(x) if d == "N" else d for d in self.shape])

    def alike(self, node: Node) -> Any:
        return self.shape[2:]

    def joined(self, nodes: Sequence[Node], operand: Callable[[int], Node]) -> Node:
        columns = sum(int(node.type.shape[1]) for node in nodes)
        return Reshape(("N", columns, *self.shape[2:]))(operand(0))

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return divides_by_sum(inputs[0])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0] if node.type.width == len(bounds[0]) else np.full(node.type.width, bounds[0].max(initial=0.0))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return spans[0]
