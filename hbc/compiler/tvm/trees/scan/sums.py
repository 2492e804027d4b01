"""Converts the integer sums of leaves.py to the floats of the output, and finds the rows that must be added as the source does.

    y = (integer / 2^exponent) + base
    again[row] = the two largest y nearly tie, or one y is too small to be precise

scan.py adds the rows of `again` once more, in the source's order and number format: by scan_few_rows.py where it fits, else by walk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.compiler.tvm.trees.leaves.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.scan.scan_few_rows import ROWS_TOGETHER
from hbc.ir.graph import Node

WRITTEN = 8  # rows whose results are written at once
LEAST_BY_COLUMN = 20
"""The fewest outputs that are written one after the other for the whole block. A row's sums lie a block apart: eight rows would read a
cache line of each output, and the next eight rows again."""
TOGETHER = 4
"""Of so many outputs, those of a single row that are compared with its largest two sums at once. One by one they would wait for each
other."""
MOST = 2**63 - 1  # the largest int64


class Result:
    """Emits the conversion of integer sums to the output."""

    def __init__(self, f: Block, node: Node, fixed: FixedPoint, again: Any) -> None:
        self.f, self.node, self.again = f, node, again
        self.scale, self.close = f.number(2.0**-fixed.exponent), f.number(fixed.close)
        self.outputs, self.columns = len(fixed.base), len(fixed.base) if fixed.total is None else fixed.columns
        self.total = None if fixed.total is None else f.size(fixed.total)
        self.few = None if fixed.few == 0 or again is None else f.size(fixed.few)
        self.base = f.own(fixed.base, "f64")
        self.by_column = self.columns >= LEAST_BY_COLUMN
        self.rows = {1: 1, ROWS_TOGETHER: ROWS_TOGETHER, WRITTEN: f.block if self.by_column else WRITTEN}
        """Rows that are written at once → the rows that these have room for."""
        self.memory = {lanes: T.alloc_buffer((2 * rows,), "float64") for lanes, rows in self.rows.items()}
        self.integers = {lanes: T.alloc_buffer((2 * rows,), "int64") for lanes, rows in self.rows.items()}

    def write_many(self, rows: Expr, integers: Callable[[Expr, Expr], Expr]) -> None:
        """`write` for the first `rows` rows of the block. integers: (output column, row) → the integers of WRITTEN rows from it on."""
        parts = (rows + (WRITTEN - 1)) // WRITTEN
        if not self.by_column:
            with T.serial(tirx.const(0, "int64"), parts) as part:
                row = T.Bind(part * WRITTEN)
                self.write(row, WRITTEN, lambda column: integers(column, row))
            return
        parts = T.Bind(parts)
        with self.f.repeat(parts) as part:
            self._begin(T.Bind(part * WRITTEN), WRITTEN)
        with self.f.repeat(self.columns) as column, self.f.repeat(parts) as part:
            row = T.Bind(part * WRITTEN)
            self._add([(column, T.Bind(integers(column, row)))], row, row, WRITTEN)
        with self.f.repeat(parts) as part:
            row = T.Bind(part * WRITTEN)
            self._end(row, row, WRITTEN)

    def write(self, row: Expr, lanes: int, integers: Callable[[Expr], Expr]) -> None:
        """Store the sums of `lanes` rows from `row` on. integers: output column → the rows' integers.

        Sets `again` for rows whose leaves must be added as the source does: those whose two largest sums nearly tie, so that the argmax
        might differ, or with a sum too small to be precise.
        """
        together = TOGETHER if self.by_column and lanes == 1 else 1
        self._begin(0, lanes)
        with self.f.grid([self.columns // together]) as (i,):
            self._add([(at, T.Bind(integers(at))) for at in _run(i * together, together)], row, 0, lanes)
        if rest := self.columns % together:
            last = tirx.const(self.columns - rest, "int64")
            self._add([(at, T.Bind(integers(at))) for at in _run(last, rest)], row, 0, lanes)
        self._end(row, 0, lanes)

    def _begin(self, at: Expr, lanes: int) -> None:
        """Begin with rows whose memory stands at `at`."""
        memory, whole, second = self.memory[lanes], self.integers[lanes], self.rows[lanes]
        # The sign of a single output decides a label. So it is compared with 0, as if that were a second output.
        for slot, start in ((0, 0.0 if self.outputs == 1 else -np.inf), (second, -np.inf)):
            store(memory, broadcast(tirx.const(start, "float64"), lanes), at + slot, lanes)
        if self.total is not None:
            store(whole, broadcast(self.total, lanes), at, lanes)
        if self.few is not None:
            store(whole, broadcast(tirx.const(MOST, "int64"), lanes), at + second, lanes)

    def _add(self, columns: list[tuple[Expr, Expr]], row: Expr, at: Expr, lanes: int) -> None:
        """Store columns, given with their integers, and take them from what is left of `total`."""
        self._put(columns, row, at, lanes)
        if self.total is not None:
            whole = self.integers[lanes]
            for _, integer in columns:
                store(whole, tirx.Sub(vector(whole, at, lanes), integer), at, lanes)

    def _put(self, columns: list[tuple[Expr, Expr]], row: Expr, at: Expr, lanes: int) -> None:
        """Store columns, given with their integers, and compare them with the largest two sums and the least integer."""
        f, node, memory, whole, second = self.f, self.node, self.memory[lanes], self.integers[lanes], self.rows[lanes]
        totals = []
        for column, integer in columns:
            value = tirx.Mul(tirx.Cast(many("float64", lanes), integer), broadcast(self.scale, lanes))
            totals.append(T.Bind(tirx.Add(value, broadcast(f.constant(self.base, "f64", column), lanes))))
            f.store_many(node, column, row, tirx.Cast(many(DTYPES[node.type.dtype], lanes), totals[-1]), lanes)
        most = vector(memory, at, lanes)
        largest, next_ = _largest(totals)
        lesser = [tirx.Min(most, largest), *next_]
        store(memory, tirx.Max(vector(memory, at + second, lanes), reduce(tirx.Max, lesser)), at + second, lanes)
        store(memory, tirx.Max(most, largest), at, lanes)
        if self.few is not None:  # 0 is precise, so it counts as the largest number
            zero, highest = (broadcast(tirx.const(value, "int64"), lanes) for value in (0, MOST))
            above = [tirx.Select(tirx.EQ(integer, zero), highest, integer) for _, integer in columns]
            store(whole, tirx.Min(vector(whole, at + second, lanes), reduce(tirx.Min, above)), at + second, lanes)

    def _end(self, row: Expr, at: Expr, lanes: int) -> None:
        """Store the last column, if it follows from the others, and `again`."""
        memory, whole, second = self.memory[lanes], self.integers[lanes], self.rows[lanes]
        if self.total is not None:
            self._put([(tirx.const(self.columns, "int64"), T.Bind(vector(whole, at, lanes)))], row, at, lanes)
        if self.again is not None:
            gap = tirx.Sub(vector(memory, at, lanes), vector(memory, at + second, lanes))
            near = tirx.LE(gap, broadcast(self.close, lanes))
            if self.few is not None:
                near = tirx.Or(near, tirx.LT(vector(whole, at + second, lanes), broadcast(self.few, lanes)))
            store(self.again, tirx.Cast(many("uint8", lanes), near), row, lanes)


def _run(first: Expr, count: int) -> list[Expr]:
    """`count` columns from `first` on."""
    return [first + k if count > 1 else first for k in range(count)]


def _largest(values: list[Expr]) -> tuple[Expr, list[Expr]]:
    """The largest of some values, and some others, among which is the second largest."""
    if len(values) == 1:
        return values[0], []
    half = len(values) // 2
    (a, others), (b, more) = _largest(values[:half]), _largest(values[half:])
    return T.Bind(tirx.Max(a, b)), [T.Bind(tirx.Min(a, b)), *others, *more]
