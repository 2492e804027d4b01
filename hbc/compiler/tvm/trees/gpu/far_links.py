"""The strategy "far_links": trees of any shape and size, whose nodes stay in the card's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.forks import (
    ADDRESS_BITS,
    AT_LEAF,
    EXIT_BITS,
    EXITS,
    FIRST_EXIT,
    LEVELS,
    PLACE,
    WORDS,
    PackedForks,
    pack_forks,
)
from hbc.compiler.tvm.trees.gpu.memory import memory_cycles
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes
from hbc.compiler.tvm.trees.gpu.tile_sizes import Tiles
from hbc.compiler.tvm.trees.gpu.tiles import THREADS, Bounds, PackedTrees, TiledTrees, by_output
from hbc.compiler.tvm.trees.gpu.work import work
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

WORK_OF_FORK = work(19.8, 9.5, 6.0, 2.0)
"""The work of a fork, with two wavefronts of ranks, without lines of L1."""
WORK_OF_TREE, WORK_OF_VALUE = work(13.4, 4.5, 6.5, 0.3), work(3.0, 0.5, 1.0, 0.0)
"""The work for a tree beside its forks, with a value, and for each further value of a leaf."""

AT_ONCE = 16
"""The most bytes that a thread reads at once."""


@record
class PackedFarLinks(PackedTrees):
    """Trees that stay in the card's memory. A tile is all trees of an output, and words are those of the forks."""

    forks: PackedForks


