"""Hashes of texts in TIR: of the terms that are looked up in a table, and of the names that scikit-learn's hashing turns into columns."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.host.cells import ONE, ZERO, Cell, when, whole
from hbc.compiler.tvm.tir.dialect import Expr

LOW, FACTORS = 0xFFFFFFFF, (0xE35E67B1, 0x9E3779B1)


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
        place = T.Bind(tirx.Cast("uint64", pending.value * 8))
        with T.If(code < u64(0x80)):  # by far the most: they need none of the other lengths
            with T.Then():
                waiting.set(tirx.bitwise_or(waiting.value, tirx.shift_left(code, place)))
                pending.add(ONE)
                count.add(ONE)
            with T.Else():
                bytes_, size = encoded(code, 2), whole(2)
                for limit, many in ((0x800, 3), (0x10000, 4)):
                    beyond = code >= u64(limit)
                    bytes_, size = tirx.Select(beyond, encoded(code, many), bytes_), tirx.Select(beyond, whole(many), size)
                size = T.Bind(size)
                waiting.set(tirx.bitwise_or(waiting.value, tirx.shift_left(bytes_, place)))
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


def place_of(signed: Expr, width: Expr, alternate: Expr) -> tuple[Expr, Expr]:
    """(column, minus) of a hash: |hash| mod width, and whether its value is subtracted."""
    size = T.Bind(tirx.Select(signed < 0, -signed, signed))
    lowest = whole(2147483647) - (width - 1)  # the source's own rule for -2³¹, since int32 has no 2³¹
    size = T.Bind(tirx.Select(tirx.EQ(signed, whole(-(2**31))), lowest, size))
    return T.Bind(tirx.truncmod(size, width)), tirx.And(tirx.NE(alternate, ZERO), signed < 0)
