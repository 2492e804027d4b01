"""The trees of an ensemble as the scan of few rows reads them (scan_few_rows.py): 64 trees in the lanes of a vector, one split of each a
step, and the places of their leaves."""

from __future__ import annotations

import numpy as np

from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.categories import PackedSets
from hbc.compiler.tvm.trees.ranks.planes import PART
from hbc.compiler.tvm.trees.scan.likely_leaves import alike, leaf_rows
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees

TREES_IN_VECTOR = 64  # trees in a vector
VECTORS_TOGETHER = 2  # vectors of trees in flight: independent chains that hide each other's latency
FIELDS = 3  # bytes of a split: plane, rank, lo
STEPS_IN_BYTE = 8  # splits whose category sets share a byte
PAGE = 256  # planes that a byte numbers. Where there are more, a split has a fourth byte: the page of its plane
BEFORE_ZERO = 0x80 - PART  # what brings the first number behind a part to 0x80, where a look-up gives 0
MOST_BY_NUMBER, TREES_BY_NUMBER = 64, 8
"""The most leaves of a tree whose leaves lie number by number, and how many trees share a number: their f64 fill a cache line."""


def compares_signed(dialect: Dialect) -> bool:
    """Whether ranks stay byte - 128, as planes hold them: AVX2 has one instruction that compares signed bytes, and needs two for others."""
    return dialect.byte_masks and not dialect.byte_permute


def trees_by_number(ranked: RankedTrees, outputs: Array, dialect: Dialect) -> int:
    """How many trees' leaves lie number by number (likely_leaves.py); 1: the leaves of each tree lie together. Measured with AVX2 alone and
    with VBMI. outputs i64[T]: the output that each tree adds to.

    Larger trees have more splits for each leaf that is read. With several outputs, neighbours would add to the same one, and wait for each
    other: a row of three classes with 200 trees each took 1.7 instead of 1.5 µs (Zen 4)."""
    few = int(ranked.leaf_counts.max(initial=1)) <= MOST_BY_NUMBER and not outputs.any()
    return TREES_BY_NUMBER if few and (dialect.only_avx2 or dialect.byte_permute) else 1


def order_of_trees(ranked: RankedTrees, outputs: Array, dialect: Dialect) -> Array:
    """i64[T]: the trees in the order of their lanes, the largest first. outputs: as above."""
    counts = np.diff(ranked.starts).astype(np.int64)
    if trees_by_number(ranked, outputs, dialect) == 1:
        return np.argsort(-counts, kind="stable")
    return alike(ranked, counts, TREES_IN_VECTOR)


def look_ups_apart(planes: int, dialect: Dialect) -> bool:
    """Whether planes lie in two vectors of 16 bytes for AVX2, and their numbers in splits begin with BEFORE_ZERO (`look_up_apart`)."""
    return dialect.only_avx2 and PART < planes <= 2 * PART


def fields_of(planes: int) -> int:
    """The bytes of a split, if there are so many planes."""
    return FIELDS + (planes > PAGE)


@record
class PackedLanes:
    """Trees in vectors, the largest in the first ones. 64 trees form a vector, `together` vectors a group. Shorter trees of a vector are
    padded with splits at which no row goes right.

    The vectors of a group are scanned step by step, in `together` phases. Phase 0 takes all its vectors, phase i the together - i longest:
    the others have no splits left.

    ends i64[groups, together + 1]: phase i has the steps ends[i] … ends[i + 1].
    starts i64[groups, together]: where in `splits` the vectors of phase i would stand at step 0.
    splits u8[vectors and steps, 3, 64]: plane, rank (rank - 128 where `compares_signed`), lo.
    place i32[T]: the lane of each tree, vectors one after the other.
    first i32[64 · vectors], step, rows i64[L], size: where the leaves stand in a table of `size` rows. Leaf n of the tree in lane i has the
    row first[i] + n · step. Row i of `RankedTrees.leaves` is row rows[i] of the table. Other rows have zeros.
    outputs i64[64 · vectors]: the output that a tree adds to.
    masks u8[B, M]: one row for every bit of a column's categories; those of column c begin at mask_starts[c]. A row has one bit for each
    split: whether a row of x with that category goes right there. Bit s % 8 of byte 64 · (s // 8) + lane is that of splits[s, :, lane], so
    that no bytes are permuted. M is a multiple of 64.
    """

    together: int
    ends: Array
    starts: Array
    splits: Array
    place: Array
    first: Array
    step: int
    rows: Array
    size: int
    outputs: Array
    masks: Array
    mask_starts: Array

    @property
    def vectors(self) -> int:
        """The number of vectors of 64 trees."""
        return len(self.first) // TREES_IN_VECTOR

    @property
    def table(self) -> tuple[Array, int] | None:
        """`places` of `LeafRows`: rows and size. None: the leaves of a tree lie one behind the other."""
        return (self.rows, self.size) if self.step > 1 else None


