"""One row walks all trees at once, for calls of few rows: each thread of a block walks another tree.

    each thread ranks another column of the row; barrier
    for turn in the trees / 480:
        each thread but those of the last warp: values[thread] = the value of the leaf that the row reaches in the thread's tree
        barrier
        the last warp, while the others walk the next trees:
            for output, each in another lane:
                for tree of the output: sums[output] += values[tree]
    barrier; all threads read the sums

The trees are forks (forks.py), whatever the strategy. They stay in the card's memory: a row reads few of their nodes, and would wait for
copies of all of them. A fork takes a row two levels down for one time that L2 takes to answer.

Sums are added in the order of the trees, in the dtype of the leaves. So they have the bits of the other kernels. They are what most of the
time goes to: 500 additions of float64, one after the other, take twice as long as the walks of 480 trees of depth 8 (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.schedule import FEW_WARPS, LANES, MOST_SHARED, WALKERS, GpuLaneTrees
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.far_links import FarLinks
from hbc.compiler.tvm.trees.gpu.forks import LEVELS
from hbc.compiler.tvm.trees.gpu.memory import CLOCKS_OF_SECTOR, SECTOR, SMS, on_the_way, splits_by_depth
from hbc.compiler.tvm.trees.gpu.planes import fill_planes
from hbc.compiler.tvm.trees.gpu.tiles import WORD, Bounds, TiledTrees, by_output, threads_for
from hbc.compiler.tvm.trees.gpu.wide_links import WideLinks
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.graph import Node
from hbc.ops.tree import TreeEnsemble

FORKS: dict[int, type[FarLinks]] = {form.bits: form for form in (FarLinks, WideLinks)}
"""The forms of trees that threads read, by the bits of a rank."""
MOST_TREES = WALKERS * LANES
"""Trees that are walked at once."""
VALUE_BYTES = 32 << 10
"""The most bytes of the values of the trees of two turns. Of leaves of several values, fewer trees are walked at once."""
ADDED_AT_ONCE = 8
"""Values that a thread adds while it reads the next ones. A read takes as long as three additions."""
ALIGNMENT = 16
CLOCKS_OF_RANKS = 1_700
"""The clocks in which a thread ranks a column of its row. This and the next three are latencies, counted in nvcc's code or guessed
(docs/gpu.md)."""
CLOCKS_OF_FORK, CLOCKS_OF_STEP = 380, 125
"""Those of a fork that L2 sends, and of a step in shared memory."""
CLOCKS_OF_ADDITION = {4: 5, 8: 10}
"""Those of an addition that waits for the one before, by the bytes of a value."""
BLOCKS = 4
"""The blocks that an SM has room for: each has 512 threads."""


class LaneTrees:
    """Emits an ensemble for blocks of one row."""

    def __init__(self, f: Block, node: Node, bits: int) -> None:
        assert isinstance(f.schedule, GpuLaneTrees)
        self.f, self.schedule, self.node = f, f.schedule, node
        self.forks = FORKS[bits](f, node)
        self.op, self.dtype, self.width = self.forks.op, self.forks.dtype, self.forks.width
        self.size = trees_of_turn(self.op)
        self.memory = f.schedule.view(DTYPES[self.dtype])
        self.values = -(-self.forks.start // ALIGNMENT) * ALIGNMENT // self.op.values.itemsize
        """Where the values begin in shared memory, in elements of their dtype."""
        self.sums = self.values + 2 * self.size * self.width
        """Where the sums begin."""

    def emit(self) -> None:
        """Emit the sums of the block's row."""
        schedule, trees, thread = self.schedule, self.op.n_trees, self.schedule.thread
        schedule.barrier()  # planes and values lie where other threads may still read those of an ensemble before
        if len(self.forks.packed.planes.first):
            fill_planes(self.f, schedule, self.node.inputs[0], self.forks.packed.planes, self.forks.bits)
        base = self.f.own(self.op.base, self.dtype)
        with self._adders() as output:
            start = self.f.constant(base, self.dtype, tirx.Cast("int64", output))
            T.buffer_store(self.memory, start, [output + self.sums])
        schedule.barrier()
        zero = tirx.const(0, "int32")
        self.forks.enter(Bounds(zero, zero, zero, tirx.const(trees, "int32")), zero)
        with T.serial(zero, tirx.const(-(-trees // self.size), "int32")) as turn:
            first = T.Bind(turn * self.size)
            place = T.Bind(tirx.bitwise_and(turn, tirx.const(1, "int32")) * self.size * self.width + self.values)
            count = T.Bind(tirx.Min(tirx.const(self.size, "int32"), tirx.const(trees, "int32") - first))
            # As `once_if`, with numbers of 32 bits.
            with T.serial(zero, tirx.Cast("int32", tirx.LT(thread, count))):
                self._walk(T.Bind(first + thread), place + thread * self.width)
            schedule.barrier()
            self._add(first, count, place)
        schedule.barrier()
        with T.serial(tirx.const(0, "int64"), tirx.const(self.op.n_outputs, "int64")) as output:
            self.f.store(self.node, output, Row(tirx.const(0, "int64")), self.memory[tirx.Cast("int32", output) + self.sums])

    def _walk(self, tree: Expr, place: Expr) -> None:
        """Emit the walk of a thread's tree. place: where its values go."""
        self.forks.walk(tree)
        with T.serial(tirx.const(0, "int32"), tirx.const(self.width, "int32")) as column:
            T.buffer_store(self.memory, self.forks.value(tree, 0, column), [place + column])

    @contextmanager
    def _adders(self) -> Iterator[Expr]:
        """Loop over the outputs that a thread of the last warp adds."""
        rounds = tirx.const(-(-self.op.n_outputs // LANES), "int32")
        with self.schedule.last_warp() as lane, T.serial(tirx.const(0, "int32"), rounds) as number:
            output = T.Bind(number * LANES + lane)
            with T.If(tirx.LT(output, tirx.const(self.op.n_outputs, "int32"))), T.Then():
                yield output

    def _add(self, first: Expr, count: Expr, place: Expr) -> None:
        """Emit the additions of a turn: of `count` trees from the number `first` on, whose values begin at `place`.

        Behind the last tree of an output -0.0 is added, which changes no sum.
        """
        several = self.width == 1 and self.op.n_outputs > 1  # outputs have trees of their own
        starts = self.f.own(np.cumsum([0, *map(len, by_output(self.op))]), "i64")
        sums, ahead = (T.alloc_buffer((size,), DTYPES[self.dtype], scope="local") for size in (1, ADDED_AT_ONCE))
        zero, nothing = tirx.const(0, "int32"), tirx.const(-0.0, DTYPES[self.dtype])

        def bound(output: Expr) -> Expr:
            """The first tree of an output, as a number in this turn."""
            tree = tirx.Cast("int32", self.f.constant(starts, "i64", tirx.Cast("int64", output))) - first
            return T.Bind(tirx.Max(zero, tirx.Min(tree, count)))

        with self._adders() as output:
            begin, end = (bound(output), bound(output + 1)) if several else (zero, count)
            from_place = T.Bind(place if self.width == 1 else place + output)

            def read(number: Expr) -> None:
                for i in range(ADDED_AT_ONCE):
                    tree = T.Bind(begin + number * ADDED_AT_ONCE + i)
                    value = self.memory[from_place + tree * self.width]
                    T.buffer_store(ahead, tirx.if_then_else(tirx.LT(tree, end), value, nothing), [i])

            T.buffer_store(sums, self.memory[output + self.sums], [0])
            read(zero)
            rounds = T.Bind(tirx.truncdiv(end - begin + (ADDED_AT_ONCE - 1), tirx.const(ADDED_AT_ONCE, "int32")))
            with T.serial(zero, rounds) as number:
                values = [T.Bind(ahead[i]) for i in range(ADDED_AT_ONCE)]
                read(number + 1)
                for value in values:
                    T.buffer_store(sums, tirx.Add(sums[0], value), [0])
            T.buffer_store(self.memory, sums[0], [output + self.sums])


def trees_of_turn(op: TreeEnsemble) -> int:
    """The trees that are walked at once; 0 if leaves have too many values."""
    return min(MOST_TREES, VALUE_BYTES // (2 * op.values[:1].nbytes))


def fits_lanes(op: TreeEnsemble, form: type[TiledTrees]) -> bool:
    """Whether blocks of one row can walk an ensemble that fits a form."""
    return trees_of_turn(op) > 0 and FORKS[form.bits].fits(op) and shared_bytes_of_lanes(op, form) <= MOST_SHARED


def shared_bytes_of_lanes(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """The bytes of shared memory that an ensemble takes of a block of `GpuLaneTrees`."""
    planes = -(-FORKS[form.bits].planes(op) * WORD // ALIGNMENT) * ALIGNMENT
    return planes + (2 * trees_of_turn(op) * op.values.shape[1] + op.n_outputs) * op.values.itemsize


def rows_of_planes(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """The most rows for which 16 bits say where a plane of the forks begins. A form may have fewer planes than forks have."""
    return threads_for(FORKS[form.bits].planes(op)) * WORD


def rows_of_lanes(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """Up to how many rows of a call a block for each of them is faster than blocks of 32 rows.

    Blocks of one row wait for L2, or for the longest path of their 480 trees and the additions. There each row reads its own forks. A block
    of 32 rows walks 15 trees at a time. So it depends on the number of trees, on their depth and on their leaves.
    """
    ranked = op.once(ranked_trees)
    columns, trees, longest = len(ranked.thresholds), op.n_trees, int(op.depths.max(initial=0))
    forks = on_the_way(splits_by_depth(op))[:, ::LEVELS].sum()
    of_path = CLOCKS_OF_FORK * (-(-longest // LEVELS) + 1)
    added = CLOCKS_OF_ADDITION[op.values.itemsize] * max(map(len, by_output(op)), default=0)
    turns = -(-trees // max(trees_of_turn(op), 1))
    block = CLOCKS_OF_RANKS * -(-columns // MOST_TREES) + max(of_path * turns, of_path + added)
    from_l2 = CLOCKS_OF_SECTOR * max(float(forks) + trees * max(op.values[:1].nbytes / SECTOR, 1.0), 1.0)
    in_memory = issubclass(form, FarLinks)
    walk = of_path if in_memory else CLOCKS_OF_STEP * longest
    together = CLOCKS_OF_RANKS * -(-columns // FEW_WARPS) + (-(-trees // WALKERS) + 1) * walk
    return SMS * max(int(min(together // block * BLOCKS, together / from_l2)), 1)
