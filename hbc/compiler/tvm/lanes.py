"""Tree ensembles for a few rows: one row, or four, at a time; 64 trees in the lanes of a vector.

The scan of scan.py with the roles exchanged: the ranks of a row stand in one register (two for more than 64 planes, four for more than
128), and a register permutation gives each tree the rank that its next split asks for. Loads are consecutive, so the model streams
from the cache, and its bytes are what a row costs: 25 of them a cycle from L2. So leaves have other numbers here, which save one byte of
four: the split at step j turns leaf lo into lo and, to the right, leaf j + 1, whatever the tree:

    leaf = where(leaf == lo, where(rank > split, j + 1, lo), leaf)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.codegen import Function
from hbc.compiler.tvm.expressions import Expr
from hbc.compiler.tvm.ranks import RankedTrees
from hbc.compiler.tvm.vectors import permute, store, vector
from hbc.ir.types import Array

LANES = 64  # trees in a vector
TOGETHER = 2  # vectors of trees in flight: independent chains that hide each other's latency
ROWS = 4  # that share the loads of the model
FIELDS = 3  # bytes of a split: plane, rank, lo
MOST_PLANES = 256
WORD = 8  # bytes loaded to read a leaf's integer, of which the last ones count


def fits_lanes(ranked: RankedTrees) -> bool:
    """Whether ranks, planes and leaves are bytes."""
    return ranked.planes <= MOST_PLANES and not ranked.tests_sets and int(ranked.leaf_counts.max(initial=1)) <= 256


@dataclass(frozen=True)
class PackedLanes:
    """Trees by size, 64 to a vector; `together` vectors in a group, which are scanned step by step: first all of them, then those
    that have steps left. Shorter trees of a vector are padded with splits where no row goes right.

    ends i64[groups, together + 1]: phase i, of together - i vectors, has the steps ends[i] … ends[i + 1]; starts i64[groups, together]:
    where in `splits` the phase's vectors would stand at step 0; splits u8[vectors and steps, 3, 64]: plane, rank, lo.
    first i32[64 · vectors]: where in `integers` the leaves of a tree begin (of lanes without a tree: at zeros); integers u8: leaf after
    leaf its `width` integers of `bytes` bytes, each the last bytes of the WORD that ends with it; target i64[64 · vectors].
    """

    together: int
    ends: Array
    starts: Array
    splits: Array
    bytes: int
    width: int
    first: Array
    integers: Array
    target: Array

    @property
    def vectors(self) -> int:
        return len(self.first) // LANES


def pack_lanes(ranked: RankedTrees, integers: Array, size: int, target: Array) -> PackedLanes:
    """integers i64[L, width], of `size` bytes, by the ensemble's numbers of leaves; the target of each tree. Vectorized."""
    counts = np.diff(ranked.starts).astype(np.int64)
    vectors = -(-len(counts) // LANES)
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))

    together = min(TOGETHER, max(vectors, 1))
    groups = -(-vectors // together)
    lengths = np.zeros(groups * together, np.int64)
    lengths[:vectors] = counts[order][::LANES]
    ends = np.concatenate([np.zeros((groups, 1), np.int64), lengths.reshape(groups, together)[:, ::-1]], axis=1)
    active = np.arange(together, 0, -1)
    blocks = np.diff(ends, axis=1) * active
    starts = (np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape) - ends[:, :-1] * active

    tree = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(tree)) - np.repeat(ranked.starts[:-1], counts)
    # A leaf is numbered by the split whose right side begins with it.
    number = np.zeros(len(ranked.leaves), np.int64)
    number[ranked.leaf_starts[tree] + ranked.split_mid] = step + 1
    splits = np.zeros((int(blocks.sum()), FIELDS, LANES), np.uint8)
    splits[:, 1] = 255  # no rank is greater
    group, member = np.divmod(place[tree] // LANES, together)
    phase = (step[:, None] >= ends[group, 1:]).sum(axis=1)
    block = starts[group, phase] + step * active[phase] + member
    lo = number[ranked.leaf_starts[tree] + ranked.split_lo]
    for field, values in enumerate((ranked.split_plane, ranked.split_rank, lo)):
        splits[block, field, place[tree] % LANES] = values

    width = integers.shape[1]
    renumbered = np.empty(len(ranked.leaves), np.int64)
    renumbered[np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts) + number] = ranked.leaves
    little = np.ascontiguousarray(integers[renumbered].astype("<i8")).view(np.uint8).reshape(-1, WORD)[:, :size].reshape(-1)
    zeros = np.zeros(WORD + (width - 1) * size, np.uint8)
    first = np.zeros(vectors * LANES, np.int32)
    first[place] = len(zeros) + ranked.leaf_starts[:-1] * (width * size) + size - WORD
    targets = np.zeros(vectors * LANES, np.int64)
    targets[place] = target
    return PackedLanes(together, ends, starts, splits, size, width, first, np.concatenate([zeros, little]), targets)