def pack_lanes(ranked: RankedTrees, outputs: Array, sets: PackedSets | None, dialect: Dialect) -> PackedLanes:
    """Pack an ensemble. Vectorized over all splits. outputs i64[T]: the output that each tree adds to."""
    counts = np.diff(ranked.starts).astype(np.int64)
    vectors = -(-len(counts) // TREES_IN_VECTOR)
    step = trees_by_number(ranked, outputs, dialect)
    order = order_of_trees(ranked, outputs, dialect)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))

    together = min(VECTORS_TOGETHER, max(vectors, 1))
    groups = -(-vectors // together)
    lengths = np.zeros(groups * together, np.int64)
    if vectors:
        lengths[:vectors] = np.maximum.reduceat(counts[order], np.arange(0, len(order), TREES_IN_VECTOR))
    ends = np.concatenate([np.zeros((groups, 1), np.int64), lengths.reshape(groups, together)[:, ::-1]], axis=1)
    active = np.arange(together, 0, -1)
    blocks = np.diff(ends, axis=1) * active
    starts = (np.cumsum(blocks) - blocks.reshape(-1)).reshape(blocks.shape) - ends[:, :-1] * active

    tree = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(tree)) - np.repeat(ranked.starts[:-1], counts)
    splits = np.zeros((int(blocks.sum()), fields_of(ranked.planes), TREES_IN_VECTOR), np.uint8)
    splits[:, 1] = 255  # no rank is greater
    group, member = np.divmod(place[tree] // TREES_IN_VECTOR, together)
    phase = (at[:, None] >= ends[group, 1:]).sum(axis=1)
    block = starts[group, phase] + at * active[phase] + member
    tests_set = ranked.split_plane >= ranked.planes
    plane, rank = np.where(tests_set, 0, ranked.split_plane), np.where(tests_set, 255, ranked.split_rank)
    lanes = place[tree] % TREES_IN_VECTOR
    for field, values in enumerate((plane % PAGE, rank, ranked.split_lo, plane // PAGE)[: splits.shape[1]]):
        splits[block, field, lanes] = values
    masks, mask_starts = np.zeros((0, 0), np.uint8), np.zeros(0, np.int64)
    if sets is not None:
        masks, mask_starts = _masks(
            sets, len(splits), ranked.split_plane[tests_set] - ranked.planes, block[tests_set], lanes[tests_set]
        )

    if compares_signed(dialect):
        splits[:, 1] ^= 128
    if look_ups_apart(ranked.planes, dialect):
        splits[:, 0] += BEFORE_ZERO
    outputs_of_lanes = np.zeros(vectors * TREES_IN_VECTOR, np.int64)
    outputs_of_lanes[place] = outputs
    first, rows, size = leaf_rows(ranked, place, vectors * TREES_IN_VECTOR, step)
    return PackedLanes(
        together,
        ends,
        starts,
        splits,
        place.astype(np.int32),
        first,
        step,
        rows,
        size,
        outputs_of_lanes,
        masks,
        mask_starts,
    )


def _masks(sets: PackedSets, steps: int, tested: Array, step: Array, lane: Array) -> tuple[Array, Array]:
    """(`PackedLanes.masks`, `mask_starts`). Split i tests category set tested[i]; it stands at step[i] of `splits`, in lane[i]."""
    starts = np.cumsum(sets.counts) - sets.counts
    masks = np.zeros((int(sets.counts.sum()), -(-steps // STEPS_IN_BYTE) * TREES_IN_VECTOR), np.uint8)
    byte, bit = step // STEPS_IN_BYTE * TREES_IN_VECTOR + lane, step % STEPS_IN_BYTE
    for column, (start, count) in enumerate(zip(starts, sets.counts, strict=True)):
        own = np.zeros((masks.shape[1], count), np.uint8)
        for b in range(STEPS_IN_BYTE):  # splits of the same bit have different bytes
            mine = (sets.set_column[tested] == column) & (bit == b)
            own[byte[mine]] |= sets.goes_right(tested[mine])[:, :count].astype(np.uint8) << b
        masks[start : start + count] = own.T
    return masks, starts.astype(np.int64)
