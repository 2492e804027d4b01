"""The strategy "levels": perfect trees in level order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.schedule import ROWS_OF_WORD
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.constants import CONSTANT_BYTES, read_constants
from hbc.compiler.tvm.trees.gpu.pairs import paired_trees
from hbc.compiler.tvm.trees.gpu.perfect import PerfectTrees, perfect_trees
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes, bytes_of
from hbc.compiler.tvm.trees.gpu.shares import shares, value_of_shares
from hbc.compiler.tvm.trees.gpu.tile_sizes import MOST_TILE_BYTES, PIECE, PLANE_BYTES
from hbc.compiler.tvm.trees.gpu.tiles import THREADS, WORD, Bounds, PackedTrees, TiledTrees, by_output
from hbc.compiler.tvm.trees.gpu.work import clocks, work
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

MOST_LEVELS = 8
MOST_ROWS = 8
"""Rows of a thread that adds one sum a row, in blocks of so few planes that they have 2,048 rows. Nodes of the first levels are read and
taken apart once for all of them, and half as many warps count trees and copy tiles."""
MANY_LEVELS = 6
"""With four rows a thread, three levels are walked for four rows at once from so many levels on, else two. The third one takes 11
instructions for integers instead of 2, and half a wavefront less. With eight rows it takes 7, and three quarters less."""
MOST_TOP = 3
"""The most levels that are walked for four rows at once."""
PICKED = 1 << MOST_TOP
"""The nodes of the level below, from which eight rows pick theirs."""
MOST_OF_WORDS = 6
"""The most levels of trees whose nodes are words: those of each level lie in different banks. A step takes an instruction less than with
nodes of two bytes, which have room for two more levels in as many banks."""
RANK_BIT = 23
"""The lowest bit of the rank in a node of a word. So the highest one of `node - (byte << 23)` says which is greater."""
PAIRED_LEVELS = 6
"""The levels of trees from which on last nodes share pairs of leaves, if nodes are words. Leaves of fewer levels lie in different banks."""
PAIR_MASK = 0xFE
"""The bits of a last node that have the number of its pair of leaves: free in nodes of words."""
WORK_OF_TOP = {
    ROWS_OF_WORD: {0: work(2.0, 0.0, 2.0, 0.0), 2: work(9.8, 5.5, 2.3, 0.0), 3: work(18.2, 10.5, 3.6, 0.0)},
    MOST_ROWS: {0: work(1.0, 0.0, 1.0, 0.0), 2: work(7.1, 3.9, 1.4, 0.0), 3: work(13.9, 8.0, 2.8, 0.0)},
}
"""The work of the first levels and of the loop over trees, by the rows of a thread, without reads of shared memory."""
WORK_OF_TOP_IN_TILE = work(1.2, 2.0, 0.4, 0.0)
"""What the first three levels have more if their nodes are read from the tile and taken apart."""
WORK_OF_END = work(0.5, 0.3, 0.3, 0.0)
"""What the first levels have more if none are below them."""
WORK_OF_PAIR = work(1.6, 1.7, 0.0, 0.0)
"""What the last step has more if it ends at a pair of leaves."""
WORK_OF_PICK = work(0.2, 2.0, -0.9, 0.0)
"""What a level has more if rows pick their nodes from all of them, without reads of shared memory."""
WORK_OF_STEP = {WORD: work(6.0, 2.0, 2.0, 2.0), WORD // 2: work(7.0, 2.0, 3.0, 2.0)}
"""The work of a level below, by the bytes of a node: a read of the node, and one of the plane."""
BEYOND_BANKS = 0.45
"""Wavefronts of a warp that reads nodes of level 7, beside the first."""
READS_OF_WORD = {6: 1.1, 7: 1.4, 8: 1.6}
"""Wavefronts of a warp that reads a word of each row's leaf, by the levels; 1 of fewer ones."""
WORK_OF_VALUE = {4: work(2.3, 0.5, 1.0, 0.0), 8: work(4.0, 0.8, 1.5, 0.0)}
"""The work for a value of a leaf without its reads, by its bytes."""
WORK_OF_LARGEST = {2: work(9.0, 7.0, 2.0, 0.0), 3: work(16.7, 11.3, 5.8, 0.0)}
"""The work for the largest value of a leaf that has all but that one (shares.py), by the classes: beyond that for the others."""
WORK_OF_TREE, WORK_OF_PIECE = work(0.05, 0.05, 0.0, 0.0), work(0.0195, 0.0102, 0.0042, 0.0016)
"""The work for a tree beside the walk, and for each 16 bytes of it: copies."""


