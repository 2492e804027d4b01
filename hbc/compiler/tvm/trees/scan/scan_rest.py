"""Tree ensembles for what is left of a block of 256 rows: some rows, four at a time, and then the leaves of all of them.

The code computes, for up to 64 rows:

    for 128 trees:
        for four rows, and the last two: leaf[row, tree]                  # scan_few_rows.py
        few rows:      sums[row] += integers[tree, leaf[row, tree]]       # one by one
        more rows:     leaf[tree, row] = leaf[row, tree] turned           # 16 rows × 64 trees in registers
                       sums[0 … 63] += digits[tree] permuted by leaf[tree, 0 … 63]            # leaves.py; two trees for up to 32 rows

One by one, the leaves take as long as the scan. By tables, those of 32 rows take as long as those of eight. The splits of 128 trees of 31
leaves stay in L1. Larger ones come from L2 for every four rows: 64 rows of 500 trees of 255 leaves take 0.85 of the time of a chunk of 64
rows (Zen 5).

Where nearly all lanes have a tree, this serves all numbers of rows from 2 to 96, so that there is no code for four rows and for one chunk
of 64 besides. Elsewhere, and on Zen 4, chunks of 64 rows are faster from some 40 rows on. More rows go in pairs of chunks first
(pieces_scan.py).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.transpose import BYTES_SIDE, turned_bytes
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import once_if, shuffled, store, vector
from hbc.compiler.tvm.trees.leaves.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.leaves.leaf_rows import LeafRows
from hbc.compiler.tvm.trees.leaves.leaves import LeafTables
from hbc.compiler.tvm.trees.pieces.pieces_scan import PAIR
from hbc.compiler.tvm.trees.ranks.planes import HALF, ROWS_IN_VECTOR, held
from hbc.compiler.tvm.trees.scan.packed_lanes import TREES_IN_VECTOR, PackedLanes
from hbc.compiler.tvm.trees.scan.packed_trees import TREES_IN_GROUP, PackedTrees
from hbc.compiler.tvm.trees.scan.scan_few_rows import ROWS_TOGETHER, SumLanes

BYTES_FOR_A_LEAF = 28
"""The bytes of tables that are read in the time of one leaf. For fewer rows than their quotient, leaves are read one by one."""
ROWS_LAST = 2
"""One or two rows behind fours are scanned as two. As four they took longer: two rows of 500 trees of 31 leaves take 0.84 of that, of 255
leaves 0.73; five or six 0.90 and 0.87, 33 or 34 0.97 (Zen 4)."""
TURNED = BYTES_SIDE  # rows whose leaves are turned together
FULL_LANES = 1.1  # lanes for a split up to which this is always faster than chunks of 64 rows
MOST_LANES = 1.4  # lanes for a split from which on it gains too little: code for both takes 0.3 s more to compile
ROWS_BY_LANES = 52  # rows for which both are as fast, times the lanes for a split
FULL_LANES_IN_HALVES, ROWS_BY_LANES_IN_HALVES, ROWS_BY_LANES_AND_HALF = 1.2, 49, 37
"""The same where there are chunks of 32 rows (Zen 4). A chunk of 64 takes less time there: 64 rows of 500 trees of 31 leaves 13.2 µs, and
16.3 in lanes, of 255 leaves 77 and 115. 48 rows of 31 leaves take 12.6 µs in lanes and 13.2 in a chunk, and 50 rows 13.7 and 13.3. A chunk
of 32 takes as long as 37 rows in full lanes, so it is faster than lanes only from 1.2 lanes for a split on."""


def rows_for_lanes(packed: PackedTrees, lanes: PackedLanes, splits: int, chunk: int) -> tuple[int, int] | None:
    """(the most rows, up to 64, for which `RestLanes` is the fastest way, the rows of the smallest chunk for more), for an ensemble of so
    many splits. None where it does not take the ensemble, or gains nothing. chunk: those of the smallest chunk of the processor.

    Lanes without a tree take as long as others. 64 rows of 300 trees of XGBoost of depth 6 (1.18 lanes for a split) take 1.14 times as long
    as a chunk, of 150 trees of LightGBM of 31 leaves (1.28) 1.28 times, of 500 of them (1.02) 0.94 times (Zen 5).
    """
    if packed.digits is None or len(packed.sets) or packed.outputs.any():
        return None
    ratio = lanes.splits[:, 0].size / max(splits, 1)
    if ratio > MOST_LANES:
        return None
    if chunk == HALF:
        if ratio > FULL_LANES_IN_HALVES:
            return int(ROWS_BY_LANES_AND_HALF / ratio), HALF
        return int(ROWS_BY_LANES_IN_HALVES / max(ratio, 1.0)), ROWS_IN_VECTOR
    return (ROWS_IN_VECTOR, PAIR) if ratio <= FULL_LANES else (int(ROWS_BY_LANES / ratio), ROWS_IN_VECTOR)


class RestLanes(SumLanes):
    """Emits the sums of some rows, into those of `LeafTables`. For ensembles of one target and without category sets: their trees have the
    same order in both packings."""

    def __init__(
        self,
        f: Block,
        lanes: PackedLanes,
        planes: int,
        ranks: Any,
        fixed: FixedPoint,
        rows_of_leaves: LeafRows,
        tables: LeafTables,
        packed: PackedTrees,
    ) -> None:
        super().__init__(f, lanes, planes, ranks, None, None, fixed, rows_of_leaves, ROWS_TOGETHER, ROWS_IN_VECTOR)
        assert packed.digits is not None
        one_by_one = max(BYTES_FOR_A_LEAF * len(lanes.place) * fixed.columns, 1)
        self.rows_for_tables = f.size(-(-packed.digits.table.size // one_by_one))
        self.tables, self.spans = tables, f.size(len(packed.outputs))
        self.span_starts = f.own(packed.span_starts, "i64")
        self.size_of_row = self.registers * TREES_IN_VECTOR
        self.all_ranks = T.alloc_buffer((ROWS_IN_VECTOR * self.size_of_row,), "uint8")
        self.by_tree = T.alloc_buffer((lanes.together * TREES_IN_VECTOR * ROWS_IN_VECTOR,), "uint8")

    def add(self, first: Expr, count: Expr) -> None:
        """Add the integers of the leaves of `count` rows, at most 64, from row `first` of the block on."""
        f, tables = self.f, self.tables
        self._turn_ranks(first, T.Bind((count + (TURNED - 1)) // TURNED))
        few, many = T.Bind(tirx.LT(count, self.rows_for_tables)), T.Bind(tirx.LE(self.rows_for_tables, count))
        most = tirx.const(HALF, "int64")
        half, whole = (T.Bind(tirx.And(many, these)) for these in (tirx.LE(count, most), tirx.LT(most, count)))
        fours = T.Bind((count + (ROWS_TOGETHER - 1 - ROWS_LAST)) // ROWS_TOGETHER)
        with once_if(few), f.repeat(self.columns) as column:
            start = T.Bind(f.constant(self.start, "i64", column))
            with T.serial(tirx.const(0, "int64"), count) as row:
                T.buffer_store(tables.sums, start, [column * f.block + first + row])
        with f.repeat(self.groups) as group:
            with T.serial(tirx.const(0, "int64"), fours) as four:
                self._scan_rows(group, T.Bind(four * ROWS_TOGETHER), ROWS_TOGETHER)
            with once_if(T.Bind(tirx.LT(fours * ROWS_TOGETHER, count))):
                self._scan_rows(group, T.Bind(fours * ROWS_TOGETHER), ROWS_LAST)
            lanes = self._lanes_of(group)
            with once_if(few), T.serial(tirx.const(0, "int64"), count) as row:
                self._store_rows(*lanes, row, self.places, tirx.const(0, "int64"))
                with f.repeat(self.columns) as column:
                    self._add_to_one(*lanes, column, tables.sums, T.Bind(column * f.block + first + row))
            for rows, these in ((HALF, half), (ROWS_IN_VECTOR, whole)):
                with once_if(these):
                    self._look_up(group, first, T.Bind((count + (TURNED - 1)) // TURNED), rows)

    def _scan_rows(self, group: Expr, first: Expr, rows: int) -> None:
        """Store the leaves that some rows from row `first` on reach in a group of trees."""
        with self.f.repeat(1) as origin:
            for i in range(rows * self.registers):
                place = first * self.size_of_row + i * TREES_IN_VECTOR
                ranks = vector(self.all_ranks, place, TREES_IN_VECTOR)
                store(self.row_ranks, ranks, origin + i * TREES_IN_VECTOR, TREES_IN_VECTOR)
            self._scan(group, rows, origin, first)

    def _turn_ranks(self, first: Expr, parts: Expr) -> None:
        """all_ranks[row, plane] = ranks[plane, row], for 16 · parts rows from row `first` of the block on."""
        f = self.f
        with f.repeat(T.Bind((self.planes + (TURNED - 1)) // TURNED)) as some, T.serial(tirx.const(0, "int64"), parts) as part:
            planes = [tirx.Min(some * TURNED + i, self.planes - 1) for i in range(TURNED)]
            ranks = [T.Bind(vector(self.ranks, plane * f.block + first + part * TURNED, TURNED)) for plane in planes]
            for i, row in enumerate(turned_bytes(ranks, TURNED)):
                place = (part * TURNED + i) * self.size_of_row + some * TURNED
                store(self.all_ranks, held(f, row, TURNED), place, TURNED)

    def _look_up(self, group: Expr, first: Expr, parts: Expr, rows: int) -> None:
        """Add the integers of the leaves in a group of trees by tables, for 16 · parts rows, at most `rows`."""
        f, tables, together = self.f, self.tables, self.packed.together * TREES_IN_VECTOR // TREES_IN_GROUP
        self._turn(parts, rows)
        own = T.Bind(group * together)
        with f.repeat(self.spans) as span:
            begin = T.Bind(tirx.Max(own, f.constant(self.span_starts, "i64", span)))
            end = T.Bind(tirx.Min(own + together, f.constant(self.span_starts, "i64", span + 1)))
            with once_if(tirx.LT(begin, end)):
                tables.begin(span, rows)
                tables.add((begin, end, own), tirx.const(0, "int64"), first, self.by_tree, rows)
                tables.end(tirx.const(0, "int64"), first, rows)

    def _turn(self, parts: Expr, size: int) -> None:
        """by_tree[tree, row] = reached[row, tree], for 16 · parts rows of `size` and the trees of a group."""
        f, together = self.f, self.packed.together
        with f.repeat(together) as member, T.serial(tirx.const(0, "int64"), parts) as part:
            at = [((part * TURNED + row) * together + member) * TREES_IN_VECTOR for row in range(TURNED)]
            rows = [T.Bind(vector(self.reached, place, TREES_IN_VECTOR)) for place in at]
            for i, trees in enumerate(turned_bytes(rows, TREES_IN_VECTOR)):
                for quarter in range(TREES_IN_VECTOR // TURNED):
                    bytes_ = shuffled([trees], list(range(quarter * TURNED, (quarter + 1) * TURNED)))
                    tree = member * TREES_IN_VECTOR + (quarter * TURNED + i)
                    store(self.by_tree, bytes_, tree * size + part * TURNED, TURNED)
