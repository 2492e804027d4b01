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
table is held in a register and looked up by a permutation of bytes (pieces_scan.py). Trees come one by one; 256 rows share the loads of a
tree.

Processors differ in the result of comparing bytes:

* AVX2 compares 32 rows into bytes of all or no bits. Zen 4 does this twice as fast as it compares into masks: 1.7 cycles a split and 64
  rows.
* AVX-512 elsewhere compares 64 rows into a mask of bits, which add up the index: 1.8 cycles on Intel. There one port alone runs compares
  and permutations, and it is busy for 1.5.

Trees of more than 256 leaves become sums of smaller trees first (small_trees.py). Where planes do not fit in the first cache, trees come
in turns (turns.py). The last few rows of a block take another way:
scan_few_rows.py where it fits; for many or uneven trees of more than 256 leaves patches.py where it fits; otherwise walk.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import once_if, store
from hbc.compiler.tvm.trees.categories import Codes, PackedSets, pack_sets, scans_sets
from hbc.compiler.tvm.trees.leaves.fixed_point import fixed_point
from hbc.compiler.tvm.trees.leaves.leaf_rows import LeafRows
from hbc.compiler.tvm.trees.leaves.leaves import WIDTHS, LeafGather, LeafParts, LeafTables, Leaves
from hbc.compiler.tvm.trees.patches.packed_patches import MOST_IN_REGISTERS, columns_of, passed
from hbc.compiler.tvm.trees.patches.patches import patchable, patches_of
from hbc.compiler.tvm.trees.pieces.pieces_scan import (
    EVERY,
    Chunks,
    OwnPlanes,
    PiecesScan,
    rounds_of_every,
    rows_of_chunk,
    scan_of,
    scans_pairs,
)
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.compiler.tvm.trees.ranks.planes import (
    HALF,
    MOST_THRESHOLDS,
    PART,
    ROWS_IN_VECTOR,
    ROWS_OF_PLANES,
    column_ranks,
    held,
    layout,
    rank_planes,
)
from hbc.compiler.tvm.trees.scan.one_tree_scan import one_tree_scan, scans_one
from hbc.compiler.tvm.trees.scan.packed_lanes import PAGE, TREES_IN_VECTOR, PackedLanes, pack_lanes
from hbc.compiler.tvm.trees.scan.packed_trees import TREES_IN_GROUP, PackedTrees, pack_trees
from hbc.compiler.tvm.trees.scan.scan_few_rows import (
    FEW_PLANES,
    MOST_LEAVES_IN_LANES,
    ROWS_TOGETHER,
    NumberLanes,
    SumLanes,
    fits_lanes,
    splits_in_lanes,
)
from hbc.compiler.tvm.trees.scan.scan_rest import RestLanes, rows_for_lanes
from hbc.compiler.tvm.trees.scan.small_trees import small_trees
from hbc.compiler.tvm.trees.scan.sums import WRITTEN, Result
from hbc.compiler.tvm.trees.scan.turns import TurnPlanes
from hbc.compiler.tvm.trees.walk.walk import RowWalk, Sums, tree_walk
from hbc.ir.graph import Node
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, thresholds_by_feature

