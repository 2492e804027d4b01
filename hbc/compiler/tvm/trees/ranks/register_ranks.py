"""Ranks of columns by a binary search in registers (AVX-512; of float32 also AVX2).

A column of more thresholds than registers hold has every 16th of them there (32nd, 64th). Their search says in which line of thresholds to
count, one row after the other.

A column's thresholds are read once for two registers of rows. On Zen 5, 500 trees of 88 leaves over 2,000 columns take 1.25 µs a row in
calls of 10,000; with one search a value 4.5. 500 trees of 31 leaves over 28 columns: 0.105 instead of 0.123. With AVX2, whose registers
hold 8 nodes, 64 rows of 23 thresholds take some 200 instructions; pivots and lines of eight thresholds (line_ranks.py) take 460.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.register_search import edges_below, node_below, padded, search_tree, sign_tree
from hbc.compiler.tvm.tir.vectors import broadcast, count_of, many, shuffled, store, vector
from hbc.compiler.tvm.trees.ranks.column_tiles import ColumnTiles
from hbc.ir.types import Array
from hbc.ops.tree_ranks import RankedTrees

LEVELS = (6, 8)
LEVELS_OF_LONG_ROWS = (4, 5)
"""Further ones for long rows. Elsewhere so much code is not worth it for a few columns."""
LEVELS_IN_HALVES = (5, 6)
"""`LEVELS` with AVX2. A seventh level would take as many instructions as the six before it."""
LINES = (16, 32, 64)
"""The sizes of a line. The code has the smallest that all columns fit."""
TOGETHER, TOGETHER_IN_HALVES = 2, 4
"""Registers of rows that share the reading of a column's thresholds; with AVX2, whose bytes are stored together."""


def levels(f: Block, dtype: str) -> tuple[int, ...]:
    """The levels of the search trees that have code here, ascending. A tree of k levels has 2^k - 1 thresholds."""
    if not f.dialect.wide and f.dialect.avx2 and dtype == "f32":
        return LEVELS_IN_HALVES
    if not f.dialect.wide or dtype not in ("f32", "f64"):
        return ()
    # f64: a tree of 8 levels would need all registers. Zen 4 (`byte_masks`) compares into masks too slowly for them.
    return LEVELS if dtype == "f32" and not f.dialect.byte_masks else LEVELS[:1]


def kinds(f: Block, ranked: RankedTrees, dtype: str) -> list[tuple[int, int, Array]]:
    """[(levels, line, the columns)]: the columns that trees of so many levels search, with lines of so many thresholds between them."""
    counts = np.array([len(thresholds) for thresholds in ranked.thresholds], np.int64)
    line = next((line for line in LINES if counts.max(initial=0) < line << max(LEVELS)), LINES[-1])
    found, least = [], 0
    for top in levels(f, dtype):
        for size in (1, line) if top == max(LEVELS) else (1,):
            found.append((top, size, np.flatnonzero((counts >= least) & (counts < size << top))))
            least = size << top
    return [kind for kind in found if len(kind[2])]


def kinds_by_sign(ranked: RankedTrees, dtype: str, more: tuple[int, ...] = ()) -> list[tuple[int, int, Array]]:
    """The same for `SignSearch`. It takes no infinite thresholds: ∞ - ∞ is NaN. more: the levels of smaller trees.

    Trees of eight levels instead of lines (line_ranks.py): 100 LightGBM trees of 31 leaves over 28 columns take 0.92 of the time, 500
    0.98, 200 XGBoost trees of depth 6 0.95. Of float64 they would need all registers."""
    if dtype not in ("f32", "f64"):
        return []
    finite = np.array([bool(np.isfinite(thresholds).all()) for thresholds in ranked.thresholds])
    counts = np.array([len(thresholds) for thresholds in ranked.thresholds], np.int64)
    found, least = [], 0
    for top in (*more, *(LEVELS if dtype == "f32" else LEVELS[:1])):
        found.append((top, 1, np.flatnonzero(finite & (counts >= least) & (counts < 1 << top))))
        least = 1 << top
    return [kind for kind in found if len(kind[2])]


