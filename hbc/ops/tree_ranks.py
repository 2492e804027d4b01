"""Tree ensembles as kernels read them that scan: thresholds become ranks, leaves are numbered from left to right.

Every split `x <= t` becomes `rank(x) <= rank(t)`, where rank(x) counts the thresholds of x's feature that are < x: an exact
replacement, since it is monotone and changes exactly at the thresholds (docs/tree-kernels.md §1). A NaN gets a rank that
sends it where it goes: 0 for always left, the number of thresholds for always right.

Kernels compare bytes. A column with more than 255 thresholds has several planes: plane k holds rank − 255·k, limited to 0…255,
and a split looks at the plane that its threshold falls into. A column whose NaN go both ways is ranked once: one plane has them above
all ranks, and another, made from it, below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

PLANE = 255  # thresholds that a byte tells apart


@dataclass(frozen=True)
class RankedTrees:
    """The ensemble in ranks. C columns of ranks, P + D planes of bytes, J splits of all T trees
    (parents before their children, tree by tree).

    column_feature i32[C]: the feature that a column ranks; missing_rank i32[C]: the rank of its NaN;
    thresholds: for each column its ascending different thresholds, in x's dtype;
    plane_column, plane_first i32[P]: a plane's column, and the first rank that it tells from lower ones (255·k);
    below i32[D]: plane P + d is plane below[d] but for the byte of NaN, which is 255 there and 0 here;
    split_plane, split_rank, split_lo, split_mid i32[J]: at a split the leaves [lo, …) are reached; those from mid on are to
    the right, where a row goes whose byte is > split_rank; starts i32[T + 1]: the splits of tree t are starts[t]:starts[t + 1];
    leaf_counts i32[T]; leaves i32[L]: the ensemble's leaf numbers tree by tree, each from left to right; leaf_starts i32[T + 1].
    A split that tests category set s has the plane P + D + s, where a row's byte is not 0 if it goes right.
    """

    column_feature: Array
    missing_rank: Array
    thresholds: tuple[Array, ...]
    plane_column: Array
    plane_first: Array
    below: Array
    split_plane: Array
    split_rank: Array
    split_lo: Array
    split_mid: Array
    split_left: Array
    split_right: Array
    split_depth: Array
    starts: Array
    leaf_counts: Array
    leaves: Array
    leaf_starts: Array

    @property
    def planes(self) -> int:
        return len(self.plane_column) + len(self.below)

    @property
    def tests_sets(self) -> bool:
        return bool(self.split_plane.max(initial=-1) >= self.planes)

    @property
    def most_thresholds(self) -> int:
        return max((len(thresholds) for thresholds in self.thresholds), default=0)


def rank_encode(op: TreeEnsemble, width: int | None = None) -> RankedTrees:
    """The ensemble as RankedTrees. Features from `width` on, if it is given, are category sets. All trees are encoded together,
    level by level: 500 trees of 255 leaves take 0.1 s."""
    levels = _levels(op)
    leaf_count = _leaf_counts(op, levels)
    first_leaf = np.zeros(len(op.feature), np.int64)
    tree_of = np.empty(len(op.feature), np.int64)
    tree_of[op.roots] = np.arange(op.n_trees)
    splits = []
    for nodes in levels:
        inner = nodes[op.feature[nodes] >= 0]
        left, right = op.left[inner], op.right[inner]
        tree_of[left] = tree_of[right] = tree_of[inner]
        first_leaf[left] = first_leaf[inner]
        first_leaf[right] = first_leaf[inner] + leaf_count[left]
        splits.append(inner)
    split = np.concatenate(splits)
    order = np.argsort(tree_of[split], kind="stable")  # tree by tree; within a tree still level by level
    split, depth = split[order], np.repeat(np.arange(len(splits)), [len(level) for level in splits])[order]
    number = np.full(len(op.feature), -1, np.int32)
    number[split] = np.arange(len(split))
    compares = np.full(len(split), True) if width is None else op.feature[split] < width
    column, column_feature, both_ways = _columns(op, split[compares])
    rank, thresholds, missing_rank = _ranks(op, split[compares], column, len(column_feature))
    missing_rank[both_ways] = PLANE
    planes = np.array([-(-len(values) // PLANE) for values in thresholds], np.int64)
    plane_column = np.repeat(np.arange(len(planes)), planes)
    first_plane = np.cumsum(planes) - planes
    split_plane = op.feature[split] - (width or 0) + len(plane_column) + len(both_ways)
    in_both = np.searchsorted(both_ways, column)
    moved = np.isin(column, both_ways) & op.missing_left[split[compares]]
    split_plane[compares] = np.where(moved, len(plane_column) + in_both, first_plane[column] + rank // PLANE)
    split_rank = np.zeros(len(split), np.int32)
    split_rank[compares] = rank % PLANE
    reached = np.concatenate(levels)
    leaf_nodes = reached[op.feature[reached] < 0]
    leaf_nodes = leaf_nodes[np.lexsort((first_leaf[leaf_nodes], tree_of[leaf_nodes]))]
    counts = leaf_count[op.roots]
    return RankedTrees(
        column_feature=column_feature,
        missing_rank=missing_rank,
        thresholds=thresholds,
        plane_column=plane_column.astype(np.int32),
        plane_first=((np.arange(len(plane_column)) - first_plane[plane_column]) * PLANE).astype(np.int32),
        below=first_plane[both_ways].astype(np.int32),
        split_plane=split_plane.astype(np.int32),
        split_rank=split_rank,
        split_lo=first_leaf[split].astype(np.int32),
        split_mid=first_leaf[op.right[split]].astype(np.int32),
        split_left=number[op.left[split]],
        split_right=number[op.right[split]],
        split_depth=depth.astype(np.int32),
        starts=np.concatenate([[0], np.cumsum(counts - 1)]).astype(np.int32),
        leaf_counts=counts.astype(np.int32),
        leaves=op.left[leaf_nodes],
        leaf_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
    )


def _levels(op: TreeEnsemble) -> list[Array]:
    """The nodes of all trees, an array for each depth."""
    levels, nodes = [], op.roots.astype(np.int64)
    while len(nodes):
        levels.append(nodes)
        inner = nodes[op.feature[nodes] >= 0]
        nodes = np.stack([op.left[inner], op.right[inner]], axis=1).ravel().astype(np.int64)
    return levels


def _leaf_counts(op: TreeEnsemble, levels: list[Array]) -> Array:
    """The number of leaves below each node, i64[M]."""
    count = np.zeros(len(op.feature), np.int64)
    for nodes in reversed(levels):
        leaf = op.feature[nodes] < 0
        count[nodes[leaf]] = 1
        inner = nodes[~leaf]
        count[inner] = count[op.left[inner]] + count[op.right[inner]]
    return count


def thresholds_by_feature(op: TreeEnsemble) -> Array:
    """The number of different thresholds of the splits on each feature, i64[at most F]."""
    inner = op.feature >= 0
    return threshold_counts(op.feature[inner], op.threshold[inner])


def threshold_counts(feature: Array, threshold: Array) -> Array:
    """The number of different thresholds of each feature, given splits `feature <= threshold`."""
    order = np.lexsort((threshold, feature))
    feature, threshold = feature[order], threshold[order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1]))
    return np.bincount(feature[new[: len(feature)]], minlength=1)


def _columns(op: TreeEnsemble, split: Array) -> tuple[Array, Array, Array]:
    """The column of each split, the feature of each column, and the columns whose NaN go both ways.

    A feature needs one plane if its NaN behave like some number: if they go right at all thresholds below it and left at all
    others. (LightGBM's missing type None makes them zeros; mostly they go one way everywhere.) Otherwise it needs two, and
    where a byte has no rank left for NaN, it has a column for each direction.
    """
    feature, left, threshold = op.feature[split], op.missing_left[split], op.threshold[split]
    features = int(feature.max(initial=-1)) + 1
    lowest_left, highest_right = np.full(features, np.inf), np.full(features, -np.inf)
    np.minimum.at(lowest_left, feature[left], threshold[left])
    np.maximum.at(highest_right, feature[~left], threshold[~left])
    mixed = lowest_left <= highest_right
    two_columns = mixed.copy()
    if mixed.any():
        two_columns &= threshold_counts(feature, threshold) >= PLANE
    keys = feature * 2 + (two_columns[feature] & ~left)
    pairs, column = np.unique(keys, return_inverse=True)
    own = pairs // 2
    return column.astype(np.int32), own.astype(np.int32), np.flatnonzero(mixed[own] & ~two_columns[own])


def _ranks(op: TreeEnsemble, split: Array, column: Array, columns: int) -> tuple[Array, tuple[Array, ...], Array]:
    """(the place of each split's threshold among the different thresholds of its column, the thresholds of each column, the rank
    of NaN in each column)."""
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
