"""Rows of very many columns: how the strategy "walk" goes down the full levels, a chunk of rows after the other.

Other walks take the numbers of rows from the whole block. With 2,000 columns the second-level cache keeps 128 rows, and operators for so
few rows and some of the trees take longer to call than to run. Here a chunk of rows is transposed, and goes down all trees together. Then
the columns that the highest levels test lie side by side: to copy one takes 0.10 ns a number, and 0.37 to look up each number in its row.
Below, the walks of a tree look up few columns. 500 trees of depth 8 take 9.6 to 10.1 µs a row so, and 11.9 to 13 where the rows of a chunk
are walked as they are, one after the other (epsilon, Zen 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hbc.compiler.torch.ranked import paths

COLUMNS = 1000
"""The fewest columns of an ensemble whose rows go in chunks. 20 to 300 trees of depth 8 take 0.5 to 0.9 of the time so if they
read 1,000 or 2,000 columns. With 500 they take as long, and with fewer up to twice as long (Zen 3)."""
OF_A_TREE = 3
"""The fewest columns for each tree. With 2,000 columns, 500 trees that read any of them take 0.83 of the time, and 500 of epsilon 0.86 (a
forest) and 0.97 (LightGBM, whose highest levels read fewer columns). With 1,000 columns, 500 trees take as long (Zen 3)."""
LEAST_WIDE = 512
"""The least number of rows of a block. With 262 a row takes 1 to 3 % longer, and with 131 10 % (500 trees of depth 8, Zen 3)."""
CHUNK = 128
"""The most rows of a chunk. With 64 or 256, 500 trees of depth 8 take as long (Zen 4)."""
TOGETHER = 1 << 14
"""The walks of a chunk whose highest levels are tested together. With half or twice as many a row takes 2 % longer (Zen 4)."""


def wide(columns: int, trees: int) -> bool:
    """Whether the rows of so many trees that read so many columns go in chunks."""
    return columns >= max(COLUMNS, OF_A_TREE * trees)


def transposed(x: Tensor) -> Tensor:
    """The matrix x [N, C] as [C, N] without gaps.

    For float32, PyTorch swaps the channels of a picture of one point by AVX-512, 0.13 ns a number, and 0.31 if it comes from memory. Its
    copy of a transposed matrix takes 0.54 and 1.0 (Zen 4)."""
    if x.dtype != torch.float32:
        return x.t().contiguous()
    picture = x.reshape(1, 1, 1, x.numel()).permute(0, 3, 1, 2)
    return torch.native_channel_shuffle(picture, x.size(0)).reshape(x.size(1), x.size(0))


def by_chunks(
    x: Tensor,
    columns: Tensor,
    trees: list[Tensor],
    first: int,
    end: int,
    numbers: list[Tensor],
    places: list[Tensor],
    bits: Tensor,
    chunk: int = CHUNK,
    together: int = TOGETHER,
) -> Tensor:
    """The places that rows reach behind the levels that are stored in full, i32[(end - first) · N], tree by tree, in memory of `places`.
    columns: of the tests of the highest levels, i64[tests, T]. The others are the parameters of `behind_full_levels` of walk.py."""
    top_threshold, prefix, feature, threshold, exits = trees[1], trees[2], trees[3], trees[4], trees[5]
    count, all_rows, tests, all_trees = end - first, x.size(0), columns.size(0), columns.size(1)
    result = places[2][: count * all_rows].reshape(count, all_rows)
    parts = (all_rows + chunk - 1) // chunk
    rows = (all_rows + parts - 1) // parts
    walks, some = count * rows, max(together // rows, 1)
    number, cut = numbers[0][:walks], numbers[1][:walks]
    place, row, start = places[3][:walks].reshape(count, rows), torch.arange(rows, dtype=torch.int32), feature * rows
    top = 0
    while (1 << top) <= tests:
        top += 1
    roots = torch.arange(all_trees + first, all_trees + end, dtype=torch.int32).mul_(1 << top).reshape(-1, 1)
    tested: list[Tensor] = []
    cuts: list[Tensor] = []
    for tree in range(first, end, some):
        tested.append(columns[:, tree : min(tree + some, end)].reshape(-1))
        cuts.append(top_threshold[:, tree : min(tree + some, end)].reshape(-1, 1))
    for part in range(parts):
        begin = min(part * rows, all_rows - rows)  # the last chunk may begin with rows of the one before
        chunk_of_x = transposed(x.narrow(0, begin, rows))
        node, other = places[0][:walks], places[1][:walks]
        passed = bits[: tests * walks].reshape(tests, walks)
        at = 0
        for group in range(len(tested)):
            test = chunk_of_x.index_select(0, tested[group]).gt_(cuts[group]).reshape(tests, -1)
            passed.narrow(1, at, test.size(1)).copy_(test)
            at += test.size(1)
        node.copy_(paths(passed, prefix))
        node.reshape(count, rows).add_(roots)
        level = top
        while (all_trees << level) < exits.size(0):
            torch.index_select(start, 0, node, out=place.reshape(-1))
            place.add_(row)
            torch.index_select(chunk_of_x.reshape(-1), 0, place.reshape(-1), out=number)
            torch.index_select(threshold, 0, node, out=cut)
            other.copy_(number.gt_(cut)).add_(node, alpha=2)
            node, other = other, node
            level += 1
        result.narrow(1, begin, rows).copy_(node.reshape(count, rows))
    return result.reshape(-1)
