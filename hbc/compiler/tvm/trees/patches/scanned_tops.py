"""The tops of deep trees, which are scanned where many rows go through patches (patches.py).

    rank[plane, row] = number of the thresholds of the tops that are < x[row, feature]     # planes.py, once a block
    for each tree, for 256 rows:
        exit = the scan of the tree's top                                                  # pieces_scan.py
        row goes on to the patch ways[tree, exit], or ends at a leaf

The top of a tree is the patch of its root with the patches behind that: up to 255 splits, whose exits a byte numbers. A row takes some
4 cycles to be scanned, and 20 to visit two patches (Zen 5). 10,000 rows of 100 LightGBM trees of 4,095 leaves take 0.75 µs each, and 1.05
without tops; of a forest of 1,270 leaves a tree 0.79 and 1.03.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.trees.patches.packed_patches import PackedPatches
from hbc.compiler.tvm.trees.pieces.packed_pieces import PackedPieces, pack_splits
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY, scan_of
from hbc.compiler.tvm.trees.pieces.split_order import lockstep
from hbc.compiler.tvm.trees.ranks.planes import MOST_THRESHOLDS, ROWS_IN_VECTOR, rank_planes
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, rank_encode, thresholds_by_feature

LEVELS = 2
"""The levels of patches in a top."""
EXITS = 256
"""The exits of a top, at most."""
LEAST_ROWS = 192
"""The fewest rows that are scanned, as if they were 256. Fewer visit the patches of the top. 128 rows of a forest take as long both ways,
and 200 rows of 100 extra-trees of 20,000 leaves, whose tops come from memory (Zen 5)."""


@record
class PackedTops:
    """The tops of an ensemble, one for each tree.

    ways i32[T, EXITS]: where an exit leads: to this patch, or if it is less than 0, to the leaf ~way.
    """

    ranked: RankedTrees
    splits: tuple[PackedPieces, ...]
    ways: Array


def pack_tops(op: TreeEnsemble, packed: PackedPatches, dialect: Dialect) -> PackedTops:
    """Pack the tops. Where so many splits have too many thresholds, they have fewer levels of patches."""
    way = _ways(op, packed)
    found = (_tops(op, packed, way, levels) for levels in range(LEVELS, -1, -1))
    ranked = rank_encode(
        next(tops for tops in found if int(tops.once(thresholds_by_feature).max(initial=0)) <= MOST_THRESHOLDS)
    )
    ways = np.zeros((op.n_trees, EXITS), np.int32)
    tree = np.repeat(np.arange(op.n_trees), ranked.leaf_counts)
    ways[tree, np.arange(len(tree)) - ranked.leaf_starts[tree]] = way[ranked.leaves]
    steps = lockstep(ranked, np.arange(op.n_trees), 1)  # in the order of the trees
    return PackedTops(ranked, pack_splits(ranked, steps, ranked.split_plane.astype(np.int64), dialect), ways)


def _ways(op: TreeEnsemble, packed: PackedPatches) -> Array:
    """For each root and each exit of a patch, by its node: its patch, or ~leaf."""
    way = np.zeros(len(op.feature), np.int32)
    way[op.roots] = np.arange(op.n_trees)
    exits, form = packed.exits, packed.form
    inner = (exits >= 0) & (op.feature[exits] >= 0)
    leaf = (exits >= 0) & ~inner
    for chosen, first, sign in ((inner, form.first_patch, 1), (leaf, form.first_leaf, -1)):
        number = packed.words[:, first, None] + np.cumsum(chosen, axis=1) - 1
        way[exits[chosen]] = number[chosen] if sign > 0 else ~number[chosen]
    return way


def _tops(op: TreeEnsemble, packed: PackedPatches, way: Array, levels: int) -> TreeEnsemble:
    """The trees down to so many levels of patches. Where they end, they have leaves, whose numbers are those of the nodes."""
    ends, patches = np.zeros(len(op.feature), bool), np.arange(op.n_trees)
    ends[op.roots] = levels == 0
    for level in range(1, levels + 1):
        exits = packed.exits[patches]
        exits = exits[(exits >= 0) & (op.feature[exits] >= 0)]
        ends[exits], patches = level == levels, way[exits]
    kept, nodes = np.zeros(len(op.feature), bool), op.roots
    while len(nodes):
        nodes = nodes[(op.feature[nodes] >= 0) & ~ends[nodes]]
        kept[nodes] = True
        nodes = np.concatenate([op.left[nodes], op.right[nodes]])
    return replace(
        op,
        feature=np.where(kept, op.feature, -1).astype(op.feature.dtype),
        left=np.where(kept, op.left, np.arange(len(op.left))).astype(op.left.dtype),
        missing_left=op.missing_left & kept,
        cover=None,
    )


class ScannedTops:
    """Emits the scan of the tops, and the ranks that it compares."""

    def __init__(self, f: Block, node: Node, packed: PackedTops, rows: Expr) -> None:
        """rows: the first ones of the block, of which `scanned` are scanned."""
        self.f = f
        parts = (rows + (EVERY - LEAST_ROWS)) // EVERY
        self.scanned = T.Bind(tirx.Min(rows, parts * EVERY))
        # There may be places without a row behind the last ones: as many as three registers have.
        ranks = rank_planes(f, node.inputs[0], packed.ranked, EVERY // ROWS_IN_VECTOR - 1, self.scanned)
        self.scan = scan_of(f, packed.splits, ranks, EVERY)
        self.ways = f.own(packed.ways, "i32")
        self.reached = T.alloc_buffer((EVERY,), "uint8")

    def run(self, tree: Expr, enter: Callable[[Expr, Expr], None]) -> None:
        """Emit enter(row, way) for the rows that are scanned. way: see `PackedTops`."""
        zero = tirx.const(0, "int64")
        with T.serial(zero, T.Bind((self.scanned + (EVERY - 1)) // EVERY)) as part:
            first = T.Bind(part * EVERY)
            self.scan.run(tree, self.reached, zero, first, EVERY)
            with T.serial(zero, T.Bind(tirx.Min(self.scanned - first, tirx.const(EVERY, "int64")))) as row:
                exit_ = tirx.Cast("int64", self.reached[row])
                enter(T.Bind(first + row), T.Bind(self.f.constant(self.ways, "i32", tree * EXITS + exit_)))
