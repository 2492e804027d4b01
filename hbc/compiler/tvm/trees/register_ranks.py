"""Ranks of columns by a binary search in registers, for many rows (AVX-512). For few rows, planes.py has other searches.

A column of more thresholds than registers hold has every 16th of them there (32nd, 64th). Their search says in which line of thresholds to
count, one row after the other.

A column's thresholds are read once for two registers of rows. On Zen 5, 500 trees of 88 leaves over 2,000 columns take 1.25 µs a row in
calls of 10,000; with one search a value 4.5. 500 trees of 31 leaves over 28 columns: 0.105 instead of 0.123.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.nest.transpose import turned
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.register_search import edges_below, padded, search_tree
from hbc.compiler.tvm.tir.vectors import as_vector, broadcast, many, prefetch, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees

LEVELS = (6, 8)
LINES = (16, 32, 64)
"""The sizes of a line. The code has the smallest that all columns fit."""
TOGETHER = 2
"""Registers of rows that share the reading of a column's thresholds."""
CHUNK = 64
"""Rows that are ranked together, a tile of columns after the other (16 columns of float32): what is turned stays in the first cache, and a
column's ranks fill a cache line."""


def levels(f: Block, dtype: str) -> tuple[int, ...]:
    """The levels of the search trees that have code here, ascending. A tree of k levels has 2^k - 1 thresholds."""
    if not f.dialect.wide or dtype not in ("f32", "f64"):
        return ()
    # f64: a tree of 8 levels would need all registers. Zen 4 (`byte_masks`): planes.py has a search for 255 thresholds that suits it.
    return LEVELS if dtype == "f32" and not f.dialect.byte_masks else LEVELS[:1]


@record
class Searched:
    """The columns that are searched by trees of one size.

    line: the thresholds between two of the tree; 1 if the tree has all of them. lines [C · 2^top · line + line]: all thresholds, if the
    tree has not.

    columns i64[C]; places i64[C]: their places in their tiles; starts i64[tiles + 1]: the first column of each tile; trees [C, nodes];
    missing i32[C]: the ranks of NaN, or None where all are 0.
    """

    top: int
    columns: Array
    places: Array
    starts: Array
    trees: Array
    missing: Array | None
    line: int = 1
    lines: Array | None = None


