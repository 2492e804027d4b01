"""The splits of trees in pieces, in the order of the scan, as the arrays that pieces_scan.py reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.pieces.split_order import Lockstep, Pieces, pieces
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees

UNIT = 4
"""`PackedPieces.unit` of few planes with AVX2: addresses of x86 scale by up to 8, so planes that lie 32 bytes apart need no shift."""
PLANES_IN_UNITS = 256 // UNIT


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


class Places(NamedTuple):
    """Where the planes of a record stand, the bytes to compare with, `lo` and the table."""

    planes: int
    bounds: int
    lo: int
    table: int


@record
class PackedPieces:
    """`Pieces` of one size, tree by tree.

    starts i64[places + 1]: the tree at place t has the records starts[t]:starts[t + 1].
    records u8|i32[V, width]: the planes of the splits; the bytes to compare with (rows of lesser ranks go left); `lo` of the first split;
    the table of 2^size bytes. With masks the table has the next leaves, otherwise next leaf ^ lo; for one split it is one byte.

    Records are words with masks, and where there are more than 256 planes. Ranks, `lo` and a table of one byte are repeated to fill words
    then, since a load brings a word into all lanes, but a byte takes one of the ports that compare. Otherwise records are bytes, with
    zeros up to a multiple of four: for 500 trees of 31 leaves 80 KB instead of 189, and no slower with AVX2.

    whole: a record is loaded at once, and look-ups bring its bytes into all lanes (AVX2). Its table comes first, its planes last.
    unit: the planes' bytes are their numbers times this.
    """

    size: int
    starts: Array
    records: Array
    whole: bool = False
    unit: int = 1

    @property
    def places(self) -> Places:
        """Where the fields of a record stand."""
        if self.whole:
            table = 1 << self.size if self.size > 1 else 1
            return Places(table + self.size + 1, table, table + self.size, 0)
        return Places(0, self.size, 2 * self.size, 2 * self.size + 1)


def pack_splits(ranked: RankedTrees, steps: Lockstep, plane: Array, dialect: Dialect) -> tuple[PackedPieces, ...]:
    """All splits in pieces, tree by tree. plane i64[J]: that of each split."""
    how = cut(dialect)
    rank = ranked.split_rank - (0 if how.masks else 128)
    found = pieces(ranked, how.sizes, how.more)
    return tuple(_pack_pieces(ranked, steps, plane, rank, each, how.masks, dialect.only_avx2) for each in found)


def _pack_pieces(
    ranked: RankedTrees, steps: Lockstep, plane: Array, rank: Array, found: Pieces, masks: bool, whole: bool
) -> PackedPieces:
    """The records of pieces of one size, in the order of the scan. whole: see `PackedPieces`, if records are bytes."""
    split_tree = np.repeat(np.arange(len(ranked.leaf_counts)), np.diff(ranked.starts))
    starts, order = steps.one_by_one(split_tree[found.split[:, 0]])
    split, leaf = found.split[order], found.leaf[order]
    lo = ranked.split_lo[split[:, 0]].astype(np.uint8)[:, None]
    table = leaf.astype(np.uint8) if masks else leaf.astype(np.uint8) ^ lo
    if found.size == 1:
        table = table[:, :1]  # the entry of the right side alone
    bound = (rank[split] + 1).astype(np.uint8)
    if not masks and plane.max(initial=0) < 256:
        unit = UNIT if whole and plane.max(initial=0) < PLANES_IN_UNITS else 1
        planes = (plane[split] * unit).astype(np.uint8)
        padding = np.zeros((len(split), -(2 * found.size + 1 + table.shape[1]) % 4), np.uint8)
        parts = [table, bound, lo, planes] if whole else [planes, bound, lo, table]
        return PackedPieces(found.size, starts, np.concatenate([*parts, padding], axis=1), whole, unit)
    if found.size == 1:
        table = np.repeat(table, 4, axis=1)
    words = [plane[split], _repeated(bound), _repeated(lo), np.ascontiguousarray(table).view(np.int32)]
    return PackedPieces(found.size, starts, np.concatenate([part.astype(np.int32) for part in words], axis=1))


def _repeated(values: Array) -> Array:
    """i32 words, each a byte repeated four times or a pair of bytes repeated twice."""
    return (values.astype(np.uint32) * np.uint32(0x01010101 if values.itemsize == 1 else 0x00010001)).view(np.int32)
