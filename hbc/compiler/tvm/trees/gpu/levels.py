"""The strategy "levels": perfect trees in level order, two bytes a node."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tiles import MOST_TILE_BYTES, PLANE_BYTES, READS_OF_LEAF, TILE_BYTES, TiledTrees, threads_for
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

MOST_LEVELS = 8
BEYOND_BANKS = 0.8
"""Wavefronts of a warp that reads nodes of level 7, beside the first."""


class Levels(TiledTrees):
    """Every tree is a perfect one of the ensemble's greatest depth D. Its nodes lie in level order, so children are found by arithmetic:

        at = 1
        D times:  node = nodes[at];  at = 2 * at + (bytes[plane(node)][row] > rank(node))
        sums += values[at - 2^D]

    A node is plane · rows of a block + rank, 16 bits. The upper part is the place of the plane's bytes, so the byte's address is one
    `(node & mask) | 4 · thread`, and the comparison is one bit of `node - byte`. The nodes of each of the levels 0 to 6 are 32 words or
    fewer: a warp reads its nodes in one wavefront, whatever its rows do. Above a leaf that is not deep enough stand nodes of rank 255,
    which no byte exceeds.

    It is good for trees of nearly equal depth: it does the work of the deepest tree for all of them. Its limits: depth 8 (each level more
    doubles the memory, and the reads of a warp then meet in banks); 128 planes.
    """

    name = "levels"

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.depth = _depth(self.op)
        size = 1 << self.depth
        self.nodes = self.schedule.view("uint16")
        self.values = self.schedule.view(DTYPES[self.dtype])
        self.first_node = self.start // 2
        self.first_value = (self.start + _node_bytes(self.op)) // self.op.values.itemsize
        self.size = size
        rows = self.schedule.plane_rows
        self.plane, self.shift = (tirx.const(value, "uint32") for value in (-rows & PLANE_BYTES - 1, 33 - rows.bit_length()))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return op.output == "sum" and _depth(op) <= MOST_LEVELS and _tree_bytes(op) <= MOST_TILE_BYTES and threads_for(op) > 0

    @classmethod
    def cycles(cls, op: TreeEnsemble) -> float:
        depth = _depth(op)
        reads = (
            2 * depth + (BEYOND_BANKS if depth == MOST_LEVELS else 0) + READS_OF_LEAF[op.values.itemsize] * op.values.shape[1]
        )
        return op.n_trees * float(reads)

    @classmethod
    def tile_bytes(cls, op: TreeEnsemble) -> int:
        return _node_bytes(op) + _value_bytes(op)

    @classmethod
    def pack(
        cls, op: TreeEnsemble, trees: Array, ranked: RankedTrees, planes: PackedPlanes, rows: int
    ) -> tuple[list[Array], list[int]]:
        depth, together = _depth(op), _trees(op)
        rank = np.append(ranked.split_rank, MOST_IN_PLANE)
        words = np.append(planes.number[ranked.split_plane], 0) * rows + rank
        leaf_of = lambda tree, number: ~ranked.leaves[ranked.leaf_starts[tree] + number].astype(np.int64)  # noqa: E731
        nodes = np.zeros((len(trees), 1 << depth), np.uint16)
        at = np.where(ranked.leaf_counts[trees] > 1, ranked.starts[trees], leaf_of(trees, 0))[:, None]
        for level in range(depth):
            inner = np.where(at >= 0, at, -1)
            nodes[:, 1 << level : 2 << level] = words[inner]
            own = np.broadcast_to(trees[:, None], at.shape)
            children = []
            for child, number in ((ranked.split_left, ranked.split_lo), (ranked.split_right, ranked.split_mid)):
                below = np.where(child[inner] >= 0, child[inner], leaf_of(own, np.where(at >= 0, number[inner], 0)))
                children.append(np.where(at >= 0, below, at))
            at = np.stack(children, axis=2).reshape(len(trees), 2 << level)
        values = np.ascontiguousarray(op.values[~at].transpose(0, 2, 1))  # [trees, columns, leaves]
        tiles, counts = [], []
        for first in range(0, len(trees), together):
            part = slice(first, first + together)
            tile = np.zeros(cls.tile_bytes(op), np.uint8)
            for start, array in ((0, nodes[part]), (_node_bytes(op), values[part])):
                tile[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
            tiles.append(tile)
            counts.append(len(nodes[part]))
        return tiles, counts

    def walk(self, tree: Expr) -> None:
        one, first = tirx.const(1, "uint32"), T.Bind(tree * self.size + self.first_node)
        for row in self.rows:
            T.buffer_store(self.at, one, [row])
        for _ in range(self.depth):
            nodes = [T.Bind(tirx.Cast("uint32", self.nodes[first + tirx.Cast("int32", self.at[row])])) for row in self.rows]
            bytes_ = [
                T.Bind(self.byte(tirx.bitwise_and(node, self.plane), row)) for row, node in zip(self.rows, nodes, strict=True)
            ]
            for row, node, byte in zip(self.rows, nodes, bytes_, strict=True):
                # The bit of `node - byte` that tells becomes the highest one, and is shifted into `at`.
                above = tirx.shift_left(tirx.Sub(node, byte), self.shift)
                T.buffer_store(self.at, tirx.call_pure_extern("uint32", "__funnelshift_l", above, self.at[row], 1), [row])

    def value(self, tree: Expr, row: int, column: Expr) -> Expr:
        leaf = (tree * self.width + tirx.Cast("int32", column)) * self.size + (self.first_value - self.size)
        return self.values[leaf + tirx.Cast("int32", self.at[row])]


def _depth(op: TreeEnsemble) -> int:
    return int(op.depths.max(initial=0))


def _tree_bytes(op: TreeEnsemble) -> int:
    """The bytes of one tree."""
    return 2 + op.values.itemsize * op.values.shape[1] << _depth(op)


def _trees(op: TreeEnsemble) -> int:
    """The trees of a tile: a power of two, and not more than an output has."""
    most = int(np.bincount(op.target, minlength=1).max())
    fit = max(TILE_BYTES // _tree_bytes(op), 1)
    return min(1 << fit.bit_length() - 1, 1 << max(most - 1, 0).bit_length())


def _node_bytes(op: TreeEnsemble) -> int:
    """The bytes of a tile's nodes, a multiple of 16."""
    return -(-(_trees(op) * 2 << _depth(op)) // 16) * 16


def _value_bytes(op: TreeEnsemble) -> int:
    """The bytes of a tile's values, a multiple of 16."""
    return -(-(_trees(op) * op.values.itemsize * op.values.shape[1] << _depth(op)) // 16) * 16


@tree_kernel("levels", nanoseconds=lambda op: 1.0, fits=Levels.fits)
def levels(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of shallow trees for a block of rows."""
    Levels(f, node).emit()
