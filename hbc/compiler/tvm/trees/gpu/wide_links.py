"""The strategy "wide_links": trees of any shape and size with thousands of thresholds a feature. Their ranks have 16 bits."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.links import nodes_of
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes, words_of_plane
from hbc.compiler.tvm.trees.ranks import ranked_trees
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

MOST_THRESHOLDS = (1 << 16) - 2
"""Thresholds of a column whose ranks, and a higher one for leaves, 16 bits tell apart."""


class WideLinks(FarLinks):
    """The walk of "far_links" over ranks of 16 bits. A row has one for each column, however many thresholds that has. A node is of eight
    bytes:

        node = nodes[at];  at = (node >> 32) + (ranks[column(node)][row] > rank(node))

    A thread has the ranks of its four rows in two words of a column. They lie thread after thread, so a read is one wavefront.

    It is good for deep forests, which have more planes of bytes than a block has room for. Its limits: 64 columns (features, twice if NaN
    go both ways); 65,534 thresholds a column.
    """

    name = "wide_links"
    bits = 16
    clocks_of_step = 4.6
    """9.2 integer instructions of 13.4."""

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.wide = self.schedule.view("uint16")

    @classmethod
    def planes(cls, op: TreeEnsemble) -> int:
        ranked = op.once(ranked_trees)
        return 2 * (len(ranked.thresholds) + len(ranked.below))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        few = op.once(ranked_trees).most_thresholds <= MOST_THRESHOLDS
        return op.output == "sum" and cls.threads(op) > 0 and few and int(nodes_of(op).sum()) * op.values.shape[1] < 1 << 31

    @classmethod
    def compared(cls, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> Array:
        split, columns, copies = ranked.split_plane, len(ranked.thresholds), np.arange(len(ranked.below))
        column = np.concatenate([ranked.plane_column, columns + copies])[split]
        first = np.concatenate([ranked.plane_first, 0 * copies])[split]
        return planes.number[column] << 16 | first + ranked.split_rank

    def walk(self, tree: Expr) -> None:
        first, self.first_value, depth, *stride = self.head(tree)
        self.stride = stride[0] if stride else 0
        half, low = tirx.const(16, "uint32"), tirx.const(0xFFFF, "uint32")
        for row in self.rows:
            T.buffer_store(self.at, tirx.const(0, "uint32"), [row])
        with T.serial(tirx.const(0, "int32"), depth):
            nodes = [T.Bind(self.node_at(first + tirx.Cast("int32", self.at[row]))) for row in self.rows]
            words = [T.Bind(tirx.Cast("uint32", node)) for node in nodes]
            ranks = [T.Bind(self.rank(tirx.shift_right(word, half), row)) for row, word in zip(self.rows, words, strict=True)]
            for row, node, word, rank in zip(self.rows, nodes, words, ranks, strict=True):
                above = tirx.shift_right(tirx.Sub(tirx.bitwise_and(word, low), rank), tirx.const(31, "uint32"))
                left = tirx.Cast("uint32", tirx.shift_right(node, tirx.const(32, "uint64")))
                T.buffer_store(self.at, tirx.Add(left, above), [row])

    def node_at(self, place: Expr) -> Expr:
        """A node, uint64."""
        return tirx.Cast("uint64", self.f.constant(self.packed.words, "i64", tirx.Cast("int64", place)))

    def rank(self, column: Expr, row: int) -> Expr:
        """The rank of a row of this thread in a column, as uint32."""
        words = self.schedule.words
        place = tirx.Cast("int32", column) * (2 * words * words_of_plane(self.schedule, self.bits))
        return tirx.Cast("uint32", self.wide[place + (self.schedule.word * 2 + (row // 2 * 2 * words + row % 2))])


@tree_kernel("wide_links", nanoseconds=lambda op: 1.0, fits=WideLinks.fits)
def wide_links(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of many thresholds for a block of rows."""
    WideLinks(f, node).emit()
