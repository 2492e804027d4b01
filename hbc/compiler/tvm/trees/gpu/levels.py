"""The strategy "levels": perfect trees in level order, two bytes a node."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import aligned
from hbc.compiler.tvm.nest.schedule import GpuTiles
from hbc.compiler.tvm.plan.tree_kernels import tree_kernel
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tile_sizes import MOST_TILE_BYTES, PIECE, PLANE_BYTES
from hbc.compiler.tvm.trees.gpu.tiles import READS_OF_LEAF, WORD, Bounds, PackedTrees, TiledTrees, by_output
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

MOST_LEVELS = 8
MANY_LEVELS = 6
"""From so many levels on, three are walked for four rows at once, else two. The third one takes 11 instructions for integers instead of 2,
and half a wavefront less."""
READS_OF_TOP = {0: 0.0, 2: 1.25, 3: 2.75}
"""Wavefronts of the first levels for a warp of rows. Four of them share a read of nodes, of two or four words, and a read of each plane."""
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

    The first two or three levels are walked for the thread's four rows at once. Their nodes are few enough to compare all of them. A word
    of a plane has the bytes of four rows, and seven instructions tell which are above a rank. So these rows share the reads of nodes and of
    planes: at depth 4 these are 3 wavefronts instead of 8.

    It is good for trees of nearly equal depth: it does the work of the deepest tree for all of them. Its limits: depth 8 (each level more
    doubles the memory, and the reads of a warp then meet in banks); 128 planes.
    """

    name = "levels"

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.depth = _depth(self.op)
        size = 1 << self.depth
        self.nodes, self.words = self.schedule.view("uint16"), self.schedule.view("uint32")
        self.values = self.schedule.view(DTYPES[self.dtype])
        self.size, self.bytes = size, _tree_bytes(self.op)
        rows = self.schedule.plane_rows
        self.plane, self.shift = (tirx.const(value, "uint32") for value in (-rows & PLANE_BYTES - 1, 33 - rows.bit_length()))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return op.output == "sum" and _depth(op) <= MOST_LEVELS and _tree_bytes(op) <= MOST_TILE_BYTES and cls.threads(op) > 0

    @classmethod
    def cycles(cls, op: TreeEnsemble) -> float:
        depth = _depth(op)
        top = top_levels(depth, GpuTiles.rows_of_thread)
        walk = READS_OF_TOP[top] + 2 * (depth - top) + (BEYOND_BANKS if depth == MOST_LEVELS else 0)
        return op.n_trees * float(cls.walks(op) * walk + READS_OF_LEAF[op.values.itemsize] * op.values.shape[1])

    @classmethod
    def tree_bytes(cls, op: TreeEnsemble) -> Array:
        return np.full(op.n_trees, _tree_bytes(op))

    @classmethod
    def pack(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTrees:
        trees, depth = np.concatenate([*by_output(op), np.zeros(0, np.int64)]).astype(np.int64), _depth(op)
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
        size, first_value = _tree_bytes(op), _node_bytes(op)
        words = aligned(max(len(trees) * size, PIECE) // 4, "i32")
        packed = words.view(np.uint8)[: len(trees) * size].reshape(len(trees), size)
        packed[:, : 2 << depth] = nodes.view(np.uint8)
        packed[:, first_value : first_value + values[0].nbytes] = values.reshape(len(trees), -1).view(np.uint8)
        return PackedTrees(planes, *cls.tiles_of(op), words)

    def enter(self, tile: Bounds, place: Expr) -> None:
        self.first_node, self.first_word, self.first_value = (
            self.begin(place, size) for size in (2, WORD, self.op.values.itemsize)
        )

    def walk(self, tree: Expr) -> None:
        first = T.Bind(tree * (self.bytes // 2) + self.first_node)
        top = top_levels(self.depth, self.count)
        if top:
            self._walk_top(T.Bind(tree * (self.bytes // WORD) + self.first_word), top)
        else:
            for row in self.rows:
                T.buffer_store(self.at, tirx.const(1, "uint32"), [row])
        for _ in range(self.depth - top):
            nodes = [T.Bind(tirx.Cast("uint32", self.nodes[first + tirx.Cast("int32", self.at[row])])) for row in self.rows]
            bytes_ = [
                T.Bind(self.byte(tirx.bitwise_and(node, self.plane), row)) for row, node in zip(self.rows, nodes, strict=True)
            ]
            for row, node, byte in zip(self.rows, nodes, bytes_, strict=True):
                # The bit of `node - byte` that tells becomes the highest one, and is shifted into `at`.
                above = tirx.shift_left(tirx.Sub(node, byte), self.shift)
                T.buffer_store(self.at, tirx.call_pure_extern("uint32", "__funnelshift_l", above, self.at[row], 1), [row])

    def _walk_top(self, first: Expr, top: int) -> None:
        """Walk the first levels for four rows at once. All rows of a block read the same nodes there, and compare a word of four bytes."""
        pairs = [T.Bind(self.words[first + i]) for i in range(1 << top - 1)]
        above = [tirx.const(0, "uint32"), *(T.Bind(self._above(pairs[node // 2], node % 2)) for node in range(1, 1 << top))]
        places, right = tirx.const(0x01010101 << top, "uint32"), list[Expr]()
        for level in range(top):
            nodes = above[1 << level : 2 << level]
            for earlier in right:  # half of the nodes are below the child to which it leads
                nodes = [_choose(earlier, *pair) for pair in zip(nodes[len(nodes) // 2 :], nodes, strict=False)]
            right.append(T.Bind(nodes[0]))
            bit = tirx.shift_right(right[level], tirx.const(8 - top + level, "uint32"))
            places = tirx.bitwise_or(places, tirx.bitwise_and(bit, tirx.const(0x01010101 << top - 1 - level, "uint32")))
        places = T.Bind(places)
        for row in self.rows:
            T.buffer_store(self.at, _bytes_of(places, 0x4440 | row), [row])

    def _above(self, pair: Expr, half: int) -> Expr:
        """Bit 7 of each byte: whether the byte of a row is above the rank of a node, which is a half of a word.

        It is the carry of `byte + 255 - rank`: the majority of the highest bits of both and of what the lower bits carry.
        """
        low = tirx.const(0x7F7F7F7F, "uint32")
        node = tirx.shift_right(pair, tirx.const(16, "uint32")) if half else pair
        place = tirx.bitwise_or(tirx.Cast("int32", tirx.bitwise_and(node, self.plane)), self.own)
        bytes_ = T.Bind(self.words[tirx.shift_right(place, tirx.const(2, "int32"))])
        least = T.Bind(tirx.bitwise_not(_bytes_of(pair, 0x2222 * half)))
        carry = T.Bind(tirx.Add(tirx.bitwise_and(bytes_, low), tirx.bitwise_and(least, low)))
        return tirx.bitwise_or(tirx.bitwise_and(bytes_, least), tirx.bitwise_and(tirx.bitwise_or(bytes_, least), carry))

    def value(self, tree: Expr, row: int, column: Expr) -> Expr:
        size = self.op.values.itemsize
        leaf = tirx.Cast("int32", column) * self.size + (_node_bytes(self.op) // size - self.size)
        return self.values[tree * (self.bytes // size) + self.first_value + leaf + tirx.Cast("int32", self.at[row])]


def _bytes_of(word: Expr, which: int) -> Expr:
    """A word of four bytes of another. which: a hexadecimal digit for each, 4 for a zero."""
    return tirx.call_pure_extern("uint32", "__byte_perm", word, tirx.const(0, "uint32"), tirx.const(which, "uint32"))


def _choose(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Bit by bit, one of two words."""
    return tirx.bitwise_or(tirx.bitwise_and(condition, yes), tirx.bitwise_and(tirx.bitwise_not(condition), no))


def top_levels(depth: int, rows: int) -> int:
    """The levels that are walked for all rows of a thread at once; 0 if it has one row."""
    return 0 if rows < 4 or depth < 2 else 2 if depth < MANY_LEVELS else 3


def _depth(op: TreeEnsemble) -> int:
    return int(op.depths.max(initial=0))


def _node_bytes(op: TreeEnsemble) -> int:
    """The bytes of the nodes of a tree, a multiple of those of a value."""
    return max(2 << _depth(op), op.values.itemsize)


def _tree_bytes(op: TreeEnsemble) -> int:
    """The bytes of a tree, a multiple of a piece."""
    return -(-(_node_bytes(op) + (op.values[0].nbytes << _depth(op))) // PIECE) * PIECE


@tree_kernel("levels", nanoseconds=lambda op: 1.0, fits=Levels.fits)
def levels(f: Block, node: Node) -> None:
    """Emit a `TreeEnsemble` of shallow trees for a block of rows."""
    Levels(f, node).emit()
