"""Ranks of a block's rows in shared memory, one byte for each row and plane (hbc/ops/tree_ranks.py says what a plane is).

The code computes, in each thread for its four or eight rows:

    for column in ranked columns:
        at = 1
        for each level of the column's thresholds:                           # a binary search, for these rows at once
            at = 2 * at + (thresholds[at] < x[row, feature])                 # thresholds lie in level order
        # the thresholds of the first two levels are read once for all of them
        # a thread with one row goes down three levels at once: it waits for memory a third as often
        for each pair of levels far down, of float32:
            at = 4 * at + the sum of (thresholds[4 * at + i] < x[row, feature])    # i = 0, 1, 2, in one read of 16 bytes
        # columns of many thresholds: the threads copy those of the next column to shared memory meanwhile, but for the pairs
        for plane of the column:
            byte = nan_byte[plane] if isnan(x) else min(max(at - 2^levels - first[plane], 0), 255)
        bytes[plane][thread] = the bytes of four rows, one word (of eight rows, two words, each in a part of the plane)

A thread reads its own words only, so no barrier is needed. The words of a plane lie thread after thread: whatever planes the threads of a
warp read, each reads from the bank of its own number, and a read is one wavefront.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.memory import aligned
from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.nest.schedule import GpuFewRows, GpuTiles
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import is_nan
from hbc.compiler.tvm.trees.gpu.copies import begin_copy, wait_for_copies
from hbc.compiler.tvm.trees.gpu.tile_sizes import PIECE
from hbc.ir.graph import Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.ops.tree_ranks import RankedTrees

PAIRED = 4
"""The places of the thresholds of a pair: three, and one that is free."""
LEVELS_AT_ONCE = 3
"""The levels of thresholds that a thread with one row reads at once."""
FIRST_LEVELS = 2
"""The levels of thresholds that a thread with several rows reads once for all of them. Every column has so many at least."""
LEVELS_OF_FEW_LINES = 8
"""The first levels of a column, of which a warp reads few lines of L1. Further down nearly each row needs a line of its own, for a level or
for a pair of them."""
LINE_OF_THRESHOLDS = 32
"""A multiple of so many thresholds is where those of a column begin, at least if they are as many: so a level lies in as few lines of L1 as
can be."""


@record
class PackedPlanes:
    """How rows become bytes. All arrays of integers are i64.

    feature [C]: the feature of each ranked column. levels [C]: the levels of its thresholds. pairs [C]: how many pairs of these are read at
    once (`pairs_of`). single: of the same function. start [C]: where the thresholds begin, at a place 0 that is none. thresholds: of all
    columns, each in level order from its place 1 on, and filled up with inf to 2^levels - 1. Those of a pair lie together: of the place p
    in the upper level at 4p, in ascending order.
    planes [C + 1]: column c has the planes planes[c]:planes[c + 1]. first [P]: the rank that is byte 0 of a plane.
    nan_byte [P]: the byte of NaN.
    number [P]: for each plane of `RankedTrees`, its number here, where the planes of a column lie together.
    """

    feature: Array
    levels: Array
    pairs: Array
    single: int
    start: Array
    thresholds: Array
    planes: Array
    first: Array
    nan_byte: Array
    number: Array


class Staging(NamedTuple):
    """Where thresholds pass through shared memory: those of a column while those of the next one arrive.

    start: the byte of shared memory. levels: of a column, at most. There is room for so many of two columns."""

    start: int
    levels: int


def pack_planes(
    ranked: RankedTrees, dtype: str, bits: int = 8, mark: int = 0, single: int = LEVELS_OF_FEW_LINES
) -> PackedPlanes:
    """Pack the planes. dtype: of the thresholds. bits: of a rank; 16: a plane has all ranks of a column. mark: 1 if the lowest of them
    marks NaN that go to both sides, so that no plane has a copy for these. single: see `pairs_of`."""
    below = ranked.below[:0] if mark else ranked.below
    if bits == 16:
        whole, of = np.arange(len(ranked.thresholds)), np.zeros(len(ranked.thresholds), np.int64)
    else:
        whole, of = ranked.plane_column, ranked.plane_first
    columns = np.concatenate([whole, ranked.plane_column[below]]).astype(np.int64)
    order = np.argsort(columns, kind="stable")
    number = np.empty(len(columns), np.int64)
    number[order] = np.arange(len(columns))
    first = np.concatenate([of, ranked.plane_first[below]]).astype(np.int64)
    nan_byte = np.clip(ranked.missing_rank[columns] - first, 0, (1 << bits - mark) - 1) << mark
    nan_byte[ranked.below[: len(ranked.below) * mark]] |= mark
    nan_byte[len(whole) :] = 0
    levels, end, start = levels_of(ranked), 0, []
    pairs = pairs_of(levels, dtype, single)
    for size in (2 ** (levels + (pairs > 0))).tolist():
        multiple = min(size, LINE_OF_THRESHOLDS)
        start.append(-(-end // multiple) * multiple)
        end = start[-1] + size
    thresholds = aligned(end, dtype)
    thresholds[:] = np.inf
    for values, first_place, count, paired in zip(ranked.thresholds, start, levels.tolist(), pairs.tolist(), strict=True):
        own, upper = thresholds[first_place:], count - 2 * paired
        ordered = np.append(np.inf, _level_order(values, count))
        own[: 1 << upper] = ordered[: 1 << upper]
        for level in range(upper, count, 2):
            size = 1 << level
            below = ordered[2 * size : 4 * size].reshape(size, 2)
            group = own[4 * size : 8 * size].reshape(size, 4)
            group[:, 0], group[:, 1], group[:, 2] = below[:, 0], ordered[size : 2 * size], below[:, 1]
    return PackedPlanes(
        feature=ranked.column_feature.astype(np.int64),
        levels=levels,
        pairs=pairs,
        single=single,
        start=np.array(start, np.int64),
        thresholds=thresholds,
        planes=np.searchsorted(columns[order], np.arange(len(levels) + 1)),
        first=first[order],
        nan_byte=nan_byte[order],
        number=number,
    )


def levels_of(ranked: RankedTrees) -> Array:
    """i64[C]: the levels of the thresholds of each column."""
    return np.array([max(len(values).bit_length(), FIRST_LEVELS) for values in ranked.thresholds], np.int64)


def pairs_of(levels: Array, dtype: str, single: int = LEVELS_OF_FEW_LINES) -> Array:
    """i64[C]: how many pairs of levels at the end of each column are read at once. dtype: of the thresholds. single: the levels that are
    read one after the other, and one more where the number of the others is odd."""
    return np.maximum(levels - single, 0) // 2 * (NUMPY_DTYPES[dtype].itemsize * PAIRED == PIECE)


def _level_order(values: Array, levels: int) -> Array:
    """Ascending values in the order of a perfect binary tree's levels, filled up with inf."""
    full = np.append(values, np.full(2**levels - 1 - len(values), np.inf, values.dtype))
    return np.concatenate(
        [full[:0], *(full[2 ** (levels - level - 1) - 1 :: 2 ** (levels - level)] for level in range(levels))]
    )


