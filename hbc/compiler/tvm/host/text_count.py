"""The compiled functions of terms.py in TIR: they cut documents into terms, look these up or hash them, and count them.

    for each document:
        for each character: copy it, normalized; at the end of a word, look it up and count it         # term_counts
        for each sequence of `least` … `most` units (words or characters) of the copy:
            hash = joined(joined(unit, unit), unit) …
            column = look-up of the hash in the table, compared with the term's text; or murmur(text) mod width
            totals[column] += 1; mark the column in the bitmap
        write the marked columns and their totals, in ascending order; clear them                      # write_columns

`item_sums` does the same for dicts of numbers: it hashes their names, and adds their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import is_nan

WORD, BLANK = 1, 2
"""Bits of a character's class: whether the regular expressions \\w and \\s match it."""
LOW, FACTORS = 0xFFFFFFFF, (0xE35E67B1, 0x9E3779B1)
ZERO, ONE = tirx.const(0, "int64"), tirx.const(1, "int64")


class Cell:
    """A variable in the emitted code."""

    def __init__(self, dtype: str, value: int = 0) -> None:
        self.dtype, self.buffer = dtype, T.alloc_buffer((1,), dtype, scope="global")
        self.set(tirx.const(value, dtype))

    @property
    def value(self) -> Expr:
        return self.buffer[0]

    def set(self, value: Expr) -> None:
        T.buffer_store(self.buffer, value, [0])

    def add(self, value: Expr) -> None:
        self.set(self.value + value)


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """The statements in here run if the condition is true."""
    with T.If(condition), T.Then():
        yield


def whole(value: int, dtype: str = "int64") -> Expr:
    """A constant of an integer dtype."""
    return tirx.const(int(value), dtype)


def spread(x: Expr) -> Expr:
    """x u64 with its bits mixed.

    TVM tells LLVM that products and sums of unsigned numbers don't overflow, and LLVM may do anything with those that do: a hash by 32-bit
    products lost its first block. So the two halves of x are multiplied on their own, and joined by bit operations.
    """
    lower, upper = tirx.bitwise_and(x, whole(LOW, "uint64")), tirx.shift_right(x, whole(32, "uint64"))
    first, second = T.Bind(tirx.Mul(lower, whole(FACTORS[0], "uint64"))), T.Bind(tirx.Mul(upper, whole(FACTORS[1], "uint64")))
    turned = tirx.bitwise_or(tirx.shift_left(second, whole(32, "uint64")), tirx.shift_right(second, whole(32, "uint64")))
    mixed = T.Bind(tirx.bitwise_xor(first, turned))
    return T.Bind(tirx.bitwise_xor(mixed, tirx.shift_right(mixed, whole(29, "uint64"))))


def followed(hash_: Expr, code: Expr) -> Expr:
    """The hash of a word after one more character. It is 0 before the first. So it also makes the hash of a single character."""
    return spread(tirx.bitwise_xor(turned(hash_), tirx.Cast("uint64", code) + whole(1, "uint64")))


def joined(hash_: Expr, unit: Expr) -> Expr:
    """The hash of a term after one more unit. At first it is the hash of the first unit."""
    return spread(tirx.bitwise_xor(turned(hash_), unit))


def turned(x: Expr) -> Expr:
    """x u64, its bits rotated by 23 places. So a hash depends on the order of the parts."""
    return tirx.bitwise_or(tirx.shift_left(x, whole(23, "uint64")), tirx.shift_right(x, whole(41, "uint64")))


def argument(name: str, dtype: str, *shape: Any) -> Any:
    """A parameter of a function: a buffer of one dimension, or of `shape`."""
    sizes = shape or (tirx.Var(f"{name}_size", "int64"),)
    return tirx.decl_buffer(sizes, dtype, name=name, data_alignment=np.dtype(dtype).itemsize)


def slot(number: Expr, hash_: Expr) -> Expr:
    """The content of a slot of the table: the upper half of the term's hash, and the term's number + 1. 0 is an empty slot."""
    high = tirx.bitwise_and(hash_, whole(0xFFFFFFFF00000000, "uint64"))
    return tirx.bitwise_or(high, tirx.Cast("uint64", number + 1))


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


