"""Tree ensembles for a few rows: one row, or four, at a time, with 64 trees in the lanes of a vector.

It is the scan of scan.py with the roles of rows and trees exchanged. The code computes:

    ranks = the row's ranks, one byte a plane, in registers                 # one for 64 planes, 16 at most
    for 64 trees:
        leaf[tree] = 0
        for step j: plane, split, lo = the trees' next splits               # 3 · 64 consecutive bytes
            rank = permute(ranks, plane)                                    # each tree gets the rank that its split asks for
            leaf = where(leaf == lo, where(rank > split, j + 1, lo), leaf)
        sums += integers[tree, leaf[tree]]                              # leaf_rows.py

Loads are consecutive, so the model streams from the cache. The time of a row is the time to load the model's bytes.
Leaves are numbered so that the split at step j turns leaf lo into lo and, to the right, j + 1 (hbc/ops/tree_ranks.py). That is the same
number for all 64 trees, so it isn't stored, which saves one byte of four. Where there are more than 256 planes, a split has a fourth byte
after all: the page of its plane. A look-up takes a permutation for each two registers, and chooses by bits of the page.

A split that tests a category set compares no rank (its rank is 255). It goes right if the row's mask has its bit. A byte of the mask has
the bits of eight steps of one tree, so a step takes one bit of 64 consecutive bytes:

    mask      = or of the masks of the row's categories                     # once a row
    leaf      = where(leaf == lo, where(rank > split or mask & 1 << step % 8, j + 1, lo), leaf)

AVX-512 VBMI permutes 64 bytes at once. AVX2 looks up among 16 bytes in two halves of 32 trees, so that up to 128 planes are fast
enough: one row of 500 trees of 31 leaves takes 1.3 µs, where walks take 4.9 (Zen 3 at 3.1 GHz).

The limit of that row on Zen 3 is what the second-level cache gives, 32 bytes a cycle: 720 cache lines of splits, 250 of leaves
(likely_leaves.py), 60 of thresholds. They take 2,060 cycles or 0.66 µs; the scan and the leaves alone, 0.63, took 0.70 in C. The
instructions take less: 480 half vectors of 9 (eight of vectors, which have four pipes) and 500 leaves of 5 take 1,500 cycles. Beside them
are some 0.05 µs of Python, 0.1 of the entry and the reading of sizes, 0.1 of ranks, 0.05 of the sigmoid, 0.04 of its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import as_signed, look_up_apart, once_if, permute, permute_halves, shuffled, store, vector
from hbc.compiler.tvm.trees.categories import Codes, PackedSets
from hbc.compiler.tvm.trees.leaves.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.leaves.leaf_rows import LeafRows
from hbc.compiler.tvm.trees.ranks.planes import PART, Layout, held
from hbc.compiler.tvm.trees.scan.packed_lanes import (
    FIELDS,
    PAGE,
    STEPS_IN_BYTE,
    TREES_IN_VECTOR,
    PackedLanes,
    compares_signed,
    look_ups_apart,
)
from hbc.ir.graph import Node
from hbc.ir.types import Array, DType
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

ROWS_TOGETHER = 4  # rows at a time, which share the loads of the model
MOST_PLANES = 1024
"""The most planes of a row: 16 registers. One row of 200 trees of 31 leaves, scanned and walked: 2.8 and 4.2 µs over 300 columns, 3.9 and
5.4 over 1,000 (Sapphire Rapids, on a shared core)."""
REGISTERS = (1, 2, 4, 6, 8, 12, 16)
"""The registers that may hold the ranks of a row. The code has one of these numbers, the least that is enough."""
MOST_LEAVES_IN_LANES = 256
MOST_PLANES_IN_HALVES = 128  # with AVX2, whose look-ups are of 16 bytes: each 16 planes take one more
SPLITS_FOR_A_STEP = 16
"""With AVX2, the splits scanned here in the time of a step of a walk. One row, scanned and walked: 500 trees of depth 8 and 55 leaves on
average, 9 splits for a step, 6.0 and 11.7 µs; 500 of 255 leaves, 12 for a step, 13 and 22; 40 forest trees of depth 8, 21 for a step, 2.8
and 2.7; 300 of them, 25 for a step, 6.6 and 5.4 (Zen 3)."""
FEW_PLANES, SPLITS_OF_MANY_PLANES = 64, 6
"""More planes than FEW_PLANES: the splits scanned in the time of a step. Over 100 planes, 4 for a step, 1.9 and 2.7 µs; over 120, 7 for a
step, 2.9 and 2.8, and 9 for a step, 2.3 and 2.2."""
CYCLES_OF_STEP = 2.3  # of a step of a walk of one row
MOST_MASK_BYTES = 32 << 20
"""The most bytes of `PackedLanes.masks`. One row of 500 trees of 31 leaves and five columns of 900 categories, whose masks take 8 MB: 1.4
µs, and walked 87 (Zen 4; 1.5 and 143 with VBMI)."""
SETS_OF_STEP = 15
"""The category sets whose keys a walk makes in the time of a step."""
COLUMNS_OF_SPLIT = 24
"""The columns of categories whose masks are joined in the time of a scan: 0.4 ns for 32 bytes, which are the bits of 256 splits."""
HALF = TREES_IN_VECTOR // 2  # trees in a register of AVX2
TREES_ADDED = ROWS_TOGETHER
"""Trees whose leaves are read at once: their f64 fill a register of AVX2. With eight in a register of AVX-512, LLVM keeps the addresses of
the leaves on the stack: one row of 500 trees of 31 leaves took 906 to 939 ns, and takes 886 (Zen 4)."""


def fits_lanes(op: TreeEnsemble, ranked: RankedTrees, sets: PackedSets | None, dialect: Dialect) -> bool:
    """Whether an ensemble can run here: bytes number the leaves, the processor looks up a byte for each tree among so many planes, and the
    masks of category sets take no more than MOST_MASK_BYTES. With AVX2, and with more than 256 planes, also whether this is faster than
    walking."""
    most = MOST_PLANES if dialect.byte_permute else MOST_PLANES_IN_HALVES if dialect.byte_lookup else -1
    if ranked.planes > most or int(ranked.leaf_counts.max(initial=1)) > MOST_LEAVES_IN_LANES:
        return False
    steps, splits = int(op.depths.sum()), splits_in_lanes(ranked)
    if sets is not None:
        # One bit a split, for each category.
        if int(sets.counts.sum()) * splits > 8 * MOST_MASK_BYTES:
            return False
        steps += len(sets.set_column) // SETS_OF_STEP
        splits += splits * len(sets.columns) // COLUMNS_OF_SPLIT
    if not dialect.byte_permute and not halves_pay(ranked.planes, splits, steps):
        return False
    longest = int(np.sort(op.leaf_counts - 1)[::-TREES_IN_VECTOR].sum())
    return ranked.planes <= PAGE or pages_pay(ranked.planes, longest, steps)


def splits_in_lanes(ranked: RankedTrees) -> int:
    """The splits of all lanes, and one more each. A lane with a smaller tree, or with none, takes as long as the others."""
    return int(np.sort(ranked.leaf_counts)[::-TREES_IN_VECTOR].sum()) * TREES_IN_VECTOR


def halves_pay(planes: int, splits: int, steps: int) -> bool:
    """Whether one row takes less time here than walked, with AVX2. splits: of all lanes. steps: of a walk through all trees."""
    return splits <= (SPLITS_FOR_A_STEP if planes <= FEW_PLANES else SPLITS_OF_MANY_PLANES) * steps


def pages_pay(planes: int, longest: int, steps: int) -> bool:
    """Whether one row takes less time here than walked, if there are more than 256 planes. longest: the splits of the largest of each 64
    trees, added up. steps: of a walk through all trees.

    64 splits take some 3 + `registers_of(planes)` cycles, a step of a walk CYCLES_OF_STEP. A walk of fewer steps than the row has numbers
    reads only those that it compares (lone.py), and is faster.
    """
    return planes <= steps and longest * (3 + registers_of(planes)) <= CYCLES_OF_STEP * steps


def registers_of(planes: int) -> int:
    """The registers that hold the ranks of a row."""
    return next(count for count in REGISTERS if planes <= count * TREES_IN_VECTOR)


@record
class Beside:
    """What is done while a group of trees is scanned, at one step each: do(0) … do(times - 1)."""

    times: Expr
    do: Callable[[Expr], None]


class Lanes:
    """Emits the code that finds the leaves of a few rows: `run(row, rows)`."""

    def __init__(
        self,
        f: Block,
        packed: PackedLanes,
        planes: int,
        ranks: Any,
        places: Layout | None,
        codes: Codes | None,
        together: int = ROWS_TOGETHER,
        most: int = 0,
    ) -> None:
        """together: the most rows that are scanned at once. most: the rows whose leaves are kept, if they are more."""
        self.f, self.packed, self.ranks, self.layout, self.codes = f, packed, ranks, places, codes
        self.planes, self.groups, self.vectors = (
            f.size(planes),
            f.size(len(packed.ends)),
            f.size(packed.vectors * TREES_IN_VECTOR),
        )
        self.fields, self.signed = packed.splits.shape[1], compares_signed(f.dialect)
        self.registers = registers_of(planes)
        self.apart = look_ups_apart(planes, f.dialect)
        self.parts = max(-(-planes // 16), 1)
        """How many vectors of 16 bytes hold the ranks of a row."""
        self.ends, self.starts = f.own(packed.ends, "i64"), f.own(packed.starts, "i64")
        self.splits = f.own(packed.splits, "u8")
        self.place, self.first = f.own(packed.place, "i32"), f.own(packed.first, "i32")
        self.step = packed.step
        self.row_ranks = T.alloc_buffer((together * self.registers * TREES_IN_VECTOR,), "uint8")
        self.reached = T.alloc_buffer((max(together, most) * packed.together * TREES_IN_VECTOR,), "uint8")
        # Buffers of one vector each are on the stack, and LLVM makes them registers.
        self.candidates = [T.alloc_buffer((TREES_IN_VECTOR,), "uint8") for _ in range(together * packed.together)]
        self.right = T.alloc_buffer((TREES_IN_VECTOR,), "uint8")
        self.in_halves = [T.alloc_buffer((HALF,), "uint8") for _ in range(together + 1)] if f.dialect.only_avx2 else []
        if codes is not None:
            self.masks, self.mask_starts = f.own(packed.masks, "u8"), f.own(packed.mask_starts, "i64")
            self.mask_size = f.size(packed.masks.shape[1])
            self.row_mask_size = few_sizes(packed.masks.shape[1]) + TREES_IN_VECTOR
            self.row_masks = T.alloc_buffer((ROWS_TOGETHER * self.row_mask_size,), "uint8")
            self.bit_of_step = f.own(np.repeat(1 << np.arange(STEPS_IN_BYTE, dtype=np.uint8), 8).view(np.int64), "i64")
            self.mask_places = T.alloc_buffer((few_sizes(len(packed.mask_starts)),), "int64")
            self.mask = T.alloc_buffer((TREES_IN_VECTOR,), "uint8")

    def run(self, row: Expr, rows: int) -> None:
        """Use the leaves of `rows` rows from `row` on. rows: 1 or ROWS_TOGETHER."""
        self._read_ranks(row, rows)
        # `origin` is 0. TVM takes vector accesses at a constant place apart; at a loop variable it keeps them whole.
        with self.f.repeat(self.groups) as group, self.f.repeat(1) as origin:
            self._scan(group, rows, origin, origin)
            self._use(*self._lanes_of(group), rows)

    def _read_ranks(self, row: Expr, rows: int) -> None:
        """Fill `row_ranks`, and `row_masks` if category sets are tested."""
        f = self.f
        if self.layout is not None:
            with once_if(self.layout.together) as origin:
                for r in range(rows):
                    # Some of the last four rows may not exist.
                    start = T.Bind((row + r) * self.layout.row_stride + origin)
                    for i in range(self.registers):
                        bytes_ = vector(self.ranks, start + i * TREES_IN_VECTOR, TREES_IN_VECTOR)
                        bytes_ = bytes_ if self.signed else held(f, bytes_, TREES_IN_VECTOR)
                        store(self.row_ranks, bytes_, origin + (r * self.registers + i) * TREES_IN_VECTOR, TREES_IN_VECTOR)
        apart = self.planes
        if self.layout is not None:
            apart = T.Bind(tirx.Select(self.layout.together, tirx.const(0, "int64"), self.planes))
        with f.repeat(apart) as plane:
            for r in range(rows):
                rank = self.ranks[plane * f.block + row + r]
                T.buffer_store(
                    self.row_ranks, rank if self.signed else held(f, rank), [plane + r * self.registers * TREES_IN_VECTOR]
                )
        if self.codes is not None:
            self._decide(self.codes, row, rows)

    def _scan(self, group: Expr, rows: int, origin: Expr, first: Expr, beside: Beside | None = None) -> None:
        """Store the leaves that the rows in `row_ranks` reach in a group of trees, in `reached` [rows, vectors together, 64] from row
        `first` on."""
        f, together = self.f, self.packed.together
        if rows > 1 and f.dialect.only_avx2:
            self._scan_in_halves(group, rows, origin, first)
            return
        zero, one = (tirx.Broadcast(tirx.const(value, "uint8"), TREES_IN_VECTOR) for value in (0, 1))
        for candidate in self.candidates[: rows * together]:
            store(candidate, zero, origin, TREES_IN_VECTOR)
        for phase in range(together):
            active = together - phase
            start = T.Bind(f.constant(self.starts, "i64", group * together + phase))
            begin = T.Bind(f.constant(self.ends, "i64", group * (together + 1) + phase))
            end = T.Bind(f.constant(self.ends, "i64", group * (together + 1) + phase + 1))
            store(self.right, tirx.Broadcast(tirx.Cast("uint8", begin + 1), TREES_IN_VECTOR), origin, TREES_IN_VECTOR)

            def take(step: Expr, start: Expr = start, active: int = active) -> None:
                for member in range(active):
                    self._split(member, rows, start + step * active + member, origin)
                store(self.right, tirx.Add(vector(self.right, origin, TREES_IN_VECTOR), one), origin, TREES_IN_VECTOR)

            if beside is not None and phase == 0:
                both = T.Bind(tirx.Min(end, beside.times))  # phase 0 begins with step 0
                with T.serial(begin, both) as step:
                    take(step)
                    beside.do(step)
                with T.serial(both, beside.times) as time:
                    beside.do(time)
                begin = both
            with T.serial(begin, end) as step:
                take(step)
        for slot, candidate in enumerate(self.candidates[: rows * together]):
            place = (first * together + slot) * TREES_IN_VECTOR
            store(self.reached, vector(candidate, origin, TREES_IN_VECTOR), place, TREES_IN_VECTOR)

    def _scan_in_halves(self, group: Expr, rows: int, origin: Expr, first: Expr) -> None:
        """The same for several rows with AVX2: 32 trees after 32, since its 16 registers hold the leaves of four rows in 32 trees and the
        ranks of these rows in two parts, but no more."""
        f, together = self.f, self.packed.together
        zero, one = (tirx.Broadcast(tirx.const(value, "uint8"), HALF) for value in (0, 1))
        *candidates, right = self.in_halves
        for member, half in product(range(together), range(2)):
            for candidate in candidates[:rows]:
                store(candidate, zero, origin, HALF)
            for phase in range(together - member):
                start = T.Bind(f.constant(self.starts, "i64", group * together + phase) + member)
                begin, end = (T.Bind(f.constant(self.ends, "i64", group * (together + 1) + phase + i)) for i in range(2))
                store(right, tirx.Broadcast(tirx.Cast("uint8", begin + 1), HALF), origin, HALF)
                with T.serial(begin, end) as step:
                    block = start + step * (together - phase)
                    at = block * (self.fields * TREES_IN_VECTOR) + half * HALF
                    place, split, lo = (f.constants(self.splits, "u8", at + i * TREES_IN_VECTOR, HALF) for i in range(FIELDS))
                    for row, candidate in enumerate(candidates[:rows]):
                        leaf = vector(candidate, origin, HALF)
                        rank = self._looked_up(origin + row * self.registers * TREES_IN_VECTOR, place)
                        goes = tirx.LT(as_signed(split, HALF), as_signed(rank, HALF))
                        if self.codes is not None:
                            goes = tirx.Or(goes, self._in_set(block, row, tirx.const(half * HALF, "int64"), HALF))
                        moved = tirx.Select(tirx.And(tirx.EQ(leaf, lo), goes), vector(right, origin, HALF), leaf)
                        store(candidate, moved, origin, HALF)
                    store(right, tirx.Add(vector(right, origin, HALF), one), origin, HALF)
            for row, candidate in enumerate(candidates[:rows]):
                at = ((first + row) * together + member) * TREES_IN_VECTOR + half * HALF
                store(self.reached, vector(candidate, origin, HALF), at, HALF)

    def _lanes_of(self, group: Expr) -> tuple[Expr, Expr]:
        """The lanes of a group, from the first to the end."""
        first = T.Bind(group * (self.packed.together * TREES_IN_VECTOR))
        # LLVM doesn't know this count. If it did, it would unroll loops over lanes and use gathers.
        return first, T.Bind(tirx.Min(first + self.packed.together * TREES_IN_VECTOR, self.vectors))

    def _use(self, first: Expr, end: Expr, rows: int) -> None:
        """Use the leaves that the lanes from `first` to `end` have reached."""
        raise NotImplementedError

    def _store_rows(self, first: Expr, end: Expr, row: Expr, places: Any, start: Expr) -> None:
        """Store the rows of `LeafRows` for these lanes and one of the rows, places[start + lane]."""
        with T.serial(tirx.const(0, "int64"), (end - first) // 16) as part:
            leaf = vector(self.reached, row * self.packed.together * TREES_IN_VECTOR + part * 16, 16)
            leaf = tirx.Cast("int32x16", leaf)
            if self.step > 1:
                leaf = tirx.Mul(leaf, tirx.Broadcast(tirx.const(self.step, "int32"), 16))
            lanes = T.Bind(first + part * 16)
            place = tirx.Add(self.f.constants(self.first, "i32", lanes, 16), leaf)
            store(places, place, start + lanes, 16)

    def _lane(self, tree: Expr) -> Expr:
        """The lane of a tree."""
        return tirx.Cast("int64", self.f.constant(self.place, "i32", tree))

    def _decide(self, codes: Codes, row: Expr, rows: int) -> None:
        """Fill `row_masks`: for each row one bit a split, whether its category set sends the row right.

        It is the `or` of the masks of the row's categories, one of each column.
        """
        f = self.f
        for r in range(rows):
            with f.repeat(codes.count) as column:
                # Some of the last four rows may not exist. Memory behind the last row may not hold a category's number, so it is not read.
                there = tirx.Min(row + r, f.rows - 1) if r else row
                bit = tirx.Cast("int64", codes.number[column * f.block + there])
                place = (f.constant(self.mask_starts, "i64", column) + bit) * self.mask_size
                T.buffer_store(self.mask_places, place, [column])
            with f.repeat(T.Bind(self.mask_size // TREES_IN_VECTOR)) as i, f.repeat(1) as origin:
                store(self.mask, tirx.Broadcast(tirx.const(0, "uint8"), TREES_IN_VECTOR), origin, TREES_IN_VECTOR)
                with f.repeat(codes.count) as column:
                    own = f.constants(self.masks, "u8", self.mask_places[column] + i * TREES_IN_VECTOR, TREES_IN_VECTOR)
                    both = tirx.bitwise_or(vector(self.mask, origin, TREES_IN_VECTOR), own)
                    store(self.mask, both, origin, TREES_IN_VECTOR)
                whole = vector(self.mask, origin, TREES_IN_VECTOR)
                store(self.row_masks, whole, r * self.row_mask_size + i * TREES_IN_VECTOR, TREES_IN_VECTOR)

    def _split(self, member: int, rows: int, block: Expr, origin: Expr) -> None:
        """One step of 64 trees, for all rows."""
        f, at = self.f, block * (self.fields * TREES_IN_VECTOR)
        plane, split, lo, *page = (
            f.constants(self.splits, "u8", at + field * TREES_IN_VECTOR, TREES_IN_VECTOR) for field in range(self.fields)
        )
        # j + 1 in all lanes, counted up, since LLVM would broadcast a scalar at every use.
        right = vector(self.right, origin, TREES_IN_VECTOR)
        for r in range(rows):
            first = origin + r * self.registers * TREES_IN_VECTOR
            candidate = self.candidates[r * self.packed.together + member]
            leaf = vector(candidate, origin, TREES_IN_VECTOR)
            below = self._below(split, self._ranks(first, plane, page, at))
            in_set = None if self.codes is None else self._in_set(block, r, origin, TREES_IN_VECTOR)
            if f.dialect.only_avx2 or (rows > 1 and in_set is None):
                moves = tirx.And(tirx.EQ(leaf, lo), below if in_set is None else tirx.Or(below, in_set))
                store(candidate, tirx.Select(moves, right, leaf), origin, TREES_IN_VECTOR)
                continue
            onward = tirx.Select(below, right, lo)
            if in_set is not None:
                onward = tirx.Select(in_set, right, onward)
            store(candidate, tirx.Select(tirx.EQ(leaf, lo), onward, leaf), origin, TREES_IN_VECTOR)

    def _in_set(self, block: Expr, row: int, lane: Expr, lanes: int) -> Expr:
        """Whether the category sets of a step send a row right, for the lanes from `lane` on. False for splits that compare a number."""
        own = (block // STEPS_IN_BYTE) * TREES_IN_VECTOR + lane
        bit = self.f.constant(self.bit_of_step, "i64", block % STEPS_IN_BYTE)
        bit = tirx.reinterpret(f"uint8x{lanes}", tirx.Broadcast(bit, lanes // 8))
        mask = tirx.bitwise_and(vector(self.row_masks, row * self.row_mask_size + own, lanes), bit)
        # AVX2 has no test for other than 0, AVX-512 one that computes the `and` too.
        return tirx.NE(mask, tirx.Broadcast(tirx.const(0, "uint8"), lanes)) if self.f.dialect.wide else tirx.EQ(mask, bit)

    def _below(self, split: Expr, rank: Expr) -> Expr:
        """Whether a vector of splits has ranks below those of a row."""
        if self.signed:
            split, rank = as_signed(split, TREES_IN_VECTOR), as_signed(rank, TREES_IN_VECTOR)
        return tirx.LT(split, rank)

    def _ranks(self, first: Expr, plane: Expr, page: list[Expr], at: Expr) -> Expr:
        """The ranks that a vector of splits asks for. `first`: where the row's ranks begin. plane: the planes of the splits, which begin at
        `at` of the model."""
        if self.f.dialect.byte_permute:
            whole = [vector(self.row_ranks, first + i * TREES_IN_VECTOR, TREES_IN_VECTOR) for i in range(self.registers)]
            return permute(whole, plane, *page)
        places = [self.f.constants(self.splits, "u8", at + i * HALF, HALF) for i in range(2)]
        return shuffled([self._looked_up(first, place) for place in places], list(range(TREES_IN_VECTOR)))

    def _looked_up(self, first: Expr, place: Expr) -> Expr:
        """The ranks that 32 splits ask for, without AVX-512. `first`: where the row's ranks begin. place: the planes of the splits."""
        parts = [vector(self.row_ranks, first + PART * i, PART) for i in range(self.parts)]
        return look_up_apart(parts, place) if self.apart else permute_halves(parts, place, self.f.dialect)