def words_of_plane(schedule: GpuTiles, bits: int) -> int:
    """The words in which a thread has the ranks of its rows in a plane."""
    return -(-schedule.rows_of_thread * bits // 32)


def fill_planes(
    f: Block,
    schedule: GpuTiles,
    x: Node,
    packed: PackedPlanes,
    bits: int = 8,
    mark: int = 0,
    staging: Staging | None = None,
) -> None:
    """Emit the ranks of the thread's rows, of so many bits. They lie at the beginning of the block's shared memory. mark: see
    `pack_planes`. staging: None: all thresholds are read from the card's memory."""
    at_once = columns_at_once(schedule, x, packed)
    packed, each = _in_groups(packed, at_once)
    ranks = _Ranks(f, schedule, packed, x.type.dtype, bits, mark, staging)
    with _columns(f, schedule, x, packed, at_once, each) as (column, read):
        ranks.fill(column, read)


class _Ranks:
    """Emits the search for the ranks of the thread's rows in a column, and the words of its planes."""

    def __init__(
        self, f: Block, schedule: GpuTiles, packed: PackedPlanes, dtype: str, bits: int, mark: int, staging: Staging | None
    ) -> None:
        """dtype: of x. The others: see `fill_planes`."""
        self.f, self.schedule, self.dtype, self.bits, self.mark, self.single = f, schedule, dtype, bits, mark, packed.single
        self.words = schedule.view("uint32")
        self.levels, self.start, self.planes, self.first, self.nan_byte = (
            f.own(array, "i32") for array in (packed.levels, packed.start, packed.planes, packed.first, packed.nan_byte)
        )
        self.thresholds = f.own(packed.thresholds, dtype)
        self.rows = range(schedule.rows_of_thread)
        self.values = T.alloc_buffer((len(self.rows),), DTYPES[dtype], scope="local")
        self.at = T.alloc_buffer((len(self.rows),), "int32", scope="local")
        self.pair = T.alloc_buffer((PAIRED,), DTYPES[dtype], scope="local") if packed.pairs.any() else None
        self.zero, self.one = tirx.const(0, "int32"), tirx.const(1, "int32")
        self.stage = None if staging is None else _Stage(f, schedule, packed, self.thresholds, dtype, staging)
        self.sides: tuple[Array, Array] | None = None
        if len(self.rows) > 1:
            # A place is counted from the beginning of the memory: a child is at 2 * place + left or right. nvcc shall not see that these
            # two differ by one: it would add that after the choice.
            origins = packed.start if self.stage is None else self.stage.origins
            self.sides = f.own(-origins, "i32"), f.own(1 - origins, "i32")

    def fill(self, column: Expr, read: Callable[[Any, int], None]) -> None:
        """Rank the rows in a column. read: see `_columns`."""
        for row in self.rows:
            read(self.values, row)
            if self.sides is None:
                T.buffer_store(self.at, self.one, [row])
        if self.stage is not None:
            self.stage.next(column)
        depth, begin = self._of(self.levels, column), self._of(self.start, column)
        left = self.zero if self.sides is None else self._of(self.sides[0], column)
        right = self.one if self.sides is None else self._of(self.sides[1], column)
        planes = [self._of(self.planes, column + i) for i in range(2)]
        upper = depth
        if self.pair is not None:
            pairs = T.Bind(tirx.shift_right(tirx.Max(depth - self.single, self.zero), self.one))
            upper = T.Bind(depth - 2 * pairs)
        if self.sides is None:
            levels_at_once = tirx.const(LEVELS_AT_ONCE, "int32")
            self._descend_alone(begin, tirx.truncmod(upper, levels_at_once), 1)
            self._descend_alone(begin, tirx.truncdiv(upper, levels_at_once), LEVELS_AT_ONCE)
        else:
            self._descend(begin, upper, left, right)
        if self.pair is not None:
            self._descend_pairs(self.pair, begin, left, pairs)
        self._store(planes, T.Bind(tirx.shift_left(self.one, depth) - left))

    def _of(self, array: Array, position: Expr) -> Expr:
        """A number of a column or of a plane."""
        return T.Bind(self.f.constant(array, "i32", tirx.Cast("int64", position)))

    def _threshold(self, place: Expr) -> Expr:
        """The threshold at a place in the card's memory."""
        return T.Bind(self.f.constant(self.thresholds, self.dtype, place))

    def _descend_alone(self, begin: Expr, turns: Expr, together: int) -> None:
        """One row goes down so many levels in each turn. The thresholds below a place of the tree are sorted, so it suffices to count."""
        once = {"annotations": {"disable_unroll": True}} if together > 1 else {}
        with T.serial(self.zero, turns, **once):
            below = [T.Bind((self.at[0] << level) + i) for level in range(together) for i in range(1 << level)]
            # As a sum of 32 bits, the index is two instructions with its address. As one of 64 bits it is four.
            first = tirx.Cast("uint32", begin)
            compared = [self._threshold(tirx.Cast("int64", first + tirx.Cast("uint32", place))) for place in below]
            above = [tirx.Cast("int32", tirx.LT(threshold, self.values[0])) for threshold in compared]
            T.buffer_store(self.at, reduce(tirx.Add, above, self.at[0] << together), [0])

    def _descend(self, begin: Expr, levels: Expr, left: Expr, right: Expr) -> None:
        """Several rows go down the first levels, one after the other. The thresholds of FIRST_LEVELS are read once for all rows, and not of
        shared memory: nvcc would keep its address in another kind of register (copies.py)."""

        def go(row: int, place: Expr, threshold: Expr) -> None:
            """Go to a child of a place."""
            side = tirx.Select(tirx.LT(threshold, self.values[row]), right, left)
            T.buffer_store(self.at, place * 2 + side, [row])

        root, *below = (self._threshold(tirx.Cast("int64", begin) + place) for place in range(1, 1 << FIRST_LEVELS))
        places = [T.Bind(place - left) for place in (2, 3)]
        for row in self.rows:
            above = tirx.LT(root, self.values[row])
            go(row, tirx.Select(above, *places[::-1]), tirx.Select(above, *below[::-1]))
        with T.serial(self.zero, levels - FIRST_LEVELS):
            for row in self.rows:
                place = T.Bind(self.at[row])
                if self.stage is None:
                    go(row, place, self._threshold(tirx.Cast("int64", tirx.Cast("uint32", place))))
                else:
                    go(row, place, self.stage.at(place))

    def _descend_pairs(self, pair: Any, begin: Expr, left: Expr, turns: Expr) -> None:
        """All rows go down two levels in each turn, with one read for each row. pair: memory for what is read."""
        first_group = T.Bind(tirx.shift_right(begin, tirx.const(2, "int32")) + left)
        with T.serial(self.zero, turns, annotations={"disable_unroll": True}):
            for row in self.rows:
                place = tirx.Cast("int64", first_group + self.at[row]) * PAIRED
                thresholds = self.f.constants(self.thresholds, self.dtype, place, PAIRED)
                T.buffer_store(pair, thresholds, [tirx.Ramp(self.zero, self.one, PAIRED)])
                above = [tirx.Cast("int32", tirx.LT(pair[i], self.values[row])) for i in range(PAIRED - 1)]
                T.buffer_store(self.at, reduce(tirx.Add, above, self.at[row] * PAIRED + left * (PAIRED - 1)), [row])

    def _store(self, planes: list[Expr], lowest: Expr) -> None:
        """Store the words of the planes from the first to before the second. lowest: the place behind the levels whose rank is 0."""
        bits, mark, parts = self.bits, self.mark, words_of_plane(self.schedule, self.bits)
        # Unrolled, it has more instructions, since most columns have one plane. And nvcc keeps the address of shared memory in another kind
        # of register, so that a step of a walk takes an instruction more.
        with T.serial(*planes, annotations={"disable_unroll": True}) as plane:
            least, missing = T.Bind(self._of(self.first, plane) + lowest), self._of(self.nan_byte, plane)
            for part in range(parts):
                ranks = []
                for row in self.rows[part * 32 // bits : (part + 1) * 32 // bits]:
                    rank = tirx.Min(tirx.Max(self.at[row] - least, self.zero), tirx.const((1 << bits - mark) - 1, "int32"))
                    rank = tirx.Select(is_nan(self.values[row]), missing, rank << mark if mark else rank)
                    ranks.append(T.Bind(tirx.Cast("uint32", rank)))
                at_word = (plane * parts + part) * self.schedule.words + self.schedule.word
                T.buffer_store(self.words, _joined(ranks, bits), [at_word])


def _joined(ranks: Sequence[Expr], bits: int) -> Expr:
    """A word of some ranks of so many bits."""
    if len(ranks) == 1:
        return ranks[0]
    half = len(ranks) // 2
    both = [_joined(part, bits) for part in (ranks[:half], ranks[half:])]
    return bytes_of(0x5410 if half * bits == 16 else 0x0040, *both)


def bytes_of(which: int, word: Expr, other: Expr | None = None) -> Expr:
    """A word of four bytes of one or two others. which: a hexadecimal digit for each byte, the lowest last, 4 to 7 for those of `other` (0
    if it is None)."""
    other = tirx.const(0, "uint32") if other is None else other
    return tirx.call_pure_extern("uint32", "__byte_perm", word, other, tirx.const(which, "uint32"))


class _Stage:
    """Emits the copies of thresholds to shared memory, and the reads there. Columns take turns in two places."""

    def __init__(
        self, f: Block, schedule: GpuTiles, packed: PackedPlanes, thresholds: Array, dtype: str, staging: Staging
    ) -> None:
        """thresholds: those of the columns, as the code reads them."""
        self.f, self.schedule, self.thresholds, self.dtype = f, schedule, thresholds, dtype
        self.size, self.start = NUMPY_DTYPES[dtype].itemsize, staging.start
        self.room = self.size << staging.levels
        upper = packed.levels - 2 * packed.pairs
        assert upper.max(initial=0) <= staging.levels
        pieces = np.where(upper > 0, (self.size << upper) // PIECE, 0)
        self.pieces = f.own(np.append(pieces, 0), "i32")  # behind the last column there is none to copy
        self.first = f.own(np.append(packed.start, 0) * self.size // PIECE, "i32")
        self.memory = schedule.view(DTYPES[dtype])
        self.origins = (np.arange(len(upper)) % 2 * self.room + self.start) // self.size
        """i64[C]: where the thresholds of a column lie in this memory, in elements."""
        self._copy(tirx.const(0, "int64"))

    def next(self, column: Expr) -> None:
        """Wait for the thresholds of a column, and begin to copy those of the next one."""
        wait_for_copies(self.schedule)
        self._copy(column + 1)

    def at(self, place: Expr) -> Expr:
        """The threshold at a place in this memory."""
        return T.Bind(self.memory[place])

    def _place(self, column: Expr) -> Expr:
        """The byte of shared memory where the thresholds of a column begin."""
        return tirx.bitwise_and(tirx.Cast("int32", column), tirx.const(1, "int32")) * self.room + self.start

    def _copy(self, column: Expr) -> None:
        first, count = (T.Bind(self.f.constant(numbers, "i32", column)) for numbers in (self.first, self.pieces))
        begin_copy(self.f, self.schedule, self.thresholds, self.dtype, first, count, T.Bind(self._place(column)))


def columns_at_once(schedule: GpuTiles, x: Node, packed: PackedPlanes) -> int:
    """How many features of a row a thread reads at once.

    They have 16 bytes, where the rows of a call have a multiple of these, and at least half of the features are ranked: a warp reads as
    many lines of L1 as for one feature. In blocks of few rows they lie in shared memory.
    """
    count, features = PIECE // NUMPY_DTYPES[x.type.dtype].itemsize, np.unique(packed.feature)
    if isinstance(schedule, GpuFewRows) or not isinstance(x.op, Input) or x.type.columns % count or not len(features):
        return 1
    groups = features // count
    return count if 2 * len(features) >= count * int(groups[-1] - groups[0] + 1) else 1


def _in_groups(packed: PackedPlanes, at_once: int) -> tuple[PackedPlanes, int]:
    """(the columns, how many each feature has). All features of the groups of so many that have ranked ones have as many columns. Those
    that are added have no levels and no planes.

    Features are in ascending order. One has two columns where NaN go to both sides at 255 thresholds or more, as in large forests.
    """
    if at_once == 1:
        return packed, 1
    first, end = packed.feature[0] // at_once * at_once, (packed.feature[-1] // at_once + 1) * at_once
    own = packed.feature - first
    number = np.arange(len(own)) - np.searchsorted(own, own)  # of each column among those of its feature
    each = int(number.max()) + 1
    place = own * each + number
    levels, pairs, start = np.zeros((3, (end - first) * each), np.int64)
    levels[place], pairs[place], start[place] = packed.levels, packed.pairs, packed.start
    planes = packed.planes[np.searchsorted(place, np.arange(len(levels) + 1))]
    feature = np.repeat(np.arange(first, end), each)
    return replace(packed, feature=feature, levels=levels, pairs=pairs, start=start, planes=planes), each


@contextmanager
def _columns(
    f: Block, schedule: GpuTiles, x: Node, packed: PackedPlanes, at_once: int, each: int
) -> Iterator[tuple[Expr, Callable[[Any, int], None]]]:
    """Loop over the columns that this thread ranks. Yields the number of a column, and what emits the read of it for a row. each: how many
    columns a feature has, if several features are read at once."""
    dtype, rows = x.type.dtype, range(schedule.rows_of_thread)
    zero = tirx.const(0, DTYPES[dtype])
    if at_once == 1:
        feature = f.own(packed.feature, "i64")
        with schedule.columns(len(packed.feature)) as column:
            own = T.Bind(f.constant(feature, "i64", column))

            def read(values: Any, row: int) -> None:
                T.buffer_store(values, zero, [row])
                with T.If(tirx.LT(tirx.const(row, "int64"), f.rows)), T.Then():
                    T.buffer_store(values, f.read(x, [own], Row(tirx.const(row, "int64"))), [row])

            yield column, read
        return
    held = T.alloc_buffer((len(rows) * at_once,), DTYPES[dtype], scope="local")
    groups = len(packed.feature) // (at_once * each)
    with T.serial(tirx.const(0, "int64"), tirx.const(groups, "int64")) as group:
        own = group * at_once + int(packed.feature[0])  # TVM has to see that it is a multiple
        for row in rows:
            for part in range(at_once):
                T.buffer_store(held, zero, [row * at_once + part])
            with T.If(tirx.LT(tirx.const(row, "int64"), f.rows)), T.Then():
                place = tirx.Ramp(tirx.const(row * at_once, "int32"), tirx.const(1, "int32"), at_once)
                columns = tirx.Ramp(own, tirx.const(1, "int64"), at_once)
                T.buffer_store(held, f.read(x, [columns], Row(tirx.const(row, "int64"))), [place])
        # The features move up one after the other, so that they stay in registers without code for each.
        last = tirx.const(at_once, "int64")
        with T.serial(tirx.const(0, "int64"), last, annotations={"disable_unroll": True}) as part:

            def held_one(values: Any, row: int) -> None:
                T.buffer_store(values, held[row * at_once], [row])

            def move(row: int) -> None:
                for place in range(row * at_once, (row + 1) * at_once - 1):
                    T.buffer_store(held, held[place + 1], [place])

            if each == 1:

                def read(values: Any, row: int) -> None:
                    held_one(values, row)
                    move(row)

                yield T.Bind(group * at_once + part), read
                return
            copies = tirx.const(each, "int64")
            with T.serial(tirx.const(0, "int64"), copies, annotations={"disable_unroll": True}) as copy:
                yield T.Bind((group * at_once + part) * each + copy), held_one
            for row in rows:
                move(row)
