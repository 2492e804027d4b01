"""The strategy "links": trees of any shape in shared memory, four bytes a node."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.copies import begin_copy
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tile_sizes import MOST_TILE_BYTES, PIECE
from hbc.compiler.tvm.trees.gpu.tiles import WORD, Bounds, PackedTrees, TiledTrees, by_output
from hbc.compiler.tvm.trees.gpu.work import work
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

HEAD = 4
"""Numbers that say where a tree lies: its first node, its first value, its depth, its nodes."""
WORK_OF_STEP = work(9.4, 5.25, 2.0, 2.1)
"""The work of a step: a wavefront for ranks and 1.1 for nodes."""
WORK_OF_TREE, WORK_OF_PIECE = work(19.9, 7.8, 7.0, 3.0), work(0.0385, 0.017, 0.0126, 0.0041)
"""The work for a tree beside the walk, with a value, and for each 16 bytes of it: copies, the beginning of the walk, the addition."""
WORK_OF_VALUE = work(4.0, 0.8, 1.5, 0.0)
"""The work for each further value of a leaf, without its reads."""
READS_OF_VALUE = 0.3
"""Wavefronts of a warp that reads a word of each row's leaf, times the logarithm of the leaves to the base 2."""


@record
class LinkedTrees:
    """The nodes of all trees of an ensemble, tree by tree, in level order.

    words u32[N]: for a split `left << 16 | plane · rows of a block + rank`, where `left` is the number of its left child in the tree, and
    the right child is the next node; for a leaf `itself << 16 | 255`. values [N, V]: those of leaves. starts i64[T + 1]: where trees begin.
    """

    words: Array
    values: Array
    starts: Array


@record
class PackedLinks(PackedTrees):
    """Trees as "links" has them: the nodes of each, and behind them the values of all nodes, column after column.

    heads i32[T, 4]: where each tree lies, output by output: its first node, its first value, its depth, its nodes. Nodes and values are
    counted from the beginning of `words`, as if all of it were nodes or values.
    """

    heads: Array


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
    head_bytes = HEAD * WORD

    packed: PackedLinks

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.heads, self.nodes = self.schedule.view("int32"), self.schedule.view("uint32")
        self.values = self.schedule.view(DTYPES[self.dtype])
        rows = self.schedule.plane_rows
        self.plane, self.bit = (tirx.const(value, "uint32") for value in (-rows & 0xFFFF, rows.bit_length() - 2))

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return op.output == "sum" and cls.threads(op) > 0 and int(_bytes(op).max(initial=0)) + cls.head_bytes <= MOST_TILE_BYTES

    @classmethod
    def work(cls, op: TreeEnsemble) -> Array:
        words, width = op.values.itemsize / WORD, op.values.shape[1]
        copies = WORK_OF_TREE * op.n_trees + WORK_OF_PIECE * float((_bytes(op) / PIECE).sum())
        reads = READS_OF_VALUE * words * width * float(np.log2(op.leaf_counts).sum())
        values = WORK_OF_VALUE * (op.n_trees * (width - 1)) + work(0.0, 0.0, 0.0, reads)
        return (WORK_OF_STEP * float(op.depths.sum()) + copies) * cls.walks(op) + values

    @classmethod
    def tree_bytes(cls, op: TreeEnsemble) -> Array:
        return _bytes(op)

    @classmethod
    def compared(cls, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> Array:
        """i64[J]: the lower bits of a split, which say what it compares. rows: of a block."""
        return planes.number[ranked.split_plane] * rows + ranked.split_rank

    @classmethod
    def pack(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTrees:
        linked = link(op, ranked, cls.compared(ranked, planes, rows))
        order = np.concatenate([*by_output(op), np.zeros(0, np.int64)]).astype(np.int64)
        sizes, counts = _bytes(op), nodes_of(op)
        start = np.zeros(op.n_trees, np.int64)
        start[order] = np.cumsum(sizes[order]) - sizes[order]
        first_value = (start + _node_bytes(op)) // op.values.itemsize
        words = aligned(max(int(sizes.sum()), PIECE) // WORD, "i32")
        values = words.view(op.values.dtype)
        number = np.arange(int(counts.sum())) - np.repeat(linked.starts[:-1], counts)  # of each node in its tree
        words[np.repeat(start // WORD, counts) + number] = linked.words.view(np.int32)
        for column in range(op.values.shape[1]):
            values[np.repeat(first_value + column * counts, counts) + number] = linked.values[:, column]
        heads = aligned(HEAD * max(op.n_trees, 1), "i32").reshape(-1, HEAD)
        heads[: op.n_trees] = np.stack([start // WORD, first_value, op.depths, counts], axis=1)[order]
        return PackedLinks(planes, *cls.tiles_of(op), words, heads)

    def copy(self, tile: Bounds, place: Expr) -> None:
        """Beside the trees, their heads. They lie behind the trees."""
        super().copy(tile, place)
        start = T.Bind(place * self.tiles.size + tile.pieces * PIECE + self.start)
        begin_copy(self.f, self.schedule, self.packed.heads, "i32", tile.first_tree, tile.trees, start)

    def enter(self, tile: Bounds, place: Expr) -> None:
        self.first_head = T.Bind(self.begin(place, WORD) + tile.pieces * (PIECE // WORD))
        # From the place of a node or value in `words` to that in shared memory.
        sizes = WORD, self.op.values.itemsize
        self.from_words = [T.Bind(self.begin(place, size) - tile.first_piece * (PIECE // size)) for size in sizes]

    def walk(self, tree: Expr) -> None:
        first, self.first_value, depth, *stride = self.head(tree)
        self.stride = stride[0] if stride else 0
        for row in self.rows:
            T.buffer_store(self.at, tirx.const(0, "uint32"), [row])
        with T.serial(tirx.const(0, "int32"), depth):
            nodes = [T.Bind(self.node_at(first + tirx.Cast("int32", self.at[row]))) for row in self.rows]
            bytes_ = [
                T.Bind(self.rank(tirx.bitwise_and(node, self.plane), row)) for row, node in zip(self.rows, nodes, strict=True)
            ]
            for row, node, byte in zip(self.rows, nodes, bytes_, strict=True):
                above = tirx.bitwise_and(tirx.shift_right(tirx.Sub(node, byte), self.bit), tirx.const(1, "uint32"))
                T.buffer_store(self.at, tirx.Add(tirx.shift_right(node, tirx.const(16, "uint32")), above), [row])

    def head(self, tree: Expr) -> list[Expr]:
        """The numbers that say where a tree of the tile lies; the last one only if leaves have several values."""
        first, value, *rest = (self.heads[self.first_head + tree * HEAD + i] for i in range(HEAD - (self.width == 1)))
        nodes, values = self.from_words
        return [T.Bind(number) for number in (first + nodes, value + values, *rest)]

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


def _node_bytes(op: TreeEnsemble) -> Array:
    """i64[T]: the bytes of the nodes of each tree, multiples of those of a value."""
    return -(-(WORD * nodes_of(op)) // op.values.itemsize) * op.values.itemsize


def _bytes(op: TreeEnsemble) -> Array:
    """i64[T]: the bytes of each tree, multiples of a piece."""
    return -(-(_node_bytes(op) + nodes_of(op) * op.values[0].nbytes) // PIECE) * PIECE