GROUPS_TOGETHER = 8  # groups whose reached leaves are kept and then looked up, one digit after the other
FEW_ROWS_IN_LANES = (32, 56)
"""For fewer rows, scan_few_rows.py is faster than a chunk of 64 rows. The second number holds for trees of more than 128 leaves on
average."""
FEW_ROWS_IN_HALVES = (17, 7)
"""The same for a chunk of 32 rows. The second number holds for more than FEW_PLANES planes. 200 trees of 31 leaves over 100 columns: 6 rows
take 7.2 µs in lanes and 8.2 in a chunk, 8 rows 9.6 and 8.7, 16 rows 17.5 and 9.4 (Zen 3)."""
FEW_ROWS_IN_WIDE_HALVES = 20
"""The same with AVX-512 (Zen 4). 500 trees of XGBoost of depth 8 take 0.71 µs a row in lanes and 15.0 µs in a chunk, of a forest of depth 8
5.2 and 90."""
FEW_ROWS_IN_PAGES = 16
"""The same for more than 256 planes. 200 trees of 31 leaves: 8 rows take 9.3 µs in lanes over 300 columns, 20 over 1,000; 12 rows in a
chunk 17 and 43 (Sapphire Rapids)."""
FEW_ROWS_WITH_SETS = (4, 8, 12, 17, 24, 32, 48, 64)
"""The numbers that `few_rows_with_sets` gives: few, so that models share code."""
MORE_ROWS_OF_OUTPUTS = 46
"""How many rows more these are if each output has one tree; a part of them if each has a few. A chunk begins and ends the sums of each
output. 32 rows of 1,000 classes with a tree each take 59 µs in lanes and 98 in a chunk, of 300 classes with three trees each 29 and 39
(Zen 5)."""
TEST_OF_CHUNK = (1.08, 1.72)
"""The nanoseconds in which the smallest chunk tests a category set of up to 125 categories (see `few_rows_with_sets`), with AVX2 and with
AVX-512. On Zen 4 a chunk of 32 rows takes as long as one of 64."""
TEST_OF_ROW, KEY_OF_SET = 1.1, 0.024
"""The nanoseconds to look a category set up for one row, and to make its key for a row that is walked (Zen 4)."""
PATCHES_SURELY = 1.25  # rows alone take patches where a walk is so many times slower by the estimates
HALVES_LATER = 1.8
"""How much longer half a chunk of 64 rows takes with AVX2 than `rows_alone` says of AVX-512: 1.9 to 2.3 times, in code for Zen 3 on Zen 5.
10 rows of 100 LightGBM trees of 511 leaves take 1.3 µs a row alone and 2.8 in a chunk. On Zen 4 it takes 1.2 times as long; but rows alone
behind a chunk take twice as long as those of a call of few rows, whose nodes are still in the cache."""
MOST_LEAVES = 2048  # the most leaves of a tree: walking larger trees is faster
MOST_NODES_WALKED = 1 << 17
"""The most nodes of an ensemble whose rows alone are walked where patches can run too: 1 MiB, which the second-level cache of Zen 5 holds.
Rows take a seventh to a quarter less so (100 trees of depth 10, 60 of depth 12); 200 trees of depth 12 take twice as long."""
MOST_DEPTH = 192  # the greatest depth of a tree, whose parts have all splits above them


def most_alone(wide: bool) -> int:
    """So many rows, one after the other, take less time than four together. wide: with AVX-512."""
    return 1 if wide else 2


