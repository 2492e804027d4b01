"""The loops of `RowProbabilities` and `RowArgMax` (plan/row_probabilities.py): probabilities of many classes, along the columns of a row.

    for as many rows as a register has lanes:
        values[row] = x[:, row]                                 # squares are turned in registers
        for each row:
            values = e^(values - max values)                    # softmax
            y[row] = values / Σ values                          # straight to the caller's array; or the place of the largest

A register has columns of one row, whatever the number of rows. So a row's result does not depend on the other rows: lane l adds up the
columns l, l + lanes, …, and then halves of the register are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.nest.transpose import turned
from hbc.compiler.tvm.plan.operators import emits, gives, per_element
from hbc.compiler.tvm.plan.row_probabilities import Kind, RowArgMax, RowProbabilities
from hbc.compiler.tvm.plan.sizes import bytes_of
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import is_nan_in_vector, number
from hbc.compiler.tvm.tir.lines import FORMATS, Lines
from hbc.compiler.tvm.tir.mathematics import function
from hbc.compiler.tvm.tir.vectors import as_vector, broadcast, shuffled, store, vector
from hbc.ir.graph import Node

NANOSECONDS = 1.0  # for each column
PAGE = 4096
"""Rows that lie so many bytes apart would share the same few lines of the first cache."""

Results = Callable[[Expr], Expr]
"""A column → the row's results for a register of columns from it on."""


@gives(RowProbabilities, rereads=True, nanoseconds=per_element(NANOSECONDS))
def row_probabilities(f: Chunk, node: Node, output: Any) -> None:
    """Emit the probabilities of a vector of rows."""
    assert isinstance(node.op, RowProbabilities)
    rows, flat = Rows(f, node.inputs[0]), as_vector(output)
    whole, rest = divmod(rows.columns, rows.lanes)

    def put(row: Row, column: Expr, values: Expr) -> None:
        at = (f.base + row.block) * rows.columns + column
        with T.serial(at, at + 1) as origin:  # TVM keeps a run of elements whole only if it begins at a loop variable
            store(flat, values, origin, rows.lanes)

    with rows.each(node.op.kind) as (row, results):
        with f.repeat(whole) as i:
            put(row, i * rows.lanes, results(i * rows.lanes))
        if rest:  # this register overlaps the one before it
            last = tirx.const(rows.columns - rows.lanes, "int64")
            put(row, last, results(last))


@emits(RowArgMax, rereads=True, nanoseconds=lambda node: NANOSECONDS * node.inputs[0].type.columns)
def row_argmax(f: Chunk, node: Node) -> None:
    """Emit the places of the largest probabilities."""
    assert isinstance(node.op, RowArgMax)
    rows = Rows(f, node.inputs[0])
    integer = f"int{8 * bytes_of(rows.dtype)}"
    value, best, place = (T.alloc_buffer((rows.lanes,), dtype) for dtype in (DTYPES[rows.dtype], DTYPES[rows.dtype], integer))
    nowhere = broadcast(tirx.const(rows.columns, integer), rows.lanes)
    with rows.each(node.op.kind) as (row, results), f.repeat(1) as origin:
        store(best, broadcast(number(-math.inf, rows.dtype), rows.lanes), origin, rows.lanes)
        store(place, nowhere, origin, rows.lanes)
        with f.repeat(rows.registers) as i:
            store(value, results(i * rows.lanes), origin, rows.lanes)
            missing = is_nan_in_vector(vector(value, origin, rows.lanes))
            infinite = broadcast(number(math.inf, rows.dtype), rows.lanes)
            found = T.Bind(tirx.Select(missing, infinite, vector(value, origin, rows.lanes)))
            before = T.Bind(vector(best, origin, rows.lanes))
            above = tirx.LT(before, found)
            here = tirx.Ramp(tirx.Cast(integer, i * rows.lanes), tirx.const(1, integer), rows.lanes)
            store(place, tirx.Select(above, here, vector(place, origin, rows.lanes)), origin, rows.lanes)
            store(best, tirx.Select(above, found, before), origin, rows.lanes)
        lanes = T.Bind(vector(best, origin, rows.lanes))
        lacking = tirx.LT(lanes, rows.joined(lanes, tirx.Max))
        first = rows.joined(tirx.Select(lacking, nowhere, vector(place, origin, rows.lanes)), tirx.Min)
        f.store(node, 0, row, tirx.Cast("int64", shuffled([first], [0])))