def term_counts(analyzer: str, hashed: bool) -> tirx.PrimFunc:
    """`term_counts(codes u32, offsets i64[D + 1], classes u8, …table, copy u32, first i64, end i64, hashes u64, totals i32, low u64,
    high u64, indptr i64[D + 1], indices i32, counts i32, D, least, most, shortest, width, alternate)` in TIR. The parameters from D on are
    i64.

    It writes the columns of D documents and their counts as a sparse matrix (indptr, indices, counts). The arrays from `copy` to `high` are
    memory to work in: for a document's normalized copy, its words, and its columns. The last, `totals`, `low` and `high`, are 0 before and
    after a call.
    """
    documents, size = tirx.Var("documents", "int64"), tirx.Var("size", "int64")
    codes, offsets, kinds = (
        argument("codes", "uint32"),
        argument("offsets", "int64"),
        argument("classes", "uint8"),
    )
    slots, texts, starts = argument("slots", "uint64", size), argument("texts", "uint32"), argument("starts", "int64")
    columns, left_out = argument("columns", "int32"), argument("left_out", "uint8")
    copy, first, end, hashes = (
        argument(name, dtype)
        for name, dtype in (("copy", "uint32"), ("first", "int64"), ("end", "int64"), ("hashes", "uint64"))
    )
    totals, low, high = argument("totals", "int32"), argument("low", "uint64"), argument("high", "uint64")
    indptr, indices, counts = (argument(*what) for what in (("indptr", "int64"), ("indices", "int32"), ("counts", "int32")))
    least, most, shortest, width, alternate = (
        tirx.Var(n, "int64") for n in ("least", "most", "shortest", "width", "alternate")
    )
    space = whole(ord(" "), "uint32")

    def find(hash_: Expr, start: Expr, length: Expr) -> Expr:
        """The number of the term copy[start : start + length] in the table, or -1 if it is not there."""
        mask, place, found = T.Bind(size - 1), Cell("int64"), Cell("int64", -2)
        place.set(tirx.bitwise_and(tirx.Cast("int64", hash_), mask))
        with T.While(tirx.EQ(found.value, whole(-2))):
            content = T.Bind(slots[place.value])
            with T.If(tirx.EQ(content, whole(0, "uint64"))):
                with T.Then():
                    found.set(whole(-1))
                with T.Else():
                    term = T.Bind(tirx.Cast("int64", tirx.bitwise_and(content, whole(0xFFFFFFFF, "uint64"))) - 1)
                    begin = T.Bind(starts[term])
                    alike = tirx.And(tirx.EQ(content, slot(term, hash_)), tirx.EQ(starts[term + 1] - begin, length))
                    with when(alike):
                        differ = Cell("uint32")
                        with T.serial(ZERO, length) as i:
                            other = tirx.bitwise_xor(texts[begin + i], copy[start + i])
                            differ.set(tirx.bitwise_or(differ.value, other))
                        with when(tirx.EQ(differ.value, whole(0, "uint32"))):
                            found.set(term)
                    place.set(tirx.bitwise_and(place.value + 1, mask))
        return T.Bind(found.value)

    def count(hash_: Callable[[], Expr], start: Expr, length: Expr) -> None:
        """Count the term copy[start : start + length]. hash_ makes its hash, if it is looked up."""
        if hashed:
            column, minus = place_of(murmur(copy, start, length), width, alternate)
            add_to(column, tirx.Select(minus, whole(-1, "int32"), whole(1, "int32")), totals, low, high)
            return
        count_found(find(hash_(), start, length))

    def count_found(term: Expr) -> None:
        with when(term >= 0):
            column = T.Bind(tirx.Cast("int64", columns[term]))
            with when(column >= 0):
                add_to(column, whole(1, "int32"), totals, low, high)

    def count_word(term: Expr, start: Expr, length: Expr) -> None:
        """Count the word copy[start : start + length]. term: its number in the table, or -1."""
        count(lambda: whole(0, "uint64"), start, length) if hashed else count_found(term)

    def count_sequences(units: Expr, span: Callable[[Expr, Expr], tuple[Expr, Expr]], unit: Callable[[Expr], Expr]) -> None:
        """Count the terms of `least` to `most` units; single words have been counted before.

        span(i, j): where the term of the units i … j begins in `copy`, and its length. unit(i): the hash of unit i.
        """
        shortest_one = tirx.Max(least, whole(2)) if analyzer == "word" else least
        with T.serial(ZERO, tirx.Max(tirx.Min(most, units) - shortest_one + 1, ZERO)) as longer:
            n = T.Bind(shortest_one + longer)
            with T.serial(ZERO, units - n + 1) as i:

                def hash_() -> Expr:
                    total = Cell("uint64")
                    total.set(unit(i))
                    with T.serial(ONE, n) as j:
                        total.set(joined(total.value, unit(i + j)))
                    return T.Bind(total.value)

                count(hash_, *span(i, i + n - 1))

    def of_character(i: Expr) -> Expr:
        return followed(whole(0, "uint64"), copy[i])

    def count_words(code: Expr, inside: Expr) -> None:
        """Analyzer "word": take the next character. Not `inside` a word, the current word ends; it is counted and kept as a unit."""
        with T.If(inside):
            with T.Then():
                T.buffer_store(copy, code, [length.value])
                length.add(ONE)
                word.set(followed(word.value, code))
            with T.Else():
                size = T.Bind(length.value - begin.value)
                term, kept = Cell("int64", -1), Cell("bool")
                with when(size >= shortest):
                    term.set(find(word.value, begin.value, size))
                    kept.set(tirx.const(True, "bool"))
                    with when(term.value >= 0):
                        kept.set(tirx.EQ(left_out[term.value], whole(0, "uint8")))
                with when(kept.value):
                    with when(tirx.EQ(least, ONE)):
                        count_word(term.value, begin.value, size)
                    for array, value in ((first, begin.value), (end, length.value), (hashes, word.value)):
                        T.buffer_store(array, value, [units.value])
                    units.add(ONE)
                    T.buffer_store(copy, space, [length.value])
                    length.add(ONE)
                    begin.set(length.value)
                length.set(begin.value)
                word.set(whole(0, "uint64"))

    def copy_character(code: Expr, inside: Expr) -> None:
        """Analyzer "char": copy the next character, if there is one (`inside`). Two or more blanks become one space."""
        blank = tirx.NE(tirx.bitwise_and(kinds[code], whole(BLANK, "uint8")), whole(0, "uint8"))
        with when(inside):
            blanks.set(tirx.Select(blank, blanks.value + 1, ZERO))
            with T.If(blanks.value >= 2):
                with T.Then():
                    T.buffer_store(copy, space, [length.value - 1])
                with T.Else():
                    T.buffer_store(copy, code, [length.value])
                    length.add(ONE)

    def count_within_words(code: Expr, inside: Expr) -> None:
        """Analyzer "char_wb": take the next character. Not `inside` a word, the current word ends, gets a space at both ends, and its
        sequences of characters are counted."""
        with T.If(inside):
            with T.Then():
                T.buffer_store(copy, code, [length.value + 1])
                length.add(ONE)
            with T.Else(), when(length.value > 0):
                padded = T.Bind(length.value + 2)
                T.buffer_store(copy, space, [0])
                T.buffer_store(copy, space, [padded - 1])
                longest = tirx.Min(padded - 1, most)
                with T.serial(ZERO, tirx.Max(longest - least + 1, ZERO)) as longer:
                    n = T.Bind(least + longer)
                    with T.serial(ZERO, padded - n + 1) as i:
                        count(lambda: of_characters(i, n), i, n)
                with when(padded <= most):  # a short word counts once
                    count(lambda: of_characters(ZERO, padded), ZERO, padded)
                length.set(ZERO)

    def of_characters(start: Expr, n: Expr) -> Expr:
        total = Cell("uint64")
        total.set(of_character(start))
        with T.serial(ONE, n) as j:
            total.set(joined(total.value, of_character(start + j)))
        return T.Bind(total.value)

    with IRBuilder() as builder, T.serial(ZERO, documents) as document:
        written = Cell("int64")
        written.set(indptr[document])
        begin_of, characters = T.Bind(offsets[document]), T.Bind(offsets[document + 1] - offsets[document])
        length, begin, units, blanks, word = (Cell(dtype) for dtype in ("int64", "int64", "int64", "int64", "uint64"))
        with T.serial(ZERO, tirx.Select(characters > 0, characters + 1, ZERO)) as i:
            code = T.Bind(codes[begin_of + tirx.Min(i, characters - 1)])
            kind = T.Bind(kinds[code])
            there = T.Bind(i < characters)
            if analyzer == "word":
                count_words(code, tirx.And(there, tirx.NE(tirx.bitwise_and(kind, whole(WORD, "uint8")), whole(0, "uint8"))))
            elif analyzer == "char":
                copy_character(code, there)
            else:
                blank = tirx.NE(tirx.bitwise_and(kind, whole(BLANK, "uint8")), whole(0, "uint8"))
                count_within_words(code, tirx.And(there, tirx.Not(blank)))
        if analyzer == "word":
            count_sequences(T.Bind(units.value), lambda a, b: (first[a], end[b] - first[a]), lambda i: hashes[i])
        elif analyzer == "char":
            count_sequences(T.Bind(length.value), lambda a, b: (a, b - a + 1), of_character)

        write_columns(width, totals, low, high, written, indices, counts)
        T.buffer_store(indptr, written.value, [document + 1])
    parameters = [codes, offsets, kinds, slots, texts, starts, columns, left_out, copy, first, end, hashes, totals, low, high]
    parameters += [indptr, indices, counts, documents, least, most, shortest, width, alternate]
    return tirx.PrimFunc(parameters, builder.get()).with_attr("tirx.noalias", True)


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


