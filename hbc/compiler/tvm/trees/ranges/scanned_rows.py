"""Too few rows to be sorted by ranges: they are scanned as they stand, through every range that one of them reaches (AVX2).

The code computes, for 64 or 32 rows:

    for each tree:
        exit[row] = the scan of the tree's top                                            # pieces_scan.py
        for each range with an exit of one of these rows:
            leaf[row] = the scan of the range, where the row's exit is one of this range
        sums[row] += values[the range's first leaf + leaf[row]]

So a chunk takes the time of all splits of a tree, as in scan.py, less those of ranges that no row reaches. The sums have every bit of those
of walks and of sorted rows. Chunks of 64 rows first; fewer rows than `rows_for_chunk` are walked.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import bits_of_bytes, broadcast, once_if, store, vector
from hbc.compiler.tvm.trees.leaves.reached import Reached
from hbc.compiler.tvm.trees.pieces.pieces_scan import Chunks, OwnPlanes
from hbc.compiler.tvm.trees.ranges.packed_ranges import PackedRanges, Ranges
from hbc.compiler.tvm.trees.ranks.planes import HALF, ROWS_IN_VECTOR

ROWS_FOR_CHUNK, LEAVES_OF_ROW = 14, 60
"""The fewest rows for which a chunk of 32 is faster than walks: these, and one more for so many leaves of a tree. 24 rows of 100 LightGBM
trees of 300 leaves take 0.74 of the time of walks, of 511 leaves 1.0, of 767 leaves 1.1; 32 rows 0.74, 0.6, 0.95; 64 rows 0.44, 0.6,
0.67, of 2,047 leaves 1.03; 20 rows of 400 leaves 1.24 (Zen 3)."""


def rows_for_chunk(leaves: float) -> int | None:
    """For fewer rows, walks are faster than a chunk of 32 rows, if trees have so many leaves on average. None: for every number of rows."""
    rows = ROWS_FOR_CHUNK + round(leaves / LEAVES_OF_ROW)
    return rows if rows <= HALF else None


class ScannedRows:
    """Emits the way of few rows: as they stand, through the splits of every range that one of them reaches."""

    def __init__(self, f: Block, ranges: Ranges, packed: PackedRanges, ranks: Any, reached: Reached) -> None:
        """ranks: of `ranks_of` (ranges.py)."""
        self.f, self.trees, self.reached = f, f.size(len(ranges.starts) - 1), reached
        self.own = OwnPlanes(f, ranks, ranges.ranked.planes, ROWS_IN_VECTOR)
        self.tops, self.parts = (self.own.scan_of(trees) for trees in (packed.tops, packed.parts))
        self.exits, self.leaf, self.found = (T.alloc_buffer((ROWS_IN_VECTOR,), "uint8") for _ in range(3))
        self.first_exit, self.further_exits = f.own(ranges.first_exit, "u8"), f.own(ranges.further_exits, "u8")
        self.starts = f.own(ranges.starts, "i64")
        self.exit_starts, self.leaf_of_exit = f.own(ranges.exit_starts, "i64"), f.own(ranges.leaf_of_exit, "i64")

    def rows(self, chunks: Chunks, first: Expr) -> None:
        """Send the rows of the chunks through all trees. first: where the chunks begin in the block."""
        end = T.Bind(first + chunks.scanned)
        with T.serial(first, end) as row:
            self.reached.begin(row, row)
        chunks.emit(lambda start, rows: self._chunk(T.Bind(first + start), end, rows))
        if self.reached.lanes:
            with T.serial(first, end) as row:
                self.reached.end(row, row)

    def _chunk(self, first: Expr, end: Expr, rows: int) -> None:
        """Send `rows` rows from `first` on through all trees. Those before `end` are there."""
        count = T.Bind(tirx.Min(end - first, tirx.const(rows, "int64")))
        self.own.fill(first, rows)
        with self.f.repeat(self.trees) as tree:
            self._tree(tree, first, count, rows)

    def _tree(self, tree: Expr, first: Expr, count: Expr, rows: int) -> None:
        """Find and use the leaves of a tree for `count` rows from `first` on, among `rows` that are scanned."""
        f, zero, lanes = self.f, tirx.const(0, "int64"), HALF
        self.tops.run(tree, self.exits, zero, zero, rows)
        start = T.Bind(f.constant(self.starts, "i64", tree))
        with T.serial(start, T.Bind(f.constant(self.starts, "i64", tree + 1))) as range_:
            exit_ = T.Bind(broadcast(f.constant(self.first_exit, "u8", range_), lanes))
            further = T.Bind(broadcast(f.constant(self.further_exits, "u8", range_), lanes))
            here = [tirx.LE(tirx.Sub(vector(self.exits, at, lanes), exit_), further) for at in range(0, rows, lanes)]
            mask = T.Bind(bits_of_bytes(reduce(tirx.Or, here)))
            with once_if(tirx.NE(mask, tirx.const(0, "int32"))) as origin:
                self.parts.run(range_, self.leaf, zero, zero, rows)
                for i, each in enumerate(here):
                    at = origin + i * lanes
                    store(self.found, tirx.Select(each, vector(self.leaf, at, lanes), vector(self.found, at, lanes)), at, lanes)
        exits = T.Bind(f.constant(self.exit_starts, "i64", tree))
        with T.serial(zero, count) as i:
            leaf = f.constant(self.leaf_of_exit, "i64", exits + tirx.Cast("int64", self.exits[i]))
            row = T.Bind(first + i)
            self.reached.add(tree, row, row, T.Bind(leaf + tirx.Cast("int64", self.found[i])))
