"""Ranks of columns by lines of eight thresholds, for 64 rows of a column.

    at = number of the column's pivots below the value                     # for a register of rows at once
    for each level of lines, row by row:
        at = 8 · at + number of entries of line `at` below the value       # a compare and a mask of its signs
    rank = at

The entries of the last level are all thresholds, those of the level before it every 8th, and so on. The pivots come before the first
level. So the lines of a column take little more memory than its thresholds.

That suits processors without compares into masks (AVX2), or with slow ones (Zen 4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.register_search import edges_below, search_tree
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.compiler.tvm.trees.ranks.column_tiles import CHUNK, ColumnTiles
from hbc.ir.types import Array
from hbc.ops.tree_ranks import RankedTrees

LINE = 8  # thresholds in a line
LESS = 17  # the number of AVX's compare `<` that is false for NaN
TOGETHER = 32  # rows whose pivots are searched or counted together (AVX2): four registers of float32, or eight of float64
ROWS_STORED = 16  # rows whose ranks are stored at once


def places_of_pivots(lanes: int) -> int:
    """The places for a column's pivots: two registers of 512 bits, of so many lanes each. The last one has none, since a binary search of
    2^k places finds at most 2^k - 1 below a value."""
    return 2 * lanes


def kinds(f: Block, ranked: RankedTrees, dtype: str, columns: Array) -> list[tuple[int, Array]]:
    """[(levels, the columns)]: those of `columns` that lines search, by the levels of their lines. Nothing where the processor does not
    suit.

    With AVX2, 10,000 rows of a forest of 100 trees of depth 8 (600 thresholds a column) take 0.45 times as long so as with a search of one
    value after the other (planes.py); LightGBM's 100 trees of 31 leaves on float64 0.32, 200 over 300 columns of float64 0.37 (Zen 3)."""
    if dtype not in ("f32", "f64") or not f.dialect.byte_masks or not (f.dialect.wide or f.dialect.avx2):
        return []
    most = places_of_pivots(512 // int(dtype[1:])) - 1
    counts = np.array([len(ranked.thresholds[column]) for column in columns], np.int64)
    found, levels = [], 1
    while len(columns):
        deeper = counts // LINE**levels > most
        found.append((levels, columns[~deeper]))
        columns, counts, levels = columns[deeper], counts[deeper], levels + 1
    return [kind for kind in found if len(kind[1])]


class LineSearch:
    """Emits the ranks of the columns of one of the `kinds`, for the rows of a chunk."""

    def __init__(self, f: Block, ranked: RankedTrees, kind: tuple[int, Array], tiles: ColumnTiles) -> None:
        self.f = f
        self.levels, columns = kind
        self.chunk = tiles.chunk
        columns, places, starts = tiles.ordered(columns)
        edges = [ranked.thresholds[column] for column in columns]
        bits = 8 * edges[0].itemsize
        self.dtype, self.float, self.integer = f"f{bits}", f"float{bits}", f"int{bits}"
        self.in_halves = self.dtype == "f32" and not f.dialect.wide
        self.lanes = (f.schedule.register_bits(f.dialect) if self.in_halves else 512) // bits
        # For each level, the entries of the lines of all columns, and where those of a column begin.
        self.lines = []
        for level in range(self.levels):
            entries = [_every(LINE**level, own) for own in edges]
            # Behind a column's last whole line there may be some entries.
            first = np.concatenate([[0], np.cumsum([len(some) // LINE + 1 for some in entries])]) * LINE
            table = np.full(first[-1], np.inf, edges[0].dtype)
            for start, some in zip(first[:-1], entries, strict=True):
                table[start : start + len(some)] = some
            self.lines.append((f.own(table, self.dtype), f.own(first[:-1], "i64")))
        tops = [_every(LINE**self.levels, own) for own in edges]
        counts = np.array([len(some) for some in tops], np.int64)  # of the pivots of a column
        self.size = places_of_pivots(512 // bits)
        pivots = np.full((len(columns), self.size), np.inf, edges[0].dtype)
        for i, some in enumerate(tops):
            pivots[i, : len(some)] = some
        missing = ranked.missing_rank[columns]
        self.missing = f.own(missing, "i32") if missing.any() else None
        self.columns, self.places, self.starts = (f.own(array, "i64") for array in (columns, places, starts))
        self.below, self.at = T.alloc_buffer((CHUNK,), "uint8"), T.alloc_buffer((CHUNK,), "int32")
        if self.in_halves:
            self.top = self.size.bit_length() - 1
            self.trees = f.own(search_tree(pivots, self.top, self.lanes), self.dtype)
        else:
            self.pivots = f.own(pivots, self.dtype)
        if not self.in_halves and not f.dialect.wide:
            self.counts = f.own(counts, "i64")
            # One buffer for each register: see PiecesScan (pieces_scan.py).
            self.registers = [T.alloc_buffer((self.lanes,), self.integer) for _ in range(TOGETHER // self.lanes)]

    def emit(self, result: Any, numbers: Any, first: Expr, rows: Expr, tile: Expr) -> None:
        """Emit the ranks of the tile's columns, u8 as planes hold them or u16, for `rows` rows from `first` on, and up to ROWS_STORED - 1
        behind them, where other searches write later."""
        f = self.f
        begin, end = (T.Bind(f.constant(self.starts, "i64", tile + i)) for i in range(2))
        parts = T.Bind((rows + (ROWS_STORED - 1)) // ROWS_STORED)
        with T.serial(begin, end) as place:
            values = T.Bind(f.constant(self.places, "i64", place) * self.chunk)
            starts = [T.Bind(f.constant(first_, "i64", place)) for _, first_ in self.lines]
            if f.dialect.wide:
                self._search(numbers, values, place, rows)
            elif self.in_halves:
                self._search_in_halves(numbers, values, place, rows)
            else:
                self._count(numbers, values, place, rows)
            with f.repeat(parts) as part, f.repeat(ROWS_STORED) as place_in_part:
                row = T.Bind(part * ROWS_STORED + place_in_part)
                value, at = T.Bind(numbers[values + row]), self.at[row]
                for level in reversed(range(1, self.levels)):
                    bits = self._entries_below(self.lines[level][0], starts[level], at, value)
                    at = T.Bind((at + tirx.call_llvm_pure_intrin("int32", "llvm.ctpop.i32", bits)) * LINE)
                if self.levels > 1:
                    T.buffer_store(self.at, at, [row])
                bits = self._entries_below(self.lines[0][0], starts[0], at, value)
                T.buffer_store(self.below, tirx.Cast("uint8", bits), [row])
            ones = tirx.call_llvm_pure_intrin("uint8x64", "llvm.ctpop.v64i8", vector(self.below, 0, CHUNK))
            store(self.below, ones, 0, CHUNK)
            column = T.Bind(f.constant(self.columns, "i64", place) * f.block + first)
            with f.repeat(parts) as part:
                before = vector(self.at, part * ROWS_STORED, ROWS_STORED)
                if self.missing is not None:  # until here, the rank of NaN is 0
                    value = vector(numbers, values + part * ROWS_STORED, ROWS_STORED)
                    own = broadcast(f.constant(self.missing, "i32", place), ROWS_STORED)
                    before = tirx.Select(tirx.EQ(value, value), before, own)
                kind = many(result.dtype, ROWS_STORED)
                rank = tirx.Add(tirx.Cast(kind, before), tirx.Cast(kind, vector(self.below, part * ROWS_STORED, ROWS_STORED)))
                if result.dtype == "uint8":
                    rank = tirx.bitwise_xor(rank, broadcast(tirx.const(128, "uint8"), ROWS_STORED))  # signed, see planes.held
                store(result, rank, column + part * ROWS_STORED, ROWS_STORED)

    def _entries_below(self, lines: Array, start: Expr, line: Expr, value: Expr) -> Expr:
        """A bit for each entry below the value of the line that begins at `line` in a column's, i32."""
        f, lanes = self.f, 256 // int(self.dtype[1:])
        result: Expr = None
        for first in range(0, LINE, lanes):
            entries = f.constants(lines, self.dtype, start + tirx.Cast("int64", line) + first, lanes)
            kind = "ps" if lanes == LINE else "pd"
            compare, signs = f"llvm.x86.avx.cmp.{kind}.256", f"llvm.x86.avx.movmsk.{kind}.256"
            operands = (entries, broadcast(value, lanes), tirx.const(LESS, "int8"))
            less = tirx.call_llvm_pure_intrin(many(self.float, lanes), compare, *operands)
            bits = tirx.call_llvm_pure_intrin("int32", signs, less)
            result = bits if result is None else tirx.bitwise_or(result, tirx.shift_left(bits, tirx.const(first, "int32")))
        return T.Bind(result)

    def _search(self, numbers: Any, values: Expr, place: Expr, rows: Expr) -> None:
        """Store in `at` where the line of each value begins in the first level, LINE times the number of the column's pivots below it: a
        binary search (AVX-512)."""
        f, lanes, size = self.f, self.lanes, self.size
        table = [T.Bind(f.constants(self.pivots, self.dtype, place * size + at, lanes)) for at in (0, lanes)]
        permute = f"llvm.x86.avx512.vpermi2var.{'ps' if self.dtype == 'f32' else 'pd'}.512"
        every = lambda number: broadcast(tirx.const(number, self.integer), lanes)  # noqa: E731
        with f.repeat(T.Bind((rows + (lanes - 1)) // lanes)) as part:
            value = T.Bind(vector(numbers, values + part * lanes, lanes))
            below, step = T.Bind(every(0)), size // 2
            while step:
                at = tirx.Add(below, every(step - 1))
                pivot = tirx.call_llvm_pure_intrin(many(self.float, lanes), permute, table[0], at, table[1])
                below = T.Bind(tirx.Select(tirx.LT(pivot, value), tirx.Add(below, every(step)), below))
                step //= 2
            self._store_line(below, part * lanes)

    def _count(self, numbers: Any, values: Expr, place: Expr, rows: Expr) -> None:
        """The same for float64 with AVX2, by counting the pivots that the column has: no instruction looks up pivots of 64 bits."""
        f, lanes, size = self.f, self.lanes, self.size
        zero, one = (broadcast(tirx.const(value, self.integer), lanes) for value in (0, 1))
        with f.repeat((rows + (TOGETHER - 1)) // TOGETHER) as some, f.repeat(1) as origin:
            first = T.Bind(some * TOGETHER)
            for register in self.registers:
                store(register, zero, origin, lanes)
            with f.repeat(T.Bind(f.constant(self.counts, "i64", place))) as at:
                pivot = T.Bind(broadcast(f.constant(self.pivots, self.dtype, place * size + at), lanes))
                for part, register in enumerate(self.registers):
                    value = vector(numbers, values + first + part * lanes, lanes)
                    more = tirx.Select(tirx.LT(pivot, value), one, zero)
                    store(register, tirx.Add(vector(register, origin, lanes), more), origin, lanes)
            for part, register in enumerate(self.registers):
                self._store_line(vector(register, origin, lanes), first + part * lanes)

    def _search_in_halves(self, numbers: Any, values: Expr, place: Expr, rows: Expr) -> None:
        """The same for float32 with AVX2, whose registers hold eight pivots."""
        f, lanes, dtype = self.f, self.lanes, self.dtype
        tree = T.Bind(place * self.trees.shape[1])
        with f.repeat((rows + (TOGETHER - 1)) // TOGETHER) as some:
            for part in range(0, TOGETHER, lanes):
                first = T.Bind(some * TOGETHER + part)
                value = T.Bind(vector(numbers, values + first, lanes))
                read = lambda start: f.constants(self.trees, dtype, tree + start, lanes)  # noqa: E731
                self._store_line(edges_below(value, self.top, read, dtype, f.scratch(lanes, "i32"), lanes), first)

    def _store_line(self, below: Expr, row: Expr) -> None:
        """Store where the lines of a register of rows begin. below: how many pivots are below their values."""
        lanes, kind = self.lanes, many("int32", self.lanes)
        line = tirx.Mul(tirx.Cast(kind, below), broadcast(tirx.const(LINE, "int32"), lanes))
        store(self.at, line, row, lanes)


def _every(step: int, thresholds: Array) -> Array:
    """Every `step`-th of the thresholds, beginning with the one of that number."""
    return thresholds[step - 1 :: step]
