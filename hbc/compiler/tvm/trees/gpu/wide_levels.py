"""The strategy "wide_levels": perfect trees of thousands of thresholds a feature. Their ranks have 16 bits."""

from __future__ import annotations

from functools import partial

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.schedule import ROWS_OF_WORD
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.trees.gpu.levels import PAIRED_LEVELS, WORK_OF_PAIR, Layout, Levels, depth_of, layout_with
from hbc.compiler.tvm.trees.gpu.perfect import PerfectTrees
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tiles import WORD
from hbc.compiler.tvm.trees.gpu.work import work
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

MOST_RANK = (1 << 15) - 1
"""The greatest rank. No threshold has it."""
RANK_BIT = 16
"""The lowest bit of the rank in a node."""
WITHOUT_MARK = 0xFFFE
"""A rank without its mark."""
TOP_LEVELS = 2
"""The levels whose nodes are read once for all rows of a thread."""
WORK_OF_TOP, WORK_OF_STEP = work(14.2, 8.2, 3.7, 0.0), work(7.0, 3.0, 2.0, 2.0)
"""The work of the first levels and of the loop over trees, without reads of shared memory; and that of a level below."""
WORK_OF_PICK = work(-0.1, -2.9, 3.1, 0.0)
"""What the first three levels have more if their nodes are made of constants, without reads of shared memory."""
BEYOND_BANKS = {7: 0.2, 8: 0.4}
"""Wavefronts of a warp that reads nodes of the levels 6 and 7, beside the first of each, by the levels of trees."""
READS_OF_WORD = {6: 1.0, 7: 1.15, 8: 1.25}
"""Wavefronts of a warp that reads a word of each row's leaf, by the levels. Trees of regressors were counted; those of two classes take
more."""