def place_of(signed: Expr, width: Expr, alternate: Expr) -> tuple[Expr, Expr]:
    """(column, minus) of a hash: |hash| mod width, and whether its value is subtracted."""
    size = T.Bind(tirx.Select(signed < 0, -signed, signed))
    lowest = whole(2147483647) - (width - 1)  # the source's own rule for -2³¹, since int32 has no 2³¹
    size = T.Bind(tirx.Select(tirx.EQ(signed, whole(-(2**31))), lowest, size))
    return T.Bind(tirx.truncmod(size, width)), tirx.And(tirx.NE(alternate, ZERO), signed < 0)


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


def murmur(text: Any, start: Expr, length: Expr) -> Expr:
    """`murmur` of hbc/ops/vectorizers/hashing.py for text[start : start + length] as UTF-8, as i64."""

    def u64(value: int) -> Expr:
        return whole(value, "uint64")

    def cut(x: Expr) -> Expr:
        """x modulo 2^32. The numbers are u64, so that nothing overflows (see `spread`)."""
        return T.Bind(tirx.bitwise_and(x, u64(LOW)))

    def rotated(x: Expr, bits: int) -> Expr:
        return cut(tirx.bitwise_or(tirx.shift_left(x, u64(bits)), tirx.shift_right(x, u64(32 - bits))))

    def mixed(block: Expr) -> Expr:
        return cut(tirx.Mul(rotated(cut(tirx.Mul(cut(block), u64(0xCC9E2D51))), 15), u64(0x1B873593)))

    def tail(code: Expr, at: int) -> Expr:
        """A later byte of a character's UTF-8: its six bits from bit `at` on."""
        return tirx.bitwise_or(u64(0x80), tirx.bitwise_and(tirx.shift_right(code, u64(at)), u64(0x3F)))

    def encoded(code: Expr, count: int) -> Expr:
        """A character as `count` bytes of UTF-8 in one number, the first byte lowest."""
        lead = tirx.bitwise_or(u64(0xF00 >> count & 0xFF), tirx.shift_right(code, u64(6 * (count - 1))))
        for i in range(1, count):
            lead = tirx.bitwise_or(lead, tirx.shift_left(tail(code, 6 * (count - 1 - i)), u64(8 * i)))
        return lead

    total, waiting, pending, count = Cell("uint64"), Cell("uint64"), Cell("int64"), Cell("int64")
    with T.serial(ZERO, length) as i:
        code = T.Bind(tirx.Cast("uint64", text[start + i]))
        bytes_, size = code, ONE
        for limit, many in ((0x80, 2), (0x800, 3), (0x10000, 4)):
            beyond = code >= u64(limit)
            bytes_, size = tirx.Select(beyond, encoded(code, many), bytes_), tirx.Select(beyond, whole(many), size)
        size = T.Bind(size)
        shifted = tirx.shift_left(bytes_, tirx.Cast("uint64", pending.value * 8))
        waiting.set(tirx.bitwise_or(waiting.value, shifted))
        pending.add(size)
        count.add(size)
        with when(pending.value >= 4):
            rotation = rotated(tirx.bitwise_xor(total.value, mixed(waiting.value)), 13)
            total.set(cut(tirx.Mul(rotation, u64(5)) + u64(0xE6546B64)))
            waiting.set(tirx.shift_right(waiting.value, whole(32, "uint64")))
            pending.add(whole(-4))
    total.set(tirx.bitwise_xor(total.value, mixed(waiting.value)))  # mixed(0) is 0
    total.set(tirx.bitwise_xor(total.value, tirx.Cast("uint64", count.value)))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = T.Bind(total.value)
        total.set(cut(tirx.Mul(tirx.bitwise_xor(x, tirx.shift_right(x, u64(shift))), u64(factor))))
    return T.Bind(tirx.Cast("int64", tirx.reinterpret("int32", tirx.Cast("uint32", total.value))))
