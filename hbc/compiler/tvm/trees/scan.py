"""Tree ensembles by scanning: every split of every tree is tested for 64 rows at once, without branches, gathers or stores.

The code computes (docs/tree-kernels.md §2):

    rank[plane, row] = number of the feature's thresholds that are < x[row, feature]       # planes.py, once a block
    for 256 rows, for each tree:
        leaf[row] = 0                                                                      # one byte a row, in registers
        for each split, parents before children:
            leaf = where(leaf == lo, where(rank[plane] > split_rank, mid, lo), leaf)
        sums[row] += integers[tree, leaf[row]]                                             # leaves.py
    y[row] = sums[row] / 2^exponent + base                                                 # sums.py

`lo` is the leftmost leaf below a split, `mid` the leftmost leaf below its right child. When the splits above it are done, exactly the rows
that reach it have `leaf == lo`. So testing every split for every row is redundant, but regular. For trees of up to about 1,000 leaves it is
much faster than walking.

Up to six connected splits share one test of the leaf. The bits of their compares are an index into a table with the next leaves. The
table is held in a register and looked up by a permutation of bytes (ranks.py). Trees come one by one; 256 rows share the loads of a tree.

Processors differ in the result of comparing bytes:

* AVX2 compares 32 rows into bytes of all or no bits. Zen 4 does this twice as fast as it compares into masks: 1.7 cycles a split and 64
  rows.
* AVX-512 elsewhere compares 64 rows into a mask of bits, which add up the index: 1.8 cycles on Intel. There one port alone runs compares
  and permutations, and it is busy for 1.5.

Trees of more than 256 leaves become sums of smaller trees first (small_trees.py). The last few rows of a block take another way:
scan_few_rows.py where it fits; for many trees of more than 256 leaves patches.py where it fits; otherwise walk.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import as_signed, broadcast, many, shuffled, store, vector
from hbc.compiler.tvm.trees.categories import Codes, pack_sets
from hbc.compiler.tvm.trees.fixed_point import fixed_point
from hbc.compiler.tvm.trees.leaf_rows import LeafRows
from hbc.compiler.tvm.trees.leaves import HALF, WIDTHS, LeafGather, LeafParts, LeafTables, Leaves
from hbc.compiler.tvm.trees.packed_patches import passed
from hbc.compiler.tvm.trees.packed_trees import TREES_IN_GROUP, PackedPieces, PackedTrees, pack_trees
from hbc.compiler.tvm.trees.patches import Patches, patchable
from hbc.compiler.tvm.trees.planes import ROWS_IN_VECTOR, held, layout, rank_planes
from hbc.compiler.tvm.trees.ranks import ranked_trees
from hbc.compiler.tvm.trees.scan_few_rows import (
    MOST_LEAVES_IN_LANES,
    PAGE,
    ROWS_TOGETHER,
    NumberLanes,
    PackedLanes,
    SumLanes,
    fits_lanes,
    once_if,
    pack_lanes,
)
from hbc.compiler.tvm.trees.scan_rest import RestLanes, rows_for_lanes
from hbc.compiler.tvm.trees.small_trees import small_trees
from hbc.compiler.tvm.trees.sums import WRITTEN, Result
from hbc.compiler.tvm.trees.walk import RowWalk, Sums, tree_walk
from hbc.ir.graph import Node
from hbc.ir.types import Array, dtype_name
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, thresholds_by_feature

GROUPS_TOGETHER = 8  # groups whose reached leaves are kept and then looked up, one digit after the other
VECTORS_OF_PIECES = (
    4  # vectors of rows for one tree in pieces: they share the loads of its splits, and fill the 16 registers of AVX2
)
WORDS = HALF // 4  # words in such a register
FEW_ROWS_IN_LANES = (32, 56)
"""For fewer rows, scan_few_rows.py is faster than a chunk of 64 rows. The second number holds for trees of more than 128 leaves on
average."""
FEW_ROWS_IN_HALVES = 17
"""The same for a chunk of 32 rows."""
FEW_ROWS_IN_PAGES = 16
"""The same for more than 256 planes. 200 trees of 31 leaves: 8 rows take 9.3 µs in lanes over 300 columns, 20 over 1,000; 12 rows in a
chunk 17 and 43 (Sapphire Rapids)."""
ROWS_OF_PLANES = 15
"""The most rows of a block whose planes lie row by row: so few that no search of many rows takes them (`TurnedRanks`)."""
ROWS_FOR_ALL = 176
"""From so many rows on, what is left of a block is scanned as 256 rows: that takes 2.1 to 2.7 times as long as a chunk of 64 rows."""
ROWS_FOR_ALL_IN_HALVES = 224  # the same with AVX2, whose registers hold 32 rows: it takes 3.6 times as long
MOST_THRESHOLDS = 65535  # the most thresholds of a feature: ranks have 16 bits
MOST_LEAVES = 2048  # the most leaves of a tree: walking larger trees is faster
MOST_NODES_WALKED = 1 << 17
"""The most nodes of an ensemble whose rows alone are walked where patches can run too: 1 MiB, which the second-level cache of Zen 5 holds.
Rows take a seventh to a quarter less so (100 trees of depth 10, 60 of depth 12); 200 trees of depth 12 take twice as long."""
MOST_DEPTH = 192  # the greatest depth of a tree, whose parts have all splits above them


def rows_of_chunk(dialect: Dialect) -> int:
    """The least rows that are scanned together: those of a register of bytes where leaves are looked up by such registers."""
    return HALF if dialect.byte_masks and not dialect.byte_permute else ROWS_IN_VECTOR


def most_alone(wide: bool) -> int:
    """So many rows, one after the other, take less time than four together. wide: with AVX-512."""
    return 1 if wide else 2


def few_rows_in_lanes(large: bool, planes: int, chunk: int) -> int:
    """For fewer rows, scan_few_rows.py is faster than a chunk of so many rows. large: see FEW_ROWS_IN_LANES."""
    if chunk == HALF:
        return FEW_ROWS_IN_HALVES
    return FEW_ROWS_IN_PAGES if planes > PAGE else FEW_ROWS_IN_LANES[large]


def walking(steps: int) -> float:
    """The nanoseconds of so many steps of a row in all trees, without keys and leaves (see `rows_alone`)."""
    return 0.67 * steps


def patching(splits: int, trees: int) -> float:
    """The same for patches. Fitted on Zen 5 to five ensembles of 100 and 200 trees, and 170 to 2,100 splits a tree, within 1.3 times."""
    return 2.7 * trees * passed(splits, trees)


def rows_alone(
    trees: int, splits: int, values: int, leaves: int, going: float, columns: int, planes: int, of_chunk: int
) -> int:
    """For fewer rows, at least 1 and at most 64, rows that go alone from node to node are faster than a chunk of `of_chunk` rows.

    trees, splits, leaves: of the scanned trees, and the leaves of the largest. values: of a leaf. going: the nanoseconds of a row alone,
    `walking` or `patching`. columns: those that are compared. planes: those of their ranks, without second ones for NaN.

    The times in nanoseconds were fitted on Zen 5 to ten ensembles of 20 and 300 columns, within a fifth. Those of walks are a seventh
    longer, since a chunk that comes too early costs less. They cross at 6 rows (100 trees of 31 leaves, 300 columns), 13 (30 of 200
    leaves), 34 (40 forest trees of depth 10), 62 (20 of unlimited depth). With AVX2 they cross 1.2 to 1.9 times later.
    """
    tables = next((width for width in WIDTHS if leaves <= width), WIDTHS[-1]) // WIDTHS[0]
    chunk = 0.58 * splits + 10.6 * trees + 2.2 * trees * values * tables
    alone = going + 0.98 * columns + 0.43 * trees * values
    ranks = 1.3 * columns + 4.7 * min(planes - columns, columns)  # only rows that are scanned have them
    rows = chunk * of_chunk / ROWS_IN_VECTOR / max(alone - ranks, 1e-9)
    return min(max(round(rows), 1), of_chunk)


def scannable(op: TreeEnsemble) -> bool:
    """Whether `tree_scan` can run an ensemble within the numerical contract (docs/tree-kernels.md §8). Leaf numbers are scanned as few
    rows are, where leaves are numbered by bytes."""
    if op.output == "leaf":
        return int(op.leaf_counts.max(initial=1)) <= MOST_LEAVES_IN_LANES and thresholds_fit(op)
    if op.output != "sum" or op.exact or not np.isfinite(op.values).all() or not np.isfinite(op.base).all():
        return False
    if int(op.leaf_counts.max(initial=1)) > MOST_LEAVES or int(op.depths.max(initial=0)) > MOST_DEPTH:
        return False
    return thresholds_fit(op) and op.once(fixed_point) is not None


def thresholds_fit(op: TreeEnsemble) -> bool:
    """Whether ranks have at most 16 bits."""
    return int(op.once(thresholds_by_feature).max()) <= MOST_THRESHOLDS


@tree_kernel("scan", nanoseconds=lambda op: 0.02 * len(op.feature), fits=scannable)
def tree_scan(f: Block, node: Node) -> None:
    """Emit the sums of a `TreeEnsemble` for a block of rows: ranks, then the scan, then results; then the rows to be added again."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, TreeEnsemble)
    if op.output == "leaf":
        leaf_numbers(f, node, op)
        return
    small, fixed = op.once(small_trees), op.once(fixed_point)
    assert fixed is not None
    if small is not op:
        fixed = replace(fixed, integers=np.concatenate([fixed.integers, np.zeros_like(fixed.integers[:1])]))
    ranked = f.once(ranked_trees, small)
    packed = f.once(pack_trees, small, ranked, fixed, f.dialect)
    in_lanes = small is op and fits_lanes(op, ranked, f.once(pack_sets, op) if len(packed.sets) else None, f.dialect)
    in_patches = small is not op and f.dialect.wide and patchable(op) and len(op.feature) > MOST_NODES_WALKED
    few_rows: Any
    if in_lanes:
        few_rows = few_rows_in_lanes(
            len(ranked.leaves) > 128 * len(ranked.leaf_counts), ranked.planes, rows_of_chunk(f.dialect)
        )
    else:
        few_rows = f.size(
            rows_alone(
                len(ranked.leaf_counts),
                len(ranked.split_lo),
                op.values.shape[1],
                int(ranked.leaf_counts.max(initial=1)),
                patching(int((op.leaf_counts - 1).sum()), op.n_trees) if in_patches else walking(int(op.depths.sum())),
                len(ranked.column_feature),
                len(ranked.plane_column),
                rows_of_chunk(f.dialect),
            )
        )
    # Several chunks of 64 rows at once; the last ones may have places without a row. Then, of what is left, as many rows as another way
    # takes: `scanned` are those that end in `leaves`.
    every = ROWS_IN_VECTOR * VECTORS_OF_PIECES
    for_all = ROWS_FOR_ALL if f.dialect.wide else ROWS_FOR_ALL_IN_HALVES
    several = T.Bind((f.rows + (every - for_all if f.block % every == 0 else 0)) // every)
    whole = T.Bind(tirx.Min(f.rows, several * every))
    lanes = f.once(pack_lanes_of, op, ranked) if in_lanes else None
    rest = None
    if lanes is not None and ranked.planes <= PAGE and f.dialect.byte_permute:
        rest = rows_for_lanes(packed, lanes, len(ranked.split_lo))
    if rest is not None:
        scanned = T.Bind(tirx.Select(tirx.EQ(f.rows - whole, tirx.const(1, "int64")), whole, f.rows))
    else:
        least = rows_of_chunk(f.dialect)
        least_of_whole = few_rows if least == ROWS_IN_VECTOR else least + few_rows // 2
        whole_chunks = T.Bind(
            tirx.Max(several * VECTORS_OF_PIECES, (f.rows + (ROWS_IN_VECTOR - least_of_whole)) // ROWS_IN_VECTOR)
        )
        end = whole_chunks * ROWS_IN_VECTOR
        half_chunk = tirx.const(0, "int64")
        if least < ROWS_IN_VECTOR:
            half_chunk = T.Bind(tirx.Max((f.rows - end + (least - few_rows)) // least, half_chunk))
        scanned = T.Bind(tirx.Min(f.rows, end + half_chunk * least))
    ranked_rows = f.rows if in_lanes else scanned
    more = int(np.diff(packed.set_starts).max(initial=0))
    places = layout(f, ranked, more, min(few_rows - 1, ROWS_OF_PLANES) if rest is None else 1) if in_lanes else None
    ranks = rank_planes(f, x, ranked, more, ranked_rows, places)
    sets = None
    if len(packed.sets):
        sets = SetPlanes(f, op, x, packed, ranks, ranked.planes)
        sets.fill(ranked_rows)
    rows_of_leaves = LeafRows(f, small, ranked, fixed, by_column=not in_lanes)
    leaves: Leaves
    if packed.digits is not None:
        tables = LeafTables if f.dialect.byte_permute else LeafParts
        leaves = tables(f, fixed, packed.digits, TREES_IN_GROUP, every)
    else:
        outputs = np.repeat(packed.outputs, np.diff(packed.span_starts) * TREES_IN_GROUP)
        leaves = LeafGather(f, fixed, rows_of_leaves, packed.first, outputs, TREES_IN_GROUP)
    leaves.clear(scanned)
    kind = BytesScan if f.dialect.byte_masks else MasksScan
    scan = kind(f, packed, ranks, leaves, sets, every)
    with T.serial(tirx.const(0, "int64"), several) as part:
        scan.run(T.Bind(part * every), every)
    if rest is not None:
        assert lanes is not None
        assert isinstance(leaves, LeafTables)
        some = RestLanes(f, lanes, ranked.planes, ranks, fixed, rows_of_leaves, leaves, packed)
        with T.serial(tirx.const(0, "int64"), (scanned - whole + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR) as chunk:
            first = T.Bind(whole + chunk * ROWS_IN_VECTOR)
            count = T.Bind(tirx.Min(scanned - first, tirx.const(ROWS_IN_VECTOR, "int64")))
            if rest >= ROWS_IN_VECTOR:
                some.add(first, count)
            else:
                most = f.size(rest)
                with once_if(tirx.LE(count, most)):
                    some.add(first, count)
                with once_if(tirx.LT(most, count)):
                    scan.run(first, ROWS_IN_VECTOR)
    else:
        with T.serial(several * VECTORS_OF_PIECES, whole_chunks) as chunk:
            scan.run(T.Bind(chunk * ROWS_IN_VECTOR), ROWS_IN_VECTOR)
        if least < ROWS_IN_VECTOR:
            with T.serial(tirx.const(0, "int64"), half_chunk):
                scan.run(T.Bind(whole_chunks * ROWS_IN_VECTOR), least)

    # For each row, whether it must be added as the source does; or, of the last row, that nothing is added yet.
    again = T.alloc_buffer((f.block,), "uint8") if not (fixed.exact and in_lanes) else None
    result = Result(f, node, fixed, None if fixed.exact else again)
    result.write_many(scanned, lambda column, row: leaves.totals(column, row, WRITTEN))
    if lanes is not None:
        codes, together = sets.codes if sets is not None else None, ROWS_TOGETHER if rest is None else 1
        few = SumLanes(f, lanes, ranked.planes, ranks, places, codes, fixed, rows_of_leaves, together)
        alone = scanned
        if rest is None:
            # The last four may have places without a row.
            fours = T.Bind((f.rows - scanned + (ROWS_TOGETHER - 1 - most_alone(f.dialect.wide))) // ROWS_TOGETHER)
            with T.serial(tirx.const(0, "int64"), fours) as four:
                few.run(T.Bind(scanned + four * ROWS_TOGETHER), ROWS_TOGETHER)
                result.write(T.Bind(scanned + four * ROWS_TOGETHER), ROWS_TOGETHER, few.totals(ROWS_TOGETHER))
            alone = T.Bind(scanned + fours * ROWS_TOGETHER)
        if again is None:
            with T.serial(alone, f.rows) as row:
                few.run(row, 1)
                result.write(row, 1, few.totals(1))
        else:
            # This code is long, so one copy of it serves both the last row and the rows that nearly tie.
            with T.serial(alone, f.rows) as row:
                T.buffer_store(again, tirx.const(NOT_YET, "uint8"), [row])
            with T.serial(tirx.const(0, "int64"), f.rows) as row, once_if(tirx.NE(again[row], tirx.const(0, "uint8"))):
                few.run(row, 1)
                with once_if(tirx.EQ(again[row], tirx.const(NOT_YET, "uint8"))):
                    result.write(row, 1, few.totals(1))
                with once_if(tirx.NE(again[row], tirx.const(0, "uint8"))):
                    few.add_in_order(node, row)
    else:
        assert again is not None
        with T.serial(scanned, f.rows) as row:
            T.buffer_store(again, tirx.const(1, "uint8"), [row])
        alone_ = Patches(f, node, alone=True).one_row if in_patches else RowWalk(Sums(f, node, alone=True)).run_alone
        first = scanned if fixed.exact else tirx.const(0, "int64")
        with T.serial(first, f.rows) as row, T.If(tirx.NE(again[row], tirx.const(0, "uint8"))), T.Then():
            alone_(row)


def leaf_numbers(f: Block, node: Node, op: TreeEnsemble) -> None:
    """Emit the leaf numbers of a block of rows: four rows at a time where the scan of few rows fits, otherwise walks."""
    ranked = f.once(ranked_trees, op)
    if not fits_lanes(op, ranked, f.once(pack_sets, op) if ranked.tests_sets else None, f.dialect):
        tree_walk(f, node)
        return
    places = layout(f, ranked, 0, ROWS_OF_PLANES)
    ranks = rank_planes(f, node.inputs[0], ranked, 0, f.rows, places)
    codes = None
    if ranked.tests_sets:
        codes = Codes(f, op, node.inputs[0])
        with T.serial(tirx.const(0, "int64"), f.rows) as row:
            codes.fill(row)
    lanes = NumberLanes(f, op, f.once(pack_lanes_of, op, ranked), ranked, ranks, places, codes)
    fours = T.Bind((f.rows + 2) // ROWS_TOGETHER)
    with T.serial(tirx.const(0, "int64"), fours) as four:
        row = T.Bind(four * ROWS_TOGETHER)
        lanes.run(row, ROWS_TOGETHER)
        lanes.store_numbers(node, row, ROWS_TOGETHER)
    with T.serial(fours * ROWS_TOGETHER, f.rows) as row:
        lanes.run(row, 1)
        lanes.store_numbers(node, row, 1)


NOT_YET = 2
"""In `again`: the row has no sums yet."""


def pack_lanes_of(op: TreeEnsemble, ranked: RankedTrees) -> PackedLanes:
    """The same trees, packed for scan_few_rows.py."""
    return pack_lanes(ranked, op.target, pack_sets(op) if ranked.tests_sets else None)


class Scan:
    """Emits the loops over the groups of trees, for some rows at once: a multiple of those in a register."""

    def __init__(self, f: Block, packed: PackedTrees, ranks: Any, leaves: Leaves, sets: SetPlanes | None, most: int) -> None:
        """most: the most rows that go at once."""
        self.f, self.ranks, self.leaves, self.sets = f, ranks, leaves, sets
        self.spans = f.size(len(packed.outputs))
        self.span_starts, self.outputs = f.own(packed.span_starts, "i64"), f.own(packed.outputs, "i64")
        self.reached = T.alloc_buffer((GROUPS_TOGETHER * TREES_IN_GROUP * most,), "uint8")

    def run(self, first: Expr, rows: int) -> None:
        """Add the leaf values of the rows first … first + rows of the block to their sums."""
        f = self.f
        with f.repeat(self.spans) as span:
            output = T.Bind(f.constant(self.outputs, "i64", span))
            self.leaves.begin(span, rows)
            last = T.Bind(f.constant(self.span_starts, "i64", span + 1))
            start = T.Bind(f.constant(self.span_starts, "i64", span))
            with T.serial(tirx.const(0, "int64"), (last - start + (GROUPS_TOGETHER - 1)) // GROUPS_TOGETHER) as part:
                begin = T.Bind(start + part * GROUPS_TOGETHER)
                end = T.Bind(tirx.Min(begin + GROUPS_TOGETHER, last))
                with T.serial(begin, end) as group:
                    if self.sets is not None:
                        self.sets.run(group, first, rows)
                    self.scan(group, T.Bind((group - begin) * (TREES_IN_GROUP * rows)), first, rows)
                self.leaves.add((begin, end, begin), output, first, self.reached, rows)
            self.leaves.end(output, first, rows)

    def scan(self, group: Expr, place: Expr, first: Expr, rows: int) -> None:
        """Store the leaves that the rows reach in a group's trees at reached[place …], as [trees, rows]."""
        raise NotImplementedError

    def _steps(self, starts: Array, at: Expr) -> AbstractContextManager[Expr]:
        """The loop over the steps of a group or tree."""
        start, end = (T.Bind(self.f.constant(starts, "i64", at + i)) for i in range(2))
        return T.serial(start, end)  # type: ignore[no-any-return]

    def _plane(self, planes: Array, at: Expr, first: Expr) -> Expr:
        """Where the ranks that a split tests begin, for the rows from `first` on."""
        return T.Bind(tirx.Cast("int64", self.f.constant(planes, dtype_name(planes.dtype), at)) * self.f.block + first)

    def _everywhere(self, array: Array, at: Expr, lanes: int) -> Expr:
        """A word, or a byte four times a word, in all lanes."""
        if array.dtype == np.uint8:
            return T.Bind(_words(tirx.Broadcast(self.f.constant(array, "u8", at), 4 * lanes)))
        return T.Bind(tirx.Broadcast(self.f.constant(array, "i32", at), lanes))


class PiecesScan(Scan):
    """Scans one tree after the other, in pieces."""

    lanes: int  # rows in a register

    def __init__(self, f: Block, packed: PackedTrees, ranks: Any, leaves: Leaves, sets: SetPlanes | None, most: int) -> None:
        super().__init__(f, packed, ranks, leaves, sets, most)
        self.pieces = [
            replace(kind, starts=f.own(kind.starts, "i64"), records=f.own(kind.records, dtype_name(kind.records.dtype)))
            for kind in packed.splits
        ]
        # One buffer for each register. With a longer buffer, LLVM joins pairs of registers and takes them apart at every split.
        self.candidates = [T.alloc_buffer((self.lanes // 4,), "int32") for _ in range(most // self.lanes)]

    def scan(self, group: Expr, place: Expr, first: Expr, rows: int) -> None:
        f, candidates = self.f, self.candidates[: rows // self.lanes]
        zero = tirx.Broadcast(tirx.const(0, "int32"), self.lanes // 4)
        # `origin` is 0. TVM takes vector accesses at a constant place apart; at a loop variable it keeps them whole.
        with f.repeat(TREES_IN_GROUP) as tree, f.repeat(1) as origin:
            for candidate in candidates:
                store(candidate, zero, origin, self.lanes // 4)
            for pieces_ in self.pieces:
                with self._steps(pieces_.starts, group * TREES_IN_GROUP + tree) as piece:
                    self._piece(candidates, pieces_, piece, first, origin)
            for slot, candidate in enumerate(candidates):
                leaf = _bytes(vector(candidate, origin, self.lanes // 4), self.lanes)
                store(self.reached, leaf, place + tree * rows + slot * self.lanes, self.lanes)

    def _piece(self, candidates: list[Any], pieces_: PackedPieces, at: Expr, first: Expr, origin: Expr) -> None:
        f, size, records = self.f, pieces_.size, pieces_.records
        record = T.Bind(at * records.shape[1])
        planes = [self._plane(records, record + i, first) for i in range(size)]
        ranks = [self._everywhere(records, record + size + i, self.lanes // 4) for i in range(size)]
        lo = self._everywhere(records, record + 2 * size, self.lanes // 4)
        if size == 1 or (size == 2 and records.dtype == np.int32):
            table = self._everywhere(records, record + 2 * size + 1, self.lanes // 4)
        elif records.dtype == np.uint8:
            count = 1 << size
            part = T.Bind(f.constants(records, "u8", record + 2 * size + 1, count))
            table = T.Bind(_words(shuffled([part] * (self.lanes // count), list(range(self.lanes)))))
        else:
            words = 1 << (size - 2)
            part = T.Bind(f.constants(records, "i32", record + 2 * size + 1, words))
            places = [tirx.const(i, "int32") for i in range(self.lanes // 4)]
            table = part if words == len(places) else T.Bind(tirx.Shuffle([part] * (len(places) // words), places))
        for slot, candidate in enumerate(candidates):
            values = [vector(self.ranks, plane + slot * self.lanes, self.lanes) for plane in planes]
            leaf = vector(candidate, origin, self.lanes // 4)
            store(candidate, self._next(leaf, lo, table, values, ranks), origin, self.lanes // 4)

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], ranks: list[Expr]) -> Expr:
        """The candidate leaves after a piece. values: the rows' bytes of its planes. All other arguments and the result are words."""
        raise NotImplementedError


class MasksScan(PiecesScan):
    """Pieces with compares into masks, 64 rows in a register: leaf = where(leaf == lo, table[index], leaf)."""

    lanes = ROWS_IN_VECTOR

    def __init__(self, f: Block, packed: PackedTrees, ranks: Any, leaves: Leaves, sets: SetPlanes | None, most: int) -> None:
        super().__init__(f, packed, ranks, leaves, sets, most)
        # 0, but LLVM does not know it. Where it knows which bits are 0, it turns `+` into `or`; but only `+` takes one instruction
        # for the rows of a mask.
        self.zero = T.Bind(broadcast(tirx.Cast("uint8", f.size(0)), ROWS_IN_VECTOR))

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], ranks: list[Expr]) -> Expr:
        left = [tirx.LT(value, _bytes(rank, ROWS_IN_VECTOR)) for value, rank in zip(values, ranks, strict=True)]
        index = self.zero
        # The highest bit is added first, since LLVM knows that nothing is carried beyond it.
        for bit in (len(left) - 1, *range(len(left) - 1)):
            index = T.Bind(
                tirx.Select(left[bit], tirx.Add(index, broadcast(tirx.const(1 << bit, "uint8"), ROWS_IN_VECTOR)), index)
            )
        lookup = "llvm.x86.avx512.permvar.qi.512" if self.f.dialect.byte_permute else "llvm.x86.avx512.pshuf.b.512"
        found = tirx.call_llvm_pure_intrin("uint8x64", lookup, _bytes(table, ROWS_IN_VECTOR), index)
        here = tirx.EQ(_bytes(leaf, ROWS_IN_VECTOR), _bytes(lo, ROWS_IN_VECTOR))
        return tirx.reinterpret("int32x16", tirx.Select(here, found, _bytes(leaf, ROWS_IN_VECTOR)))


class BytesScan(PiecesScan):
    """Pieces with compares into bytes, 32 rows in a register: leaf ^= (leaf == lo) & table[index]."""

    lanes = HALF

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], ranks: list[Expr]) -> Expr:
        both = zip(values, ranks, strict=True)
        stays = [_bits(tirx.LT(as_signed(value, HALF), as_signed(rank, HALF))) for value, rank in both]
        return self._logic(CHANGE_WHERE, leaf, _equal(leaf, lo), self._looked_up(table, stays))

    def _looked_up(self, table: Expr, stays: list[Expr]) -> Expr:
        """Each row's byte of a table. Bit i of a row's index says whether the row goes left at split i: bytes stays[i] of all or no bits.

        A piece of one split needs no index: the table has its byte for the right, and rows that go left get 0.
        """
        if len(stays) == 1:
            return self._logic(UNLESS, stays[0], table, table)
        if self.f.dialect.byte_permute:  # this look-up ignores the higher bits of an index
            index = stays[0]
            for bit, next_ in enumerate(stays[1:], 1):
                index = self._logic(CHOOSE, _each((1 << bit) - 1), index, next_)
            lookup = "llvm.x86.avx512.permvar.qi.256"
        else:
            index = tirx.bitwise_and(stays[0], _each(1))  # this look-up gives 0 where the highest bit of an index is set
            for bit, next_ in enumerate(stays[1:], 1):
                index = tirx.bitwise_or(index, tirx.bitwise_and(next_, _each(1 << bit)))
            lookup = "llvm.x86.avx2.pshuf.b"
        return _words(tirx.call_llvm_pure_intrin("uint8x32", lookup, _bytes(table, HALF), _bytes(index, HALF)))

    def _logic(self, table: int, a: Expr, b: Expr, c: Expr) -> Expr:
        """A bitwise function of three operands: UNLESS, CHOOSE or CHANGE_WHERE."""
        if self.f.dialect.wide:
            # One instruction. LLVM does not look into it; otherwise it would turn the compares back into masks.
            number = tirx.const(table, "int32")
            return tirx.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.pternlog.d.256", a, b, c, number)
        if table == UNLESS:
            return tirx.bitwise_and(tirx.bitwise_not(a), b)
        if table == CHOOSE:
            return tirx.bitwise_xor(c, tirx.bitwise_and(a, tirx.bitwise_xor(b, c)))
        return tirx.bitwise_xor(a, tirx.bitwise_and(b, c))


UNLESS, CHOOSE, CHANGE_WHERE = 0b00001100, 0b11001010, 0b01111000
"""Functions for `BytesScan._logic`: ~a & b; b where a is set, else c; a ^ (b & c). Bit 4a + 2b + c of the number is the result for the
bits a, b, c."""


def _bytes(words: Expr, lanes: int) -> Expr:
    """Words as vectors of bytes."""
    return tirx.reinterpret(many("uint8", lanes), words)


def _each(byte: int) -> Expr:
    """A byte in all lanes, as words."""
    return tirx.Broadcast(tirx.const(byte * 0x01010101, "int32"), WORDS)


def _words(bytes_: Expr) -> Expr:
    """32 bytes as the words that TVM's bitwise functions take."""
    return tirx.reinterpret(many("int32", WORDS), bytes_)


def _bits(test: Expr) -> Expr:
    """Bytes of all bits where a test is true, of no bits elsewhere; in words."""
    ones, zero = (tirx.Broadcast(tirx.const(value, "int8"), HALF) for value in (-1, 0))
    return _words(tirx.Select(test, ones, zero))


def _equal(a: Expr, b: Expr) -> Expr:
    """Bytes of all bits where the bytes are equal, of no bits elsewhere; in words."""
    return _bits(tirx.EQ(as_signed(a, HALF), as_signed(b, HALF)))


class SetPlanes:
    """Emits the planes of the category sets that a group of trees tests: a row's byte is not 0 if the row goes right."""

    def __init__(self, f: Block, op: TreeEnsemble, x: Node, packed: PackedTrees, ranks: Any, planes: int) -> None:
        self.f, self.ranks, self.planes = f, ranks, f.size(planes)
        self.codes = Codes(f, op, x)
        own = f.once(pack_sets, op)
        self.registers, self.size = -(-own.bytes.shape[1] // ROWS_IN_VECTOR), f.size(own.bytes.shape[1])
        self.starts = f.own(packed.set_starts, "i64")
        self.columns = f.own(own.set_column[packed.sets], "i64")
        # The sets in the order of use. The padding lets whole registers be loaded, and lets places without a row look up any byte.
        padding = np.zeros(256, np.uint8)
        self.bytes = f.own(np.concatenate([own.bytes[packed.sets].reshape(-1), padding]), "u8")

    def fill(self, rows: Expr) -> None:
        """Compute the category codes of the first `rows` rows of the block."""
        with T.serial(tirx.const(0, "int64"), rows) as row:
            self.codes.fill(row)

    def run(self, group: Expr, first: Expr, rows: int) -> None:
        """Fill the planes of a group, for the rows first … first + rows of the block."""
        f = self.f
        start = T.Bind(f.constant(self.starts, "i64", group))
        count = T.Bind(f.constant(self.starts, "i64", group + 1) - start)
        with T.serial(tirx.const(0, "int64"), count) as slot:
            column = T.Bind(f.constant(self.columns, "i64", start + slot))
            set_ = T.Bind((start + slot) * self.size)
            plane = T.Bind((slot + self.planes) * f.block + first)
            if f.dialect.byte_permute:
                for at in range(0, rows, ROWS_IN_VECTOR):
                    test = self.codes.test_many(self.bytes, set_, self.registers, column, first + at)
                    store(self.ranks, held(f, test, ROWS_IN_VECTOR), plane + at, ROWS_IN_VECTOR)
            else:
                with f.repeat(rows) as row:
                    test = self.codes.test(self.bytes, set_, column, first + row)
                    T.buffer_store(self.ranks, held(f, test), [plane + row])
