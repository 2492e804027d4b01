"""What warps read of the card's memory while they walk trees that lie there, as far as the trees alone say it."""

from __future__ import annotations

import numpy as np

from hbc.compiler.tvm.nest.schedule import LANES
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

LINE, SECTOR = 128, 32
"""The bytes that L1 reads in a clock of an SM, and that L2 sends at once."""
SMS = 132
"""Those of an H200."""
CLOCKS_OF_SECTOR = SECTOR * SMS * 1.75e9 / 5.5e12
"""Clocks of an SM for a sector from L2, which gives all SMs of an H200 5.5 TB/s. That is a guess."""
L1 = 128 << 10
"""The bytes of trees that stay in L1, about. It has 256 KB, of which shared memory takes a part."""


def splits_by_depth(op: TreeEnsemble) -> Array:
    """i64[T, D + 1]: how many splits each tree has at each depth; none at the last one."""
    ranked, levels = op.once(ranked_trees), int(op.depths.max(initial=0)) + 1
    tree = np.repeat(np.arange(op.n_trees), np.diff(ranked.starts))
    return np.bincount(tree * levels + ranked.split_depth, minlength=op.n_trees * levels).reshape(op.n_trees, levels)


def on_the_way(splits: Array) -> Array:
    """f64[T, D + 1]: at each depth, the part of the rows that are at a split there. splits: see `splits_by_depth`.

    It says that every leaf of a tree gets as many rows. Their paths then are 10 % shorter to 16 % longer than counted ones (random forests
    and LightGBM, 700 to 8,000 leaves).
    """
    leaves = np.concatenate([1 - splits[:, :1], 2 * splits[:, :-1] - splits[:, 1:]], axis=1)
    below = leaves.sum(axis=1, keepdims=True) - np.cumsum(leaves, axis=1)
    return below / np.maximum(leaves.sum(axis=1, keepdims=True), 1)


def memory_cycles(
    op: TreeEnsemble, size: int, levels: int, walks: int = 1, loads: float = 1.0, reads_of_leaf: int | None = None
) -> tuple[float, float]:
    """(the clocks of an SM in which a warp reads lines of L1, those in which it waits for sectors of L2; 0 if the trees stay in L1).

    size: the bytes that a row reads at once, which take it so many levels down. walks: how often trees are walked. loads: how often a row
    reads the same bytes. reads_of_leaf: its reads for the values of a leaf; None: one for each.
    """
    splits = splits_by_depth(op)
    places, going = splits[:, ::levels], on_the_way(splits)[:, ::levels]
    reads_of_leaf = reads_of_leaf or op.values.shape[1]
    bytes_of_leaf = op.values[:1].nbytes

    def pieces(unit: int, times: float, reads: float) -> float:
        nodes = different(places * size / unit, LANES * going)
        leaves = different(bytes_of_leaf * op.leaf_counts.astype(np.float64) / unit, LANES)
        return float(walks * times * nodes.sum() + reads * leaves.sum())

    stays = size * places.sum() <= L1
    sectors = max(bytes_of_leaf / SECTOR, 1.0)  # of a leaf, whose values lie side by side
    return pieces(LINE, loads, reads_of_leaf), 0.0 if stays else CLOCKS_OF_SECTOR * pieces(SECTOR, 1.0, sectors)


def different(pieces: Array, rows: Array | int) -> Array:
    """About how many of so many pieces of memory are read if each row reads one: n (1 - (1 - 1/n)^rows)."""
    among = np.maximum(pieces, 1)
    return among * (1 - (1 - 1 / among) ** rows)
