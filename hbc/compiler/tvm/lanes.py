"""Tree ensembles for a few rows: one row at a time, 64 trees in the lanes of a vector.

The scan of scan.py with the roles exchanged: the ranks of a row stand in one register (two for more than 64 planes), and a register
permutation gives each tree the rank that its next split asks for. Loads are consecutive, so the model streams from the cache
(tree-kernels.md §3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.codegen import Function
from hbc.compiler.tvm.expressions import Expr
from hbc.compiler.tvm.ranks import RankedTrees, lockstep
from hbc.compiler.tvm.vectors import permute, store, vector
from hbc.ir.types import Array

LANES = 64  # trees in a vector
MOST_VECTORS = 8  # in lockstep: independent chains that hide each other's latency
MOST_PLANES = 128


def fits_lanes(ranked: RankedTrees) -> bool:
    """Whether ranks, planes and leaves are bytes."""
    return ranked.planes <= MOST_PLANES and not ranked.tests_sets and int(ranked.leaf_counts.max(initial=1)) <= 256


@dataclass(frozen=True)
class PackedLanes:
    """Trees by size in groups of 64 · vectors; step by step one split of each, padded with splits that change nothing.

    group_starts i64[G + 1]; plane, rank, lo, mid u8[steps, 64 · vectors]. The trees stand in
    the order of scan.Packed.
    """

    vectors: int
    group_starts: Array
    plane: Array
    rank: Array
    lo: Array
    mid: Array


def pack_lanes(ranked: RankedTrees) -> PackedLanes:
    """The splits of `lockstep` groups as wide as the vectors."""
    vectors = min(MOST_VECTORS, max(1, -(-len(ranked.leaf_counts) // LANES)))
    steps = lockstep(ranked, LANES * vectors)
    splits = (ranked.split_plane, ranked.split_rank, ranked.split_lo, ranked.split_mid)
    return PackedLanes(vectors, steps.group_starts, *(steps.table(values, np.uint8) for values in splits))


class Lanes:
    """The code for one row: `run(row)` adds its leaves' integers to `sums` i64[outputs]."""

    def __init__(
        self,
        f: Function,
        ranked: RankedTrees,
        packed: PackedLanes,
        ranks: Any,
        integers: Array,
        target: Array,
        outputs: int,
    ) -> None:
        self.f, self.ranks, self.outputs = f, ranks, outputs
        self.planes, self.trees = ranked.planes, len(ranked.leaf_counts)
        self.vectors = packed.vectors
        self.groups = len(packed.group_starts) - 1
        self.starts = f.own(packed.group_starts, "i64")
        self.plane, self.rank = f.own(packed.plane, "u8"), f.own(packed.rank, "u8")
        self.lo, self.mid = f.own(packed.lo, "u8"), f.own(packed.mid, "u8")
        self.integers, self.width, self.vector_length = integers, integers.shape[2], integers.shape[1]
        self.target = f.own(target, "i64") if target.any() else None
        self.sums = T.alloc_buffer((outputs,), "int64")
        self.row_ranks = T.alloc_buffer((MOST_PLANES,), "uint8")
        self.reached = T.alloc_buffer((LANES * self.vectors,), "uint8")

    def run(self, row: Expr) -> None:
        f, width = self.f, LANES * self.vectors
        with f.repeat(self.outputs) as i:
            T.buffer_store(self.sums, tirx.const(0, "int64"), [i])
        with f.repeat(self.planes) as plane:
            T.buffer_store(self.row_ranks, self.ranks[plane * f.block + row], [plane])
        candidates = f.scratch(width, "u8")
        zero = tirx.Broadcast(tirx.const(0, "uint8"), LANES)
        with f.repeat(self.groups) as group:
            for i in range(self.vectors):
                store(candidates, zero, i * LANES, LANES)
            start = T.Bind(f.constant(self.starts, "i64", group))
            end = T.Bind(f.constant(self.starts, "i64", group + 1))
            with T.serial(start, end) as step:
                for i in range(self.vectors):
                    self._split(candidates, i, step * width + i * LANES)
            for i in range(self.vectors):
                store(self.reached, vector(candidates, i * LANES, LANES), i * LANES, LANES)
            self._add(group * width)

    def _split(self, candidates: Any, i: int, at: Expr) -> None:
        f = self.f
        registers = [vector(self.row_ranks, offset, LANES) for offset in range(0, self.planes, LANES)] or [
            vector(self.row_ranks, 0, LANES)
        ]
        value = permute(registers, f.constants(self.plane, "u8", at, LANES))
        lo, mid = f.constants(self.lo, "u8", at, LANES), f.constants(self.mid, "u8", at, LANES)
        leaf = vector(candidates, i * LANES, LANES)
        onward = tirx.Select(tirx.LT(f.constants(self.rank, "u8", at, LANES), value), mid, lo)
        store(candidates, tirx.Select(tirx.EQ(leaf, lo), onward, leaf), i * LANES, LANES)

    def _add(self, first: Expr) -> None:
        """The leaves' integers of the trees first …, one load each."""
        f = self.f
        count = tirx.Min(tirx.const(LANES * self.vectors, "int64"), tirx.const(self.trees, "int64") - first)
        with f.repeat(self.vector_length) as column:
            if self.target is None:
                total = T.alloc_buffer((1,), "int64", scope="local")
                T.buffer_store(total, self.sums[column], [0])
                with T.serial(tirx.const(0, "int64"), count) as lane:
                    T.buffer_store(total, tirx.Add(total[0], self._integer(first + lane, column, lane)), [0])
                T.buffer_store(self.sums, total[0], [column])
            else:
                with T.serial(tirx.const(0, "int64"), count) as lane:
                    place = T.Bind(f.constant(self.target, "i64", first + lane) + column)
                    value = self._integer(first + lane, column, lane)
                    T.buffer_store(self.sums, tirx.Add(self.sums[place], value), [place])

    def _integer(self, tree: Expr, column: Expr, lane: Expr) -> Expr:
        leaf = tirx.Cast("int64", self.reached[lane])
        return self.f.constant(self.integers, "i64", (tree * self.vector_length + column) * self.width + leaf)
