"""The TVM backend's own elementary functions (compiler/tvm/tir/mathematics.py) against the next wider float type."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.functions import Function

pytest.importorskip("tvm")
from hbc.compiler.tvm.run.targets import host_machine

FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "exp": t.exp,
    "expm1": t.expm1,
    "log": t.log,
    "log1p": t.log1p,
    "log2": Function("log2"),
    "log10": Function("log10"),
    "tanh": t.tanh,
    "sigmoid": t.sigmoid,
    "sin": t.sin,
    "cos": t.cos,
}
REDUCED = ("sin", "cos")
"""Functions that the C library computes for arguments above a million."""
MOST_ULP = {name: 3.0 if name in ("log2", "log10") else 1.5 for name in (*FUNCTIONS, "power")}
OWN: dict[str, Any] = {}
TARGETS = [OWN, {"mcpu": "haswell"}, {"mcpu": "x86-64"}] if platform.machine() == "x86_64" else [OWN]
"""With 512-bit vectors where this computer has them, with 256 bits, and with 128 and no fused multiply-add."""

needs_longdouble = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="numpy's longdouble is no wider than float64")


def truth(name: str, x: Array) -> Array:
    if name != "sigmoid":
        return np.asarray(getattr(np, name)(x))
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def run(name: str, dtype: DType, values: Array, target: dict[str, Any] = OWN, columns: int = 0) -> Array:
    x = Input("x", dtype, ("N", columns) if columns else ("N",))()
    graph = Graph((x,), {"predict": (FUNCTIONS[name](x),)}).verify()
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target or None))
    if executable.methods.machine.missing is not None:
        pytest.skip(executable.methods.machine.missing)
    found: Array = executable.run("predict", [values])[0]
    return found


def edges(kind: type[np.floating[Any]]) -> Array:
    """The numbers at which a function overflows, vanishes or has a pole, and a few numbers on each side of them."""
    info = np.finfo(kind)
    at = [np.log(info.max), np.log(info.tiny), np.log(info.smallest_subnormal), 1.0, -1.0, info.tiny, info.smallest_subnormal]
    at += [info.max, np.log(2) / 2, -np.log(2) / 2, np.sqrt(0.5), np.sqrt(2), info.eps, -np.log(1 / info.eps), 20.0, 9.0, 0.0]
    values = np.array(at, kind)
    values = np.concatenate([values, -values])
    beside = [values]
    with np.errstate(over="ignore", under="ignore"):
        for direction in (kind(np.inf), kind(-np.inf)):
            step = values
            for _ in range(30):
                step = np.nextafter(step, direction)
                beside.append(step)
    return np.concatenate([*beside, np.array([np.inf, -np.inf, np.nan], kind)])


def samples(kind: type[np.floating[Any]]) -> Array:
    rng = np.random.default_rng(0)
    unsigned = np.uint32 if kind is np.float32 else np.uint64
    count, wide = 50_000, 110 if kind is np.float32 else 760
    parts = [
        rng.integers(0, np.iinfo(unsigned).max, count, dtype=unsigned, endpoint=True).view(kind),
        rng.uniform(-wide, wide, count),
        rng.uniform(-20, 20, count),
        rng.uniform(-1, 1, count),
        rng.uniform(0.5, 2, count),
        1 + rng.standard_normal(count) * 10.0 ** rng.integers(-12, 0, count),
        edges(kind),
    ]
    return np.concatenate([part.astype(kind) for part in parts])


@needs_longdouble
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.get("mcpu", "host"))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accurate(name: str, dtype: DType, target: dict[str, Any]) -> None:
    kind = NUMPY_DTYPES[dtype].type
    values = samples(kind)
    found = run(name, dtype, values, target)
    with np.errstate(all="ignore"):
        exact = truth(name, values.astype(np.float64 if dtype == "f32" else np.longdouble))
        expected = exact.astype(kind)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    # Subnormal results are held to the spacing of subnormals.
    ulp = np.spacing(np.abs(expected[finite])).astype(exact.dtype)
    assert (np.abs(found[finite].astype(exact.dtype) - exact[finite]) / ulp).max() <= MOST_ULP[name]
    signs = expected[finite] != 0
    np.testing.assert_array_equal(np.signbit(found[finite][signs]), np.signbit(expected[finite][signs]))


@pytest.mark.parametrize("name", ["log", "log2", "log10"])
def test_logarithms_where_intervals_meet(name: str) -> None:
    """Logarithms are right for numbers on both sides of the ends of every interval, with all exponents, and for many numbers around 1.
    There are intervals where the processor has AVX-512; elsewhere the accuracy is that of `test_accurate`."""
    ends = np.ldexp(np.float32(1 + np.arange(32) / 32), np.arange(-149, 128)[:, None]).astype(np.float32).ravel()
    bits = ends.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)
    around = np.arange(*np.array([0.9, 1.1], np.float32).view(np.int32), 7, dtype=np.int32)
    values = np.concatenate([bits.ravel(), around]).view(np.float32)
    values = values[values > 0]
    exact = truth(name, values.astype(np.float64))
    ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(run(name, "f32", values) - exact) / ulp).max() <= (1.5 if host_machine().dialect.wide else MOST_ULP[name])


INF, NAN = np.inf, np.nan
SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1e4, INF), (-1e4, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (NAN, NAN), (1e4, INF), (-1e4, -1.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-1e-40, NAN), (1.0, 0.0)],
    "log2": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-1e-40, NAN), (1.0, 0.0)],
    "log10": [(0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-1e-40, NAN), (1.0, 0.0)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, -INF), (-1.5, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (50.0, 1.0), (-1e4, -1.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1e-40), (-1e-30, -1e-30)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1.0), (-1e-30, 1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (1e4, 1.0), (-1e4, 0.0)],
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.get("mcpu", "host"))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, dtype: DType, target: dict[str, Any]) -> None:
    values, expected = np.array(SPECIAL[name], NUMPY_DTYPES[dtype]).T
    found = run(name, dtype, np.ascontiguousarray(values), target)
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_is_the_same_alone(name: str, dtype: DType) -> None:
    """The result of a row does not depend on the number of rows, or on the number of columns beside it."""
    values = np.random.default_rng(0).standard_normal((37, 3)).astype(NUMPY_DTYPES[dtype])
    together = run(name, dtype, values, columns=3)
    for rows in (1, 2, 15, 16, 17):
        np.testing.assert_array_equal(run(name, dtype, values[:rows], columns=3), together[:rows])
    np.testing.assert_array_equal(run(name, dtype, np.ascontiguousarray(values[:, 1])), together[:, 1])


@pytest.mark.parametrize("columns", [0, 3])
def test_elements_around_the_ends_of_blocks(columns: int) -> None:
    from hbc.compiler.tvm.plan.plan import FLAT_ROWS

    width = columns or 1
    values = np.random.default_rng(0).standard_normal((2 * FLAT_ROWS + 5, width))
    for elements in (FLAT_ROWS - 1, FLAT_ROWS, FLAT_ROWS + 1, 2 * FLAT_ROWS + 5 * width):
        some = values[: -(-elements // width)]
        some = some if columns else some.ravel()
        np.testing.assert_allclose(run("exp", "f64", some, columns=columns), np.exp(some), rtol=1e-15)


def test_elements_by_themselves_need_no_columns() -> None:
    """An elementwise function is computed over one long vector; one with a parameter for each row of a matrix is not."""
    from hbc.compiler.tvm.plan.plan import make_plan

    x = Input("x", "f32", ("N", 3))()
    assert make_plan((t.exp(x),), flatten=True).row == (3,)
    assert make_plan((t.exp(x),)).row is None
    matrix = Input("x", "f32", ("N", 2, 3))()
    assert make_plan((t.mul(matrix, np.float32([[1], [2]])),), flatten=True).row is None
    values = np.arange(111, dtype=np.float32).reshape(37, 3) / 100
    found = run("exp", "f32", values, columns=3)
    assert found.shape == (37, 3)
    np.testing.assert_allclose(found, np.exp(values), rtol=1e-6)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks at x86-64 code")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_library_is_called(name: str) -> None:
    x = Input("x", "f64", ("N",))()
    graph = Graph((x,), {"predict": (FUNCTIONS[name](x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target={"mcpu": "skylake-avx512"}))
    code = executable.methods.source("asm")
    assert (f"{name}@" in code) == (name in REDUCED)
    assert "exp@" not in code
    assert "zmm" in code
    assert "vdivsd" not in code


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_other_architectures_get_the_same(dtype: DType) -> None:
    x = Input("x", dtype, ("N",))()
    graph = Graph((x,), {"predict": tuple(function(x) for name, function in FUNCTIONS.items() if name not in REDUCED)})
    target = {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    code = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target)).methods.source("asm")
    assert "fmla" in code
    assert not any(f"bl\t{name}" in code for name in ("exp", "expf", "log", "logf", "tanh", "tanhf", "expm1", "log1p"))


@needs_longdouble
@pytest.mark.parametrize("target", TARGETS[:2], ids=lambda target: target.get("mcpu", "host"))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers(dtype: DType, target: dict[str, Any]) -> None:
    kind, rng = NUMPY_DTYPES[dtype].type, np.random.default_rng(0)
    special = [0.0, 1.0, INF, 2.0, 3.0, 0.5, 1e30, 1e-40, 1e9, 1.0000001, 0.9999999]
    special = [*special, *(-value for value in special), NAN]
    a, b = (values.ravel() for values in np.meshgrid(special, special))
    base = np.concatenate([a, 10 ** rng.uniform(-3, 3, 20_000), rng.uniform(0.5, 2, 20_000)]).astype(kind)
    exponent = np.concatenate([b, rng.uniform(-6, 6, 20_000), rng.uniform(-80, 80, 20_000)]).astype(kind)
    x, y = (Input(name, dtype, ("N",))() for name in "xy")
    graph = Graph((x, y), {"predict": (t.Pow()(x, y),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target or None))
    if executable.methods.machine.missing is not None:
        pytest.skip(executable.methods.machine.missing)
    (found,) = executable.run("predict", [base, exponent])
    with np.errstate(all="ignore"):
        exact = np.power(*(values.astype(np.float64 if dtype == "f32" else np.longdouble) for values in (base, exponent)))
        expected = exact.astype(kind)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    ulp = np.spacing(np.abs(expected[finite])).astype(exact.dtype)
    assert (np.abs(found[finite].astype(exact.dtype) - exact[finite]) / ulp).max() <= MOST_ULP["power"]
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


@needs_longdouble
@pytest.mark.parametrize(
    "exponent", [2.5, -2.5, 0.1, 1 / 3, 7.0, -3.0, 6.0, -2.0, 100.3, -0.01, 4000.7, -1.0, 1e30, 1e-42, 2.0**24 + 2]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers_of_one_exponent(dtype: DType, exponent: float) -> None:
    """Powers with a constant exponent are right where results overflow or vanish, where intervals of the logarithm meet, and for special
    values."""
    kind, rng = NUMPY_DTYPES[dtype].type, np.random.default_rng(0)
    exponent, info = float(kind(exponent)), np.finfo(kind)
    most = min(max((130 if dtype == "f32" else 1060) / abs(exponent), 2.0**-20), info.maxexp - 2)
    tiny, largest = float(info.smallest_subnormal), 0.9 * float(info.max)
    parts = [
        [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, -2.0, 3e4 * tiny, -3e4 * tiny, tiny, largest, -largest],
        np.exp2(rng.uniform(-most, most, 50_000)),
        rng.uniform(0.5, 2, 20_000),
        1 + rng.standard_normal(20_000) * 10.0 ** rng.integers(-15 if dtype == "f64" else -7, 0, 20_000),
        -np.exp2(rng.uniform(-most, most, 1000)),
    ]
    edges = (1 + np.arange(64) / 64).astype(kind)
    around = edges[:, None] + np.spacing(edges)[:, None] * np.arange(-3, 4, dtype=kind)
    values = np.concatenate([*(np.asarray(part, kind) for part in parts), around.ravel()])
    x = Input("x", dtype, ("N",))()
    graph = Graph((x,), {"predict": (t.power(x, exponent),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    (found,) = executable.run("predict", [values])
    precise = np.float64 if dtype == "f32" else np.longdouble
    with np.errstate(all="ignore"):
        exact = np.power(values.astype(precise), np.full(len(values), exponent, precise))
        expected = exact.astype(kind)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    ulp = np.spacing(np.abs(expected[finite])).astype(precise)
    assert (np.abs(found[finite] - exact[finite]) / ulp).max() <= MOST_ULP["power"]
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))
    for rows in (1, 15, 17):
        np.testing.assert_array_equal(executable.run("predict", [values[:rows]])[0], found[:rows])
