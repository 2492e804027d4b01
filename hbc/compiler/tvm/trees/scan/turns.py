"""Turns of a scan: trees that come one after the other, with planes of their own. For ensembles of many thresholds and few columns.

A forest on floats has as many thresholds as splits: 1,000 trees of 256 leaves over 28 columns have 9,000 a column, which fill 36 planes.
The 1,000 planes of 256 rows come from the second cache, each for a few splits, while the model streams through it. But a few trees have
few thresholds. So the trees go turn by turn, and before each turn the ranks of a column among all its thresholds become ranks among those
of the turn:

    for each turn:
        for column, row:
            word     = words[turn, column, rank[column, row] / 32]         # 32 thresholds: which of them are the turn's, and
            own[row] = word.before + ones(word.bits below rank % 32)       # how many of the turn's come before these
        planes       = own as bytes, 255 thresholds each                   # planes.py
        for each tree of the turn: scan it

That is exact: a number is above a threshold if and only if its rank is, among all thresholds and among any of them. A turn's planes stay in
the first cache. Rows of forests over 28 columns take 1.0 instead of 1.25 µs each (400 trees of 256 leaves), 2.9 instead of 4.2 (1,000 of
them), 4.7 instead of 7.1 (500 of 842 leaves; Zen 4, whose code for AVX2 and with masks gains as much). Blocks of 1,024 rows, whose
parts would read a turn's trees from the second cache, took 0.94 to 1.03 of that.

NaN of a feature may go both ways, as in forests of scikit-learn. Then its NaN have a rank beyond all others, and its splits that send them
left test planes that stand LEFT behind those of the others and have 0 there. While 256 rows have no NaN, both are the same planes: LEFT is
masked out of their numbers. So the feature is ranked once. Elsewhere it has two columns (hbc/ops/tree_ranks.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import any_of, broadcast, once_if, store, vector
from hbc.compiler.tvm.trees.ranks.planes import MOST_THRESHOLDS, ROWS_IN_VECTOR, bytes_of_ranks, held
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.tree_ranks import MOST_IN_PLANE, RankedTrees

LEFT = 128
"""The most planes of a turn: those of 256 rows fill the first cache, and their numbers a byte, with one bit beside. A row of 1,000 trees of
256 leaves over 60 columns takes 3.3 µs so, with 96 planes 3.5, with 64 6.4 (Zen 4)."""
BITS = 32  # thresholds of a word
WORDS_BEHIND = (1 << 16) // BITS
"""The words behind the last ones: places without a row may read any."""
SPLITS_FOR_A_COLUMN = 150
"""The splits of a turn, for each column that it ranks, from which on turns are faster. 400 trees of 256 leaves over 100 columns, 200 splits
each, take 0.89 of the time; over 120, 106 each, 1.11 (Zen 4)."""
TIME_OF_COLUMN = 60
"""The splits that are scanned in the time of a column of a turn."""


@record
class Turns:
    """An ensemble in turns, and its splits as they test the planes of their turns.

    columns: what `column_ranks` takes: the columns, one for each feature, with all thresholds.
    nan i64[C]: the rank of NaN, in columns whose NaN go both ways; 0 elsewhere.
    of_group i64[G]: the turn of each group of trees, ascending.
    plane i64[J], rank i32[J]: what each split compares.
    starts i64[turns + 1]: turn t ranks the columns ranked[starts[t]:starts[t + 1]]. Each has words from words[first_word] on, and the
    planes first_plane … last_plane - 1.
    words i64[W]: `bits` in the lower half, `before` in the upper one.
    """

    columns: RankedTrees
    nan: Array
    of_group: Array
    plane: Array
    rank: Array
    starts: Array
    ranked: Array
    first_word: Array
    first_plane: Array
    last_plane: Array
    words: Array

    @property
    def count(self) -> int:
        return len(self.starts) - 1


def take_turns(columns: int, planes: int) -> bool:
    """Whether trees of so many columns and planes may be scanned in turns."""
    return planes > LEFT >= columns


def time_of_turns(columns: int, planes: int) -> float:
    """The splits that are scanned in the time that turns take beside the scan. The last plane of a column is half full."""
    return TIME_OF_COLUMN * columns * planes / (LEFT - columns / 2)


def pack_turns(ranked: RankedTrees, group: Array, groups: int) -> Turns | None:
    """The turns of an ensemble. None where a scan of all trees at once is faster, or category sets are tested.

    group i64[J]: the group of trees of each split. Groups of 1,000 trees of 256 leaves take 0.05 s."""
    features, feature_of = np.unique(ranked.column_feature, return_inverse=True)
    if ranked.tests_sets or not take_turns(len(features), ranked.planes):
        return None
    columns, nan, places = _one_each(ranked, features, feature_of)
    if columns.most_thresholds >= MOST_THRESHOLDS:  # no rank is left for NaN
        return None
    column, rank, left = _splits(ranked)
    first = np.cumsum([0, *(len(each) for each in places[:-1])])
    found = _packed(columns, nan, feature_of[column], np.concatenate(places)[first[column] + rank], left, group, groups)
    pays = len(group) >= SPLITS_FOR_A_COLUMN * len(found.ranked)
    return found if pays and int(found.last_plane.max(initial=0)) <= LEFT else None


def _one_each(ranked: RankedTrees, features: Array, feature_of: Array) -> tuple[RankedTrees, Array, list[Array]]:
    """(the columns, one for each feature; `Turns.nan`; for each column of `ranked`, the places of its thresholds among the feature's)."""
    both = np.zeros(len(features), bool)
    both[feature_of[1:][np.diff(ranked.column_feature) == 0]] = True
    both[feature_of[ranked.plane_column[ranked.below]]] = True
    thresholds, places = [], []
    for feature in range(len(features)):
        own = [ranked.thresholds[column] for column in np.flatnonzero(feature_of == feature)]
        thresholds.append(np.unique(np.concatenate(own)))
        places += [np.searchsorted(thresholds[-1], each) for each in own]
    nan = np.where(both, [len(each) + 1 for each in thresholds], 0)
    missing = np.where(both, nan, ranked.missing_rank[np.searchsorted(feature_of, np.arange(len(features)))])
    columns = replace(
        ranked,
        column_feature=features.astype(np.int32),
        missing_rank=missing.astype(np.int32),
        thresholds=tuple(thresholds),
    )
    return columns, nan, places


def _splits(ranked: RankedTrees) -> tuple[Array, Array, Array]:
    """(the column of each split; its rank there; whether it is of a plane that has NaN below all, where NaN go both ways)."""
    planes = np.concatenate([np.arange(len(ranked.plane_column)), ranked.below])
    left = ranked.split_plane >= len(ranked.plane_column)
    plane = planes[ranked.split_plane]
    column = ranked.plane_column[plane]
    # Of two columns of a feature, the first one has the splits that send NaN to the left.
    left |= np.isin(column, np.flatnonzero(np.diff(ranked.column_feature) == 0))
    return column, ranked.plane_first[plane] + ranked.split_rank, left


def _packed(columns: RankedTrees, nan: Array, column: Array, rank: Array, left: Array, group: Array, groups: int) -> Turns:
    """The turns, given the column, rank, direction of NaN, and group of each split."""
    # The bits of all columns, one behind the other. A rank is at most the number of thresholds plus one.
    sizes = np.array([((len(each) + 1) // BITS + 1) * BITS for each in columns.thresholds], np.int64)
    begin = np.cumsum(sizes) - sizes
    place = begin[column] + rank
    of_group = _turn_of_groups(place, column, group, groups, int(sizes.sum()), len(sizes))
    turn = of_group[group]
    plane, own_rank = np.zeros(len(turn), np.int64), np.zeros(len(turn), np.int32)
    starts, ranked, first_word, first_plane, last_plane, words = [0], [], [], [], [], []
    order = np.argsort(turn, kind="stable")
    for number, mine in enumerate(np.split(order, np.cumsum(np.bincount(turn))[:-1])):
        tested = np.zeros(int(sizes.sum()), np.int64)
        tested[place[mine]] = 1
        counts = np.add.reduceat(tested, begin)
        before = np.cumsum(tested) - tested
        before -= np.repeat(before[begin], sizes)
        planes = -(-counts // MOST_IN_PLANE)
        last = np.cumsum(planes)
        further, own_rank[mine] = np.divmod(before[place[mine]], MOST_IN_PLANE)
        plane[mine] = (last - planes)[column[mine]] + further + LEFT * left[mine]
        used = np.flatnonzero(counts)
        words.append((tested.reshape(-1, BITS) << np.arange(BITS)).sum(axis=1) | before[::BITS] << BITS)
        starts.append(starts[-1] + len(used))
        ranked.append(used)
        first_word.append(number * len(words[-1]) + begin[used] // BITS)
        first_plane.append((last - planes)[used])
        last_plane.append(last[used])
    lists = (ranked, first_word, first_plane, last_plane, [*words, np.zeros(WORDS_BEHIND, np.int64)])
    return Turns(columns, nan, of_group, plane, own_rank, np.array(starts), *(np.concatenate(each) for each in lists))


def _turn_of_groups(place: Array, column: Array, group: Array, groups: int, places: int, columns: int) -> Array:
    """i64[G]: the turn of each group. A turn has as many groups as have LEFT planes, and at least one. place i64[J]: that of each split's
    threshold among all of them."""
    order = np.argsort(group, kind="stable")
    result, turn = np.zeros(groups, np.int64), 0
    tested, counts = np.zeros(places, bool), np.zeros(columns, np.int64)
    for number, mine in enumerate(np.split(order, np.cumsum(np.bincount(group, minlength=groups))[:-1])):
        own, at = np.unique(place[mine], return_index=True)
        of = column[mine][at]
        more = counts + np.bincount(of[~tested[own]], minlength=columns)
        if counts.any() and int((-(-more // MOST_IN_PLANE)).sum()) > LEFT:
            turn, more = turn + 1, np.bincount(of, minlength=columns)
            tested[:] = False
        tested[own], counts = True, more
        result[number] = turn
    return result


class TurnPlanes:
    """Emits the planes of a turn, for some rows of the block. They lie in `planes`, `most` bytes each.

    mask: which bits of the number of a plane count; None: all.
    """

    def __init__(self, f: Block, turns: Turns, ranks: Any, most: int) -> None:
        """ranks: of `column_ranks`. most: the most rows at once."""
        self.f, self.ranks, self.most = f, ranks, most
        self.starts, self.ranked, self.first_word, self.first_plane, self.last_plane, self.words = (
            f.own(array, "i64")
            for array in (turns.starts, turns.ranked, turns.first_word, turns.first_plane, turns.last_plane, turns.words)
        )
        both = np.flatnonzero(turns.nan)
        self.planes = T.alloc_buffer(((2 if len(both) else 1) * LEFT * most,), "uint8")
        self.own = T.alloc_buffer((most,), "uint16")
        self.mask: Expr | None = None
        self.both = f.own(both, "i64") if len(both) else None
        if self.both is not None:
            self.count, self.nan, self.found = f.size(len(both)), f.own(turns.nan, "i64"), T.alloc_buffer((1,), "int64")
            self.any: Expr = None

    def begin(self, first: Expr, rows: int) -> None:
        """Look for NaN that go both ways in the rows first … first + rows of the block, and set `mask`. Call it before `fill`."""
        if self.both is None:
            return
        f, zero = self.f, tirx.const(0, "int64")
        T.buffer_store(self.found, zero, [zero])
        with f.repeat(self.count) as place:
            column = T.Bind(f.constant(self.both, "i64", place))
            with f.repeat(-(-rows // ROWS_IN_VECTOR)) as part:
                some = tirx.Cast("int64", any_of(self._missing(column, column * f.block + first, part), ROWS_IN_VECTOR))
                T.buffer_store(self.found, tirx.bitwise_or(self.found[zero], some), [zero])
        self.any = T.Bind(self.found[zero])
        self.mask = T.Bind(self.any * LEFT + (LEFT - 1))

    def fill(self, turn: Expr, first: Expr, rows: int) -> None:
        """Compute the planes of a turn, for these rows."""
        f = self.f
        begin, end = (T.Bind(f.constant(self.starts, "i64", turn + i)) for i in range(2))
        with T.serial(begin, end) as place:
            column = T.Bind(f.constant(self.ranked, "i64", place))
            ranks = T.Bind(column * f.block + first)
            start = T.Bind(f.constant(self.first_word, "i64", place))
            with f.repeat(rows) as row:
                T.buffer_store(self.own, tirx.Cast("uint16", self._own_rank(start, ranks + row)), [row])
            plane = T.Bind(f.constant(self.first_plane, "i64", place))
            with f.repeat(T.Bind(f.constant(self.last_plane, "i64", place) - plane)) as further:
                lowest = T.Bind(broadcast(tirx.Cast("uint16", further * MOST_IN_PLANE), ROWS_IN_VECTOR))
                at = T.Bind((plane + further) * self.most)
                with f.repeat(-(-rows // ROWS_IN_VECTOR)) as part:
                    byte = bytes_of_ranks(f, self.own, part * ROWS_IN_VECTOR, lowest)
                    store(self.planes, byte, at + part * ROWS_IN_VECTOR, ROWS_IN_VECTOR)
                if self.both is not None:
                    with once_if(self.any), f.repeat(-(-rows // ROWS_IN_VECTOR)) as part:
                        self._fill_left(column, ranks, at, part)

    def _own_rank(self, start: Expr, at: Expr) -> Expr:
        """The rank in `ranks[at]` among the turn's thresholds of the column. start: where its words begin."""
        one, bits = tirx.const(1, "int64"), tirx.const(BITS, "int64")
        rank = T.Bind(tirx.Cast("int64", self.ranks[at]))
        word = T.Bind(self.f.constant(self.words, "i64", start + tirx.truncdiv(rank, bits)))
        below = tirx.shift_left(one, tirx.truncmod(rank, bits)) - one
        return tirx.shift_right(word, bits) + tirx.call_llvm_pure_intrin(
            "int64", "llvm.ctpop.i64", tirx.bitwise_and(word, below)
        )

    def _fill_left(self, column: Expr, ranks: Expr, at: Expr, part: Expr) -> None:
        """Copy 64 bytes of a plane to the plane for NaN that go left."""
        zero = broadcast(held(self.f, tirx.const(0, "uint8")), ROWS_IN_VECTOR)
        byte = vector(self.planes, at + part * ROWS_IN_VECTOR, ROWS_IN_VECTOR)
        byte = tirx.Select(self._missing(column, ranks, part), zero, byte)
        store(self.planes, byte, at + LEFT * self.most + part * ROWS_IN_VECTOR, ROWS_IN_VECTOR)

    def _missing(self, column: Expr, ranks: Expr, part: Expr) -> Expr:
        """Which of 64 rows have NaN that go both ways in a column."""
        code = broadcast(tirx.Cast("uint16", self.f.constant(self.nan, "i64", column)), ROWS_IN_VECTOR)
        return tirx.EQ(vector(self.ranks, ranks + part * ROWS_IN_VECTOR, ROWS_IN_VECTOR), code)
