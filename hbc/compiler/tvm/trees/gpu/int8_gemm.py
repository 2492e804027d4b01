"""The strategy "int8_gemm": shallow trees as products of 8-bit integers, which tensor cores compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.schedule import LANES, ROWS_OF_WORD
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.levels import Layout, Levels, depth_of, layout_with
from hbc.compiler.tvm.trees.gpu.perfect import PerfectTrees
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes, bytes_of
from hbc.compiler.tvm.trees.gpu.tiles import THREADS, WORD
from hbc.compiler.tvm.trees.gpu.work import work
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

MOST_DEPTH, MOST_PLANES = 5, 30
"""The greatest depth, and the most planes: K of one product. The ranks of a warp's rows stay in registers, which have no room for more."""
MOST_VALUES = 3
"""The most values of a leaf of trees of that depth. With sums of four float64 for each row, threads spilled on sm_80."""
CONSTANTS = 2
"""Numbers of the first product beside a row's ranks: 2 and 1. They are multiplied by half of a node's rank, and by what is left of it."""
COLUMNS, QUAD = 8, 4
"""Columns of a product (N), and the lanes that have the same rows of a fragment."""
TILES = 8
"""Products for the 128 rows of a warp: each has 16 rows (M)."""
SIGNS = 0x0000FF00
"""The second byte of a word."""
WORK_OF_WALK = {
    1: work(15.8, 4.3, 4.0, 0.0, 2.0),
    2: work(22.0, 12.3, 0.0, 0.0, 3.0),
    4: work(53.5, 35.0, 0.3, 0.0, 8.0),
}
"""The work for a tree by its slots (`Shape`), without wavefronts, the first product on tensor cores, copies and values."""


