"""The strategy "walk" for few rows: trees are cut into blocks of some levels, and a step tests all splits of a block at once.

For few rows, calls of operators take longer than their work. Level by level, 500 trees of depth 8 take some 90 calls; by two blocks of four
levels they take 25. A step looks up the columns and thresholds of the 15 splits of each walk's block. Their tests, 0 or 1, are the
digits of a number, and a table says to which of the block's 16 exits it leads. Behind an exit lies another block or a leaf.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

FEW = 1 << 12
"""The largest number of walks (rows × trees) that are taken by blocks. With 500 trees of depth 8, one row takes half as long so, and 8 rows
take a tenth to a quarter less (AMD EPYC)."""
HEIGHT = 4
"""The largest number of levels of a block, whose table of exits has 2^15 entries then."""
BLOCKS = 9
"""The number of arrays of `pack_blocks`."""


def steps_of(depth: int) -> int:
    """The number of blocks below each other, for trees of that depth."""
    return -(-depth // HEIGHT)


def takes_blocks(rows: int, trees: int, steps: int, few: int) -> bool:
    """Whether so many rows take blocks. few: FEW."""
    return steps > 0 and 0 < rows * trees <= few


def by_blocks(x: Tensor, blocks: list[Tensor], steps: int) -> Tensor:
    """The leaves that rows reach in all trees, i32[N, T], in the numbering of hbc.compiler.torch.walk.pack.

    x: the numbers of rows, `encoded`; blocks: what `pack_blocks` returns; steps: see `steps_of`."""
    root_column, root_threshold, root_exits, first_exit, column, threshold, exits, meaning, digits = blocks
    rows, trees, tests, flat = x.size(0), first_exit.size(0), digits.size(0), x.reshape(-1)
    start, place = first_exit, root_column
    if rows > 1:
        start = torch.arange(rows, dtype=torch.int32, device=x.device).mul_(x.size(1)).reshape(rows, 1)
        place = (start + root_column).reshape(-1)
    number = flat.index_select(0, place).reshape(rows, trees * tests).gt_(root_threshold).reshape(rows * trees, tests)
    path = meaning.index_select(0, torch.mv(number, digits).to(torch.int32)).reshape(rows, trees)
    at = root_exits.index_select(0, path.add_(first_exit).reshape(-1))
    for _ in range(1, steps):
        block = torch.relu(at)
        places = column.index_select(0, block)
        if rows > 1:
            places = places.reshape(rows, trees * tests).add_(start)
        number = flat.index_select(0, places.reshape(-1)).reshape(rows * trees, tests)
        path = torch.mv(number.gt_(threshold.index_select(0, block)), digits).to(torch.int32)
        path = meaning.index_select(0, path).add_(block, alpha=tests + 1)
        at = exits.index_select(0, path).add_(at).sub_(block)
    return at.neg_().reshape(rows, trees)


def pack_blocks(op: TreeEnsemble, feature: Array, number: Array) -> tuple[Array, ...]:
    """The arrays of `by_blocks`. feature: the column of each node's split; number: the number of each leaf's node in the result.

    Of the T blocks at the roots: columns i32[T · tests], thresholds, and exits i32[T · (tests + 1)]; and where the exits of each begin.
    Of the B blocks below: columns i32[B + 1, tests], thresholds, exits i32[(B + 1) · (tests + 1)]. An exit is the number of a block, from
    1 on, or minus the number of a leaf. Block 0 is for walks that are at a leaf. Its tests are never passed, and all its exits are 0.
    meaning i32[2^tests]: the exit for each outcome of the tests. digits [tests]: 1, 2, 4 …
    Tests are numbered level by level: 2i + 1 and 2i + 2 lie below i."""
    depth = int(op.depths.max(initial=0))
    height = -(-depth // max(steps_of(depth), 1))
    found = [_levels(op, op.roots.astype(np.int64), height)]
    while len(deeper := found[-1][1][op.feature[found[-1][1]] >= 0]):
        found.append(_levels(op, np.unique(deeper), height))
    below = np.concatenate([tests[:, 0] for tests, _ in found[1:]] or [np.zeros(0, np.int64)])
    block = np.zeros(len(op.feature), np.int64)
    block[below] = 1 + np.arange(len(below))

    def arrays(tests: Array, exits: Array) -> list[Array]:
        split = op.feature[tests] >= 0
        inner = op.feature[exits] >= 0
        return [
            np.where(split, feature[tests], 0).astype(np.int32),
            np.where(split, op.threshold[tests], np.inf).astype(op.threshold.dtype),
            np.where(inner, block[exits], -number[exits]).astype(np.int32),
        ]

    size = (1 << height) - 1
    leaf = (
        np.zeros((1, size), np.int32),
        np.full((1, size), np.inf, op.threshold.dtype),
        np.zeros((1, size + 1), np.int32),
    )
    lower = zip(leaf, *(arrays(*each) for each in found[1:]), strict=True)
    column, threshold, exits = (np.concatenate(parts) for parts in lower)
    roots = [each.ravel() for each in arrays(*found[0])]
    return (
        *roots,
        np.arange(op.n_trees, dtype=np.int32) * (size + 1),
        column,
        threshold,
        exits.ravel(),
        _meaning(height),
        (2.0 ** np.arange(size)).astype(op.threshold.dtype),
    )


def _levels(op: TreeEnsemble, nodes: Array, height: int) -> tuple[Array, Array]:
    """(the nodes of the blocks that begin at `nodes`, the nodes behind them), level by level. Below a leaf they are this leaf again."""
    at, parts = nodes[:, None], []
    for _ in range(height):
        parts.append(at)
        inner = op.feature[at] >= 0
        at = np.stack([np.where(inner, side[at], at) for side in (op.left, op.right)], axis=2).reshape(len(nodes), -1)
    return np.concatenate([nodes[:, None][:, :0], *parts], axis=1), at


def _meaning(height: int) -> Array:
    """The exit of a block for each outcome of its tests."""
    outcome = np.arange(1 << ((1 << height) - 1))
    node = np.zeros_like(outcome)
    for _ in range(height):
        node = 2 * node + 1 + (outcome >> node & 1)
    return (node - ((1 << height) - 1)).astype(np.int32)