class FarLinks(TiledTrees):
    """Trees are forks (forks.py), and stay in the card's memory. Threads read them through L2 and L1. Only the ranks of the rows are in
    shared memory, so threads never wait for each other:

        at = the first fork of the tree
        while a row of the thread is not at a leaf:
            for each of its rows that is not at a leaf:
                fork = forks[at]                                                          # 16 bytes at once
            for each of its rows:
                child = fork.right if ranks[fork.top][row] > fork.top else fork.left
                exit = child.right_exit if ranks[child][row] > child else child.left_exit
                at = fork.first + exit
        sums += values[4 * the number of the last fork + 1 + the number of the tree - fork.first + exit]

    A row at a leaf keeps its last fork, and finds the same exit again. So it reads nothing while others go on. Most rows wait long: in
    forests of unlimited depth a path is half as long as the tree is deep.

    It is good for deep trees of thousands of leaves, which do not fit in shared memory. Its limits are L1 and L2, of which each row soon
    needs a line and a sector of its own; 128 planes.
    """

    name = "far_links"

    packed: PackedFarLinks

    def __init__(self, f: Block, node: Node) -> None:
        super().__init__(f, node)
        self.starts = f.own(self.packed.forks.starts, "i64")
        self.forks = T.alloc_buffer((self.count * WORDS,), "int32", scope="local")
        """For each row of the thread, the last fork that it has read."""
        self.last = T.alloc_buffer((self.count,), "uint32", scope="local")
        """For each row, the number of that fork."""
        self.exits = T.alloc_buffer((self.count,), "uint32", scope="local")
        """For each row, the exit that it has taken, in the lowest bits."""

        self.leaves = None
        """For each row, the values of the leaf that it has reached, if it reads them at once."""
        if reads_of_leaf(self.op) < self.width:
            self.leaves = T.alloc_buffer((self.count * self.width,), DTYPES[self.dtype], scope="local")

    @classmethod
    def threads(cls, op: TreeEnsemble) -> int:
        # Forks of four rows and the sums of several values do not fit in the 64 registers that a thread has in blocks of 512.
        return super().threads(op) if op.values.shape[1] == 1 else min(super().threads(op), THREADS[1])

    @classmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        return op.output == "sum" and cls.threads(op) > 0 and int(EXITS * op.leaf_counts.sum()) * op.values.shape[1] < 1 << 31

    @classmethod
    def work(cls, op: TreeEnsemble) -> Array:
        walks, turns = cls.walks(op), float((-(-op.depths // LEVELS)).sum())
        values = WORK_OF_VALUE * (op.n_trees * (op.values.shape[1] - 1)) + work(0.0, 0.0, 0.0, cls._memory(op)[0])
        return (WORK_OF_FORK * turns + WORK_OF_TREE * op.n_trees) * walks + values

    @classmethod
    def from_l2(cls, op: TreeEnsemble) -> float:
        return cls._memory(op)[1]

    @classmethod
    def _memory(cls, op: TreeEnsemble) -> tuple[float, float]:
        return memory_cycles(op, 4 * WORDS, LEVELS, cls.walks(op), reads_of_leaf=reads_of_leaf(op))

    @classmethod
    def tiles_of(cls, op: TreeEnsemble) -> tuple[Tiles, Tiles]:
        sizes = [len(trees) for trees in by_output(op)]
        trees = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        tiles = Tiles(np.arange(len(trees)), trees, np.zeros_like(trees), size=0, places=0)
        return tiles, tiles

    @classmethod
    def compared(cls, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> tuple[Array, Array]:
        """(the rank of each split, the byte of shared memory at which the ranks begin that it is compared with). rows: of a block."""
        return ranked.split_rank, rows * planes.number[ranked.split_plane]

    @classmethod
    def pack(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTrees:
        rank, address = cls.compared(ranked, planes, rows)
        forks = pack_forks(op, ranked, rank, address, cls.bits, np.concatenate(by_output(op)))
        return PackedFarLinks(planes, *cls.tiles_of(op), forks.words, forks)

    def enter(self, tile: Bounds, place: Expr) -> None:
        self.first_tree = T.Bind(tirx.Cast("int64", tile.first_tree))

    def walk(self, tree: Expr) -> None:
        place, zero, at_leaf = self.first_tree + tirx.Cast("int64", tree), _word(0), _word(AT_LEAF)
        first = T.Bind(tirx.Cast("uint32", self.f.constant(self.starts, "i64", place)))
        for row in self.rows:
            T.buffer_store(self.forks, tirx.Cast("int32", first), [row * WORDS + FIRST_EXIT])
            T.buffer_store(self.exits, zero, [row])
        common = reduce(tirx.bitwise_and, [self.exits[row] for row in self.rows])
        with T.While(tirx.EQ(tirx.bitwise_and(common, at_leaf), zero)):
            for row in self.rows:
                with self._going(row):
                    T.buffer_store(self.last, tirx.Add(self._of_fork(row, FIRST_EXIT), self._passed(row)), [row])
                    at = tirx.Cast("int64", self.last[row]) * WORDS
                    fork = self.f.constants(self.packed.forks.words, "i32", at, WORDS)
                    T.buffer_store(
                        self.forks, fork, [tirx.Ramp(tirx.const(row * WORDS, "int32"), tirx.const(1, "int32"), WORDS)]
                    )
            right = [T.Bind(self._right(self._of_fork(row, 0), row)) for row in self.rows]
            children = [
                T.Bind(tirx.Select(goes, self._of_fork(row, 2), self._of_fork(row, 1)))
                for row, goes in zip(self.rows, right, strict=True)
            ]
            right = [T.Bind(self._right(child, row)) for row, child in zip(self.rows, children, strict=True)]
            for row, child, goes in zip(self.rows, children, right, strict=True):
                T.buffer_store(self.exits, tirx.shift_right(child, tirx.Select(goes, _word(EXIT_BITS), zero)), [row])
        before = T.Bind(tirx.Cast("uint32", place) + _word(1))
        for row in self.rows:
            leaf = self.last[row] * _word(EXITS) + before - self._of_fork(row, FIRST_EXIT) + self._passed(row)
            T.buffer_store(self.at, leaf, [row])
            if self.leaves is not None:
                values = self.f.constants(self.packed.forks.values, self.dtype, self._first_value(row), self.width)
                place = tirx.Ramp(tirx.const(row * self.width, "int32"), tirx.const(1, "int32"), self.width)
                T.buffer_store(self.leaves, values, [place])

    @contextmanager
    def _going(self, row: int) -> Iterator[None]:
        """A context for code of a row that is not at a leaf. An only row is not: the loop goes on for it."""
        if self.count == 1:
            yield
        else:
            with T.If(tirx.EQ(tirx.bitwise_and(self.exits[row], _word(AT_LEAF)), _word(0))), T.Then():
                yield

    def _first_value(self, row: int) -> Expr:
        """Where the values of the leaf begin that a row has reached."""
        return tirx.Cast("int64", self.at[row]) * self.width

    def _of_fork(self, row: int, number: int) -> Expr:
        """A word of the last fork of a row."""
        return tirx.Cast("uint32", self.forks[row * WORDS + number])

    def _passed(self, row: int) -> Expr:
        """How many forks, or leaves, of its fork lie before that to which the exit of a row leads."""
        return tirx.bitwise_and(self.exits[row], _word(PLACE))

    def _right(self, split: Expr, row: int) -> Expr:
        """Whether a row of this thread goes right at a split."""
        address = tirx.bitwise_and(split, _word(-self.schedule.plane_rows * self.bits // 8 % (1 << ADDRESS_BITS)))
        return tirx.LT(split, tirx.shift_left(self.rank(address, row), _word(32 - self.bits)))

    def value(self, tree: Expr, row: int, column: Expr | int) -> Expr:
        if self.leaves is not None:
            return self.leaves[row * self.width + tirx.Cast("int32", column)]
        first = self._first_value(row)
        at = first if self.width == 1 else first + tirx.Cast("int64", column)
        return self.f.constant(self.packed.forks.values, self.dtype, at)


def reads_of_leaf(op: TreeEnsemble) -> int:
    """The reads of a row for the values of a leaf: one if they have 16 bytes, as those of two classes do, or one for each value."""
    return 1 if op.values[:1].nbytes == AT_ONCE else op.values.shape[1]


def _word(value: int) -> Expr:
    return tirx.const(value, "uint32")
