"""Where the leaves stand that a scan of few rows reads: those that most rows reach lie together.

One row reads one leaf of each tree. If the leaves of a tree lie together, each comes in a cache line of its own. Here leaf n of eight trees
is one line (of float64), and eight trees lie together whose likeliest leaf has the same number. Many rows reach the likeliest leaf: in 500
trees of LightGBM of 31 leaves 61 % of them. So a row reads 250 lines instead of 500.

How likely a leaf is follows from the thresholds: those of all trees lie as the numbers of a column do. A split by the i-th of n thresholds
sends some i / (n + 1) of its rows to the left. In those 500 trees this is off by 0.02 on average.
"""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array
from hbc.ops.tree_ranks import RankedTrees


def alike(ranked: RankedTrees, counts: Array, width: int) -> Array:
    """i64[T]: the trees, largest first, so that neighbours have the same likeliest leaf. counts i64[T]: the splits of each tree. width: so
    many trees take as long as the largest of them, whatever their order."""
    likely = likeliest_leaves(ranked)
    order = np.lexsort((likely, -counts))
    return order[np.lexsort((likely[order], np.arange(len(order)) // width))]


def likeliest_leaves(ranked: RankedTrees) -> Array:
    """i64[T]: the number of the leaf of each tree that most rows reach, by the thresholds. A category set sends half to the left."""
    tests_set = ranked.split_plane >= ranked.planes
    column, first = (
        np.concatenate([of_plane, of_plane[ranked.below]]) for of_plane in (ranked.plane_column, ranked.plane_first)
    )
    plane = np.where(tests_set, 0, ranked.split_plane)
    left = np.full(len(plane), 0.5)
    if len(column):
        thresholds = np.array([len(own) for own in ranked.thresholds])[column[plane]]
        left = np.where(tests_set, 0.5, (first[plane] + ranked.split_rank + 1) / (thresholds + 1))
    reached, trees = np.ones(len(plane)), len(ranked.leaf_counts)
    tree = np.repeat(np.arange(trees), np.diff(ranked.starts))
    likely = np.zeros(len(ranked.leaves))
    likely[ranked.leaf_starts[:-1][ranked.leaf_counts == 1]] = 1.0
    for depth in range(int(ranked.split_depth.max(initial=-1)) + 1):
        level = np.flatnonzero(ranked.split_depth == depth)
        for child, number, share in (
            (ranked.split_left[level], ranked.split_lo[level], left[level]),
            (ranked.split_right[level], ranked.split_mid[level], 1.0 - left[level]),
        ):
            inner, share = child >= 0, share * reached[level]
            reached[child[inner]] = share[inner]
            likely[(ranked.leaf_starts[tree[level]] + number)[~inner]] = share[~inner]
    order = np.lexsort((-likely, np.repeat(np.arange(trees), ranked.leaf_counts)))
    return order[ranked.leaf_starts[:-1]] - ranked.leaf_starts[:-1]


def leaf_rows(ranked: RankedTrees, place: Array, lanes: int, together: int) -> tuple[Array, Array, int]:
    """(first i32[lanes], rows i64[L], size): where leaves stand in a table of `size` rows. Leaf n of the tree in lane i has the row
    first[i] + n · together; rows has those of all leaves. The leaves of the same number in `together` lanes stand one behind the other. If
    that is 1, row 0 is for all lanes without a tree.

    place i64[T]: the lane of each tree."""
    count = np.zeros(lanes, np.int64)
    count[place] = ranked.leaf_counts
    if together == 1:
        first = np.zeros(lanes, np.int64)
        first[place] = ranked.leaf_starts[:-1] + 1
        size = len(ranked.leaves) + 1
    else:
        most = np.maximum(count.reshape(-1, together).max(axis=1), 1) * together
        first = (np.cumsum(most) - most)[:, None] + np.arange(together)
        size = max(int(most.sum()), together)
    first = first.reshape(-1)
    number = np.arange(len(ranked.leaves)) - np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts)
    return first.astype(np.int32), np.repeat(first[place], ranked.leaf_counts) + number * together, size