class SumLanes(Lanes):
    """Emits the sums of leaves: `run(row, rows)` leaves those of their integers in `sums` i64[outputs, rows].

    After run(row, 1), `add_in_order` adds the values of the same leaves.
    """

    def __init__(
        self,
        f: Block,
        packed: PackedLanes,
        planes: int,
        ranks: Any,
        places: Layout | None,
        codes: Codes | None,
        fixed: FixedPoint,
        leaves: LeafRows,
        together: int = ROWS_TOGETHER,
        most: int = 0,
    ) -> None:
        super().__init__(f, packed, planes, ranks, places, codes, together, most)
        self.leaves, self.outputs, self.columns = leaves, len(fixed.start), fixed.columns
        self.start = f.own(leaves.start_of(packed.outputs), "i64")
        self.output_of = f.own(packed.outputs, "i64") if packed.outputs.any() else None
        self.sums = T.alloc_buffer((self.outputs * together,), "int64")
        self.size = few_sizes(packed.vectors * TREES_IN_VECTOR)
        self.places = T.alloc_buffer(((1 if most else together) * self.size,), "int32")
        self.total = T.alloc_buffer((TREES_ADDED,), "int64")

    def totals(self, rows: int) -> Callable[[Expr], Expr]:
        """output → its sums for all rows, as a vector i64."""
        return lambda output: vector(self.sums, output * rows, rows)

    def run(self, row: Expr, rows: int) -> None:
        f = self.f
        with f.repeat(self.outputs) as output:
            start = T.Bind(f.constant(self.start, "i64", output))
            for r in range(rows):
                T.buffer_store(self.sums, start, [output * rows + r])
        if self.columns > 1 or (rows > 1 and f.dialect.only_avx2):
            super().run(row, rows)
        else:
            self._read_ranks(row, rows)
            self._add_beside(rows)

    def _add_beside(self, rows: int) -> None:
        """Add the leaves of a group of trees while the next group is scanned, for leaves of one value.

        Alone, each of the two waits part of the time, mostly for the second-level cache. Together, one row of 500 trees of 31 leaves takes
        886 in place of 930 ns, of 300 trees of 16 leaves 489 in place of 530; 8 rows of 200 trees of 31 leaves for each of seven classes
        take 9.3 in place of 11.5 µs (Zen 4)."""
        f, zero, of_group = self.f, tirx.const(0, "int64"), self.packed.together * TREES_IN_VECTOR
        with f.repeat(1) as origin:
            if self.output_of is None:
                add = partial(self._add_some, rows, zero, origin)
                self._clear(origin)
            else:
                add = partial(self._add_apart, rows, zero)
            with f.repeat(self.groups) as group:
                times = T.Bind(tirx.Select(tirx.LT(zero, group), tirx.const(of_group // TREES_ADDED, "int64"), zero))
                self._scan(group, rows, origin, origin, Beside(times, partial(add, T.Bind((group - 1) * of_group))))
                self._store_places(*self._lanes_of(group), rows)
            last = T.Bind((self.groups - 1) * of_group)
            with T.serial(zero, (self.vectors - last) // TREES_ADDED) as some:
                add(last, some)
            if self.output_of is None:
                self._add_total(rows, self.sums, zero, origin)

    def _use(self, first: Expr, end: Expr, rows: int) -> None:
        f = self.f
        if self.output_of is None:
            for row in range(rows):
                self._store_rows(first, end, row, self.places, tirx.const(0, "int64"))
                with f.repeat(self.columns) as column:
                    self._add_to_one(first, end, column, self.sums, column * rows + row)
            return
        self._store_places(first, end, rows)
        with f.repeat(self.columns) as column, T.serial(tirx.const(0, "int64"), (end - first) // TREES_ADDED) as some:
            self._add_apart(rows, column, first, some)

    def _store_places(self, first: Expr, end: Expr, rows: int) -> None:
        """Store the rows of `LeafRows` for these lanes and all rows."""
        for row in range(rows):
            self._store_rows(first, end, row, self.places, tirx.const(row * self.size, "int64"))

    def _add_to_one(self, first: Expr, end: Expr, column: Expr, sums: Any, at: Expr) -> None:
        """Add the integers of a column for one row and the lanes from `first` to `end` to sums[at]."""
        with self.f.repeat(1) as origin:
            self._clear(origin)
            with T.serial(tirx.const(0, "int64"), (end - first) // TREES_ADDED) as some:
                self._add_some(1, column, origin, first, some)
            self._add_total(1, sums, at, origin)

    def _clear(self, origin: Expr) -> None:
        """Set `total` to zeros."""
        store(self.total, tirx.Broadcast(tirx.const(0, "int64"), TREES_ADDED), origin, TREES_ADDED)

    def _add_some(self, rows: int, column: Expr, origin: Expr, first: Expr, some: Expr) -> None:
        """Add the integers of a column to `total`, for the `some`-th TREES_ADDED lanes from `first` on: those of one row beside each other,
        or those of four rows, lane after lane."""
        lanes = [T.Bind(first + some * TREES_ADDED + i) for i in range(TREES_ADDED)]
        added = [[self._leaf(lane) for lane in lanes]] if rows == 1 else self._leaves_of_rows(lanes, rows)
        for leaves in added:
            total = tirx.Add(vector(self.total, origin, TREES_ADDED), self.leaves.integers(leaves, column))
            store(self.total, total, origin, TREES_ADDED)

    def _add_total(self, rows: int, sums: Any, at: Expr, origin: Expr) -> None:
        """Add `total` to the sums from sums[at] on: of four rows, or its lanes together to that of one."""
        total = vector(self.total, origin, TREES_ADDED)
        if rows > 1:
            store(sums, tirx.Add(vector(sums, at, rows), total), at, rows)
            return
        added = tirx.call_llvm_pure_intrin("int64", f"llvm.vector.reduce.add.v{TREES_ADDED}i64", total)
        T.buffer_store(sums, tirx.Add(sums[at], added), [at])

    def _add_apart(self, rows: int, column: Expr, first: Expr, some: Expr) -> None:
        """Add the integers of a column to the sums of the outputs that the lanes add to, for the `some`-th TREES_ADDED lanes from `first`
        on."""
        f = self.f
        assert self.output_of is not None
        lanes = [T.Bind(first + some * TREES_ADDED + i) for i in range(TREES_ADDED)]
        for lane, leaves in zip(lanes, self._leaves_of_rows(lanes, rows), strict=True):
            at = T.Bind((f.constant(self.output_of, "i64", lane) + column) * rows)
            store(self.sums, tirx.Add(vector(self.sums, at, rows), self.leaves.integers(leaves, column)), at, rows)

    def _leaves_of_rows(self, lanes: list[Expr], rows: int) -> list[list[Expr]]:
        """For each lane, the leaves of all rows."""
        return [[self._leaf(lane, row) for row in range(rows)] for lane in lanes]

    def _leaf(self, lane: Expr, row: int = 0) -> Expr:
        """The row of `leaves` that one of the rows reached in the tree of a lane."""
        return tirx.Cast("int64", self.places[lane + row * self.size])

    def add_in_order(self, node: Node, row: Expr) -> None:
        """Store the sums of a row as the source computes them: the values in the order of the trees, in its number format."""
        f, op, leaves = self.f, node.op, self.leaves
        assert isinstance(op, TreeEnsemble)
        trees, dtype = f.size(op.n_trees), node.type.dtype

        def leaf(tree: Expr) -> Expr:
            return T.Bind(self._leaf(self._lane(tree)))

        if leaves.columns == op.n_outputs:
            with f.grid([op.n_outputs]) as (column,):
                total = f.scratch(1, dtype)  # in a register: additions in memory would wait for each other
                T.buffer_store(total, f.constant(op.base, dtype, column), [0])
                with f.repeat(trees) as tree:
                    T.buffer_store(total, tirx.Add(total[0], leaves.value(leaf(tree), column)), [0])
                f.store(node, column, Row(row), total[0])
            return
        targets = f.own(op.target, "i64")
        with f.grid([op.n_outputs]) as (column,):
            f.store(node, column, Row(row), f.constant(op.base, dtype, column))
        with f.repeat(trees) as tree:
            place, target = leaf(tree), T.Bind(f.constant(targets, "i64", tree))
            total = tirx.Add(f.load(node, target, Row(row)), leaves.value(place, tirx.const(0, "int64")))
            f.store(node, target, Row(row), total)


class NumberLanes(Lanes):
    """Emits the leaf numbers of a few rows: `run(row, rows)`, then `store_numbers`."""

    def __init__(
        self,
        f: Block,
        op: TreeEnsemble,
        packed: PackedLanes,
        ranked: RankedTrees,
        ranks: Any,
        places: Layout | None,
        codes: Codes | None,
    ) -> None:
        super().__init__(f, packed, ranked.planes, ranks, places, codes)
        self.trees, self.size = f.size(op.n_trees), few_sizes(packed.vectors * TREES_IN_VECTOR)
        self.places = T.alloc_buffer((ROWS_TOGETHER * self.size,), "int32")
        numbers = f.once(_ids_by_row, op, ranked, packed)
        self.dtype: DType = "u8" if numbers.min() >= 0 and numbers.max() < 256 else "i64"
        self.numbers = f.own(numbers, self.dtype)

    def _use(self, first: Expr, end: Expr, rows: int) -> None:
        for row in range(rows):
            self._store_rows(first, end, row, self.places, tirx.const(row * self.size, "int64"))

    def store_numbers(self, node: Node, row: Expr, rows: int) -> None:
        """Store the numbers that the source gives to the leaves of `rows` rows from `row` on."""
        with self.f.repeat(self.trees) as tree:
            lane = T.Bind(self._lane(tree))
            for r in range(rows):
                place = tirx.Cast("int64", self.places[lane + r * self.size])
                number = tirx.Cast("int64", self.f.constant(self.numbers, self.dtype, place))
                self.f.store(node, tree, Row(row + r), number)


def _ids_by_row(op: TreeEnsemble, ranked: RankedTrees, packed: PackedLanes) -> Array:
    """i64[size]: the source's numbers of the leaves, as rows of the table of `LeafRows`."""
    ids = np.zeros(packed.size, np.int64)
    ids[packed.rows] = op.leaf_ids[ranked.leaves]
    return ids
