"""Converts the integer sums of leaves.py to the floats of the output, and finds the rows that must be added as the source does.

    y = (integer / 2^exponent) + base
    again[row] = the two largest y nearly tie, or one y is too small to be precise

scan.py adds the rows of `again` once more, in the source's order and number format: by scan_few_rows.py where it fits, else by walk.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.compiler.tvm.trees.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.scan_few_rows import ROWS_TOGETHER
from hbc.ir.graph import Node

WRITTEN = 8  # rows whose results are written at once
MOST = 2**63 - 1  # the largest int64


class Result:
    """Emits the conversion of integer sums to the output."""

    def __init__(self, f: Block, node: Node, fixed: FixedPoint, again: Any) -> None:
        self.f, self.node, self.again = f, node, again
        self.scale, self.close = f.number(2.0**-fixed.exponent), f.number(fixed.error)
        self.outputs, self.columns = len(fixed.base), len(fixed.base) if fixed.total is None else fixed.columns
        self.total = None if fixed.total is None else f.size(fixed.total)
        self.few = None if fixed.few == 0 or again is None else f.size(fixed.few)
        self.base = f.own(fixed.base, "f64")
        self.memory = {lanes: T.alloc_buffer((2 * lanes,), "float64") for lanes in (1, ROWS_TOGETHER, WRITTEN)}
        self.integers = {lanes: T.alloc_buffer((2 * lanes,), "int64") for lanes in (1, ROWS_TOGETHER, WRITTEN)}

    def write(self, row: Expr, lanes: int, integers: Callable[[Expr], Expr]) -> None:
        """Store the sums of `lanes` rows from `row` on. integers: output column → the rows' integers.

        Sets `again` for rows whose leaves must be added as the source does: those whose two largest sums nearly tie, so that the argmax
        might differ, or with a sum too small to be precise.
        """
        f, node, memory, whole = self.f, self.node, self.memory[lanes], self.integers[lanes]
        largest, second, rest, least = 0, lanes, 0, lanes

        def put(column: Expr, integer: Expr) -> None:
            value = tirx.Mul(tirx.Cast(many("float64", lanes), integer), broadcast(self.scale, lanes))
            total = T.Bind(tirx.Add(value, broadcast(f.constant(self.base, "f64", column), lanes)))
            f.store_many(node, column, row, tirx.Cast(many(DTYPES[node.type.dtype], lanes), total), lanes)
            most = vector(memory, largest, lanes)
            store(memory, tirx.Max(vector(memory, second, lanes), tirx.Min(most, total)), second, lanes)
            store(memory, tirx.Max(most, total), largest, lanes)
            if self.few is not None:  # 0 is precise, so it counts as the largest number
                above = tirx.Select(tirx.EQ(integer, constant(0)), constant(MOST), integer)
                store(whole, tirx.Min(vector(whole, least, lanes), above), least, lanes)

        def constant(value: int) -> Expr:
            return broadcast(tirx.const(value, "int64"), lanes)

        # The sign of a single output decides a label. So it is compared with 0, as if that were a second output.
        for slot, start in ((largest, 0.0 if self.outputs == 1 else -np.inf), (second, -np.inf)):
            store(memory, broadcast(tirx.const(start, "float64"), lanes), slot, lanes)
        if self.total is not None:
            store(whole, broadcast(self.total, lanes), rest, lanes)
        if self.few is not None:
            store(whole, constant(MOST), least, lanes)
        with f.grid([self.columns]) as (column,):
            integer = T.Bind(integers(column))
            put(column, integer)
            if self.total is not None:
                store(whole, tirx.Sub(vector(whole, rest, lanes), integer), rest, lanes)
        if self.total is not None:
            put(tirx.const(self.columns, "int64"), T.Bind(vector(whole, rest, lanes)))
        if self.again is not None:
            gap = tirx.Sub(vector(memory, largest, lanes), vector(memory, second, lanes))
            near = tirx.LE(gap, broadcast(self.close, lanes))
            if self.few is not None:
                near = tirx.Or(near, tirx.LT(vector(whole, least, lanes), broadcast(self.few, lanes)))
            store(self.again, tirx.Cast(many("uint8", lanes), near), row, lanes)