class Int8Gemm(Levels):
    """Trees as products of matrices, as in the paper's strategy "gemm":

        difference = rank(node) - rank(row)     # the ranks of rows times one-hot columns, which select the plane of each node
        score = -(wrong turns)                  # the signs of the differences times the path to each last node
        at = 2 * last node + right              # whether the score is 0, and whether the row goes right there, times numbers

    The trees are perfect ones, as in levels. A last node is one above leaves; the others are upper nodes. A warp multiplies its 128 rows in
    eight tiles of 16 (`mma.sync`). The products are exact: sums of few integers of 8 bits, in 32 bits. The ranks of nodes and the turns to
    the right on a path are in the products too, times numbers that are the same for all rows.

    **No number goes from lane to lane.** Lane 4g + q has the rows g and g + 8 of a result, and the columns 2q and 2q + 1. Of the next
    product's left matrix it has the same rows, and four k of each 16, which may be any, since k is numbered as we like. The bytes 1 to 3
    of a score, and of a difference from -255 to 254, are all its sign: -1 or 0. So the word of a result is four such k as it stands, if the
    first one has weight 0. One instruction makes two numbers for the third product:

        hit, and hit and right = ~score & (difference | SIGNS)                  # bytes 1 and 2

    So a tile of trees of depth 3 takes two instructions between the products, one for each of a lane's rows. In deeper trees a lane has
    several columns of nodes. Words of upper nodes are joined by another instruction for each two.

    The third product has the leaves of each tile in another column. Tile 2q + i has the rows i and 2 + i of the threads 4g + q. So each
    thread finds the leaves of its own four rows, when the results of all tiles are added.

    The ranks of rows become fragments once, in registers. Walks read only columns, which all rows of a warp share, and values of leaves.
    The kernels for few rows walk levels.

    By the counts levels are ahead at every depth, where a row has one sum (docs/gpu.md). Products come nearest at depth 3. They are good
    for few trees of several classes. Their limits: depth 5; 30 planes; three values of a leaf at depth 5.
    """

    name = "int8_gemm"

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.multiplies = self.count == ROWS_OF_WORD and self.depth > 0
        self.shape = Shape(self.depth, self.planes(self.op))

    @classmethod
    def threads(cls, op: TreeEnsemble) -> int:
        return min(super().threads(op), THREADS[1])  # in blocks of 512 a thread has too few registers

    @classmethod
    def rows_of_thread(cls, op: TreeEnsemble) -> int:
        return ROWS_OF_WORD

    @classmethod
    def room_for(cls, threads: int) -> int:
        return THREADS[0]

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        depth, width = depth_of(op), op.values.shape[1]
        has_room = depth < MOST_DEPTH or width <= MOST_VALUES
        return super().fits(op) and depth <= MOST_DEPTH and cls.planes(op) <= MOST_PLANES and has_room

    @classmethod
    def work_of_walk(cls, op: TreeEnsemble) -> Array:
        shape = Shape(depth_of(op), cls.planes(op))
        first = work(0.0, 0.0, 0.0, cls.reads_of_top(op, False), shape.slots * shape.k / 16)  # of two tiles
        return WORK_OF_WALK[shape.slots] + first

    @classmethod
    def layout_of(cls, op: TreeEnsemble) -> Layout:
        return layout_with(op, WORD, Shape(depth_of(op), cls.planes(op)).bytes)

    @classmethod
    def picks(cls, op: TreeEnsemble) -> bool:
        return False

    @classmethod
    def top_levels(cls, depth: int, rows: int) -> int:
        return depth if rows == ROWS_OF_WORD else 0

    @classmethod
    def reads_of_top(cls, op: TreeEnsemble, picks: bool) -> float:
        """Wavefronts for the columns of a tree, which four warps of rows share."""
        return Shape(depth_of(op), cls.planes(op)).bytes / WORD / LANES / ROWS_OF_WORD

    @classmethod
    def constant_words(cls, depth: int, picks: bool) -> int:
        return 0

    @classmethod
    def first_constants(
        cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int
    ) -> Array | None:
        return None

    @classmethod
    def nodes(cls, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int) -> tuple[Array, Array]:
        """Before the nodes stand the columns of the first product, as fragments."""
        nodes = super().nodes(ranked, planes, perfect, rows)[1]
        shape = Shape(nodes.shape[1].bit_length() - 1, ranked.planes)
        splits = np.where(shape.places > 0, perfect.splits[:, shape.places], -1)  # [trees, products, columns]
        plane, rank = np.append(planes.number[ranked.split_plane], -1)[splits], np.append(ranked.split_rank, 0)[splits]
        columns = -(np.arange(shape.k)[:, None] == plane[:, :, None]).astype(np.int8)
        columns[:, :, -2], columns[:, :, -1] = rank >> 1, rank & 1
        columns[:, shape.always[0], -1, shape.always[1]] = -1
        return fragments(columns).reshape(len(nodes), -1), nodes

    def prepare(self) -> None:
        """Emit the fragments of the rows' ranks, and those of the matrices that are the same for all trees."""
        if not self.multiplies:
            return
        self.schedule.barrier()  # lanes read ranks that others have written
        self.lane, self.in_quad = (
            T.Bind(tirx.bitwise_and(self.schedule.thread, tirx.const(count - 1, "int32"))) for count in (LANES, QUAD)
        )
        self.paths = self._table(self.shape.paths)
        numbers, group = self._table(self.shape.numbers), T.Bind(tirx.shift_right(self.lane, tirx.const(2, "int32")))
        zero = tirx.const(0, "uint32")
        self.numbers = [
            [T.Bind(tirx.Select(tirx.EQ(group, tirx.const(tile, "int32")), word, zero)) for word in numbers]
            for tile in range(TILES)
        ]
        self.ranks_of_rows = self._ranks_of_rows()

    def _table(self, table: Array) -> list[Expr]:
        """This lane's words of a table u32[32, W]."""
        own, width = self.f.own(table.view(np.int32), "i32"), table.shape[1]
        places = (tirx.Cast("int64", self.lane * width + i) for i in range(width))
        return [T.Bind(tirx.reinterpret("uint32", self.f.constant(own, "i32", place))) for place in places]

    def _ranks_of_rows(self) -> list[list[Expr]]:
        """The fragments of the ranks: of each tile, two words for each 16 planes."""
        last, first = tirx.const(max(self.planes(self.op) - 1, 0), "int32"), T.Bind(self.schedule.thread - self.in_quad)
        found: list[list[Expr]] = [[None] * (self.shape.k // 8) for _ in range(TILES)]
        for part in range(self.shape.k // 16):
            numbers = [T.Bind(self.in_quad * QUAD + (16 * part + i)) for i in range(QUAD)]
            # Behind the last plane any byte will do, since columns are zeros there; but for the last two k.
            planes = [T.Bind(tirx.Min(number, last) * self.schedule.words + first) for number in numbers]
            for lane in range(QUAD):
                words = [self.words[plane + lane] for plane in planes]
                for i, byte in ((-2, 2), (-1, 1)) if part == self.shape.k // 16 - 1 else ():
                    constant = tirx.EQ(numbers[i], tirx.const(self.shape.k + i, "int32"))
                    words[i] = tirx.Select(constant, tirx.const(byte * 0x01010101, "uint32"), words[i])
                for row, word in enumerate(_transposed([T.Bind(word) for word in words])):
                    found[2 * lane + row % 2][2 * part + row // 2] = word
        return found

    def rounds(self, count: Expr) -> Expr:
        return count if self.multiplies else super().rounds(count)  # all lanes of a warp have to multiply

    def walk(self, tree: Expr) -> None:
        if not self.multiplies:
            super().walk(tree)
            return
        shape, of_lane = self.shape, self.shape.k // 16
        self.words_of_tree = self.schedule.view("uint32", T.Bind(tree * self.layout.tree + self.first))
        columns = [self._read((slot * LANES + self.lane) * of_lane, of_lane) for slot in range(shape.slots)]
        none = [tirx.const(0, "uint32")] * 4
        leaves = none
        for own, numbers in zip(self.ranks_of_rows, self.numbers, strict=True):
            differences = [_multiply("u8", own, column, none) for column in columns]
            upper, last = (shape.words(differences, part) for part in range(2))
            joined = [word for i in range(0, shape.slots, 2) for word in _joined(upper[i : i + 2])]
            scores = shape.words(
                [_multiply("s8", joined, self.paths[i :: shape.results], none) for i in range(shape.results)], 0
            )
            hits = [_hits(*pair) for pair in zip(scores, last, strict=True)]
            for i in range(0, shape.slots, 2):
                leaves = _multiply("s8", [word for words in hits[i : i + 2] for word in words], numbers[i : i + 2], leaves)
        for row in self.rows:
            T.buffer_store(self.at, leaves[row], [row])

    def _read(self, at: Expr, count: int) -> list[Expr]:
        """Words of the tree, which are read at once."""
        if count == 1:
            return [T.Bind(self.words_of_tree[at])]
        found, one = T.alloc_buffer((count,), "uint32", scope="local"), tirx.const(1, "int32")
        T.buffer_store(found, self.words_of_tree[tirx.Ramp(at, one, count)], [tirx.Ramp(tirx.const(0, "int32"), one, count)])
        return [T.Bind(found[i]) for i in range(count)]


class Shape:
    """The matrices of trees of a depth, and how lanes have them.

    k: K of the first product. slots: how many words a lane has of the upper nodes, for a row and all of them; it has as many of the last
    ones. They are 1 up to depth 3, 2 at depth 4, and 4 at depth 5. The first product has 8 columns for each. results: the products for
    scores, of 8 columns.

    With one slot, the lanes 4g + q have the upper and the last node number q, in columns 2q and 2q + 1. With more, they have number
    8 * (s // 2) + 2q + s % 2 of slot s. The columns of all upper nodes are before those of the last ones.
    """

    def __init__(self, depth: int, planes: int) -> None:
        self.k = 16 if planes + CONSTANTS <= 16 else 32
        self.slots = max(1 << depth >> 3, 1)
        self.results = max(self.slots // 2, 1)
        self.last = 1 << depth >> 1
        """How many last nodes there are; the place of the first one in level order."""
        self.bytes = self.slots * COLUMNS * self.k
        """Those of a tree's columns."""
        self.always = (0, 2 * (self.last - 1)) if self.slots == 1 else divmod(self.last - 1, COLUMNS)
        """(product, column) of the stand-in of an upper node at which all rows go right."""

    @cached_property
    def in_columns(self) -> Array:
        """i64[2, 4 · slots]: the number of the upper node and of the last one in the columns, -1 in those that have none."""
        number = np.arange(COLUMNS // 2 * self.slots)
        return np.stack([np.where(number < count, number, -1) for count in (self.last - 1, self.last)])

    @cached_property
    def places(self) -> Array:
        """i64[slots, 8]: the place in level order of the node in each column of the first product; 0 if there is none."""
        places = np.where(self.in_columns < 0, 0, self.in_columns + np.array([[1], [self.last]]))
        return (places.T if self.slots == 1 else places).reshape(self.slots, COLUMNS)

    def words(self, results: Sequence[Sequence[Expr]], part: int) -> list[tuple[Expr, Expr]]:
        """A lane's words of each slot, for its two rows. results: of products, the words of each. part: 0 for those that begin with the
        first column, 1 for the last nodes of the first product."""
        if self.slots == 1:
            return [(results[0][part], results[0][part + 2])]
        own = results[part * self.results :]
        return [(own[slot // 2][slot % 2], own[slot // 2][slot % 2 + 2]) for slot in range(self.slots)]

    @cached_property
    def _of_lanes(self) -> Array:
        """i64[slots, 4]: the number of the node that lanes have of each slot, by q."""
        slot, quad = np.arange(self.slots)[:, None], np.arange(QUAD)
        return slot + quad if self.slots == 1 else slot // 2 * COLUMNS + 2 * quad + slot % 2

    @property
    def paths(self) -> Array:
        """u32[32, W]: the fragments of the path matrices, those of all products for each 16 k. A decision is -1 at the right, else 0."""
        slots = np.arange(self.slots)[:, None]
        k_of = np.zeros(COLUMNS * self.results, np.int64)  # of each upper node
        k_of[self._of_lanes] = slots // 2 * 16 + np.arange(QUAD) * WORD + 1 + slots % 2
        matrix = np.zeros((self.results, 16 * self.results, COLUMNS), np.int8)
        for node, result, column in self._columns():
            path = self._path(node)
            for upper, right in path:
                matrix[result, k_of[upper], column] = -1 if right else 1
            matrix[result, k_of[self.last - 1], column] = sum(right for _, right in path)
        return np.ascontiguousarray(fragments(matrix).transpose(1, 2, 0)).reshape(LANES, -1)

    @property
    def numbers(self) -> Array:
        """u32[32, slots]: a column of the third product's matrix: hits of a lane count their first leaf, and those that go right one
        more. Both are -1 or 0."""
        number = self._of_lanes.T[..., None]
        bytes_ = np.where(number < self.last, np.concatenate([0 * number, -2 * number, 0 * number - 1, 0 * number], axis=2), 0)
        return np.tile(bytes_.astype(np.int8).view(np.uint32)[..., 0], (LANES // QUAD, 1))

    def _columns(self) -> list[tuple[int, int, int]]:
        """(number, product, column) of the score of each last node."""
        return [(node, 0, 2 * node) if self.slots == 1 else (node, *divmod(node, COLUMNS)) for node in range(self.last)]

    def _path(self, node: int) -> list[tuple[int, bool]]:
        """(number of an upper node, whether the path goes right there) on the way to a last node."""
        place, found = self.last + node, list[tuple[int, bool]]()
        while place > 1:
            found.append((place // 2 - 1, place % 2 > 0))
            place //= 2
        return found


def fragments(matrix: Array) -> Array:
    """u32[…, 32, K / 16]: the words that lanes have of the right matrix of a product, i8[…, K, 8]. Lane 4g + q has of column g four k from
    4q on, of each 16."""
    *others, k, columns = matrix.shape
    parts = matrix.reshape(*others, k // 16, QUAD, WORD, columns)
    lanes = np.moveaxis(parts, (-1, -3, -4, -2), (-4, -3, -2, -1))
    return np.ascontiguousarray(lanes).view(np.uint32).reshape(*others, LANES, k // 16)


def _multiply(kind: str, left: Sequence[Expr], right: Sequence[Expr], plus: Sequence[Expr]) -> list[Expr]:
    """Emit left · right + plus. Returns a lane's words of the result. kind: "u8" or "s8", the left matrix."""
    found = T.alloc_buffer((4,), "uint32", scope="local")
    name = f"mma.sync.aligned.m16n8k{16 * len(right)}.row.col.s32.{kind}.s8.s32"
    T.evaluate(T.ptx[name](*(found[i] for i in range(4)), *left, *right, *plus))
    return [T.Bind(found[i]) for i in range(4)]


def _joined(slots: Sequence[tuple[Expr, Expr]]) -> tuple[Expr, ...]:
    """Words of a lane's two rows with one sign of each slot: bytes 1 and 2."""
    if len(slots) == 1:
        return slots[0]
    return tuple(T.Bind(bytes_of(0x6510, *words)) for words in zip(*slots, strict=True))


def _hits(scores: tuple[Expr, Expr], differences: tuple[Expr, Expr]) -> list[Expr]:
    """Words of a lane's two rows: byte 1 says whether the row is at the last node, byte 2 whether it also goes right there."""
    signs = tirx.const(SIGNS, "uint32")
    return [
        T.Bind(tirx.bitwise_and(tirx.bitwise_not(score), tirx.bitwise_or(difference, signs)))
        for score, difference in zip(scores, differences, strict=True)
    ]


def _transposed(words: Sequence[Expr]) -> list[Expr]:
    """Four words: the first one has the first bytes of four others."""
    pairs = [[T.Bind(bytes_of(which, *words[i : i + 2])) for i in (0, 2)] for which in (0x5140, 0x7362)]
    return [T.Bind(bytes_of(which, *pair)) for pair in pairs for which in (0x5410, 0x7632)]
