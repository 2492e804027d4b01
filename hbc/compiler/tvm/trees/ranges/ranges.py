"""Many rows of trees of hundreds to thousands of leaves: sorted by ranges of leaves, and scanned through the splits of their range alone.

The code computes (docs/tree-kernels.md §6; a range is a run of up to 256 leaves, packed_ranges.py):

    rank[plane, row] = number of the feature's thresholds that are < x[row, feature]      # planes.py, once a block
    bytes[row] = rank[:, row]                                                             # the ranks of a row, one behind the other
    for each tree:
        range[row] = the scan of the tree's top                                           # pieces_scan.py
        for each range of the tree:
            order = the rows of this range
            for 256 rows of these, 128 or 64:
                planes = bytes[order], turned to planes                                   # in registers: 16 planes of 64 rows
                leaf = the scan of the range
                sums[order] += values[first_leaf[range] + leaf]

A scan of the whole tree (scan.py) takes time for all of its splits. Here a row takes the time of the top's and of its own range's: some 280
splits, however large the tree is. Sorting and turning take about as long as scanning those. AVX-512 VBMI2 sorts 64 rows by one instruction
for each range.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.nest.transpose import BYTES_SIDE, turned_bytes
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import broadcast, count_of, once_if, permute, shuffled, store, vector
from hbc.compiler.tvm.trees.categories import n_features
from hbc.compiler.tvm.trees.leaves.reached import Reached
from hbc.compiler.tvm.trees.patches.patches import patchable, tree_patches
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY, PAIR, scan_of
from hbc.compiler.tvm.trees.ranges.packed_ranges import MOST_IN_RANGE, Ranges, pack_ranges, ranges_of
from hbc.compiler.tvm.trees.ranks.planes import MOST_THRESHOLDS, ROWS_IN_VECTOR, rank_planes
from hbc.compiler.tvm.trees.walk.walk import tree_walk
from hbc.ir.graph import Node
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, thresholds_by_feature

SIDE = BYTES_SIDE
"""The planes that are turned together."""
NO_RANGE = 255
"""The range of places without a row. A tree has fewer ranges."""
LEAST_ROWS, ROWS_OF_RANGE = 32, 30
"""The fewest rows of a block for which sorting is faster than patches: these, and so many for each range of a tree. A range takes the time
of 64 rows, however few it has. 100 LightGBM trees of 1,023 leaves: 128 rows take 0.80 µs a row sorted, and 0.93 by patches; of 4,095
leaves, 512 rows 0.84 and 0.75, 1,024 rows 0.53 and 0.74 (Zen 5)."""
MOST_LEAVES = 1 << 14
"""The most leaves of a tree. Larger ones have too few rows of a block for each range."""
MOST_PLANES = 128
"""The most bytes of a row's ranks. Each takes time to be turned, in every tree."""


def least_rows(ranges: float) -> int:
    """The fewest rows of a block that are sorted, if a tree has so many ranges on average."""
    return LEAST_ROWS + int(ROWS_OF_RANGE * ranges)


