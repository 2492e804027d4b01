"""The compiled functions of terms.py in TIR: they cut documents into terms, look these up or hash them, and count them.

    for each document:
        for each character: copy it, normalized; at the end of a word, look it up and count it         # Document.take
        for each sequence of `least` … `most` units (words or characters) of the copy:                 # Document.finish
            hash = joined(joined(unit, unit), unit) …
            column = look-up of the hash in the table, compared with the term's text; or murmur(text) mod width
            totals[column] += 1; mark the column in the bitmap
        write the marked columns and their totals, in ascending order; clear them                      # write_columns

`item_sums` does the same for dicts of numbers: it hashes their names, and adds their values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.host.cells import ONE, ZERO, Cell, argument, when, whole
from hbc.compiler.tvm.host.text_hash import followed, joined, murmur, place_of
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import is_nan

WORD, BLANK = 1, 2
"""Bits of a character's class: whether the regular expressions \\w and \\s match it."""
SPACE = tirx.const(ord(" "), "uint32")


def term_table(analyzer: str) -> tirx.PrimFunc:
    """`term_table(slots u64[S], texts u32, starts i64[M + 1], M i64)` in TIR: it puts M terms into the slots. S is a power of two."""
    count, size = tirx.Var("count", "int64"), tirx.Var("size", "int64")
    slots, texts, starts = (
        argument("slots", "uint64", size),
        argument("texts", "uint32"),
        argument("starts", "int64"),
    )
    with IRBuilder() as builder, T.serial(ZERO, count) as term:
        hash_, unit, units = Cell("uint64"), Cell("uint64"), Cell("int64")

        def end_unit() -> None:
            hash_.set(tirx.Select(units.value > 0, joined(hash_.value, unit.value), unit.value))
            unit.set(whole(0, "uint64"))
            units.add(ONE)

        with T.serial(starts[term], starts[term + 1]) as i:
            if analyzer == "word":
                with T.If(tirx.EQ(texts[i], whole(ord(" "), "uint32"))):
                    with T.Then():
                        end_unit()
                    with T.Else():
                        unit.set(followed(unit.value, texts[i]))
            else:
                unit.set(followed(unit.value, texts[i]))
                end_unit()
        if analyzer == "word":
            end_unit()
        mask = T.Bind(size - 1)
        place = Cell("int64")
        place.set(tirx.bitwise_and(tirx.Cast("int64", hash_.value), mask))
        with T.While(tirx.NE(slots[place.value], whole(0, "uint64"))):
            place.set(tirx.bitwise_and(place.value + 1, mask))
        T.buffer_store(slots, slot(term, hash_.value), [place.value])
    return tirx.PrimFunc([slots, texts, starts, count], builder.get()).with_attr("tirx.noalias", True)


def slot(number: Expr, hash_: Expr) -> Expr:
    """The content of a slot of the table: the upper half of the term's hash, and the term's number + 1. 0 is an empty slot."""
    high = tirx.bitwise_and(hash_, whole(0xFFFFFFFF00000000, "uint64"))
    return tirx.bitwise_or(high, tirx.Cast("uint64", number + 1))


def term_counts(analyzer: str, hashed: bool) -> tirx.PrimFunc:
    """`term_counts(codes u32, offsets i64[D + 1], classes u8, …table, copy u32, first i64, end i64, hashes u64, totals i32, low u64,
    high u64, indptr i64[D + 1], indices i32, counts i32, D, least, most, shortest, width, alternate)` in TIR. The parameters from D on are
    i64.

    It writes the columns of D documents and their counts as a sparse matrix (indptr, indices, counts). The arrays from `copy` to `high` are
    memory to work in: for a document's normalized copy, its words, and its columns. The last, `totals`, `low` and `high`, are 0 before and
    after a call.
    """
    a = Parameters()
    with IRBuilder() as builder, T.serial(ZERO, a.documents) as number:
        written = Cell("int64")
        written.set(a.indptr[number])
        start, characters = T.Bind(a.offsets[number]), T.Bind(a.offsets[number + 1] - a.offsets[number])
        document = DOCUMENTS[analyzer](a, hashed)
        with T.serial(ZERO, tirx.Select(characters > 0, characters + 1, ZERO)) as i:
            code = T.Bind(a.codes[start + tirx.Min(i, characters - 1)])
            kind = T.Bind(a.classes[code])
            document.take(code, kind, T.Bind(i < characters))
        document.finish()
        write_columns(a.width, a.totals, a.low, a.high, written, a.indices, a.counts)
        T.buffer_store(a.indptr, written.value, [number + 1])
    return tirx.PrimFunc([*vars(a).values()], builder.get()).with_attr("tirx.noalias", True)


