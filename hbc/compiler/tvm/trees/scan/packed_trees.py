"""A tree ensemble as the arrays that the scan reads (scan.py): its splits in the order of the scan, its leaves, and its category sets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.leaves.fixed_point import FixedPoint
from hbc.compiler.tvm.trees.leaves.leaf_rows import first_rows
from hbc.compiler.tvm.trees.leaves.leaves import GROUPS_IN_SPAN, PackedDigits, pack_digits, widths_of
from hbc.compiler.tvm.trees.pieces.packed_pieces import PackedPieces, pack_splits
from hbc.compiler.tvm.trees.pieces.split_order import Lockstep, lockstep
from hbc.compiler.tvm.trees.scan.packed_lanes import order_of_trees
from hbc.compiler.tvm.trees.scan.turns import Turns, pack_turns
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

TREES_IN_GROUP = 4  # trees in a group; their leaves are added together


@record
class PackedTrees:
    """An ensemble as the scan reads it. Trees are in groups of TREES_IN_GROUP, as `Lockstep` says.

    splits: tree by tree in pieces, one `PackedPieces` for each size. Ranks are kept as `held` says.
    span_starts i64[S + 1]: span s has the groups span_starts[s]:span_starts[s + 1]. They add to the same output, outputs[s], and their
    digits have the same width. outputs i64[S].
    first i32[G · TREES_IN_GROUP]: see `first_rows`. digits: of the leaves' integers, see `widths_of`.
    sets i64, set_starts i64[G + 1]: group g tests the category sets sets[set_starts[g]:set_starts[g + 1]]. Their planes stand after those
    of the numbers and are filled anew for every group.
    turns: None; or the splits are those of `Turns`, and turn t has the spans turn_starts[t]:turn_starts[t + 1].
    """

    splits: tuple[PackedPieces, ...]
    span_starts: Array
    outputs: Array
    first: Array
    digits: PackedDigits | None
    sets: Array
    set_starts: Array
    turns: Turns | None
    turn_starts: Array


def pack_trees(
    op: TreeEnsemble, ranked: RankedTrees, fixed: FixedPoint, dialect: Dialect, in_turns: bool = False
) -> PackedTrees:
    """Pack an ensemble for a processor. Vectorized over all splits and leaves. in_turns: whether it may have turns."""
    # RestLanes (scan_rest.py) scans by lanes and adds by groups.
    order = order_of_trees(ranked, op.target, dialect) if dialect.byte_permute else None
    steps = lockstep(ranked, op.target, TREES_IN_GROUP, order)
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
    group_of_split = np.repeat(steps.place // TREES_IN_GROUP, np.diff(ranked.starts))
    turns = pack_turns(ranked, group_of_split, steps.groups) if in_turns else None
    borders = np.diff(steps.outputs, prepend=-1) | np.diff(widths, prepend=-1)
    if turns is not None:
        borders |= np.diff(turns.of_group, prepend=-1)
        plane, ranked = turns.plane, replace(ranked, split_rank=turns.rank)
    new = np.flatnonzero(borders)
    spans = [np.arange(a, b, GROUPS_IN_SPAN) for a, b in pairwise([*new, steps.groups])]
    span_starts = np.concatenate([*spans, [steps.groups]]).astype(np.int64)
    turn_starts = np.zeros(0, np.int64)
    if turns is not None:
        turn_starts = np.searchsorted(turns.of_group[span_starts[:-1]], np.arange(turns.count + 1))
    return PackedTrees(
        splits=pack_splits(ranked, steps, plane, dialect),
        span_starts=span_starts,
        outputs=steps.outputs[span_starts[:-1]],
        first=first_rows(ranked, steps.place, steps.groups * TREES_IN_GROUP),
        digits=None if digits is None else replace(digits, widths=widths[span_starts[:-1]]),
        sets=sets,
        set_starts=set_starts,
        turns=turns,
        turn_starts=turn_starts,
    )


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
