"""The order in which the scan visits the splits of ranked trees (hbc/ops/tree_ranks.py): trees in lockstep, or in pieces of splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.compiler.tvm.trees.categories import n_features
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees, rank_encode


def ranked_trees(op: TreeEnsemble, most: int = MOST_IN_PLANE) -> RankedTrees:
    """The ensemble in ranks. If it tests category sets, they are the features from `n_features(op)` on. most: the thresholds of a plane."""
    return rank_encode(op, n_features(op), most)


@record
class Lockstep:
    """Trees in groups of `width` that are scanned together: each step of a group has one split of each tree.

    The trees of a group add to the same output. The largest trees of an output come first. Some places of its last group may be empty.

    place i64[T]: the place of tree t, which is in group place // width.
    group_starts i64[groups + 1]: group g has the steps group_starts[g]:group_starts[g + 1].
    at: the step and the column of every split.
    outputs i64[groups]: the output of each group.
    """

    width: int
    place: Array
    group_starts: Array
    at: tuple[Array, Array]
    outputs: Array

    @property
    def groups(self) -> int:
        return len(self.outputs)

    def one_by_one(self, tree: Array) -> tuple[Array, Array]:
        """Things of trees (such as pieces), sorted by the places of their trees. tree: the tree of each thing.

        Returns where the things of each place begin, i64[groups · width + 1], and the order that sorts the things.
        """
        place = self.place[tree]
        counts = np.bincount(place, minlength=self.groups * self.width)
        return np.concatenate([[0], np.cumsum(counts)]), np.argsort(place, kind="stable")

    def table(self, values: Array) -> Array:
        """[steps, width]: one value for each split, in the order of the scan. Shorter trees are padded with zeros.

        As a split these zeros have lo = mid = 0, which changes nothing.
        """
        table = np.zeros((int(self.group_starts[-1]), self.width), values.dtype)
        table[self.at] = values
        return table


def lockstep(ranked: RankedTrees, outputs: Array, width: int, order: Array | None = None) -> Lockstep:
    """Sort the trees into groups. Vectorized over all splits. order i64[T]: the trees of each output come in this order. None: the largest
    first."""
    counts = np.diff(ranked.starts)
    order = np.argsort(-counts, kind="stable") if order is None else order
    order = order[np.argsort(outputs[order], kind="stable")]
    different, first, size = np.unique(outputs[order], return_index=True, return_counts=True)
    groups = -(-size // width)
    empty_before = np.cumsum(groups) * width - groups * width - first
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) + np.repeat(empty_before, size)
    longest = np.zeros(int(groups.sum()) * width, np.int64)
    longest[place] = counts
    group_starts = np.concatenate([[0], np.cumsum(longest.reshape(-1, width).max(axis=1))]).astype(np.int64)
    tree = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(tree)) - np.repeat(ranked.starts[:-1], counts) + group_starts[place[tree] // width]
    return Lockstep(width, place, group_starts, (step, place[tree] % width), np.repeat(different, groups))


@record
class Pieces:
    """Pieces: connected splits of a tree that are tested together. They come tree by tree, parents before children.

    split i64[V, size]: the splits of a piece, parents before children. Pieces with fewer splits have -1 in the last columns.
    leaf [V, 2^size]: the next candidate leaf of a row whose candidate is `lo` of the piece's first split. Bit i of the column number says
    whether the row goes left at the piece's split i.
    """

    split: Array
    leaf: Array

    @property
    def size(self) -> int:
        return int(self.split.shape[1])


def pieces(ranked: RankedTrees, sizes: Sequence[int], more: int) -> list[Pieces]:
    """Cut all trees into pieces of the least total cost: a list with the pieces of at most sizes[0] splits, then of sizes[1], and so on.

    The code scans all pieces of one size before the next. So a piece may only have pieces of its own size or of later sizes below it.

    A piece of size k costs k + `more`, whatever its shape and however many splits it has. The least sum is found by dynamic programming
    from the leaves up. costs[i, s, m] is the least cost of the splits from s down in pieces of sizes[i:], if m of them, s among them,
    belong to a piece that begins above. costs[i, s, 0]: none does.
    """
    splits, most, never = len(ranked.split_lo), max(sizes), 1 << 28
    left, right = ranked.split_left.astype(np.int64), ranked.split_right.astype(np.int64)
    costs = np.full((len(sizes), splits + 1, most + 1), never, np.int64)
    costs[:, splits, 0] = 0  # a leaf, number -1
    by_depth = np.argsort(ranked.split_depth, kind="stable")
    levels = np.split(by_depth, np.cumsum(np.bincount(ranked.split_depth, minlength=1))[:-1])
    for level in reversed(levels):
        for i in reversed(range(len(sizes))):
            for a in range(most):
                for b in range(most - a):
                    both = costs[i, left[level], a] + costs[i, right[level], b]
                    costs[i, level, a + b + 1] = np.minimum(costs[i, level, a + b + 1], both)
            alone = costs[i, level, 1 : sizes[i] + 1].min(axis=1) + sizes[i] + more
            costs[i, level, 0] = alone if i == len(sizes) - 1 else np.minimum(alone, costs[i + 1, level, 0])
    # Then from the roots down. For each split: the first split of its piece (`head`), the index of the piece's size (`kind`), and how
    # many splits from here down belong to the piece (`share`).
    head, kind, share = np.arange(splits + 1), np.zeros(splits + 1, np.int64), np.zeros(splits + 1, np.int64)
    for level in levels:
        first = level[share[level] == 0]
        for i in range(len(sizes) - 1):
            later = (kind[first] == i) & (costs[i, first, 0] == costs[i + 1, first, 0])
            kind[first[later]] = i + 1
        for i, size in enumerate(sizes):
            mine = first[kind[first] == i]
            share[mine] = costs[i, mine, 1 : size + 1].argmin(axis=1) + 1
        kind[left[level]] = kind[right[level]] = kind[level]
        open_ = np.full(len(level), True)
        for a in range(most):
            rest = share[level] - 1 - a
            both = costs[kind[level], left[level], a] + costs[kind[level], right[level], np.maximum(rest, 0)]
            chosen = open_ & (rest >= 0) & (both == costs[kind[level], level, share[level]])
            open_ &= ~chosen
            for below, count in ((left[level[chosen]], np.full(chosen.sum(), a)), (right[level[chosen]], rest[chosen])):
                share[below] = count
                head[below] = np.where(share[below] > 0, head[level[chosen]], below)
    head, kind = head[:splits], kind[:splits]
    return [_pieces(ranked, head, kind == i, size) for i, size in enumerate(sizes)]


def _pieces(ranked: RankedTrees, head: Array, chosen: Array, size: int) -> Pieces:
    """The pieces that the chosen splits form."""
    members = np.flatnonzero(chosen)
    members = members[np.argsort(head[members], kind="stable")]  # splits are numbered tree by tree, level by level
    heads, starts, piece = np.unique(head[members], return_index=True, return_inverse=True)
    place = np.full(len(head), -1)
    place[members] = np.arange(len(members)) - starts[piece]
    split = np.full((len(heads), size), -1)
    split[piece, place[members]] = members
    lefts = np.arange(1 << size)
    at, leaf = (np.repeat(values[:, None], len(lefts), axis=1) for values in (heads, ranked.split_lo[heads]))
    for _ in range(size):
        inside = (at >= 0) & (head[at] == heads[:, None])
        goes_left = (lefts >> np.maximum(place[at], 0) & 1).astype(bool)
        leaf = np.where(inside & ~goes_left, ranked.split_mid[at], leaf)
        at = np.where(inside, np.where(goes_left, ranked.split_left[at], ranked.split_right[at]), -1)
    return Pieces(split, leaf)
