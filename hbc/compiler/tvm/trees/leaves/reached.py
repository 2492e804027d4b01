"""What kernels do with the leaves that rows reach: the values are added in the order of the trees, or the leaves' numbers are stored.

Leaves of several values are added as vectors. Then a row's sums lie one behind the other, and are brought to their columns at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import prefetch, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array, DType, dtype_name
from hbc.ops.tree import TreeEnsemble

MOST_LANES = 8
"""The most values of a leaf that are added at once: float64 in a register of AVX-512."""


def padded(values: Array) -> Array:
    """A matrix of leaves' values, with zeros behind it. A vector may reach beyond the values of its leaf."""
    if values.shape[1] == 1:
        return values
    return np.concatenate([values, np.zeros((-(-MOST_LANES // values.shape[1]), values.shape[1]), values.dtype)])


class Reached:
    """Emits the use of leaves. For each row `begin`, then `add` for its leaves, or `add_all`, then `end`."""

    def __init__(self, f: Block, node: Node, values: Array, rows: int, vectors: bool = True) -> None:
        """values [D, V]: those of the leaves, or their numbers. rows: the rows whose sums are in progress at once. vectors: leaves of
        several values are added as vectors, so `values` must be `padded`; otherwise value by value, as a lone tree's are."""
        op = node.op
        assert isinstance(op, TreeEnsemble)
        self.f, self.node, self.op, self.values, self.width = f, node, op, values, values.shape[1]
        self.dtype: DType = dtype_name(values.dtype)
        self.outputs = f.own(op.target, "i64") if op.target.any() and self.width == 1 else None
        self.lanes = 0
        """The lanes of the vectors that are added; 0: single values are."""
        if vectors and self.width > 1 and op.output == "sum" and f.dialect.llvm:
            self.lanes = min(1 << (self.width - 1).bit_length(), MOST_LANES)
            self.parts = -(-self.width // self.lanes)  # the vectors of a leaf
            self.base = f.own(np.append(op.base, np.zeros(MOST_LANES, op.base.dtype)), self.dtype)
            self.sums = T.alloc_buffer((rows * self.parts * self.lanes,), DTYPES[self.dtype], scope=f.schedule.scope)
            self.total = T.alloc_buffer((self.lanes,), DTYPES[self.dtype], scope=f.schedule.scope)

    def begin(self, row: Expr, slot: Expr) -> None:
        """Set the sums of a row to `base`. slot: which of the rows in progress it is."""
        f, op = self.f, self.op
        if self.lanes:
            with f.repeat(self.parts) as part:
                base = f.constants(self.base, self.dtype, part * self.lanes, self.lanes)
                store(self.sums, base, self._place(slot, part), self.lanes)
        elif op.output == "sum":
            with f.grid([op.n_outputs]) as (column,):
                f.store(self.node, column, Row(row), f.constant(op.base, self.dtype, column))

    def ask_for(self, leaf: Expr) -> None:
        """Bring the values of a leaf near, without waiting for them."""
        prefetch(self.f.constant(self.values, self.dtype, leaf * self.width))

    def add(self, tree: Expr, row: Expr, slot: Expr, leaf: Expr) -> None:
        """Use one leaf, a row of `values`, that a row has reached."""
        f, node, width = self.f, self.node, self.width
        if self.lanes:
            with f.repeat(self.parts) as part:
                at = T.Bind(self._place(slot, part))
                total = tirx.Add(vector(self.sums, at, self.lanes), self._vector(leaf, part))
                store(self.sums, total, at, self.lanes)
            return
        if self.op.output == "leaf":
            f.store(node, tree, Row(row), f.constant(self.values, self.dtype, leaf))
            return
        first = 0 if self.outputs is None else T.Bind(f.constant(self.outputs, "i64", tree))
        with f.grid([width]) as (column,):
            value = f.constant(self.values, self.dtype, leaf * width + column)
            f.store(node, first + column, Row(row), tirx.Add(f.load(node, first + column, Row(row)), value))

    def add_all(self, first: Expr, count: Expr, row: Expr, slot: Expr, leaf: Callable[[Expr], Expr]) -> None:
        """Use the leaves that one row has reached in `count` trees from `first` on. leaf(i): that of the i-th of them."""
        f, node, width = self.f, self.node, self.width
        if self.lanes:
            # The sum is in a register: additions in memory would wait for each other.
            with f.repeat(self.parts) as part, f.repeat(1) as origin:
                at = T.Bind(self._place(slot, part))
                store(self.total, vector(self.sums, at, self.lanes), origin, self.lanes)
                with f.repeat(count) as i:
                    total = tirx.Add(vector(self.total, origin, self.lanes), self._vector(leaf(i), part))
                    store(self.total, total, origin, self.lanes)
                store(self.sums, vector(self.total, origin, self.lanes), at, self.lanes)
            return
        if self.op.output == "leaf" or self.outputs is not None:
            with f.repeat(count) as i:
                self.add(T.Bind(first + i), row, slot, leaf(i))
            return
        total = f.scratch(1, node.type.dtype)
        with f.grid([width]) as (column,):
            T.buffer_store(total, f.load(node, column, Row(row)), [0])
            with f.repeat(count) as i:
                value = f.constant(self.values, node.type.dtype, leaf(i) * width + column)
                T.buffer_store(total, tirx.Add(total[0], value), [0])
            f.store(node, column, Row(row), total[0])

    def end(self, row: Expr, slot: Expr) -> None:
        """Bring the sums of a row to their columns."""
        if self.lanes:
            with self.f.grid([self.width]) as (column,):
                place = slot * (self.parts * self.lanes) + column
                self.f.store(self.node, column, Row(row), self.sums[place])

    def _place(self, slot: Expr, part: Expr) -> Expr:
        return (slot * self.parts + part) * self.lanes

    def _vector(self, leaf: Expr, part: Expr) -> Expr:
        """Some of the values of a leaf. Lanes beyond them hold other numbers, which nobody reads."""
        return self.f.constants(self.values, self.dtype, leaf * self.width + part * self.lanes, self.lanes)
