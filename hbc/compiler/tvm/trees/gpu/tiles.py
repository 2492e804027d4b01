"""What tree kernels of a GPU have in common that let trees pass through shared memory, a tile of them at a time.

    the planes of the block's rows are computed (planes.py), and stay in shared memory
    for output in outputs:                                                   # a few columns at a time, if leaves are vectors
        sums = base[output]                                                  # of each thread's four rows, in registers
        for tile in the tiles of the output:
            barrier; all threads copy the tile, 16 bytes at a time; barrier
            for tree in tile:
                sums += the value of the leaf that each row reaches
        y[output] = sums

A thread adds the leaves of its rows in the order of the trees, in the dtype of the values. So sums have the bits of the source's own loop,
and are the same on every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.model_data import aligned
from hbc.compiler.tvm.nest.schedule import FEW_WARPS, LANES, MOST_SHARED, GpuFewRows, GpuTiles
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.planes import PackedPlanes, fill_planes, pack_planes, words_of_plane
from hbc.compiler.tvm.trees.ranks import ranked_trees
from hbc.ir.graph import Node
from hbc.ir.types import Array, dtype_name
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

THREADS = (512, 256, 128)
"""Threads of a block, by the planes of its rows. Twice as many planes leave room for half as many rows."""
WORD = 4
"""The bytes of a word of shared memory: those of a thread's rows in a plane."""
PLANE_BYTES = 64 << 10
"""The most bytes of a block's planes. So 16 bits say where the byte of a plane and row lies."""
TILE_BYTES = 24 << 10
"""The bytes of a tile, about. A block of 2,048 rows walks such a tile in 13,000 clocks, and copies it in 1,500 at most."""
MOST_TILE_BYTES = MOST_SHARED - PLANE_BYTES
READS_OF_LEAF = {4: 3.0, 8: 5.0}
"""Wavefronts of a warp that reads values, by their bytes. A warp reads 8 bytes in two halves."""
IN_REGISTERS = {512: 4, 256: 8, 128: 8}
"""The most values of a leaf that are added in one pass over the trees, by the threads of a block. Their sums stay in registers: four rows
of four float64 take 32 of the 64 that a thread has in blocks of 512, of 128 in others."""


CYCLES_OF_LEVEL = 1.5
"""The clocks of an SM for a level of a search among a column's thresholds, for a warp of rows: six instructions."""


def threads_for(planes: int) -> int:
    """The threads of a block that has room for so many planes of bytes; 0 if none has."""
    return next((threads for threads in THREADS if planes * threads * WORD <= PLANE_BYTES), 0)


@record
class PackedTiles:
    """An ensemble as tiles.

    planes: of its rows. tiles i32[N, W]: the words of each tile, multiples of four. counts i64[N]: the trees of each. first i64[G + 1]:
    output g has the tiles first[g]:first[g + 1].
    """

    planes: PackedPlanes
    tiles: Array
    counts: Array
    first: Array


