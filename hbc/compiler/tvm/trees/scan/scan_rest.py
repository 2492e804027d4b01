"""Tree ensembles for what is left of a block of 256 rows: some rows, four at a time, and then the leaves of all of them.

The code computes, for up to 64 rows:

    for 128 trees:
        for four rows: leaf[row, tree]                                    # scan_few_rows.py
        few rows:      sums[row] += integers[tree, leaf[row, tree]]       # one by one
        more rows:     leaf[tree, row] = leaf[row, tree] turned           # 16 rows × 64 trees in registers
                       sums[0 … 63] += digits[tree] permuted by leaf[tree, 0 … 63]            # leaves.py

One by one, the leaves take as long as the scan. By tables, those of 64 rows take as long as those of eight. The splits of 128 trees of 31
leaves stay in L1. Larger ones come from L2 for every four rows: 64 rows of 500 trees of 255 leaves take 0.85 of the time of a chunk of 64
rows (Zen 5).

Where nearly all lanes have a tree, this serves all numbers of rows from 2 to 96, so that there is no code for four rows and for one chunk
of 64 besides. Elsewhere chunks of 64 rows are faster from some 40 rows on. More rows go in pairs of chunks first (pieces_scan.py).
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
from hbc.compiler.tvm.trees.ranks.planes import ROWS_IN_VECTOR, held
from hbc.compiler.tvm.trees.scan.packed_lanes import TREES_IN_VECTOR, PackedLanes
from hbc.compiler.tvm.trees.scan.packed_trees import TREES_IN_GROUP, PackedTrees
from hbc.compiler.tvm.trees.scan.scan_few_rows import ROWS_TOGETHER, SumLanes

BYTES_FOR_A_LEAF = 16
"""The bytes of tables that are read in the time of one leaf. For fewer rows than their quotient, leaves are read one by one."""
TURNED = BYTES_SIDE  # rows whose leaves are turned together
FULL_LANES = 1.1  # lanes for a split up to which this is always faster than chunks of 64 rows
MOST_LANES = 1.4  # lanes for a split from which on it gains too little: code for both takes 0.3 s more to compile
ROWS_BY_LANES = 52  # rows for which both are as fast, times the lanes for a split


def rows_for_lanes(packed: PackedTrees, lanes: PackedLanes, splits: int) -> int | None:
    """The most rows, up to 64, for which `RestLanes` is faster than a chunk of 64 rows, for an ensemble of so many splits. None where it
    does not take the ensemble, or gains nothing.

    Lanes without a tree take as long as others. 64 rows of 300 trees of XGBoost of depth 6 (1.18 lanes for a split) take 1.14 times as long
    as a chunk, of 150 trees of LightGBM of 31 leaves (1.28) 1.28 times, of 500 of them (1.02) 0.94 times (Zen 5).
    """
    if packed.digits is None or len(packed.sets) or packed.outputs.any():
        return None
    ratio = lanes.splits[:, 0].size / max(splits, 1)
    if ratio > MOST_LANES:
        return None
    return ROWS_IN_VECTOR if ratio <= FULL_LANES else int(ROWS_BY_LANES / ratio)


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
        f, tables, together = self.f, self.tables, self.packed.together
        with T.serial(tirx.const(0, "int64"), count) as row, f.repeat(self.planes) as plane:
            rank = held(f, self.ranks[plane * f.block + first + row])
            T.buffer_store(self.all_ranks, rank, [row * self.size_of_row + plane])
        few, many = T.Bind(tirx.LT(count, self.rows_for_tables)), tirx.LE(self.rows_for_tables, count)
        fours = T.Bind((count + (ROWS_TOGETHER - 1)) // ROWS_TOGETHER)
        with once_if(few), f.repeat(self.columns) as column:
            start = T.Bind(f.constant(self.start, "i64", column))
            with T.serial(tirx.const(0, "int64"), count) as row:
                T.buffer_store(tables.sums, start, [column * f.block + first + row])
        with f.repeat(self.groups) as group:
            with T.serial(tirx.const(0, "int64"), fours) as four, f.repeat(1) as origin:
                for i in range(ROWS_TOGETHER * self.registers):
                    place = four * (ROWS_TOGETHER * self.size_of_row) + i * TREES_IN_VECTOR
                    store(
                        self.row_ranks,
                        vector(self.all_ranks, place, TREES_IN_VECTOR),
                        origin + i * TREES_IN_VECTOR,
                        TREES_IN_VECTOR,
                    )
                self._scan(group, ROWS_TOGETHER, origin, T.Bind(four * ROWS_TOGETHER))
            lanes = self._lanes_of(group)
            with once_if(few), T.serial(tirx.const(0, "int64"), count) as row:
                self._store_rows(*lanes, row, self.places, tirx.const(0, "int64"))
                with f.repeat(self.columns) as column:
                    self._add_to_one(*lanes, column, tables.sums, T.Bind(column * f.block + first + row))
            with once_if(many):
                self._turn(T.Bind((count + (TURNED - 1)) // TURNED))
                own = T.Bind(group * (together * TREES_IN_VECTOR // TREES_IN_GROUP))
                with f.repeat(self.spans) as span:
                    begin = T.Bind(tirx.Max(own, f.constant(self.span_starts, "i64", span)))
                    after = own + together * TREES_IN_VECTOR // TREES_IN_GROUP
                    end = T.Bind(tirx.Min(after, f.constant(self.span_starts, "i64", span + 1)))
                    with once_if(tirx.LT(begin, end)):
                        tables.begin(span, ROWS_IN_VECTOR)
                        tables.add((begin, end, own), tirx.const(0, "int64"), first, self.by_tree, ROWS_IN_VECTOR)
                        tables.end(tirx.const(0, "int64"), first, ROWS_IN_VECTOR)

    def _turn(self, parts: Expr) -> None:
        """by_tree[tree, row] = reached[row, tree], for 16 · parts rows and the trees of a group."""
        f, together = self.f, self.packed.together
        with f.repeat(together) as member, T.serial(tirx.const(0, "int64"), parts) as part:
            at = [((part * TURNED + row) * together + member) * TREES_IN_VECTOR for row in range(TURNED)]
            rows = [T.Bind(vector(self.reached, place, TREES_IN_VECTOR)) for place in at]
            for i, trees in enumerate(turned_bytes(rows, TREES_IN_VECTOR)):
                for quarter in range(TREES_IN_VECTOR // TURNED):
                    bytes_ = shuffled([trees], list(range(quarter * TURNED, (quarter + 1) * TURNED)))
                    tree = member * TREES_IN_VECTOR + (quarter * TURNED + i)
                    store(self.by_tree, bytes_, tree * ROWS_IN_VECTOR + part * TURNED, TURNED)
