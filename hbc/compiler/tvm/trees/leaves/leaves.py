"""Leaf values for scanned trees: integers, so that their sums don't depend on the order of trees, rows or threads.

The code computes, for the leaves that 64 rows have reached in four trees at a time:

    value ≈ (integer + a number for each tree) / 2^exponent                   # fixed_point, when the model is packed
    integer = digit[0] + 64 · digit[1] + …                                    # four to nine digits of 6 bits
    for each digit:
        total = permute(table[tree 0], leaf) + … + permute(table[tree 3], leaf)   # bytes: four times 63 fits
        pairs += total as 16 bits                                             # up to 256 times
    sums += Σ pairs[digit] · 64^digit                                         # int64

A register permutation looks up one digit for 64 rows at once. Processors that look up bytes in tables of 16 alone (AVX2) do so for
trees of at most 64 leaves, 32 rows at once. Otherwise whole integers are gathered (leaf_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import broadcast, look_up_parts, once_if, permute, places_in_parts, shuffled, store, vector
from hbc.compiler.tvm.trees.leaves.fixed_point import DIGIT, FixedPoint
from hbc.compiler.tvm.trees.leaves.leaf_rows import LeafRows
from hbc.compiler.tvm.trees.ranks.planes import HALF, PART, ROWS_IN_VECTOR
from hbc.ir.types import Array
from hbc.lazy import record

WIDTHS = (64, 128, 256)  # leaves of a tree that a permutation of one, two or four registers tells apart
NARROW = 32
"""The width where no tree has more leaves: a register has the tables of two trees. 500 trees of 31 leaves have 64 KB of tables instead of
128, which come from L2 for every few rows."""


WIDTHS_IN_PARTS = (16, 32, 64)
"""Leaves of a tree that one, two or four tables of 16 bytes tell apart."""
MOST_LOOKED_UP = 20
"""The most tables of 16 bytes for a leaf's integer, in all of its digits: more take longer than a gather. Whole calls of 10,000 rows by
look-ups and by gathers (Zen 3): 7 tables 0.66 (500 trees of 15 leaves), 14 tables 0.85 (31 leaves), 16 tables 0.83 (XGBoost of depth 6), 28
tables 1.07 (63 leaves)."""


def widths_of(leaves: Array, dialect: Dialect, digits: int) -> Array | None:
    """The widths for groups of trees, given the most leaves of a tree in each. None if the processor does not look up bytes, or gathers
    whole integers faster. No group has more leaves than the last of WIDTHS."""
    if dialect.byte_permute:
        if leaves.max(initial=0) <= NARROW:
            return np.full(len(leaves), NARROW)
        return np.array(WIDTHS)[np.searchsorted(WIDTHS, leaves)]
    if not dialect.byte_lookup or leaves.max(initial=0) > WIDTHS_IN_PARTS[-1]:
        return None
    found = np.array(WIDTHS_IN_PARTS)[np.searchsorted(WIDTHS_IN_PARTS, leaves)]
    return found if found.max(initial=0) // PART * digits <= MOST_LOOKED_UP else None


GROUPS_IN_SPAN = 256  # groups of four trees whose sums of a digit fit in 16 bits
ROWS_IN_GATHER = 4  # rows whose leaves are gathered at once: their f64 fill a register of AVX2


Groups = tuple[Expr, Expr, Expr]
"""Groups of trees: the first, the end, and the one with which `reached` begins."""


@record
class PackedDigits:
    """The digits of the integers of groups of trees, by the numbers of a tree's leaves.

    table: one block after the other, u8[C, digits, trees, width] for a group.
    starts i64[G]: where a group's block begins.
    widths i64[S]: the width in the groups of each span. No tree of them has more leaves.
    """

    table: Array
    starts: Array
    widths: Array


def pack_digits(
    fixed: FixedPoint, trees: int, group: Array, place: Array, leaf: Array, number: Array, widths: Array
) -> PackedDigits:
    """Pack the leaves of groups of `trees` trees.

    For each leaf: its group, the place of its tree in the group, its place in the tree, and its number in `fixed.integers`. widths i64[G].
    Vectorized over all leaves.
    """
    sizes = widths * fixed.columns * trees * fixed.digits
    starts = np.cumsum(sizes) - sizes
    table = np.zeros(int(sizes.sum()), np.uint8)
    at = starts[group] + place * widths[group] + leaf
    for column in range(fixed.columns):
        for digit in range(fixed.digits):
            table[at] = fixed.integers[number, column] >> DIGIT * digit & (1 << DIGIT) - 1
            at = at + trees * widths[group]
    return PackedDigits(table, starts, widths)


def chunks_of(rows: int) -> int:
    """The chunks of 64 rows that hold so many rows."""
    return -(-rows // ROWS_IN_VECTOR)


class Leaves:
    """Emits the sums i64[outputs, block] of the leaves' integers. For each span of groups: `begin`, `add` for its groups, `end`."""

    def __init__(self, f: Block, fixed: FixedPoint, start: Array) -> None:
        """start i64[K]: what the sums begin with."""
        self.f, self.columns, self.outputs = f, fixed.columns, len(start)
        self.start = f.own(start, "i64")
        self.sums = T.alloc_buffer((self.outputs * f.block,), "int64")

    def clear(self, rows: Expr) -> None:
        """Let the sums of the first `rows` rows of the block begin."""
        parts = T.Bind((rows + 7) // 8)
        with self.f.repeat(self.outputs) as output:
            start = T.Bind(broadcast(self.f.constant(self.start, "i64", output), 8))
            with T.serial(tirx.const(0, "int64"), parts) as part:
                store(self.sums, start, output * self.f.block + part * 8, 8)

    def begin(self, span: Expr, rows: int) -> None:
        """Begin a span, for so many rows. Its groups add to the same outputs."""

    def add(self, groups: Groups, output: Expr, first: Expr, reached: Any, rows: int) -> None:
        """Add the integers of the leaves `reached` [groups, trees, rows] to the outputs from `output` on.

        first: the first row.
        """
        raise NotImplementedError

    def end(self, output: Expr, first: Expr, rows: int) -> None:
        """End the span: add its sums to those of the outputs from `output` on."""

    def totals(self, column: Expr, row: Expr, lanes: int) -> Expr:
        """The sums of `lanes` rows from `row` on, for an output."""
        return vector(self.sums, column * self.f.block + row, lanes)


class LeafDigits(Leaves):
    """Adds leaf values digit by digit, by looking the digits up in tables of bytes.

    A gather of 64 values would cost as much as the whole scan of a tree. The digits of four trees are added as bytes, the sums of up to
    256 groups as pairs of bytes.
    """

    def __init__(self, f: Block, fixed: FixedPoint, packed: PackedDigits, trees: int, most: int) -> None:
        """most: the most rows at once, a multiple of 64. trees: the trees of a group."""
        super().__init__(f, fixed, fixed.start)
        self.digits, self.trees = fixed.digits, trees
        self.table, self.starts = f.own(packed.table, "u8"), f.own(packed.starts, "i64")
        self.widths, self.used = f.own(packed.widths, "i64"), np.unique(packed.widths).tolist() or [NARROW]
        # For each digit two vectors of 32 sums. 16 bits hold two rows' bytes: one vector adds up (even + 256 · odd), the other odd alone.
        self.size = self.columns * self.digits * 2 * 32
        self.pairs = T.alloc_buffer((chunks_of(most) * self.size,), "uint16")
        self.in_order = T.alloc_buffer((self.digits * ROWS_IN_VECTOR,), "uint16")

    def begin(self, span: Expr, rows: int) -> None:
        self.width = T.Bind(self.f.constant(self.widths, "i64", span))
        zero = broadcast(tirx.const(0, "uint16"), 32)
        with self.f.repeat(chunks_of(rows) * self.size // 32) as i:
            store(self.pairs, zero, i * 32, 32)

    def add(self, groups: Groups, output: Expr, first: Expr, reached: Any, rows: int) -> None:
        f = self.f
        for width in self.used:
            with once_if(tirx.EQ(self.width, tirx.const(width, "int64"))), f.repeat(self.columns) as column:
                self._add_column(column, width, groups, reached, rows)

    def _add_column(self, column: Expr, width: int, groups: Groups, reached: Any, rows: int) -> None:
        """Add the digits of one column to `pairs`, for groups whose tables have this width."""
        raise NotImplementedError

    def end(self, output: Expr, first: Expr, rows: int) -> None:
        f = self.f
        with f.repeat(chunks_of(rows)) as chunk, f.repeat(self.columns) as column:
            place = T.Bind(chunk * self.size + column * (self.digits * 2 * 32))
            with f.repeat(self.digits) as digit:
                both = T.Bind(vector(self.pairs, place + digit * 64, 32))
                odd = T.Bind(vector(self.pairs, place + digit * 64 + 32, 32))
                even = T.Bind(tirx.Sub(both, tirx.shift_left(odd, broadcast(tirx.const(8, "uint16"), 32))))
                for half in range(2):
                    alternate = [tirx.const(half * 16 + i // 2 + (i % 2) * 32, "int32") for i in range(32)]
                    store(self.in_order, tirx.Shuffle([even, odd], alternate), digit * ROWS_IN_VECTOR + half * 32, 32)
            outputs = T.Bind((output + column) * f.block + first + chunk * ROWS_IN_VECTOR)
            with f.repeat(min(rows, ROWS_IN_VECTOR) // 8) as eight:
                total = vector(self.sums, outputs + eight * 8, 8)
                for digit in range(self.digits):
                    digits = tirx.Cast("int64x8", vector(self.in_order, eight * 8 + digit * ROWS_IN_VECTOR, 8))
                    total = tirx.Add(total, tirx.Mul(digits, broadcast(tirx.const(1 << DIGIT * digit, "int64"), 8)))
                store(self.sums, total, outputs + eight * 8, 8)


class LeafTables(LeafDigits):
    """The same with AVX-512 VBMI: a register permutation looks up one digit for 64 rows, or for 32 rows in two trees."""

    def __init__(self, f: Block, fixed: FixedPoint, packed: PackedDigits, trees: int, most: int) -> None:
        super().__init__(f, fixed, packed, trees, most)
        # One buffer for each register, and loops of one round: see PiecesScan (pieces_scan.py).
        self.registers = [T.alloc_buffer((32,), "uint16") for _ in range(2 * max(chunks_of(most), self.digits))]

    def _add_column(self, column: Expr, width: int, groups: Groups, reached: Any, rows: int) -> None:
        chunks = chunks_of(rows)
        if chunks == 1 and self.used[-1] <= WIDTHS[0]:  # the tables are read in their order, and the leaves once
            self._look_up(range(self.digits), column, width, groups, reached, rows)
        else:
            with self.f.repeat(self.digits) as digit:
                self._look_up([digit], column, width, groups, reached, rows)

    def _look_up(self, digits: Sequence[Expr | int], column: Expr, width: int, groups: Groups, reached: Any, rows: int) -> None:
        """Add some digits of the column for all groups."""
        # The sums stay in registers: storing 64 bytes takes as long as two permutations.
        f, start, chunks = self.f, groups[2], chunks_of(rows)
        together = max(ROWS_IN_VECTOR // rows, 1)  # trees whose leaves fill a register
        places = [T.Bind((column * self.digits + digit) * 64) for digit in digits]
        slots = [(i, chunk, half) for i in range(len(places)) for chunk in range(chunks) for half in range(2)]
        sums = [
            (register, places[i] + (chunk * self.size + half * 32))
            for register, (i, chunk, half) in zip(self.registers, slots, strict=False)
        ]
        with f.repeat(1) as origin:
            for register, at in sums:
                store(register, vector(self.pairs, at, 32), origin, 32)
            with T.serial(*groups[:2]) as group:
                place = T.Bind((group - start) * self.trees)
                size = max(rows, ROWS_IN_VECTOR)
                leaves = [
                    [
                        T.Bind(vector(reached, (place + tree) * rows + at, ROWS_IN_VECTOR))
                        for at in range(0, size, ROWS_IN_VECTOR)
                    ]
                    for tree in range(0, self.trees, together)
                ]
                page = None
                if together > 1 and width < WIDTHS[-1]:
                    leaves = [[T.Bind(tirx.bitwise_or(leaf, _second(width))) for leaf in chunk] for chunk in leaves]
                elif together > 1:
                    page = T.Bind(_second(1))
                elif width == NARROW:
                    upper = broadcast(tirx.const(NARROW, "uint8"), ROWS_IN_VECTOR)
                    leaves[1::2] = [[T.Bind(tirx.bitwise_or(leaf, upper)) for leaf in chunk] for chunk in leaves[1::2]]
                for i, digit in enumerate(digits):
                    table = T.Bind(
                        f.constant(self.starts, "i64", group) + (column * self.digits + digit) * (self.trees * width)
                    )
                    looked_up: list[list[Expr]] = [[] for _ in range(chunks)]
                    for tree, own in zip(range(0, self.trees, together), leaves, strict=True):
                        if tree * width % ROWS_IN_VECTOR == 0:
                            values = [
                                T.Bind(f.constants(self.table, "u8", table + tree * width + at, ROWS_IN_VECTOR))
                                for at in range(0, together * width, ROWS_IN_VECTOR)
                            ]
                        for chunk in range(chunks):
                            looked_up[chunk].append(permute(values, own[chunk], page))
                    for chunk, bytes_ in enumerate(looked_up):
                        while len(bytes_) > 1:
                            bytes_ = [tirx.Add(a, b) for a, b in zip(bytes_[::2], bytes_[1::2], strict=True)]
                        both = T.Bind(tirx.reinterpret("uint16x32", bytes_[0]))
                        second = tirx.shift_right(both, broadcast(tirx.const(8, "uint16"), 32))
                        at = (i * chunks + chunk) * 2
                        for register, part in zip(self.registers[at : at + 2], (both, second), strict=True):
                            store(register, tirx.Add(vector(register, origin, 32), part), origin, 32)
            for register, at in sums:
                store(self.pairs, vector(register, origin, 32), at, 32)

    def end(self, output: Expr, first: Expr, rows: int) -> None:
        if rows < ROWS_IN_VECTOR:  # the second halves have the sums of every second tree, for the same rows
            with self.f.repeat(self.size // 32) as i:
                both = tirx.Add(vector(self.pairs, i * 32, 16), vector(self.pairs, i * 32 + 16, 16))
                store(self.pairs, both, i * 32, 16)
        super().end(output, first, rows)


def _second(number: int) -> Expr:
    """64 bytes: 32 zeros, then a number."""
    halves = [broadcast(tirx.const(value, "uint8"), HALF) for value in (0, number)]
    return shuffled(halves, list(range(ROWS_IN_VECTOR)))


class LeafParts(LeafDigits):
    """The same with AVX2, for 32 rows at a time: a look-up takes 16 bytes, so a digit of 32 leaves takes two, and of 64 leaves four. With
    NEON it takes them all.

    The numbers of the leaves are made ready once for all digits. Of 32 rows alone, only the first halves of the sums are used.
    """

    def _add_column(self, column: Expr, width: int, groups: Groups, reached: Any, rows: int) -> None:
        f = self.f
        with T.serial(*groups[:2]) as group:
            tables = T.Bind(f.constant(self.starts, "i64", group) + column * (self.digits * self.trees * width))
            with f.repeat(chunks_of(rows)) as chunk, f.repeat(min(rows, ROWS_IN_VECTOR) // HALF) as half:
                sums: list[Expr | None] = [None] * self.digits
                for tree in range(self.trees):
                    place = ((group - groups[2]) * self.trees + tree) * rows + chunk * ROWS_IN_VECTOR + half * HALF
                    leaf = T.Bind(vector(reached, place, HALF))
                    places = [T.Bind(place) for place in places_in_parts(leaf, width // PART, f.dialect)]
                    for digit, total in enumerate(sums):
                        table = tables + (digit * self.trees + tree) * width
                        parts = [f.constants(self.table, "u8", table + at, PART) for at in range(0, width, PART)]
                        for byte in look_up_parts(parts, places, f.dialect):
                            total = byte if total is None else tirx.Add(total, byte)
                        sums[digit] = T.Bind(total)
                for digit, total in enumerate(sums):
                    both = T.Bind(tirx.reinterpret("uint16x16", total))
                    second = tirx.shift_right(both, broadcast(tirx.const(8, "uint16"), 16))
                    at = T.Bind(chunk * self.size + (column * self.digits + digit) * 64 + half * 16)
                    for i, part in enumerate((both, second)):
                        store(self.pairs, tirx.Add(vector(self.pairs, at + i * 32, 16), part), at + i * 32, 16)


class LeafGather(Leaves):
    """Gathers leaves one by one: for processors that look up no bytes, and for trees of more leaves than those tell apart."""

    def __init__(self, f: Block, fixed: FixedPoint, leaves: LeafRows, first: Array, outputs: Array, trees: int) -> None:
        """first: for each place of a tree, the row of its leaf 0 (`LeafRows`). outputs: the output that it adds to. trees: the trees of a
        group."""
        super().__init__(f, fixed, leaves.start_of(outputs))
        self.leaves, self.trees, self.first = leaves, trees, f.own(first, "i32")

    def add(self, groups: Groups, output: Expr, first: Expr, reached: Any, rows: int) -> None:
        f = self.f
        with T.serial(*groups[:2]) as group:
            starts = [
                T.Bind(tirx.Cast("int64", f.constant(self.first, "i32", group * self.trees + tree)))
                for tree in range(self.trees)
            ]
            with f.repeat(self.columns) as column, f.repeat(rows // ROWS_IN_GATHER) as part:
                row = T.Bind(part * ROWS_IN_GATHER)
                place = T.Bind((output + column) * f.block + first + row)
                total = vector(self.sums, place, ROWS_IN_GATHER)
                for tree, start in enumerate(starts):
                    at = row + ((group - groups[2]) * self.trees + tree) * rows
                    leaves = [start + tirx.Cast("int64", reached[at + i]) for i in range(ROWS_IN_GATHER)]
                    total = tirx.Add(total, self.leaves.integers(leaves, column))
                store(self.sums, total, place, ROWS_IN_GATHER)
