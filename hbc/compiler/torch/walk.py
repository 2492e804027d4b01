"""The strategy "walk" for tree ensembles: all rows go down all trees together, one level at a time.

A step looks up the column and the threshold of each row's node, and the row's number in that column. Every look-up is an index_select
of a vector by int32, which PyTorch's CPU runs at 0.35 ns an element for tables in the cache; gather, take and torch.where, which the
paper's traversals use, take 1 to 3 ns. Three kinds of levels come one after the other:

1. The first TOP levels are tested in all of their nodes, for many rows at once, and bytes are combined from below: 1.8 ns for 3 levels.
2. Where trees are full, a level has a place for each node that there can be, as in perf_tree_trav. Then the children of node k are
   2k and 2k + 1, and a step is three look-ups, 1.8 ns.
3. Below, a step also looks up the left child; the right child lies behind it. A leaf is its own left child.

For many rows of few columns the first two kinds are walked in ranks: see ranked.py. For rows of very many see wide.py, and for few rows
see few.py. Trees are walked in groups, so that the values of a group stay in the second-level cache.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.bits import MANY, MEMORY, keep
from hbc.compiler.torch.exact import Function, exporting, scripted, tracing
from hbc.compiler.torch.few import BLOCKS, FEW, FEW_EAGER, by_blocks, pack_blocks, steps_of, sum_of_one_row, takes_blocks
from hbc.compiler.torch.leaves import add_leaves, of_rows, pack_values, read_values, totals, trees_at_once
from hbc.compiler.torch.ranked import ARRAYS as RANKED
from hbc.compiler.torch.ranked import in_ranks, nodes, pack_ranked, paths, pays, reversed_bits
from hbc.compiler.torch.run import BLOCK_BYTES
from hbc.compiler.torch.wide import LEAST_WIDE, by_chunks, wide
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

TOP = 3
"""The number of levels that are tested as a whole. With 2 or 4 a row takes 5 to 15 % longer (500 trees of depth 8)."""
AT_ONCE = 1 << 17
"""The number of walks (rows × trees) of a group. With a fourth of them the calls of operators take as long as their work."""
AT_ONCE_IN_CHUNKS = 2 * AT_ONCE
"""The same where rows go in chunks (wide.py): LEAST_WIDE rows of 500 trees are one group, so that a chunk walks all trees together."""
PADDING = 4
"""Level d is stored in full while it would have at most so many times as many nodes as the ensemble has leaves."""
MOST_FULL = 12
"""The largest number of levels that are stored in full."""
ALIKE = 3 << 12
"""The largest number of walks for which the highest levels are walked as the others are. To test them as a whole takes 25 operators more,
but 1 µs less for a row of 500 trees of depth 8."""
LEAST_ROWS = 2048
"""The least number of rows of a block, if rows have few columns: calls of operators have a cost of their own, and the values of leaves come
from memory for each block. Blocks of 1024 rows take 5 to 10 % longer (500 trees of depth 8, Zen 5)."""


def walkable(op: TreeEnsemble) -> bool:
    """Whether this strategy can run an ensemble. It sends NaN right as +inf. Where only NaN goes right, the threshold is +inf, and the
    largest float stands for it and for +inf among the numbers; so it may be no other threshold."""
    largest = op.threshold == np.finfo(op.threshold.dtype).max
    return op.n_trees > 0 and not (bool(_only_nan(op).any()) and bool((largest & (op.feature >= 0)).any()))


def _only_nan(op: TreeEnsemble) -> Array:
    """For each node, whether it is a split that sends nothing but NaN to the right."""
    found: Array = (op.feature >= 0) & (op.threshold == np.inf) & ~op.missing_left
    return found


def levels(trees: int, leaves: int, depth: int) -> tuple[int, int]:
    """(the levels tested as a whole, the levels stored in full, those included) of an ensemble."""
    full = min(depth, TOP)
    while full < min(depth, MOST_FULL) and trees << (full + 1) <= PADDING * leaves:
        full += 1
    return min(depth, TOP), full


def encoded(x: Tensor, encoding: list[Tensor], always: bool) -> tuple[Tensor, bool]:
    """(The columns that splits read, [N, C] without gaps, with NaN replaced by the numbers that go to the same sides; whether there are no
    NaN to replace, and so no copies of columns.) encoding: see `pack`. `always`: do not look whether there is a NaN; on a GPU nobody looks,
    for its queue would stop."""
    copied, number_for_nan, most = encoding[0], encoding[1].detach(), encoding[2].detach()
    if number_for_nan.size(0) == 0:
        return x.contiguous(), True
    width = number_for_nan.size(0) - copied.size(0)
    x = x.narrow(1, 0, width)
    if most.size(0) > 0:
        x = torch.minimum(x, most[:width])
    if not (always or x.is_cuda or bool(torch.isnan(x.sum()))):
        return x.contiguous(), True
    if copied.size(0) > 0:
        x = torch.cat([x, x.index_select(1, copied)], 1)
    return torch.where(torch.isnan(x), number_for_nan, x).contiguous(), False


def leaves(
    x: Tensor,
    above: Tensor,
    row: Tensor,
    trees: list[Tensor],
    depths: list[int],
    first: int,
    end: int,
    numbers: list[Tensor],
    places: list[Tensor],
    bits: Tensor,
    in_rank: list[Tensor],
    ranked: list[Tensor],
    tested: list[Tensor],
) -> Tensor:
    """The leaves that rows reach in the trees first … end - 1, i32[end - first, N], in memory of `places`.

    x: `encoded`; above: columns of it for the highest levels, [·, N], or [0, ·] to walk these as the others; row: the place in x where each
    row begins; trees: see `tables`; depths: of the deepest of each 64 trees; numbers, places and bits: memory for numbers and i32
    of each walk, and for a byte of each test. in_rank: the rows in ranks, empty if they are not walked so; ranked: see `pack_ranked`;
    tested: the columns of the highest levels if rows go in chunks (wide.py), and otherwise nothing."""
    exits, low_feature, low_threshold, low_left = trees[5:]
    count, rows, all_trees = end - first, row.size(0), trees[0].size(1)
    walks, flat = count * rows, x.reshape(-1)
    if len(in_rank) > 0:
        behind = nodes(in_rank, ranked, first, end, places, bits)
    elif len(tested) > 0:
        behind = by_chunks(x, tested[0], trees, first, end, numbers, places, bits)
    else:
        behind = behind_full_levels(x, above, row, trees, first, end, numbers, places, bits)
    behind.sub_(exits.size(0))
    full = 0
    while (all_trees << full) < exits.size(0):
        full += 1
    if full == max(depths):  # leaves have the numbers of their places
        return behind.reshape(count, rows)
    number, cut = numbers[0][:walks], numbers[1][:walks]
    place, other, node = places[0][:walks], places[1][:walks], places[3][:walks]
    torch.index_select(exits, 0, behind, out=node)
    for _ in range(full, max(depths[first // 64 : (end + 63) // 64])):
        torch.index_select(low_feature, 0, node, out=place)
        place.reshape(count, rows).add_(row)
        torch.index_select(flat, 0, place, out=number)
        torch.index_select(low_threshold, 0, node, out=cut)
        torch.index_select(low_left, 0, node, out=other)
        node.copy_(number.gt_(cut)).add_(other)
    return node.reshape(count, rows)


def reached_by_few(
    x: Tensor,
    encoding: list[Tensor],
    trees: list[Tensor],
    blocks: list[Tensor],
    depths: list[int],
    sizes: list[int],
    steps: int,
) -> Tensor:
    """The leaves that the rows x, at most sizes[1] walks, reach in all trees, i32[T, N]. The parameters are those of `sums`."""
    count, rows = trees[0].size(1), x.size(0)
    if takes_blocks(x, count, steps, sizes):
        return by_blocks(x.detach(), blocks, steps).reshape(rows, count).t()
    unranked = [x[0, :0]]
    x, trees, above, row, _, numbers, places, bits, in_rank, tested = prepared(x, encoding, trees, unranked, sizes, False)
    return leaves(x, above, row, trees, depths, 0, count, numbers, places, bits, in_rank, unranked, tested)


def behind_full_levels(
    x: Tensor,
    above: Tensor,
    row: Tensor,
    trees: list[Tensor],
    first: int,
    end: int,
    numbers: list[Tensor],
    places: list[Tensor],
    bits: Tensor,
) -> Tensor:
    """The places that rows reach behind the levels that are stored in full, i32[(end - first) · N]: see `pack`. The parameters are those of
    `leaves`."""
    top_column, top_threshold, prefix, feature, threshold, exits = trees[:6]
    count, rows, all_trees = end - first, row.size(0), top_column.size(1)
    walks, flat = count * rows, x.reshape(-1)
    number, cut = numbers[0][:walks], numbers[1][:walks]
    place, node, other = places[0][:walks], places[1][:walks], places[2][:walks]
    roots = torch.arange(all_trees + first, all_trees + end, dtype=torch.int32, device=x.device).reshape(-1, 1)
    full = 0
    while above.size(0) > 0 and (1 << full) <= top_column.size(0):
        full += 1
    if full > 0:
        tests = bits[: top_column.size(0) * walks].reshape(top_column.size(0), walks)
        for test in range(top_column.size(0)):
            torch.index_select(above, 0, top_column[test, first:end], out=number.reshape(count, rows))
            number.reshape(count, rows).gt_(top_threshold[test, first:end].reshape(-1, 1))
            tests[test].copy_(number)
        node.copy_(paths(tests, prefix))
        node.reshape(count, rows).add_(roots * (1 << full))
    else:
        node.reshape(count, rows).copy_(roots)
    while (all_trees << full) < exits.size(0):
        torch.index_select(feature, 0, node, out=place)
        place.reshape(count, rows).add_(row)
        torch.index_select(flat, 0, place, out=number)
        torch.index_select(threshold, 0, node, out=cut)
        other.copy_(number.gt_(cut)).add_(node, alpha=2)
        node, other = other, node
        full += 1
    return node


def tables(trees: list[Tensor], whole: bool) -> list[Tensor]:
    """The first TABLES arrays of `trees`, with the columns of rows that have no NaN if `whole`."""
    columns = [trees[9], trees[10], trees[11]] if whole else [trees[0], trees[3], trees[6]]
    found = [columns[0], trees[1], trees[2], columns[1], trees[4], trees[5], columns[2], trees[7], trees[8]]
    return [each.detach() for each in found]


def prepared(
    x: Tensor,
    encoding: list[Tensor],
    trees: list[Tensor],
    ranked: list[Tensor],
    sizes: list[int],
    always: bool,
    memory: int = MEMORY,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor, int, list[Tensor], list[Tensor], Tensor, list[Tensor], list[Tensor]]:
    """(x as numbers to compare, the `tables`, its columns for the highest levels, where each row begins, the trees of a group, numbers,
    places, bits, the rows in ranks, `tested`): what `leaves` takes.

    Numbers, places and bits are memory that all groups share: new memory for each operator took up to two thirds of the time, since the C
    library gave it back to the system each time. `bits` has a row for each test of the highest levels, and `memory` bytes at least. The
    parameters are those of `sums`."""
    x, whole = encoded(x.detach(), encoding, always)
    tests, count = trees[0].size(0), trees[0].size(1)
    step = 64 if always else min(max(sizes[2] // max(x.size(0), 1), 1), count)
    size, with_top = step * x.size(0), x.is_cuda or count * x.size(0) > sizes[1]
    walks_in_ranks = not always and with_top and ranked[0].size(0) > 0 and not x.is_cuda
    in_chunks = not always and with_top and sizes[4] > 0 and not walks_in_ranks and not x.is_cuda
    numbers = [torch.empty(size, dtype=x.dtype, device=x.device) for _ in range(2)]
    places = [torch.empty(size, dtype=torch.int32, device=x.device) for _ in range(4)]
    in_rank: list[Tensor] = []
    if walks_in_ranks:
        tests = ranked[5].size(0)
    least = 0
    if not always and not x.is_cuda and keep() > 0:
        least = memory
    kind = torch.uint8 if walks_in_ranks else torch.int8  # from floats to u8 it takes six times as long
    bits = torch.empty(max(tests * size, least), dtype=kind, device=x.device)
    if walks_in_ranks:
        in_rank = in_ranks(x, ranked, whole, sizes[3], bits)
    above, tested, used = x[:0], places[:0], tables(trees, whole)
    if with_top and not walks_in_ranks:
        columns = encoding[4] if whole else encoding[3]
        if in_chunks:
            tested = [columns.index_select(0, used[0].reshape(-1)).reshape(tests, count)]
        else:
            above = x.t().index_select(0, columns)
    return x, used, above, starts(x), step, numbers, places, bits, in_rank, tested


def sums(
    x: Tensor,
    encoding: list[Tensor],
    trees: list[Tensor],
    ranked: list[Tensor],
    blocks: list[Tensor],
    depths: list[int],
    of_leaves: list[Tensor],
    sizes: list[int],
    steps: int,
    always: bool,
) -> Tensor:
    """The sums [N, K] of the values of the leaves reached, added in the order of the trees. encoding, trees, ranked, blocks, of_leaves:
    what `pack` returns. sizes: the most rows × trees that take blocks, that walk all levels alike, and that are a group; the fewest rows
    that are tested by bits; and 1 if rows go in chunks, or 0. steps: see `steps_of`. `always`: the operators do not depend on
    x."""
    values, target, base = of_leaves
    count = trees[0].size(1)
    if takes_blocks(x, count, steps, sizes):
        reached = by_blocks(x.detach(), blocks, steps)
        if x.size(0) == 1 and not x.is_cuda:
            return sum_of_one_row(reached, values, blocks[len(blocks) - 1], base)
        reached = reached.reshape(x.size(0), count).t()
        total = totals(base, values, x.size(0))
        together = trees_at_once(values, count, x.size(0))
        add_leaves(total, reached, values, target, total.new_empty([together * total.size(1)]), together)
        return of_rows(total, values)
    x, trees, above, row, step, numbers, places, bits, in_rank, tested = prepared(x, encoding, trees, ranked, sizes, always)
    total = totals(base, values, x.size(0))
    together = step if always else trees_at_once(values, step, x.size(0))
    memory = total.new_empty([together * total.size(1)])
    read_ahead = len(in_rank) == 4 or len(tested) > 0
    for first in range(0, count, step):
        end = min(first + step, count)
        reached = leaves(x, above, row, trees, depths, first, end, numbers, places, bits, in_rank, ranked, tested)
        if read_ahead:
            read_values(values.detach(), first, end, count, memory)
        add_leaves(total, reached, values, target[first:end], memory, together)
    return of_rows(total, values)


def ids(
    x: Tensor,
    encoding: list[Tensor],
    trees: list[Tensor],
    ranked: list[Tensor],
    blocks: list[Tensor],
    depths: list[int],
    of_leaves: list[Tensor],
    sizes: list[int],
    steps: int,
    always: bool,
) -> Tensor:
    """The leaves reached, i64[N, T], as the source library numbers them. The parameters are those of `sums`."""
    known = of_leaves[0].reshape(-1)
    count = trees[0].size(1)
    if takes_blocks(x, count, steps, sizes):
        return known.index_select(0, by_blocks(x.detach(), blocks, steps)).reshape(x.size(0), count)
    x, trees, above, row, step, numbers, places, bits, in_rank, tested = prepared(x, encoding, trees, ranked, sizes, always)
    parts: list[Tensor] = []
    for first in range(0, count, step):
        end = min(first + step, count)
        reached = leaves(x, above, row, trees, depths, first, end, numbers, places, bits, in_rank, ranked, tested)
        parts.append(known.index_select(0, reached.reshape(-1)).reshape(reached.size(0), reached.size(1)))
    return torch.cat(parts).t()


def starts(x: Tensor) -> Tensor:
    """The place in x.reshape(-1) where each row begins. (Where an i32 cannot hold it, the look-ups fail, since it is negative.)"""
    return torch.arange(x.size(0), dtype=torch.int32, device=x.device) * x.size(1)


# --- packing -----------------------------------------------------------------------------------------------------------


ENCODING, TABLES = 5, 12
"""The numbers of arrays of `pack` that are `encoding` and `trees` of `sums`. RANKED are `ranked`, BLOCKS are `blocks`, and the others
`of_leaves`."""


def pack(op: TreeEnsemble) -> tuple[Array, ...]:
    """The arrays of an ensemble, which are the parameters of `walker(op)`.

    encoding: copied i64[D]: columns that are there a second time, with another number for NaN. number_for_nan [C]: empty if NaN always goes
    left, as in `NaN > threshold`. most [C]: the largest number of each column; empty if that is +inf. And the columns that the highest
    levels read, i64[·]; and those that they read of rows without NaN.
    trees: for the top levels, [2^top - 1, T]: the place of the column among these, i32, and the threshold. Level d has the rows 2^d - 1 …;
    node i of a level has the children i and i + 2^d. prefix i8[2^(top-1), 1]: the path to a node of the last of these levels, doubled.
    Then for all levels that are full, one level after the other, behind T places without meaning: columns i32 and thresholds, [T, 2^d].
    So the root of tree t has the place T + t, and the children of place k have the places 2k and 2k + 1. And exits i32[T · 2^full],
    the number of the node below: its place, if no level is left. Then for the nodes that are left, leaves included: column, threshold, left
    child, all [M]. And three of the arrays once more for rows without NaN, which have no copies of columns: the columns of the top levels,
    of the full levels, and of the nodes below.
    ranked: what `pack_ranked` returns. blocks: what `pack_blocks` returns. of_leaves: what `pack_values` returns. The last two by the
    numbers of nodes.
    """
    *arrays, leaf = numbered(op)
    return *arrays, *pack_values(op, leaf)


def numbered(op: TreeEnsemble) -> tuple[Array, ...]:
    """What `pack` returns without of_leaves, and then the leaf that each number of a node stands for: its row of `op.values`."""
    feature, copied, for_nan = _columns(op)
    only_nan, largest = _only_nan(op), np.finfo(op.threshold.dtype).max
    most = np.full(len(for_nan) if only_nan.any() else 0, np.inf, op.threshold.dtype)
    most[feature[only_nan]] = largest
    if only_nan.any():
        most[copied] = most[len(most) - len(copied) :] = np.minimum(most[copied], most[len(most) - len(copied) :])
    if only_nan.any():
        op = replace(op, threshold=np.where(only_nan, largest, op.threshold).astype(op.threshold.dtype))
    top, full = _levels_of(op)
    at = op.roots.astype(np.int64)[:, None]  # [T, 2^d], from the left to the right
    tops, full_tables, full_levels = [], [], []
    for depth in range(full):
        inner = op.feature[at] >= 0
        full_levels.append((at, inner))
        columns = [np.where(inner, each[at], 0) for each in (feature, op.feature)]
        test = *columns, np.where(inner, op.threshold[at], np.inf).astype(op.threshold.dtype)
        if depth < top:
            tops.append([each[:, reversed_bits(depth)].T for each in test])
        full_tables.append([each.ravel() for each in test])
        at = np.stack([np.where(inner, side[at], at) for side in (op.left, op.right)], axis=2).reshape(op.n_trees, -1)
    number, order = _numbered(op, at.ravel() if (op.feature[at] < 0).all() else np.unique(at))
    at_leaf = op.feature[order] < 0
    left = np.where(at_leaf, np.arange(len(order)), number[np.where(at_leaf, 0, op.left[order])])
    whole = np.zeros((0, op.n_trees), np.int64)
    nothing = whole, whole, np.zeros((0, op.n_trees), op.threshold.dtype)
    *top_features, top_threshold = (np.concatenate(parts) for parts in zip(nothing, *tops, strict=True))
    (top_columns, top_column), (top_whole, top_column_whole) = (np.unique(each, return_inverse=True) for each in top_features)
    before = *(np.zeros(op.n_trees, np.int64),) * 2, np.zeros(op.n_trees, op.threshold.dtype)
    full_feature, full_whole, full_threshold = (np.concatenate(parts) for parts in zip(before, *full_tables, strict=True))
    return (
        copied,
        for_nan,
        most,
        top_columns,
        top_whole,
        top_column.reshape(top_threshold.shape).astype(np.int32),
        top_threshold,
        (2 * reversed_bits(max(top - 1, 0)))[:, None].astype(np.int8),
        full_feature.astype(np.int32),
        full_threshold,
        number[at].ravel().astype(np.int32),
        np.where(at_leaf, 0, feature[order]).astype(np.int32),
        np.where(at_leaf, np.inf, op.threshold[order]).astype(op.threshold.dtype),
        left.astype(np.int32),
        top_column_whole.reshape(top_threshold.shape).astype(np.int32),
        full_whole.astype(np.int32),
        np.where(at_leaf, 0, op.feature[order]).astype(np.int32),
        *pack_ranked(op, feature, full_levels),
        *pack_blocks(op, feature, number, copied, for_nan, most),
        np.where(at_leaf, op.left[order], 0),
    )


def _columns(op: TreeEnsemble) -> tuple[Array, Array, Array]:
    """(the column that each node compares, the columns that are copied behind the others, the number for NaN in each column). A column
    needs a copy if no number goes where its NaN go."""
    splits = np.flatnonzero(op.feature >= 0)
    feature, threshold, to_left = op.feature[splits], op.threshold[splits], op.missing_left[splits]
    width = int(feature.max(initial=-1)) + 1
    lowest_left, highest_right = np.full(width, np.inf), np.full(width, -np.inf)
    np.minimum.at(lowest_left, feature[to_left], threshold[to_left])
    np.maximum.at(highest_right, feature[~to_left], threshold[~to_left])
    to_right = np.bincount(feature[~to_left], minlength=width) > 0
    both = to_right & (highest_right >= lowest_left)
    copied = np.flatnonzero(both)
    column = op.feature.astype(np.int64)
    column[splits] = np.where(both[feature] & ~to_left, width + np.searchsorted(copied, feature), feature)
    number = np.append(np.where(to_right & ~both, lowest_left, -np.inf), np.full(len(copied), np.inf))
    return column, copied, (number if to_right.any() else number[:0]).astype(op.threshold.dtype)


def _numbered(op: TreeEnsemble, level: Array) -> tuple[Array, Array]:
    """(the number of each node of `level` and below, the node of each number). Those of `level` come first; right children lie behind left
    ones. A leaf may stand in `level` several times."""
    order, number = [level], np.zeros(len(op.feature), np.int64)
    while len(inner := level[op.feature[level] >= 0]):
        level = np.stack([op.left[inner], op.right[inner]], axis=1).ravel().astype(np.int64)
        order.append(level)
    nodes = np.concatenate(order)
    number[nodes] = np.arange(len(nodes))
    return number, nodes


def _levels_of(op: TreeEnsemble) -> tuple[int, int]:
    return levels(op.n_trees, int(op.leaf_counts.sum()), int(op.depths.max(initial=0)))


def is_wide(op: TreeEnsemble) -> bool:
    """Whether many rows of an ensemble go in chunks, as wide.py says."""
    _top, full = _levels_of(op)
    return wide(len(np.unique(op.feature[op.feature >= 0])), op.n_trees) and not pays(op, full)


def row_bytes(op: TreeEnsemble) -> int:
    """The bytes for one row that make blocks of rows as long as a group of all trees allows, but not shorter than LEAST_ROWS, or
    LEAST_WIDE if rows go in chunks."""
    return BLOCK_BYTES // max(AT_ONCE // op.n_trees, LEAST_WIDE if is_wide(op) else LEAST_ROWS)


def depths_of(op: TreeEnsemble) -> list[int]:
    """The depth of the deepest of each 64 trees: a script reads long lists slowly."""
    return [int(op.depths[first : first + 64].max()) for first in range(0, op.n_trees, 64)]


def sizes_now(alike: int, in_chunks: bool = False) -> list[int]:
    """`sizes` of `sums`, for eager operators or a trace. alike: the most walks that walk all levels alike; in_chunks: see `is_wide`. Where
    torch.export reads the operators, no choice depends on the number of rows."""
    few = [0, 0] if exporting() else [FEW if tracing() else FEW_EAGER, alike]
    return [*few, AT_ONCE_IN_CHUNKS if in_chunks else AT_ONCE, MANY, int(in_chunks)]


def walker(op: TreeEnsemble) -> Function:
    """The function that computes an ensemble, from the numbers of rows and then `pack(op)`."""
    compute, depths = sums if op.output == "sum" else ids, depths_of(op)
    steps, in_chunks = steps_of(max(depths)), is_wide(op)
    ends = itertools.accumulate([ENCODING, TABLES, RANKED, BLOCKS])
    parts = list(itertools.pairwise([0, *ends, None]))

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        encoding, trees, ranked, blocks, of_leaves = (list(parameters[start:end]) for start, end in parts)
        return scripted(compute)(
            x, encoding, trees, ranked, blocks, depths, of_leaves, sizes_now(ALIKE, in_chunks), steps, exporting()
        )

    return run
