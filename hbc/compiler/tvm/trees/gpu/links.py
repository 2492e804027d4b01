"""The strategy "links": trees of any shape in shared memory, four bytes a node."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tiles import (
    MOST_TILE_BYTES,
    READS_OF_LEAF,
    TILE_BYTES,
    TiledTrees,
    by_output,
)
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

HEAD = 4
"""Numbers that say where a tree lies: its first node, its first value, its depth, its nodes."""
CYCLES_OF_STEP = 2.6
"""Clocks of an SM for the integer arithmetic of a step of a warp: 5.25 of its 9.4 instructions, two in a clock."""
READS_OF_STEP = 2.4
"""Wavefronts of a step of a warp: one for ranks and 1.4 for nodes, or fewer."""


@record
class LinkedTrees:
    """The nodes of all trees of an ensemble, tree by tree, in level order.

    words u32[N]: for a split `left << 16 | plane · rows of a block + rank`, where `left` is the number of its left child in the tree, and
    the right child is the next node; for a leaf `itself << 16 | 255`. values [N, V]: those of leaves. starts i64[T + 1]: where trees begin.
    """

    words: Array
    values: Array
    starts: Array


def link(op: TreeEnsemble, ranked: RankedTrees, compared: Array) -> LinkedTrees:
    """The trees as `LinkedTrees`. compared i64[J]: what each split compares, the lower bits of its word. Vectorized over all nodes."""
    splits, leaves = np.diff(ranked.starts).astype(np.int64), ranked.leaf_counts.astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(splits + leaves)])
    tree = np.repeat(np.arange(op.n_trees), splits)
    pair = 1 + 2 * (np.arange(len(tree)) - ranked.starts[tree])  # in its tree, the number of the left child of a split
    of_split, of_leaf = np.zeros(len(tree), np.int64), np.zeros(len(ranked.leaves), np.int64)
    for side, (child, number) in enumerate(((ranked.split_left, ranked.split_lo), (ranked.split_right, ranked.split_mid))):
        inner = child >= 0
        of_split[child[inner]] = pair[inner] + side
        of_leaf[(ranked.leaf_starts[tree] + number)[~inner]] = pair[~inner] + side
    words, values = np.zeros(starts[-1], np.uint32), np.zeros((starts[-1], op.values.shape[1]), op.values.dtype)
    words[starts[tree] + of_split] = pair << 16 | compared
    at_leaf = np.repeat(starts[:-1], leaves) + of_leaf
    words[at_leaf] = of_leaf << 16 | MOST_IN_PLANE
    values[at_leaf] = op.values[ranked.leaves]
    return LinkedTrees(words, values, starts)


class Links(TiledTrees):
    """Trees keep their shape. A node has the number of its left child in 16 bits, and in the others the plane and rank that it compares:

        at = 0
        as often as the tree is deep:
            node = nodes[at];  at = (node >> 16) + (bytes[plane(node)][row] > rank(node))
        sums += values[at]

    A leaf leads to itself. It compares with rank 255, which no byte exceeds. Nodes lie in level order, so the upper ones, which most rows
    of a warp read, are in few banks twice.

    It is good for trees of 9 levels and more that are not full, such as LightGBM's with 31 leaves. All rows do as many steps as the tree is
    deep. Its limits: a tree of 1,300 leaves (float64), which takes 32 KB; 128 planes.
    """

    name = "links"

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.heads, self.nodes = self.schedule.view("int32"), self.schedule.view("uint32")
        self.values = self.schedule.view(DTYPES[self.dtype])
        rows = self.schedule.plane_rows
        self.plane, self.bit = (tirx.const(value, "uint32") for value in (-rows & 0xFFFF, rows.bit_length() - 2))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return op.output == "sum" and cls.threads(op) > 0 and int(_bytes(op).max(initial=0)) <= MOST_TILE_BYTES

    @classmethod
    def cycles(cls, op: TreeEnsemble) -> float:
        leaves = READS_OF_LEAF[op.values.itemsize] * op.values.shape[1] * op.n_trees
        steps = cls.walks(op) * float(op.depths.sum())
        return max(CYCLES_OF_STEP * steps, READS_OF_STEP * steps + leaves)

    @classmethod
    def tile_bytes(cls, op: TreeEnsemble) -> int:
        return max((int(_bytes(op)[group].sum()) for trees in by_output(op) for group in _groups(op, trees)), default=16)

    @classmethod
    def compared(cls, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> Array:
        """i64[J]: the lower bits of a split, which say what it compares. rows: of a block."""
        return planes.number[ranked.split_plane] * rows + ranked.split_rank

    @classmethod
    def pack(
        cls, op: TreeEnsemble, trees: Array, ranked: RankedTrees, planes: PackedPlanes, rows: int
    ) -> tuple[list[Array], list[int]]:
        linked = link(op, ranked, cls.compared(ranked, planes, rows))
        tiles, groups = [], _groups(op, trees)
        for group in groups:
            heads = np.zeros((len(group), HEAD), np.int32)
            nodes = [linked.words[linked.starts[tree] : linked.starts[tree + 1]] for tree in group]
            values = [linked.values[linked.starts[tree] : linked.starts[tree + 1]].T for tree in group]
            counts = np.array([len(words) for words in nodes])
            first_value = -(-(heads.nbytes + 4 * int(counts.sum())) // 8) * 8
            before = np.cumsum(counts) - counts
            heads[:, 0] = heads.nbytes // 4 + before
            heads[:, 1] = first_value // op.values.itemsize + before * op.values.shape[1]
            heads[:, 2], heads[:, 3] = op.depths[group], counts
            tile = np.zeros(first_value + int(counts.sum()) * op.values[0].nbytes, np.uint8)
            for place, parts in ((0, [heads]), (heads.nbytes, nodes), (first_value, values)):
                joined = np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts]).view(np.uint8)
                tile[place : place + len(joined)] = joined
            tiles.append(tile)
        return tiles, [len(group) for group in groups]

    def walk(self, tree: Expr) -> None:
        first, self.first_value, depth, *stride = self.head(tree)
        self.stride = stride[0] if stride else 0
        for row in self.rows:
            T.buffer_store(self.at, tirx.const(0, "uint32"), [row])
        with T.serial(tirx.const(0, "int32"), depth):
            nodes = [T.Bind(self.node_at(first + tirx.Cast("int32", self.at[row]))) for row in self.rows]
            bytes_ = [
                T.Bind(self.byte(tirx.bitwise_and(node, self.plane), row)) for row, node in zip(self.rows, nodes, strict=True)
            ]
            for row, node, byte in zip(self.rows, nodes, bytes_, strict=True):
                above = tirx.bitwise_and(tirx.shift_right(tirx.Sub(node, byte), self.bit), tirx.const(1, "uint32"))
                T.buffer_store(self.at, tirx.Add(tirx.shift_right(node, tirx.const(16, "uint32")), above), [row])

    def head(self, tree: Expr) -> list[Expr]:
        """The numbers that say where a tree of the tile lies; the last one only if leaves have several values."""
        first, value, *rest = (self.heads[tree * HEAD + (self.start // 4 + i)] for i in range(HEAD - (self.width == 1)))
        places = (first + self.start // 4, value + self.start // self.op.values.itemsize)
        return [T.Bind(number) for number in (*places, *rest)]

    def node_at(self, place: Expr) -> Expr:
        """A node, uint32."""
        return self.nodes[place]

    def value_at(self, place: Expr) -> Expr:
        """A value of a leaf."""
        return self.values[place]

    def value(self, tree: Expr, row: int, column: Expr | int) -> Expr:
        at = self.first_value + tirx.Cast("int32", self.at[row])
        return self.value_at(at if self.width == 1 else at + tirx.Cast("int32", column) * self.stride)


def nodes_of(op: TreeEnsemble) -> Array:
    """i64[T]: the nodes of each tree, leaves among them."""
    return 2 * op.leaf_counts.astype(np.int64) - 1


def _bytes(op: TreeEnsemble) -> Array:
    """i64[T]: the most bytes that each tree adds to a tile, a multiple of 16."""
    return -(-(4 * HEAD + nodes_of(op) * (4 + op.values[0].nbytes) + 8) // 16) * 16


def _groups(op: TreeEnsemble, trees: Array) -> list[Array]:
    """The trees of an output in groups, in their order. Each group is a tile of TILE_BYTES at most, or of one tree."""
    size = _bytes(op)
    groups: list[list[int]] = []
    room = 0
    for tree in trees.tolist():
        if not groups or size[tree] > room:
            groups.append([])
            room = TILE_BYTES
        groups[-1].append(tree)
        room -= int(size[tree])
    return [np.array(group) for group in groups]


@tree_kernel("links", nanoseconds=lambda op: 1.0, fits=Links.fits)
def links(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of trees of any shape for a block of rows."""
    Links(f, node).emit()
