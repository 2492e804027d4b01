"""Perfect trees, for "levels", "wide_levels" and "int8_gemm": which node and which leaf lies at which place.

A warp reads the values of 32 leaves at once. Leaves whose places differ by a multiple of 32 share a bank, and wait for each other if rows
reach both. Most rows reach few of the leaves. So the children of some nodes are swapped, until leaves that many rows reach share banks with
leaves that few rows reach. A swapped node costs nothing: it has another bit, which turns the answer of its comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.compiler.tvm.nest.schedule import LANES
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees


@record
class PerfectTrees:
    """Trees that are padded to perfect ones of D levels, in level order from place 1 on: the children of place i are at 2i and 2i + 1.

    splits i64[T, 2^D]: the split of `RankedTrees` at each place; -1 above a leaf that is not deep enough. There rows go left, or right if
    the place is swapped. swapped bool[T, 2^D]: whether the left child lies at the right. leaves i64[T, 2^D]: the row of `op.values` at
    each place below the last level, from 0 on. reached bool[T, 2^D]: whether a row may get there; all places below a leaf have its values.

    Trees whose last nodes share pairs of leaves (pairs.py) have pairs i64[T, 2^(D-1)]: the number of each last node's pair. Pair n has the
    leaves 2n and 2n + 1, and reached says nothing.
    """

    splits: Array
    swapped: Array
    leaves: Array
    reached: Array
    pairs: Array | None = None


def perfect_trees(op: TreeEnsemble, ranked: RankedTrees, trees: Array, depth: int, top: int) -> PerfectTrees:
    """Some trees as perfect ones of a depth. No node of the first `top` levels is swapped."""
    swaps = [np.zeros((len(trees), 1 << level), bool) for level in range(depth)]
    plain = padded(ranked, trees, swaps)
    if 1 << depth <= LANES:
        return plain
    find_swaps(parts_of_leaves(op, plain), swaps, top)
    return padded(ranked, trees, swaps)


def parts_of_leaves(op: TreeEnsemble, perfect: PerfectTrees) -> Array:
    """f64[T, 2^D]: which part of the rows reaches each leaf."""
    rows = np.where(perfect.reached, _rows_of_leaves(op)[perfect.leaves], 0)
    return rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)


def padded(ranked: RankedTrees, trees: Array, swaps: Sequence[Array]) -> PerfectTrees:
    """The trees with some swaps. swaps: of each level, bool[T, 2^level], in the order of the places without any."""
    size = 1 << len(swaps)
    splits, swapped = np.full((len(trees), size), -1), np.zeros((len(trees), size), bool)
    # Numbers of splits, and the complements of rows of values.
    at = np.where(
        ranked.leaf_counts[trees] > 1, ranked.starts[trees], ~ranked.leaves[ranked.leaf_starts[trees]].astype(np.int64)
    )
    at, place, reached = at[:, None], np.zeros((len(trees), 1), np.int64), np.ones((len(trees), 1), bool)
    for level, swap in enumerate(swaps):
        own = slice(1 << level, 2 << level)
        inner = np.where(at >= 0, at, -1)
        splits[:, own], swapped[:, own] = inner, np.take_along_axis(swap, place, axis=1)
        first_leaf = np.broadcast_to(ranked.leaf_starts[trees][:, None], at.shape)
        sides = []
        for side, (child, number) in enumerate(((ranked.split_left, ranked.split_lo), (ranked.split_right, ranked.split_mid))):
            leaf = ~ranked.leaves[first_leaf + np.where(at >= 0, number[inner], 0)].astype(np.int64)
            below = np.where(at < 0, at, np.where(child[inner] >= 0, child[inner], leaf))
            sides.append((below, 2 * place + side, reached & ((at >= 0) | (side == 0))))
        at, place, reached = (_children(left, right, swapped[:, own]) for left, right in zip(*sides, strict=True))
    return PerfectTrees(splits, swapped, ~at, reached)


def _children(left: Array, right: Array, swapped: Array) -> Array:
    """What belongs to the children of the places of a level, in the order of their places."""
    return np.stack([np.where(swapped, right, left), np.where(swapped, left, right)], axis=2).reshape(len(left), -1)


def _rows_of_leaves(op: TreeEnsemble) -> Array:
    """f64[L]: how much of the training data reached each leaf, as far as the model says it; otherwise all of them count the same."""
    leaf = op.feature < 0
    cover = np.ones(len(op.feature)) if op.cover is None else np.maximum(np.nan_to_num(op.cover), 0)
    return np.bincount(op.left[leaf], cover[leaf], len(op.values))


def find_swaps(parts: Array, swaps: Sequence[Array], top: int) -> None:
    """Find the swaps below the first levels. parts [T, 2^D]: of the rows, which reach each leaf.

    One subtree after the other is laid over those before it, so that the sum over all banks of `its part · theirs` is least. costs[k][i, j]
    is the least sum for its part i of 2^k leaves at place j of such parts: with the halves of i at those of j, or crosswise.
    """
    count, size = len(parts), 1 << len(swaps) - top
    banks = np.zeros((count, LANES))
    for number in range(1 << top):
        own, first = parts[:, number * size : (number + 1) * size], number * size % LANES
        costs = [own[:, :, None] * banks[:, None, first : first + size]]
        while costs[-1].shape[1] > 1:
            costs.append(np.minimum(*_ways(costs[-1])))
        place = np.zeros((count, 1), np.int64)
        for below, cost in enumerate(reversed(costs[:-1])):
            straight, crosswise = _ways(cost)
            swap = np.take_along_axis(crosswise < straight, place[:, :, None], axis=2)[:, :, 0]
            swaps[top + below][:, number << below : number + 1 << below] = swap
            place = np.stack([2 * place + swap, 2 * place + 1 - swap], axis=2).reshape(count, -1)
        laid = np.empty_like(own)
        np.put_along_axis(laid, place, own, axis=1)
        banks[:, first : first + size] += laid


def _ways(cost: Array) -> tuple[Array, Array]:
    """(the costs of two parts side by side at two places, the same crosswise)."""
    return cost[:, 0::2, 0::2] + cost[:, 1::2, 1::2], cost[:, 0::2, 1::2] + cost[:, 1::2, 0::2]
