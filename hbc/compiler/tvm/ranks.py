"""Ranked trees (hbc/ops/tree_ranks.py) in the order in which the scan visits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hbc.compiler.tvm.categories import n_features
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees, rank_encode


def ranked_trees(op: TreeEnsemble) -> RankedTrees:
    """The ensemble in ranks, with its category sets, if it has any."""
    return rank_encode(op, n_features(op))


@dataclass(frozen=True)
class Lockstep:
    """Trees in groups of `width` that are scanned together, at each step of a group one split of each. The trees of a group have the
    same target; the largest trees of a target come first, and some places of its last group may be empty.

    place i64[T]: where tree t stands; group_starts i64[groups + 1]: the steps of a group; at: the step and the column of every split;
    targets i64[groups].
    """

    width: int
    place: Array
    group_starts: Array
    at: tuple[Array, Array]
    targets: Array

    @property
    def groups(self) -> int:
        return len(self.targets)

    def one_by_one(self, tree: Array) -> tuple[Array, Array]:
        """The same trees one after the other: where the things of each begin, i64[groups · width + 1], and the order of things that
        belong to these trees."""
        place = self.place[tree]
        counts = np.bincount(place, minlength=self.groups * self.width)
        return np.concatenate([[0], np.cumsum(counts)]), np.argsort(place, kind="stable")

    def table(self, values: Array) -> Array:
        """values of all splits, [steps, width]. Shorter trees are padded with zeros: a split of [0, …) at 0 changes nothing."""
        table = np.zeros((int(self.group_starts[-1]), self.width), values.dtype)
        table[self.at] = values
        return table


def lockstep(ranked: RankedTrees, targets: Array, width: int) -> Lockstep:
    """Vectorized over all splits."""
    counts = np.diff(ranked.starts)
    order = np.lexsort((-counts, targets))
    outputs, first, size = np.unique(targets[order], return_index=True, return_counts=True)
    groups = -(-size // width)
    empty_before = np.cumsum(groups) * width - groups * width - first
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) + np.repeat(empty_before, size)
    longest = np.zeros(int(groups.sum()) * width, np.int64)
    longest[place] = counts
    group_starts = np.concatenate([[0], np.cumsum(longest.reshape(-1, width).max(axis=1))]).astype(np.int64)
    tree = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(tree)) - np.repeat(ranked.starts[:-1], counts) + group_starts[place[tree] // width]
    return Lockstep(width, place, group_starts, (step, place[tree] % width), np.repeat(outputs, groups))


def triples(ranked: RankedTrees) -> Array:
    """Splits with the two below them, i64[V, 3]: a split, and those on its left and right, -1 where there is a leaf. Tree by tree, parents
    before children, and no split above one of these is in none.

    To scan three together takes as long as two alone. So a triple of three gains the time of a split, one of two none, and one of
    a single split loses as much; taken are those that gain most together. Vectorized, level by level.
    """
    below = np.stack([ranked.split_left, ranked.split_right], axis=1).astype(np.int64)
    next_ = np.append(below, [[-1, -1]], axis=0)[below].reshape(len(below), 4)  # the splits that follow a triple
    gain = np.append((below >= 0).sum(axis=1) - 1, 0)
    by_depth = np.argsort(ranked.split_depth, kind="stable")
    ends = np.cumsum(np.bincount(ranked.split_depth, minlength=1))
    for start, end in reversed([*zip([0, *ends[:-1]], ends, strict=True)]):
        level = by_depth[start:end]
        gain[level] = np.maximum(gain[level] + gain[next_[level]].sum(axis=1), 0)
    heads = []
    level = by_depth[: ends[0]]
    while len(level):
        level = level[gain[level] > 0]  # that of -1 is 0
        heads.append(level)
        level = next_[level].reshape(-1)
    head = np.concatenate(heads) if heads else by_depth
    # Splits are numbered tree by tree, level by level.
    head = np.sort(head)
    return np.column_stack([head, below[head]])