class Parameters:
    """The parameters of `term_counts`, in the order of a call."""

    def __init__(self) -> None:
        self.codes = argument("codes", "uint32")
        self.offsets = argument("offsets", "int64")
        self.classes = argument("classes", "uint8")
        self.slots = argument("slots", "uint64", tirx.Var("size", "int64"))
        self.texts = argument("texts", "uint32")
        self.starts = argument("starts", "int64")
        self.columns = argument("columns", "int32")
        self.left_out = argument("left_out", "uint8")
        self.copy = argument("copy", "uint32")
        self.first = argument("first", "int64")
        self.end = argument("end", "int64")
        self.hashes = argument("hashes", "uint64")
        self.totals = argument("totals", "int32")
        self.low = argument("low", "uint64")
        self.high = argument("high", "uint64")
        self.indptr = argument("indptr", "int64")
        self.indices = argument("indices", "int32")
        self.counts = argument("counts", "int32")
        self.documents = tirx.Var("documents", "int64")
        self.least = tirx.Var("least", "int64")
        self.most = tirx.Var("most", "int64")
        self.shortest = tirx.Var("shortest", "int64")
        self.width = tirx.Var("width", "int64")
        self.alternate = tirx.Var("alternate", "int64")


class Document:
    """Emits the counting of one document's terms. There is a subclass for each analyzer.

    A term is a part of the normalized copy of the document. `hashed`: its column follows from its hash. Otherwise it is looked up in the
    table of terms.
    """

    def __init__(self, a: Parameters, hashed: bool) -> None:
        self.a, self.hashed = a, hashed
        self.length = Cell("int64")  # of the copy
        self.begin = Cell("int64")  # where the current word begins in the copy
        self.units = Cell("int64")  # the number of words that were kept
        self.blanks = Cell("int64")  # the number of blanks that the copy ends with
        self.word = Cell("uint64")  # the hash of the current word

    def take(self, code: Expr, kind: Expr, there: Expr) -> None:
        """Take the next character and its class. After the last one it runs once more, with that character again and `there` false."""
        raise NotImplementedError

    def finish(self) -> None:
        """Count the terms that have not been counted by `take`."""

    def count(self, hash_: Callable[[], Expr], start: Expr, length: Expr) -> None:
        """Count the term copy[start : start + length]. hash_ makes its hash, if it is looked up."""
        if self.hashed:
            self.count_hashed(start, length)
        else:
            self.count_found(self.find(hash_(), start, length))

    def count_hashed(self, start: Expr, length: Expr) -> None:
        """Count the term copy[start : start + length] in the column that its hash says."""
        a = self.a
        column, minus = place_of(murmur(a.copy, start, length), a.width, a.alternate)
        add_to(column, tirx.Select(minus, whole(-1, "int32"), whole(1, "int32")), a.totals, a.low, a.high)

    def count_found(self, term: Expr) -> None:
        """Count the term of that number in the table, if it has a column. -1 is no term."""
        a = self.a
        with when(term >= 0):
            column = T.Bind(tirx.Cast("int64", a.columns[term]))
            with when(column >= 0):
                add_to(column, whole(1, "int32"), a.totals, a.low, a.high)

    def find(self, hash_: Expr, start: Expr, length: Expr) -> Expr:
        """The number of the term copy[start : start + length] in the table, or -1 if it is not there."""
        a = self.a
        mask, place, found = T.Bind(a.slots.shape[0] - 1), Cell("int64"), Cell("int64", -2)
        place.set(tirx.bitwise_and(tirx.Cast("int64", hash_), mask))
        with T.While(tirx.EQ(found.value, whole(-2))):
            content = T.Bind(a.slots[place.value])
            with T.If(tirx.EQ(content, whole(0, "uint64"))):
                with T.Then():
                    found.set(whole(-1))
                with T.Else():
                    term = T.Bind(tirx.Cast("int64", tirx.bitwise_and(content, whole(0xFFFFFFFF, "uint64"))) - 1)
                    begin = T.Bind(a.starts[term])
                    alike = tirx.And(tirx.EQ(content, slot(term, hash_)), tirx.EQ(a.starts[term + 1] - begin, length))
                    with when(alike):
                        differ = Cell("uint32")
                        with T.serial(ZERO, length) as i:
                            other = tirx.bitwise_xor(a.texts[begin + i], a.copy[start + i])
                            differ.set(tirx.bitwise_or(differ.value, other))
                        with when(tirx.EQ(differ.value, whole(0, "uint32"))):
                            found.set(term)
                    place.set(tirx.bitwise_and(place.value + 1, mask))
        return T.Bind(found.value)

    def count_sequences(self, least: Expr, units: Expr, span: Span, unit: Callable[[Expr], Expr]) -> None:
        """Count the terms of `least` to `most` units.

        span(i, j): where the term of the units i … j begins in `copy`, and its length. unit(i): the hash of unit i.
        """
        with T.serial(ZERO, tirx.Max(tirx.Min(self.a.most, units) - least + 1, ZERO)) as longer:
            n = T.Bind(least + longer)
            with T.serial(ZERO, units - n + 1) as i:
                self.count(lambda: sequence_hash(unit, i, n), *span(i, i + n - 1))

    def character_hash(self, i: Expr) -> Expr:
        """The hash of character i of the copy as a unit."""
        return followed(whole(0, "uint64"), self.a.copy[i])


