"""Ranks instead of numbers: how the strategy "walk" goes down the full levels where rows are many and columns few.

The rank of a number is how many thresholds of its column are less. `x > t` if the rank of x is greater than that of t, so ranks are exact.
The first TOP levels are tested as a whole: a byte is enough for the rank among their thresholds, and byte operators take 0.03 ns an
element. For many rows it is up to eight levels, by bits: see bits.py. In the full levels below, an i32 holds both the rank of a node's
threshold and its column, so that a step takes two look-ups instead of three (0.6 ns each on Sapphire Rapids; other operators take 0.12),
and no conversions.
To rank a number takes 10 to 15 ns, which many trees must be worth.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.bits import LEVELS, pack_bits, paths_by_bits
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import thresholds_by_feature

TOP = 4
"""The number of levels that are tested as a whole. With 3 or 5 a row takes 0 to 10 % longer (500 trees of depth 8)."""
IN_PLANE = 254
"""The ranks that a byte tells apart. No rank reaches 255, the least of a test that nothing passes."""
HALVINGS = 3
"""An ensemble is ranked if the search for the ranks of a row takes at most so many steps a tree, over all columns."""
ARRAYS = 17
"""The number of arrays of `pack_ranked`."""


def ranks(values: Tensor, edges: Tensor, reach: Tensor, copies: int = 0) -> Tensor:
    """For each of the values [C, N] the number of edges [C, 2^k - 1] of its column that are less, i32. For NaN it is 0. reach: see
    `reach_of`; copies: the number of columns whose edges are there a second time, behind these.

    torch.searchsorted takes 55 to 80 ns for each (Sapphire Rapids), since a processor cannot foresee its branches; this takes 10 to 15,
    and 1 for a column with one edge: covtype's forest, 44 of whose 54 columns are so, takes 7 % less for each row so (Zen 4)."""
    columns, size = edges.size(0), edges.size(1)
    flat, found = edges.reshape(-1), values.reshape(-1)
    first = torch.arange(columns, dtype=torch.int32, device=values.device).mul_(size).reshape(-1, 1)
    place = first.repeat(1, values.size(1)).reshape(-1)
    cut, step = torch.empty_like(found), torch.empty_like(place)
    halving, half = 0, (size + 1) // 2
    while half > 0:
        count = (int(reach[halving].item()) + copies) * values.size(1)
        at, less, more = place[:count], cut[:count], step[:count]
        torch.index_select(flat[half - 1 :], 0, at, out=less)
        at.add_(more.copy_(less.lt_(found[:count])), alpha=half)
        halving, half = halving + 1, half // 2
    return place.reshape(columns, -1).sub_(first)


def edges_of(thresholds: list[Array], dtype: np.dtype[np.generic]) -> Array:
    """The thresholds of each column, ascending, as edges [C, 2^k - 1]. Behind them stands inf."""
    most = max((len(each) for each in thresholds), default=1)
    edges = np.full((len(thresholds), (1 << max(most, 1).bit_length()) - 1), np.inf, dtype)
    for column, each in enumerate(thresholds):
        edges[column, : len(each)] = each
    return edges


def reach_of(edges: Array) -> Array:
    """i64[k]: of how many columns, counted from the first one, each halving of the search in edges [C, 2^k - 1] decides something. In the
    columns behind them it would compare with inf."""
    found, half = [], (edges.shape[1] + 1) // 2
    while half:
        found.append(int(np.flatnonzero(edges[:, half - 1] < np.inf).max(initial=-1)) + 1)
        half //= 2
    return np.array(found, np.int64)


