"""What tree kernels of a GPU have in common that let trees pass through shared memory, a tile of them at a time.

    all threads begin to copy the first tile, 16 bytes at a time             # after the planes, if thresholds pass through its place
    the planes of the block's rows are computed (planes.py), and stay in shared memory
    for output in outputs:                                                   # a few columns at a time, if leaves are vectors
        sums = base[output]                                                  # of each thread's rows, in registers
        for tile in the tiles of the output:
            each thread waits for what it copies; barrier
            all threads begin to copy the next tile, to the place of the one before this
            for tree in tile:
                sums += the value of the leaf that each row reaches
        y[output] = sums

A thread adds the leaves of its rows in the order of the trees, in the dtype of the values. So sums have the bits of the source's own loop,
and are the same on every run.

The trees lie in the card's memory one after the other, and a tile is some that follow each other. So the kernels for many and for few
rows read the same trees, in tiles of other sizes. tile_sizes.py says how large they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.schedule import (
    FEW_WARPS,
    LANES,
    MOST_SHARED,
    ROWS_OF_WORD,
    WALKERS,
    GpuFewRows,
    GpuTiles,
    staged_stride,
)
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.trees.gpu.copies import begin_copy, wait_for_copies
from hbc.compiler.tvm.trees.gpu.memory import LINE, different
from hbc.compiler.tvm.trees.gpu.planes import (
    FIRST_LEVELS,
    LEVELS_OF_FEW_LINES,
    PackedPlanes,
    Staging,
    fill_planes,
    levels_of,
    pack_planes,
    pairs_of,
    words_of_plane,
)
from hbc.compiler.tvm.trees.gpu.tile_sizes import (
    PIECE,
    PLANE_BYTES,
    STAGED_BYTES,
    THRESHOLD_BYTES,
    Tiles,
    tiles_for_few,
    tiles_for_many,
)
from hbc.compiler.tvm.trees.gpu.work import PARTS, work
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.ir.graph import Node
from hbc.ir.types import Array, dtype_name
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees

THREADS = (512, 256, 128)
"""Threads of a block, by the planes of its rows. Twice as many planes leave room for half as many rows."""
WORD = 4
"""The bytes of a word of shared memory: those of a thread's rows in a plane."""
IN_REGISTERS = {512: 4, 256: 8, 128: 8}
"""The most values of a leaf that are added in one pass over the trees, by the threads of a block. Their sums stay in registers: four rows
of four float64 take 32 of the 64 that a thread has in blocks of 512, of 128 in others."""

WORK_OF_COLUMN = {4: work(18.0, 10.0, 5.0, 2.4), 8: work(12.3, 6.3, 4.5, 1.1)}
"""A column with its first levels of thresholds, by the rows of a thread."""
WORK_OF_PLANE, WORK_OF_LEVEL = work(10.2, 6.5, 1.7, 1.1), work(5.7, 2.3, 2.2, 1.25)
"""A level of the search among a column's thresholds, below the first ones. A wavefront here is a line of L1 that has thresholds."""
WORK_OF_STAGED, READS_OF_STAGED = work(2.0, 2.1, -0.8, 0.0), 3.4
"""What such a level has more if its thresholds are in shared memory; and the wavefronts of a warp that reads one of the levels far down."""
LINES_OF_READ = 32.0
"""Lines of L1 that a warp reads of X, for one column or for 16 bytes of each row (planes.py)."""


def threads_for(planes: int) -> int:
    """The threads of a block that has room for so many planes of bytes; 0 if none has."""
    return next((threads for threads in THREADS if planes * threads * WORD <= PLANE_BYTES), 0)


@record
class PackedTrees:
    """An ensemble in the card's memory.

    planes: of its rows. many, few: the tiles of the two kernels. words i32[W]: the trees, output by output, each at a multiple of a piece.
    """

    planes: PackedPlanes
    many: Tiles
    few: Tiles
    words: Array


class Bounds(NamedTuple):
    """A tile, as int32 of the code: its first piece, how many it has, its first tree, how many it has."""

    first_piece: Expr
    pieces: Expr
    first_tree: Expr
    trees: Expr


