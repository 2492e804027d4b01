"""Trees as forks, the form in which "far_links" and "wide_links" read them from the card's memory.

A fork is a split and its two children. Its four exits lead to other forks and to leaves. It has 16 bytes, which a thread reads at once, and
takes a row two levels down. Where the rows of a warp are at different nodes, L1 takes as long for 16 bytes a row as for 4.
"""

from __future__ import annotations

import numpy as np

from hbc.compiler.memory import aligned
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

LEVELS = 2
"""The levels that a fork takes a row down."""
EXITS, WORDS = 4, 4
"""Those of a fork."""
FIRST_EXIT = 3
"""The word of a fork that has the number of the first fork below it."""
EXIT_BITS = 3
PLACE, AT_LEAF = 3, 4
"""The bits of an exit: how many forks (or leaves, if it leads to one) of its own fork lie before it; whether it leads to a leaf."""
ADDRESS_BITS = 16


@record
class PackedForks:
    """Trees as forks. The forks of a tree lie level by level, so those below a fork follow each other. Its leaves lie in the same order.

    words i32[F · WORDS]: of each fork

    * three splits, unsigned: the one on top, its left child, its right child. A split is `rank << (32 - bits) | address`. The address is
      the byte of shared memory at which the ranks begin that it is compared with. A row goes right if `its rank << (32 - bits)` is greater
      than this word. The lower bits never decide, since greater ranks differ above them. In the place of a leaf stands a split of the
      highest rank, at which all rows go left
    * in the lowest bits of both children their two exits, EXIT_BITS each, the left one first. Addresses are multiples of 512
    * at FIRST_EXIT the number of the first fork below it

    values [L · V]: those of the leaves. Where a split stands for a leaf, its right exit has a leaf too, which no row reaches. So every fork
    has four exits, and no word has to say where its leaves begin. The forks before fork f of tree t have 4 f exits. Let g be the first fork
    below it. Then g - 1 - t of these exits lead to forks: all before g that are not the first of a tree. The others lead to leaves. So the
    leaves of fork f begin at 4 f - (g - 1 - t).

    starts i64[T]: the first fork of each tree.
    """

    words: Array
    values: Array
    starts: Array


def pack_forks(op: TreeEnsemble, ranked: RankedTrees, rank: Array, address: Array, bits: int, order: Array) -> PackedForks:
    """The trees as forks. rank, address i64[J]: of each split. bits: of a rank. order i64[T]: the trees, in the order in which they shall
    lie. Vectorized over all forks of a level."""
    # The last split stands for leaves, also as number -1. It leads to itself.
    splits = (np.append(rank, (1 << bits) - 1) << 32 - bits | np.append(address, 0)).astype(np.uint32)
    children = np.stack([np.append(side, -1) for side in (ranked.split_left, ranked.split_right)], axis=1)
    numbers = np.stack([np.append(side, 0) for side in (ranked.split_lo, ranked.split_mid)], axis=1)
    tree, top = np.arange(len(order)), np.where(ranked.leaf_counts[order] > 1, ranked.starts[:-1][order], -1)
    levels = []
    while True:
        pair = children[top]
        exits = children[pair].reshape(-1, EXITS)
        leaves = np.where(pair[:, :, None] < 0, numbers[top][:, :, None], numbers[pair]).reshape(-1, EXITS)
        levels.append((tree, top, pair, exits, leaves))
        if not (exits >= 0).any():
            break
        tree, top = np.repeat(tree, (exits >= 0).sum(axis=1)), exits[exits >= 0]
    by_tree = np.argsort(np.concatenate([level[0] for level in levels]), kind="stable")
    tree, top, pair, exits, leaves = (np.concatenate(parts)[by_tree] for parts in zip(*levels, strict=True))
    at_leaf = exits < 0
    forks = EXITS - at_leaf.sum(axis=1)
    place = np.where(at_leaf, np.cumsum(at_leaf, axis=1) - 1 | AT_LEAF, np.cumsum(~at_leaf, axis=1) - 1)
    words = aligned(len(tree) * WORDS, "i32").reshape(-1, WORDS)
    unsigned = words.view(np.uint32)
    unsigned[:, 0] = splits[top]
    unsigned[:, 1:FIRST_EXIT] = splits[pair] | place[:, 0::2] | place[:, 1::2] << EXIT_BITS
    words[:, FIRST_EXIT] = 1 + tree + np.cumsum(forks) - forks
    rows = ranked.leaves[(ranked.leaf_starts[order][tree][:, None] + leaves)[at_leaf]]
    values = aligned(len(rows) * op.values.shape[1], "f32" if op.values.itemsize == 4 else "f64")
    values[:] = op.values[rows].reshape(-1)
    return PackedForks(words.reshape(-1), values, np.searchsorted(tree, np.arange(len(order))))
