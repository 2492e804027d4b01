"""The scan of one tree: a leaf's number is a byte, and a table has its results.

    rank[plane, row] = number of the feature's thresholds that are < x[row, feature]       # planes.py, once a block
    leaf[row] = the scan of the tree, for 256 rows                                         # pieces_scan.py
    y[row] = table[leaf[row]]                                                              # base + values, or the number of the leaf

Nothing is added, so results have every bit of the source's, and no row is added again. 10,000 rows of a tree of 113 leaves over four
columns take 5 to 6 ns a row: half of it their ranks, a fourth the scan. Nested choices take 16, walks 17, scikit-learn 16 to 22 (Zen 3;
the rows are iris again and again, whose branches processors learn).
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.trees.categories import n_features
from hbc.compiler.tvm.trees.leaves.leaves import WIDTHS
from hbc.compiler.tvm.trees.pieces.packed_pieces import PackedPieces, pack_splits
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY, Chunks, rounds_of_every, scan_of
from hbc.compiler.tvm.trees.pieces.split_order import lockstep, ranked_trees
from hbc.compiler.tvm.trees.ranks.planes import rank_planes
from hbc.compiler.tvm.trees.walk.walk import RowWalk, Sums
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

ROWS_ALONE = 4
"""Fewer rows are walked, one after the other."""


def scans_one(op: TreeEnsemble) -> bool:
    """Whether it is one tree whose leaves have numbers of a byte, and that tests no category sets."""
    return op.n_trees == 1 and n_features(op) is None and int(op.leaf_counts.max(initial=1)) <= WIDTHS[-1]


def _pack(op: TreeEnsemble, ranked: RankedTrees, dialect: Dialect) -> tuple[PackedPieces, ...]:
    return pack_splits(ranked, lockstep(ranked, op.target, 1), ranked.split_plane.astype(np.int64), dialect)


def _results(op: TreeEnsemble, ranked: RankedTrees) -> Array:
    """[K, L]: what a row gets from each leaf, by the number of the leaf; K outputs."""
    results = op.leaf_ids[ranked.leaves, None] if op.output == "leaf" else op.sums(ranked.leaves[:, None])
    return np.ascontiguousarray(results.T)


def one_tree_scan(f: Block, node: Node) -> None:
    """Emit the results of one tree, for which `scans_one` holds, for a block of rows."""
    op, dtype = node.op, node.type.dtype
    assert isinstance(op, TreeEnsemble)
    ranked = f.once(ranked_trees, op)
    splits, results = f.once(_pack, op, ranked, f.dialect), f.own(f.once(_results, op, ranked), dtype)
    outputs, leaves = results.shape[0], f.size(results.shape[1])
    several = T.Bind(rounds_of_every(f))
    chunks = Chunks(f, several, ROWS_ALONE)
    ranks = rank_planes(f, node.inputs[0], ranked, 0, chunks.scanned)
    scan, reached = scan_of(f, splits, ranks, EVERY), T.alloc_buffer((EVERY,), "uint8")

    def run(first: Expr, rows: int) -> None:
        zero = tirx.const(0, "int64")
        scan.run(zero, reached, zero, first, rows)
        count = T.Bind(tirx.Min(f.rows - first, tirx.const(rows, "int64")))
        with f.grid([outputs]) as (column,), T.serial(zero, count) as row:
            place = column * leaves + tirx.Cast("int64", reached[row])
            f.store(node, column, Row(first + row), f.constant(results, dtype, place))

    with T.serial(tirx.const(0, "int64"), several) as part:
        run(T.Bind(part * EVERY), EVERY)
    chunks.emit(run)
    alone = RowWalk(Sums(f, node, alone=True))
    with T.serial(chunks.scanned, f.rows) as row:
        alone.run_alone(row)