def few_rows_in_lanes(large: bool, planes: int, chunk: int, wide: bool, trees: int, outputs: int, values: int) -> int:
    """For fewer rows, scan_few_rows.py is faster than a chunk of so many rows. large: see FEW_ROWS_IN_LANES. wide: with AVX-512. values: of
    a leaf."""
    few = FEW_ROWS_IN_LANES[large]
    if chunk == HALF:
        few = FEW_ROWS_IN_WIDE_HALVES if wide else FEW_ROWS_IN_HALVES[planes > FEW_PLANES]
    if planes > PAGE:
        few = FEW_ROWS_IN_PAGES
    if outputs == 1 or values > 1 or trees < TREES_IN_VECTOR:
        return few
    return max(few, min(few + MORE_ROWS_OF_OUTPUTS * outputs // trees, chunk))


def few_rows_with_sets(ranked: RankedTrees, sets: PackedSets, tested: int, dialect: Dialect) -> int:
    """The same for ensembles with category sets: one of FEW_ROWS_WITH_SETS. tested: the sets that a chunk tests.

    The times in nanoseconds were fitted on Zen 4 to 14 ensembles of 20 to 500 trees, 8 to 127 leaves and 10 to 900 categories, within a
    sixth. They cross at 12 rows (20 trees), 31 (500 trees, a third of the splits test sets) and 49 (500 trees, nearly all); with AVX2 at 8,
    19 and 29. There a chunk has 32 rows; on Zen 4 one of 32 takes 0.9 of the time of one of 64. Further parts are the look-ups of 16 bytes.
    """
    trees, splits, in_lanes, columns = len(ranked.leaf_counts), len(ranked.split_lo), splits_in_lanes(ranked), len(sets.columns)
    parts = 0 if dialect.byte_permute else max(-(-ranked.planes // PART) - 1, 0)
    if not dialect.wide:
        chunk = 0.49 * splits + 2.0 * trees
        lanes = (0.036 + 0.01 * parts + 0.0015 * columns) * in_lanes + 0.3 * trees + 20
    else:
        chunk = 0.6 * splits + 4.6 * trees
        lanes = (0.03 + 0.008 * parts + 0.001 * columns) * in_lanes + 0.33 * trees + 20
    few = min(max((chunk + time_of_sets(sets, tested, dialect)) / lanes, FEW_ROWS_WITH_SETS[0]), rows_of_chunk(dialect))
    return max(rows for rows in FEW_ROWS_WITH_SETS if rows <= few)


def time_of_sets(sets: PackedSets, tested: int, dialect: Dialect) -> float:
    """The nanoseconds in which a chunk tests so many category sets (see `few_rows_with_sets`)."""
    parts_of_set = -(-sets.bytes.shape[1] // PART) - 1
    if not dialect.byte_lookup:
        return ROWS_IN_VECTOR * TEST_OF_ROW * tested
    further_part = 0.15 if dialect.byte_permute else 0.29 if dialect.wide else 0.2
    return (TEST_OF_CHUNK[dialect.wide] + further_part * parts_of_set) * tested


def walking(steps: int) -> float:
    """The nanoseconds of so many steps of a row in all trees, without keys and leaves (see `rows_alone`)."""
    return 0.67 * steps


def patching(splits: int, trees: int, columns: int) -> float:
    """The same for patches, which compare so many columns. Fitted on Zen 5 to ensembles of 30 to 200 trees, and 170 to 2,100 splits a tree,
    within 1.3 times."""
    in_memory = 0.6 if columns > MOST_IN_REGISTERS else 0.0
    return (in_memory + (2.7 if many_nodes(splits, trees) else 2.0)) * trees * passed(splits, trees)


def many_nodes(splits: int, trees: int) -> bool:
    """Whether trees of so many splits have more than MOST_NODES_WALKED nodes."""
    return 2 * splits + trees > MOST_NODES_WALKED


def rows_take_patches(splits: int, trees: int, steps: int, columns: int) -> bool:
    """Whether patches, where they fit, are the faster way of a row alone through trees of so many splits and levels: there are many nodes,
    or many levels for so few splits. A row of 100 LightGBM trees of 511 leaves takes 1.18 µs so, and 1.43 walked; of depth 10, 1.23 and
    1.18 (Zen 5)."""
    return many_nodes(splits, trees) or PATCHES_SURELY * patching(splits, trees, columns) < walking(steps)


def rows_alone(
    trees: int,
    splits: int,
    values: int,
    leaves: int,
    going: float,
    columns: int,
    planes: int,
    of_chunk: int,
    wide: bool,
    testing: float = 0.0,
) -> int:
    """For fewer rows, at least 1 and at most `of_chunk`, rows that go alone from node to node are faster than a chunk of `of_chunk` rows.

    trees, splits, leaves: of the scanned trees, and the leaves of the largest. values: of a leaf. going: the nanoseconds of a row alone,
    `walking` or `patching`. columns: those that are compared. planes: those of their ranks, without second ones for NaN. testing: the
    nanoseconds in which a chunk tests category sets; those of a row alone are in `going`.

    The times in nanoseconds were fitted on Zen 5 to ten ensembles of 20 and 300 columns, within a fifth. Those of walks are a seventh
    longer, since a chunk that comes too early costs less. They cross at 6 rows (100 trees of 31 leaves, 300 columns), 13 (30 of 200
    leaves), 34 (40 forest trees of depth 10), 62 (20 of unlimited depth). With AVX2 they cross HALVES_LATER times later. A column takes
    0.3 ns where registers of numbers become keys at once (keys.py), and 1 elsewhere.
    """
    tables = next((width for width in WIDTHS if leaves <= width), WIDTHS[-1]) // WIDTHS[0]
    chunk = (0.58 * splits + 10.6 * trees + 2.2 * trees * values * tables) * (1 if wide else HALVES_LATER)
    alone = going + 0.65 * columns + 0.43 * trees * values
    ranks = 1.3 * columns + 4.7 * min(planes - columns, columns)  # only rows that are scanned have them
    rows = (chunk * of_chunk / ROWS_IN_VECTOR + testing) / max(alone - ranks, 1e-9)
    return min(max(round(rows), 1), of_chunk)


def scannable(op: TreeEnsemble) -> bool:
    """Whether `tree_scan` can run an ensemble within the numerical contract (docs/tree-kernels.md §9). Leaf numbers of several trees are
    scanned as few rows are, where leaves are numbered by bytes."""
    if scans_one(op):
        return thresholds_fit(op)
    if not op.once(scans_sets):
        return False
    if op.output == "leaf":
        return int(op.leaf_counts.max(initial=1)) <= MOST_LEAVES_IN_LANES and thresholds_fit(op)
    all_exact = op.exact and not (op.near and op.n_outputs == 1)
    if op.output != "sum" or all_exact or not np.isfinite(op.values).all() or not np.isfinite(op.base).all():
        return False
    if int(op.leaf_counts.max(initial=1)) > MOST_LEAVES or int(op.depths.max(initial=0)) > MOST_DEPTH:
        return False
    return thresholds_fit(op) and op.once(fixed_point) is not None


def thresholds_fit(op: TreeEnsemble) -> bool:
    """Whether ranks have at most 16 bits."""
    return int(op.once(thresholds_by_feature).max()) <= MOST_THRESHOLDS


@tree_kernel("scan", nanoseconds=lambda op: 0.02 * len(op.feature), fits=scannable)
def tree_scan(f: Block, node: Node) -> None:
    """Emit the answers of a `TreeEnsemble` for a block of rows."""
    op = node.op
    assert isinstance(op, TreeEnsemble)
    if scans_one(op):
        one_tree_scan(f, node)
    elif op.output == "leaf":
        leaf_numbers(f, node, op)
    else:
        SumScan(f, node, op).emit()


class SumScan:
    """Emits the sums of a `TreeEnsemble` for a block of rows: ranks, then the scan, then results; then the rows to be added again.

    256 rows are scanned at once. What is left of a block takes one of three ways:

    * chunks of 64 or 32 rows, and then at most `rest` in lanes, which share the sums of the chunks (`rest` is not None);
    * such chunks, and then fewer than `few_rows` in lanes (`lanes` is not None);
    * such chunks, and then fewer than `few_rows` alone from node to node.

    `scanned`: the rows whose sums are in `leaves` before results are written. The others, behind them, are added one by one or in fours.
    """

    def __init__(self, f: Block, node: Node, op: TreeEnsemble) -> None:
        self.f, self.node, self.op = f, node, op
        small, fixed = op.once(small_trees), op.once(fixed_point)
        assert fixed is not None
        if small is not op:
            fixed = replace(fixed, integers=np.concatenate([fixed.integers, np.zeros_like(fixed.integers[:1])]))
        self.small, self.fixed = small, fixed
        self.ranked = f.once(ranked_trees, small)
        sets = f.once(pack_sets, op) if self.ranked.tests_sets else None
        in_lanes = small is op and fits_lanes(op, self.ranked, sets, f.dialect)
        self.packed = f.once(pack_trees, small, self.ranked, fixed, f.dialect, not in_lanes)
        splits, steps = int((op.leaf_counts - 1).sum()), int(op.depths.sum())
        columns = len(op.once(columns_of)[0].compared)
        in_patches = (
            small is not op and f.dialect.wide and patchable(op) and rows_take_patches(splits, op.n_trees, steps, columns)
        )
        self.in_patches = in_patches
        self.few_rows: Any
        if in_lanes:
            self.few_rows = self._few_rows_in_lanes(sets)
        else:
            going = patching(splits, op.n_trees, columns) if in_patches else walking(steps)
            self.few_rows = f.size(self._few_rows_alone(going, sets))
        # Several chunks of 64 rows at once; the last ones may have places without a row.
        self.several = T.Bind(rounds_of_every(f))
        self.whole = T.Bind(tirx.Min(f.rows, self.several * EVERY))
        self.lanes = f.once(pack_lanes_of, op, self.ranked, f.dialect) if in_lanes else None
        self.rest: int | None = None
        pairs, in_rest = scans_pairs(f), None
        if self.lanes is not None and self.ranked.planes <= PAGE and f.dialect.byte_permute:
            in_rest = rows_for_lanes(self.packed, self.lanes, len(self.ranked.split_lo), rows_of_chunk(f.dialect))
        if in_rest is not None:
            self.rest, least = in_rest
            self.chunks = Chunks(f, self.several, f.size(self.rest + 1), pairs, least)
            self.scanned = T.Bind(tirx.Select(tirx.EQ(f.rows - self.whole, tirx.const(1, "int64")), self.whole, f.rows))
        else:
            self.chunks = Chunks(f, self.several, self.few_rows, pairs)
            self.scanned = self.chunks.scanned

    def _few_rows_in_lanes(self, sets: PackedSets | None) -> int:
        """`few_rows`, where the rows behind the chunks go in lanes."""
        op, ranked = self.op, self.ranked
        if sets is not None and ranked.planes <= PAGE:
            return few_rows_with_sets(ranked, sets, len(self.packed.sets), self.f.dialect)
        large, values = len(ranked.leaves) > 128 * len(ranked.leaf_counts), op.values.shape[1]
        chunk, wide = rows_of_chunk(self.f.dialect), self.f.dialect.wide
        return few_rows_in_lanes(large, ranked.planes, chunk, wide, op.n_trees, op.n_outputs, values)

    def _few_rows_alone(self, going: float, sets: PackedSets | None) -> int:
        """`few_rows`, where the rows behind the chunks go alone. going: see `rows_alone`, without category sets."""
        ranked, tests = self.ranked, 0.0
        if sets is not None:
            going += KEY_OF_SET * len(sets.set_column)
            tests = time_of_sets(sets, len(self.packed.sets), self.f.dialect)
        return rows_alone(
            len(ranked.leaf_counts),
            len(ranked.split_lo),
            self.op.values.shape[1],
            int(ranked.leaf_counts.max(initial=1)),
            going,
            len(ranked.column_feature),
            len(ranked.plane_column),
            rows_of_chunk(self.f.dialect),
            self.f.dialect.wide,
            tests,
        )

    def emit(self) -> None:
        """Emit all of it."""
        self._rank()
        self._scan()
        fixed = self.fixed
        # For each row, whether it must be added as the source does; or, of the last row, that nothing is added yet.
        again = T.alloc_buffer((self.f.block,), "uint8") if not (fixed.exact and self.lanes is not None) else None
        result = Result(self.f, self.node, fixed, None if fixed.exact else again)
        result.write_many(self.scanned, lambda column, row: self.leaves.totals(column, row, WRITTEN))
        if self.lanes is not None:
            self._add_in_lanes(self.lanes, result, again)
        else:
            assert again is not None
            self._add_alone(again)

    def _rank(self) -> None:
        """Emit `ranks`, the planes of the block, and `sets`, those of its category sets, or None."""
        f, ranked, in_lanes = self.f, self.ranked, self.lanes is not None
        rows = f.rows if in_lanes else self.scanned
        more = int(np.diff(self.packed.set_starts).max(initial=0))
        self.places = None
        if in_lanes:
            row_by_row = min(self.few_rows - 1, ROWS_OF_PLANES) if self.rest is None else 1
            self.places = layout(f, ranked, more, row_by_row)
        (x,) = self.node.inputs
        self.ranks = self.turns = None
        if (turns := self.packed.turns) is None:
            self.ranks = rank_planes(f, x, ranked, more, rows, self.places)
        else:
            self.turns = TurnPlanes(f, turns, column_ranks(f, x, turns.columns, rows), EVERY)
        self.sets = None
        if len(self.packed.sets):
            self.sets = SetPlanes(f, self.op, x, self.packed, self.ranks, ranked.planes)
            self.sets.fill(rows)

    def _scan(self) -> None:
        """Emit the scan of `scanned` rows, into `leaves`."""
        f, packed = self.f, self.packed
        lanes = self.lanes
        places = None if lanes is None or packed.digits is None else lanes.table  # gathers read the leaves of a tree together
        self.rows_of_leaves = LeafRows(f, self.small, self.ranked, self.fixed, lanes is None, places)
        self.leaves = self._leaves()
        self.leaves.clear(self.scanned)
        scan = Scan(f, packed, self.ranks, self.leaves, self.sets, self.ranked.planes, self.turns)
        with T.serial(tirx.const(0, "int64"), self.several) as part:
            scan.run(T.Bind(part * EVERY), EVERY)
        self.chunks.emit(scan.run)
        if self.rest is not None:
            self._scan_rest()

    def _leaves(self) -> Leaves:
        """What adds the leaves that are reached: by tables of digits, or one by one."""
        f, packed = self.f, self.packed
        if packed.digits is not None:
            tables = LeafTables if f.dialect.byte_permute else LeafParts
            return tables(f, self.fixed, packed.digits, TREES_IN_GROUP, EVERY)
        outputs = np.repeat(packed.outputs, np.diff(packed.span_starts) * TREES_IN_GROUP)
        return LeafGather(f, self.fixed, self.rows_of_leaves, packed.first, outputs, TREES_IN_GROUP)

    def _scan_rest(self) -> None:
        """Emit the rows behind the chunks in lanes, up to 64 at a time."""
        assert self.lanes is not None
        assert isinstance(self.leaves, LeafTables)
        f, start, scanned = self.f, self.chunks.scanned, self.scanned
        some = RestLanes(
            f, self.lanes, self.ranked.planes, self.ranks, self.fixed, self.rows_of_leaves, self.leaves, self.packed
        )
        with T.serial(tirx.const(0, "int64"), (scanned - start + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR) as part:
            first = T.Bind(start + part * ROWS_IN_VECTOR)
            some.add(first, T.Bind(tirx.Min(scanned - first, tirx.const(ROWS_IN_VECTOR, "int64"))))

    def _add_in_lanes(self, lanes: PackedLanes, result: Result, again: Any) -> None:
        """Emit the rows behind `scanned`: four at a time, then one by one. Then those that `again` names, as the source adds them."""
        f, scanned = self.f, self.scanned
        codes, together = self.sets.codes if self.sets is not None else None, ROWS_TOGETHER if self.rest is None else 1
        leaves = self.rows_of_leaves
        if self.packed.digits is None and lanes.table is not None:
            leaves = LeafRows(f, self.op, self.ranked, self.fixed, by_column=False, places=lanes.table)
        few = SumLanes(f, lanes, self.ranked.planes, self.ranks, self.places, codes, self.fixed, leaves, together)
        alone = scanned
        if self.rest is None:
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
            return
        # This code is long, so one copy of it serves both the last row and the rows that nearly tie.
        with T.serial(alone, f.rows) as row:
            T.buffer_store(again, tirx.const(NOT_YET, "uint8"), [row])
        with T.serial(tirx.const(0, "int64"), f.rows) as row, once_if(tirx.NE(again[row], tirx.const(0, "uint8"))):
            few.run(row, 1)
            with once_if(tirx.EQ(again[row], tirx.const(NOT_YET, "uint8"))):
                result.write(row, 1, few.totals(1))
            with once_if(tirx.NE(again[row], tirx.const(0, "uint8"))):
                few.add_in_order(self.node, row)

    def _add_alone(self, again: Any) -> None:
        """Emit the rows behind `scanned`, and those that `again` names: from node to node, added as the source does."""
        f, node = self.f, self.node
        with T.serial(self.scanned, f.rows) as row:
            T.buffer_store(again, tirx.const(1, "uint8"), [row])
        alone = patches_of(f, node, alone=True).one_row if self.in_patches else RowWalk(Sums(f, node, alone=True)).run_alone
        first = self.scanned if self.fixed.exact else tirx.const(0, "int64")
        with T.serial(first, f.rows) as row, T.If(tirx.NE(again[row], tirx.const(0, "uint8"))), T.Then():
            alone(row)


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
    lanes = NumberLanes(f, op, f.once(pack_lanes_of, op, ranked, f.dialect), ranked, ranks, places, codes)
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


def pack_lanes_of(op: TreeEnsemble, ranked: RankedTrees, dialect: Dialect) -> PackedLanes:
    """The same trees, packed for scan_few_rows.py."""
    return pack_lanes(ranked, op.target, pack_sets(op) if ranked.tests_sets else None, dialect)


class Scan:
    """Emits the loops over the groups of trees, for some rows at once: a multiple of those in a register."""

    def __init__(
        self,
        f: Block,
        packed: PackedTrees,
        ranks: Any,
        leaves: Leaves,
        sets: SetPlanes | None,
        planes: int,
        turns: TurnPlanes | None,
    ) -> None:
        """planes: those of ranks, without those of sets. turns: what fills planes for each turn, if `packed` has turns."""
        self.f, self.leaves, self.sets, self.turns = f, leaves, sets, turns
        self.spans = f.size(len(packed.outputs))
        self.span_starts, self.outputs = f.own(packed.span_starts, "i64"), f.own(packed.outputs, "i64")
        self.reached = T.alloc_buffer((GROUPS_TOGETHER * TREES_IN_GROUP * EVERY,), "uint8")
        self.own = None
        if turns is not None:
            self.one = scan_of(f, packed.splits, turns.planes, EVERY, turns.most)
            self.turn_count, self.turn_starts = f.size(len(packed.turn_starts) - 1), f.own(packed.turn_starts, "i64")
            return
        self.one = scan_of(f, packed.splits, ranks, EVERY)
        if sets is None and any(kind.unit > 1 for kind in packed.splits):
            self.own = OwnPlanes(f, ranks, planes, ROWS_IN_VECTOR)
            self.near = self.own.scan_of(packed.splits)

    def run(self, first: Expr, rows: int) -> None:
        """Add the leaf values of the rows first … first + rows of the block to their sums."""
        f, zero = self.f, tirx.const(0, "int64")
        if self.turns is not None:
            self.turns.begin(first, rows)
            self.one.mask = self.turns.mask
            with f.repeat(self.turn_count) as turn:
                self.turns.fill(turn, first, rows)
                begin, end = (T.Bind(f.constant(self.turn_starts, "i64", turn + i)) for i in range(2))
                with T.serial(begin, end) as span:
                    self._span(span, self.one, zero, first, rows)
            return
        one, start_of_rows = self.one, first
        if self.own is not None and rows <= ROWS_IN_VECTOR:
            one, start_of_rows = self.near, zero
            self.own.fill(first, rows)
        with f.repeat(self.spans) as span:
            self._span(span, one, start_of_rows, first, rows)

    def _span(self, span: Expr, one: PiecesScan, start_of_rows: Expr, first: Expr, rows: int) -> None:
        """The same for the trees of one span. start_of_rows: where these rows begin in the planes that `one` reads."""
        f = self.f
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
                place = T.Bind((group - begin) * (TREES_IN_GROUP * rows))
                with f.repeat(TREES_IN_GROUP) as tree:
                    one.run(group * TREES_IN_GROUP + tree, self.reached, place + tree * rows, start_of_rows, rows)
            self.leaves.add((begin, end, begin), output, first, self.reached, rows)
        self.leaves.end(output, first, rows)


class SetPlanes:
    """Emits the planes of the category sets that a group of trees tests: a row's byte is not 0 if the row goes right."""

    def __init__(self, f: Block, op: TreeEnsemble, x: Node, packed: PackedTrees, ranks: Any, planes: int) -> None:
        self.f, self.ranks, self.planes = f, ranks, f.size(planes)
        self.codes = Codes(f, op, x)
        own = f.once(pack_sets, op)
        self.bytes_of_set, self.size = own.bytes.shape[1], f.size(own.bytes.shape[1])
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
            at_once = self.codes.at_once
            if at_once > 1:
                for at in range(0, rows, at_once):
                    test = self.codes.test_many(self.bytes, set_, self.bytes_of_set, column, first + at)
                    store(self.ranks, held(f, test, at_once), plane + at, at_once)
            else:
                with f.repeat(rows) as row:
                    test = self.codes.test(self.bytes, set_, column, first + row)
                    T.buffer_store(self.ranks, held(f, test), [plane + row])