class TiledTrees(ABC):
    """Emits an ensemble for rows whose planes lie in shared memory.

    A subclass is one form of trees: what a tile of them holds, and how rows walk it.
    """

    name: str
    """The strategy."""
    bits = 8
    """Those of a rank."""
    mark = 0
    """1 if the lowest one marks NaN that go to both sides (planes.py)."""

    stages = False
    """Whether thresholds pass through shared memory, where a column has many (`staged_levels`)."""

    def __init__(self, f: Block, node: Node) -> None:
        assert isinstance(node.op, TreeEnsemble)
        assert isinstance(f.schedule, GpuTiles)
        self.f, self.node, self.op, self.schedule = f, node, node.op, f.schedule
        self.width = self.op.values.shape[1]
        self.dtype = dtype_name(self.op.values.dtype)
        self.packed = f.once(_packing(type(self), f.schedule.plane_rows), self.op)
        self.tiles = self.packed.few if isinstance(f.schedule, GpuFewRows) else self.packed.many
        self.tree_numbers, self.pieces = f.own(self.tiles.trees, "i32"), f.own(self.tiles.pieces, "i32")
        self.count = f.schedule.rows_of_thread
        self.rows = range(self.count)
        self.start = len(self.packed.planes.first) * words_of_plane(f.schedule, self.bits) * f.schedule.words * WORD
        """The byte of shared memory at which the tiles begin."""
        self.ranks = f.schedule.view("uint8")
        self.own = T.Bind(f.schedule.word * WORD)
        self.at = T.alloc_buffer((self.count,), "uint32", scope="local")
        """For each row of the thread, where it is."""
        self.room = self.room_for(f.schedule.threads * max(f.schedule.rows_of_thread // WORD, 1))
        self.columns = columns_of_pass(self.op, self.room)
        """The values of a leaf that a pass adds."""

    # --- what a form of trees says

    @classmethod
    def ranked(cls, op: TreeEnsemble) -> RankedTrees:
        """The ensemble in ranks."""
        return op.once(ranked_trees)

    @classmethod
    def planes(cls, op: TreeEnsemble) -> int:
        """The planes of bytes that the ranks of a row take."""
        return cls.ranked(op).planes

    @classmethod
    def threads(cls, op: TreeEnsemble) -> int:
        """The threads of a block for an ensemble, if each has four rows; 0 if its ranks need too much memory."""
        return threads_for(cls.planes(op))

    @classmethod
    def rows_of_thread(cls, op: TreeEnsemble) -> int:
        """The rows of a thread in blocks for many rows of an ensemble alone."""
        return ROWS_OF_WORD

    @classmethod
    def walks(cls, op: TreeEnsemble) -> int:
        """How often a row walks each tree in blocks for many rows."""
        return 1 if op.values.shape[1] == 1 else passes_of(op, cls.room_for(cls.threads(op)))

    @classmethod
    def room_for(cls, threads: int) -> int:
        """The key of IN_REGISTERS for blocks of so many threads, if each has four rows."""
        return threads

    @classmethod
    @abstractmethod
    def fits(cls, op: TreeEnsemble) -> bool:
        """Whether an ensemble stays within the limits of this form."""

    head_bytes = 0
    """The bytes of a tree in shared memory beside those of `tree_bytes`, a multiple of a piece."""

    @classmethod
    def tree_bytes(cls, op: TreeEnsemble) -> Array:
        """i64[T]: the bytes of each tree, multiples of a piece."""
        raise NotImplementedError

    @classmethod
    def tiles_of(cls, op: TreeEnsemble) -> tuple[Tiles, Tiles]:
        """(the tiles of blocks for many rows, those of blocks for few rows)."""
        sizes, outputs = cls.tree_bytes(op), by_output(op)
        many = MOST_SHARED - cls.planes(op) * cls.threads(op) * WORD
        few = MOST_SHARED - cls.planes(op) * LANES * WORD - values_of_few(op) - rows_of_few(op)
        return tiles_for_many(sizes, cls.head_bytes, outputs, many), tiles_for_few(sizes, cls.head_bytes, outputs, few)

    @classmethod
    @abstractmethod
    def pack(cls, op: TreeEnsemble, ranked: RankedTrees, planes: PackedPlanes, rows: int) -> PackedTrees:
        """The ensemble as tiles."""

    @classmethod
    @abstractmethod
    def work(cls, op: TreeEnsemble) -> Array:
        """The work of a warp of rows (work.py) that walks all trees, with what that needs beside: copies of tiles, sums."""

    @classmethod
    def from_l2(cls, op: TreeEnsemble) -> float:
        """The clocks of an SM in which it waits for what L2 sends."""
        return 0.0

    @abstractmethod
    def walk(self, tree: Expr) -> None:
        """Emit the walk of a tree of the tile, for the rows of a thread: `at` says in the end which leaves they have reached."""

    @abstractmethod
    def value(self, tree: Expr, row: int, column: Expr | int) -> Expr:
        """A value of the leaf that a row has reached."""

    # --- the code of all forms

    def emit(self) -> None:
        """Emit the sums of all rows of the block."""
        f, node, packed = self.f, self.node, self.packed
        self.sums = T.alloc_buffer((self.count * self.columns,), DTYPES[self.dtype], scope="local")
        self.turn = T.alloc_buffer((1,), "int32", scope="local")
        """In blocks of few rows, 0 or 1 by turns: where the values lie of the trees that are walked now."""
        first = f.own(self.tiles.first, "i32")
        base = f.own(self.op.base, self.dtype)
        self.schedule.barrier()  # planes and tiles lie where other threads may still read those of an ensemble before
        levels = 0 if isinstance(self.schedule, GpuFewRows) else staged_levels(self.op, type(self))
        if levels:
            planes = f.once(_staged_planes(type(self)), self.op)
            staging = Staging(self.start, levels)
            fill_planes(f, self.schedule, node.inputs[0], planes, self.bits, self.mark, staging)
            self.schedule.barrier()  # tiles lie where other threads still read thresholds
            self._begin_first_tile()
        else:
            self._begin_first_tile()
            if len(packed.planes.first):
                fill_planes(f, self.schedule, node.inputs[0], packed.planes, self.bits, self.mark)
        if isinstance(self.schedule, GpuFewRows):
            T.buffer_store(self.turn, tirx.const(0, "int32"), [0])
            if self.tiles.early:
                wait_for_copies(self.schedule)
            else:
                self.schedule.barrier()  # other warps read the planes
        self.prepare()
        with self._passes() as (number, output, group):
            with self._columns() as column:
                for row in self.rows:
                    T.buffer_store(self.sums, f.constant(base, self.dtype, output + column), [self._place(row, column)])
            with T.serial(f.constant(first, "i32", group), f.constant(first, "i32", group + 1)) as tile:
                count = self.fetch(number, tile)
                if isinstance(self.schedule, GpuFewRows):
                    self._add_shared(self.schedule, count, output)
                else:
                    self._add(count, output)
            if isinstance(self.schedule, GpuFewRows):
                self._share_sums(self.schedule)
            with self._columns() as column:
                for row in self.rows:
                    f.store(node, output + column, Row(tirx.const(row, "int64")), self.sums[self._place(row, column)])

    def _begin_first_tile(self) -> None:
        """Begin to copy the first tile, if it is copied before the threads wait for it."""
        if self.tiles.early:
            zero = tirx.const(0, "int32")
            self.copy(self.bounds(zero), zero)

    @contextmanager
    def _passes(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """Loop over passes. Yields the number of a pass, the first output that it adds, and the group of trees that add to it. The last
        pass over leaves of several values adds some again, so that all passes add as many.

        nvcc does not know how many passes there are, so it does not unroll the loop. If it did, the sums of all passes would stay in
        registers while rows walk.
        """
        zero = tirx.const(0, "int64")
        passes = passes_of(self.op, self.room)
        count = self.f.own(np.array([passes]), "i64")
        with T.serial(zero, tirx.const(1, "int64") if passes == 1 else self.f.constant(count, "i64", zero)) as number:
            if self.width == 1:
                yield number, number, number
            else:
                yield number, T.Bind(tirx.Min(number * self.columns, tirx.const(self.width - self.columns, "int64"))), zero

    def rounds(self, count: Expr) -> Expr:
        """How many trees of a tile of so many the thread walks. Threads without rows do nothing."""
        return count * tirx.Cast("int32", tirx.LT(tirx.const(0, "int64"), self.f.rows))

    def _add(self, count: Expr, output: Expr) -> None:
        """Walk the trees of a tile one after the other, and add their values."""
        with T.serial(tirx.const(0, "int32"), T.Bind(self.rounds(count))) as tree:
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
        start = (self.start + self.tiles.bytes) // self.op.values.itemsize
        lane, walkers = schedule.word, tirx.const(WALKERS, "int32")
        size = self.columns * LANES  # values of the rows in a tree

        def place(tree: Expr, column: Expr) -> Expr:
            return (self.turn[0] * WALKERS + tree) * size + tirx.Cast("int32", column) * LANES + lane + start

        with T.serial(tirx.const(0, "int32"), tirx.truncdiv(count + (WALKERS - 1), walkers)) as turn:
            own = T.Bind(schedule.group - 1)
            tree = T.Bind(turn * walkers + own)
            with T.If(tirx.And(tirx.LE(tirx.const(0, "int32"), own), tirx.LT(tree, count))), T.Then():
                self.walk(tree)
                with self._columns() as column:
                    T.buffer_store(reached, self.value(tree, 0, self._column(output, column)), [place(own, column)])
            if self.tiles.places == 2:
                wait_for_copies(self.schedule)
            else:
                schedule.barrier()
            walked = T.serial(tirx.const(0, "int32"), tirx.Min(walkers, count - turn * walkers))
            with schedule.writes(), walked as other, self._columns() as column:
                at = self._place(0, column)
                T.buffer_store(self.sums, tirx.Add(self.sums[at], reached[place(other, column)]), [at])
            T.buffer_store(self.turn, 1 - self.turn[0], [0])

    def _share_sums(self, schedule: GpuFewRows) -> None:
        """Give the sums of the first warp to the others, which go on with them."""
        reached = schedule.view(DTYPES[self.dtype])
        start = (self.start + self.tiles.bytes) // self.op.values.itemsize

        def place(column: Expr) -> Expr:
            return tirx.Cast("int32", column) * LANES + schedule.word + start

        schedule.barrier()
        with schedule.writes(), self._columns() as column:
            T.buffer_store(reached, self.sums[self._place(0, column)], [place(column)])
        schedule.barrier()
        with self._columns() as column:
            T.buffer_store(self.sums, reached[place(column)], [self._place(0, column)])
        schedule.barrier()

    def rank(self, plane: Expr, row: int) -> Expr:
        """The rank of a row of this thread in the plane that begins at byte `plane`, as uint32."""
        words, bytes_ = self.schedule.words, self.bits // 8
        size = words_of_plane(self.schedule, self.bits) * words * WORD
        if shift := (self.schedule.plane_rows * bytes_ // size).bit_length() - 1:  # planes of few rows lie closer together
            plane = tirx.shift_right(plane, tirx.const(shift, "uint32"))
        return self.rank_at(tirx.bitwise_or(tirx.Cast("int32", plane), self.own), row)

    def rank_at(self, own: Expr, row: int) -> Expr:
        """The same. own: the byte of shared memory of the plane's first word of this thread, as int32."""
        words, bytes_ = self.schedule.words, self.bits // 8
        word, place = divmod(row, WORD // bytes_)
        at = word * words * WORD // bytes_ + place
        # From a pointer, the address of 16 bits is one instruction. An index would be halved and doubled again.
        rank = self.ranks[own + at] if self.bits == 8 else self.schedule.view("uint16", own)[at]
        return tirx.Cast("uint32", rank)

    def fetch(self, number: Expr, tile: Expr) -> Expr:
        """Emit what gets a tile to shared memory, and calls `enter`. Returns how many trees it has. number: of the pass.

        With two places, the tile was being copied while the threads walked the one before it. When all of them have done so, they begin to
        copy the next one. With one place, all wait for the copy. An only tile is copied once. Blocks of few rows have waited for the tile
        at the end of the walks before it.
        """
        zero, one, tiles = tirx.const(0, "int32"), tirx.const(1, "int32"), tirx.const(self.tiles.count, "int32")
        here, few = self.bounds(tile), isinstance(self.schedule, GpuFewRows)
        if not self.tiles.places:
            self.enter(here, zero)
            return here.trees
        if self.tiles.places == 1:
            if not self.tiles.early:
                self.schedule.barrier()
                self.copy(here, zero)
            if not (self.tiles.early and few):
                wait_for_copies(self.schedule)
            self.enter(here, zero)
            return here.trees
        # The passes over leaves of several values read all tiles again. Otherwise tiles have one numbering over all passes.
        turn = tile if self.width == 1 else T.Bind(tirx.Cast("int32", number) * tiles + tile)
        last = self.tiles.count * (1 if self.width == 1 else passes_of(self.op, self.room)) - 1
        # Threads read where the next one lies while they wait for others. Behind the last one there is nothing to copy.
        first, pieces, tree, trees = self.bounds(T.Bind(tirx.Select(tirx.LT(tile + 1, tiles), tile + 1, zero)))
        more = tirx.LT(turn, tirx.const(last, "int32"))
        following = Bounds(
            first, *(T.Bind(each) for each in (tirx.Select(more, pieces, zero), tree, tirx.Select(more, trees, zero)))
        )
        place = T.Bind(tirx.bitwise_and(turn, one))
        if not few:
            wait_for_copies(self.schedule)
        self.copy(following, one - place)
        self.enter(here, place)
        return here.trees

    def bounds(self, tile: Expr) -> Bounds:
        """What the code reads of a tile before it gets there."""
        pieces, trees = (
            [T.Bind(self.f.constant(starts, "i32", tirx.Cast("int64", tile) + i)) for i in range(2)]
            for starts in (self.pieces, self.tree_numbers)
        )
        return Bounds(pieces[0], T.Bind(pieces[1] - pieces[0]), trees[0], T.Bind(trees[1] - trees[0]))

    def copy(self, tile: Bounds, place: Expr) -> None:
        """Emit what begins to copy a tile to a place in shared memory, 0 or 1."""
        start = T.Bind(place * self.tiles.size + self.start)
        begin_copy(self.f, self.schedule, self.packed.words, "i32", tile.first_piece, tile.pieces, start)

    def prepare(self) -> None:  # noqa: B027
        """Emit what the walks of all trees have in common, once the planes are there."""

    @abstractmethod
    def enter(self, tile: Bounds, place: Expr) -> None:
        """Emit what the walks of the trees of a tile have in common. place: 0 or 1, where it is in shared memory."""

    def begin(self, place: Expr, size: int) -> Expr:
        """Where a tile begins in shared memory, in elements of `size` bytes."""
        return T.Bind(place * (self.tiles.size // size) + self.start // size)

    def _columns(self) -> Any:
        """Loop over the values that a pass adds. nvcc unrolls it, and keeps the sums in registers."""
        return T.unroll(tirx.const(0, "int64"), tirx.const(self.columns, "int64"))

    def _column(self, output: Expr, column: Expr) -> Expr:
        """The column of a leaf's values that is added to an output of a pass."""
        return column if self.width in (1, self.columns) else output + column

    def _place(self, row: int, column: Expr) -> Expr:
        return column * self.count + row


@cache
def _packing(form: type[TiledTrees], rows: int) -> partial[PackedTrees]:
    """The function that packs ensembles in a form, always the same one (`FunctionBuilder.once` asks for that)."""
    return partial(_pack, form, rows)


def _pack(form: type[TiledTrees], rows: int, op: TreeEnsemble) -> PackedTrees:
    ranked = form.ranked(op)
    return form.pack(op, ranked, pack_planes(ranked, dtype_name(op.threshold.dtype), form.bits, form.mark), rows)


def staged_levels(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """How many levels of a column's thresholds pass through shared memory before those of the next one, in blocks for many rows; 0 if none
    do.

    They lie where tiles lie later. It pays for columns of so many levels that a warp reads many lines of L1 for one.
    """
    levels, size = levels_of(form.ranked(op)), op.threshold.itemsize
    most = int(levels.max(initial=0))
    staged = min((THRESHOLD_BYTES // (2 * size)).bit_length() - 1, most)
    upper = levels - 2 * pairs_of(levels, dtype_name(op.threshold.dtype), staged - 1)
    return staged if form.stages and most > LEVELS_OF_FEW_LINES and upper.max() <= staged else 0


@cache
def _staged_planes(form: type[TiledTrees]) -> partial[PackedPlanes]:
    """The function that packs the planes for `staged_levels`, always the same one."""
    return partial(pack_staged, form)


def pack_staged(form: type[TiledTrees], op: TreeEnsemble) -> PackedPlanes:
    """The planes whose thresholds pass through shared memory."""
    dtype = dtype_name(op.threshold.dtype)
    return pack_planes(form.ranked(op), dtype, form.bits, form.mark, staged_levels(op, form) - 1)


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
    """The bytes of shared memory that an ensemble takes. TVM asks for some."""
    levels = staged_levels(op, form)
    thresholds = 2 * op.threshold.itemsize << levels if levels else 0
    return max(form.planes(op) * threads * WORD + max(form.tiles_of(op)[0].bytes, thresholds), PIECE)


def shared_bytes_of_few(op: TreeEnsemble, form: type[TiledTrees]) -> int:
    """The bytes of shared memory that it takes of a block of `GpuFewRows`."""
    return form.planes(op) * LANES * WORD + form.tiles_of(op)[1].bytes + values_of_few(op)


def values_of_few(op: TreeEnsemble) -> int:
    """The bytes of two values for each row, warp and column of a pass, in a block of `GpuFewRows`."""
    return 2 * WALKERS * LANES * op.values.itemsize * columns_of_pass(op, FEW_WARPS * LANES)


def rows_of_few(op: TreeEnsemble) -> int:
    """The bytes of the rows of such a block, as wide as the trees' last feature asks for; 0 if they are too long for shared memory."""
    size = LANES * staged_stride(int(op.feature.max(initial=0)) + 1) * op.threshold.itemsize
    return size if size <= STAGED_BYTES else 0


def rank_work(op: TreeEnsemble, form: type[TiledTrees]) -> Array:
    """The work of a warp of rows that gets its planes (work.py).

    X is read 16 bytes at once, as planes.py does it if the rows have a multiple of them and half of the features are compared.
    """
    ranked = form.ranked(op)
    features = np.unique(ranked.column_feature)
    pieces = np.unique(features * op.threshold.itemsize // PIECE)
    reads = len(pieces) if 2 * len(features) * op.threshold.itemsize >= len(pieces) * PIECE else len(ranked.column_feature)
    levels = levels_of(ranked)
    counted = (
        WORK_OF_COLUMN[form.rows_of_thread(op)] * len(ranked.thresholds)
        + WORK_OF_PLANE * form.planes(op)
        + WORK_OF_LEVEL * int((levels - FIRST_LEVELS).sum())
    )
    staged, size = staged_levels(op, form), op.threshold.itemsize
    pairs = pairs_of(levels, dtype_name(op.threshold.dtype), staged - 1 if staged else LEVELS_OF_FEW_LINES)
    lines = sum(_reads_of_far(*column, size, staged > 0) for column in zip(levels.tolist(), pairs.tolist(), strict=True))
    if staged:
        upper = levels - 2 * pairs
        counted = counted + WORK_OF_STAGED * int((upper - FIRST_LEVELS).sum())
        lines += float((size << upper).sum()) / LINE * LANES / (form.threads(op) * WORD)  # copies of a block
    return counted + work(0.0, 0.0, 0.0, LINES_OF_READ * reads + lines)


def _reads_of_far(levels: int, pairs: int, size: int, staged: bool) -> float:
    """The lines of L1 that a warp reads of the levels of a column far down, beyond those of WORK_OF_LEVEL. size: of a threshold. staged:
    the levels that are not in pairs are wavefronts of shared memory."""
    upper = levels - 2 * pairs
    read = [] if staged else [size << level for level in range(LEVELS_OF_FEW_LINES, upper)]
    read += [PIECE << level for level in range(upper, levels, 2)]
    near = READS_OF_STAGED * max(upper - LEVELS_OF_FEW_LINES, 0) if staged else 0.0
    counted = WORK_OF_LEVEL[PARTS.index("wavefronts")] * max(levels - LEVELS_OF_FEW_LINES, 0)
    return float(different(np.array(read) / LINE, LANES).sum()) + near - counted
