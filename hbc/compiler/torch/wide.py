"""Rows of very many columns: how the strategy "walk" goes down the full levels, one row after the other.

Other walks go tree by tree, so that the first-level cache keeps the tests of a tree. The numbers of rows come from the whole block. With
2,000 columns a block of 1 MB has 131 rows only, and its columns, which the highest levels need side by side, take 1.6 ns a number. Here all
trees of a row are walked before the next row, so that the cache keeps a row's numbers, and blocks may be longer. The two highest levels
look up the same columns for each row. That takes index_select 0.45 ns, and 0.8 to 1.2 with a column for each walk. A third level would save
2 % (500 trees of depth 8, Zen 3).
"""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 1000
"""The fewest columns of an ensemble whose rows go one after the other. 20 to 300 trees of depth 8 take 0.5 to 0.9 of the time so if they
read 1,000 or 2,000 columns. With 500 they take as long, and with fewer up to twice as long (Zen 3)."""
OF_A_TREE = 3
"""The fewest columns for each tree. With 2,000 columns, 500 trees that read any of them take 0.83 of the time, and 500 of epsilon 0.86 (a
forest) and 0.97 (LightGBM, whose highest levels read fewer columns). With 1,000 columns, 500 trees take as long (Zen 3)."""
LEAST_WIDE = 512
"""The least number of rows of a block. With 262 a row takes 1 to 3 % longer, and with 131 10 % (500 trees of depth 8, Zen 3)."""
CHUNK = 128
"""The rows that go down the levels together. With 64 or 262 a row takes up to 10 % longer (500 trees of depth 8, Zen 3)."""
NEAR = 1 << 16
"""The most nodes of a level that are looked up row by row. Those of larger levels come from beyond the second-level cache, and walks go on
tree by tree."""


def wide(columns: int, trees: int) -> bool:
    """Whether the rows of so many trees that read so many columns go one after the other."""
    return columns >= max(COLUMNS, OF_A_TREE * trees)


def row_by_row(
    x: Tensor,
    row: Tensor,
    columns: Tensor,
    trees: list[Tensor],
    first: int,
    end: int,
    numbers: list[Tensor],
    places: list[Tensor],
    bits: Tensor,
    chunk: int = CHUNK,
    near: int = NEAR,
) -> Tensor:
    """The places that rows reach behind the levels that are stored in full, i32[(end - first) · N], tree by tree, in memory of `places`.
    columns: of the tests of the two highest levels, i64[3, T]. numbers: the first holds three for each walk. The others are the parameters
    of `behind_full_levels` of walk.py."""
    top_threshold, feature, threshold, exits = trees[1], trees[3], trees[4], trees[5]
    count, all_rows, all_trees, flat = end - first, row.size(0), columns.size(1), x.reshape(-1)
    cuts, column = top_threshold[:3, first:end].reshape(-1), columns[:, first:end].reshape(-1)
    roots = torch.arange(all_trees + first, all_trees + end, dtype=torch.int32) * 4
    result = places[2][: count * all_rows].reshape(count, all_rows)
    for begin in range(0, all_rows, chunk):
        rows = min(chunk, all_rows - begin)
        walks, start = rows * count, row.narrow(0, begin, rows)
        number, cut = numbers[0][:walks], numbers[1][:walks]
        node, other, place = places[0][:walks], places[1][:walks], places[3][:walks]
        tests = numbers[0][: 3 * walks].reshape(rows, 3 * count)
        torch.index_select(x.narrow(0, begin, rows), 1, column, out=tests)
        tests.gt_(cuts)
        passed = bits[: 3 * walks].reshape(3, rows, count)
        passed.copy_(tests.reshape(rows, 3, count).transpose(0, 1))
        root, left, right = passed[0], passed[1], passed[2]
        node.reshape(rows, count).copy_(right.sub_(left).mul_(root).add_(left).add_(root, alpha=2)).add_(roots)
        level, by_row = 2, True
        while (all_trees << level) < exits.size(0):
            if by_row and (all_trees << level) > near:
                other.reshape(count, rows).copy_(node.reshape(rows, count).t())
                node, other, by_row = other, node, False
            torch.index_select(feature, 0, node, out=place)
            if by_row:
                place.reshape(rows, count).add_(start.reshape(-1, 1))
            else:
                place.reshape(count, rows).add_(start)
            torch.index_select(flat, 0, place, out=number)
            torch.index_select(threshold, 0, node, out=cut)
            other.copy_(number.gt_(cut)).add_(node, alpha=2)
            node, other = other, node
            level += 1
        result.narrow(1, begin, rows).copy_(node.reshape(rows, count).t() if by_row else node.reshape(count, rows))
    return result.reshape(-1)