class RegisterRanks:
    """Emits the ranks of the columns that registers can search.

    others i64: the columns that it leaves out. rows: it ranks so many rows at a time.
    """

    def __init__(self, f: Block, x: Node, ranked: RankedTrees) -> None:
        self.f, self.x = f, x
        dtype = x.type.dtype
        self.lanes = 512 // int(dtype[1:])
        self.rows = TOGETHER * self.lanes
        counts = np.array([len(thresholds) for thresholds in ranked.thresholds], np.int64)
        line = next((line for line in LINES if counts.max(initial=0) < line << max(LEVELS)), LINES[-1])
        found, least = [], 0
        for top in levels(f, dtype):
            for size in (1, line) if top == max(LEVELS) else (1,):
                found.append((top, size, np.flatnonzero((counts >= least) & (counts < size << top))))
                least = size << top
        self.others = np.flatnonzero(counts >= least)
        columns = np.flatnonzero(counts < least)
        self.features = np.unique(ranked.column_feature[columns]).astype(np.int64)
        squares = _squares(self.features, x.type.columns, self.lanes)
        self.whole = x in f.arguments and x.type.columns >= self.lanes and self.lanes * len(squares) <= 2 * len(self.features)
        """The caller's rows are transposed in squares, with columns that nobody compares too; otherwise number by number."""
        self.begins = squares if self.whole and len(squares) else np.zeros(1, np.int64)
        tile, place = np.zeros(len(counts), np.int64), np.searchsorted(self.features, ranked.column_feature)
        if self.whole:
            tile = np.maximum(np.searchsorted(self.begins, ranked.column_feature, side="right") - 1, 0)
            place = ranked.column_feature - self.begins[tile]
        self.searched = [self._searched(ranked, some, tile, place, top, size) for top, size, some in found if len(some)]

    def _searched(self, ranked: RankedTrees, columns: Array, tile: Array, place: Array, top: int, line: int) -> Searched:
        """tile, place i64: those of all columns."""
        f, dtype = self.f, self.x.type.dtype
        columns = columns[np.argsort(tile[columns], kind="stable")]
        thresholds = [ranked.thresholds[column] for column in columns]
        sorted_edges = np.concatenate([padded(edges[None], line << top) for edges in thresholds])
        # Behind the last line come zeros: a line may begin at the rank of NaN.
        lines = f.own(np.append(sorted_edges, np.zeros(line, sorted_edges.dtype)), dtype) if line > 1 else None
        missing = ranked.missing_rank[columns]
        return Searched(
            top,
            f.own(columns, "i64"),
            f.own(place[columns].astype(np.int64), "i64"),
            f.own(np.searchsorted(tile[columns], np.arange(len(self.begins) + 1)), "i64"),
            f.own(search_tree(sorted_edges, top), dtype),
            f.own(missing, "i32") if missing.any() else None,
            line,
            lines,
        )

    def fill(self, result: Any, rows: Expr) -> Expr:
        """Rank the first rows of the block, as many as make whole groups. result: the ranks, u8 or u16, column after column. Returns the
        number of ranked rows."""
        if not self.searched:
            return tirx.const(0, "int64")
        f = self.f
        groups, together = T.Bind(rows // self.rows), CHUNK // self.rows
        begins = f.own(self.begins, "i64")
        columns = self.lanes if self.whole else few_sizes(len(self.features))
        numbers = T.alloc_buffer((columns * CHUNK,), DTYPES[self.x.type.dtype])
        with T.serial(tirx.const(0, "int64"), (groups + (together - 1)) // together) as chunk:
            first = T.Bind(chunk * CHUNK)
            count = T.Bind(tirx.Min(groups - chunk * together, tirx.const(together, "int64")))
            ahead = T.Bind(
                tirx.Select(tirx.EQ(f.rows, tirx.const(f.block, "int64")), count * self.rows, tirx.const(0, "int64"))
            )
            with f.repeat(f.size(len(self.begins))) as tile:
                if self.whole:
                    feature = T.Bind(f.constant(begins, "i64", tile))
                    self._prefetch(first + CHUNK, ahead, feature)
                    self._transpose(numbers, first, feature, count)
                else:
                    self._copy(numbers, first, count)
                for some in self.searched:
                    self._search(result, numbers, first, tile, count, some)
        return T.Bind(groups * self.rows)

    def _prefetch(self, first: Expr, count: Expr, feature: Expr) -> None:
        """Bring a feature of `count` of the caller's rows near, and with it those beside."""
        width = self.x.type.columns
        flat = as_vector(self.f.arguments[self.x])
        with T.serial(tirx.const(0, "int64"), count) as row:
            prefetch(flat[(self.f.base + first + row) * width + feature])

    def _transpose(self, numbers: Any, first: Expr, feature: Expr, count: Expr) -> None:
        """numbers[place · CHUNK + row] = x[row, feature + place] for the places of a tile and `count` groups of rows, in squares."""
        width, size, f = self.x.type.columns, self.lanes, self.f
        flat = as_vector(f.arguments[self.x])
        with T.serial(tirx.const(0, "int64"), count * TOGETHER) as part:
            outside = (f.base + first + part * size) * width + feature
            with ExitStack() as stack:
                # Loops of one round: TVM keeps a run of elements whole only if it begins at a loop variable.
                origin = stack.enter_context(T.serial(outside, outside + 1))
                inside = stack.enter_context(T.serial(part * size, part * size + 1))
                rows = [T.Bind(vector(flat, origin + i * width, size)) for i in range(size)]
                for j, column in enumerate(turned(rows)):
                    store(numbers, column, inside + j * CHUNK, size)

    def _copy(self, numbers: Any, first: Expr, count: Expr) -> None:
        """numbers[place · CHUNK + row] = x[row, feature] for all features that are compared, one after the other."""
        f, features = self.f, self.f.own(self.features, "i64")
        with T.serial(tirx.const(0, "int64"), count * self.rows) as row, f.repeat(f.size(len(features))) as place:
            feature = T.Bind(f.constant(features, "i64", place))
            T.buffer_store(numbers, f.read(self.x, [feature], Row(first + row)), [place * CHUNK + row])

    def _search(self, result: Any, numbers: Any, first: Expr, tile: Expr, count: Expr, some: Searched) -> None:
        f, dtype, lanes = self.f, self.x.type.dtype, self.lanes
        begin, end = (T.Bind(f.constant(some.starts, "i64", tile + i)) for i in range(2))
        with T.serial(begin, end) as place, T.serial(tirx.const(0, "int64"), count) as group:
            column = T.Bind(f.constant(some.columns, "i64", place))
            at = T.Bind(f.constant(some.places, "i64", place) * CHUNK + group * self.rows)
            ranks = T.Bind(column * f.block + first + group * self.rows)
            tree = T.Bind(place * some.trees.shape[1])

            def read(start: int, tree: Expr = tree) -> Expr:
                return f.constants(some.trees, dtype, tree + start, lanes)

            # Where the line of a row begins, or the rank of NaN.
            begins: Any = f.scratch(self.rows, "i32") if some.lines is not None else None
            for part in range(TOGETHER):
                value = T.Bind(vector(numbers, at + part * lanes, lanes))
                rank = edges_below(value, some.top, read, dtype, f.scratch(lanes, f"i{512 // lanes}"))
                rank = tirx.Cast(many("int32", lanes), rank)
                if some.lines is not None:
                    rank = tirx.Mul(rank, broadcast(tirx.const(some.line, "int32"), lanes))
                if some.missing is not None:  # until here, the rank of NaN is 0
                    own = broadcast(f.constant(some.missing, "i32", place), lanes)
                    rank = tirx.Select(tirx.EQ(value, value), rank, own)
                if some.lines is not None:
                    store(begins, rank, part * lanes, lanes)
                    continue
                if result.dtype == "uint8" and f.dialect.byte_masks:
                    rank = tirx.Sub(rank, broadcast(tirx.const(128, "int32"), lanes))
                store(result, tirx.Cast(many(result.dtype, lanes), rank), ranks + part * lanes, lanes)
            if some.lines is not None:
                with f.repeat(tirx.const(self.rows, "int64")) as row:
                    at_line = T.Bind(tirx.Cast("int64", begins[row]))
                    line = place * (some.line << some.top) + at_line
                    rank = at_line + below(f, some.lines, dtype, line, some.line, T.Bind(numbers[at + row]))
                    T.buffer_store(result, tirx.Cast(result.dtype, rank), [ranks + row])


def _squares(features: Array, width: int, size: int) -> Array:
    """i64: the features at which squares of `size` features begin that cover the ascending `features` of a matrix of `width`."""
    begins: list[int] = []
    for feature in features.tolist():
        if not begins or feature >= begins[-1] + size:
            begins.append(min(feature, width - size))
    return np.array(begins, np.int64)


def below(f: Block, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """The number of elements of table[start : start + count] that are < value, i64."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    counted = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{count}i32", tirx.Cast(f"int32x{count}", less))
    return tirx.Cast("int64", counted)
