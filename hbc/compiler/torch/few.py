"""The strategy "walk" for few rows: trees are cut into blocks of some levels, and a step tests all splits of a block at once.

For few rows, calls of operators take longer than their work. Level by level, 500 trees of depth 8 take some 60 calls; by two blocks of four
levels they take 28, half of which only make views. A step looks up the columns and thresholds of the 15 splits of each walk's block. Their
tests, 0 or 1, are the digits of a number, and a table says to which of the block's 16 exits it leads. Behind an exit lies a block or a
leaf.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.leaves import as_rows
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

FEW = 3 << 9
"""The largest number of walks (rows × trees) that a script takes by blocks. With 500 trees of depth 8, one row takes 50 µs so and 80 level
by level; each other row takes 18 µs more by blocks and 10 level by level (AMD EPYC)."""
FEW_EAGER = 2 * FEW
"""The same for eager operators, which take longer to call."""
HEIGHT = 4
"""The largest number of levels of a block, whose table of exits has 2^15 entries then."""
BLOCKS = 12
"""The number of arrays of `pack_blocks`."""


def steps_of(depth: int) -> int:
    """The number of blocks below each other, for trees of that depth."""
    return -(-depth // HEIGHT)


def takes_blocks(x: Tensor, trees: int, steps: int, sizes: list[int]) -> bool:
    """Whether the rows x take blocks. sizes: see hbc.compiler.torch.walk.sums. On a GPU it is the number of operators that counts, so more
    rows take them."""
    most = sizes[1] if x.is_cuda else sizes[0]
    return steps > 0 and 0 < x.size(0) * trees <= most


def by_blocks(x: Tensor, blocks: list[Tensor], steps: int) -> Tensor:
    """The leaves that rows reach in all trees, i32[N · T], in the numbering of hbc.compiler.torch.walk.pack.

    x: the numbers of rows; blocks: what `pack_blocks` returns; steps: see `steps_of`."""
    missing, most, root_column, root_threshold, root_exits, first_exit, column, threshold, change, meaning, digits, _where = (
        blocks
    )
    rows, trees, tests = x.size(0), first_exit.size(0), digits.size(0)
    flat = _without_missing(x, missing, most).reshape(-1)
    start, place = root_column, root_column
    if rows > 1:
        start = torch.arange(rows, dtype=torch.int64, device=x.device).mul_(flat.size(0) // rows).reshape(rows, 1)
        place = (start + root_column).reshape(-1)
    number = flat.index_select(0, place)
    number.reshape(rows, trees * tests).gt_(root_threshold)
    path = meaning.index_select(0, torch.mv(number.reshape(-1, tests), digits).to(torch.int32))
    path.reshape(rows, trees).add_(first_exit)
    at = root_exits.index_select(0, path)
    for _ in range(1, steps):
        block = at.clamp(max=column.size(0) - 1)
        places = column.index_select(0, block)
        if rows > 1:
            places = places.reshape(rows, trees * tests).add_(start)
        number = flat.index_select(0, places.reshape(-1)).reshape(-1, tests)
        path = torch.mv(number.gt_(threshold.index_select(0, block)), digits).to(torch.int32)
        path = meaning.index_select(0, path).add_(block, alpha=tests + 1)
        at.add_(change.index_select(0, path))
    return at


def _without_missing(x: Tensor, missing: Tensor, most: Tensor) -> Tensor:
    """The numbers that splits compare, one row after the other: see `pack_blocks`. NaN is replaced unseen: a look would take as long."""
    if missing.size(0) == 0:
        return x.contiguous()
    if x.size(1) > missing.size(1):
        x = x.narrow(1, 0, missing.size(1))
    if x.size(0) > 1:
        x = x.unsqueeze(1)
    if most.size(0) > 0:
        x = torch.minimum(x, most)
    return torch.where(torch.isnan(x), missing, x)


def sum_of_one_row(leaf: Tensor, values: Tensor, where: Tensor, base: Tensor) -> Tensor:
    """The sums [1, K] of the values of the leaves i32[T] that one row reaches, added in the order of the trees (on a CPU). where: the last
    array of `pack_blocks`; values, base: see `pack_values`."""
    return base.reshape(-1).index_add(0, where, values.index_select(1, leaf).reshape(-1)).reshape(1, -1)


def pack_blocks(
    op: TreeEnsemble, feature: Array, number: Array, copied: Array, for_nan: Array, most: Array
) -> tuple[Array, ...]:
    """The arrays of `by_blocks`, from those of hbc.compiler.torch.walk.pack. feature: the column of each node's split. number: the number
    of each leaf's node in the result.

    missing, most [R, C]: what stands for NaN in each column, and the largest number of each, as `for_nan` and `most` say. R is 2 if columns
    are `copied`: then the second rows are for the copies. Empty as those.
    Of the T blocks at the roots: columns i64[T · tests], thresholds, and exits i32[T · (tests + 1)]; and where the exits of each begin.
    Of the B blocks below: columns i64[B + 1, tests], thresholds, and change i32[(B + 1) · (tests + 1)]: the number behind each exit minus
    that of the block. A number below B is a block's. A leaf's has B added for each step that is left. In such a step it counts as
    block B, whose tests are never passed and whose change is -B.
    meaning i32[2^tests]: the exit for each outcome of the tests. digits [tests]: 1, 2, 4 …
    where i64[V · T]: the column of the result to which each value of a leaf belongs, if leaves have values, in the order of `pack_values`.
    Tests are numbered level by level: 2i + 1 and 2i + 2 lie below i."""
    depth = int(op.depths.max(initial=0))
    steps = steps_of(depth)
    height = -(-depth // max(steps, 1))
    found = [_levels(op, op.roots.astype(np.int64), height)]
    while len(deeper := found[-1][1][op.feature[found[-1][1]] >= 0]):
        found.append(_levels(op, np.unique(deeper), height))
    below = np.concatenate([tests[:, 0] for tests, _ in found[1:]] or [np.zeros(0, np.int64)])
    count = len(below)
    block = np.zeros(len(op.feature), np.int64)
    block[below] = np.arange(count)
    width = len(for_nan) - len(copied) if len(for_nan) else int(feature.max(initial=-1)) + 1
    column = np.concatenate([np.arange(width), width + copied, [0]])[feature]  # 0 at leaves, whose feature is -1

    def doubled(values: Array) -> Array:
        """The numbers of columns and of their copies, [R, C]."""
        if not len(values):
            return values.reshape(0, 1)
        both = np.tile(values[:width], (2 if len(copied) else 1, 1))
        both[-1, copied] = values[width:]
        return both

    def arrays(level: int) -> list[Array]:
        tests, exits = found[level]
        split = op.feature[tests] >= 0
        behind = np.where(op.feature[exits] >= 0, block[exits], number[exits] + count * (steps - 1 - level))
        return [
            column[tests],
            np.where(split, op.threshold[tests], np.inf).astype(op.threshold.dtype),
            (behind - block[tests[:, :1]] * (level > 0)).astype(np.int32),
        ]

    size = (1 << height) - 1
    at_leaf = (
        np.zeros((1, size), np.int64),
        np.full((1, size), np.inf, op.threshold.dtype),
        np.full((1, size + 1), -count, np.int32),
    )
    columns, threshold, change = (
        np.concatenate(parts) for parts in zip(*map(arrays, range(1, len(found))), at_leaf, strict=True)
    )
    roots = [each.ravel() for each in arrays(0)]
    where = op.target.astype(np.int64) + np.arange(op.values.shape[1])[:, None]
    return (
        doubled(for_nan),
        doubled(most),
        *roots,
        np.arange(op.n_trees, dtype=np.int32) * (size + 1),
        columns,
        threshold,
        change.ravel(),
        _meaning(height),
        (2.0 ** np.arange(size)).astype(op.threshold.dtype),
        (where.T if as_rows(len(where)) else where).ravel(),
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