class Rows:
    """Emits the loops over rows. `values` holds some of them, `pitch` elements apart, each with -∞ behind its last column."""

    def __init__(self, f: Chunk, x: Node) -> None:
        self.f, self.x, self.dtype, self.columns = f, x, x.type.dtype, x.type.columns
        self.lanes = f.schedule.register_bits(f.dialect) // (8 * bytes_of(self.dtype))
        self.registers = -(-self.columns // self.lanes)
        self.pitch = self.registers * self.lanes
        if self.pitch * bytes_of(self.dtype) % PAGE == 0:
            self.pitch += self.lanes
        self.values = T.alloc_buffer((self.lanes * self.pitch,), DTYPES[self.dtype])

    @contextmanager
    def each(self, kind: Kind) -> Iterator[tuple[Row, Results]]:
        """Loop over the rows of the current vector. Yields a row and its probabilities."""
        f, lanes = self.f, self.lanes
        with f.repeat((f.count + (lanes - 1)) // lanes) as group:
            first = T.Bind(group * lanes)
            count = T.Bind(tirx.Min(f.count - first, tirx.const(lanes, "int64")))
            self._fill(first, count)
            with f.repeat(count) as row, f.repeat(1) as origin:
                start = T.Bind(row * self.pitch)
                yield f.row(first + row), self._probabilities(kind, start, origin)

    def _probabilities(self, kind: Kind, start: Expr, origin: Expr) -> Results:
        """The probabilities of the row at values[start …]. origin: 0."""
        if kind == "sigmoid":
            return lambda column: self._function("sigmoid", vector(self.values, start + column, self.lanes))
        quotients = self._quotients(start, self._exponentials(start, origin))
        return quotients if kind == "softmax" else lambda column: self._function("log", quotients(column))

    def _function(self, name: str, x: Expr) -> Expr:
        """The value of `mathematics.FUNCTIONS[name]`. It must be stored: TVM fails to bind what has variables of its own."""
        return function(name, x, self.dtype, self.f.dialect, self.lanes)

    def _fill(self, first: Expr, count: Expr) -> None:
        """Copy `count` rows of x, from row `first` of the vector on, to `values`."""
        f, lanes = self.f, self.lanes
        if self.columns % lanes:
            nothing = broadcast(number(-math.inf, self.dtype), lanes)
            with f.repeat(count) as row:
                store(self.values, nothing, row * self.pitch + (self.registers - 1) * lanes, lanes)
        whole = self._turn(first, count)
        with T.serial(whole * lanes, count) as row, f.repeat(self.columns) as column:
            T.buffer_store(self.values, f.read(self.x, [column], f.row(first + row)), [row * self.pitch + column])

    def _turn(self, first: Expr, count: Expr) -> Expr:
        """Copy as many rows as a register has lanes, in squares. Returns 1, or 0 if there are fewer rows. The last square may overlap the
        one before it."""
        f, lanes = self.f, self.lanes
        if self.x not in f.plan.slots:  # a view
            return tirx.const(0, "int64")
        whole = T.Bind(count // lanes)
        with f.repeat(whole * self.registers) as tile:
            column = T.Bind(tirx.Min(tile * lanes, tirx.const(self.columns - lanes, "int64")))
            pool, at = f.place(self.x, column, f.row(first))
            with T.serial(at, at + 1) as inside, T.serial(column, column + 1) as start:  # as in `row_probabilities`
                columns = [T.Bind(vector(pool, inside + j * f.stride(self.x), lanes)) for j in range(lanes)]
                for i, row in enumerate(turned(columns)):
                    store(self.values, row, start + i * self.pitch, lanes)
        return whole

    def _exponentials(self, start: Expr, origin: Expr) -> Expr:
        """Replace the values of a row by e^(value - the largest one). Returns their sum in all lanes."""
        f, lanes = self.f, self.lanes
        largest, total = (T.alloc_buffer((lanes,), DTYPES[self.dtype]) for _ in range(2))
        store(largest, vector(self.values, start, lanes), origin, lanes)
        with T.serial(tirx.const(1, "int64"), tirx.const(self.registers, "int64")) as i:
            # It passes over NaN, which makes the sum NaN, and so the whole row.
            values = vector(self.values, start + i * lanes, lanes)
            store(largest, tirx.Max(values, vector(largest, origin, lanes)), origin, lanes)
        shift = self.joined(vector(largest, origin, lanes), tirx.Max)
        store(total, broadcast(number(0, self.dtype), lanes), origin, lanes)
        with f.repeat(self.registers) as i:
            at = T.Bind(start + i * lanes)
            store(self.values, self._function("exp", tirx.Sub(vector(self.values, at, lanes), shift)), at, lanes)
            store(total, tirx.Add(vector(total, origin, lanes), vector(self.values, at, lanes)), origin, lanes)
        return self.joined(vector(total, origin, lanes), tirx.Add)

    def _quotients(self, start: Expr, total: Expr) -> Results:
        """The values of a row over their sum, as rounded. In f64 a division of a register takes 16 cycles; these three instructions take
        two."""
        divides, c = self.dtype == "f32" or not self.f.dialect.fused, Lines(FORMATS[self.dtype], self.f.dialect, self.lanes)
        inverse = total if divides else T.Bind(tirx.Div(c.real(1), total))

        def quotient(column: Expr) -> Expr:
            value = T.Bind(vector(self.values, start + column, self.lanes))
            if divides:
                return tirx.Div(value, total)
            near = T.Bind(tirx.Mul(value, inverse))
            rest = T.Bind(c.fma(tirx.Mul(near, c.real(-1)), total, value))
            return c.fma(rest, inverse, near)

        return quotient

    def joined(self, values: Expr, join: Callable[[Expr, Expr], Expr]) -> Expr:
        """All lanes joined, in all lanes: halves, quarters, …"""
        values, half = T.Bind(values), self.lanes // 2
        while half:
            values = T.Bind(join(values, shuffled([values], [(i + half) % self.lanes for i in range(self.lanes)])))
            half //= 2
        return values
