"""Trees cut into ranges of leaves: of many rows, each is scanned through the splits of one range (ranges.py).

Number the leaves of a tree from left to right. A range is a run of up to 256 of them. The rows that reach it need those splits alone that
part it: a split whose right child begins with leaf m parts the one range that has m inside, and none if m is where a range begins. So each
split belongs to one range, or to none. The tree that the splits of a range form is the whole tree without the splits that send all of these
rows the same way.

The top of a tree are the splits that tell its ranges apart: those that part two ranges, and all above them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.leaves.reached import padded
from hbc.compiler.tvm.trees.pieces.packed_pieces import PackedPieces, pack_splits
from hbc.compiler.tvm.trees.pieces.split_order import lockstep
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, rank_encode

MOST_IN_RANGE = 256
"""The most leaves of a range: a byte numbers them."""
NO_EXIT = 255
"""The exit of places without a row. A top has fewer."""
SHORT = 128
"""The most leaves of a short range. A row is then scanned through half of the splits, and sorted twice as often."""
LEAST_OF_RANGE = 0.75
"""The fewest leaves of a range, but of a tree's last one: this part of the most. It ends where the fewest splits are above the one that
parts it from the next."""


@record
class Ranges:
    """An ensemble in ranges. A tree has one or more, and they come tree by tree.

    ranked: the ensemble in ranks.
    tops, parts: the trees that the splits of each top, and of each range, form. Their leaves are the exits of tops and the leaves of
    ranges, numbered from left to right. What `ranked` says of leaves does not hold for them.
    first_exit, further_exits u8[ranges]: the first exit of a top that leads to a range, and the number of those behind it.
    starts i64[T + 1]: tree t has the ranges starts[t]:starts[t + 1].
    first_leaf i64[ranges]: the place of a range's first leaf in `leaves`.
    exit_starts i64[T], leaf_of_exit i64[exits]: exit e of the top of tree t leads to the range that begins with the leaf
    leaf_of_exit[exit_starts[t] + e].
    leaves i64[L]: the ensemble's numbers of the leaves of all trees, from left to right.
    """

    ranked: RankedTrees
    tops: RankedTrees
    parts: RankedTrees
    first_exit: Array
    further_exits: Array
    starts: Array
    first_leaf: Array
    exit_starts: Array
    leaf_of_exit: Array
    leaves: Array


@record
class PackedRanges:
    """The scans of `Ranges`, and what their leaves have.

    tops, parts: trees in pieces, in the order of `Ranges`.
    values [L, V]: the values of `Ranges.leaves`, `padded`. If the output is leaf numbers, those: i64[L, 1].
    """

    tops: tuple[PackedPieces, ...]
    parts: tuple[PackedPieces, ...]
    values: Array


def pack_ranges(op: TreeEnsemble, ranges: Ranges, dialect: Dialect) -> PackedRanges:
    """Pack an ensemble's ranges for a processor."""
    tops, parts = (
        pack_splits(trees, lockstep(trees, np.arange(len(trees.leaf_counts)), 1), trees.split_plane.astype(np.int64), dialect)
        for trees in (ranges.tops, ranges.parts)
    )
    leaves = ranges.leaves
    return PackedRanges(tops, parts, padded(op.leaf_ids[leaves, None] if op.output == "leaf" else op.values[leaves]))


def ranges_of(op: TreeEnsemble) -> Ranges | None:
    """Cut an ensemble without category sets into ranges. Returns None if the top of a tree has too many splits, as that of a chain of
    splits has. Vectorized over all splits: 100 trees of 4,095 leaves take 0.3 s."""
    return _cut(op, MOST_IN_RANGE)


def short_ranges_of(op: TreeEnsemble) -> Ranges | None:
    """The same in short ranges."""
    return _cut(op, SHORT)


def _cut(op: TreeEnsemble, most: int) -> Ranges | None:
    """Ranges of at most so many leaves."""
    ranked = rank_encode(op)
    tree = np.repeat(np.arange(op.n_trees), np.diff(ranked.starts))
    above = _above(ranked)
    lo, mid, leaves = _from_left_to_right(ranked, tree)
    begins, starts = _begins(ranked, mid, most)
    # From here on, leaves and ranges are numbered through all trees.
    first = ranked.leaf_starts[:-1].astype(np.int64)
    lo, mid = lo + first[tree], mid + first[tree]
    own = np.searchsorted(begins, mid, side="right") - 1
    parting = begins[own] == mid
    top = _with_above(parting, above)
    if np.bincount(tree[top], minlength=1).max() >= NO_EXIT:
        return None
    exits = np.sort(np.concatenate([first, mid[top]]))  # of all tops: the first leaf behind each
    exit_starts = np.searchsorted(exits, first)
    exit_lo, exit_mid = (np.searchsorted(exits, places, side="right") - 1 - exit_starts[tree] for places in (lo, mid))
    first_exit = np.searchsorted(exits, begins)  # a range begins behind a split of the top
    return Ranges(
        ranked,
        tops=_trees(ranked, above, np.where(top, tree, -1), op.n_trees, exit_lo, exit_mid),
        parts=_trees(
            ranked, above, np.where(parting, -1, own), len(begins), np.maximum(lo, begins[own]) - begins[own], mid - begins[own]
        ),
        first_exit=(first_exit - exit_starts.repeat(np.diff(starts))).astype(np.uint8),
        further_exits=(np.diff(first_exit, append=len(exits)) - 1).astype(np.uint8),
        starts=starts,
        first_leaf=begins,
        exit_starts=exit_starts,
        leaf_of_exit=begins[np.searchsorted(begins, exits, side="right") - 1],
        leaves=ranked.leaves[leaves],
    )


