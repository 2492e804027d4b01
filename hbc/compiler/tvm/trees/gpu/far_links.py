"""The strategy "far_links": trees of any shape and size, whose nodes stay in the card's memory."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import aligned
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.links import HEAD, MOST_NODES, Links, link, nodes_of
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tiles import PackedTiles, by_output
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

FROM_L1, FROM_L2 = 4.0, 12.0
"""Clocks of an SM in which a warp reads nodes, in a step: four lines of L1, or nine sectors of 32 bytes from L2 at 5.5 TB/s for all SMs."""
L1 = 128 << 10
"""The bytes of nodes that stay in L1, about. It has 256 KB, of which shared memory takes a part."""


@record
class PackedFarLinks(PackedTiles):
    """A tile is all trees of an output. trees i64[G]: its first tree in `heads`.

    heads i32[T, 4]: where each tree lies, output by output. words i32[N], values [N · V]: of all nodes, see `LinkedTrees`; the values of a
    tree lie column after column.
    """

    heads: Array
    words: Array
    values: Array
    trees: Array


class FarLinks(Links):
    """The same walk as "links", but nodes and values are read from the card's memory, through L2. Only the planes of the rows are in shared
    memory, so threads never wait for each other.

    It is good for deep trees of thousands of leaves, which do not fit in shared memory. Its limit is L2, and 65,536 nodes a tree; 128
    planes.
    """

    name = "far_links"

    packed: PackedFarLinks

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.trees, self.where = f.own(self.packed.trees, "i64"), f.own(self.packed.heads, "i32")

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        nodes = nodes_of(op)
        small = int(nodes.max(initial=0)) <= MOST_NODES and int(nodes.sum()) * op.values.shape[1] < 1 << 31
        return op.output == "sum" and cls.threads(op) > 0 and small

    @classmethod
    def cycles(cls, op: TreeEnsemble) -> float:
        return (1 + node_cycles(op, cls.bits // 2)) * float(cls.walks(op) * op.depths.sum() + op.n_trees * op.values.shape[1])

    @classmethod
    def tile_bytes(cls, op: TreeEnsemble) -> int:
        return 16

    @classmethod
    def pack_all(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTiles:
        linked, outputs = link(op, ranked, cls.compared(ranked, planes, rows), cls.bits), by_output(op)
        order = np.concatenate(outputs)
        counts, starts = nodes_of(op), linked.starts[:-1]
        heads = aligned(HEAD * op.n_trees, "i32").reshape(-1, HEAD)
        heads[:] = np.stack([starts, starts * op.values.shape[1], op.depths, counts], axis=1)[order]
        words = aligned(len(linked.words), "i32" if cls.bits == 8 else "i64")
        words[:] = linked.words.view(words.dtype)
        values = aligned(linked.values.size, "f32" if op.values.itemsize == 4 else "f64")
        for start, count in zip(starts, counts, strict=True):
            own = linked.values[start : start + count]
            values[start * own.shape[1] : (start + count) * own.shape[1]] = own.T.reshape(-1)
        sizes = np.array([len(trees) for trees in outputs], np.int64)
        return PackedFarLinks(
            planes=planes,
            tiles=aligned(4, "i32").reshape(1, 4),
            counts=sizes,
            first=np.arange(len(sizes) + 1),
            heads=heads,
            words=words,
            values=values,
            trees=np.cumsum(sizes) - sizes,
        )

    def enter(self, tile: Expr) -> None:
        self.first_tree = T.Bind(self.f.constant(self.trees, "i64", tile))

    def head(self, tree: Expr) -> list[Expr]:
        at = T.Bind((self.first_tree + tirx.Cast("int64", tree)) * HEAD)
        return [T.Bind(self.f.constant(self.where, "i32", at + i)) for i in range(HEAD - (self.width == 1))]

    def node_at(self, place: Expr) -> Expr:
        return tirx.Cast("uint32", self.f.constant(self.packed.words, "i32", tirx.Cast("int64", place)))

    def value_at(self, place: Expr) -> Expr:
        return self.f.constant(self.packed.values, self.dtype, tirx.Cast("int64", place))


def node_cycles(op: TreeEnsemble, size: int) -> float:
    """The clocks of an SM in which a warp reads nodes of `size` bytes from the card's memory, in a step."""
    return FROM_L1 if size * int(nodes_of(op).sum()) <= L1 else FROM_L2


@tree_kernel("far_links", nanoseconds=lambda op: 1.0, fits=FarLinks.fits)
def far_links(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of large trees for a block of rows."""
    FarLinks(f, node).emit()