def in_ranks(x: Tensor, ranked: list[Tensor], whole: bool, many: int, memory: Tensor) -> list[Tensor]:
    """What `nodes` reads of rows. x: their numbers, without NaN that go right; ranked: what `pack_ranked` returns; whole: they have no
    copies of columns; many: the fewest rows that are tested by bits (MANY of bits.py); memory: see `paths_of`.

    It begins with keys i32[N · 2^b]: the ranks of a row, shifted to leave place for the number of a column; and i32[N]: where each row
    begins. Three more follow: i64[tests, T], the plane of each test of the highest levels; u8[P, N], the ranks in these planes; and `least`
    of `pack_ranked`. By bits, there are two more: the tests, whose number says how many levels they are of, and u8[T, N], the paths that
    rows take. Then keys are empty if these tests reach all full levels."""
    columns, edges, high, planes, first, plane, least, _prefix, steps = ranked[:9]
    plane_if_whole, with_copies, reach, slots, bottoms, slots_in_all, tests, tests_with_copies = ranked[9:]
    edges, count, size = edges.detach(), edges.size(0), edges.size(1) + 1
    width = 1
    while width < count:
        width *= 2
    start, shift, sides = torch.arange(count, dtype=torch.int32, device=x.device).mul_(size).reshape(-1, 1), width, 1
    if with_copies.size(0) > 0:
        shift = 2 * width
        if whole:
            plane = plane_if_whole
        else:  # the copies of all columns come behind them, and begin at a power of two
            columns, edges, start, sides = with_copies, edges.repeat(2, 1), start.repeat(2, 1), 2
            planes, first, tests = torch.cat([planes, planes + count]), first.repeat(2, 1), tests_with_copies
    found = ranks(x.t().index_select(0, columns), edges, reach, (sides - 1) * count)
    by_bits, read = tests.size(0) > 0 and x.size(0) >= many and x.size(0) * tests.size(1) >= many * 512, x.size(0)
    if by_bits and steps.size(0) <= (tests.size(0) + 1) * tests.size(1):
        read = 0
    keys = torch.zeros([read, sides, width], dtype=torch.int32, device=x.device)
    if read > 0:
        keys.narrow(2, 0, count).copy_(found.reshape(sides, count, x.size(0)).permute(2, 0, 1)).mul_(shift)
    rows = torch.arange(x.size(0), dtype=torch.int32, device=x.device).mul_(sides * width)
    found.add_(start)
    if by_bits:
        return [keys.reshape(-1), rows, tests, paths_by_bits(found, slots, bottoms, slots_in_all, tests, memory)]
    among = high.index_select(0, found.reshape(-1)).reshape(sides * count, -1)
    # 254 is IN_PLANE, which a script cannot read.
    bytes_of_planes = (among.index_select(0, planes) - first).clamp(0, 254).to(torch.uint8)
    return [keys.reshape(-1), rows, plane, bytes_of_planes, least]


