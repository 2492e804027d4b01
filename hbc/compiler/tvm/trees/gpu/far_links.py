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

LINE, SECTOR = 128, 32
"""The bytes that L1 reads in a clock of an SM, and that L2 sends at once."""
CLOCKS_OF_SECTOR = SECTOR * 132 * 1.75e9 / 5.5e12
"""Clocks of an SM for a sector from L2, which gives all SMs of an H200 5.5 TB/s. That is a guess."""
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
    clocks_of_step = 3.9
    """Clocks of an SM for the 7.7 integer instructions of a step of a warp, of 12.3 in all."""

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
        steps, walks = float(op.depths.sum()), cls.walks(op)
        lines, from_l2 = memory_cycles(op, cls.bits // 2, walks)
        return max(cls.clocks_of_step * walks * steps, walks * steps + lines, from_l2)

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


def beyond_l1(op: TreeEnsemble, size: int) -> bool:
    """Whether nodes of `size` bytes are too many for L1."""
    return size * int(nodes_of(op).sum()) > L1


def memory_cycles(op: TreeEnsemble, size: int, walks: int = 1, loads: float = 1.0) -> tuple[float, float]:
    """(the clocks of an SM in which a warp reads lines of L1, those in which it waits for sectors of L2; 0 if all nodes stay in L1), for
    nodes of `size` bytes and the values of leaves. walks: how often trees are walked. loads: how often a step reads the same node."""

    def pieces(unit: int, times: float) -> float:
        values = reached_pieces(op, op.values.itemsize, unit, last=True)
        return walks * times * reached_pieces(op, size, unit) + values * op.values.shape[1]

    return pieces(LINE, loads), CLOCKS_OF_SECTOR * pieces(SECTOR, 1.0) if beyond_l1(op, size) else 0.0


def reached_pieces(op: TreeEnsemble, size: int, unit: int, last: bool = False) -> float:
    """About how many pieces of `unit` bytes a warp reads of all trees, whose nodes have `size` bytes, in all steps. last: in the leaves
    that its rows have reached instead.

    In step d the rows of a warp are spread over 2^d nodes that lie together, or over all nodes of the tree if those are fewer. Then
    n (1 - (1 - 1/n)^32) of n pieces are read. Forests of unlimited depth read 10 to 20 % fewer (docs/gpu.md).
    """
    depths, nodes = op.depths.astype(np.int64)[:, None], nodes_of(op)[:, None]
    step = depths if last else np.arange(depths.max(initial=0))[None]
    among = np.maximum(np.minimum(2.0 ** np.minimum(step, 32), nodes) * size / unit, 1)
    read = among * (1 - (1 - 1 / among) ** 32)
    return float(np.sum(read, where=last | (step < depths)))


@tree_kernel("far_links", nanoseconds=lambda op: 1.0, fits=FarLinks.fits)
def far_links(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of large trees for a block of rows."""
    FarLinks(f, node).emit()
