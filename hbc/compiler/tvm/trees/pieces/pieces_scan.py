"""Scans one tree for many rows: its splits in pieces (split_order.py), with compares into bytes or masks. scan/scan.py has the idea, and
scans several trees by it; scan/one_tree_scan.py scans one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.nest.model_data import few_sizes
from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import as_signed, broadcast, look_up_twice, many, shuffled, store, vector
from hbc.compiler.tvm.trees.pieces.packed_pieces import PackedPieces
from hbc.compiler.tvm.trees.ranks.planes import HALF, ROWS_IN_VECTOR
from hbc.ir.types import Array, dtype_name

WORDS = HALF // 4  # words in a register of AVX2
VECTORS_OF_PIECES = 4
"""Vectors of rows for one tree in pieces: they share the loads of its splits, and fill the 16 registers of AVX2."""
EVERY = ROWS_IN_VECTOR * VECTORS_OF_PIECES
"""The most rows that are scanned together."""
MOST_SPREAD = 2
"""The most vectors of rows for which the bytes of a record are loaded at once, and look-ups bring each into all lanes. With AVX2, a piece
of three splits takes 22 instructions so, of which 7 load; otherwise 26 and 11. Zen 3 begins six instructions a cycle, and two loads into
vectors: 32 rows of 500 trees of 31 leaves take 0.43 µs each instead of 0.5. On Zen 4 a load of a byte into all lanes takes a look-up
besides: 64 rows take 0.205 µs each instead of 0.222, 32 rows 0.32 instead of 0.35. More vectors need the registers: 10,000 rows took 1.03
of the time, on Zen 4 1.02."""
SPREAD = 8
"""The bytes of a record that are loaded at once with VBMI, from the first to compare with on: they reach up to `lo`."""
ROWS_FOR_ALL = 176
"""From so many rows on, what is left of a block is scanned as 256 rows: that takes 2.1 to 2.7 times as long as a chunk of 64 rows."""
ROWS_FOR_ALL_IN_HALVES = 200
"""The same with AVX2, whose registers hold 32 rows: it takes 3.1 times as long. In chunks and as 256 rows, 208 rows of 500 trees of 31
leaves take 0.39 and 0.35 µs each, 200 rows 0.375 and 0.357, 192 rows 0.35 and 0.37; 200 rows of XGBoost of depth 8 0.60 and 0.61, of a
forest of depth 8 3.6 and 3.0 (Zen 3)."""
PAIR = 2 * ROWS_IN_VECTOR
"""The rows of two chunks that are scanned together: that takes 1.3 to 1.6 times as long as one chunk. 100 rows of a forest of 500 trees of
depth 8 take 1.28 µs each so, in two chunks 1.95; of XGBoost's 0.25, and behind 64 rows in lanes 0.33 (Zen 5)."""


def scans_pairs(f: Block) -> bool:
    """Whether two chunks of a block are scanned together."""
    return pairing(f.dialect) and f.block >= PAIR


def pairing(dialect: Dialect) -> bool:
    """Whether a processor scans two chunks together: it compares 64 bytes into masks."""
    return dialect.wide and not dialect.byte_masks


def rows_of_chunk(dialect: Dialect) -> int:
    """The least rows that are scanned together: those of a register of bytes where compares give bytes."""
    return HALF if dialect.byte_masks else ROWS_IN_VECTOR


def least_of_whole(few_rows: Any, chunk: int, wide: bool) -> Any:
    """The fewest rows that take a chunk of 64, where fewer than `few_rows` rows take another way than the smallest chunk, of `chunk` rows.
    wide: with AVX-512. A chunk of 32 takes 0.65 of the time of one of 64 with AVX2, and 0.75 on Zen 4."""
    return few_rows if chunk == ROWS_IN_VECTOR else chunk + few_rows // (3 if wide else 2)


def rounds_of_every(f: Block) -> Expr:
    """How often EVERY rows of a block are scanned together. The last ones may have places without a row."""
    for_all = ROWS_FOR_ALL if f.dialect.wide else ROWS_FOR_ALL_IN_HALVES
    return (f.rows + (EVERY - for_all if f.block % EVERY == 0 else 0)) // EVERY