class RegisterSearch:
    """Emits the ranks of columns that trees of `top` levels search, for the rows of a chunk. line: the thresholds between two of a tree; 1
    if a tree has all of them."""

    def __init__(self, f: Block, ranked: RankedTrees, kind: tuple[int, int, Array], tiles: ColumnTiles) -> None:
        self.f = f
        self.top, self.line, columns = kind
        self.chunk = tiles.chunk
        columns, places, starts = tiles.ordered(columns)
        thresholds = [ranked.thresholds[column] for column in columns]
        sorted_edges = np.concatenate([padded(edges[None], self.line << self.top) for edges in thresholds])
        bits = 8 * sorted_edges.itemsize
        self.dtype, self.lanes = f"f{bits}", f.schedule.register_bits(f.dialect) // bits
        self.rows = (TOGETHER if f.dialect.wide else TOGETHER_IN_HALVES) * self.lanes
        self.columns, self.places, self.starts = (f.own(array, "i64") for array in (columns, places, starts))
        self.trees = f.own(search_tree(sorted_edges, self.top, self.lanes), self.dtype)
        # All thresholds, if the trees have not. Behind the last line come zeros: a line may begin at the rank of NaN.
        behind = np.zeros(self.line, sorted_edges.dtype)
        self.lines = f.own(np.append(sorted_edges, behind), self.dtype) if self.line > 1 else None
        missing = ranked.missing_rank[columns]
        self.missing = f.own(missing, "i32") if missing.any() else None

    def emit(self, result: Any, numbers: Any, first: Expr, rows: Expr, tile: Expr) -> None:
        """Emit the ranks of the tile's columns, u8 as planes hold them or u16, for `rows` rows from `first` on, and a few behind them."""
        f, dtype, lanes = self.f, self.dtype, self.lanes
        begin, end = (T.Bind(f.constant(self.starts, "i64", tile + i)) for i in range(2))
        with T.serial(begin, end) as place, T.serial(tirx.const(0, "int64"), (rows + (self.rows - 1)) // self.rows) as group:
            column = T.Bind(f.constant(self.columns, "i64", place))
            at = T.Bind(f.constant(self.places, "i64", place) * self.chunk + group * self.rows)
            ranks = T.Bind(column * f.block + first + group * self.rows)
            tree = T.Bind(place * self.trees.shape[1])

            def read(start: int, tree: Expr = tree) -> Expr:
                return f.constants(self.trees, dtype, tree + start, lanes)

            # Where the line of a row begins, or the rank of NaN.
            begins: Any = f.scratch(self.rows, "i32") if self.lines is not None else None
            joined = []
            for part in range(self.rows // lanes):
                value = T.Bind(vector(numbers, at + part * lanes, lanes))
                rank = edges_below(value, self.top, read, dtype, f.scratch(lanes, f"i{dtype[1:]}"), lanes)
                rank = tirx.Cast(many("int32", lanes), rank)
                if self.lines is not None:
                    rank = tirx.Mul(rank, broadcast(tirx.const(self.line, "int32"), lanes))
                if self.missing is not None:  # until here, the rank of NaN is 0
                    own = broadcast(f.constant(self.missing, "i32", place), lanes)
                    rank = tirx.Select(tirx.EQ(value, value), rank, own)
                if self.lines is not None:
                    store(begins, rank, part * lanes, lanes)
                    continue
                if result.dtype == "uint8" and f.dialect.byte_masks:
                    rank = tirx.Sub(rank, broadcast(tirx.const(128, "int32"), lanes))
                if f.dialect.wide:
                    store(result, tirx.Cast(many(result.dtype, lanes), rank), ranks + part * lanes, lanes)
                else:
                    joined.append(T.Bind(rank))
            if joined:
                store(
                    result, tirx.Cast(many(result.dtype, self.rows), shuffled(joined, list(range(self.rows)))), ranks, self.rows
                )
            if self.lines is not None:
                with f.repeat(tirx.const(self.rows, "int64")) as row:
                    at_line = T.Bind(tirx.Cast("int64", begins[row]))
                    line = place * (self.line << self.top) + at_line
                    rank = at_line + below(f, self.lines, dtype, line, self.line, T.Bind(numbers[at + row]))
                    T.buffer_store(result, tirx.Cast(result.dtype, rank), [ranks + row])


class SignSearch:
    """Emits the ranks of columns that trees of `top` levels search by the signs of differences (Zen 4), as bytes. ∞ may have a larger rank
    than its column has thresholds; so it is above all of them, which is what planes are compared for. But it must not be 255, the byte of
    NaN that go both ways (planes.py), so that ranks of eight levels are limited.

    2,000 columns of up to 31 thresholds take 0.59 µs a row in C, with compares 0.74, and with a tree of six levels 0.94."""

    def __init__(self, f: Block, ranked: RankedTrees, kind: tuple[int, int, Array], tiles: ColumnTiles) -> None:
        self.f, self.chunk = f, tiles.chunk
        self.top, _, columns = kind
        columns, places, starts = tiles.ordered(columns)
        trees = sign_tree([ranked.thresholds[column] for column in columns], self.top)
        bits = 8 * trees.itemsize
        self.dtype, self.lanes = f"f{bits}", f.schedule.register_bits(f.dialect) // bits
        self.rows = min(TOGETHER * self.lanes, self.chunk)
        self.columns, self.places, self.starts = (f.own(array, "i64") for array in (columns, places, starts))
        self.trees, self.missing = f.own(trees, self.dtype), f.own(ranked.missing_rank[columns] + (1 << self.top), "i32")
        counts = np.array([len(ranked.thresholds[column]) for column in columns], np.int32)
        self.highest = f.own(counts + (1 << self.top), "i32") if self.top == max(LEVELS) else None

    def emit(self, result: Any, numbers: Any, first: Expr, rows: Expr, tile: Expr) -> None:
        """Emit the ranks of the tile's columns for `rows` rows from `first` on, and a few behind them."""
        f = self.f
        begin, end = (T.Bind(f.constant(self.starts, "i64", tile + i)) for i in range(2))
        with T.serial(begin, end) as place:
            if self.rows == self.chunk:  # such chunks are whole
                self._rows(result, numbers, first, place, tirx.const(0, "int64"))
                return
            with T.serial(tirx.const(0, "int64"), (rows + (self.rows - 1)) // self.rows) as group:
                self._rows(result, numbers, first, place, T.Bind(group * self.rows))

    def _rows(self, result: Any, numbers: Any, first: Expr, place: Expr, row: Expr) -> None:
        """Emit the ranks of `self.rows` rows of the chunk from `row` on."""
        f, dtype, lanes = self.f, self.dtype, self.lanes
        at = T.Bind(f.constant(self.places, "i64", place) * self.chunk + row)
        ranks = T.Bind(f.constant(self.columns, "i64", place) * f.block + first + row)
        tree = T.Bind(place << self.top)
        own = T.Bind(broadcast(f.constant(self.missing, "i32", place), lanes))
        for part in range(self.rows // lanes):
            value = T.Bind(vector(numbers, at + part * lanes, lanes))
            node = node_below(value, self.top, lambda start: f.constants(self.trees, dtype, tree + start, lanes), dtype, lanes)
            rank = tirx.Cast(many("int32", lanes), node)
            if self.highest is not None:
                rank = tirx.Min(rank, broadcast(f.constant(self.highest, "i32", place), lanes))
            rank = tirx.Select(tirx.EQ(value, value), rank, own)
            rank = tirx.Sub(rank, broadcast(tirx.const(128 + (1 << self.top), "int32"), lanes))
            store(result, tirx.Cast(many("uint8", lanes), rank), ranks + part * lanes, lanes)


def below(f: Block, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """The number of elements of table[start : start + count] that are < value, i64."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    return tirx.Cast("int64", count_of(less, count))
