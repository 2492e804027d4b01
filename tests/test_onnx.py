"""The ONNX backend: valid models with a symbolic row axis that mean what the operators mean, in hbc and in a bare ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from hbc.compiler.base import CompileOptions  # noqa: E402
from hbc.compiler.onnx import COMPILER  # noqa: E402
from hbc.compiler.onnx.builder import build  # noqa: E402
from hbc.compiler.onnx.session import versions  # noqa: E402
from hbc.ir.graph import Graph, Input, Node  # noqa: E402
from hbc.ir.types import NUMPY_DTYPES, Array, DType  # noqa: E402
from hbc.ops import tensor as t  # noqa: E402

SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    np.inf,
    -np.inf,
    1e-40,
    -1e-40,
    88.7,
    88.8,
    -87,
    -104,
    710,
    -750,
    1,
    -1,
    0.5,
    1.5,
    2.5,
    -1.5,
    1e-8,
]


def column(dtype: DType, width: int = 7, rows: int = 100) -> Array:
    rng = np.random.default_rng(0)
    if dtype in ("f32", "f64"):
        with np.errstate(all="ignore"):
            values = np.array([*SPECIAL, *rng.normal(size=40), *rng.normal(size=40) * 1e-6])
            return rng.choice(values, (rows, width)).astype(NUMPY_DTYPES[dtype])
    if dtype == "bool":
        return rng.random((rows, width)) < 0.5
    info = np.iinfo(NUMPY_DTYPES[dtype])
    return rng.integers(max(info.min, -300), min(info.max, 300), (rows, width), dtype=info.dtype)


def check(make: Callable[..., Node], *arrays: Array, rtol: float = 0.0, signs: bool = True) -> None:
    """The operator's own meaning, for all rows, one row and none; and a valid model. `signs` asks for those of zeros too."""
    inputs = tuple(Input(f"X{i}", _name(a), ("N", *a.shape[1:]))() for i, a in enumerate(arrays))
    graph = Graph(inputs, {"transform": (make(*inputs),)}).verify()
    onnx.checker.check_model(build(graph, graph.inputs, *versions()), full_check=True)
    for threads in (1, 2):
        executable = COMPILER.compile(graph, CompileOptions(threads=threads))
        for rows in (len(arrays[0]), 1, 0):
            part = [a[:rows] for a in arrays]
            (expected,) = graph.evaluate(*part)["transform"]
            (found,) = executable.run("transform", part)
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-42 if rtol else 0)  # ulps of subnormals
            if expected.dtype.kind == "f" and rtol == 0 and signs:
                known = ~np.isnan(expected)
                np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


def _name(array: Array) -> DType:
    from hbc.ir.types import dtype_name

    return dtype_name(array.dtype)


UNARY = [t.Neg, t.Abs, t.Exp, t.Expm1, t.Log, t.Log1p, t.Sqrt, t.Tanh, t.Sigmoid, t.Floor, t.IsNan, t.Not]
ROUNDED = {
    t.Exp: 3e-7,
    t.Expm1: 1e-6,
    t.Log: 6e-7,
    t.Log1p: 1e-6,
    t.Tanh: 4e-6,
    t.Sigmoid: 1e-6,
    t.Pow: 3e-7,
}  # ulps of float32 libraries
BINARY = [
    t.Add, t.Sub, t.Mul, t.Div, t.Pow, t.Maximum, t.Minimum, t.Less, t.LessEqual, t.Equal, t.And, t.Or
]  # fmt: skip


def _tolerance(op: type[t.TensorOperator], dtype: str) -> float:
    return ROUNDED.get(op, 0.0) * (1.0 if dtype == "f32" else 1e-8)


@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op in UNARY for dtype in op.dtypes])
def test_unary(op: type[t.Unary], dtype: DType) -> None:
    check(op(), column(dtype), rtol=_tolerance(op, dtype))


@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op in BINARY for dtype in op.dtypes])
def test_binary(op: type[t.Binary], dtype: DType) -> None:
    x = column(dtype)
    rtol = _tolerance(op, dtype)
    check(op(), x, x[::-1].copy(), rtol=rtol)
    check(op(), x, x[:, [2]].copy(), rtol=rtol)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "u8", "i16", "u16", "i32", "i64", "bool"])