@record
class PackedLevels(PackedTrees):
    """constants u32[T, C]: what constant memory may have of the first nodes of each tree; None: nothing."""

    constants: Array | None


class Levels(TiledTrees):
    """Every tree is a perfect one of the ensemble's greatest depth D. Its nodes lie in level order, so children are found by arithmetic:

        at = 0
        for level in 0 … D - 1:  node = nodes[2^level + at];  at = 2 * at + (bytes[plane(node)][row] > rank(node))
        sums += values[at]

    A node is plane · rows of a block + rank in 16 bits, or + rank · 2^23 in 32 bits where trees have six levels or fewer. The lower part
    is the place of the plane's bytes, so the byte's address is one `(node & mask) | 4 · thread`, and the comparison is one bit of
    `node - byte`. A further bit turns it where the children are swapped (perfect.py). The nodes of a level are 32 words or fewer, up to
    level 6: a warp reads its nodes in one wavefront, whatever its rows do. Above a leaf that is not deep enough stand nodes of rank 255,
    which no byte exceeds.

    Values of eight bytes lie in two parts, the lower words and the higher ones. A warp reads eight bytes a row in two halves, each from 16
    pairs of banks. Two reads of words, each from 32 banks, meet in banks less often.

    The first two or three levels are walked for four rows of a thread at once. Their nodes are few enough to compare all of them. A word
    of a plane has the bytes of four rows, and five instructions tell which are above a rank. So these rows share the reads of planes. The
    nodes are constants of the code (constants.py), if there are not too many: 1 instruction and 0.5 (eight rows a thread) to 1 wavefront
    less for a row and tree than from the tile.

    Where reads are the limit, a thread with eight rows reads all nodes of the next level once: eight bytes of planes and eight of ranks,
    of constants too. From these, one instruction picks the byte of a row. So a step there takes a wavefront less.

    In trees of six levels, last nodes share pairs of leaves (pairs.py). The bits 1 to 7 of such a node are the number of its pair:

        at = (node & PAIR_MASK) + (above >> 31)                                 # the leaf

    It is good for trees of nearly equal depth: it does the work of the deepest tree for all of them. Its limits: depth 8 (each level more
    doubles the memory, and the reads of a warp then meet in banks); 128 planes.
    """

    name = "levels"
    reads_of_word = READS_OF_WORD
    work_of_pick = WORK_OF_PICK
    picks_from_tile = True
    """Whether tiles have the nodes once more from which rows pick. None of them may be swapped then."""

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.depth, self.layout = depth_of(self.op), self.layout_of(self.op)
        self.words = self.schedule.view("uint32")
        rows = self.schedule.plane_rows
        self.plane = tirx.const(-rows * self.bits // 8 & PLANE_BYTES - 1, "uint32")
        self.row_bits = rows.bit_length() - 1
        assert isinstance(self.packed, PackedLevels)
        table = self.packed.constants
        fits = table is not None and 0 < table.nbytes <= self.schedule.constant_bytes
        self.constants = table if fits and self.count >= ROWS_OF_WORD else None
        """What constant memory has of the first nodes of each tree; None: they are read from the tile."""

    @classmethod
    def rows_of_thread(cls, op: TreeEnsemble) -> int:
        return MOST_ROWS if cls.threads(op) == THREADS[0] and op.n_outputs == 1 else ROWS_OF_WORD

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return (
            op.output == "sum"
            and depth_of(op) <= MOST_LEVELS
            and cls.layout_of(op).tree <= MOST_TILE_BYTES
            and cls.threads(op) > 0
        )

    @classmethod
    def work(cls, op: TreeEnsemble) -> Array:
        copies = (WORK_OF_TREE + WORK_OF_PIECE * (cls.layout_of(op).tree // PIECE)) * (ROWS_OF_WORD / cls.rows_of_thread(op))
        picks = cls.work_of_picks(op) * float(cls.picks(op))
        return op.n_trees * ((cls.work_of_walk(op) + picks + copies) * cls.walks(op) + cls.work_of_values(op))

    @classmethod
    def work_of_values(cls, op: TreeEnsemble) -> Array:
        """The work for the values of a leaf."""
        size, stored, width = op.values.itemsize, values_of(op).shape[1], op.values.shape[1]
        value = WORK_OF_VALUE[size] + work(0.0, 0.0, 0.0, cls.reads_of_word.get(depth_of(op), 1.0) * size / WORD)
        largest = WORK_OF_LARGEST[width] if stored < width else work(0.0, 0.0, 0.0, 0.0)
        return value * stored + largest

    @classmethod
    def work_of_walk(cls, op: TreeEnsemble) -> Array:
        """The work for a tree whose rows pick no nodes, without copies and values."""
        depth, rows = depth_of(op), cls.rows_of_thread(op)
        top = cls.top_levels(depth, rows)
        reads = work(0.0, 0.0, 0.0, cls.reads_of_top(op, False))
        beyond = work(0.0, 0.0, 0.0, BEYOND_BANKS if depth == MOST_LEVELS else 0.0)
        pair = WORK_OF_PAIR * float(cls.has_pairs(op))
        in_tile = WORK_OF_TOP_IN_TILE * float(top == MOST_TOP and not cls.in_constants(op, False))
        end = WORK_OF_END * float(top == depth)
        return WORK_OF_TOP[rows][top] + in_tile + end + reads + WORK_OF_STEP[node_bytes(depth)] * (depth - top) + pair + beyond

    @classmethod
    def layout_of(cls, op: TreeEnsemble) -> Layout:
        """How a tree of an ensemble lies in shared memory."""
        depth = depth_of(op)
        nodes = PIECE * (1 + cls.picks(op)) if top_levels(depth, MOST_ROWS) else 0
        return layout_with(op, node_bytes(depth), nodes, cls.pairs(op))

    @classmethod
    def picks(cls, op: TreeEnsemble) -> bool:
        """Whether the rows of a thread pick their nodes of the level below the first ones from all of them: they do where reads are the
        limit, for it costs two instructions of the ALU."""
        if cls.rows_of_thread(op) < MOST_ROWS or depth_of(op) <= MOST_TOP:
            return False
        tree = cls.work_of_walk(op) + cls.work_of_values(op)
        return clocks(tree + cls.work_of_picks(op)) < clocks(tree)

    @classmethod
    def work_of_picks(cls, op: TreeEnsemble) -> Array:
        """What a level has more if rows pick their nodes: reads of the words that they share, less one."""
        return cls.work_of_pick + work(0.0, 0.0, 0.0, cls.reads_of_top(op, True) - cls.reads_of_top(op, False) - 1)

    @classmethod
    def constant_words(cls, depth: int, picks: bool) -> int:
        """The words that constant memory may have of the first nodes of a tree: two of each, and six of those from which rows pick."""
        top = top_levels(depth, MOST_ROWS)
        return 2 * ((1 << top) - 1) + 2 * PICKED // WORD * picks + 2 * picks if top else 0

    @classmethod
    def in_constants(cls, op: TreeEnsemble, picks: bool) -> bool:
        """Whether the first nodes of all trees have room in constant memory, where no other ensemble is."""
        return 0 < op.n_trees * cls.constant_words(depth_of(op), picks) * WORD <= CONSTANT_BYTES

    @classmethod
    def has_pairs(cls, op: TreeEnsemble) -> bool:
        """Whether last nodes share pairs of leaves."""
        return PAIRED_LEVELS <= depth_of(op) <= MOST_OF_WORDS

    @classmethod
    def pairs(cls, op: TreeEnsemble) -> int:
        """The pairs of leaves that a tree has in memory; 0 if last nodes do not share them."""
        return cls.perfect(op).leaves.shape[1] // 2 if cls.has_pairs(op) else 0

    @classmethod
    def top_levels(cls, depth: int, rows: int) -> int:
        """The levels that the rows of a thread walk in another way than those below."""
        return top_levels(depth, rows)

    @classmethod
    def reads_of_top(cls, op: TreeEnsemble, picks: bool) -> float:
        """Wavefronts of the first levels for a warp of rows. Four rows of a thread share a read of each plane, and all of them a read of
        nodes, of two or four words, if these are in no constants. picks: with the nodes from which rows pick, whose reads they share."""
        rows = cls.rows_of_thread(op)
        top = cls.top_levels(depth_of(op), rows)
        nodes = 0.0 if cls.in_constants(op, picks) else (1 << top >> 1) + (2 * PICKED / WORD if picks else 0.0)
        return nodes / rows + ((1 << top) - 1) / ROWS_OF_WORD if top else 0.0

    @classmethod
    def tree_bytes(cls, op: TreeEnsemble) -> Array:
        return np.full(op.n_trees, cls.layout_of(op).tree)

    @classmethod
    def pack(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTrees:
        layout, perfect = cls.layout_of(op), cls.perfect(op)
        count, constants = len(perfect.splits), cls.first_constants(op, ranked, planes, perfect, rows)
        values = values_of(op)[perfect.leaves].transpose(0, 2, 1)[..., None].view(np.uint32)  # [trees, columns, leaves, words]
        first, nodes = cls.nodes(ranked, planes, perfect, rows)
        if cls.picks(op) and cls.picks_from_tile:
            first = np.concatenate([first, _picked(ranked, planes, perfect)], axis=1)
        if perfect.pairs is not None:
            nodes[:, -perfect.pairs.shape[1] :] += 2 * perfect.pairs
        parts = (
            (0, first),
            (layout.nodes, nodes.astype(f"u{layout.node}")),
            (layout.values, np.ascontiguousarray(values.swapaxes(2, 3))),
        )
        words = aligned(max(count * layout.tree, PIECE) // WORD, "i32")
        packed = words.view(np.uint8)[: count * layout.tree].reshape(count, layout.tree)
        for start, part in parts:
            own = part.reshape(count, -1).view(np.uint8)
            packed[:, start : start + own.shape[1]] = own
        return PackedLevels(planes, *cls.tiles_of(op), words, constants)

    @classmethod
    def perfect(cls, op: TreeEnsemble) -> PerfectTrees:
        """All trees, in the order in which they lie in the card's memory."""
        return op.once(_making(cls))

    @classmethod
    def nodes(cls, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int) -> tuple[Array, Array]:
        """(u32 [T, W]: what stands before the nodes of each tree, [T, 2^D]: its nodes). rows: of a block."""
        depth = perfect.splits.shape[1].bit_length() - 1
        top = top_levels(depth, MOST_ROWS)
        place = np.append(planes.number[ranked.split_plane], 0)[perfect.splits] * rows
        rank = np.append(ranked.split_rank, MOST_IN_PLANE)[perfect.splits]
        if node_bytes(depth) == WORD:
            nodes = place + (rank << RANK_BIT) + (perfect.swapped.astype(np.int64) << 31)
        else:
            nodes = place + rank + perfect.swapped * (rows // 2)
        first = place[:, : 1 << top] + (MOST_IN_PLANE - rank[:, : 1 << top] << 16)
        first = first[:, 0::2] + (place[:, 1 : 1 << top : 2] // rows) + (MOST_IN_PLANE - rank[:, 1 : 1 << top : 2] << 24)
        return first.astype(np.uint32) if top else first[:, :0], nodes

    @classmethod
    def first_constants(
        cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int
    ) -> Array | None:
        """u32[T, C]: what constant memory may have of the first nodes of each tree; None: nothing. rows: of a block.

        Of each node these are the byte where its plane begins, and 255 - rank four times, which are more bytes than in a tile but fewer
        instructions. Of the nodes from which rows pick: the words that a tile has of them, and what `pick` takes away of both.
        """
        top = top_levels(depth_of(op), MOST_ROWS)
        if not top:
            return None
        own = perfect.splits[:, 1 : 1 << top]
        place = np.append(planes.number[ranked.split_plane], 0)[own] * rows
        least = (MOST_IN_PLANE - np.append(ranked.split_rank, MOST_IN_PLANE)[own]) * 0x01010101
        parts = [np.stack([place, least], axis=2).reshape(len(own), -1)]
        if cls.picks(op):
            picked = _picked(ranked, planes, perfect)
            others = (picked[:, ::2].astype(np.int64) & 0xFF) * 0x01010100 * np.array([rows, 1])  # the lower words of these
            parts += [picked, others]
        return np.ascontiguousarray((np.concatenate(parts, axis=1) & 0xFFFFFFFF).astype(np.uint32))

    def enter(self, tile: Bounds, place: Expr) -> None:
        self.first = self.begin(place, 1)
        if self.constants is not None:
            self.first_constant = T.Bind(tile.first_tree * self.constants[:1].nbytes)

    def walk(self, tree: Expr) -> None:
        if self.constants is not None:
            at = tree * self.constants[:1].nbytes + self.first_constant
            self.words_of_top = read_constants(self.constants, at)
        first = T.Bind(tree * self.layout.tree + self.first)
        self.words_of_tree = self.schedule.view("uint32", first)
        self.nodes_of_tree = self.schedule.view(f"uint{8 * self.layout.node}", first)
        top = self.top_levels(self.depth, self.count)
        if top:
            self.walk_top(top)
        else:
            for row in self.rows:
                T.buffer_store(self.at, tirx.const(0, "uint32"), [row])
        if picks := self.rows_pick():
            self.pick()
        for level in range(top + picks, self.depth):
            nodes = [T.Bind(self.node_at((1 << level) + tirx.Cast("int32", self.at[row]))) for row in self.rows]
            self.step(nodes, level == self.depth - 1)

    def node_at(self, at: Expr) -> Expr:
        """A node of the tree, as uint32."""
        return tirx.Cast("uint32", self.nodes_of_tree[at + self.layout.nodes // self.layout.node])

    def step(self, nodes: Sequence[Expr], last: bool = False) -> None:
        """Emit the step of each row of the thread from its node. last: to a leaf."""
        ranks = [T.Bind(self.rank(tirx.bitwise_and(node, self.plane), row)) for row, node in zip(self.rows, nodes, strict=True)]
        for row, node, rank in zip(self.rows, nodes, ranks, strict=True):
            above = self.above(node, rank)
            if last and self.layout.paired:
                pair = tirx.bitwise_and(node, tirx.const(PAIR_MASK, "uint32"))
                T.buffer_store(self.at, pair + tirx.shift_right(above, tirx.const(31, "uint32")), [row])
            else:
                self.go(row, above)

    def rows_pick(self) -> bool:
        """Whether the rows of this thread pick their nodes of the level below the first ones."""
        return self.count == MOST_ROWS and self.picks(self.op)

    def pick(self) -> None:
        """Emit the step of each row of the thread from the node that it picks.

        The selector of a byte is the row's place. Its other digits are 0, so the bytes above the one that is picked are those of the first
        node. They are taken away once for all rows: from the place of the thread's bytes, and from the rank.
        """
        shift = tirx.const(self.row_bits, "uint32")
        if self.constants is None:
            words = [T.Bind(self.words_of_tree[PIECE // WORD + i]) for i in range(2 * PICKED // WORD)]
            others = [bytes_of(0x0004, words[0]) << shift, bytes_of(0x0004, words[2])]
        else:
            *words, plane, rank = self.words_of_top[-2 * PICKED // WORD - 2 :]
            others = [plane, rank]
        planes, ranks = words[:2], words[2:]
        own = T.Bind(tirx.Cast("uint32", self.own) - others[0])
        beside = T.Bind(others[1])

        picked = T.alloc_buffer((2, self.count), "uint32", scope="local")
        for row in self.rows:
            for number, pair in enumerate((planes, ranks)):
                # CUDA's __byte_perm would take an instruction more, which clears the bits of the selector that are 0 here.
                T.evaluate(T.ptx["prmt.b32"](picked[number, row], *pair, self.at[row]))
        places = [tirx.Cast("int32", tirx.shift_left(picked[0, row], shift) + own) for row in self.rows]
        found = [T.Bind(self.rank_at(place, row)) for row, place in zip(self.rows, places, strict=True)]
        for row, rank in zip(self.rows, found, strict=True):
            self.go(row, picked[1, row] - rank - beside)

    def go(self, row: int, above: Expr) -> None:
        """Emit the step of a row. above: its highest bit says whether the row goes right."""
        T.buffer_store(self.at, tirx.call_pure_extern("uint32", "__funnelshift_l", above, self.at[row], 1), [row])

    def above(self, node: Expr, rank: Expr) -> Expr:
        """A word whose highest bit says whether a rank is above that of a node."""
        if self.layout.node == WORD:
            return node - tirx.shift_left(rank, tirx.const(RANK_BIT, "uint32"))
        return tirx.shift_left(node - rank, tirx.const(32 - self.row_bits, "uint32"))

    def walk_top(self, top: int) -> None:
        """Walk the first levels."""
        nodes = self.first_nodes(top)
        for word in range(self.count // ROWS_OF_WORD):
            self._walk_top(top, nodes, word)

    def first_nodes(self, top: int) -> list[tuple[Expr, Expr]]:
        """(where the plane's bytes of this thread begin, 255 - rank in each of four bytes) of each node of the first levels."""
        if self.constants is not None:
            words = self.words_of_top
            return [
                (tirx.bitwise_or(tirx.Cast("int32", words[i]), self.own), words[i + 1]) for i in range(0, (2 << top) - 2, 2)
            ]
        pairs, found = [T.Bind(self.words_of_tree[i]) for i in range(1 << top - 1)], []
        for node in range(1, 1 << top):
            pair, half = pairs[node // 2], node % 2
            place = tirx.shift_left(pair, tirx.const(self.row_bits, "uint32")) if half else pair
            place = tirx.bitwise_or(tirx.Cast("int32", tirx.bitwise_and(place, self.plane)), self.own)
            found.append((place, T.Bind(bytes_of(0x3333 if half else 0x2222, pair))))
        return found

    def _walk_top(self, top: int, first: Sequence[tuple[Expr, Expr]], word: int) -> None:
        """Walk the first levels for four rows of the thread at once, whose bytes are a word. All rows of a block read the same nodes there.
        first: see `first_nodes`. word: which word of the thread's."""
        above = [tirx.const(0, "uint32"), *(T.Bind(self._above(*node, word)) for node in first)]
        places, right = tirx.const(0, "uint32"), list[Expr]()
        for level in range(top):
            nodes = above[1 << level : 2 << level]
            for earlier in right:  # half of the nodes are below the child to which it leads
                nodes = [_choose(earlier, *pair) for pair in zip(nodes[len(nodes) // 2 :], nodes, strict=False)]
            right.append(T.Bind(nodes[0]))
            bit = tirx.shift_right(right[level], tirx.const(8 - top + level, "uint32"))
            places = tirx.bitwise_or(places, tirx.bitwise_and(bit, tirx.const(0x01010101 << top - 1 - level, "uint32")))
        places = T.Bind(places)
        for row in range(ROWS_OF_WORD):
            T.buffer_store(self.at, bytes_of(0x4440 | row, places), [word * ROWS_OF_WORD + row])

    def _above(self, place: Expr, least: Expr, word: int) -> Expr:
        """Bit 7 of each byte: whether the byte of a row is above the rank of a node (`first_nodes`). word: of the thread's rows.

        It is the carry of `byte + 255 - rank`: the majority of the highest bits of both and of what the lower bits carry.
        """
        low = tirx.const(0x7F7F7F7F, "uint32")
        bytes_ = T.Bind(self.words[tirx.shift_right(place, tirx.const(2, "int32")) + word * self.schedule.words])
        carry = T.Bind(tirx.Add(tirx.bitwise_and(bytes_, low), tirx.bitwise_and(least, low)))
        return tirx.bitwise_or(tirx.bitwise_and(bytes_, least), tirx.bitwise_and(tirx.bitwise_or(bytes_, least), carry))

    def value(self, tree: Expr, row: int, column: Expr) -> Expr:
        parts = self.op.values.itemsize // WORD
        at = tirx.Cast("int32", self.at[row]) + self.layout.values // WORD
        stored = values_of(self.op).shape[1]
        if stored < self.width:
            words = [T.Bind(self.words_of_tree[at + part * self.layout.leaves]) for part in range(parts * stored)]
            return value_of_shares(list(zip(words[1::2], words[0::2], strict=True)), column)
        at += tirx.Cast("int32", column) * (parts * self.layout.leaves)
        low, *high = (self.words_of_tree[at + part * self.layout.leaves] for part in range(parts))
        if not high:
            return tirx.reinterpret("float32", low)
        return tirx.call_pure_extern("float64", "__hiloint2double", *(tirx.Cast("int32", word) for word in (*high, low)))


class Layout(NamedTuple):
    """The bytes of a tree in shared memory: those of a node, where nodes and values begin, and all of them, a multiple of a piece. leaves:
    how many have values. paired: whether last nodes have the numbers of pairs of leaves (pairs.py), in PAIR_MASK.

    At the beginning lie the nodes of the first levels once more, for the kernel that walks them for four rows at once. A word has two:
    plane of the second + plane of the first · rows of a block + (255 - rank of the first) · 2^16 + (255 - rank of the second) · 2^24.
    Behind them lie those of the next level, if rows pick theirs: a byte of each plane, then one of each rank.
    """

    node: int
    nodes: int
    values: int
    tree: int
    leaves: int
    paired: bool


def layout_with(op: TreeEnsemble, node: int, nodes: int, pairs: int = 0) -> Layout:
    """That of trees whose nodes have so many bytes and begin there. pairs: of leaves, that a tree has; 0 if leaves are not in pairs."""
    values, leaves = nodes + (node << depth_of(op)), 2 * pairs or 1 << depth_of(op)
    return Layout(node, nodes, values, -(-(values + values_of(op)[:1].nbytes * leaves) // PIECE) * PIECE, leaves, pairs > 0)


def values_of(op: TreeEnsemble) -> Array:
    """[L, V]: what trees in shared memory have of each leaf: its values, or all but the largest one."""
    stored = op.once(shares)
    return op.values if stored is None else stored


def in_order(op: TreeEnsemble) -> Array:
    """i64[T]: the trees, output by output."""
    return np.concatenate([*by_output(op), np.zeros(0, np.int64)]).astype(np.int64)


def _picked(ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees) -> Array:
    """u32[T, 4]: of the nodes of each tree from which rows pick theirs, the bytes of planes and then those of ranks."""
    own = perfect.splits[:, PICKED : 2 * PICKED]
    assert not perfect.swapped[:, PICKED : 2 * PICKED].any()
    both = np.append(planes.number[ranked.split_plane], 0)[own], np.append(ranked.split_rank, MOST_IN_PLANE)[own]
    return np.concatenate(both, axis=1).astype(np.uint8).view(np.uint32)


@cache
def _making(form: type[Levels]) -> partial[PerfectTrees]:
    """The function that makes perfect trees of an ensemble in a form, always the same one (`TreeEnsemble.once` asks for that)."""
    return partial(_perfect, form)


def _perfect(form: type[Levels], op: TreeEnsemble) -> PerfectTrees:
    depth, ranked = depth_of(op), form.ranked(op)
    top = top_levels(depth, MOST_ROWS) + form.picks(op) * form.picks_from_tile
    if form.has_pairs(op):
        return paired_trees(op, ranked, in_order(op), depth, top, values_of(op))
    return perfect_trees(op, ranked, in_order(op), depth, top)


def _choose(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Bit by bit, one of two words. In this form it is one instruction."""
    return tirx.bitwise_xor(no, tirx.bitwise_and(condition, tirx.bitwise_xor(yes, no)))


def node_bytes(depth: int) -> int:
    """The bytes of a node of trees of a depth."""
    return WORD if depth <= MOST_OF_WORDS else WORD // 2


def top_levels(depth: int, rows: int) -> int:
    """The levels that are walked for all rows of a thread at once; 0 if it has one row."""
    most = 0 if rows < ROWS_OF_WORD else 2 if rows == ROWS_OF_WORD and depth < MANY_LEVELS else MOST_TOP
    return 0 if depth < 2 else min(depth, most)


def depth_of(op: TreeEnsemble) -> int:
    """The depth to which the trees are padded."""
    return int(op.depths.max(initial=0))
