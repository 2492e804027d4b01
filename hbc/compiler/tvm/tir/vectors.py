"""Vector statements of TIR: consecutive elements, and AVX-512's permutations of bytes."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr


def as_vector(buffer: Any) -> Any:
    """A matrix as a vector: of a matrix, TVM takes a run of elements apart."""
    # The length is never tested; of one that is not a constant, TVM adds an offset to vectors of indices.
    return T.decl_buffer((1 << 30,), buffer.dtype, data=buffer.data, align=buffer.data_alignment, layout=None)


def vector(buffer: Any, start: Expr, lanes: int) -> Expr:
    """Consecutive elements of a buffer."""
    return buffer[start if lanes == 1 else tirx.Ramp(start, tirx.const(1, "int64"), lanes)]


def store(buffer: Any, value: Expr, start: Expr, lanes: int) -> None:
    """Consecutive elements of a buffer become those of a vector."""
    T.buffer_store(buffer, value, [start if lanes == 1 else tirx.Ramp(start, tirx.const(1, "int64"), lanes)])


def broadcast(value: Expr, lanes: int) -> Expr:
    """The same value in every lane; with one lane, the value itself."""
    return value if lanes == 1 else tirx.Broadcast(value, lanes)


def many(dtype: str, lanes: int) -> str:
    """The dtype of a vector, or of its element."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def any_of(conditions: Expr, lanes: int) -> Expr:
    """Whether some lane's condition is true."""
    if lanes == 1:
        return conditions
    return tirx.LT(tirx.const(0, "int32"), count_of(conditions, lanes))


def count_of(conditions: Expr, lanes: int) -> Expr:
    """In how many of several lanes the condition is true, i32."""
    return tirx.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{lanes}i32", tirx.Cast(f"int32x{lanes}", conditions))


def permute(table: list[Expr], index: Expr) -> Expr:
    """table[index] for 64 bytes of indices, from a table of 64, 128 or 256 bytes in as many registers (AVX-512 VBMI)."""
    if len(table) == 1:
        return tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.permvar.qi.512", table[0], index)
    if len(table) == 2:
        return tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.vpermi2var.qi.512", table[0], index, table[1])
    lower_half = tirx.LT(index, tirx.Broadcast(tirx.const(128, "uint8"), 64))
    return tirx.Select(lower_half, permute(table[:2], index), permute(table[2:], index))


def shuffled(vectors: list[Expr], places: list[int]) -> Expr:
    """A vector of elements of others, by their numbers if those stood one after the other."""
    return tirx.Shuffle(vectors, [tirx.const(place, "int32") for place in places])


def as_signed(bytes_: Expr, lanes: int) -> Expr:
    """The same bits as signed bytes."""
    return tirx.reinterpret(many("int8", lanes), bytes_)


REGISTER_TABLES = {"f32": ("sf", "ps"), "f64": ("df", "pd"), "i32": ("si", "d"), "i64": ("di", "q")}
"""The dtypes whose tables AVX-512 looks up in registers, as its instructions for one register and for two are called."""


def look_up(table: list[Expr], index: Expr, dtype: str) -> Expr:
    """table[index] for a register of indices, integers as wide as the elements, from a table in 2^k registers; of larger indices the
    lower bits count (AVX-512)."""
    one, two = REGISTER_TABLES[dtype]
    lanes = 512 // int(dtype[1:])
    result = f"{'float' if dtype[0] == 'f' else 'int'}{dtype[1:]}x{lanes}"
    if len(table) == 1:
        return tirx.call_llvm_pure_intrin(result, f"llvm.x86.avx512.permvar.{one}.512", table[0], index)
    if len(table) == 2:
        return tirx.call_llvm_pure_intrin(result, f"llvm.x86.avx512.vpermi2var.{two}.512", table[0], index, table[1])
    half = len(table) // 2
    bit, zero = (tirx.Broadcast(tirx.const(value, f"int{dtype[1:]}"), lanes) for value in (half * lanes, 0))
    lower = tirx.EQ(tirx.bitwise_and(index, bit), zero)
    return tirx.Select(lower, look_up(table[:half], index, dtype), look_up(table[half:], index, dtype))