def nodes(rows: list[Tensor], ranked: list[Tensor], first: int, end: int, places: list[Tensor], bits: Tensor) -> Tensor:
    """The places that rows reach behind the full levels in the trees first … end - 1, i32[(end - first) · N]. The children of place k are
    2k and 2k + 1, and tree t of T begins with the place T + t. rows: see `in_ranks`; ranked: see `pack_ranked`; places, bits: memory for
    four i32 of each walk, and a byte of each test."""
    keys, start, tested, found = rows[:4]
    prefix, steps = ranked[7], ranked[8]
    trees, count, walks = tested.size(1), end - first, (end - first) * start.size(0)
    node, other, place, test = places[0][:walks], places[1][:walks], places[2][:walks], places[3][:walks]
    if len(rows) == 4:
        node.reshape(count, -1).copy_(found[first:end].narrow(1, 0, start.size(0)))
    else:
        tests = bits[: tested.size(0) * walks].reshape(tested.size(0) * count, -1)
        torch.index_select(found, 0, tested[:, first:end].reshape(-1), out=tests)
        tests.ge_(rows[4][:, first:end].reshape(-1, 1))
        node.copy_(paths(tests.reshape(tested.size(0), walks), prefix))
    level = 0
    while (1 << level) <= tested.size(0):
        level += 1
    roots = torch.arange(trees + first, trees + end, dtype=torch.int32, device=found.device).reshape(-1, 1)
    node.reshape(count, -1).add_(roots * (1 << level))
    mask = torch.full([], keys.size(0) // start.size(0) - 1, dtype=torch.int32, device=found.device)
    while (trees << level) < steps.size(0):
        torch.index_select(steps, 0, node, out=test)
        torch.bitwise_and(test, mask, out=place)
        place.reshape(count, -1).add_(start)
        torch.index_select(keys, 0, place, out=other)
        other.gt_(test).add_(node, alpha=2)
        node, other = other, node
        level += 1
    return node


def paths(tests: Tensor, prefix: Tensor) -> Tensor:
    """The node behind the highest levels that each walk reaches, u8[walks], from its tests u8[2^top - 1, walks], which change. Level d has
    the tests 2^d - 1 …; node i of a level has the children i and i + 2^d. prefix: the path to each node of the last level, doubled."""
    path = tests[prefix.size(0) - 1 :].add_(prefix)
    half = prefix.size(0) // 2
    while half > 0:  # paths are greater on the right
        path[half : 2 * half].mul_(tests[half - 1 : 2 * half - 1])
        torch.maximum(path[:half], path[half : 2 * half], out=path[:half])
        half = half // 2
    return path[0]


def reversed_bits(bits: int) -> Array:
    """The numbers of so many bits, each with its bits in reverse order."""
    found = np.zeros(1, np.int64)
    for bit in range(bits):
        found = np.concatenate([found, found + (1 << (bits - 1 - bit))])
    return found


def _halvings(op: TreeEnsemble) -> int:
    """The number of steps of the search for the rank of a number."""
    return int(op.once(thresholds_by_feature).max(initial=1)).bit_length()


def pays(op: TreeEnsemble, full: int) -> bool:
    """Whether the ranks of rows save more than they cost, for an ensemble with so many full levels."""
    return full >= TOP and len(np.unique(op.feature[op.feature >= 0])) * _halvings(op) <= HALVINGS * op.n_trees


def _planes(rank: Array, column: Array, columns: int, never: int) -> tuple[Array, ...]:
    """`high`, `planes`, `first`, `plane_if_whole` and `least` of `pack_ranked`.

    rank, column [tests, T]: of the tests of the highest levels. A node that is no split has the rank `never`, the number of ranks in a
    column.
    """
    high: list[Array] = []
    planes: list[int] = []
    first: list[int] = []
    plane, least = np.zeros(rank.shape, np.int64), np.full(rank.shape, 255, np.uint8)
    for c in range(columns):
        mine = (column == c) & (rank < never)
        used, among = np.unique(rank[mine], return_inverse=True)
        high.append(np.searchsorted(used, np.arange(never)))
        plane[mine], least[mine] = len(planes) + among // IN_PLANE, among % IN_PLANE + 1
        for start in range(0, max(len(used), 1), IN_PLANE):
            planes.append(c)
            first.append(start)
    return np.concatenate(high).astype(np.int32), np.array(planes), np.array(first, np.int32)[:, None], plane, least


def pack_ranked(op: TreeEnsemble, feature: Array, levels: list[tuple[Array, Array]]) -> tuple[Array, ...]:
    """The arrays of `in_ranks` and `nodes`, all empty if the ranks would cost more than they save.

    columns i64[C], edges [C, 2^k - 1]: the columns that splits read, and their thresholds. high i32[C · 2^k]: for each rank in a column
    the rank among the thresholds of the highest levels. planes i64[P], first i32[P, 1]: the column of a plane, and what is subtracted
    from these ranks.
    plane i64[tests, T], least u8[tests, T]: for each test of the highest levels its plane, and the byte from which rows go right. prefix:
    see `paths`. steps i32[T · 2^full]: rank times 2^b plus column, for each place of the full levels.
    plane_if_whole: `plane` for rows without NaN. with_copies i64[2 · C]: the columns and then their copies; empty if there are none. The
    copies have the planes from P on, and the columns from 2^(b-1) on. reach i64[k]: see `reach_of`; columns with many thresholds come
    first. Then what `pack_bits` returns.

    feature: the column of each node's split, with copies behind all columns. levels: of the full levels, (node, whether it is a split),
    both [T, 2^d]."""
    splits = np.flatnonzero(op.feature >= 0)
    halvings = _halvings(op)
    columns, column = np.unique(op.feature[splits].astype(np.int64), return_inverse=True)
    most_first = np.argsort(-op.once(thresholds_by_feature)[columns], kind="stable")
    columns, column = columns[most_first], np.argsort(most_first)[column]
    copy = (feature != op.feature).astype(np.int64)
    half = 1 << max(len(columns) - 1, 0).bit_length()
    width = 2 * half if copy.any() else half
    empty = np.zeros(0, np.int64), np.zeros((0, 1), op.threshold.dtype), *(np.zeros(0, np.int64) for _ in range(ARRAYS - 2))
    if not pays(op, len(levels)) or width << (halvings + 1) >= 1 << 31:
        return empty
    thresholds, rank_of, column_of = [], np.zeros(len(op.feature), np.int64), np.zeros(len(op.feature), np.int64)
    column_of[splits] = column
    for c in range(len(columns)):
        mine = splits[column == c]
        different, rank_of[mine] = np.unique(op.threshold[mine] + 0.0, return_inverse=True)
        thresholds.append(different)
    edges = edges_of(thresholds, op.threshold.dtype)
    never = edges.shape[1] + 1
    rank = [np.where(split, rank_of[at], never) for at, split in levels]
    read = [np.where(split, column_of[at], 0) for at, split in levels]
    copies = [np.where(split, copy[at], 0) for at, split in levels]

    def highest(count: int) -> list[Array]:
        return [
            np.concatenate([each[:, reversed_bits(depth)].T for depth, each in enumerate(of_levels[:count])])
            for of_levels in (rank, read, copies)
        ]

    top_rank, top_column, top_copy = highest(TOP)
    high, planes, first, plane, least = _planes(top_rank, top_column, len(columns), never)
    steps = [np.zeros(op.n_trees, np.int64)]
    steps += [(r * width + half * side + c).ravel() for r, c, side in zip(rank, read, copies, strict=True)]
    copied, behind = splits[copy[splits] > 0], columns.copy()
    behind[column_of[copied]] = feature[copied]
    return (
        columns,
        edges,
        high,
        planes,
        first,
        plane + len(planes) * top_copy,
        least,
        (2 * reversed_bits(TOP - 1))[:, None].astype(np.uint8),
        np.concatenate(steps).astype(np.int32),
        plane,
        np.append(columns, behind) if copy.any() else columns[:0],
        reach_of(edges),
        *pack_bits(highest(LEVELS), len(columns), never),
    )
