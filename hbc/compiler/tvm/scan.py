"""Tree ensembles by scanning: every split of every tree is tested for 64 rows at once, without branches, gathers or stores.

A vector register holds the candidate leaf of each of 64 rows, at first leaf 0. The splits of a tree come parents before children; at a
split of the leaves [lo, …) into [lo, mid) and [mid, …), rows whose candidate is lo are exactly those that reach it (all splits above it
are done), and those whose rank is greater than the split's go on to mid:

    leaf = where(leaf == lo, where(rank > split, mid, lo), leaf)

(shared docs tree-kernels.md §2). Redundant work, but regular: for trees of up to about 1,000 leaves much faster than walking.

Processors differ in what a compare of bytes gives. Where it is a mask of bits (AVX-512), the steps of a tree wait for each other, so
that several trees go in lockstep. Where it is bytes of all or no bits (AVX2, and Zen 4, whose compares of that kind are twice as fast),
they wait little, and trees come one by one, for twice as many rows: 2.2 instead of 2.6 cycles a split and 64 rows on Zen 4.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.categories import Codes, pack_sets
from hbc.compiler.tvm.codegen import Function, Row
from hbc.compiler.tvm.expressions import DTYPES, Expr, is_nan
from hbc.compiler.tvm.lanes import ROWS, Lanes, PackedLanes, fits_lanes, pack_lanes
from hbc.compiler.tvm.leaves import (
    DIGIT,
    GROUPS_IN_SPAN,
    WIDTHS,
    FixedPoint,
    LeafGather,
    LeafTables,
    Leaves,
    PackedLeaves,
    fixed_point,
    pack_leaves,
)
from hbc.compiler.tvm.ranks import PLANE, Lockstep, RankedTrees, lockstep, rank_encode, signed, threshold_counts
from hbc.compiler.tvm.tables import few_sizes
from hbc.compiler.tvm.trees import RowWalk, Sums
from hbc.compiler.tvm.vectors import as_signed, broadcast, many, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

CHUNK = 64  # rows of a vector of candidate leaves
TREES = 4  # of a group, whose leaves are added together
CHUNKS = (
    2  # that go in lockstep, each with the trees of a group: eight independent chains hide the latency of each other's compares
)
CHUNKS_OF_BYTES = 4  # that one tree goes through: they share the loads of its splits, and fill the 16 registers of AVX2
HALF = 32  # rows of AVX2's registers
WRITTEN = 8  # rows whose results are written at once
FEW_ROWS = 16  # below, walks are faster than 64 rows
FEW_ROWS_IN_LANES = (32, 56)  # below, 64 trees in the lanes of a vector are; where trees have 128 leaves or more on average
MOST_THRESHOLDS = 65535  # of a feature: ranks of 16 bits
MOST_LEAVES = 1024  # of a tree: beyond, walking is faster


def scannable(op: TreeEnsemble) -> bool:
    """Whether `tree_scan` can run an ensemble within the numerical contract."""
    if op.output != "sum" or op.exact or not np.isfinite(op.values).all() or not np.isfinite(op.base).all():
        return False
    if int(op.leaf_counts.max(initial=1)) > MOST_LEAVES:
        return False
    return _most_thresholds(op) <= MOST_THRESHOLDS and fixed_point(op) is not None


def _most_thresholds(op: TreeEnsemble) -> int:
    inner = op.feature >= 0
    return int(threshold_counts(op.feature[inner], op.threshold[inner]).max())


# --- the model as data -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Trees in groups of TREES as `Lockstep` says.

    In lockstep: the splits of a group step by step, padded with splits that change nothing. starts i64[G + 1]: the steps of a group;
    plane, rank, lo, to [steps, TREES], where rows of a greater rank go right, to the leaves from `to` on.
    one_by_one: the splits tree by tree. starts i64[G · TREES + 1]; plane, rank, lo, to [splits], where rows of that rank and more go
    right, and lo ^ to is where those leaves begin.
    span_starts i64[S + 1]: spans of groups of the same target, targets i64[S], and width of leaves. leaves: digits if the processor
    permutes bytes and a tree has at most 256 leaves. sets i64: the category sets that each group tests, those of group g at
    set_starts i64[G + 1]; the planes after the ensemble's are filled with them anew for every group.
    """

    one_by_one: bool
    starts: Array
    plane: Array
    rank: Array
    lo: Array
    to: Array
    span_starts: Array
    targets: Array
    leaves: PackedLeaves
    sets: Array
    set_starts: Array