Span = Callable[[Expr, Expr], tuple[Expr, Expr]]


def sequence_hash(unit: Callable[[Expr], Expr], start: Expr, n: Expr) -> Expr:
    """The hash of the term of n units from unit `start` on. unit(i): the hash of unit i."""
    total = Cell("uint64")
    total.set(unit(start))
    with T.serial(ONE, n) as j:
        total.set(joined(total.value, unit(start + j)))
    return T.Bind(total.value)


def _in_class(kind: Expr, bit: int) -> Expr:
    """Whether a character's class has the bit WORD or BLANK."""
    return tirx.NE(tirx.bitwise_and(kind, whole(bit, "uint8")), whole(0, "uint8"))


class Words(Document):
    """Analyzer "word": the units are words. The copy has one space between two of them."""

    def take(self, code: Expr, kind: Expr, there: Expr) -> None:
        inside = tirx.And(there, _in_class(kind, WORD))
        with T.If(inside):
            with T.Then():
                T.buffer_store(self.a.copy, code, [self.length.value])
                self.length.add(ONE)
                self.word.set(followed(self.word.value, code))
            with T.Else():
                self.end_word()

    def end_word(self) -> None:
        """End the current word. If it is long enough and no stop word, it is counted and kept as a unit; otherwise the copy loses it."""
        a = self.a
        size = T.Bind(self.length.value - self.begin.value)
        term, kept = Cell("int64", -1), Cell("bool")
        with when(size >= a.shortest):
            term.set(self.find(self.word.value, self.begin.value, size))
            kept.set(tirx.const(True, "bool"))
            with when(term.value >= 0):
                kept.set(tirx.EQ(a.left_out[term.value], whole(0, "uint8")))
        with when(kept.value):
            with when(tirx.EQ(a.least, ONE)):
                if self.hashed:
                    self.count_hashed(self.begin.value, size)
                else:
                    self.count_found(term.value)
            for array, value in ((a.first, self.begin.value), (a.end, self.length.value), (a.hashes, self.word.value)):
                T.buffer_store(array, value, [self.units.value])
            self.units.add(ONE)
            T.buffer_store(a.copy, SPACE, [self.length.value])
            self.length.add(ONE)
            self.begin.set(self.length.value)
        self.length.set(self.begin.value)
        self.word.set(whole(0, "uint64"))

    def finish(self) -> None:
        a = self.a
        least = tirx.Max(a.least, whole(2))  # single words have been counted
        units = T.Bind(self.units.value)
        self.count_sequences(least, units, lambda i, j: (a.first[i], a.end[j] - a.first[i]), lambda i: a.hashes[i])


class Characters(Document):
    """Analyzer "char": the units are characters. In the copy two or more blanks become one space."""

    def take(self, code: Expr, kind: Expr, there: Expr) -> None:
        a = self.a
        blank = _in_class(kind, BLANK)
        with when(there):
            self.blanks.set(tirx.Select(blank, self.blanks.value + 1, ZERO))
            with T.If(self.blanks.value >= 2):
                with T.Then():
                    T.buffer_store(a.copy, SPACE, [self.length.value - 1])
                with T.Else():
                    T.buffer_store(a.copy, code, [self.length.value])
                    self.length.add(ONE)

    def finish(self) -> None:
        self.count_sequences(self.a.least, T.Bind(self.length.value), lambda i, j: (i, j - i + 1), self.character_hash)


class CharactersOfWords(Document):
    """Analyzer "char_wb": the units are the characters of one word and a space at both ends. The copy has one word at a time."""

    def take(self, code: Expr, kind: Expr, there: Expr) -> None:
        blank = _in_class(kind, BLANK)
        with T.If(tirx.And(there, tirx.Not(blank))):
            with T.Then():
                T.buffer_store(self.a.copy, code, [self.length.value + 1])
                self.length.add(ONE)
            with T.Else(), when(self.length.value > 0):
                self.end_word()

    def end_word(self) -> None:
        """End the current word: add the spaces and count its sequences of characters. A word that is no longer than `most` counts once."""
        a = self.a
        padded = T.Bind(self.length.value + 2)
        T.buffer_store(a.copy, SPACE, [0])
        T.buffer_store(a.copy, SPACE, [padded - 1])
        longest = tirx.Min(padded - 1, a.most)
        with T.serial(ZERO, tirx.Max(longest - a.least + 1, ZERO)) as longer:
            n = T.Bind(a.least + longer)
            with T.serial(ZERO, padded - n + 1) as i:
                self.count(lambda: sequence_hash(self.character_hash, i, n), i, n)
        with when(padded <= a.most):
            self.count(lambda: sequence_hash(self.character_hash, ZERO, padded), ZERO, padded)
        self.length.set(ZERO)