def rangeable(op: TreeEnsemble) -> bool:
    """Whether `tree_ranges` can run an ensemble: it has a tree of more leaves than a range, no category sets, and few enough ranks."""
    leaves = int(op.leaf_counts.max(initial=1))
    if not MOST_IN_RANGE < leaves <= MOST_LEAVES or n_features(op) is not None or op.output not in ("sum", "leaf"):
        return False
    thresholds = op.once(thresholds_by_feature)
    if int(thresholds.max()) > MOST_THRESHOLDS or int(-(-thresholds // MOST_IN_PLANE).sum()) > MOST_PLANES:
        return False
    return op.once(ranges_of) is not None


@tree_kernel("ranges", nanoseconds=lambda op: 4.0 * op.n_trees, fits=rangeable)
def tree_ranges(f: Block, node: Node) -> None:
    """Emit the sums of the leaf values, or the leaf numbers, of a `TreeEnsemble` for a block of rows. Fewer than `least_rows` go through
    patches, or are walked where these do not fit. So are all rows without AVX-512 VBMI2, and those of small blocks."""
    op = node.op
    assert isinstance(op, TreeEnsemble)
    few = tree_patches if patchable(op) else tree_walk
    if not f.dialect.byte_permute or f.block < EVERY:
        few(f, node)
        return
    ranges = op.once(ranges_of)
    assert ranges is not None
    least = f.size(least_rows(len(ranges.first_leaf) / op.n_trees))
    many = T.Bind(tirx.Select(tirx.LT(f.rows, least), tirx.const(0, "int64"), f.rows))
    SortedRows(f, node, ranges).rows(many)
    few(f.beginning(T.Bind(f.rows - many)), node)


class SortedRows:
    """Emits the way of many rows through the ranges of one ensemble."""

    def __init__(self, f: Block, node: Node, ranges: Ranges) -> None:
        op, self.ranked = node.op, ranges.ranked
        assert isinstance(op, TreeEnsemble)
        packed = f.once(pack_ranges, op, ranges, f.dialect)
        self.f, self.node, self.tops = f, node, packed.tops
        self.trees = f.size(op.n_trees)
        self.tiles = f.size(-(-self.ranked.planes // SIDE))
        self.width = T.Bind(self.tiles * SIDE)  # the bytes of a row
        room = few_sizes(self.ranked.planes)  # a power of two, at least two tiles
        self.bytes = T.alloc_buffer((room * f.block,), "uint8")
        self.planes = T.alloc_buffer((room * EVERY,), "uint8")
        # There may be places without a row behind the last ones: as many as four registers of bytes have.
        self.ranges = T.alloc_buffer((f.block + EVERY,), "uint8")
        self.order = T.alloc_buffer((f.block + EVERY,), "uint16")
        self.count = f.scratch(1, "i64")
        self.leaf = T.alloc_buffer((EVERY,), "uint8")
        self.range_of = f.own(ranges.range_of, "u8")
        self.starts, self.first_leaf = f.own(ranges.starts, "i64"), f.own(ranges.first_leaf, "i64")
        self.scan = scan_of(f, packed.parts, self.planes, EVERY, stride=EVERY)
        self.reached = Reached(f, node, packed.values, f.block)

    def rows(self, rows: Expr) -> None:
        """Send the first `rows` rows of the block through all trees. No row: no tree."""
        f, zero = self.f, tirx.const(0, "int64")
        chunks = T.Bind((rows + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR)
        ranks = rank_planes(f, self.node.inputs[0], self.ranked, EVERY // ROWS_IN_VECTOR - 1, rows)
        tops = scan_of(f, self.tops, ranks, EVERY)
        with T.serial(zero, chunks) as chunk, f.repeat(self.tiles) as tile:
            self._to_rows(ranks, T.Bind(chunk * ROWS_IN_VECTOR), tile)
        with T.serial(zero, rows) as row:
            self.reached.begin(row, row)
        with T.serial(zero, tirx.Min(self.trees, rows * self.trees)) as tree:
            with T.serial(zero, T.Bind((rows + (EVERY - 1)) // EVERY)) as part:
                first = T.Bind(part * EVERY)
                tops.run(tree, self.ranges, first, first, EVERY)
            self._find_ranges(tree, chunks, rows)
            start = T.Bind(f.constant(self.starts, "i64", tree))
            with T.serial(start, T.Bind(f.constant(self.starts, "i64", tree + 1))) as range_:
                self._sort(T.Bind(tirx.Cast("uint8", range_ - start)), chunks)
                self._use(tree, range_)
        if self.reached.lanes:
            with T.serial(zero, rows) as row:
                self.reached.end(row, row)

    def _to_rows(self, ranks: Any, first: Expr, tile: Expr) -> None:
        """Copy a tile of the planes to the bytes of the 64 rows from `first` on."""
        plane = T.Bind(tile * (SIDE * self.f.block) + first)
        registers = [T.Bind(vector(ranks, plane + i * self.f.block, ROWS_IN_VECTOR)) for i in range(SIDE)]
        for i, register in enumerate(turned_bytes(registers)):
            for quarter in range(0, ROWS_IN_VECTOR, SIDE):
                row = shuffled([register], list(range(quarter, quarter + SIDE)))
                store(self.bytes, row, (first + (quarter + i)) * self.width + tile * SIDE, SIDE)

    def _to_planes(self, first: Expr, chunks: Expr) -> None:
        """Copy the bytes of rows to planes: of so many chunks of 64 rows of `order`, from `first` on."""
        with self.f.repeat(self.tiles) as tile, T.serial(tirx.const(0, "int64"), chunks) as chunk:
            at = T.Bind(first + chunk * ROWS_IN_VECTOR)
            rows = [tirx.Cast("int64", self.order[at + i]) * self.width + tile * SIDE for i in range(ROWS_IN_VECTOR)]
            registers = [
                T.Bind(shuffled([vector(self.bytes, row, SIDE) for row in rows[i::SIDE]], list(range(ROWS_IN_VECTOR))))
                for i in range(SIDE)
            ]
            for i, register in enumerate(turned_bytes(registers)):
                place = (tile * SIDE + i) * EVERY + chunk * ROWS_IN_VECTOR
                store(self.planes, register, place, ROWS_IN_VECTOR)

    def _find_ranges(self, tree: Expr, chunks: Expr, rows: Expr) -> None:
        """Replace the exits of the tree's top, in `ranges`, by the ranges behind them."""
        table = [
            T.Bind(self.f.constants(self.range_of, "u8", tree * MOST_IN_RANGE + at, ROWS_IN_VECTOR))
            for at in range(0, MOST_IN_RANGE, ROWS_IN_VECTOR)
        ]
        with T.serial(tirx.const(0, "int64"), chunks) as chunk:
            exits = T.Bind(vector(self.ranges, chunk * ROWS_IN_VECTOR, ROWS_IN_VECTOR))
            store(self.ranges, permute(table, exits), chunk * ROWS_IN_VECTOR, ROWS_IN_VECTOR)
        none = broadcast(tirx.const(NO_RANGE, "uint8"), ROWS_IN_VECTOR)
        with T.serial(rows, rows + 1) as end:  # a loop of one round: see PiecesScan (pieces_scan.py)
            store(self.ranges, none, end, ROWS_IN_VECTOR)

    def _sort(self, range_: Expr, chunks: Expr) -> None:
        """Fill `order` with the `count` rows of a range, and 0 behind them."""
        lanes = ROWS_IN_VECTOR
        T.buffer_store(self.count, tirx.const(0, "int64"), [0])
        own = broadcast(range_, lanes)
        numbers = shuffled([tirx.const(i, "uint8") for i in range(lanes)], list(range(lanes)))
        with T.serial(tirx.const(0, "int64"), chunks) as chunk:
            here = tirx.EQ(vector(self.ranges, chunk * lanes, lanes), own)
            places = tirx.call_llvm_pure_intrin(
                f"uint8x{lanes}", "llvm.x86.avx512.mask.compress", numbers, broadcast(tirx.const(0, "uint8"), lanes), here
            )
            first = broadcast(tirx.Cast("uint16", chunk * lanes), lanes)
            with T.serial(self.count[0], self.count[0] + 1) as end:
                store(self.order, tirx.Add(tirx.Cast(f"uint16x{lanes}", places), first), end, lanes)
            T.buffer_store(self.count, self.count[0] + tirx.Cast("int64", count_of(here, lanes)), [0])
        with T.serial(self.count[0], self.count[0] + 1) as end:
            for at in range(0, EVERY, lanes):
                store(self.order, broadcast(tirx.const(0, "uint16"), lanes), end + at, lanes)

    def _use(self, tree: Expr, range_: Expr) -> None:
        """Find the leaves of the rows of `order`, which are in a range of a tree, and use them."""
        zero = tirx.const(0, "int64")
        leaf, count = T.Bind(self.f.constant(self.first_leaf, "i64", range_)), T.Bind(self.count[0])
        with T.serial(zero, T.Bind((count + (EVERY - 1)) // EVERY)) as part:
            first = T.Bind(part * EVERY)
            rows = T.Bind(tirx.Min(count - first, tirx.const(EVERY, "int64")))
            self._to_planes(first, T.Bind((rows + (ROWS_IN_VECTOR - 1)) // ROWS_IN_VECTOR))
            for least, most in ((0, ROWS_IN_VECTOR), (ROWS_IN_VECTOR, PAIR), (PAIR, EVERY)):
                wanted = tirx.And(tirx.LT(tirx.const(least, "int64"), rows), tirx.LE(rows, tirx.const(most, "int64")))
                with once_if(wanted):
                    self.scan.run(range_, self.leaf, zero, zero, most)
            with T.serial(zero, rows) as i:
                row = T.Bind(tirx.Cast("int64", self.order[first + i]))
                self.reached.add(tree, row, row, T.Bind(leaf + tirx.Cast("int64", self.leaf[i])))
