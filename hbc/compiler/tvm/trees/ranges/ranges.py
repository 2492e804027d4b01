"""Many rows of trees of hundreds to thousands of leaves: sorted by ranges of leaves, and scanned through the splits of their range alone.

The code computes (docs/tree-kernels.md §6; a range is a run of up to 256 leaves, packed_ranges.py):

    rank[plane, row] = number of the feature's thresholds that are < x[row, feature]      # planes.py, once a block
    bytes[row] = rank[:, row]                                                             # the ranks of a row, one behind the other
    for each tree:
        exit[row] = the scan of the tree's top                                            # pieces_scan.py
        for each range of the tree:
            order = the rows with an exit of this range
            for 256 rows of these, 128, 64 or 32:
                planes = bytes[order], turned to planes                                   # in registers: 16 planes of 64 or 32 rows
                leaf = the scan of the range
                sums[order] += values[first_leaf[range] + leaf]

A scan of the whole tree (scan.py) takes time for all of its splits. Here a row takes the time of the top's and of its own range's: some 280
splits, however large the tree is. Sorting and turning take about as long as scanning those. AVX-512 VBMI2 sorts 64 rows by one instruction
for each range. AVX2 has a table of the numbers of the bits of a byte, and sorts 8 rows by it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.nest.transpose import BYTES_SIDE, turned_bytes
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import bits_of_bytes, broadcast, count_of, once_if, shuffled, store, vector
from hbc.compiler.tvm.trees.categories import n_features
from hbc.compiler.tvm.trees.leaves.reached import Reached
from hbc.compiler.tvm.trees.patches.patches import patchable, tree_patches
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY, PAIR, Chunks, scan_of
from hbc.compiler.tvm.trees.ranges.packed_ranges import (
    MOST_IN_RANGE,
    NO_EXIT,
    PackedRanges,
    Ranges,
    pack_ranges,
    ranges_of,
    short_ranges_of,
)
from hbc.compiler.tvm.trees.ranges.scanned_rows import ScannedRows, rows_for_chunk
from hbc.compiler.tvm.trees.ranks.planes import HALF, MOST_THRESHOLDS, ROWS_IN_VECTOR, rank_planes
from hbc.compiler.tvm.trees.walk.walk import tree_walk
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, thresholds_by_feature

SIDE = BYTES_SIDE
"""The planes that are turned together."""
SCANNED = {ROWS_IN_VECTOR: (ROWS_IN_VECTOR, PAIR, EVERY), HALF: (HALF, ROWS_IN_VECTOR, PAIR, EVERY - ROWS_IN_VECTOR, EVERY)}
"""The bytes of a register → the numbers of rows that are scanned together. With AVX2, 192 beside the others save 2 to 5 % of the time of
1,000 rows (Zen 3)."""
OF_BYTE = 8
"""The rows that a byte of a mask sorts."""
SORTED_FROM, SORTED_FROM_IN_HALVES = (32, 30), (64, 1.5)
"""The fewest rows of a block for which sorting is the fastest way: these, and so many for each range of a tree. The second pair holds for
AVX2. A range takes the time of 64 rows, however few it has. 100 LightGBM trees of 1,023 leaves: 128 rows take 0.80 µs a row sorted, and
0.93 by patches; of 4,095 leaves, 512 rows 0.84 and 0.75, 1,024 rows 0.53 and 0.74 (Zen 5). With AVX2 a range takes the time of 32 rows. The
time sorted over that walked, or of scanned_rows.py if it is less: of 511 leaves 1.5 for 64 rows and 0.96 for 96; of 2,047 leaves 1.14 for
64 rows, 1.04 for 80, 0.89 for 96; of 4,095 leaves 1.5, 0.99, 0.90 (Zen 3)."""
MOST_IN_SHORT = 1536
"""With AVX2, trees of up to so many leaves on average have short ranges: 10,000 rows of 100 LightGBM trees of 511 leaves take 0.47 µs each
so, and 0.53 by long ones; of 1,023 leaves 0.58 and 0.63; of 2,047 leaves 0.84 and 0.82 (Zen 3)."""
MOST_LEAVES = 1 << 14
"""The most leaves of a tree. Larger ones have too few rows of a block for each range."""
MOST_PLANES = 128
"""The most bytes of a row's ranks. Each takes time to be turned, in every tree."""