def _above(ranked: RankedTrees) -> Array:
    """For each split the one above it, or -1."""
    above = np.full(len(ranked.split_lo), -1)
    for below in (ranked.split_left, ranked.split_right):
        inner = np.flatnonzero(below >= 0)
        above[below[inner]] = inner
    return above


def _levels(ranked: RankedTrees) -> list[Array]:
    """The splits of each depth, of all trees."""
    order = np.argsort(ranked.split_depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(ranked.split_depth, minlength=1))[:-1])


def _from_left_to_right(ranked: RankedTrees, tree: Array) -> tuple[Array, Array, Array]:
    """(lo, mid, leaves): the places of `RankedTrees.split_lo` and of split_mid in a tree whose leaves are numbered from left to right; and
    the leaves of all trees in that order. tree: that of each split."""
    levels, splits = _levels(ranked), len(ranked.split_lo)
    counts = np.ones(splits + 1, np.int64)  # the leaves below a split; of a leaf, number -1, it is one
    for level in reversed(levels):
        counts[level] = counts[ranked.split_left[level]] + counts[ranked.split_right[level]]
    lo, mid = np.zeros(splits, np.int64), np.zeros(splits, np.int64)
    leaves = ranked.leaf_starts[:-1].astype(np.int64).repeat(ranked.leaf_counts)
    for level in levels:
        mid[level] = lo[level] + counts[ranked.split_left[level]]
        for below, first, number in (
            (ranked.split_left[level], lo[level], ranked.split_lo[level]),
            (ranked.split_right[level], mid[level], ranked.split_mid[level]),
        ):
            inner = below >= 0
            lo[below[inner]] = first[inner]
            start = ranked.leaf_starts[tree[level[~inner]]]
            leaves[start + first[~inner]] = start + number[~inner]
    return lo, mid, leaves


def _begins(ranked: RankedTrees, mid: Array, most: int) -> tuple[Array, Array]:
    """(the first leaf of each range among those of all trees, `Ranges.starts`). mid: see `_from_left_to_right`. most: leaves of a range."""
    least = int(LEAST_OF_RANGE * most)
    begins, starts = list[int](), [0]
    for tree, leaves in enumerate(ranked.leaf_counts.tolist()):
        own = slice(ranked.starts[tree], ranked.starts[tree + 1])
        depth = np.zeros(leaves + 1, np.int32)  # of the split that parts the leaf before each place from the one at it
        depth[mid[own]] = ranked.split_depth[own]
        first = 0
        while True:
            begins.append(int(ranked.leaf_starts[tree]) + first)
            if leaves - first <= most:
                break
            first += least
            ends = depth[first : first + most - least + 1]
            first += len(ends) - 1 - int(ends[::-1].argmin())
        starts.append(len(begins))
    return np.array(begins, np.int64), np.array(starts, np.int64)


def _with_above(chosen: Array, above: Array) -> Array:
    """bool[J]: the chosen splits, and all above them."""
    chosen, going = chosen.copy(), np.flatnonzero(chosen)
    while len(going):
        going = above[going]
        going = np.unique(going[going >= 0])
        going = going[~chosen[going]]
        chosen[going] = True
    return chosen


def _trees(ranked: RankedTrees, above: Array, group: Array, groups: int, lo: Array, mid: Array) -> RankedTrees:
    """The trees that groups of splits form. group: that of each split, or -1. lo, mid: the first leaf below each split, and below its right
    child, among those of its group."""
    nearest = above.copy()  # the nearest split of the same group above
    while True:
        other = (nearest >= 0) & (group[nearest] != group)
        if not other.any():
            break
        nearest[other] = above[nearest[other]]
    order = np.argsort(group, kind="stable")
    order = order[np.searchsorted(group[order], 0) :]
    number = np.full(len(group) + 1, -1, np.int32)
    number[order] = np.arange(len(order))
    depth = np.zeros(len(group), np.int32)
    for level in _levels(ranked):
        depth[level] = np.where(nearest[level] >= 0, depth[nearest[level]] + 1, 0)
    left, right = np.full(len(order), -1, np.int32), np.full(len(order), -1, np.int32)
    below = order[nearest[order] >= 0]
    on_left = mid[below] < mid[nearest[below]]
    for side, chosen in ((left, below[on_left]), (right, below[~on_left])):
        side[number[nearest[chosen]]] = number[chosen]
    counts = np.bincount(group[order], minlength=groups)
    return replace(
        ranked,
        split_plane=ranked.split_plane[order],
        split_rank=ranked.split_rank[order],
        split_lo=lo[order].astype(np.int32),
        split_mid=mid[order].astype(np.int32),
        split_left=left,
        split_right=right,
        split_depth=depth[order],
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        leaf_counts=(counts + 1).astype(np.int32),
    )