def pack(op: TreeEnsemble, ranked: RankedTrees, fixed: FixedPoint, permute: bool, byte_masks: bool) -> Packed:
    """Vectorized over all splits and leaves. What the processor can do: permute bytes, compare bytes into bytes."""
    steps = lockstep(ranked, op.target, TREES)
    most = int(ranked.leaf_counts.max(initial=1))
    widths = np.full(steps.groups, most)
    permute = permute and most <= WIDTHS[-1]
    if permute:
        widths = np.array(WIDTHS)[np.searchsorted(WIDTHS, np.diff(steps.group_starts) + 1)]
    tree = np.repeat(np.arange(op.n_trees), ranked.leaf_counts)
    leaf = np.arange(len(tree)) - np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts)
    group, place = np.divmod(steps.place[tree], TREES)
    leaves = pack_leaves(fixed, TREES, group, place, leaf, ranked.leaves, widths, permute)
    plane, sets, set_starts = _set_planes(ranked, steps)
    new = np.flatnonzero(np.diff(steps.targets, prepend=-1) | np.diff(widths, prepend=-1))
    spans = [np.arange(a, b, GROUPS_IN_SPAN) for a, b in pairwise([*new, steps.groups])]
    span_starts = np.concatenate([*spans, [steps.groups]]).astype(np.int64)
    rank, lo, mid = signed(ranked.split_rank), ranked.split_lo, ranked.split_mid
    one_by_one = byte_masks and most <= 256
    if one_by_one:
        starts, order = steps.one_by_one(ranked)
        plane, rank, lo, to = plane[order], rank[order] + 1, lo[order], (lo ^ mid)[order]
    else:
        starts = steps.group_starts
        plane, rank, lo, to = (steps.table(values) for values in (plane, rank, lo, mid))
    kind = np.uint8 if most <= 256 else np.uint16
    return Packed(
        one_by_one=one_by_one,
        starts=starts,
        plane=plane.astype(np.int32),
        rank=rank.astype(np.int8),
        lo=lo.astype(kind),
        to=to.astype(kind),
        span_starts=span_starts,
        targets=steps.targets[span_starts[:-1]],
        leaves=replace(leaves, widths=widths[span_starts[:-1]]),
        sets=sets,
        set_starts=set_starts,
    )


