"""Vector statements of TIR: consecutive elements, and permutations of bytes of AVX-512, AVX2 and NEON."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Dialect, Expr


def as_vector(buffer: Any) -> Any:
    """The same memory as a buffer of one dimension. TVM reads a run of elements of a matrix one by one, of a vector at once."""
    # Nothing tests the length. If it weren't a constant, TVM would add an offset to vectors of indices.
    return T.decl_buffer((1 << 30,), buffer.dtype, data=buffer.data, align=buffer.data_alignment, layout=None)


def as_bytes(buffer: Any) -> Any:
    """The same memory as a buffer of bytes."""
    return T.decl_buffer((1 << 30,), "uint8", data=buffer.data, align=1, layout=None)


def vector(buffer: Any, start: Expr, lanes: int) -> Expr:
    """buffer[start : start + lanes], as a vector."""
    return buffer[start if lanes == 1 else tirx.Ramp(start, tirx.const(1, "int64"), lanes)]


def store(buffer: Any, value: Expr, start: Expr, lanes: int) -> None:
    """buffer[start : start + lanes] = value."""
    T.buffer_store(buffer, value, [start if lanes == 1 else tirx.Ramp(start, tirx.const(1, "int64"), lanes)])


def once_if(condition: Expr) -> AbstractContextManager[Expr]:
    """Code that runs if a condition holds: a bool, or an i64 that is 0 or 1. It is a loop of one or no round, since under an `if` TVM's
    lowering spoils vectors of indices. Yields the number of the round, which is 0."""
    rounds = tirx.Cast("int64", condition) if str(condition.ty) == "bool" else condition
    return T.serial(tirx.const(0, "int64"), rounds)  # type: ignore[no-any-return]


def broadcast(value: Expr, lanes: int) -> Expr:
    """The same value in every lane; with one lane, the value itself."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def many(dtype: str, lanes: int) -> str:
    """The dtype of a vector of so many lanes; with one lane, the dtype itself."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def any_of(conditions: Expr, lanes: int) -> Expr:
    """Whether the condition is true in any lane."""
    if lanes == 1:
        return conditions
    return tirx.LT(tirx.const(0, "int32"), count_of(conditions, lanes))


def count_of(conditions: Expr, lanes: int) -> Expr:
    """The number of lanes in which the condition is true, i32. At least two lanes."""
    return tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{lanes}i32", tirx.Cast(f"int32x{lanes}", conditions))


def bits_of_bytes(conditions: Expr) -> Expr:
    """32 conditions as the bits of a number, i32 (AVX2)."""
    ones, zero = (broadcast(tirx.const(value, "int8"), 32) for value in (-1, 0))
    return tirx.call_llvm_pure_intrin("int32", "llvm.x86.avx2.pmovmskb", tirx.Select(conditions, ones, zero))


def permute(table: list[Expr], index: Expr, page: Expr | None = None) -> Expr:
    """table[256 · page + index] for 64 bytes of indices (AVX-512 VBMI). The table is in registers of 64 bytes: one, or an even number.
    page: 64 bytes, needed if the table has more than 256 bytes."""
    if len(table) == 1:
        return tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.permvar.qi.512", table[0], index)
    if len(table) == 2:
        return tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.vpermi2var.qi.512", table[0], index, table[1])
    if len(table) <= 4:
        lower = tirx.LT(index, tirx.Broadcast(tirx.const(128, "uint8"), 64))
        return tirx.Select(lower, permute(table[:2], index), permute(table[2:], index))
    # The highest bit of the page says which half.
    assert page is not None
    half = 4
    while 2 * half < len(table):
        half *= 2
    bit, zero = (tirx.Broadcast(tirx.const(value, "uint8"), 64) for value in (half // 4, 0))
    upper = tirx.LT(zero, tirx.bitwise_and(page, bit))
    return tirx.Select(upper, permute(table[half:], index, page), permute(table[:half], index, page))


def permute_halves(table: list[Expr], index: Expr, dialect: Dialect) -> Expr:
    """table[index] for 32 bytes of indices, each less than 128. The table is in one to eight vectors of 16 bytes (AVX2, NEON).

    AVX2 looks up 16 bytes by the lowest four bits of an index. Every part of the table is looked up, then bit 4 of the index chooses in
    each pair of parts, bit 5 in each pair of pairs, and so on. A choice reads the highest bit of a byte. A shift of 16-bit numbers brings
    the bit there; what it brings into the lower bits is not read. NEON looks up 64 bytes, and gives 0 for an index beyond them.
    """
    if dialect.neon:
        first = _look_up_neon(table[:4], index)
        if len(table) <= 4:
            return first
        second = _look_up_neon(table[4:], tirx.Sub(index, tirx.Broadcast(tirx.const(64, "uint8"), 32)))
        return tirx.bitwise_or(first, second)
    found = [_look_up_part(part, index) for part in table]
    pairs, zero = tirx.reinterpret(many("uint16", 16), index), tirx.Broadcast(tirx.const(0, "int8"), 32)
    for shift in (3, 2, 1)[: (len(table) - 1).bit_length()]:
        shifted = tirx.shift_left(pairs, tirx.Broadcast(tirx.const(shift, "uint16"), 16))
        later = tirx.LT(tirx.reinterpret(many("int8", 32), shifted), zero)
        chosen = [tirx.Select(later, found[i + 1], found[i]) for i in range(0, len(found) - 1, 2)]
        found = chosen + found[2 * len(chosen) :]
    return found[0]


def look_up_apart(table: list[Expr], index: Expr) -> Expr:
    """table[index - 0x70] for 32 bytes of indices, in a table of two vectors of 16 bytes (AVX2).

    Of indices from 0x80 on the look-up in the first part gives 0, and of others that in the second part: so `or` joins them. A choice by a
    byte's highest bit takes the ports of look-ups, `or` takes any.
    """
    later = tirx.bitwise_xor(index, tirx.Broadcast(tirx.const(0x80, "uint8"), 32))
    return tirx.bitwise_or(_look_up_part(table[0], index), _look_up_part(table[1], later))


def places_in_parts(index: Expr, parts: int, dialect: Dialect) -> list[Expr]:
    """What `look_up_parts` takes for 32 bytes of indices into a table of so many vectors of 16 bytes: one, two or four. No index lies
    beyond the table.

    AVX2 looks up 16 bytes by the lowest four bits of an index, and gives 0 where its highest bit is set. (index ^ 16·part) + 0x70 has that
    bit for all indices but those of the part, so that a sum or `or` joins the parts. NEON takes the index itself.
    """
    if dialect.neon:
        return [index]
    own = [
        tirx.bitwise_xor(index, tirx.Broadcast(tirx.const(16 * part, "uint8"), 32)) if part else index for part in range(parts)
    ]
    return [tirx.Add(place, tirx.Broadcast(tirx.const(0x70, "uint8"), 32)) for place in own]


def look_up_parts(table: list[Expr], places: list[Expr], dialect: Dialect) -> list[Expr]:
    """Vectors whose sum is table[index] for 32 bytes of indices. places: `places_in_parts` of the index."""
    if dialect.neon:
        return [_look_up_neon(table, places[0])]
    return [_look_up_part(part, place) for part, place in zip(table, places, strict=True)]


def look_up_twice(table: Expr, index: Expr, dialect: Dialect) -> Expr:
    """table[index] for 32 bytes of indices, each less than 16. table: 16 bytes, twice."""
    if dialect.neon:
        return _look_up_neon([shuffled([table], list(range(16)))], index)
    return tirx.call_llvm_pure_intrin("uint8x32", "llvm.x86.avx2.pshuf.b", table, index)


def _look_up_part(part: Expr, place: Expr) -> Expr:
    """part[place % 16] for 32 bytes, 0 where place > 127 (AVX2). part: 16 bytes of a table."""
    table = shuffled([part, part], list(range(32)))
    return tirx.call_llvm_pure_intrin("uint8x32", "llvm.x86.avx2.pshuf.b", table, place)


def _look_up_neon(table: list[Expr], index: Expr) -> Expr:
    """table[index] for 32 bytes of indices, 0 beyond the table, which is in one to four vectors of 16 bytes (NEON)."""
    halves = [shuffled([index], list(range(first, first + 16))) for first in (0, 16)]
    name = f"llvm.aarch64.neon.tbl{len(table)}.v16i8"
    return shuffled([tirx.call_llvm_pure_intrin("uint8x16", name, *table, half) for half in halves], list(range(32)))


def shuffled(vectors: list[Expr], places: list[int]) -> Expr:
    """The vector of concatenate(vectors)[places]."""
    return tirx.Shuffle(vectors, [tirx.const(place, "int32") for place in places])


def side_by_side(values: list[Expr]) -> Expr:
    """Single values as the lanes of a vector; of one value, the value itself."""
    return values[0] if len(values) == 1 else shuffled(values, list(range(len(values))))


def as_signed(bytes_: Expr, lanes: int) -> Expr:
    """The same bits as signed bytes."""
    return tirx.reinterpret(many("int8", lanes), bytes_)


REGISTER_TABLES = {"f32": ("sf", "ps"), "f64": ("df", "pd"), "i32": ("si", "d"), "i64": ("di", "q")}
"""The dtypes whose tables AVX-512 looks up in registers → the suffixes of its instructions for a table of one register and of two."""


def look_up(table: list[Expr], index: Expr, dtype: str, lanes: int) -> Expr:
    """table[index] for a register of indices, which are integers as wide as the elements. The table is in 2^k registers of so many lanes:
    of AVX-512, or for f32 of AVX2.

    Of an index beyond the table only the lower bits count.
    """
    one, two = REGISTER_TABLES[dtype]
    wide = lanes * int(dtype[1:]) == 512
    result = f"{'float' if dtype[0] == 'f' else 'int'}{dtype[1:]}x{lanes}"
    if len(table) == 1:
        permute = f"llvm.x86.avx512.permvar.{one}.512" if wide else "llvm.x86.avx2.permps"
        return tirx.call_llvm_pure_intrin(result, permute, table[0], index)
    if len(table) == 2 and wide:
        return tirx.call_llvm_pure_intrin(result, f"llvm.x86.avx512.vpermi2var.{two}.512", table[0], index, table[1])
    half = len(table) // 2
    bit, zero = (tirx.Broadcast(tirx.const(value, f"int{dtype[1:]}"), lanes) for value in (half * lanes, 0))
    lower = tirx.EQ(tirx.bitwise_and(index, bit), zero)
    return tirx.Select(lower, look_up(table[:half], index, dtype, lanes), look_up(table[half:], index, dtype, lanes))


def prefetch(element: Expr) -> None:
    """Bring the cache line of an element of a buffer to the first cache, without waiting for it."""
    options = (tirx.const(option, "int32") for option in (0, 3, 1))  # to read; to the first cache; data
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(element), *options))
