"""Perfect trees whose last nodes share pairs of leaves, for "levels" and "wide_levels".

Leaves of classes are much alike: those of most places are pure, and the 128 last nodes of a tree have some 40 different pairs of leaves. A
last node has the number of its pair. Nodes of equal pairs share one, either way round: a swapped node turns it. A leaf that is not deep
enough uses any pair that has its values. So a tree takes less shared memory, and its leaves meet in banks less often.

Pairs may lie anywhere, which leaves of a perfect tree may not. So the swaps of the other levels serve nodes alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.compiler.tvm.nest.schedule import LANES
from hbc.compiler.tvm.trees.gpu.perfect import PerfectTrees, find_swaps, padded, parts_of_leaves
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

GROUPS = LANES // 2
"""The pairs of banks."""


def paired_trees(op: TreeEnsemble, ranked: RankedTrees, trees: Array, depth: int, top: int, values: Array) -> PerfectTrees:
    """Some trees as perfect ones of a depth, whose last nodes share pairs. No node of the first `top` levels is swapped. values [L, V]: of
    the leaves."""
    swaps = [np.zeros((len(trees), 1 << level), bool) for level in range(depth)]
    perfect = padded(ranked, trees, swaps)
    last = 1 << depth - 1
    if last > LANES:
        find_swaps(parts_of_leaves(op, perfect).reshape(-1, last, 2).sum(axis=2), swaps[:-1], top)
        perfect = padded(ranked, trees, swaps)
    numbers = _numbered(_equal(values)[perfect.leaves])
    pairs, sides, count = _pairs(numbers.reshape(-1, last, 2), perfect.reached.reshape(-1, last, 2))
    places = 2 * pairs[:, :, None] + np.stack([sides, 1 - sides], axis=2)  # of the leaves of each node
    own, reached = np.arange(len(trees))[:, None, None], perfect.reached.reshape(places.shape)
    parts = np.zeros((len(trees), 2 * count))
    np.add.at(parts, (own, places), parts_of_leaves(op, perfect).reshape(places.shape))
    place, turned = _places(parts.reshape(-1, count, 2))
    pairs, sides = np.take_along_axis(place, pairs, axis=1), sides ^ np.take_along_axis(turned, pairs, axis=1)
    places = 2 * pairs[:, :, None] + np.stack([sides, 1 - sides], axis=2)
    leaves = np.zeros((len(trees), 2 * count), np.int64)
    leaves[np.broadcast_to(own, places.shape)[reached], places[reached]] = perfect.leaves.reshape(places.shape)[reached]
    swapped = perfect.swapped.copy()
    swapped[:, last:] = sides == 1
    return replace(perfect, swapped=swapped, leaves=leaves, pairs=pairs)


def _equal(values: Array) -> Array:
    """i64[L]: a number of each leaf, the same for those that have the same bits."""
    rows = np.ascontiguousarray(values).view(f"V{values.itemsize * values.shape[1]}").reshape(-1)
    return np.unique(rows, return_inverse=True)[1].reshape(-1)


def _numbered(keys: Array) -> Array:
    """i64[T, N]: the keys of each row by their rank among the different ones of the row."""
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, axis=1)
    numbers = np.zeros(keys.shape, np.int64)
    np.put_along_axis(numbers, order, np.cumsum(np.diff(ordered, axis=1, prepend=ordered[:, :1]) != 0, axis=1), axis=1)
    return numbers


def _pairs(numbers: Array, reached: Array) -> tuple[Array, Array, int]:
    """(i64[T, N]: the pair of each last node, [T, N]: the side of it where the left leaf is, the most pairs of a tree).

    numbers, reached [T, N, 2]: of the leaves of each node: equal ones have the same number, less than 2N; whether rows get there. If they
    get to one leaf of a node, it is the left one.
    """
    count, last, _ = numbers.shape
    both, one = reached.all(axis=2), reached.any(axis=2) & ~reached.all(axis=2)
    low, high = numbers.min(axis=2), numbers.max(axis=2)
    none = 4 * last * last
    pairs = _numbered(np.where(both, low * 2 * last + high, none))
    sides = (numbers[:, :, 0] != low).astype(np.int64)
    most = np.where(both, pairs + 1, 0).max(axis=1, initial=0)
    # The first place of each number among the pairs; what has none gets one behind them.
    tree = np.broadcast_to(np.arange(count)[:, None], both.shape)
    first = np.full((count, 2 * last), none)
    for side, number in ((0, low), (1, high)):
        np.minimum.at(first, (tree[both], number[both]), 2 * pairs[both] + side)
    alone = np.zeros(first.shape, bool)
    alone[tree[one], numbers[:, :, 0][one]] = True
    alone &= first == none
    first = np.where(alone, 2 * most[:, None] + np.cumsum(alone, axis=1) - 1, first)
    places = np.take_along_axis(first, numbers[:, :, 0], axis=1)
    pairs, sides = np.where(both, pairs, np.where(one, places // 2, 0)), np.where(both, sides, np.where(one, places % 2, 0))
    return pairs, sides, int(pairs.max(initial=0)) + 1


def _places(parts: Array) -> tuple[Array, Array]:
    """(i64[T, P]: where each pair shall lie, 0 or 1: whether it is turned there). parts [T, P, 2]: of the rows, which reach its leaves.

    One pair after the other gets a place, the heaviest first: that where the sum over both banks of `its part · theirs` is least.
    """
    count, pairs, _ = parts.shape
    banks, taken = np.zeros((count, GROUPS, 2)), np.zeros((count, GROUPS), np.int64)
    room = (pairs - np.arange(GROUPS) + GROUPS - 1) // GROUPS
    place, turned = np.zeros((count, pairs), np.int64), np.zeros((count, pairs), np.int64)
    tree = np.arange(count)
    for pair in np.argsort(-parts.sum(axis=2), axis=1, kind="stable").T:
        own = parts[tree, pair]
        costs = np.stack([(banks * way[:, None]).sum(axis=2) for way in (own, own[:, ::-1])])
        group = np.where(taken < room, costs.min(axis=0), np.inf).argmin(axis=1)
        turn = costs[1, tree, group] < costs[0, tree, group]
        place[tree, pair], turned[tree, pair] = taken[tree, group] * GROUPS + group, turn
        banks[tree, group] += np.where(turn[:, None], own[:, ::-1], own)
        taken[tree, group] += 1
    return place, turned