def _set_planes(ranked: RankedTrees, steps: Lockstep) -> tuple[Array, Array, Array]:
    """The planes of all splits, where every group of trees has its own planes of sets; `Packed.sets`, `Packed.set_starts`."""
    plane = ranked.split_plane.astype(np.int64)
    tested = np.flatnonzero(plane >= ranked.planes)
    group = np.searchsorted(steps.group_starts, steps.at[0][tested], side="right") - 1
    each = int(plane.max(initial=0)) + 1
    pairs, pair = np.unique(group * each + plane[tested], return_inverse=True)
    starts = np.searchsorted(pairs // each, np.arange(steps.groups + 1))
    plane[tested] = ranked.planes + pair - starts[group]
    return plane, pairs % each - ranked.planes, starts.astype(np.int64)


# --- the code --------------------------------------------------------------------------------------------------------


def tree_scan(f: Function, node: Node) -> None:
    """The sums of a `TreeEnsemble`."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, TreeEnsemble)
    ranked, fixed = f.once(rank_encode, op), f.once(fixed_point, op)
    assert fixed is not None
    packed = f.once(pack, op, ranked, fixed, f.dialect.byte_permute, f.dialect.byte_masks)
    in_lanes = f.dialect.byte_permute and fits_lanes(ranked, f.once(pack_sets, op) if len(packed.sets) else None)
    few_rows = FEW_ROWS_IN_LANES[len(ranked.leaves) > 128 * len(ranked.leaf_counts)] if in_lanes else FEW_ROWS
    # Several chunks of 64 rows at once; then single ones, the last of them partly filled unless only a few rows are left.
    chunks = CHUNKS_OF_BYTES if packed.one_by_one else CHUNKS
    several = T.Bind(f.rows // (CHUNK * chunks))
    end = T.Bind((f.rows + (CHUNK - few_rows)) // CHUNK)
    scanned = T.Bind(tirx.Min(f.rows, end * CHUNK))
    ranked_rows = f.rows if in_lanes else scanned
    ranks = rank_planes(f, x, ranked, int(np.diff(packed.set_starts).max(initial=0)), ranked_rows)
    sets = None
    if len(packed.sets):
        sets = SetPlanes(f, op, x, packed, ranks, ranked.planes)
        sets.fill(ranked_rows)
    leaves: Leaves
    if packed.leaves.table.dtype == np.uint8:
        leaves = LeafTables(f, fixed, packed.leaves, TREES, chunks)
    else:
        leaves = LeafGather(f, fixed, packed.leaves, TREES)
    leaves.clear(scanned)
    scan = (BytesScan if packed.one_by_one else MasksScan)(f, packed, ranks, leaves, sets, chunks)
    with T.serial(tirx.const(0, "int64"), several) as part:
        scan.run(T.Bind(part * (CHUNK * chunks)), chunks)
    with T.serial(several * chunks, end) as chunk:
        scan.run(T.Bind(chunk * CHUNK), 1)

    again = T.alloc_buffer((f.block,), "uint8") if not (fixed.exact and in_lanes) else None
    result = Result(f, node, fixed, None if fixed.exact else again)
    with T.serial(tirx.const(0, "int64"), (scanned + (WRITTEN - 1)) // WRITTEN) as part:
        row = T.Bind(part * WRITTEN)
        result.write(row, WRITTEN, lambda column: leaves.totals(column, row, WRITTEN))
    if in_lanes:
        lanes = f.once(pack_lanes_of, op, ranked, fixed)
        few = Lanes(f, lanes, ranked.planes, ranks, op.n_outputs, sets.codes if sets is not None else None)
        # One row alone takes less time than four, two do not. Of the last four, some may not be there.
        fours = T.Bind((f.rows - scanned + 2) // ROWS)
        with T.serial(tirx.const(0, "int64"), fours) as four:
            few.run(T.Bind(scanned + four * ROWS), ROWS)
            result.write(T.Bind(scanned + four * ROWS), ROWS, few.totals(ROWS))
        with T.serial(scanned + fours * ROWS, f.rows) as row:
            few.run(row, 1)
            result.write(row, 1, few.totals(1))
    else:
        with T.serial(scanned, f.rows) as row:
            T.buffer_store(again, tirx.const(1, "uint8"), [row])
    if again is not None:
        # One copy of this long code serves near ties and, without lanes, the last few rows.
        single = RowWalk(Sums(f, node))
        first = scanned if fixed.exact else tirx.const(0, "int64")
        with T.serial(first, f.rows) as row, T.If(tirx.NE(again[row], tirx.const(0, "uint8"))), T.Then():
            single.run_alone(row)


def pack_lanes_of(op: TreeEnsemble, ranked: RankedTrees, fixed: FixedPoint) -> PackedLanes:
    """The same trees for lanes.py."""
    # Lanes read integers with a sign.
    size = fixed.digits * DIGIT // 8 + 1
    return pack_lanes(ranked, fixed.integers, size, op.target, pack_sets(op) if ranked.tests_sets else None)


class Result:
    """From the integers of a row to its sums."""

    def __init__(self, f: Function, node: Node, fixed: FixedPoint, again: Any) -> None:
        self.f, self.node, self.again = f, node, again
        self.scale, self.close = f.number(2.0**-fixed.exponent), f.number(fixed.error)
        self.outputs, self.columns = len(fixed.offset), len(fixed.offset) if fixed.total is None else fixed.columns
        self.total = None if fixed.total is None else f.number(fixed.total)
        self.offset = f.own(fixed.offset, "f64")
        self.memory = {lanes: T.alloc_buffer((3 * lanes,), "float64") for lanes in (1, ROWS, WRITTEN)}

    def write(self, row: Expr, lanes: int, integers: Callable[[Expr], Expr]) -> None:
        """Store the sums of `lanes` rows from `row` on, given the integers of a column. Where the two largest nearly tie, mark
        the row in `again`: its leaves have to be added as the source does."""
        f, node, memory = self.f, self.node, self.memory[lanes]
        largest, second, rest = (slot * lanes for slot in range(3))

        def put(column: Expr, total: Expr) -> None:
            f.store_many(node, column, row, tirx.Cast(many(DTYPES[node.type.dtype], lanes), total), lanes)
            most = vector(memory, largest, lanes)
            store(memory, tirx.Max(vector(memory, second, lanes), tirx.Min(most, total)), second, lanes)
            store(memory, tirx.Max(most, total), largest, lanes)

        # The sign of a single output decides a label, as if there were a second one of 0.
        for slot, start in ((largest, 0.0 if self.outputs == 1 else -np.inf), (second, -np.inf)):
            store(memory, broadcast(tirx.const(start, "float64"), lanes), slot, lanes)
        if self.total is not None:
            store(memory, broadcast(self.total, lanes), rest, lanes)
        with f.grid([self.columns]) as (column,):
            value = tirx.Mul(tirx.Cast(many("float64", lanes), integers(column)), broadcast(self.scale, lanes))
            total = T.Bind(tirx.Add(value, broadcast(f.constant(self.offset, "f64", column), lanes)))
            put(column, total)
            if self.total is not None:
                store(memory, tirx.Sub(vector(memory, rest, lanes), total), rest, lanes)
        if self.total is not None:
            put(tirx.const(self.columns, "int64"), T.Bind(vector(memory, rest, lanes)))
        if self.again is not None:
            gap = tirx.Sub(vector(memory, largest, lanes), vector(memory, second, lanes))
            near = tirx.LE(gap, broadcast(self.close, lanes))
            store(self.again, tirx.Cast(many("uint8", lanes), near), row, lanes)


def rank_planes(f: Function, x: Node, ranked: RankedTrees, more: int, rows: Expr) -> Any:
    """The bytes that splits compare, plane after plane: a buffer u8[(planes + more) · block], for the first rows of the block. The
    bytes stand for signed ones (`signed`)."""
    planes = ranked.planes
    result = T.alloc_buffer((few_sizes(planes + more) * f.block,), "uint8")
    if not planes:
        return result
    chunks = T.Bind((rows + (CHUNK - 1)) // CHUNK)
    lowest, highest = (tirx.Broadcast(tirx.const(value, "uint8"), CHUNK) for value in (128, 127))
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
                byte = tirx.bitwise_xor(tirx.Cast(many("uint8", CHUNK), above), lowest)
                store(result, byte, plane * f.block + chunk * CHUNK, CHUNK)
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
            # Added, since NaN's rank is 0 so far: of a choice LLVM makes a branch, which costs some 18 cycles a NaN.
            rank += tirx.Cast("int64", is_nan(value)) * f.constant(missing, "i64", column)
        if result.dtype == "uint8":
            rank = rank - 128
        T.buffer_store(result, tirx.Cast(result.dtype, rank), [column * f.block + row])


def below(f: Function, table: Array, dtype: str, start: Expr, count: int, value: Expr) -> Expr:
    """How many of `count` consecutive elements are < value."""
    less = tirx.LT(f.constants(table, dtype, start, count), tirx.Broadcast(value, count))
    counted = tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{count}i32", tirx.Cast(f"int32x{count}", less))
    return tirx.Cast("int64", counted)


class Scan:
    """The loops over the groups of trees, for some chunks of rows."""

    def __init__(self, f: Function, packed: Packed, ranks: Any, leaves: Leaves, sets: SetPlanes | None, chunks: int) -> None:
        """At most 64 · chunks rows at once."""
        self.f, self.ranks, self.leaves, self.sets = f, ranks, leaves, sets
        self.spans = f.size(len(packed.targets))
        self.span_starts, self.targets = f.own(packed.span_starts, "i64"), f.own(packed.targets, "i64")
        self.starts = f.own(packed.starts, "i64")
        self.plane, self.rank = f.own(packed.plane, "i32"), f.own(packed.rank, "i8")
        self.leaf_dtype = "u8" if packed.lo.dtype == np.uint8 else "u16"
        self.lo, self.to = f.own(packed.lo, self.leaf_dtype), f.own(packed.to, self.leaf_dtype)
        self.reached = T.alloc_buffer((TREES * chunks * CHUNK,), DTYPES[self.leaf_dtype])

    def run(self, first: Expr, chunks: int) -> None:
        """Add the leaves' values of rows first … first + 64 · chunks of the block."""
        f = self.f
        with f.repeat(self.spans) as span:
            target = T.Bind(f.constant(self.targets, "i64", span))
            self.leaves.begin(span, chunks)
            last = T.Bind(f.constant(self.span_starts, "i64", span + 1))
            with T.serial(T.Bind(f.constant(self.span_starts, "i64", span)), last) as group:
                if self.sets is not None:
                    self.sets.run(group, first, chunks)
                self.scan(group, first, chunks)
                self.leaves.add(group, target, first, self.reached, chunks)
            self.leaves.end(target, first, chunks)

    def scan(self, group: Expr, first: Expr, chunks: int) -> None:
        """The leaves that the rows reach in a group's trees, into `reached` [trees, chunks, 64]."""
        raise NotImplementedError

    def _steps(self, at: Expr) -> AbstractContextManager[Expr]:
        """The loop over the steps of a group or tree."""
        start, end = (T.Bind(self.f.constant(self.starts, "i64", at + i)) for i in range(2))
        return T.serial(start, end)  # type: ignore[no-any-return]

    def _plane(self, at: Expr, first: Expr) -> Expr:
        """Where the ranks begin that a split tests."""
        return T.Bind(tirx.Cast("int64", self.f.constant(self.plane, "i32", at)) * self.f.block + first)

    def _everywhere(self, array: Array, dtype: str, at: Expr, lanes: int) -> Expr:
        """An element in all lanes."""
        return T.Bind(tirx.Broadcast(self.f.constant(array, dtype, at), lanes))


class MasksScan(Scan):
    """The trees of a group in lockstep, 64 rows to a register."""

    def scan(self, group: Expr, first: Expr, chunks: int) -> None:
        candidates = self.f.scratch(TREES * chunks * CHUNK, self.leaf_dtype)  # in registers
        zero = tirx.Broadcast(tirx.const(0, DTYPES[self.leaf_dtype]), CHUNK)
        for slot in range(TREES * chunks):
            store(candidates, zero, slot * CHUNK, CHUNK)
        with self._steps(group) as step:
            for tree in range(TREES):
                self._split(candidates, step * TREES + tree, first, tree, chunks)
        for slot in range(TREES * chunks):
            store(self.reached, vector(candidates, slot * CHUNK, CHUNK), slot * CHUNK, CHUNK)

    def _split(self, candidates: Any, at: Expr, first: Expr, tree: int, chunks: int) -> None:
        plane, rank = self._plane(at, first), self._everywhere(self.rank, "i8", at, CHUNK)
        lo, mid = (self._everywhere(array, self.leaf_dtype, at, CHUNK) for array in (self.lo, self.to))
        for chunk in range(chunks):
            slot = (tree * chunks + chunk) * CHUNK
            value = as_signed(vector(self.ranks, plane + chunk * CHUNK, CHUNK), CHUNK)
            leaf = vector(candidates, slot, CHUNK)
            onward = tirx.Select(tirx.LT(rank, value), mid, lo)
            store(candidates, tirx.Select(tirx.EQ(leaf, lo), onward, leaf), slot, CHUNK)


class BytesScan(Scan):
    """One tree after the other, 32 rows to a register: leaf ^= lo ^ mid where the leaf is lo and the rank is not less."""

    def __init__(self, f: Function, packed: Packed, ranks: Any, leaves: Leaves, sets: SetPlanes | None, chunks: int) -> None:
        super().__init__(f, packed, ranks, leaves, sets, chunks)
        # A buffer for every register: of a longer one, LLVM joins pairs of registers and takes them apart at every split.
        self.candidates = [T.alloc_buffer((HALF,), "int8") for _ in range(chunks * CHUNK // HALF)]

    def scan(self, group: Expr, first: Expr, chunks: int) -> None:
        f, candidates = self.f, self.candidates[: chunks * CHUNK // HALF]
        zero = tirx.Broadcast(tirx.const(0, "int8"), HALF)
        # `origin` is 0. As a loop variable it keeps the accesses of vectors whole, which at a constant place TVM takes apart.
        with f.repeat(TREES) as tree, f.repeat(1) as origin:
            for candidate in candidates:
                store(candidate, zero, origin, HALF)
            with self._steps(group * TREES + tree) as split:
                self._split(candidates, split, first, origin)
            for slot, candidate in enumerate(candidates):
                leaf = tirx.reinterpret(many("uint8", HALF), vector(candidate, origin, HALF))
                store(self.reached, leaf, tree * (chunks * CHUNK) + slot * HALF, HALF)

    def _split(self, candidates: list[Any], at: Expr, first: Expr, origin: Expr) -> None:
        plane, rank = self._plane(at, first), self._everywhere(self.rank, "i8", at, HALF)
        lo, change = (self._everywhere(array, "u8", at, HALF) for array in (self.lo, self.to))
        for slot, candidate in enumerate(candidates):
            value = as_signed(vector(self.ranks, plane + slot * HALF, HALF), HALF)
            leaf = vector(candidate, origin, HALF)
            stays = _bits(tirx.LT(value, rank))
            here = _bits(tirx.EQ(leaf, as_signed(lo, HALF)))
            change_here = self._change(stays, here, _words(change))
            store(candidate, as_signed(tirx.bitwise_xor(_words(leaf), change_here), HALF), origin, HALF)

    def _change(self, stays: Expr, here: Expr, change: Expr) -> Expr:
        """~stays & here & change."""
        if self.f.dialect.wide:
            # The same in one instruction, which LLVM does not look into: it would compare into masks again.
            table = tirx.const(0b00001000, "int32")
            return tirx.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.pternlog.d.256", stays, here, change, table)
        moves = tirx.bitwise_xor(stays, tirx.Broadcast(tirx.const(-1, "int32"), HALF // 4))
        return tirx.bitwise_and(tirx.bitwise_and(moves, here), change)


def _words(bytes_: Expr) -> Expr:
    """Half a register of bytes, as TVM's bitwise functions take them."""
    return tirx.reinterpret(many("int32", HALF // 4), bytes_)


def _bits(test: Expr) -> Expr:
    """All bits of the bytes for which a test is true."""
    ones, zero = (tirx.Broadcast(tirx.const(value, "int8"), HALF) for value in (-1, 0))
    return _words(tirx.Select(test, ones, zero))


class SetPlanes:
    """The planes of the category sets that a group of trees tests."""

    def __init__(self, f: Function, op: TreeEnsemble, x: Node, packed: Packed, ranks: Any, planes: int) -> None:
        self.f, self.ranks, self.planes = f, ranks, f.size(planes)
        self.codes = Codes(f, op, x)
        own = f.once(pack_sets, op)
        self.registers, self.size = -(-own.bytes.shape[1] // CHUNK), f.size(own.bytes.shape[1])
        self.starts = f.own(packed.set_starts, "i64")
        self.columns = f.own(own.set_column[packed.sets], "i64")
        # In the order of use, and as long as the registers that they are loaded into; rows that are not there may ask for any byte.
        padding = np.zeros(256, np.uint8)
        self.bytes = f.own(np.concatenate([own.bytes[packed.sets].reshape(-1), padding]), "u8")

    def fill(self, rows: Expr) -> None:
        """The codes of the first rows of the block."""
        with T.serial(tirx.const(0, "int64"), rows) as row:
            self.codes.fill(row)

    def run(self, group: Expr, first: Expr, chunks: int) -> None:
        """The planes of a group, for rows first … first + 64 · chunks."""
        f = self.f
        start = T.Bind(f.constant(self.starts, "i64", group))
        count = T.Bind(f.constant(self.starts, "i64", group + 1) - start)
        with T.serial(tirx.const(0, "int64"), count) as slot:
            column = T.Bind(f.constant(self.columns, "i64", start + slot))
            set_ = T.Bind((start + slot) * self.size)
            plane = T.Bind((slot + self.planes) * f.block + first)
            if f.dialect.byte_permute:
                for chunk in range(chunks):
                    at = chunk * CHUNK
                    test = self.codes.test_many(self.bytes, set_, self.registers, column, first + at)
                    test = tirx.bitwise_xor(test, tirx.Broadcast(tirx.const(128, "uint8"), CHUNK))
                    store(self.ranks, test, plane + at, CHUNK)
            else:
                with f.repeat(CHUNK * chunks) as row:
                    test = self.codes.test(self.bytes, set_, column, first + row)
                    T.buffer_store(self.ranks, tirx.bitwise_xor(test, tirx.const(128, "uint8")), [plane + row])
