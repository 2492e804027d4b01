"""Removes branches that no row reaches, and trees that change no result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.ir.graph import Graph
from hbc.ir.rewrite import Noted, rewrite
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble

MOST_STEPS = 5_000_000
"""The most steps from splits to the splits above them: they take 0.3 s of numpy. A forest of 200 trees, 33 levels deep and with
850,000 splits, would take 1.2 s. Trees that deep come from training, which never splits the same range twice."""


@record
class PruneTrees:
    """Trees become smaller, and each row still adds the same numbers in the same order:

    `x[0] <= 1 ? (x[0] <= 2 ? a : b) : c` → `x[0] <= 1 ? a : c`; `x[1] <= 3 ? a : a` → `a`; a tree of one leaf goes into `base`
    if it is the first of its sum, and goes away if it adds 0. Equal trees become one tree with a multiple of the values, if
    sums are exact in any order. Nothing is changed where the number of the leaf is asked for.
    """

    def __call__(self, graph: Graph) -> Noted:
        trees = {id(node.op): node.op for node in graph.nodes if type(node.op) is TreeEnsemble and node.op.output == "sum"}
        pruned = {key: after for key, op in trees.items() if (after := _pruned(op)) is not op}
        if not pruned:
            return Noted(graph)
        smaller = rewrite(graph, lambda node: pruned[id(node.op)](*node.inputs) if id(node.op) in pruned else None)
        return Noted(smaller, tuple(_note(trees[key], op) for key, op in pruned.items()))


def _pruned(op: TreeEnsemble) -> TreeEnsemble:
    return without_equal_trees(without_constants(without_branches(op)))


def _note(before: TreeEnsemble, after: TreeEnsemble) -> str:
    splits, left = (int((op.feature >= 0).sum()) for op in (before, after))
    trees = before.n_trees - after.n_trees
    return f"{trees} of {before.n_trees} trees and {splits - left} of {splits} splits were not needed"


# --- branches


def without_branches(op: TreeEnsemble) -> TreeEnsemble:
    """The ensemble without branches that no value reaches, and without splits between equal leaves."""
    at_split = op.feature >= 0
    to_left, to_right = _reachable(op)
    follows = np.arange(len(op.feature))
    follows = np.where(at_split & to_left & ~to_right, op.left, np.where(at_split & to_right & ~to_left, op.right, follows))
    if changed := bool((follows != np.arange(len(follows))).any()):
        while not np.array_equal(follows, further := follows[follows]):
            follows = further
    left, right = (np.where(at_split, follows[np.where(at_split, side, 0)], side) for side in (op.left, op.right))
    feature = op.feature.copy()
    bits = op.values.view(f"u{op.values.dtype.itemsize}")
    splits = np.flatnonzero(at_split)
    while len(splits):
        pair = splits[(feature[left[splits]] < 0) & (feature[right[splits]] < 0)]
        leaf = left[left[pair]]
        same = (bits[leaf] == bits[left[right[pair]]]).all(axis=1)
        if not same.any():
            break
        changed = True
        feature[pair[same]], left[pair[same]], right[pair[same]] = -1, leaf[same], leaf[same]
        splits = splits[feature[splits] >= 0]
    if not changed:
        return op
    return _gathered(op, follows[op.roots], feature, left, right)


def _reachable(op: TreeEnsemble) -> Array:
    """Whether some value reaches the left and the right side of each split, after all splits above it: bool[2, M], true at leaves.

    A value that is not NaN lies in an interval (above, below], by the splits above that look at the same feature. All splits
    look up one level at a time: 127,000 splits of 500 trees take 50 ms.
    """
    splits = np.flatnonzero(op.feature >= 0)
    parent, is_left = np.full(len(op.feature), -1), np.zeros(len(op.feature), bool)
    parent[op.left[splits]] = parent[op.right[splits]] = splits
    is_left[op.left[splits]] = True
    feature = op.feature[splits]
    above, below = (np.full(len(splits), bound, op.threshold.dtype) for bound in (-np.inf, np.inf))
    bounded, nan = np.zeros(len(splits), bool), np.ones(len(splits), bool)
    number, at, steps = np.arange(len(splits)), splits, 0
    while len(number):
        steps += len(number)
        if steps > MOST_STEPS:
            return np.ones((2, len(op.feature)), bool)
        up = parent[at]
        inside = up >= 0
        number, at, up = number[inside], at[inside], up[inside]
        hit = np.flatnonzero(op.feature[up] == feature[number])
        if len(hit):
            mine, theirs, left = number[hit], up[hit], is_left[at[hit]]
            cut = op.threshold[theirs]
            below[mine[left]] = np.minimum(below[mine[left]], cut[left])
            above[mine[~left]] = np.maximum(above[mine[~left]], cut[~left])
            bounded[mine[~left]] = True
            nan[mine] &= op.missing_left[theirs] == left
        at = up
    reached = np.ones((2, len(op.feature)), bool)
    cut, missing = op.threshold[splits], op.missing_left[splits]
    reached[0, splits] = ~bounded | (above < np.minimum(below, cut)) | (nan & missing) | np.isnan(cut)
    reached[1, splits] = (np.maximum(above, cut) < below) | (nan & ~missing) | np.isnan(cut)
    return reached


def _gathered(op: TreeEnsemble, roots: Array, feature: Array, left: Array, right: Array) -> TreeEnsemble:
    """The ensemble of the nodes and leaves that the roots still reach, in their old order."""
    kept, level = np.zeros(len(feature), bool), roots
    while len(level):
        kept[level] = True
        level = level[feature[level] >= 0]
        level = np.concatenate([left[level], right[level]])
    nodes = np.flatnonzero(kept)
    at_leaf = feature[nodes] < 0
    leaves = np.unique(left[nodes][at_leaf])
    number = np.cumsum(kept) - 1
    sides = [
        np.where(at_leaf, np.searchsorted(leaves, side[nodes]), number[np.where(at_leaf, 0, side[nodes])]).astype(np.int32)
        for side in (left, right)
    ]
    return replace(
        op,
        roots=number[roots].astype(np.int32),
        feature=feature[nodes],
        threshold=np.where(at_leaf, op.threshold.dtype.type(0), op.threshold[nodes]),
        left=sides[0],
        right=sides[1],
        missing_left=op.missing_left[nodes] & ~at_leaf,
        values=op.values[leaves],
        leaf_ids=op.leaf_ids[leaves],
    )


# --- trees


def _of_trees(op: TreeEnsemble, kept: Array, base: Array) -> TreeEnsemble:
    """The ensemble of the `kept` trees. If none is kept, one tree remains, with leaves of 0."""
    if not kept.any():
        kept = np.arange(len(kept)) == 0
        leaf = np.zeros_like(op.values)
        op = replace(op, values=leaf)
    after = replace(op, roots=op.roots[kept], target=op.target[kept], base=base)
    return _gathered(after, after.roots, op.feature, op.left, op.right)


def without_constants(op: TreeEnsemble) -> TreeEnsemble:
    """The ensemble without trees of one leaf that come first in their sums, which are added to `base` as a loop would do, and
    without trees that only add 0."""
    constant = np.flatnonzero(op.feature[op.roots] < 0)
    if not len(constant) or (op.n_trees == 1 and not op.values.any()):
        return op
    base, width = op.base.copy(), op.values.shape[1]
    first = np.full(op.n_outputs, op.n_trees)
    varying = np.flatnonzero(op.feature[op.roots] >= 0)
    for column in range(width):
        np.minimum.at(first, op.target[varying] + column, varying)
    kept = np.ones(op.n_trees, bool)
    for tree in constant:
        columns = slice(op.target[tree], op.target[tree] + width)
        values = op.values[op.left[op.roots[tree]]]
        if (first[columns] > tree).all():
            base[columns] += values
            kept[tree] = False
        else:
            # A sum is -0.0 only if all of its terms are.
            kept[tree] = bool(values.any() or (np.signbit(base[columns]) & (base[columns] == 0)).any())
            if kept[tree]:
                first[columns] = np.minimum(first[columns], tree)
    return op if kept.all() else _of_trees(op, kept, base)


def without_equal_trees(op: TreeEnsemble) -> TreeEnsemble:
    """The ensemble with equal trees joined into one with a multiple of their values, if all sums are exact in any order."""
    if op.n_trees < 2 or len(op.values) < np.count_nonzero(op.feature < 0) or not _sums_are_exact(op):
        return op
    order = np.append(op.roots, len(op.feature))
    sizes = np.diff(order)
    if order[0] or (sizes <= 0).any():
        return op
    cuts = np.add.reduceat(op.threshold, order[:-1]).astype(np.float64)
    alike = np.unique(np.stack([sizes, op.target, cuts.view(np.int64)]), axis=1).shape[1]
    if alike == op.n_trees:
        return op  # nearly always: no two trees can be equal
    tree = np.repeat(np.arange(op.n_trees), sizes)
    at_split = op.feature >= 0
    if (tree[op.left[at_split]] != tree[at_split]).any() or (tree[op.right[at_split]] != tree[at_split]).any():
        return op  # the nodes of different trees are mixed
    start = np.repeat(order[:-1], sizes)
    sides = [np.where(at_split, side - start, 0) for side in (op.left, op.right)]
    values = np.where(at_split[:, None], op.values.dtype.type(0), op.values[np.where(at_split, 0, op.left)])
    fields = (op.feature, op.threshold, *sides, op.missing_left, values)
    first: dict[tuple[int, ...], int] = {}
    count = np.zeros(op.n_trees, np.int64)
    for i, (begin, end, target) in enumerate(zip(order[:-1], order[1:], op.target.tolist(), strict=True)):
        key = (target, end - begin, hash(b"".join(of[begin:end].tobytes() for of in fields)))
        same = first.setdefault(key, i)
        equal = same == i or all(of[begin:end].tobytes() == of[order[same] : order[same + 1]].tobytes() for of in fields)
        count[same if equal else i] += 1
    if (count == 1).all():
        return op
    scaled = op.values.copy()
    leaves = np.flatnonzero(~at_split)  # each with a row of values of its own (`join`)
    scaled[op.left[leaves]] *= np.maximum(count, 1)[tree[leaves]][:, None].astype(scaled.dtype)
    return _of_trees(replace(op, values=scaled), count > 0, op.base)


def _sums_are_exact(op: TreeEnsemble) -> bool:
    """Whether no sum of the values is rounded, because all are multiples of one large power of two."""
    values = np.concatenate([op.values.ravel(), op.base]).astype(np.float64)
    values = np.abs(values[values != 0])
    if not len(values) or not np.isfinite(values).all():
        return False
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1 + exponent - 53
    digits = np.finfo(op.values.dtype).nmant + 1
    return bool(values.max() * (op.n_trees + 1) <= np.ldexp(1.0, int(lowest.min()) + digits))