DOCUMENTS: dict[str, type[Document]] = {"word": Words, "char": Characters, "char_wb": CharactersOfWords}
"""The emitters by the names of the analyzers."""


def item_sums() -> tirx.PrimFunc:
    """`item_sums(codes u32, counts i64[N + 1], values f64, totals f64, low u64, high u64, indptr i64[N + 1], indices i32, sums f64, N,
    width, alternate)` in TIR. The last three are i64.

    Row n has counts[n] items. It hashes their names to columns, and writes the sums of the values of each column as a sparse matrix
    (indptr, indices, sums). `codes` has the names, each followed by a 0. `totals`, `low` and `high` are as in `term_counts`.
    """
    rows, width, alternate = (tirx.Var(name, "int64") for name in ("rows", "width", "alternate"))
    codes, counts, values = argument("codes", "uint32"), argument("counts", "int64"), argument("values", "float64")
    totals, low, high = argument("totals", "float64"), argument("low", "uint64"), argument("high", "uint64")
    indptr, indices, sums = argument("indptr", "int64"), argument("indices", "int32"), argument("sums", "float64")
    with IRBuilder() as builder, T.serial(ZERO, ONE):
        item, place, written = Cell("int64"), Cell("int64"), Cell("int64")
        with T.serial(ZERO, rows) as row:
            with T.serial(ZERO, counts[row]):
                start = T.Bind(place.value)
                with T.While(tirx.NE(codes[place.value], whole(0, "uint32"))):
                    place.add(ONE)
                value = T.Bind(values[item.value])
                with when(tirx.Or(tirx.NE(value, tirx.const(0, "float64")), is_nan(value))):  # 0 is left out, NaN is not
                    column, minus = place_of(murmur(codes, start, T.Bind(place.value - start)), width, alternate)
                    add_to(column, tirx.Select(minus, -value, value), totals, low, high)
                place.add(ONE)
                item.add(ONE)
            write_columns(width, totals, low, high, written, indices, sums)
            T.buffer_store(indptr, written.value, [row + 1])
    parameters = [codes, counts, values, totals, low, high, indptr, indices, sums, rows, width, alternate]
    return tirx.PrimFunc(parameters, builder.get()).with_attr("tirx.noalias", True)


def add_to(column: Expr, change: Expr, totals: Any, low: Any, high: Any) -> None:
    """Add `change` to the total of a column, and mark the column in both levels of the bitmap."""
    T.buffer_store(totals, totals[column] + change, [column])
    for words, shift in ((low, 6), (high, 12)):
        word = T.Bind(tirx.shift_right(column, whole(shift)))
        bit = tirx.bitwise_and(tirx.shift_right(column, whole(shift - 6)), whole(63))
        bit = tirx.shift_left(whole(1, "uint64"), tirx.Cast("uint64", bit))
        T.buffer_store(words, tirx.bitwise_or(words[word], bit), [word])


def write_columns(width: Expr, totals: Any, low: Any, high: Any, written: Cell, indices: Any, values: Any) -> None:
    """Write the marked columns, in ascending order, and their totals to indices[written …] and values[written …]; clear them."""

    def write(column: Expr) -> None:
        T.buffer_store(indices, tirx.Cast("int32", column), [written.value])
        T.buffer_store(values, totals[column], [written.value])
        T.buffer_store(totals, tirx.const(0, totals.dtype), [column])
        written.add(ONE)

    with T.serial(ZERO, tirx.shift_right(width + 4095, whole(12))) as block:
        for_each_bit(high, block, lambda word: for_each_bit(low, word, write))


def for_each_bit(words: Any, word: Expr, body: Callable[[Expr], None]) -> None:
    """body(number) for each bit that is set in words[word], ascending. Bits are counted from those of words[0] on. Clears the word."""
    left = Cell("uint64")
    left.set(words[word])
    T.buffer_store(words, whole(0, "uint64"), [word])
    with T.While(tirx.NE(left.value, whole(0, "uint64"))):
        zeros = tirx.call_llvm_pure_intrin("uint64", "llvm.cttz.i64", left.value, tirx.const(True, "bool"))
        number = T.Bind(word * 64 + tirx.Cast("int64", zeros))
        left.set(tirx.bitwise_and(left.value, left.value - whole(1, "uint64")))
        body(number)
