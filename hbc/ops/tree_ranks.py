"""Encodes tree ensembles for the kernels that scan: thresholds become ranks, and leaves are numbered by the splits above them.

Every split `x <= t` becomes `rank(x) <= rank(t)`, where rank(x) is the number of thresholds of x's feature that are < x. This is exact,
since the rank is monotone and changes exactly at the thresholds (docs/tree-kernels.md §1). A NaN gets the rank that sends it to its side:
0 if it always goes left, the number of thresholds if it always goes right.

Kernels compare bytes. A column with more than 255 thresholds has several planes: plane k holds rank − 255·k, limited to 0…255, and a
split compares the plane that its threshold falls into. If the NaN of a column go left at some splits and right at others, the column is
ranked once, but has two planes: one has NaN above all ranks, the other one, a copy of it, below.
"""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

MOST_IN_PLANE = 255
"""Thresholds that a byte tells apart."""


@record
class RankedTrees:
    """An ensemble in ranks. It has C columns of ranks, P + D planes of bytes, J splits and L leaves in T trees. All index arrays are i32.

    The splits come tree by tree, and in a tree level by level, so that parents come before their children. A split that
    tests category set s has the plane P + D + s; a row goes right if its byte there is not 0.

    The leaves come tree by tree, and in a tree by their numbers. The leftmost leaf has the number 0. The leftmost leaf
    below the right child of a tree's split j has the number j + 1, which kernels that scan step by step need not read.
    """

    column_feature: Array
    """[C] the feature that a column ranks."""
    missing_rank: Array
    """[C] the rank of NaN in a column."""
    thresholds: tuple[Array, ...]
    """For each column: its different thresholds, ascending, in the dtype of x."""
    plane_column: Array
    """[P] the column of a plane."""
    plane_first: Array
    """[P] 255·k for plane k of its column: the first rank that the plane tells from lower ones."""
    below: Array
    """[D] plane P + d is a copy of plane below[d], but has the byte 0 for NaN instead of 255."""
    split_plane: Array
    """[J] the plane that a split compares."""
    split_rank: Array
    """[J] a row goes right if its byte is greater than this."""
    split_lo: Array
    """[J] the number of the leftmost leaf below a split."""
    split_mid: Array
    """[J] the number of the leftmost leaf below its right child."""
    split_left: Array
    """[J] the split that is its left child; -1 if the child is a leaf."""
    split_right: Array
    """[J] the split that is its right child; -1 if the child is a leaf."""
    split_depth: Array
    """[J] the depth of a split; 0 for a root."""
    starts: Array
    """[T + 1] the splits of tree t are starts[t]:starts[t + 1]."""
    leaf_counts: Array
    """[T] the number of leaves of a tree."""
    leaves: Array
    """[L] the ensemble's own number of a leaf (a row of TreeEnsemble.values)."""
    leaf_starts: Array
    """[T + 1] the leaves of tree t are leaf_starts[t]:leaf_starts[t + 1]."""

    @property
    def planes(self) -> int:
        """P + D: the number of planes, without category sets."""
        return len(self.plane_column) + len(self.below)

    @property
    def tests_sets(self) -> bool:
        """Whether a split tests a category set."""
        return bool(self.split_plane.max(initial=-1) >= self.planes)

    @property
    def most_thresholds(self) -> int:
        return max((len(thresholds) for thresholds in self.thresholds), default=0)


