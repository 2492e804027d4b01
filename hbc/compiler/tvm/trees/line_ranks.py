"""Ranks of columns by lines of eight thresholds: the pivots below a value, the last thresholds of lines, say in which line to count.

The pivots are searched or counted for 16 rows at once, the lines row by row: a compare of a register of 256 bits and a mask of its signs.
That suits processors without compares into masks (AVX2), or with slow ones (Zen 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import broadcast, store, vector
from hbc.compiler.tvm.trees.column_tiles import CHUNK, ColumnTiles
from hbc.ir.types import Array
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

LINE = 8  # thresholds in a line
PIVOTS = 32  # of a column
LESS = 17  # the number of AVX's compare `<` that is false for NaN
PART = 16  # rows whose pivots are searched together


def suits(f: Block, ranked: RankedTrees, dtype: str) -> bool:
    """Whether this search has code for the columns of an ensemble: float32 numbers, and ranks of a byte."""
    return (
        dtype == "f32"
        and ranked.most_thresholds <= MOST_IN_PLANE
        and f.dialect.byte_masks
        and (f.dialect.wide or f.dialect.byte_lookup)
    )


class LineSearch:
    """Emits the ranks of columns that `suits` lets pass, for 64 rows of a tile."""

    def __init__(self, f: Block, ranked: RankedTrees, columns: Array, tiles: ColumnTiles) -> None:
        self.f = f
        columns, places, starts = tiles.ordered(columns)
        edges = [ranked.thresholds[column] for column in columns]
        pivots = np.array([len(own) // LINE for own in edges], np.int64)
        # A column has a line more than pivots: behind the last pivot there may be some thresholds.
        first = np.concatenate([[0], np.cumsum(pivots + 1)]) * LINE
        lines, table = np.full(first[-1], np.inf, np.float32), np.full((len(columns), PIVOTS), np.inf, np.float32)
        for i, own in enumerate(edges):
            lines[first[i] : first[i] + len(own)] = own
            table[i, : pivots[i]] = own[LINE - 1 :: LINE]
        missing = ranked.missing_rank[columns]
        self.missing = f.own(missing, "i32") if missing.any() else None
        self.columns, self.places, self.starts = (f.own(array, "i64") for array in (columns, places, starts))
        self.lines, self.pivots = f.own(lines, "f32"), f.own(table, "f32")
        self.first, self.counts = f.own(first[:-1], "i64"), f.own(pivots, "i64")
        self.before, self.below = (T.alloc_buffer((CHUNK,), "uint8") for _ in range(2))
        self.at = T.alloc_buffer((CHUNK,), "int32")
        # One buffer for each register: see PiecesScan.
        self.registers = [] if f.dialect.wide else [T.alloc_buffer((PART,), "int32") for _ in range(CHUNK // PART)]

    def emit(self, result: Any, numbers: Any, first: Expr, rows: Expr, tile: Expr) -> None:
        """Emit the ranks of the tile's columns, u8 as planes hold them, for all rows of the chunk that begins at `first`: also behind the
        first `rows`, where other searches write later."""
        f = self.f
        begin, end = (T.Bind(f.constant(self.starts, "i64", tile + i)) for i in range(2))
        with T.serial(begin, end) as place:
            values = T.Bind(f.constant(self.places, "i64", place) * CHUNK)
            start = T.Bind(f.constant(self.first, "i64", place))
            pivots = self._searched if f.dialect.wide else self._counted
            for part, below in pivots(numbers, values, place):
                before = T.Bind(tirx.Mul(below, broadcast(tirx.const(LINE, "int32"), PART)))
                store(self.at, before, part * PART, PART)
                if self.missing is not None:  # until here, the rank of NaN is 0
                    value = vector(numbers, values + part * PART, PART)
                    own = broadcast(f.constant(self.missing, "i32", place), PART)
                    before = tirx.Select(tirx.EQ(value, value), before, own)
                store(self.before, tirx.Cast(f"uint8x{PART}", before), part * PART, PART)
            with f.repeat(CHUNK) as row:
                line = f.constants(self.lines, "f32", start + tirx.Cast("int64", self.at[row]), LINE)
                value = broadcast(numbers[values + row], LINE)
                less = tirx.call_llvm_pure_intrin("float32x8", "llvm.x86.avx.cmp.ps.256", line, value, tirx.const(LESS, "int8"))
                bits = tirx.call_llvm_pure_intrin("int32", "llvm.x86.avx.movmsk.ps.256", less)
                T.buffer_store(self.below, tirx.Cast("uint8", bits), [row])
            ones = tirx.call_llvm_pure_intrin("uint8x64", "llvm.ctpop.v64i8", vector(self.below, 0, CHUNK))
            rank = tirx.Add(vector(self.before, 0, CHUNK), ones)
            held = tirx.bitwise_xor(rank, broadcast(tirx.const(128, "uint8"), CHUNK))  # signed, see planes.held
            store(result, held, T.Bind(f.constant(self.columns, "i64", place)) * f.block + first, CHUNK)

    def _searched(self, numbers: Any, values: Expr, place: Expr) -> Iterator[tuple[Expr, Expr]]:
        """(part 0 … 3 of the 64 rows, how many of the column's pivots are below each of its 16 values): a binary search (AVX-512)."""
        f = self.f
        table = [T.Bind(f.constants(self.pivots, "f32", place * PIVOTS + at, PART)) for at in (0, PART)]
        with f.repeat(CHUNK // PART) as part:
            value = T.Bind(vector(numbers, values + part * PART, PART))
            below = T.Bind(broadcast(tirx.const(0, "int32"), PART))
            for step in (16, 8, 4, 2, 1):
                at = tirx.Add(below, broadcast(tirx.const(step - 1, "int32"), PART))
                pivot = tirx.call_llvm_pure_intrin("float32x16", "llvm.x86.avx512.vpermi2var.ps.512", table[0], at, table[1])
                onward = tirx.Add(below, broadcast(tirx.const(step, "int32"), PART))
                below = T.Bind(tirx.Select(tirx.LT(pivot, value), onward, below))
            yield part, below

    def _counted(self, numbers: Any, values: Expr, place: Expr) -> Iterator[tuple[Expr, Expr]]:
        """The same by counting the pivots that the column has, for all rows together (AVX2, whose registers hold 8 pivots)."""
        f = self.f
        zero, one = (broadcast(tirx.const(value, "int32"), PART) for value in (0, 1))
        with f.repeat(1) as origin:
            for register in self.registers:
                store(register, zero, origin, PART)
            with f.repeat(T.Bind(f.constant(self.counts, "i64", place))) as at:
                pivot = T.Bind(broadcast(f.constant(self.pivots, "f32", place * PIVOTS + at), PART))
                for part, register in enumerate(self.registers):
                    value = vector(numbers, values + part * PART, PART)
                    more = tirx.Select(tirx.LT(pivot, value), one, zero)
                    store(register, tirx.Add(vector(register, origin, PART), more), origin, PART)
            for part, register in enumerate(self.registers):
                yield part, vector(register, origin, PART)
