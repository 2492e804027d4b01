"""The strategy "scan" for tree ensembles: every split of every tree is tested for many rows at once (docs/tree-kernels.md §1, §2).

For each row and tree it keeps one leaf: the leftmost leaf that the row can still reach. It starts at leaf 0. Splits are tested parents
first. If the leaves below a split are [lo, …) and those of its right child [mid, …), the leaf becomes `mid` if it is `lo` and the row
goes right. All trees take their steps together, the largest trees first, so that a step is a few operators on matrices [trees, rows].
Only operators that PyTorch runs by vectors of bytes on a CPU are used (0.025 to 0.035 ns an element on Sapphire Rapids, six for a split).
Comparisons are of that kind in place only: one into bool takes 0.65 ns, and torch.where 2.8 ns. Products of matrices of bytes (gemm by
torch._int_mm, exact, with AMX) take 20 ns a row for 64 splits and leaves, without the tests and the search for the leaf; a scan 11.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.exact import Function, exporting, scripted
from hbc.compiler.torch.few import BLOCKS, steps_of, sum_of_one_row
from hbc.compiler.torch.leaves import add_leaves, of_rows, pack_values, totals, trees_at_once
from hbc.compiler.torch.ranked import ARRAYS as RANKED
from hbc.compiler.torch.ranked import edges_of, ranks, reach_of
from hbc.compiler.torch.walk import AT_ONCE, ENCODING, TABLES, depths_of, numbered, reached_by_few, sizes_now, walkable
from hbc.ir.graph import Operator
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import rank_encode

MOST_LEAVES = 256
"""The largest number of leaves of a tree, since a byte holds the number of a leaf."""
SPLITS = 12
"""The number of arrays of `pack` that are `splits` of `sums`. Behind them lies `of_leaves`, and then `nodes`."""
TREES_AT_ONCE = 64
"""The number of trees whose leaf values are in memory together."""
FEW = 1 << 10
"""The largest number of numbers that searchsorted ranks. `ranks` takes a fifth of its time for each, but calls four operators for each
halving."""

LANES = 64
"""Rows are filled up to a multiple of so many, the bytes of a vector. PyTorch tests the rest of a row of a matrix byte by byte: 63 rows of
500 trees of 31 leaves took 0.92 ms, and 64 take 0.67 (Zen 5)."""
STEP = 4300
"""Rows × trees × levels of a walk that take as long as a step of a scan, most of whose time is that of calls where rows are few: 9 µs, and
2.1 ns for a level (Zen 5)."""


def walked_at_most(leaves: int, depth: int) -> int:
    """The largest number of walks (rows × trees) that are walked instead, for trees of at most so many leaves and levels. One row of 500
    trees of 31 leaves takes 0.14 ms by a walk and 0.47 by a scan, and 13 rows the same; those of 98 leaves and depth 8 take the walk up to
    100 rows: 30 take a third of the time of a scan (Zen 5)."""
    return min(STEP * (leaves - 1) // max(depth, 1), AT_ONCE)


def scannable(op: Operator) -> bool:
    """Whether this strategy can run an operator: a TreeEnsemble whose largest tree has 2 to MOST_LEAVES leaves."""
    return isinstance(op, TreeEnsemble) and int(op.leaf_counts.max(initial=0)) in range(2, MOST_LEAVES + 1)


def scan(x: Tensor, splits: list[Tensor], counts: list[int], few: int, lanes: int) -> Tensor:
    """The leaf that each row reaches in each tree, u8[T, N], counted from the left of the tree. splits: see `pack`. They are sorted by
    step, and step s has counts[s] of them. few: the most numbers that searchsorted ranks; below 0, all. lanes:
    LANES, or 1."""
    columns, edges, missing, plane_column, plane_first, below, planes, least, lo, change, place, reach = splits
    values = x.detach().t().index_select(0, columns)  # a third of the time of selecting in rows and transposing then
    nan = values.isnan()
    searched = x.is_cuda or few < 0 or values.numel() <= few
    rank = torch.searchsorted(edges, values, out_int32=True) if searched else ranks(values, edges.detach(), reach)
    rank = torch.where(nan, missing, rank)
    rows = (rank.index_select(0, plane_column) - plane_first).clamp(0, 255).to(torch.uint8)
    if below.size(0) > 0:  # copies of some planes, in which NaN has the rank 0
        without = rows.index_select(0, below)
        rows = torch.cat([rows, without.masked_fill_(nan.index_select(0, plane_column.index_select(0, below)), 0)])
    if lanes > 1:
        rows = torch.constant_pad_nd(rows, [0, -x.size(0) % lanes])
    leaf = torch.zeros([place.size(0), rows.size(1)], dtype=torch.uint8, device=x.device)
    right, other = torch.empty_like(leaf), torch.empty_like(leaf)
    # To cut them for all steps at once saves half of the calls.
    parts = [torch.split_with_sizes(each, counts) for each in (planes, least, lo, change)]
    for step in range(len(counts)):
        # `moves` is 1 where the row goes right (its rank is at least the split's rank + 1) and its leaf is `lo`.
        count = counts[step]
        candidate, moves, differs = leaf[:count], right[:count], other[:count]
        torch.index_select(rows, 0, parts[0][step], out=moves)
        torch.bitwise_xor(candidate, parts[2][step], out=differs)
        candidate.bitwise_xor_(moves.ge_(parts[1][step]).gt_(differs).mul_(parts[3][step]))
    return leaf.index_select(0, place).narrow(1, 0, x.size(0))


def sums(
    x: Tensor,
    splits: list[Tensor],
    of_leaves: list[Tensor],
    counts: list[int],
    few: int,
    lanes: int,
    at_once: int,
    nodes: list[list[Tensor]],
    depths: list[int],
    sizes: list[int],
    steps: int,
) -> Tensor:
    """The sums [N, K] of the values of the leaves that rows reach, added in the order of the trees.

    splits, of_leaves, nodes: what `pack` returns. counts, few, lanes: see `scan`. at_once: the number of trees whose leaves are looked up
    together. depths, sizes, steps: those of hbc.compiler.torch.walk.sums, with `walked_at_most`."""
    values, target, base, starts = of_leaves
    trees, rows = starts.size(0), x.size(0)
    total = totals(base, values, rows)
    if takes_walk(x, trees, nodes, sizes):
        leaf = walked(x, nodes, depths, sizes, steps)
        if rows == 1 and not x.is_cuda:
            return sum_of_one_row(leaf.reshape(-1), values, nodes[2][len(nodes[2]) - 1], base)
        step = trees_at_once(values, trees, rows)
        add_leaves(total, leaf, values, target, total.new_empty([step * total.size(1)]), step)
        return of_rows(total, values)
    leaf = scan(x, splits, counts, few, lanes)
    step = at_once if few < 0 else trees_at_once(values, at_once, rows)
    memory = total.new_empty([step * total.size(1)])
    for first in range(0, trees, at_once):
        some = leaf[first : first + at_once].to(torch.int32).add_(starts[first : first + at_once])
        add_leaves(total, some, values, target[first : first + at_once], memory, step)
    return of_rows(total, values)


def ids(
    x: Tensor,
    splits: list[Tensor],
    of_leaves: list[Tensor],
    counts: list[int],
    few: int,
    lanes: int,
    at_once: int,
    nodes: list[list[Tensor]],
    depths: list[int],
    sizes: list[int],
    steps: int,
) -> Tensor:
    """The leaves that rows reach, i64[N, T], as the source library numbers them. The parameters are those of `sums`."""
    known, starts = of_leaves
    trees, rows = starts.size(0), x.size(0)
    if takes_walk(x, trees, nodes, sizes):
        leaf = walked(x, nodes, depths, sizes, steps)
    else:
        leaf = scan(x, splits, counts, few, lanes).to(torch.int32) + starts
    return known.reshape(-1).index_select(0, leaf.t().reshape(-1)).reshape(rows, trees)


def takes_walk(x: Tensor, trees: int, nodes: list[list[Tensor]], sizes: list[int]) -> bool:
    """Whether the rows x are walked. sizes: those of hbc.compiler.torch.walk.sums, with `walked_at_most`."""
    return len(nodes[0]) > 0 and sizes[1] > 0 and 0 < x.size(0) * trees <= sizes[1]  # torch.export cannot multiply the rows


def walked(x: Tensor, nodes: list[list[Tensor]], depths: list[int], sizes: list[int], steps: int) -> Tensor:
    """The leaves that few rows reach, i32[T, N], in the numbering of `of_leaves`. The parameters are those of `sums`."""
    encoding, trees, blocks, place = nodes
    reached = reached_by_few(x, encoding, trees, blocks, depths, sizes, steps)
    return place[0].index_select(0, reached.reshape(-1)).reshape(reached.size(0), reached.size(1))


def _counts(op: TreeEnsemble) -> list[int]:
    """For each step, the number of trees that still have a split."""
    splits = op.leaf_counts - 1
    return [int((splits > step).sum()) for step in range(int(splits.max(initial=0)))]


def pack(op: TreeEnsemble) -> tuple[Array, ...]:
    """The arrays of an ensemble, which are the parameters of `scanner(op)`.

    splits: columns i64[C], edges [C, 2^k - 1], missing i32[C, 1]: the columns of x that are ranked, their thresholds, and the rank of NaN.
    Behind the thresholds stands inf.
    plane_column i64[P], plane_first i32[P, 1]: the planes of bytes. A plane holds the ranks of a column minus plane_first, as bytes.
    below i64[D]: the planes that are there a second time, with NaN below all ranks.
    planes i64[J], least, lo, change u8[J, 1]: for each split its plane, its rank + 1, its first leaf, and lo xor mid.
    place i64[T]: the position of each tree, the largest tree first. reach: see `reach_of`.
    of_leaves: what `pack_values` returns, and starts i32[T, 1], the first leaf of each tree.
    nodes: `encoding`, `trees` and `blocks` of hbc.compiler.torch.walk.pack, and i32 the leaf that each number of a node stands for. Nothing
    if the ensemble cannot be walked.
    """
    ranked = rank_encode(op)
    splits = np.diff(ranked.starts)
    order = np.argsort(-splits, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    tree = np.repeat(np.arange(op.n_trees), splits)
    by_step = np.lexsort((place[tree], np.arange(len(tree)) - np.repeat(ranked.starts[:-1], splits)))

    def byte(values: Array) -> Array:
        return values[by_step, None].astype(np.uint8)

    edges = edges_of(list(ranked.thresholds), op.threshold.dtype)
    splits_and_planes = (
        ranked.column_feature.astype(np.int64),
        edges,
        ranked.missing_rank[:, None].astype(np.int32),
        ranked.plane_column.astype(np.int64),
        ranked.plane_first[:, None].astype(np.int32),
        ranked.below.astype(np.int64),
        ranked.split_plane[by_step].astype(np.int64),
        byte(ranked.split_rank + 1),
        byte(ranked.split_lo),
        byte(ranked.split_lo ^ ranked.split_mid),
        place.astype(np.int64),
        reach_of(edges),
    )
    of_leaves = *pack_values(op, ranked.leaves), ranked.leaf_starts[:-1, None]
    if not walkable(op):
        return *splits_and_planes, *of_leaves
    *arrays, leaf = numbered(op)
    place_of_leaf = np.zeros(len(ranked.leaves), np.int32)
    place_of_leaf[ranked.leaves] = np.arange(len(ranked.leaves))
    blocks = arrays[ENCODING + TABLES + RANKED :]
    return *splits_and_planes, *of_leaves, *arrays[: ENCODING + TABLES], *blocks, place_of_leaf[leaf]


def row_bytes(op: TreeEnsemble) -> int:
    """The bytes that a scan keeps for one row, about: a byte for each tree's leaf, and one for `moves`."""
    return 2 * op.n_trees


def scanner(op: TreeEnsemble) -> Function:
    """The function that computes an ensemble, from the numbers of rows and then `pack(op)`."""
    counts, depths, compute = _counts(op), depths_of(op), sums if op.output == "sum" else ids
    steps, walked = steps_of(max(depths)), walked_at_most(int(op.leaf_counts.max()), max(depths))
    ends = itertools.accumulate([SPLITS, 4 if op.output == "sum" else 2, ENCODING, TABLES, BLOCKS])
    parts = list(itertools.pairwise([0, *ends, None]))

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        splits, of_leaves, *nodes = (list(parameters[start:end]) for start, end in parts)
        few, lanes = (-1, 1) if exporting() else (FEW, LANES)
        sizes = sizes_now(walked)
        return scripted(compute)(x, splits, of_leaves, counts, few, lanes, TREES_AT_ONCE, nodes, depths, sizes, steps)

    return run
