"""The planes of a block of rows. A plane has a byte for each row, the rank that splits compare (docs/tree-kernels.md §1).

    rank[row]    = number of the column's thresholds that are < x[row, feature]; NaN gets missing_rank
    plane[row]   = rank[row]                                                 # at most 255 thresholds
                 = min(max(rank[row] - first, 0), 255)                       # more: several planes, first = 0, 255, 510, …
    plane'[row]  = 0 if plane[row] == 255 else plane[row]                    # a feature whose NaN go both ways: NaN below all

64 rows of a plane are consecutive, so that splits load them as one vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import is_nan
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.compiler.tvm.trees.ranks.counted_ranks import CountedRanks
from hbc.compiler.tvm.trees.ranks.register_ranks import below
from hbc.compiler.tvm.trees.ranks.turned_ranks import TurnedRanks
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

ROWS_IN_VECTOR = 64  # rows in a vector of bytes
HALF = 32  # rows (bytes) in a register of AVX2
PART = 16  # bytes in a table that it looks up in
MOST_THRESHOLDS = 65535  # the most thresholds of a feature: ranks have 16 bits
LINE = 16  # thresholds in a line of `Search`
ROWS_OF_PLANES = 15
"""The most rows of a block whose planes lie row by row: so few that no search of many rows takes them (`TurnedRanks`)."""
LEAST_TOGETHER = 8
"""The fewest rows behind whole chunks that are ranked together, where planes never lie row by row."""


def held(f: Block, byte: Expr, lanes: int = 1) -> Expr:
    """A byte 0…255 as planes hold it. Applied to a byte of a plane, it returns 0…255 again.

    Planes hold byte - 128 where compares give bytes (`Dialect.byte_masks`), since those instructions compare signed numbers.
    """
    return tirx.bitwise_xor(byte, broadcast(tirx.const(128, "uint8"), lanes)) if f.dialect.byte_masks else byte


@record
class Layout:
    """Where the planes' byte of a row lies: plane · stride + row · row_stride.

    Usually 64 rows of a plane lie together: a vector of the scan. But of few rows, the planes of each row lie together, so that a few cache
    lines have them all: `together`. Then stride is 1.
    """

    together: Expr
    stride: Expr
    row_stride: Expr


def layout(f: Block, ranked: RankedTrees, more: int, most: int) -> Layout:
    """The layout of the planes of a block. more: planes left free for category sets. most: in a block of so many rows at most, the planes
    of a row lie together."""
    # Parts of 64 bytes are stored at once, and may end behind the last plane of a row.
    size = few_sizes(ranked.planes + more) + ROWS_IN_VECTOR
    most = min(most if ranked.most_thresholds <= MOST_IN_PLANE else 1, f.block // 4)
    together = T.Bind(tirx.LE(f.rows, tirx.const(most, "int64")))
    stride, row_stride = (
        T.Bind(tirx.Select(together, *(tirx.const(number, "int64") for number in pair))) for pair in ((1, f.block), (size, 1))
    )
    return Layout(together, stride, row_stride)


def rank_planes(f: Block, x: Node, ranked: RankedTrees, more: int, rows: Expr, places: Layout | None = None) -> Any:
    """Emit the planes of the first `rows` rows of the block. Returns their buffer u8[(planes + more) · block].

    The bytes are as `held` says. more: planes left free for category sets. places: where they lie; None: plane after plane.
    """
    planes, width = ranked.planes, tirx.const(ROWS_IN_VECTOR, "int64")
    given, places = places, places or _plane_after_plane(f)
    result = T.alloc_buffer((few_sizes(planes + more) * f.block,), "uint8")
    if not planes:
        return result
    # Vectors of a plane. Where a row's planes lie together, the next plane overwrites all of a vector but its first byte.
    parts = T.Bind(tirx.Select(places.together, rows, (rows + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR))
    size = T.Bind(tirx.Select(places.together, places.row_stride, width))
    lowest, highest = (tirx.Broadcast(held(f, tirx.const(value, "uint8")), ROWS_IN_VECTOR) for value in (0, MOST_IN_PLANE))
    if ranked.most_thresholds <= MOST_IN_PLANE:
        _rank(f, x, ranked, result, rows, given)
    else:
        ranks = column_ranks(f, x, ranked, rows, given)
        columns, firsts = f.own(ranked.plane_column, "i64"), f.own(ranked.plane_first, "i64")
        with f.repeat(f.size(len(ranked.plane_column))) as plane:
            start = T.Bind(f.constant(columns, "i64", plane) * places.stride)
            first = T.Bind(broadcast(tirx.Cast("uint16", f.constant(firsts, "i64", plane)), ROWS_IN_VECTOR))
            with T.serial(tirx.const(0, "int64"), parts) as part:
                byte = bytes_of_ranks(f, ranks, start + part * size, first)
                store(result, byte, plane * places.stride + part * size, ROWS_IN_VECTOR)
    if len(ranked.below):
        first_below, sources = f.size(len(ranked.plane_column)), f.own(ranked.below, "i64")
        with f.repeat(f.size(len(ranked.below))) as plane:
            source = T.Bind(f.constant(sources, "i64", plane) * places.stride)
            copy = T.Bind((first_below + plane) * places.stride)
            with T.serial(tirx.const(0, "int64"), parts) as part:
                byte = T.Bind(vector(result, source + part * size, ROWS_IN_VECTOR))
                store(result, tirx.Select(tirx.EQ(byte, highest), lowest, byte), copy + part * size, ROWS_IN_VECTOR)
    return result


def column_ranks(f: Block, x: Node, ranked: RankedTrees, rows: Expr, places: Layout | None = None) -> Any:
    """Emit the ranks of columns for the first `rows` rows of the block. Returns their buffer u16[columns · block]. places: see above."""
    ranks = T.alloc_buffer((few_sizes(len(ranked.column_feature)) * f.block,), "uint16")
    _rank(f, x, ranked, ranks, rows, places)
    return ranks


def bytes_of_ranks(f: Block, ranks: Any, start: Expr, first: Expr) -> Expr:
    """64 ranks from place `start` on as the bytes of a plane. first u16x64: the first rank of the plane, in all lanes."""
    rank = tirx.Max(vector(ranks, start, ROWS_IN_VECTOR), first)
    above = tirx.Min(tirx.Sub(rank, first), broadcast(tirx.const(MOST_IN_PLANE, "uint16"), ROWS_IN_VECTOR))
    return held(f, tirx.Cast(many("uint8", ROWS_IN_VECTOR), above), ROWS_IN_VECTOR)


def _plane_after_plane(f: Block) -> Layout:
    return Layout(tirx.const(False, "bool"), tirx.const(f.block, "int64"), tirx.const(1, "int64"))


def _rank(f: Block, x: Node, ranked: RankedTrees, result: Any, rows: Expr, places: Layout | None) -> None:
    """Emit the ranks of all columns of the first `rows` rows: of many rows together where the processor has a search for that."""
    least = LEAST_TOGETHER if places is None else ROWS_OF_PLANES + 1
    places = places or _plane_after_plane(f)
    search, turned, counted = (
        Search(f, x, ranked),
        TurnedRanks(f, x, ranked, result.dtype == "uint8"),
        CountedRanks(f, x, ranked),
    )
    done = turned.fill(result, rows, least)
    search.fill(result, tirx.const(0, "int64"), done, places, turned.others)
    counted.fill(result, done, rows, places)
    search.fill(result, done, rows, places, counted.others if counted.blocks else None)


class Search:
    """Emits the ranks of columns, one value after the other: how many thresholds are below it.

    It is a search tree. The number of pivots below x says in which line of 16 thresholds to count. A value takes two compares of 16
    lanes and two population counts. More than 255 thresholds take a compare of 32 lanes more, more than 8,191 another of 16.
    """

    def __init__(self, f: Block, x: Node, ranked: RankedTrees) -> None:
        self.f, self.x, dtype, columns = f, x, x.type.dtype, len(ranked.column_feature)
        most = ranked.most_thresholds
        widths = [16] if most <= MOST_IN_PLANE else [32, 16] if most < 8192 else [16, 32, 16]
        # As many lines as the longest column fills. Room for all would lie in few sets of the caches: 32 KB a column.
        size, count = LINE, most // LINE + 1
        thresholds = np.full((columns, LINE * int(np.prod(widths))), np.inf, ranked.thresholds[0].dtype)
        for column, values in enumerate(ranked.thresholds):
            thresholds[column, : len(values)] = values
        self.lines, self.size = f.own(thresholds[:, : count * LINE], dtype), f.size(count * LINE)
        self.pivots: list[tuple[Array, int, Expr]] = []
        for width in reversed(widths):
            # A pivot is the last threshold of its part. The last part needs none: its pivot is +inf, which is never below x.
            last = thresholds[:, size - 1 :: size].reshape(columns, -1, width).copy()
            last[:, :, -1] = np.inf
            size, count = size * width, most // (size * width) + 1
            parts = count if size == thresholds.shape[1] else f.size(count)  # one at the top
            self.pivots.insert(0, (f.own(last[:, :count], dtype), width, parts * width))
        self.identity = np.array_equal(ranked.column_feature, np.arange(columns))
        self.features = f.own(ranked.column_feature, "i64")
        self.missing = f.own(ranked.missing_rank, "i64") if ranked.missing_rank.any() else None
        self.columns = f.size(columns)

    def fill(self, result: Any, first: Expr, end: Expr, places: Layout, some: Array | None = None) -> None:
        """Rank the rows from `first` to `end`. some: the columns to rank; None: all."""
        if some is not None and not len(some):
            return
        f, dtype = self.f, self.x.type.dtype
        chosen = None if some is None else f.own(some, "i64")
        with T.serial(first, end) as row, f.repeat(self.columns if some is None else f.size(len(some))) as index:
            column = index if chosen is None else T.Bind(f.constant(chosen, "i64", index))
            feature = column if self.identity else T.Bind(f.constant(self.features, "i64", column))
            value = T.Bind(f.read(self.x, [feature], Row(row)))
            at: Expr = tirx.const(0, "int64")
            for last, width, size in self.pivots:
                at = T.Bind(at * width + below(f, last, dtype, column * size + at * width, width, value))
            rank = at * LINE + below(f, self.lines, dtype, column * self.size + at * LINE, LINE, value)
            if self.missing is not None:  # until here, the rank of NaN is 0
                rank += tirx.Cast("int64", is_nan(value)) * f.constant(self.missing, "i64", column)
            if result.dtype == "uint8" and f.dialect.byte_masks:
                rank = rank - 128
            T.buffer_store(result, tirx.Cast(result.dtype, rank), [column * places.stride + row * places.row_stride])