class WideLevels(Levels):
    """The walk of "levels" over ranks of 16 bits. A row has one for each column, however many thresholds that has. A thread has those of
    its four rows in two words of a column, which lie thread after thread.

    A node is a word: the byte at which the ranks of its column begin, + rank · 2^16, + 2^31 where its children are swapped. Ranks of rows
    are doubled, for their lowest bit marks NaN of a column in which these go left at some nodes and right at others. So no column needs a
    copy for them. The lowest bit of a node says that NaN go left. They have the greatest rank, and the mark turns the answer of the
    comparison:

        above = node - (rank << 16) + (mark << 31)                              # its highest bit

    which is one multiplication and addition of the doubled rank, after one instruction that takes the mark away where NaN go right.

    Nodes of the first three levels are made of constants of the code (constants.py), if there are not too many: two wavefronts less for a
    row and tree. Otherwise all rows of a thread share the reads of those of two levels. Two rows share that of a rank in the first one.

    In trees of six levels or more, last nodes share pairs of leaves (pairs.py). The bits 1 to 7 of such a node are the number of its pair:

        at = (node & PAIR_MASK) + (above >> 31)                                 # the leaf

    It is good for forests of many trees, whose thresholds lie anywhere: 500 trees of depth 8 have hundreds of planes of bytes. Its limits:
    those of "levels"; 64 columns; 32,766 thresholds a column.
    """

    name = "wide_levels"
    reads_of_word = READS_OF_WORD
    bits = 16
    mark = 1
    stages = True
    work_of_pick = WORK_OF_PICK
    picks_from_tile = False

    @classmethod
    def ranked(cls, op: TreeEnsemble) -> RankedTrees:
        return op.once(_ranked)

    @classmethod
    def planes(cls, op: TreeEnsemble) -> int:
        return 2 * len(cls.ranked(op).thresholds)

    @classmethod
    def rows_of_thread(cls, op: TreeEnsemble) -> int:
        return ROWS_OF_WORD

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return super().fits(op) and cls.ranked(op).most_thresholds < MOST_RANK

    @classmethod
    def work_of_walk(cls, op: TreeEnsemble) -> Array:
        depth = depth_of(op)
        top = cls.top_levels(depth, ROWS_OF_WORD)
        beyond = work(0.0, 0.0, 0.0, BEYOND_BANKS.get(depth, 0.0))
        pair = WORK_OF_PAIR * float(cls.has_pairs(op))
        reads = work(0.0, 0.0, 0.0, cls.reads_of_top(op, False))
        return WORK_OF_TOP + reads + WORK_OF_STEP * (depth - top) + pair + beyond

    @classmethod
    def layout_of(cls, op: TreeEnsemble) -> Layout:
        return layout_with(op, WORD, 0, cls.pairs(op))

    @classmethod
    def has_pairs(cls, op: TreeEnsemble) -> bool:
        return depth_of(op) >= PAIRED_LEVELS

    @classmethod
    def top_levels(cls, depth: int, rows: int) -> int:
        return TOP_LEVELS if rows >= ROWS_OF_WORD and depth >= TOP_LEVELS else 0

    @classmethod
    def reads_of_top(cls, op: TreeEnsemble, picks: bool) -> float:
        """A word of ranks for two rows and a rank for each; and four words of nodes for all of them, if these are in no constants."""
        top = cls.top_levels(depth_of(op), ROWS_OF_WORD)
        nodes = 0.0 if cls.in_constants(op, picks) else (1 << top) / ROWS_OF_WORD
        return nodes + 0.5 + 1 if top else 0.0

    @classmethod
    def picks(cls, op: TreeEnsemble) -> bool:
        return depth_of(op) > TOP_LEVELS and cls.in_constants(op, True)

    @classmethod
    def constant_words(cls, depth: int, picks: bool) -> int:
        return (4 + 4 * picks) * (depth >= TOP_LEVELS)

    @classmethod
    def first_constants(
        cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int
    ) -> Array | None:
        """The first node, and what takes the marks away there; the left one below, and what lies between it and the right one: `right -
        left`. Of the level below four words (`pick`)."""
        depth = depth_of(op)
        if depth < TOP_LEVELS:
            return None
        first, left, right, *below = cls.nodes(ranked, planes, perfect, rows)[1][:, 1 : 2 << TOP_LEVELS].T
        words = [first, first | WITHOUT_MARK, left, right - left]
        if cls.picks(op):
            apart = below[1] - below[0], below[3] - below[2]
            words += [below[0], below[2] - below[0] - 2 * apart[1], apart[0], apart[1] - apart[0]]
        return np.ascontiguousarray((np.stack(words, axis=1) & 0xFFFFFFFF).astype(np.uint32))

    @classmethod
    def nodes(cls, ranked: RankedTrees, planes: PackedPlanes, perfect: PerfectTrees, rows: int) -> tuple[Array, Array]:
        left = ranked.split_plane >= len(ranked.plane_column)  # planes with NaN below all ranks
        column = np.where(
            left,
            np.append(ranked.below, 0)[np.where(left, ranked.split_plane - len(ranked.plane_column), 0)],
            ranked.split_plane,
        )
        node = 2 * rows * planes.number[column] + (ranked.split_rank.astype(np.int64) << RANK_BIT) + left
        nodes = np.append(node, MOST_RANK << RANK_BIT)[perfect.splits] + (perfect.swapped.astype(np.int64) << 31)
        return nodes[:, :0].astype(np.uint32), nodes

    def walk_top(self, top: int) -> None:
        assert top == TOP_LEVELS
        if self.constants is None:
            first, *second = (T.Bind(self.node_at(tirx.const(place, "int32"))) for place in range(1, 1 << TOP_LEVELS))
            marks = T.Bind(tirx.bitwise_or(first, tirx.const(WITHOUT_MARK, "uint32")))
        else:
            first, marks, *second = self.words_of_top
        place = tirx.bitwise_or(tirx.Cast("int32", tirx.bitwise_and(first, self.plane)), self.own)
        at_word = T.Bind(tirx.shift_right(place, tirx.const(2, "int32")))
        words = [T.Bind(self.words[at_word + number * self.schedule.words]) for number in range(self.count // 2)]
        nodes = []
        for row in self.rows:
            rank = tirx.bitwise_and(
                tirx.shift_right(words[row // 2], tirx.const(row % 2 * 16, "uint32")), tirx.const(0xFFFF, "uint32")
            )
            above = T.Bind(_above(first, tirx.bitwise_and(rank, marks)))
            T.buffer_store(self.at, tirx.const(0, "uint32"), [row])
            self.go(row, above)
            if self.constants is None:
                right = tirx.LT(tirx.reinterpret("int32", above), tirx.const(0, "int32"))
                nodes.append(T.Bind(tirx.Select(right, second[1], second[0])))
            else:
                nodes.append(T.Bind(second[0] + self.at[row] * second[1]))
        self.sides = [T.Bind(self.at[row]) for row in self.rows]
        self.step(nodes)

    def rows_pick(self) -> bool:
        return self.constants is not None and self.picks(self.op)

    def pick(self) -> None:
        """Emit the step of each row of the thread from a node of the third level, which three multiplications and additions make of four
        words. They say of a left or right second node: its left child, less twice what is between both; and what is between them."""
        left, more_left, apart, more_apart = self.words_of_top[4:]
        self.step(
            [
                T.Bind(left + side * more_left + self.at[row] * (apart + side * more_apart))
                for row, side in zip(self.rows, self.sides, strict=True)
            ]
        )

    def above(self, node: Expr, rank: Expr) -> Expr:
        return _above(node, tirx.bitwise_and(rank, tirx.bitwise_or(node, tirx.const(WITHOUT_MARK, "uint32"))))


def _above(node: Expr, rank: Expr) -> Expr:
    """A word whose highest bit says whether a row goes right. rank: with its mark, where the node is for it."""
    return node + rank * tirx.const((1 << 31) - (1 << RANK_BIT - 1), "uint32")


_ranked = partial(ranked_trees, most=MOST_RANK)
