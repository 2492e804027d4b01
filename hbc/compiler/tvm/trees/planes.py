"""The planes of a block of rows. A plane has a byte for each row, the rank that splits compare (docs/tree-kernels.md §1).

    rank[row]    = number of the column's thresholds that are < x[row, feature]; NaN gets missing_rank
    plane[row]   = rank[row]                                                 # at most 255 thresholds
                 = min(max(rank[row] - first, 0), 255)                       # more: several planes, first = 0, 255, 510, …
    plane'[row]  = 0 if plane[row] == 255 else plane[row]                    # a feature whose NaN go both ways: NaN below all

64 rows of a plane are consecutive, so that splits load them as one vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import is_nan
from hbc.compiler.tvm.tir.vectors import broadcast, many, store, vector
from hbc.compiler.tvm.trees.counted_ranks import CountedRanks
from hbc.compiler.tvm.trees.register_ranks import RegisterRanks, below
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

ROWS_IN_VECTOR = 64  # rows in a vector of bytes


def held(f: Block, byte: Expr, lanes: int = 1) -> Expr:
    """A byte 0…255 as planes hold it. Applied to a byte of a plane, it returns 0…255 again.

    Planes hold byte - 128 where compares give bytes (`Dialect.byte_masks`), since those instructions compare signed numbers.
    """
    return tirx.bitwise_xor(byte, broadcast(tirx.const(128, "uint8"), lanes)) if f.dialect.byte_masks else byte


def comparable(f: Block, bytes_: Expr, lanes: int) -> Expr:
    """Bytes of a plane with the dtype for which `<` is right."""
    return tirx.reinterpret(many("int8", lanes), bytes_) if f.dialect.byte_masks else bytes_


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
    if places is None:
        places = Layout(tirx.const(False, "bool"), tirx.const(f.block, "int64"), tirx.const(1, "int64"))
    result = T.alloc_buffer((few_sizes(planes + more) * f.block,), "uint8")
    if not planes:
        return result
    # Vectors of a plane. Where a row's planes lie together, the next plane overwrites all of a vector but its first byte.
    parts = T.Bind(tirx.Select(places.together, rows, (rows + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR))
    size = T.Bind(tirx.Select(places.together, places.row_stride, width))
    lowest, highest = (tirx.Broadcast(held(f, tirx.const(value, "uint8")), ROWS_IN_VECTOR) for value in (0, MOST_IN_PLANE))
    if ranked.most_thresholds <= MOST_IN_PLANE:
        _rank(f, x, ranked, result, rows, places)
    else:
        ranks = T.alloc_buffer((few_sizes(len(ranked.column_feature)) * f.block,), "uint16")
        _rank(f, x, ranked, ranks, rows, places)
        columns, firsts = f.own(ranked.plane_column, "i64"), f.own(ranked.plane_first, "i64")
        with f.repeat(f.size(len(ranked.plane_column))) as plane:
            start = T.Bind(f.constant(columns, "i64", plane) * places.stride)
            first = T.Bind(broadcast(tirx.Cast("uint16", f.constant(firsts, "i64", plane)), ROWS_IN_VECTOR))
            with T.serial(tirx.const(0, "int64"), parts) as part:
                rank = tirx.Max(vector(ranks, start + part * size, ROWS_IN_VECTOR), first)
                above = tirx.Min(tirx.Sub(rank, first), broadcast(tirx.const(MOST_IN_PLANE, "uint16"), ROWS_IN_VECTOR))
                store(
                    result,
                    held(f, tirx.Cast(many("uint8", ROWS_IN_VECTOR), above), ROWS_IN_VECTOR),
                    plane * places.stride + part * size,
                    ROWS_IN_VECTOR,
                )
    if len(ranked.below):
        first_below, sources = f.size(len(ranked.plane_column)), f.own(ranked.below, "i64")
        with f.repeat(f.size(len(ranked.below))) as plane:
            source = T.Bind(f.constant(sources, "i64", plane) * places.stride)
            copy = T.Bind((first_below + plane) * places.stride)
            with T.serial(tirx.const(0, "int64"), parts) as part:
                byte = T.Bind(vector(result, source + part * size, ROWS_IN_VECTOR))
                store(result, tirx.Select(tirx.EQ(byte, highest), lowest, byte), copy + part * size, ROWS_IN_VECTOR)
    return result


def _rank(f: Block, x: Node, ranked: RankedTrees, result: Any, rows: Expr, places: Layout) -> None:
    """Emit the ranks of all columns of the first `rows` rows: many rows by searches in registers where the processor has them."""
    search, registers, counted = Search(f, x, ranked), RegisterRanks(f, x, ranked), CountedRanks(f, x, ranked)
    zero = tirx.const(0, "int64")
    done = registers.fill(result, rows)
    in_lines = ranked.most_thresholds <= MOST_IN_PLANE and f.dialect.byte_masks and x.type.dtype == "f32"
    if not f.dialect.wide:
        in_lines = in_lines and f.dialect.byte_lookup and len(registers.others) <= MOST_COLUMNS_TURNED
        done = T.Bind(rows // ROWS_IN_VECTOR * ROWS_IN_VECTOR) if in_lines else done
    if len(registers.others):
        if in_lines:
            _rank_many(f, x, ranked, result, done, registers.others)
        else:
            search.fill(result, zero, done, places, registers.others)
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
        self.capacity = 16 * int(np.prod(widths))
        thresholds = np.full((columns, self.capacity), np.inf, ranked.thresholds[0].dtype)
        for column, values in enumerate(ranked.thresholds):
            thresholds[column, : len(values)] = values
        self.lines = f.own(thresholds, dtype)
        self.pivots = []
        size = self.capacity
        for count in widths:
            # A pivot is the last threshold of its part. The last part needs none: its pivot is +inf, which is never below x.
            size //= count
            last = thresholds[:, size - 1 :: size].reshape(columns, -1, count).copy()
            last[:, :, -1] = np.inf
            self.pivots.append((f.own(last, dtype), count, last.shape[1]))
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
            for last, count, parts in self.pivots:
                at = T.Bind(at * count + below(f, last, dtype, (column * parts + at) * count, count, value))
            rank = at * 16 + below(f, self.lines, dtype, (column * (self.capacity // 16) + at) * 16, 16, value)
            if self.missing is not None:  # until here, the rank of NaN is 0
                rank += tirx.Cast("int64", is_nan(value)) * f.constant(self.missing, "i64", column)
            if result.dtype == "uint8" and f.dialect.byte_masks:
                rank = rank - 128
            T.buffer_store(result, tirx.Cast(result.dtype, rank), [column * places.stride + row * places.row_stride])


LINE = 8  # thresholds in a line
LESS = 17  # the number of AVX's compare `<` that is false for NaN
MOST_COLUMNS_TURNED = 4096
"""With AVX2, the most columns of which 64 rows are ranked at once: their numbers take 1 MB. Scans of 10,000 rows take 0.90 times as long so
(500 trees of 31 leaves, 28 columns), and 0.53 times over 2,000 columns (Zen 3)."""


def _rank_many(f: Block, x: Node, ranked: RankedTrees, result: Any, rows: Expr, some: Array) -> None:
    """The same as `Search`, for some columns, one by one for 64 rows at once: for processors with slow compares into masks (Zen 4), or
    without masks (AVX2).

    For float32 with at most 255 thresholds. The pivots below a value say in which line of 8 thresholds to count: a binary search among 32
    pivots, for 16 values at once; with AVX2, whose registers hold 8 pivots, all pivots of the column are counted.
    """
    columns = len(some)
    thresholds = np.full((columns, 32 * LINE), np.inf, np.float32)
    for place, column in enumerate(some):
        thresholds[place, : len(ranked.thresholds[column])] = ranked.thresholds[column]
    last = thresholds[:, LINE - 1 :: LINE].copy()
    last[:, -1] = np.inf
    lines, pivots = f.own(thresholds, "f32"), f.own(last, "f32")
    counts = f.own(np.isfinite(last).sum(axis=1), "i64")
    features, results = f.own(ranked.column_feature[some], "i64"), f.own(some, "i64")
    missing = f.own(ranked.missing_rank[some], "i32") if ranked.missing_rank[some].any() else None
    count = f.size(columns)
    turned = T.alloc_buffer((few_sizes(columns) * ROWS_IN_VECTOR,), "float32")
    places, before, less = (T.alloc_buffer((ROWS_IN_VECTOR,), dtype) for dtype in ("int32", "uint8", "uint8"))
    # One buffer for each register: see PiecesScan.
    counted = [T.alloc_buffer((16,), "int32") for _ in range(ROWS_IN_VECTOR // 16)] if not f.dialect.wide else []
    chunks = T.Bind((rows + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR)
    with T.serial(tirx.const(0, "int64"), chunks) as chunk:
        first = T.Bind(chunk * ROWS_IN_VECTOR)
        there = T.Bind(tirx.Min(rows - first, tirx.const(ROWS_IN_VECTOR, "int64")))
        with f.repeat(there) as row, f.repeat(count) as column:
            feature = T.Bind(f.constant(features, "i64", column))
            T.buffer_store(turned, f.read(x, [feature], Row(first + row)), [column * ROWS_IN_VECTOR + row])
        with f.repeat(count) as column:
            if f.dialect.wide:
                parts = _searched_pivots(f, pivots, turned, column)
            else:
                parts = _counted_pivots(f, pivots, f.constant(counts, "i64", column), turned, column, counted)
            for part, pivots_below in parts:
                place = T.Bind(tirx.Mul(pivots_below, broadcast(tirx.const(LINE, "int32"), 16)))
                store(places, place, part * 16, 16)
                if missing is not None:  # until here, the rank of NaN is 0
                    value = vector(turned, column * ROWS_IN_VECTOR + part * 16, 16)
                    place = tirx.Select(tirx.EQ(value, value), place, broadcast(f.constant(missing, "i32", column), 16))
                store(before, tirx.Cast("uint8x16", place), part * 16, 16)
            with f.repeat(ROWS_IN_VECTOR) as row:
                line = f.constants(lines, "f32", column * (32 * LINE) + tirx.Cast("int64", places[row]), LINE)
                value = broadcast(turned[column * ROWS_IN_VECTOR + row], LINE)
                below_ = tirx.call_llvm_pure_intrin(
                    "float32x8", "llvm.x86.avx.cmp.ps.256", line, value, tirx.const(LESS, "int8")
                )
                bits = tirx.call_llvm_pure_intrin("int32", "llvm.x86.avx.movmsk.ps.256", below_)
                T.buffer_store(less, tirx.Cast("uint8", bits), [row])
            ones = tirx.call_llvm_pure_intrin("uint8x64", "llvm.ctpop.v64i8", vector(less, 0, ROWS_IN_VECTOR))
            store(
                result,
                held(f, tirx.Add(vector(before, 0, ROWS_IN_VECTOR), ones), ROWS_IN_VECTOR),
                T.Bind(f.constant(results, "i64", column)) * f.block + first,
                ROWS_IN_VECTOR,
            )


def _searched_pivots(f: Block, pivots: Array, turned: Any, column: Expr) -> Iterator[tuple[Expr, Expr]]:
    """(part 0 … 3 of the 64 rows, how many of the column's 32 pivots are below each of its 16 values): a binary search (AVX-512)."""
    table = [T.Bind(f.constants(pivots, "f32", column * 32 + at, 16)) for at in (0, 16)]
    with f.repeat(ROWS_IN_VECTOR // 16) as part:
        value = T.Bind(vector(turned, column * ROWS_IN_VECTOR + part * 16, 16))
        place = T.Bind(broadcast(tirx.const(0, "int32"), 16))
        for step in (16, 8, 4, 2, 1):
            at = tirx.Add(place, broadcast(tirx.const(step - 1, "int32"), 16))
            pivot = tirx.call_llvm_pure_intrin("float32x16", "llvm.x86.avx512.vpermi2var.ps.512", table[0], at, table[1])
            onward = tirx.Add(place, broadcast(tirx.const(step, "int32"), 16))
            place = T.Bind(tirx.Select(tirx.LT(pivot, value), onward, place))
        yield part, place


def _counted_pivots(
    f: Block, pivots: Array, number: Expr, turned: Any, column: Expr, registers: list[Any]
) -> Iterator[tuple[Expr, Expr]]:
    """The same for the first `number` of the column's pivots, by counting them for all rows together (AVX2)."""
    zero, one = (broadcast(tirx.const(value, "int32"), 16) for value in (0, 1))
    with f.repeat(1) as origin:
        for register in registers:
            store(register, zero, origin, 16)
        with f.repeat(T.Bind(number)) as at:
            pivot = T.Bind(broadcast(f.constant(pivots, "f32", column * 32 + at), 16))
            for part, register in enumerate(registers):
                value = vector(turned, column * ROWS_IN_VECTOR + part * 16, 16)
                more = tirx.Select(tirx.LT(pivot, value), one, zero)
                store(register, tirx.Add(vector(register, origin, 16), more), origin, 16)
        for part, register in enumerate(registers):
            yield part, vector(register, origin, 16)