def rank_encode(op: TreeEnsemble, width: int | None = None, most: int = MOST_IN_PLANE) -> RankedTrees:
    """The ensemble as RankedTrees. Features from `width` on are category sets; None: there are
    none. most: the thresholds of a plane, if it has not bytes but wider numbers.
    All trees are encoded together, level by level: 500 trees of 255 leaves take 0.1 s."""
    levels = _levels(op)
    tree_of = np.empty(len(op.feature), np.int64)
    tree_of[op.roots] = np.arange(op.n_trees)
    splits = []
    for nodes in levels:
        inner = nodes[op.feature[nodes] >= 0]
        tree_of[op.left[inner]] = tree_of[op.right[inner]] = tree_of[inner]
        splits.append(inner)
    split = np.concatenate(splits)
    order = np.argsort(tree_of[split], kind="stable")  # tree by tree; within a tree still level by level
    split, depth = split[order], np.repeat(np.arange(len(splits)), [len(level) for level in splits])[order]
    split_counts = np.bincount(tree_of[split], minlength=op.n_trees)
    starts = np.concatenate([[0], np.cumsum(split_counts)])
    leaf_number = np.zeros(len(op.feature), np.int64)  # for each node: the number of the leftmost leaf below it
    leaf_number[op.right[split]] = np.arange(len(split)) - np.repeat(starts[:-1], split_counts) + 1
    for inner in splits:
        leaf_number[op.left[inner]] = leaf_number[inner]
    number = np.full(len(op.feature), -1, np.int32)
    number[split] = np.arange(len(split))
    compares = np.full(len(split), True) if width is None else op.feature[split] < width
    column, column_feature, both_ways = _columns(op, split[compares], most)
    rank, thresholds, missing_rank = _ranks(op, split[compares], column, len(column_feature))
    missing_rank[both_ways] = most
    planes = np.array([-(-len(values) // most) for values in thresholds], np.int64)
    plane_column = np.repeat(np.arange(len(planes)), planes)
    first_plane = np.cumsum(planes) - planes
    split_plane = op.feature[split] - (width or 0) + len(plane_column) + len(both_ways)
    in_both = np.searchsorted(both_ways, column)
    moved = np.isin(column, both_ways) & op.missing_left[split[compares]]
    split_plane[compares] = np.where(moved, len(plane_column) + in_both, first_plane[column] + rank // most)
    split_rank = np.zeros(len(split), np.int32)
    split_rank[compares] = rank % most
    reached = np.concatenate(levels)
    leaf_nodes = reached[op.feature[reached] < 0]
    leaf_nodes = leaf_nodes[np.lexsort((leaf_number[leaf_nodes], tree_of[leaf_nodes]))]
    return RankedTrees(
        column_feature=column_feature,
        missing_rank=missing_rank,
        thresholds=thresholds,
        plane_column=plane_column.astype(np.int32),
        plane_first=((np.arange(len(plane_column)) - first_plane[plane_column]) * most).astype(np.int32),
        below=first_plane[both_ways].astype(np.int32),
        split_plane=split_plane.astype(np.int32),
        split_rank=split_rank,
        split_lo=leaf_number[split].astype(np.int32),
        split_mid=leaf_number[op.right[split]].astype(np.int32),
        split_left=number[op.left[split]],
        split_right=number[op.right[split]],
        split_depth=depth.astype(np.int32),
        starts=starts.astype(np.int32),
        leaf_counts=(split_counts + 1).astype(np.int32),
        leaves=op.left[leaf_nodes],
        leaf_starts=(starts + np.arange(op.n_trees + 1)).astype(np.int32),
    )


def _levels(op: TreeEnsemble) -> list[Array]:
    """The nodes of all trees, an array for each depth."""
    levels, nodes = [], op.roots.astype(np.int64)
    while len(nodes):
        levels.append(nodes)
        inner = nodes[op.feature[nodes] >= 0]
        nodes = np.stack([op.left[inner], op.right[inner]], axis=1).ravel().astype(np.int64)
    return levels


def thresholds_by_feature(op: TreeEnsemble) -> Array:
    """The number of different thresholds of the splits on each feature, i64[at most F]."""
    inner = op.feature >= 0
    return threshold_counts(op.feature[inner], op.threshold[inner])


def threshold_counts(feature: Array, threshold: Array) -> Array:
    """The number of different thresholds of each feature, given splits `feature <= threshold`.

    NumPy sorts 16-bit features by their digits, and thresholds in vectors: half a million in a sixth of the time of lexsort (Zen 5)."""
    splits = np.bincount(feature, minlength=1)
    order = np.argsort(feature.astype(np.uint16) if len(splits) <= 1 << 16 else feature, kind="stable")
    ends, found, threshold = np.cumsum(splits), np.zeros_like(splits), threshold[order]
    for one in np.flatnonzero(splits):
        values = np.sort(threshold[ends[one] - splits[one] : ends[one]])
        found[one] = 1 + np.count_nonzero(values[1:] != values[:-1])
    return found


def _columns(op: TreeEnsemble, split: Array, most: int) -> tuple[Array, Array, Array]:
    """(the column of each split, the feature of each column, the columns that need two planes for their NaN).

    One plane is enough for a feature if its NaN behave like some number: they go right at all thresholds below it, and left at all others.
    (LightGBM's missing type None makes them zeros. Mostly they go one way everywhere.) Otherwise two planes are needed. If the feature has
    so many thresholds (`most`) that a byte has no rank left for NaN, it gets two columns instead, one for each direction.
    """
    feature, left, threshold = op.feature[split], op.missing_left[split], op.threshold[split]
    features = int(feature.max(initial=-1)) + 1
    lowest_left, highest_right = np.full(features, np.inf), np.full(features, -np.inf)
    np.minimum.at(lowest_left, feature[left], threshold[left])
    np.maximum.at(highest_right, feature[~left], threshold[~left])
    mixed = lowest_left <= highest_right
    two_columns = mixed.copy()
    if mixed.any():
        two_columns &= threshold_counts(feature, threshold) >= most
    keys = feature * 2 + (two_columns[feature] & ~left)
    pairs, column = np.unique(keys, return_inverse=True)
    own = pairs // 2
    return column.astype(np.int32), own.astype(np.int32), np.flatnonzero(mixed[own] & ~two_columns[own])


def _ranks(op: TreeEnsemble, split: Array, column: Array, columns: int) -> tuple[Array, tuple[Array, ...], Array]:
    """(the rank of each split's threshold in its column, the different thresholds of each column, the rank of NaN in each column)."""
    rank = np.empty(len(column), np.int32)
    missing = np.zeros(columns, np.int32)
    thresholds = []
    order = np.argsort(column, kind="stable")
    bounds = np.searchsorted(column[order], np.arange(columns + 1))
    for c in range(columns):
        mine = order[bounds[c] : bounds[c + 1]]
        values = op.threshold[split[mine]] + 0.0  # −0.0 and 0.0 are one threshold
        different, rank[mine] = np.unique(values, return_inverse=True)
        thresholds.append(different)
        right = ~op.missing_left[split[mine]]
        missing[c] = rank[mine][right].max(initial=-1) + 1
    return rank, tuple(thresholds), missing
