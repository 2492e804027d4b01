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
from hbc.compiler.tvm.tir.vectors import as_vector, broadcast, many, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees

LEVELS = (6, 8)
LINES = (16, 32, 64)
"""The sizes of a line. The code has the smallest that all columns fit."""
TOGETHER = 2
"""Registers of rows that share the reading of a column's thresholds."""


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

    columns i64[C]; features i64[C]: the features that they rank; trees [C, nodes]; missing i32[C]: the ranks of NaN, or None where all are
    0; count: C in the code.
    """

    top: int
    columns: Array
    features: Array
    trees: Array
    missing: Array | None
    count: Expr
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
        self.searched, least = [], 0
        for top in levels(f, dtype):
            columns = np.flatnonzero((counts >= least) & (counts < 1 << top))
            least = 1 << top
            if len(columns):
                self.searched.append(self._searched(ranked, columns, top))
            if top == max(LEVELS):
                line = next((line for line in LINES if counts.max(initial=0) < line << top), LINES[-1])
                columns = np.flatnonzero((counts >= least) & (counts < line << top))
                least = line << top
                if len(columns):
                    self.searched.append(self._searched(ranked, columns, top, line))
        self.others = np.flatnonzero(counts >= least)
        self.whole = x in f.arguments and len(counts) * 2 >= x.type.columns >= self.lanes
        """The caller's rows are transposed in squares, with columns that nobody compares too; otherwise number by number."""

    def _searched(self, ranked: RankedTrees, columns: Array, top: int, line: int = 1) -> Searched:
        f, dtype = self.f, self.x.type.dtype
        thresholds = [ranked.thresholds[column] for column in columns]
        sorted_edges = np.concatenate([padded(edges[None], line << top) for edges in thresholds])
        # Behind the last line come zeros: a line may begin at the rank of NaN.
        lines = f.own(np.append(sorted_edges, np.zeros(line, sorted_edges.dtype)), dtype) if line > 1 else None
        missing = ranked.missing_rank[columns]
        return Searched(
            top,
            f.own(columns, "i64"),
            f.own(ranked.column_feature[columns], "i64"),
            f.own(search_tree(sorted_edges, top), dtype),
            f.own(missing, "i32") if missing.any() else None,
            f.size(len(columns)),
            line,
            lines,
        )

    def fill(self, result: Any, rows: Expr) -> Expr:
        """Rank the first rows of the block, as many as make whole groups. result: the ranks, u8 or u16, column after column. Returns the
        number of ranked rows."""
        if not self.searched:
            return tirx.const(0, "int64")
        groups = T.Bind(rows // self.rows)
        columns = self.x.type.columns if self.whole else sum(len(some.columns) for some in self.searched)
        numbers = T.alloc_buffer((few_sizes(columns) * self.rows,), DTYPES[self.x.type.dtype])
        with T.serial(tirx.const(0, "int64"), groups) as group:
            first = T.Bind(group * self.rows)
            if self.whole:
                self._transpose(numbers, first)
            before: Expr = tirx.const(0, "int64")
            for some in self.searched:
                if not self.whole:
                    self._copy(numbers, first, some, before)
                self._search(result, numbers, first, some, before)
                before = before + some.count
        return T.Bind(groups * self.rows)

    def _transpose(self, numbers: Any, first: Expr) -> None:
        """numbers[feature · rows + row] = x[row, feature], in squares. If features are left over, the last squares overlap others."""
        width, size, f = self.x.type.columns, self.lanes, self.f
        flat = as_vector(f.arguments[self.x])
        with f.repeat(f.size(-(-width // size))) as tile, f.repeat(TOGETHER) as part:
            feature = T.Bind(tirx.Min(tirx.const(width - size, "int64"), tirx.const(size, "int64") * tile))
            outside = (f.base + first + part * size) * width + feature
            with ExitStack() as stack:
                # Loops of one round: TVM keeps a run of elements whole only if it begins at a loop variable.
                origin = stack.enter_context(T.serial(outside, outside + 1))
                inside_at = feature * self.rows + part * size
                inside = stack.enter_context(T.serial(inside_at, inside_at + 1))
                rows = [T.Bind(vector(flat, origin + i * width, size)) for i in range(size)]
                for j, column in enumerate(turned(rows)):
                    store(numbers, column, inside + j * self.rows, size)

    def _copy(self, numbers: Any, first: Expr, some: Searched, before: Expr) -> None:
        """numbers[place · rows + row] = x[row, feature], one after the other."""
        f = self.f
        with f.repeat(tirx.const(self.rows, "int64")) as row, f.repeat(some.count) as place:
            feature = T.Bind(f.constant(some.features, "i64", place))
            T.buffer_store(numbers, f.read(self.x, [feature], Row(first + row)), [(before + place) * self.rows + row])

    def _search(self, result: Any, numbers: Any, first: Expr, some: Searched, before: Expr) -> None:
        f, dtype, lanes = self.f, self.x.type.dtype, self.lanes
        with f.repeat(some.count) as place:
            column = T.Bind(f.constant(some.columns, "i64", place))
            at = T.Bind((f.constant(some.features, "i64", place) if self.whole else before + place) * self.rows)
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
                store(result, tirx.Cast(many(result.dtype, lanes), rank), column * f.block + first + part * lanes, lanes)
            if some.lines is not None:
                with f.repeat(tirx.const(self.rows, "int64")) as row:
                    begin = T.Bind(tirx.Cast("int64", begins[row]))
                    line = place * (some.line << some.top) + begin
                    rank = begin + below(f, some.lines, dtype, line, some.line, T.Bind(numbers[at + row]))
                    T.buffer_store(result, tirx.Cast(result.dtype, rank), [column * f.block + first + row])


def below(f: Block, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """The number of elements of table[start : start + count] that are < value, i64."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    counted = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{count}i32", tirx.Cast(f"int32x{count}", less))
    return tirx.Cast("int64", counted)