class TiledTrees(ABC):
    """Emits an ensemble for rows whose planes lie in shared memory.

    A subclass is one form of trees: what a tile of them holds, and how rows walk it.
    """

    name: str
    """The strategy."""
    bits = 8
    """Those of a rank."""

    def __init__(self, f: Block, node: Node) -> None:
        assert isinstance(node.op, TreeEnsemble)
        assert isinstance(f.schedule, GpuTiles)
        self.f, self.node, self.op, self.schedule = f, node, node.op, f.schedule
        self.width = self.op.values.shape[1]
        self.dtype = dtype_name(self.op.values.dtype)
        self.packed = f.once(_packing(type(self), f.schedule.plane_rows), self.op)
        self.count = f.schedule.rows_of_thread
        self.rows = range(self.count)
        self.start = len(self.packed.planes.first) * words_of_plane(f.schedule, self.bits) * f.schedule.words * WORD
        """The byte of shared memory at which the tile begins."""
        self.ranks = f.schedule.view("uint8")
        self.own = T.Bind(f.schedule.word * WORD)
        self.at = T.alloc_buffer((self.count,), "uint32", scope="local")
        """For each row of the thread, where it is."""
        self.columns = columns_of_pass(self.op, f.schedule.threads)
        """The values of a leaf that a pass adds."""
        self.sums = T.alloc_buffer((self.count * self.columns,), DTYPES[self.dtype], scope="local")

    # --- what a form of trees says

    @classmethod
    def planes(cls, op: TreeEnsemble) -> int:
        """The planes of bytes that the ranks of a row take."""
        return op.once(ranked_trees).planes

    @classmethod
    def threads(cls, op: TreeEnsemble) -> int:
        """The threads of a block for an ensemble; 0 if its ranks need too much memory."""
        return threads_for(cls.planes(op))

    @classmethod
    def walks(cls, op: TreeEnsemble) -> int:
        """How often a row walks each tree in blocks for many rows."""
        return 1 if op.values.shape[1] == 1 else passes_of(op, cls.threads(op))

    @classmethod
    @abstractmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        """Whether an ensemble stays within the limits of this form."""

    @classmethod
    @abstractmethod
    def tile_bytes(cls, op: TreeEnsemble) -> int:
        """The bytes of a tile. A multiple of 16."""

    @classmethod
    def pack(
        cls, op: TreeEnsemble, trees: Array, ranked: RankedTrees, planes: PackedPlanes, rows: int
    ) -> tuple[list[Array], list[int]]:
        """(the bytes of each tile, how many trees it has) for some trees, which add to the same output, in their order."""
        raise NotImplementedError

    @classmethod
    def pack_all(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTiles:
        """The ensemble as tiles, which `pack` makes."""
        tiles, counts, first = [], [], [0]
        for trees in by_output(op):
            parts, sizes = cls.pack(op, trees, ranked, planes, rows)
            tiles += parts
            counts += sizes
            first.append(len(tiles))
        size = cls.tile_bytes(op)
        words = aligned(max(len(tiles), 1) * size // 4, "i32").reshape(-1, size // 4)
        for row, tile in zip(words, tiles, strict=False):
            row.view(np.uint8)[: len(tile)] = tile
        return PackedTiles(planes, words, np.array(counts, np.int64), np.array(first, np.int64))

    @classmethod
    @abstractmethod
    def cycles(cls, op: TreeEnsemble) -> float:
        """The clocks of an SM in which a warp of rows walks all trees: the most that one of its parts is busy."""

    @abstractmethod
    def walk(self, tree: Expr) -> None:
        """Emit the walk of a tree of the tile, for four rows: `at` says in the end which leaves they have reached."""

    @abstractmethod
    def value(self, tree: Expr, row: int, column: Expr | int) -> Expr:
        """A value of the leaf that a row has reached."""

    # --- the code of all forms

    def emit(self) -> None:
        """Emit the sums of all rows of the block."""
        f, node, packed = self.f, self.node, self.packed
        counts, first = f.own(packed.counts, "i64"), f.own(packed.first, "i64")
        base = f.own(self.op.base, self.dtype)
        self.schedule.barrier()  # the planes lie where other threads may still read the tile of an ensemble before
        if len(packed.planes.first):
            fill_planes(f, self.schedule, node.inputs[0], packed.planes, self.bits)
        if isinstance(self.schedule, GpuFewRows):
            self.schedule.barrier()  # other warps read the planes
        with self._passes() as (output, group):
            with self._columns() as column:
                for row in self.rows:
                    T.buffer_store(self.sums, f.constant(base, self.dtype, output + column), [self._place(row, column)])
            with T.serial(f.constant(first, "i64", group), f.constant(first, "i64", group + 1)) as tile:
                self.enter(tile)
                count = T.Bind(tirx.Cast("int32", f.constant(counts, "i64", tile)))
                if isinstance(self.schedule, GpuFewRows):
                    self._add_shared(self.schedule, count, output)
                else:
                    self._add(count, output)
            if isinstance(self.schedule, GpuFewRows):
                self._share_sums(self.schedule)
            with self._columns() as column:
                for row in self.rows:
                    f.store(node, output + column, Row(tirx.const(row, "int64")), self.sums[self._place(row, column)])

    @contextmanager
    def _passes(self) -> Iterator[tuple[Expr, Expr]]:
        """Loop over passes. Yields the first output that a pass adds, and the group of trees that add to it. The last pass over leaves of
        several values adds some again, so that all passes add as many.

        nvcc does not know how many passes there are, so it does not unroll the loop. If it did, the sums of all passes would stay in
        registers while rows walk.
        """
        zero = tirx.const(0, "int64")
        passes = passes_of(self.op, self.schedule.threads)
        count = self.f.own(np.array([passes]), "i64")
        with T.serial(zero, tirx.const(1, "int64") if passes == 1 else self.f.constant(count, "i64", zero)) as number:
            if self.width == 1:
                yield number, number
            else:
                yield T.Bind(tirx.Min(number * self.columns, tirx.const(self.width - self.columns, "int64"))), zero

    def _add(self, count: Expr, output: Expr) -> None:
        """Walk the trees of a tile one after the other, and add their values. Threads without rows do nothing."""
        some = tirx.LT(tirx.const(0, "int64"), self.f.rows)
        with T.serial(tirx.const(0, "int32"), T.Bind(count * tirx.Cast("int32", some))) as tree:
            self.walk(tree)
            with self._columns() as column:
                for row in self.rows:
                    place = self._place(row, column)
                    T.buffer_store(
                        self.sums, tirx.Add(self.sums[place], self.value(tree, row, self._column(output, column))), [place]
                    )

    def _add_shared(self, schedule: GpuFewRows, count: Expr, output: Expr) -> None:
        """Walk the trees of a tile, each warp another one. The values go through shared memory to the first warp, which adds them in the
        order of the trees. It does so while the others walk the next trees, so values have two places that take turns."""
        reached = schedule.view(DTYPES[self.dtype])
        start = (self.start + self.packed.tiles.shape[1] * WORD) // self.op.values.itemsize
        lane, warps = schedule.word, tirx.const(FEW_WARPS, "int32")
        size = self.columns * LANES  # values of the rows in a tree

        def place(turn: Expr, tree: Expr, column: Expr) -> Expr:
            own = tirx.truncmod(turn, tirx.const(2, "int32")) * FEW_WARPS + tree
            return own * size + tirx.Cast("int32", column) * LANES + lane + start

        with T.serial(tirx.const(0, "int32"), tirx.truncdiv(count + (FEW_WARPS - 1), warps)) as turn:
            tree = T.Bind(turn * warps + schedule.warp)
            with T.If(tirx.LT(tree, count)), T.Then():
                self.walk(tree)
                with self._columns() as column:
                    value = self.value(tree, 0, self._column(output, column))
                    T.buffer_store(reached, value, [place(turn, schedule.warp, column)])
            schedule.barrier()
            walked = T.serial(tirx.const(0, "int32"), tirx.Min(warps, count - turn * warps))
            with schedule.writes(), walked as other, self._columns() as column:
                at = self._place(0, column)
                T.buffer_store(self.sums, tirx.Add(self.sums[at], reached[place(turn, other, column)]), [at])

    def _share_sums(self, schedule: GpuFewRows) -> None:
        """Give the sums of the first warp to the others, which go on with them."""
        reached = schedule.view(DTYPES[self.dtype])
        start = (self.start + self.packed.tiles.shape[1] * WORD) // self.op.values.itemsize

        def place(column: Expr) -> Expr:
            return tirx.Cast("int32", column) * LANES + schedule.word + start

        schedule.barrier()
        with schedule.writes(), self._columns() as column:
            T.buffer_store(reached, self.sums[self._place(0, column)], [place(column)])
        schedule.barrier()
        with self._columns() as column:
            T.buffer_store(self.sums, reached[place(column)], [self._place(0, column)])
        schedule.barrier()

    def byte(self, plane: Expr, row: int) -> Expr:
        """The byte of a row of this thread in the plane whose bytes begin at `plane`, as uint32."""
        if shift := (self.schedule.plane_rows // (self.schedule.words * WORD)).bit_length() - 1:
            plane = tirx.shift_right(plane, tirx.const(shift, "uint32"))
        return tirx.Cast("uint32", self.ranks[tirx.bitwise_or(tirx.Cast("int32", plane), self.own) + row])

    def enter(self, tile: Expr) -> None:
        """Copy a tile to shared memory, 16 bytes a thread and round."""
        self.schedule.barrier()
        tiles = self.packed.tiles
        size, threads, thread = tiles.shape[1] // 4, self.schedule.threads, self.schedule.thread
        memory, start = self.schedule.view("int32"), self.start // 4
        with T.serial(tirx.const(0, "int32"), tirx.const(-(-size // threads), "int32")) as turn:
            at = T.Bind(turn * threads + thread)
            with T.If(tirx.LT(at, tirx.const(size, "int32"))), T.Then():
                words = self.f.constants(tiles, "i32", (tile * size + tirx.Cast("int64", at)) * 4, 4)
                T.buffer_store(memory, words, [tirx.Ramp(at * 4 + start, tirx.const(1, "int32"), 4)])
        self.schedule.barrier()

    def _columns(self) -> Any:
        """Loop over the values that a pass adds. nvcc unrolls it, and keeps the sums in registers."""
        return T.unroll(tirx.const(0, "int64"), tirx.const(self.columns, "int64"))

    def _column(self, output: Expr, column: Expr) -> Expr:
        """The column of a leaf's values that is added to an output of a pass."""
        return column if self.width == 1 else output + column

    def _place(self, row: int, column: Expr) -> Expr:
        return column * self.count + row


@cache
def _packing(form: type[TiledTrees], rows: int) -> partial[PackedTiles]:
    """The function that packs ensembles in a form, always the same one (`FunctionBuilder.once` asks for that)."""
    return partial(_pack, form, rows)


def _pack(form: type[TiledTrees], rows: int, op: TreeEnsemble) -> PackedTiles:
    ranked = op.once(ranked_trees)
    return form.pack_all(op, ranked, pack_planes(ranked, dtype_name(op.threshold.dtype), form.bits), rows)


def passes_of(op: TreeEnsemble, threads: int) -> int:
    """The passes of blocks of so many threads: one for each output, or for some values of the leaves."""
    width = op.values.shape[1]
    return op.n_outputs if width == 1 else -(-width // IN_REGISTERS[threads])


def columns_of_pass(op: TreeEnsemble, threads: int) -> int:
    """The values of a leaf that a pass adds. Passes are as equal as can be."""
    width = op.values.shape[1]
    return 1 if width == 1 else -(-width // passes_of(op, threads))


def by_output(op: TreeEnsemble) -> list[Array]:
    """The trees of each output, in their order."""
    return [np.flatnonzero(op.target == output) for output in range(op.n_outputs if op.values.shape[1] == 1 else 1)]


def shared_bytes(op: TreeEnsemble, form: type[TiledTrees], threads: int) -> int:
    """The bytes of shared memory that an ensemble takes."""
    return form.planes(op) * threads * WORD + form.tile_bytes(op)


def shared_bytes_of_few(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """The bytes of shared memory that it takes of a block of `GpuFewRows`, with two values for each row, warp and column of a pass."""
    values = 2 * FEW_WARPS * LANES * op.values.itemsize * columns_of_pass(op, FEW_WARPS * LANES)
    return form.planes(op) * LANES * WORD + form.tile_bytes(op) + values


def planes_cycles(op: TreeEnsemble) -> float:
    """The clocks of an SM in which a warp of rows gets its planes."""
    return CYCLES_OF_LEVEL * sum(len(values).bit_length() + 1 for values in op.once(ranked_trees).thresholds)
