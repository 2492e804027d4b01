"""The code that turns rows into the bytes that splits compare."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.codegen import Function, Row
from hbc.compiler.tvm.expressions import Expr, is_nan
from hbc.compiler.tvm.tables import few_sizes
from hbc.compiler.tvm.vectors import broadcast, many, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree_ranks import PLANE, RankedTrees

CHUNK = 64  # rows of a vector of bytes


def held(f: Function, byte: Expr, lanes: int = 1) -> Expr:
    """A byte 0…255 of a plane as it is kept, or the other way round: less 128 where compares give bytes, since those compare signed
    numbers."""
    return tirx.bitwise_xor(byte, broadcast(tirx.const(128, "uint8"), lanes)) if f.dialect.byte_masks else byte


def comparable(f: Function, bytes_: Expr, lanes: int) -> Expr:
    """Bytes that are kept so, for `<`."""
    return tirx.reinterpret(many("int8", lanes), bytes_) if f.dialect.byte_masks else bytes_


def rank_planes(f: Function, x: Node, ranked: RankedTrees, more: int, rows: Expr) -> Any:
    """The bytes that splits compare, plane after plane: a buffer u8[(planes + more) · block], for the first rows of the block. The
    bytes stand for signed ones (`signed`)."""
    planes = ranked.planes
    result = T.alloc_buffer((few_sizes(planes + more) * f.block,), "uint8")
    if not planes:
        return result
    chunks = T.Bind((rows + (CHUNK - 1)) // CHUNK)
    lowest, highest = (tirx.Broadcast(held(f, tirx.const(value, "uint8")), CHUNK) for value in (0, PLANE))
    if ranked.most_thresholds <= PLANE:
        _rank(f, x, ranked, result, rows, 1)
    else:
        ranks = T.alloc_buffer((few_sizes(len(ranked.column_feature)) * f.block,), "uint16")
        _rank(f, x, ranked, ranks, rows, 2 if ranked.most_thresholds < 8192 else 3)
        columns, firsts = f.own(ranked.plane_column, "i64"), f.own(ranked.plane_first, "i64")
        with f.repeat(f.size(len(ranked.plane_column))) as plane:
            start = T.Bind(f.constant(columns, "i64", plane) * f.block)
            first = T.Bind(broadcast(tirx.Cast("uint16", f.constant(firsts, "i64", plane)), CHUNK))
            with T.serial(tirx.const(0, "int64"), chunks) as chunk:
                rank = tirx.Max(vector(ranks, start + chunk * CHUNK, CHUNK), first)
                above = tirx.Min(tirx.Sub(rank, first), broadcast(tirx.const(PLANE, "uint16"), CHUNK))
                store(result, held(f, tirx.Cast(many("uint8", CHUNK), above), CHUNK), plane * f.block + chunk * CHUNK, CHUNK)
    if len(ranked.below):
        first_below, sources = f.size(len(ranked.plane_column)), f.own(ranked.below, "i64")
        with f.repeat(f.size(len(ranked.below))) as plane:
            source = T.Bind(f.constant(sources, "i64", plane) * f.block)
            target = T.Bind((first_below + plane) * f.block)
            with T.serial(tirx.const(0, "int64"), chunks) as chunk:
                byte = T.Bind(vector(result, source + chunk * CHUNK, CHUNK))
                store(result, tirx.Select(tirx.EQ(byte, highest), lowest, byte), target + chunk * CHUNK, CHUNK)
    return result


def _rank(f: Function, x: Node, ranked: RankedTrees, result: Any, rows: Expr, levels: int) -> None:
    """The number of thresholds below each value, of each column.

    A search tree: the number of pivots below x says in which line of 16 thresholds to count. Two compares of 16 lanes and two
    population counts a value; one more of 32 for more than 255 thresholds, and another of 16 for more than 8,191.
    """
    dtype, columns = x.type.dtype, len(ranked.column_feature)
    widths = {1: [16], 2: [32, 16], 3: [16, 32, 16]}[levels]
    capacity = 16 * int(np.prod(widths))
    thresholds = np.full((columns, capacity), np.inf, ranked.thresholds[0].dtype)
    for column, values in enumerate(ranked.thresholds):
        thresholds[column, : len(values)] = values
    lines = f.own(thresholds, dtype)
    pivots = []
    size = capacity
    for count in widths:
        # A pivot is the last threshold of its part; the last part needs none, and +inf is never below x.
        size //= count
        last = thresholds[:, size - 1 :: size].reshape(columns, -1, count).copy()
        last[:, :, -1] = np.inf
        pivots.append((f.own(last, dtype), count, last.shape[1]))
    identity = np.array_equal(ranked.column_feature, np.arange(columns))
    features = f.own(ranked.column_feature, "i64")
    missing = f.own(ranked.missing_rank, "i64") if ranked.missing_rank.any() else None
    with T.serial(tirx.const(0, "int64"), rows) as row, f.repeat(f.size(columns)) as column:
        value = T.Bind(f.read(x, [column if identity else T.Bind(f.constant(features, "i64", column))], Row(row)))
        at: Expr = tirx.const(0, "int64")
        for last, count, parts in pivots:
            at = T.Bind(at * count + below(f, last, dtype, (column * parts + at) * count, count, value))
        rank = at * 16 + below(f, lines, dtype, (column * (capacity // 16) + at) * 16, 16, value)
        if missing is not None:
            rank += tirx.Cast("int64", is_nan(value)) * f.constant(missing, "i64", column)  # so far, NaN's is 0
        if result.dtype == "uint8" and f.dialect.byte_masks:
            rank = rank - 128
        T.buffer_store(result, tirx.Cast(result.dtype, rank), [column * f.block + row])


def below(f: Function, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """How many of `count` consecutive elements are < value."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    counted = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{count}i32", tirx.Cast(f"int32x{count}", less))
    return tirx.Cast("int64", counted)
