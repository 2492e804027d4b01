"""The strategy "wide_links": trees of any shape and size with thousands of thresholds a feature. Their ranks have 16 bits."""

from __future__ import annotations

import numpy as np

from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

MOST_THRESHOLDS = (1 << 16) - 2
"""Thresholds of a column whose ranks, and a higher one for leaves, 16 bits tell apart."""


class WideLinks(FarLinks):
    """The walk of "far_links" over ranks of 16 bits. A row has one for each column, however many thresholds that has. A thread has those of
    its four rows in two words of a column. They lie thread after thread, so a read is one wavefront.

    It is good for deep forests, which have more planes of bytes than a block has room for. Its limits: 64 columns (features, twice if NaN
    go both ways); 65,534 thresholds a column.
    """

    name = "wide_links"
    bits = 16

    @classmethod
    def planes(cls, op: TreeEnsemble) -> int:
        ranked = op.once(ranked_trees)
        return 2 * (len(ranked.thresholds) + len(ranked.below))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return super().fits(op) and op.once(ranked_trees).most_thresholds <= MOST_THRESHOLDS

    @classmethod
    def compared(cls, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> tuple[Array, Array]:
        split, columns, copies = ranked.split_plane, len(ranked.thresholds), np.arange(len(ranked.below))
        column = np.concatenate([ranked.plane_column, columns + copies])[split]
        first = np.concatenate([ranked.plane_first, 0 * copies])[split]
        return first + ranked.split_rank, 2 * rows * planes.number[column]