class Lanes:
    """The code for a few rows: `run(row, rows)` leaves the sums of their leaves' integers in `sums` i64[outputs, rows]."""

    def __init__(self, f: Function, packed: PackedLanes, planes: int, ranks: Any, outputs: int) -> None:
        self.f, self.packed, self.ranks, self.outputs, self.planes = f, packed, ranks, outputs, planes
        self.registers = next(count for count in (1, 2, 4) if planes <= count * LANES)
        self.ends, self.starts = f.own(packed.ends, "i64"), f.own(packed.starts, "i64")
        self.splits = f.own(packed.splits, "u8")
        self.first, self.integers = f.own(packed.first, "i32"), f.own(packed.integers, "u8")
        self.target = f.own(packed.target, "i64") if packed.target.any() else None
        self.sums = T.alloc_buffer((outputs * ROWS,), "int64")
        self.row_ranks = T.alloc_buffer((ROWS * self.registers * LANES,), "uint8")
        self.reached = T.alloc_buffer((ROWS * packed.together * LANES,), "uint8")
        self.places = T.alloc_buffer((packed.together * LANES,), "int32")
        # Buffers of one vector each, on the stack: LLVM makes them registers.
        self.candidates = [T.alloc_buffer((LANES,), "uint8") for _ in range(ROWS * packed.together)]
        self.right = T.alloc_buffer((LANES,), "uint8")
        self.total = T.alloc_buffer((1,), "int64")

    def totals(self, rows: int) -> Callable[[Expr], Expr]:
        """The sums of an output for all rows, i64, as a vector."""
        return lambda output: vector(self.sums, output * rows, rows)

    def run(self, row: Expr, rows: int) -> None:
        f, packed, together = self.f, self.packed, self.packed.together
        with f.repeat(self.outputs * rows) as i:
            T.buffer_store(self.sums, tirx.const(0, "int64"), [i])
        with f.repeat(self.planes) as plane:
            for r in range(rows):
                rank = self.ranks[plane * f.block + row + r]
                T.buffer_store(self.row_ranks, rank, [plane + r * self.registers * LANES])
        zero, one = (tirx.Broadcast(tirx.const(value, "uint8"), LANES) for value in (0, 1))
        # `origin` is 0. As a loop variable it keeps the accesses of vectors whole, which at a constant place TVM takes apart.
        with f.repeat(len(packed.ends)) as group, f.repeat(1) as origin:
            for candidate in self.candidates[: rows * together]:
                store(candidate, zero, origin, LANES)
            for phase in range(together):
                active = together - phase
                start = T.Bind(f.constant(self.starts, "i64", group * together + phase))
                first = T.Bind(f.constant(self.ends, "i64", group * (together + 1) + phase))
                end = T.Bind(f.constant(self.ends, "i64", group * (together + 1) + phase + 1))
                store(self.right, tirx.Broadcast(tirx.Cast("uint8", first + 1), LANES), origin, LANES)
                with T.serial(first, end) as step:
                    for member in range(active):
                        self._split(member, rows, (start + step * active + member) * (FIELDS * LANES), origin)
                    store(self.right, tirx.Add(vector(self.right, origin, LANES), one), origin, LANES)
            for slot, candidate in enumerate(self.candidates[: rows * together]):
                store(self.reached, vector(candidate, origin, LANES), origin + slot * LANES, LANES)
            self._add(group, rows)

    def _split(self, member: int, rows: int, at: Expr, origin: Expr) -> None:
        """One step of 64 trees for all rows."""
        f = self.f
        plane, split, lo = (f.constants(self.splits, "u8", at + field * LANES, LANES) for field in range(FIELDS))
        right = vector(self.right, origin, LANES)  # counted: LLVM would broadcast a number for every use
        for r in range(rows):
            first = origin + r * self.registers * LANES
            table = [vector(self.row_ranks, first + i * LANES, LANES) for i in range(self.registers)]
            candidate = self.candidates[r * self.packed.together + member]
            leaf = vector(candidate, origin, LANES)
            onward = tirx.Select(tirx.LT(split, permute(table, plane)), right, lo)
            store(candidate, tirx.Select(tirx.EQ(leaf, lo), onward, leaf), origin, LANES)

    def _add(self, group: Expr, rows: int) -> None:
        """The integers of the leaves that a group's trees reached."""
        f, packed, together = self.f, self.packed, self.packed.together
        trees = T.Bind(group * (together * LANES))
        size = tirx.Broadcast(tirx.const(packed.bytes * packed.width, "int32"), 16)
        # The number of vectors is one that LLVM does not know: it would unroll these loops, and gather with vector instructions.
        left = T.Bind(tirx.Min(tirx.const(together * LANES, "int64"), tirx.const(packed.vectors * LANES, "int64") - trees))
        for row in range(rows):
            start = row * together * LANES
            with T.serial(tirx.const(0, "int64"), left // 16) as part:
                leaf = tirx.Cast("int32x16", vector(self.reached, start + part * 16, 16))
                place = tirx.Add(f.constants(self.first, "i32", trees + part * 16, 16), tirx.Mul(leaf, size))
                store(self.places, place, part * 16, 16)
            with f.repeat(packed.width) as column:
                if self.target is None:
                    T.buffer_store(self.total, self.sums[column * rows + row], [0])
                    with T.serial(tirx.const(0, "int64"), left) as tree:
                        T.buffer_store(self.total, tirx.Add(self.total[0], self._integer(tree, column)), [0])
                    T.buffer_store(self.sums, self.total[0], [column * rows + row])
                else:
                    with T.serial(tirx.const(0, "int64"), left) as tree:
                        at = T.Bind((f.constant(self.target, "i64", trees + tree) + column) * rows + row)
                        T.buffer_store(self.sums, tirx.Add(self.sums[at], self._integer(tree, column)), [at])

    def _integer(self, tree: Expr, column: Expr) -> Expr:
        at = tirx.Cast("int64", self.places[tree]) + column * self.packed.bytes
        word = tirx.reinterpret("int64", self.f.constants(self.integers, "u8", at, WORD))
        return tirx.shift_right(word, tirx.const(64 - 8 * self.packed.bytes, "int64"))
