"""What runs code for AVX-512 without such a processor (tests/avx512_on_cpu): each instruction against the manual's words in numpy. On a
processor with AVX-512 the instruction itself is compared as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hbc.ir.types import Array

pytest.importorskip("tvm")
from avx512_on_cpu import cannot_run, emulated, with_functions
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.run.cache import compiled
from hbc.compiler.tvm.run.executable import as_tensor
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.tir.vectors import store, vector

pytestmark = [
    pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run())),
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered"),
]
ZEN_4 = {"kind": "llvm", "mcpu": "znver4"}
RNG = np.random.default_rng(0)
ROUNDS = 40


def executed(name: str, operands: tuple[Any, ...], lanes: int, always: bool) -> Array:
    """The results of an instruction for arrays of operands, of which each call takes `lanes`. Numbers are constants of the call; the last
    of them are those of `Lines.avx512` where the instruction has a mask."""
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    result = np.empty_like(arrays[0])
    buffers = [
        tirx.decl_buffer(array.shape, str(array.dtype), name=f"a{i}", data_alignment=array.itemsize)
        for i, array in enumerate((*arrays, result))
    ]
    with IRBuilder() as builder, T.serial(tirx.const(0, "int64"), tirx.const(len(result) // lanes, "int64")) as i:
        read = iter(vector(buffer, i * lanes, lanes) for buffer in buffers)
        values = [next(read) if isinstance(each, np.ndarray) else tirx.const(each, "int32") for each in operands]
        if name.startswith("mask."):
            values += [tirx.const(-1, f"int{lanes}"), tirx.const(4, "int32")]
        kind = f"{result.dtype}x{lanes}"
        store(buffers[-1], tirx.call_llvm_pure_intrin(kind, f"llvm.x86.avx512.{name}", *values), i * lanes, lanes)
    function = tirx.PrimFunc(buffers, builder.get())
    with emulated(always=always):
        compiled(function, machine("cpu", ZEN_4))(*map(as_tensor, (*arrays, result)))
    return result


def in_blocks(lanes: int, *arrays: Array) -> list[Array]:
    return [array.reshape(-1, lanes) for array in arrays]


def one_table(lanes: int) -> Callable[..., Array]:
    """Only the lower bits of an index count."""
    return lambda table, index: np.take_along_axis(*in_blocks(lanes, table, index % lanes), axis=1).ravel()


def two_tables(lanes: int) -> Callable[..., Array]:
    def looked_up(low: Array, index: Array, high: Array) -> Array:
        low, index, high = in_blocks(lanes, low, index % (2 * lanes), high)
        return np.take_along_axis(np.hstack([low, high]), index, axis=1).ravel()

    return looked_up


def parts_of_16(table: Array, index: Array) -> Array:
    """The highest bit of an index makes the result 0."""
    return np.where(index >= 128, 0, one_table(16)(table, index)).astype(table.dtype)


def any_bitwise(a: Array, b: Array, c: Array, table: int) -> Array:
    bits = np.stack([np.unpackbits(x.view(np.uint8)) for x in (a, b, c)])
    return np.packbits(table >> (4 * bits[0] + 2 * bits[1] + bits[2]).astype(int) & 1).view(a.dtype)


def is_quiet(x: Array) -> Array:
    """Whether NaN is quiet: by the highest bit of the mantissa."""
    return x.view(f"u{x.itemsize}") >> (22 if x.itemsize == 4 else 51) & 1 == 1


def scaled(a: Array, b: Array) -> Array:
    """a · 2^floor(b). NaN comes from either, from 0 · 2^∞ and from ∞ · 2^-∞; but NaN · 2^∞ is ∞, and NaN · 2^-∞ is 0, for quiet NaN."""
    value = np.ldexp(a, np.clip(np.floor(b), -9999, 9999).astype(int))
    value[np.isinf(b)] = (a * np.exp2(b))[np.isinf(b)]
    value[np.isnan(b)] = np.nan
    lost = np.isnan(a) & is_quiet(a) & np.isinf(b)
    return np.where(lost, np.maximum(b, 0), value)


def exponent(x: Array) -> Array:
    """floor(log2 |x|), also of subnormal numbers."""
    _, power = np.frexp(x)
    return np.where(np.isfinite(x) & (x != 0), power - 1, np.log2(np.abs(x))).astype(x.dtype)


def mantissa(x: Array, code: int) -> Array:
    """±1 ≤ m < ±2. With code 8, NaN for negative x. 1 for 0 and ∞."""
    assert code in (0, 8)
    size = np.where(np.isfinite(x) & (x != 0), 2 * np.frexp(np.abs(x))[0], np.where(np.isnan(x), x, 1))
    value = np.copysign(size, x).astype(x.dtype)
    return np.where((x < 0) & (code == 8), np.nan, value).astype(x.dtype)


ANSWERS = (None, "x", np.nan, np.nan, -np.inf, np.inf, "sign", -0.0, 0.0, -1.0, 1.0, 0.5, 90.0, np.pi / 2, "max", "-max")


def fixed_up(kept: Array, x: Array, answers: Array, _flags: int) -> Array:
    """One of 16 answers for each of 8 classes: quiet NaN, signaling NaN, 0, 1, -∞, ∞, negative and positive numbers."""
    classes = [np.isnan(x) & is_quiet(x), np.isnan(x), x == 0, x == 1, x == -np.inf, x == np.inf, x < 0, x > 0]
    number = answers.astype(np.int64) >> (4 * np.select(classes, range(8))) & 15
    largest = np.finfo(x.dtype).max
    named = {"x": x, "sign": np.copysign(np.inf, x), "max": largest, "-max": -largest}
    choices = [kept if each is None else named[each] if isinstance(each, str) else each for each in ANSWERS]
    return np.choose(number, [np.broadcast_to(choice, x.shape) for choice in choices]).astype(x.dtype)


def whole(dtype: str, lanes: int) -> Array:
    """Any integers."""
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, ROUNDS * lanes, dtype=dtype, endpoint=True)


def real(dtype: str, lanes: int) -> Array:
    """Any bits, ordinary numbers, and those that are special."""
    values = whole(dtype.replace("float", "uint"), lanes).view(dtype)
    info = np.finfo(dtype)
    special = [0, 1, np.inf, np.nan, info.tiny, info.smallest_subnormal, info.max, 2, 0.5, 1.5, info.minexp - 30, 3000, 1e30]
    special = np.array([*special, *(-value for value in special)], dtype)
    ordinary = RNG.normal(size=len(values)) * 30
    return np.choose(RNG.integers(0, 3, len(values)), [values, ordinary.astype(dtype), RNG.choice(special, len(values))])


def cases() -> list[Any]:
    found: list[tuple[str, int, tuple[Any, ...], Callable[..., Array]]] = []
    for lanes in (32, 64):
        bytes_ = tuple(whole("uint8", lanes) for _ in range(3))
        found.append((f"permvar.qi.{8 * lanes}", lanes, bytes_[:2], one_table(lanes)))
    found.append(("vpermi2var.qi.512", 64, bytes_, two_tables(64)))
    found.append(("pshuf.b.512", 64, bytes_[:2], parts_of_16))
    found += [("pternlog.d.256", 8, (*(whole("int32", 8) for _ in range(3)), table), any_bitwise) for table in (0xCA, 0x17)]
    for one, two, dtype in (("sf", "ps", "float32"), ("df", "pd", "float64"), ("si", "d", "int32"), ("di", "q", "int64")):
        lanes, index_dtype = 512 // int(dtype[-2:]), f"int{dtype[-2:]}"
        low, high = ((real if dtype[0] == "f" else whole)(dtype, lanes) for _ in range(2))
        index = whole(index_dtype, lanes)
        found.append((f"permvar.{one}.512", lanes, (low, index), one_table(lanes)))
        found.append((f"vpermi2var.{two}.512", lanes, (low, index, high), two_tables(lanes)))
    for kind, dtype in (("ps", "float32"), ("pd", "float64")):
        lanes = 512 // int(dtype[-2:])
        a, b, answers = real(dtype, lanes), real(dtype, lanes), whole(f"int{dtype[-2:]}", lanes)
        found.append((f"mask.scalef.{kind}.512", lanes, (a, b, b), lambda a, b, _: scaled(a, b)))
        found.append((f"mask.getexp.{kind}.512", lanes, (a, b), lambda x, _: exponent(x)))
        found += [(f"mask.getmant.{kind}.512", lanes, (a, code, b), lambda x, code, _: mantissa(x, code)) for code in (0, 8)]
        found.append((f"mask.fixupimm.{kind}.512", lanes, (a, b, answers, 0), fixed_up))
    return [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(found)]


@pytest.mark.every_case
@pytest.mark.parametrize(("name", "lanes", "operands", "meaning"), cases())
def test_instructions(name: str, lanes: int, operands: tuple[Any, ...], meaning: Callable[..., Array]) -> None:
    expected = meaning(*operands)
    for always in (True, False) if machine("cpu", ZEN_4).missing is None else (False,):
        found = executed(name, operands, lanes, always)
        np.testing.assert_array_equal(found, expected)
        if found.dtype.kind == "f":
            known = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


def test_a_module_without_such_instructions_stays_as_it_is() -> None:
    text = "declare <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8>, <32 x i8>)\n"
    assert with_functions(text) == text


def test_the_computer_is_itself_again_after_it() -> None:
    before = machine("cpu", None), machine("cpu", ZEN_4).missing
    with emulated("znver4"):
        assert dict(machine("cpu", None).options)["mcpu"] == "znver4"
        assert machine("cpu", None).dialect.byte_permute
        assert machine("cpu", None).missing is None
    assert (machine("cpu", None), machine("cpu", ZEN_4).missing) == before