class Chunks:
    """The rows of a block behind those that are scanned together: pairs of chunks of 64, chunks of 64, and with AVX2 or on Zen 4 one of 32.

    scanned: the rows of the block up to the end of the chunks. The others, fewer than `few_rows`, take another way.
    """

    def __init__(self, f: Block, several: Expr, few_rows: Expr, pairs: bool = False, least: int | None = None) -> None:
        """several: of `rounds_of_every`. pairs: whether there are pairs of chunks. least: the rows of the smallest chunk, those of
        `rows_of_chunk` by default. If they are those of a pair, there are no others."""
        self.least = rows_of_chunk(f.dialect) if least is None else least
        self.start = self.first = several * VECTORS_OF_PIECES
        self.pairs = None
        if pairs:
            # A pair takes at most 1.6 times as long as a chunk, so half of `few_rows` are enough for its second chunk.
            least_of_pair = ROWS_IN_VECTOR + 1 + few_rows // 2 if f.block % PAIR == 0 else PAIR
            behind = tirx.Max(f.rows - several * EVERY, tirx.const(0, "int64"))
            self.pairs = T.Bind((behind + (PAIR - least_of_pair)) // PAIR)
            self.first = T.Bind(self.start + self.pairs * 2)
        self.whole = self.first
        if self.least <= ROWS_IN_VECTOR:
            least_rows = least_of_whole(few_rows, self.least, f.dialect.wide)
            self.whole = T.Bind(tirx.Max(self.first, (f.rows + (ROWS_IN_VECTOR - least_rows)) // ROWS_IN_VECTOR))
        end = self.whole * ROWS_IN_VECTOR
        self.half = tirx.const(0, "int64")
        if self.least < ROWS_IN_VECTOR:
            self.half = T.Bind(tirx.Max((f.rows - end + (self.least - few_rows)) // self.least, self.half))
        self.scanned = T.Bind(tirx.Min(f.rows, end + self.half * self.least))

    def emit(self, scan: Callable[[Expr, int], None]) -> None:
        """Emit the scan of all chunks. scan: emits that of some rows of the block, from the first one on."""
        if self.pairs is not None:
            with T.serial(tirx.const(0, "int64"), self.pairs) as pair:
                scan(T.Bind(self.start * ROWS_IN_VECTOR + pair * PAIR), PAIR)
        if self.whole is not self.first:
            with T.serial(self.first, self.whole) as chunk:
                scan(T.Bind(chunk * ROWS_IN_VECTOR), ROWS_IN_VECTOR)
        if self.least < ROWS_IN_VECTOR:
            with T.serial(tirx.const(0, "int64"), self.half):
                scan(T.Bind(self.whole * ROWS_IN_VECTOR), self.least)


def scan_of(
    f: Block, splits: Sequence[PackedPieces], ranks: Any, most: int, stride: int | None = None, step: int = 0
) -> PiecesScan:
    """The scan that suits the processor. splits: trees in pieces. ranks: of `rank_planes`, or planes as it makes them, `stride` bytes
    apart. most: the most rows that go at once. step: from the ranks of a register of rows to those of the next; 0: they lie together."""
    kind = BytesScan if f.dialect.byte_masks else MasksScan
    return kind(f, splits, ranks, most, f.block if stride is None else stride, step or kind.lanes)


class OwnPlanes:
    """The planes of a chunk of rows in memory of their own (AVX2). In that of a large block, planes of a few rows lie in the same sets of
    the first cache. Here they lie 32 bytes apart, and 32 rows after 32, so that a record's byte scales to the place of a plane in the
    address of a load: 32 rows of 500 trees of 31 leaves take 0.9 of the time (Zen 3)."""

    def __init__(self, f: Block, ranks: Any, planes: int, most: int) -> None:
        """ranks: of `rank_planes`, plane after plane. most: the rows of a chunk."""
        self.f, self.ranks, self.number, self.step = f, ranks, f.size(planes), few_sizes(planes) * HALF
        self.planes = T.alloc_buffer((most // HALF * self.step,), "uint8")
        self.most = most

    def fill(self, first: Expr, rows: int) -> None:
        """Copy the planes of the rows first … first + rows of the block."""
        with self.f.repeat(self.number) as plane:
            for i in range(rows // HALF):
                ranks = vector(self.ranks, plane * self.f.block + first + i * HALF, HALF)
                store(self.planes, ranks, plane * HALF + i * self.step, HALF)

    def scan_of(self, splits: Sequence[PackedPieces]) -> PiecesScan:
        """The scan of the rows here; its first row is 0."""
        return scan_of(self.f, splits, self.planes, self.most, HALF, self.step)


class PiecesScan:
    """Emits the scan of one tree in pieces, for some rows at once: a multiple of those in a register."""

    lanes: int  # rows in a register
    mask: Expr | None = None
    """The bits of the number of a plane that count; None: all."""

    def __init__(self, f: Block, splits: Sequence[PackedPieces], ranks: Any, most: int, stride: int, step: int) -> None:
        self.f, self.ranks, self.stride, self.step = f, ranks, stride, step
        self.pieces = [
            replace(kind, starts=f.own(kind.starts, "i64"), records=f.own(kind.records, dtype_name(kind.records.dtype)))
            for kind in splits
        ]
        # One buffer for each register. With a longer buffer, LLVM joins pairs of registers and takes them apart at every split.
        self.candidates = [T.alloc_buffer((self.lanes // 4,), "int32") for _ in range(most // self.lanes)]

    def run(self, tree: Expr, reached: Any, place: Expr, first: Expr, rows: int) -> None:
        """Store the leaves that the rows first … first + rows of the block reach at reached[place …], a byte each. tree: its place among
        the packed ones."""
        f, candidates = self.f, self.candidates[: rows // self.lanes]
        zero = tirx.Broadcast(tirx.const(0, "int32"), self.lanes // 4)
        # `origin` is 0. TVM takes vector accesses at a constant place apart; at a loop variable it keeps them whole.
        with f.repeat(1) as origin:
            for candidate in candidates:
                store(candidate, zero, origin, self.lanes // 4)
            for pieces_ in self.pieces:
                with self._steps(pieces_.starts, tree) as piece:
                    self._piece(candidates, pieces_, piece, first, origin)
            for slot, candidate in enumerate(candidates):
                leaf = _bytes(vector(candidate, origin, self.lanes // 4), self.lanes)
                store(reached, leaf, place + slot * self.lanes, self.lanes)

    def _steps(self, starts: Array, at: Expr) -> AbstractContextManager[Expr]:
        """The loop over the steps of a tree."""
        start, end = (T.Bind(self.f.constant(starts, "i64", at + i)) for i in range(2))
        return T.serial(start, end)  # type: ignore[no-any-return]

    def _plane(self, pieces_: PackedPieces, at: Expr, first: Expr) -> Expr:
        """Where the ranks that a split tests begin, for the rows from `first` on."""
        number = tirx.Cast("int64", self.f.constant(pieces_.records, dtype_name(pieces_.records.dtype), at))
        if self.mask is not None:
            number = tirx.bitwise_and(number, self.mask)
        return T.Bind(number * (self.stride // pieces_.unit) + first)

    def _everywhere(self, array: Array, at: Expr, lanes: int) -> Expr:
        """A word, or a byte four times a word, in all lanes."""
        if array.dtype == np.uint8:
            return T.Bind(_words(tirx.Broadcast(self.f.constant(array, "u8", at), 4 * lanes)))
        return T.Bind(tirx.Broadcast(self.f.constant(array, "i32", at), lanes))

    def _piece(self, candidates: list[Any], pieces_: PackedPieces, at: Expr, first: Expr, origin: Expr) -> None:
        record = T.Bind(at * pieces_.records.shape[1])
        planes = [self._plane(pieces_, record + pieces_.places.planes + i, first) for i in range(pieces_.size)]
        bounds, lo, table = self._read(pieces_, record, len(candidates))
        for slot, candidate in enumerate(candidates):
            values = [vector(self.ranks, plane + slot * self.step, self.lanes) for plane in planes]
            leaf = vector(candidate, origin, self.lanes // 4)
            store(candidate, self._next(leaf, lo, table, values, bounds), origin, self.lanes // 4)

    def _read(self, pieces_: PackedPieces, record: Expr, vectors: int) -> tuple[list[Expr], Expr, Expr]:
        """What a record has beside the planes, as words in all lanes: the bytes to compare with, `lo`, and the table."""
        f, size, records, places, lanes = self.f, pieces_.size, pieces_.records, pieces_.places, self.lanes // 4
        bounds = [self._everywhere(records, record + places.bounds + i, lanes) for i in range(size)]
        lo = self._everywhere(records, record + places.lo, lanes)
        if size == 1 or (size == 2 and records.dtype == np.int32):
            table = self._everywhere(records, record + places.table, lanes)
        elif records.dtype == np.uint8:
            table = T.Bind(_words(self._repeated(records, record + places.table, 1 << size)))
        else:
            words = 1 << (size - 2)
            part = T.Bind(f.constants(records, "i32", record + places.table, words))
            indices = [tirx.const(i, "int32") for i in range(lanes)]
            table = part if words == lanes else T.Bind(tirx.Shuffle([part] * (lanes // words), indices))
        return bounds, lo, table

    def _repeated(self, records: Array, at: Expr, count: int) -> Expr:
        """`count` bytes of a record, again and again in all lanes."""
        part = T.Bind(self.f.constants(records, "u8", at, count))
        return shuffled([part] * (self.lanes // count), list(range(self.lanes)))

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], bounds: list[Expr]) -> Expr:
        """The candidate leaves after a piece. values: the rows' bytes of its planes. All other arguments and the result are words."""
        raise NotImplementedError


class MasksScan(PiecesScan):
    """Pieces with compares into masks, 64 rows in a register: leaf = where(leaf == lo, table[index], leaf)."""

    lanes = ROWS_IN_VECTOR

    def __init__(self, f: Block, splits: Sequence[PackedPieces], ranks: Any, most: int, stride: int, step: int) -> None:
        super().__init__(f, splits, ranks, most, stride, step)
        # 0, but LLVM does not know it. Where it knows which bits are 0, it turns `+` into `or`; but only `+` takes one instruction
        # for the rows of a mask.
        self.zero = T.Bind(broadcast(tirx.Cast("uint8", f.size(0)), ROWS_IN_VECTOR))

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], bounds: list[Expr]) -> Expr:
        left = [tirx.LT(value, _bytes(bound, ROWS_IN_VECTOR)) for value, bound in zip(values, bounds, strict=True)]
        index = self.zero
        # The highest bit is added first, since LLVM knows that nothing is carried beyond it.
        for bit in (len(left) - 1, *range(len(left) - 1)):
            index = T.Bind(
                tirx.Select(left[bit], tirx.Add(index, broadcast(tirx.const(1 << bit, "uint8"), ROWS_IN_VECTOR)), index)
            )
        lookup = "llvm.x86.avx512.permvar.qi.512" if self.f.dialect.byte_permute else "llvm.x86.avx512.pshuf.b.512"
        found = tirx.call_llvm_pure_intrin("uint8x64", lookup, _bytes(table, ROWS_IN_VECTOR), index)
        here = tirx.EQ(_bytes(leaf, ROWS_IN_VECTOR), _bytes(lo, ROWS_IN_VECTOR))
        return tirx.reinterpret("int32x16", tirx.Select(here, found, _bytes(leaf, ROWS_IN_VECTOR)))


class BytesScan(PiecesScan):
    """Pieces with compares into bytes, 32 rows in a register: leaf ^= (leaf == lo) & table[index]."""

    lanes = HALF

    def __init__(self, f: Block, splits: Sequence[PackedPieces], ranks: Any, most: int, stride: int, step: int) -> None:
        super().__init__(f, splits, ranks, most, stride, step)
        if any(self._at_once(kind) for kind in splits):
            # LLVM does not know these bytes. If it did, it would load each byte of a record into all lanes again.
            numbers = np.arange(SPREAD, dtype=np.uint8) if f.dialect.byte_permute else np.arange(8, 12, dtype=np.uint8)
            places = f.own(numbers.repeat(HALF), "u8")
            self.spread = [T.Bind(f.constants(places, "u8", tirx.const(i * HALF, "int64"), HALF)) for i in range(len(numbers))]

    def _at_once(self, pieces_: PackedPieces) -> tuple[int, int] | None:
        """(first, count): the bytes of a record that are loaded at once. None: each is loaded into all lanes."""
        if pieces_.whole:
            return 0, pieces_.records.shape[1]
        return (pieces_.places.bounds, SPREAD) if self.f.dialect.byte_permute and pieces_.records.dtype == np.uint8 else None

    def _read(self, pieces_: PackedPieces, record: Expr, vectors: int) -> tuple[list[Expr], Expr, Expr]:
        loaded, places = self._at_once(pieces_), pieces_.places
        if loaded is None or vectors > MOST_SPREAD:
            return super()._read(pieces_, record, vectors)
        first, count = loaded
        part = T.Bind(self._repeated(pieces_.records, record + first, count))

        def everywhere(place: int) -> Expr:
            return T.Bind(_words(look_up_twice(part, self.spread[(place - first) % len(self.spread)], self.f.dialect)))

        if not pieces_.whole:
            table = T.Bind(_words(self._repeated(pieces_.records, record + places.table, 1 << pieces_.size)))
        else:
            table = _words(part) if pieces_.size > 1 else everywhere(places.table)
        return [everywhere(places.bounds + i) for i in range(pieces_.size)], everywhere(places.lo), table

    def _next(self, leaf: Expr, lo: Expr, table: Expr, values: list[Expr], bounds: list[Expr]) -> Expr:
        both = zip(values, bounds, strict=True)
        stays = [_bits(tirx.LT(as_signed(value, HALF), as_signed(bound, HALF))) for value, bound in both]
        return self._logic(CHANGE_WHERE, leaf, _equal(leaf, lo), self._looked_up(table, stays))

    def _looked_up(self, table: Expr, stays: list[Expr]) -> Expr:
        """Each row's byte of a table. Bit i of a row's index says whether the row goes left at split i: bytes stays[i] of all or no bits.

        A piece of one split needs no index: the table has its byte for the right, and rows that go left get 0.
        """
        if len(stays) == 1:
            return self._logic(UNLESS, stays[0], table, table)
        if self.f.dialect.byte_permute:  # this look-up ignores the higher bits of an index
            index = stays[0]
            for bit, next_ in enumerate(stays[1:], 1):
                index = self._logic(CHOOSE, _each((1 << bit) - 1), index, next_)
            lookup = "llvm.x86.avx512.permvar.qi.256"
            return _words(tirx.call_llvm_pure_intrin("uint8x32", lookup, _bytes(table, HALF), _bytes(index, HALF)))
        index = tirx.bitwise_and(stays[0], _each(1))  # this look-up gives 0 where the highest bit of an index is set
        for bit, next_ in enumerate(stays[1:], 1):
            index = tirx.bitwise_or(index, tirx.bitwise_and(next_, _each(1 << bit)))
        return _words(look_up_twice(_bytes(table, HALF), _bytes(index, HALF), self.f.dialect))

    def _logic(self, table: int, a: Expr, b: Expr, c: Expr) -> Expr:
        """A bitwise function of three operands: UNLESS, CHOOSE or CHANGE_WHERE."""
        if self.f.dialect.wide:
            # One instruction. LLVM does not look into it; otherwise it would turn the compares back into masks.
            number = tirx.const(table, "int32")
            return tirx.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.pternlog.d.256", a, b, c, number)
        if table == UNLESS:
            return tirx.bitwise_and(tirx.bitwise_not(a), b)
        if table == CHOOSE:
            return tirx.bitwise_xor(c, tirx.bitwise_and(a, tirx.bitwise_xor(b, c)))
        return tirx.bitwise_xor(a, tirx.bitwise_and(b, c))


UNLESS, CHOOSE, CHANGE_WHERE = 0b00001100, 0b11001010, 0b01111000
"""Functions for `BytesScan._logic`: ~a & b; b where a is set, else c; a ^ (b & c). Bit 4a + 2b + c of the number is the result for the
bits a, b, c."""


def _bytes(words: Expr, lanes: int) -> Expr:
    """Words as vectors of bytes."""
    return tirx.reinterpret(many("uint8", lanes), words)


def _each(byte: int) -> Expr:
    """A byte in all lanes, as words."""
    return tirx.Broadcast(tirx.const(byte * 0x01010101, "int32"), WORDS)


def _words(bytes_: Expr) -> Expr:
    """32 bytes as the words that TVM's bitwise functions take."""
    return tirx.reinterpret(many("int32", WORDS), bytes_)


def _bits(test: Expr) -> Expr:
    """Bytes of all bits where a test is true, of no bits elsewhere; in words."""
    ones, zero = (tirx.Broadcast(tirx.const(value, "int8"), HALF) for value in (-1, 0))
    return _words(tirx.Select(test, ones, zero))


def _equal(a: Expr, b: Expr) -> Expr:
    """Bytes of all bits where the bytes are equal, of no bits elsewhere; in words."""
    return _bits(tirx.EQ(as_signed(a, HALF), as_signed(b, HALF)))