def least_rows(ranges: float, wide: bool) -> int:
    """The fewest rows of a block that are sorted, if a tree has so many ranges on average. wide: with AVX-512."""
    rows, more = SORTED_FROM if wide else SORTED_FROM_IN_HALVES
    return rows + int(more * ranges)


def short(leaves: float, wide: bool) -> bool:
    """Whether trees of so many leaves on average are cut into short ranges where they fit. wide: with AVX-512, where they were not
    measured."""
    return not wide and leaves <= MOST_IN_SHORT


def ranges_for(op: TreeEnsemble, dialect: Dialect) -> Ranges:
    """The ranges of an ensemble that is `rangeable`."""
    found = op.once(short_ranges_of) if short(float(op.leaf_counts.mean()), dialect.wide) else None
    found = found or op.once(ranges_of)
    assert found is not None
    return found


def sorting(dialect: Dialect) -> bool:
    """Whether a processor sorts rows by ranges: it has AVX-512 VBMI2, or AVX2 alone. AVX-512 without VBMI2 was not measured."""
    return dialect.byte_permute or (dialect.avx2 and not dialect.wide)


def numbers_of_bits() -> Array:
    """u8[256, OF_BYTE]: the numbers of the bits that each byte has, in order, and 0 behind them."""
    bits = np.arange(256)[:, None] >> np.arange(OF_BYTE) & 1
    order = np.argsort(-bits, axis=1, kind="stable")
    return (order * np.take_along_axis(bits, order, axis=1)).astype(np.uint8)


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
    patches, or are walked where these do not fit or with AVX2 alone; with AVX2 chunks of them are scanned (scanned_rows.py). Patches and
    walks also take all rows on processors that do not sort (`sorting`), and those of small blocks."""
    op = node.op
    assert isinstance(op, TreeEnsemble)
    few = tree_patches if patchable(op) and f.dialect.wide else tree_walk
    if not sorting(f.dialect) or f.block < EVERY:
        few(f, node)
        return
    ranges = ranges_for(op, f.dialect)
    packed, zero = f.once(pack_ranges, op, ranges, f.dialect), tirx.const(0, "int64")
    least_sorted = f.size(least_rows(len(ranges.first_leaf) / op.n_trees, f.dialect.wide))
    least_scanned = rows_for_chunk(float(op.leaf_counts.mean()))
    many = T.Bind(tirx.Select(tirx.LT(f.rows, least_sorted), zero, f.rows))
    others = T.Bind(f.rows - many)
    sorted_ = SortedRows(f, node, ranges, packed)
    if f.dialect.wide or least_scanned is None:
        sorted_.rows(many, ranks_of(f, node, ranges, many))
        few(f.beginning(others), node)
        return
    chunks = Chunks(f.beginning(others), zero, f.size(least_scanned))
    walked = T.Bind(others - chunks.scanned)  # these come first, so that they are the beginning of a block
    ranks = ranks_of(f, node, ranges, T.Bind(many + tirx.Select(tirx.LT(zero, chunks.scanned), others, zero)))
    sorted_.rows(many, ranks)
    ScannedRows(f, ranges, packed, ranks, sorted_.reached).rows(chunks, walked)
    few(f.beginning(walked), node)


def ranks_of(f: Block, node: Node, ranges: Ranges, rows: Expr) -> Any:
    """Emit the planes of ranks of the first `rows` rows of the block. Returns their buffer. There may be places without a row behind the
    last ones."""
    return rank_planes(f, node.inputs[0], ranges.ranked, EVERY // ROWS_IN_VECTOR - 1, rows)


class SortedRows:
    """Emits the way of many rows through the ranges of one ensemble."""

    def __init__(self, f: Block, node: Node, ranges: Ranges, packed: PackedRanges) -> None:
        op, self.ranked = node.op, ranges.ranked
        assert isinstance(op, TreeEnsemble)
        self.f, self.node, self.tops = f, node, packed.tops
        self.lanes = ROWS_IN_VECTOR if f.dialect.byte_permute else HALF  # the rows that are turned, and sorted, together
        self.trees = f.size(op.n_trees)
        self.tiles = f.size(-(-self.ranked.planes // SIDE))
        self.width = T.Bind(self.tiles * SIDE)  # the bytes of a row
        room = few_sizes(self.ranked.planes)  # a power of two, at least two tiles
        self.bytes = T.alloc_buffer((room * f.block,), "uint8")
        self.planes = T.alloc_buffer((room * EVERY,), "uint8")
        # There may be places without a row behind the last ones: as many as are scanned together.
        self.exits = T.alloc_buffer((f.block + EVERY,), "uint8")
        self.order = T.alloc_buffer((f.block + EVERY,), "uint16")
        self.count = f.scratch(1, "i64")
        self.leaf = T.alloc_buffer((EVERY,), "uint8")
        self.first_exit, self.further_exits = f.own(ranges.first_exit, "u8"), f.own(ranges.further_exits, "u8")
        self.bits = None if f.dialect.byte_permute else f.own(numbers_of_bits(), "u16")
        self.starts, self.first_leaf = f.own(ranges.starts, "i64"), f.own(ranges.first_leaf, "i64")
        self.scan = scan_of(f, packed.parts, self.planes, EVERY, stride=EVERY)
        self.reached = Reached(f, node, packed.values, f.block)

    def rows(self, rows: Expr, ranks: Any) -> None:
        """Send the first `rows` rows of the block through all trees. No row: no tree. ranks: of `ranks_of`."""
        f, zero = self.f, tirx.const(0, "int64")
        chunks = T.Bind((rows + (self.lanes - 1)) // self.lanes)
        tops = scan_of(f, self.tops, ranks, EVERY)
        with T.serial(zero, chunks) as chunk, f.repeat(self.tiles) as tile:
            self._to_rows(ranks, T.Bind(chunk * self.lanes), tile)
        with T.serial(zero, rows) as row:
            self.reached.begin(row, row)
        with T.serial(zero, tirx.Min(self.trees, rows * self.trees)) as tree:
            with T.serial(zero, T.Bind((rows + (EVERY - 1)) // EVERY)) as part:
                first = T.Bind(part * EVERY)
                tops.run(tree, self.exits, first, first, EVERY)
            with T.serial(rows, rows + 1) as end:  # a loop of one round: see PiecesScan (pieces_scan.py)
                store(self.exits, broadcast(tirx.const(NO_EXIT, "uint8"), self.lanes), end, self.lanes)
            start = T.Bind(f.constant(self.starts, "i64", tree))
            with T.serial(start, T.Bind(f.constant(self.starts, "i64", tree + 1))) as range_:
                self._sort(range_, chunks)
                self._use(tree, range_)
        if self.reached.lanes:
            with T.serial(zero, rows) as row:
                self.reached.end(row, row)

    def _to_rows(self, ranks: Any, first: Expr, tile: Expr) -> None:
        """Copy a tile of the planes to the bytes of the `lanes` rows from `first` on."""
        plane = T.Bind(tile * (SIDE * self.f.block) + first)
        registers = [T.Bind(vector(ranks, plane + i * self.f.block, self.lanes)) for i in range(SIDE)]
        for i, register in enumerate(turned_bytes(registers, self.lanes)):
            for part in range(0, self.lanes, SIDE):
                row = shuffled([register], list(range(part, part + SIDE)))
                store(self.bytes, row, (first + (part + i)) * self.width + tile * SIDE, SIDE)

    def _to_planes(self, first: Expr, chunks: Expr) -> None:
        """Copy the bytes of rows to planes: of so many chunks of `lanes` rows of `order`, from `first` on."""
        with self.f.repeat(self.tiles) as tile, T.serial(tirx.const(0, "int64"), chunks) as chunk:
            at = T.Bind(first + chunk * self.lanes)
            rows = [tirx.Cast("int64", self.order[at + i]) * self.width + tile * SIDE for i in range(self.lanes)]
            registers = [
                T.Bind(shuffled([vector(self.bytes, row, SIDE) for row in rows[i::SIDE]], list(range(self.lanes))))
                for i in range(SIDE)
            ]
            for i, register in enumerate(turned_bytes(registers, self.lanes)):
                store(self.planes, register, (tile * SIDE + i) * EVERY + chunk * self.lanes, self.lanes)

    def _sort(self, range_: Expr, chunks: Expr) -> None:
        """Fill `order` with the `count` rows of a range, and 0 behind them."""
        f, lanes = self.f, self.lanes
        T.buffer_store(self.count, tirx.const(0, "int64"), [0])
        first = T.Bind(broadcast(f.constant(self.first_exit, "u8", range_), lanes))
        further = T.Bind(broadcast(f.constant(self.further_exits, "u8", range_), lanes))
        with T.serial(tirx.const(0, "int64"), chunks) as chunk:
            exits = vector(self.exits, chunk * lanes, lanes)
            self._collect(tirx.LE(tirx.Sub(exits, first), further), T.Bind(chunk * lanes))
        with T.serial(self.count[0], self.count[0] + 1) as end:
            for at in range(0, EVERY, lanes):
                store(self.order, broadcast(tirx.const(0, "uint16"), lanes), end + at, lanes)

    def _collect(self, here: Expr, row: Expr) -> None:
        """Append those of the `lanes` rows from `row` on to `order` that are here."""
        f, lanes = self.f, self.lanes
        if self.bits is None:
            numbers = shuffled([tirx.const(i, "uint8") for i in range(lanes)], list(range(lanes)))
            places = tirx.call_llvm_pure_intrin(
                f"uint8x{lanes}", "llvm.x86.avx512.mask.compress", numbers, broadcast(tirx.const(0, "uint8"), lanes), here
            )
            self._append(
                tirx.Cast(f"uint16x{lanes}", places),
                broadcast(tirx.Cast("uint16", row), lanes),
                tirx.Cast("int64", count_of(here, lanes)),
                lanes,
            )
            return
        mask = T.Bind(bits_of_bytes(here))
        # `first` is added to the lanes, and `row` where all lanes have the same number: once for all bytes.
        start = T.Bind(broadcast(tirx.Cast("uint16", row), OF_BYTE))
        for first in range(0, lanes, OF_BYTE):
            byte = T.Bind(tirx.Cast("int64", tirx.bitwise_and(tirx.shift_right(mask, tirx.const(first, "int32")), 255)))
            places = tirx.Add(
                f.constants(self.bits, "u16", byte * OF_BYTE, OF_BYTE), broadcast(tirx.const(first, "uint16"), OF_BYTE)
            )
            self._append(places, start, tirx.call_llvm_pure_intrin("int64", "llvm.ctpop.i64", byte), OF_BYTE)

    def _append(self, places: Expr, start: Expr, count: Expr, lanes: int) -> None:
        """Append to `order` the first `count` of `lanes` rows, which are places + start."""
        rows = tirx.Add(places, start)
        with T.serial(self.count[0], self.count[0] + 1) as end:
            store(self.order, rows, end, lanes)
        T.buffer_store(self.count, self.count[0] + count, [0])

    def _use(self, tree: Expr, range_: Expr) -> None:
        """Find the leaves of the rows of `order`, which are in a range of a tree, and use them."""
        zero = tirx.const(0, "int64")
        leaf, count = T.Bind(self.f.constant(self.first_leaf, "i64", range_)), T.Bind(self.count[0])
        with T.serial(zero, T.Bind((count + (EVERY - 1)) // EVERY)) as part:
            first = T.Bind(part * EVERY)
            rows = T.Bind(tirx.Min(count - first, tirx.const(EVERY, "int64")))
            self._to_planes(first, T.Bind((rows + (self.lanes - 1)) // self.lanes))
            for least, most in itertools.pairwise((0, *SCANNED[self.lanes])):
                wanted = tirx.And(tirx.LT(tirx.const(least, "int64"), rows), tirx.LE(rows, tirx.const(most, "int64")))
                with once_if(wanted):
                    self.scan.run(range_, self.leaf, zero, zero, most)
            with T.serial(zero, rows) as i:
                row = T.Bind(tirx.Cast("int64", self.order[first + i]))
                self.reached.add(tree, row, row, T.Bind(leaf + tirx.Cast("int64", self.leaf[i])))
