"""Ranks of a block's rows in shared memory, one byte for each row and plane (hbc/ops/tree_ranks.py says what a plane is).

The code computes, in each thread for its four rows:

    for column in ranked columns:
        at = 1
        for each level of the column's thresholds:                           # a binary search, for four rows at once
            at = 2 * at + (thresholds[at] < x[row, feature])                 # thresholds lie in level order
        for plane of the column:
            byte = nan_byte[plane] if isnan(x) else min(max(at - 2^levels - first[plane], 0), 255)
        bytes[plane][thread] = the bytes of four rows, one word

A thread reads its own words only, so no barrier is needed. The words of a plane lie thread after thread: whatever planes the threads of a
warp read, each reads from the bank of its own number, and a read is one wavefront.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.schedule import GpuTiles
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import is_nan
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees


@record
class PackedPlanes:
    """How rows become bytes. All arrays of integers are i64.

    feature [C]: the feature of each ranked column. levels [C]: the levels of its thresholds. start [C]: where those begin, less 1.
    thresholds: of all columns, each in level order and filled up with inf to 2^levels - 1. planes [C + 1]: column c has the planes
    planes[c]:planes[c + 1]. first [P]: the rank that is byte 0 of a plane. nan_byte [P]: the byte of NaN.
    number [P]: for each plane of `RankedTrees`, its number here, where the planes of a column lie together.
    """

    feature: Array
    levels: Array
    start: Array
    thresholds: Array
    planes: Array
    first: Array
    nan_byte: Array
    number: Array


def pack_planes(ranked: RankedTrees, dtype: str, bits: int = 8) -> PackedPlanes:
    """Pack the planes. dtype: of the thresholds. bits: of a rank; 16: a plane has all ranks of a column."""
    if bits == 16:
        whole, of = np.arange(len(ranked.thresholds)), np.zeros(len(ranked.thresholds), np.int64)
    else:
        whole, of = ranked.plane_column, ranked.plane_first
    columns = np.concatenate([whole, ranked.plane_column[ranked.below]]).astype(np.int64)
    order = np.argsort(columns, kind="stable")
    number = np.empty(len(columns), np.int64)
    number[order] = np.arange(len(columns))
    first = np.concatenate([of, ranked.plane_first[ranked.below]]).astype(np.int64)
    nan_byte = np.clip(ranked.missing_rank[columns] - first, 0, (1 << bits) - 1)
    nan_byte[len(whole) :] = 0
    levels = np.array([len(values).bit_length() for values in ranked.thresholds], np.int64)
    ends = np.cumsum(2**levels - 1)
    return PackedPlanes(
        feature=ranked.column_feature.astype(np.int64),
        levels=levels,
        start=ends - (2**levels - 1) - 1,
        thresholds=np.concatenate([np.zeros(0, NUMPY_DTYPES[dtype]), *map(_level_order, ranked.thresholds, levels.tolist())]),
        planes=np.searchsorted(columns[order], np.arange(len(levels) + 1)),
        first=first[order],
        nan_byte=nan_byte[order],
        number=number,
    )


def _level_order(values: Array, levels: int) -> Array:
    """Ascending values in the order of a perfect binary tree's levels, filled up with inf."""
    full = np.append(values, np.full(2**levels - 1 - len(values), np.inf, values.dtype))
    return np.concatenate(
        [full[:0], *(full[2 ** (levels - level - 1) - 1 :: 2 ** (levels - level)] for level in range(levels))]
    )


def words_of_plane(schedule: GpuTiles, bits: int) -> int:
    """The words in which a thread has the ranks of its rows in a plane."""
    return -(-schedule.rows_of_thread * bits // 32)


def fill_planes(f: Block, schedule: GpuTiles, x: Node, packed: PackedPlanes, bits: int = 8) -> None:
    """Emit the ranks of the thread's rows, of so many bits. They lie at the beginning of the block's shared memory."""
    dtype = x.type.dtype
    words = schedule.view("uint32")
    feature, levels, start, planes, first, nan_byte = (
        f.own(array, "i64")
        for array in (packed.feature, packed.levels, packed.start, packed.planes, packed.first, packed.nan_byte)
    )
    thresholds = f.own(packed.thresholds, dtype)
    count = schedule.rows_of_thread
    values = T.alloc_buffer((count,), DTYPES[dtype], scope="local")
    at, word = T.alloc_buffer((count,), "int32", scope="local"), T.alloc_buffer((1,), "uint32", scope="local")
    rows, zero, one = range(count), tirx.const(0, "int32"), tirx.const(1, "int32")

    def small(array: Array, position: Expr) -> Expr:
        return tirx.Cast("int32", f.constant(array, "i64", position))

    with schedule.columns(len(packed.feature)) as column:
        own = T.Bind(f.constant(feature, "i64", column))
        for row in rows:
            T.buffer_store(values, tirx.const(0, DTYPES[dtype]), [row])
            with T.If(tirx.LT(tirx.const(row, "int64"), f.rows)), T.Then():
                T.buffer_store(values, f.read(x, [own], Row(tirx.const(row, "int64"))), [row])
            T.buffer_store(at, one, [row])
        depth, begin = T.Bind(small(levels, column)), T.Bind(small(start, column))
        with T.serial(zero, depth):
            for row in rows:
                above = tirx.LT(f.constant(thresholds, dtype, tirx.Cast("int64", begin + at[row])), values[row])
                T.buffer_store(at, at[row] * 2 + tirx.Cast("int32", above), [row])
        lowest = T.Bind(tirx.shift_left(one, depth))
        with T.serial(f.constant(planes, "i64", column), f.constant(planes, "i64", column + 1)) as plane:
            least, missing = T.Bind(small(first, plane) + lowest), T.Bind(small(nan_byte, plane))
            parts = words_of_plane(schedule, bits)
            for part in range(parts):
                T.buffer_store(word, tirx.const(0, "uint32"), [0])
                for place, row in enumerate(rows[part * 32 // bits : (part + 1) * 32 // bits]):
                    rank = tirx.Min(tirx.Max(at[row] - least, zero), tirx.const((1 << bits) - 1, "int32"))
                    own_rank = tirx.Cast("uint32", tirx.Select(is_nan(values[row]), missing, rank))
                    shifted = tirx.shift_left(own_rank, tirx.const(bits * place, "uint32"))
                    T.buffer_store(word, tirx.bitwise_or(word[0], shifted), [0])
                at_word = (tirx.Cast("int32", plane) * parts + part) * schedule.words + schedule.word
                T.buffer_store(words, word[0], [at_word])
