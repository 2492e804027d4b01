"""A tree ensemble as the arrays that the scan reads (scan.py): its splits in the order of the scan, its leaves, and its category sets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.leaf_rows import first_rows
from hbc.compiler.tvm.trees.leaves import GROUPS_IN_SPAN, PackedDigits, pack_digits, widths_of
from hbc.compiler.tvm.trees.ranks import Lockstep, Pieces, lockstep, pieces
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

TREES_IN_GROUP = 4  # trees in a group; their leaves are added together


@record
class Cut:
    """How a processor scans trees in pieces.

    sizes: the sizes of pieces to use, in splits. more: a piece of k splits takes as long as k + `more` splits.
    masks: comparing bytes gives masks of bits. Otherwise it gives bytes of all or no bits, and compares signed numbers.
    """

    sizes: tuple[int, ...]
    more: int
    masks: bool


def cut(dialect: Dialect) -> Cut:
    """The sizes of pieces that were fastest for trees of 31 leaves."""
    # A piece of k splits takes k compares, k - 1 operations to join their bits, a look-up, a compare with `lo`, and the change.
    if dialect.byte_masks:
        sizes = (5, 3) if dialect.byte_permute else (3, 1) if dialect.byte_lookup else (1,)
        return Cut(sizes, 1, masks=False)
    # Intel has one port for compares. With masks, a piece of k keeps it busy for k + 2 cycles.
    return Cut((6, 4) if dialect.byte_permute else (4, 2), 2, masks=True)


@record
class PackedPieces:
    """`Pieces` of one size, tree by tree.

    starts i64[G · TREES_IN_GROUP + 1]: the tree at place t has the records starts[t]:starts[t + 1].
    records u8|i32[V, width]: the planes of the splits; the bytes to compare with (rows of lesser ranks go left); `lo` of the first split;
    the table of 2^size bytes. With masks the table has the next leaves, otherwise next leaf ^ lo; for one split it is one byte.

    Records are words with masks, and where there are more than 256 planes. Ranks, `lo` and a table of one byte are repeated to fill words
    then, since a load brings a word into all lanes, but a byte takes one of the ports that compare. Otherwise records are bytes, with
    zeros up to a multiple of four: for 500 trees of 31 leaves 80 KB instead of 189, and no slower with AVX2.
    """

    size: int
    starts: Array
    records: Array


@record
class PackedTrees:
    """An ensemble as the scan reads it. Trees are in groups of TREES_IN_GROUP, as `Lockstep` says.

    splits: tree by tree in pieces, one `PackedPieces` for each size. Ranks are kept as `held` says.
    span_starts i64[S + 1]: span s has the groups span_starts[s]:span_starts[s + 1]. They add to the same output, outputs[s], and their
    digits have the same width. outputs i64[S].
    first i32[G · TREES_IN_GROUP]: see `first_rows`. digits: of the leaves' integers, see `widths_of`.
    sets i64, set_starts i64[G + 1]: group g tests the category sets sets[set_starts[g]:set_starts[g + 1]]. Their planes stand after those
    of the numbers and are filled anew for every group.
    """

    splits: tuple[PackedPieces, ...]
    span_starts: Array
    outputs: Array
    first: Array
    digits: PackedDigits | None
    sets: Array
    set_starts: Array


def pack_trees(op: TreeEnsemble, ranked: RankedTrees, fixed: FixedPoint, dialect: Dialect) -> PackedTrees:
    """Pack an ensemble for a processor. Vectorized over all splits and leaves."""
    steps = lockstep(ranked, op.target, TREES_IN_GROUP)
    most = int(ranked.leaf_counts.max(initial=1))
    widths = widths_of(np.diff(steps.group_starts) + 1, dialect, fixed.digits)
    digits = None
    if widths is None:
        widths = np.full(steps.groups, most)
    else:
        tree = np.repeat(np.arange(op.n_trees), ranked.leaf_counts)
        leaf = np.arange(len(tree)) - np.repeat(ranked.leaf_starts[:-1], ranked.leaf_counts)
        group, place = np.divmod(steps.place[tree], TREES_IN_GROUP)
        digits = pack_digits(fixed, TREES_IN_GROUP, group, place, leaf, ranked.leaves, widths)
    plane, sets, set_starts = _set_planes(ranked, steps)
    new = np.flatnonzero(np.diff(steps.outputs, prepend=-1) | np.diff(widths, prepend=-1))
    spans = [np.arange(a, b, GROUPS_IN_SPAN) for a, b in pairwise([*new, steps.groups])]
    span_starts = np.concatenate([*spans, [steps.groups]]).astype(np.int64)
    return PackedTrees(
        splits=pack_splits(ranked, steps, plane, dialect),
        span_starts=span_starts,
        outputs=steps.outputs[span_starts[:-1]],
        first=first_rows(ranked, steps.place, steps.groups * TREES_IN_GROUP),
        digits=None if digits is None else replace(digits, widths=widths[span_starts[:-1]]),
        sets=sets,
        set_starts=set_starts,
    )


def pack_splits(ranked: RankedTrees, steps: Lockstep, plane: Array, dialect: Dialect) -> tuple[PackedPieces, ...]:
    """All splits in pieces, tree by tree. plane i64[J]: that of each split."""
    how = cut(dialect)
    rank = ranked.split_rank - (0 if how.masks else 128)
    return tuple(_pack_pieces(ranked, steps, plane, rank, each, how.masks) for each in pieces(ranked, how.sizes, how.more))


def _pack_pieces(ranked: RankedTrees, steps: Lockstep, plane: Array, rank: Array, found: Pieces, masks: bool) -> PackedPieces:
    """The records of pieces of one size, in the order of the scan."""
    split_tree = np.repeat(np.arange(len(ranked.leaf_counts)), np.diff(ranked.starts))
    starts, order = steps.one_by_one(split_tree[found.split[:, 0]])
    split, leaf = found.split[order], found.leaf[order]
    lo = ranked.split_lo[split[:, 0]].astype(np.uint8)[:, None]
    table = leaf.astype(np.uint8) if masks else leaf.astype(np.uint8) ^ lo
    if found.size == 1:
        table = table[:, :1]  # the entry of the right side alone
    bound = (rank[split] + 1).astype(np.uint8)
    if not masks and plane.max(initial=0) < 256:
        padding = np.zeros((len(split), -(2 * found.size + 1 + table.shape[1]) % 4), np.uint8)
        return PackedPieces(
            found.size, starts, np.concatenate([plane[split].astype(np.uint8), bound, lo, table, padding], axis=1)
        )
    if found.size == 1:
        table = np.repeat(table, 4, axis=1)
    words = [plane[split], _repeated(bound), _repeated(lo), np.ascontiguousarray(table).view(np.int32)]
    return PackedPieces(found.size, starts, np.concatenate([part.astype(np.int32) for part in words], axis=1))


def _repeated(values: Array) -> Array:
    """i32 words, each a byte repeated four times or a pair of bytes repeated twice."""
    return (values.astype(np.uint32) * np.uint32(0x01010101 if values.itemsize == 1 else 0x00010001)).view(np.int32)


def _set_planes(ranked: RankedTrees, steps: Lockstep) -> tuple[Array, Array, Array]:
    """(plane, sets, set_starts). plane i64[J]: that of each split; each group of trees numbers its planes of sets anew. The other two: see
    `PackedTrees`."""
    plane = ranked.split_plane.astype(np.int64)
    tested = np.flatnonzero(plane >= ranked.planes)
    group = np.searchsorted(steps.group_starts, steps.at[0][tested], side="right") - 1
    each = int(plane.max(initial=0)) + 1
    pairs, pair = np.unique(group * each + plane[tested], return_inverse=True)
    starts = np.searchsorted(pairs // each, np.arange(steps.groups + 1))
    plane[tested] = ranked.planes + pair - starts[group]
    return plane, pairs % each - ranked.planes, starts.astype(np.int64)