def test_of_any_dtype(dtype: DType) -> None:
    x = column(dtype, 8)
    cube = x.reshape(len(x), 4, 2)
    check(lambda c, x: t.where(c, x, t.take(x, [7, 6, 5, 4, 3, 2, 1, 0], 1)), column("bool", 8), x)
    check(lambda x: t.take(x, [3, 0, 0], 1), x)
    check(lambda x: t.take(x, [], 1), x)
    check(lambda x: t.take(x, [[1, 0], [1, 1]], 2), cube)
    check(lambda x, i: t.take_along(x, i), x, np.arange(len(x) * 3).reshape(-1, 3) % 8)
    check(lambda x: t.concat([x, t.take(x, [], 1), x]), x)
    check(lambda x: t.reshape(x, "N", 4, 2), x)
    check(lambda x: t.reshape(x, "N", 8), cube)
    check(lambda x: t.reshape(t.take(x, [], 1), "N", 2, 0), x)
    check(lambda x: t.argmax(x, 1), x)
    check(lambda x: t.argmax(x, 2), cube)
    for axis in (1, 2):
        for keep in (False, True):
            check(lambda x, a=axis, k=keep: t.max_(x, a, k), cube, signs=False)
            check(lambda x, a=axis, k=keep: t.min_(x, a, k), cube, signs=False)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "u8", "i16", "i32", "i64"])
def test_sum(dtype: DType) -> None:
    x = np.where(np.isfinite(column(dtype, 66)), column(dtype, 66), 0) if dtype in ("f32", "f64") else column(dtype, 66)
    x = x.astype(NUMPY_DTYPES[dtype])
    wide = {"f32": 1e-4, "f64": 1e-12}.get(dtype, 0.0)  # the order of an unordered sum is free
    check(lambda x: t.sum_(x, 1), np.abs(x) if wide else x, rtol=wide)
    for keep in (False, True):
        check(lambda x, k=keep: t.sum_(x, 1, k, ordered=True), x)
        for axis in (1, 2):
            check(lambda x, a=axis, k=keep: t.sum_(x, a, k, ordered=True), x.reshape(len(x), 22, 3))
    check(lambda x: t.sum_(t.take(x, [], 1), 1), x)
    check(lambda x: t.sum_(t.take(x, [], 1), 1, ordered=True), x)


@pytest.mark.parametrize("source", ["f32", "f64", "i8", "u8", "i32", "i64", "bool"])
@pytest.mark.parametrize("target", ["f32", "f64", "i8", "u8", "i32", "i64", "bool"])
def test_cast(source: DType, target: DType) -> None:
    x = column(source)
    if source in ("f32", "f64") and target not in ("f32", "f64", "bool"):
        x = np.random.default_rng(0).uniform(0, 120, (50, 3)).astype(NUMPY_DTYPES[source])
    check(lambda x: t.Cast(target)(x), x)


def test_cast_of_large_numbers() -> None:
    x = np.array([[2**24 + 1, 2**53 + 1, -(2**62) - 1]])
    check(lambda x: t.cast(x, "f32"), x)
    check(lambda x: t.cast(x, "f64"), x)
    with np.errstate(over="ignore"):
        check(lambda x: t.cast(x, "f32"), np.array([[1e39, -1e39, 3.4028235677973366e38, 1e-46, 16777217.0]]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_products(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, (40, 6)).astype(NUMPY_DTYPES[dtype])
    check(lambda x: t.matmul(x, rng.integers(-8, 8, (6, 4))), x)
    check(lambda x: t.block_matmul(x, rng.integers(-8, 8, (3, 2, 5))), x.reshape(-1, 3, 2))


def test_tables() -> None:
    codes = np.array([[2, 0], [1, 1]])
    check(lambda i: t.take(np.array([1.5, np.nan, -0.0]), i, 0), codes)
    check(lambda i: t.take(np.arange(12, dtype=np.float32).reshape(3, 4), i, 0), codes.astype(np.int32))
