"""Trees of more than 256 leaves as sums of smaller trees, whose leaves a byte numbers.

A part of a tree is connected. The part at the root keeps its splits; where another part begins, it has a leaf that adds nothing. Each
other part becomes a tree too: the splits above it come first, each with a leaf that adds nothing beside the way to the part. So a row gets
its values from one of these trees, and nothing from the others:

        a                  a            a
       / \\                / \\          / \\
      b   c       =      b   c   +    b   0
     / \\ / \\            / \\ / \\      / \\
    d  1 2  3          0  1 2  3    d  0
   / \\                             / \\
  4   5                           4   5
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

MOST_NUMBERED = 256
"""The most leaves of a tree that bytes number."""


def small_trees(op: TreeEnsemble) -> TreeEnsemble:
    """The ensemble with trees of at most MOST_NUMBERED leaves, or itself if it has no others. The last of its leaves then adds nothing. Its
    trees must be less deep than MOST_NUMBERED - 2."""
    if int(op.leaf_counts.max(initial=1)) <= MOST_NUMBERED:
        return op
    depth, parent, tree = _places(op)
    begins = np.flatnonzero(_begins(op, depth))
    nodes, leaf = len(op.feature), len(op.values)
    left, right = op.left.copy(), op.right.copy()
    # A leaf in place of each part that is cut off.
    holes = nodes + np.arange(len(begins), dtype=np.int32)
    above, on_left = parent[begins], op.left[parent[begins]] == begins
    left[above[on_left]], right[above[~on_left]] = holes[on_left], holes[~on_left]
    made = nodes + len(begins)
    copied, lefts, rights = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    # From each part upwards: a copy of each split above it, and a leaf beside the way.
    roots = begins.astype(np.int32)
    going, at = np.arange(len(begins)), begins
    while len(going):
        split = parent[at]
        on_left = op.left[split] == at
        copy = made + 2 * np.arange(len(going), dtype=np.int32)
        made += 2 * len(going)
        beside = copy + 1
        copied.append(split)
        lefts.append(np.where(on_left, roots[going], beside))
        rights.append(np.where(on_left, beside, roots[going]))
        roots[going] = copy
        further = depth[split] > 0
        going, at = going[further], split[further]
    source, new_left, new_right = np.concatenate(copied), np.concatenate(lefts), np.concatenate(rights)

    def joined(own: Array, copies: Array, added: int) -> Array:
        """The nodes, the leaves in place of parts, then pairs of a copied split and a leaf."""
        pairs = np.stack([copies, np.full_like(copies, added)], axis=1).reshape(-1)
        return np.concatenate([own, np.full(len(holes), added, own.dtype), pairs.astype(own.dtype)])

    return replace(
        op,
        roots=np.concatenate([op.roots, roots]).astype(np.int32),
        feature=joined(op.feature, op.feature[source], -1),
        threshold=joined(op.threshold, op.threshold[source], 0),
        left=joined(left, new_left, leaf),
        right=joined(right, new_right, leaf),
        missing_left=joined(op.missing_left, op.missing_left[source], 0),
        values=np.concatenate([op.values, np.zeros_like(op.values[:1])]),
        leaf_ids=np.append(op.leaf_ids, 0),
        target=np.concatenate([op.target, op.target[tree[begins]]]).astype(op.target.dtype),
        cover=None,
    )


def _places(op: TreeEnsemble) -> tuple[Array, Array, Array]:
    """(depth, parent, tree) of every node."""
    depth, parent = np.zeros(len(op.feature), np.int64), np.zeros(len(op.feature), np.int64)
    tree = np.zeros(len(op.feature), np.int64)
    nodes, level = op.roots.astype(np.int64), 0
    tree[nodes] = np.arange(op.n_trees)
    while len(nodes):
        depth[nodes] = level
        inner = nodes[op.feature[nodes] >= 0]
        for side in (op.left, op.right):
            parent[side[inner]], tree[side[inner]] = inner, tree[inner]
        nodes, level = np.concatenate([op.left[inner], op.right[inner]]).astype(np.int64), level + 1
    return depth, parent, tree


def _begins(op: TreeEnsemble, depth: Array) -> Array:
    """Whether a part begins at a node, for the fewest parts. From the leaves up, where the leaves of a split's children are too many with
    those beside the way to the split, the larger child becomes a part (Kundu and Misra)."""
    inner = np.flatnonzero(op.feature >= 0)
    leaves, begins = np.ones(len(op.feature), np.int64), np.zeros(len(op.feature), bool)
    for level in range(int(depth.max(initial=0)), -1, -1):
        splits = inner[depth[inner] == level]
        left, right = op.left[splits], op.right[splits]
        larger = np.where(leaves[left] < leaves[right], right, left)
        smaller = left + right - larger
        begins[larger] = leaves[larger] + leaves[smaller] + level > MOST_NUMBERED
        kept = np.where(begins[larger], 1, leaves[larger])
        begins[smaller] = kept + leaves[smaller] + level > MOST_NUMBERED
        leaves[splits] = kept + np.where(begins[smaller], 1, leaves[smaller])
    return begins
