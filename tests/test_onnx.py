"""The ONNX backend: valid models with a symbolic row axis that mean what the operators mean, in hbc and in a bare ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
from hbc.ops.tree import TreeEnsemble  # noqa: E402

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
    onnx.checker.check_model(build(graph, graph.inputs, versions()), full_check=True)
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
    check(lambda c, x: t.where(c, x, t.take(x, [7, 6, 5, 4, 3, 2, 1, 0], 1)), column("bool", 8), x, signs=False)
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


def forest(
    trees: int, dtype: DType, values: DType, outputs: int = 1, vector: bool = False, leaf: float = 0.1, whole: bool = False
) -> TreeEnsemble:
    """Random trees of mixed depth over 7 features, up to 5 levels deep; `leaf` is the chance of an early leaf, `whole` gives votes."""
    rng = np.random.default_rng(trees)
    nodes: list[list[float]] = []
    leaves: list[Array] = []

    def grow(depth: int) -> int:
        at = len(nodes)
        nodes.append([])
        if depth == 0 or rng.random() < leaf:
            width = outputs if vector else 1
            leaves.append(rng.integers(0, 2, width) if whole else rng.normal(size=width))
            nodes[at] = [-1, 0, len(leaves) - 1, len(leaves) - 1, 0]
        else:
            threshold = rng.choice([0.0, -0.0, np.inf, -np.inf]) if rng.random() < 0.05 else rng.normal()
            nodes[at] = [rng.integers(7), threshold, grow(depth - 1), grow(depth - 1), rng.random() < 0.5]
        return at

    roots = [grow(5) for _ in range(trees)]
    feature, threshold, left, right, missing_left = (np.array(column) for column in zip(*nodes, strict=True))
    base = np.zeros(outputs) if whole else rng.normal(size=outputs)
    return TreeEnsemble(
        np.array(roots, np.int32),
        feature.astype(np.int32),
        threshold.astype(NUMPY_DTYPES[dtype]),
        left.astype(np.int32),
        right.astype(np.int32),
        missing_left.astype(bool),
        np.array(leaves, NUMPY_DTYPES[values]),
        (np.zeros(trees) if vector else rng.integers(0, max(outputs - 1, 1), trees)).astype(np.int32),
        rng.permutation(len(leaves)),
        base.astype(NUMPY_DTYPES[values]),
        strategy="onnxml",
    )


def rows_for(op: TreeEnsemble, rows: int) -> Array:
    """Every threshold, its neighbours, NaN, ±inf, ±0 and others."""
    rng = np.random.default_rng(1)
    dtype = op.threshold.dtype.type
    cuts = op.threshold[op.feature >= 0]
    cuts = np.concatenate([cuts, np.nextafter(cuts, dtype(np.inf)), np.nextafter(cuts, dtype(-np.inf))])
    pool = np.concatenate([cuts, rng.normal(size=len(cuts) + 9), [np.nan] * (len(cuts) // 9 + 1), [np.inf, -np.inf, 0.0, -0.0]])
    return rng.choice(pool.astype(dtype), (rows, 7))


FORESTS = {
    "one tree": {"trees": 1},
    "few trees": {"trees": 7, "leaf": 0.3},
    "many trees": {"trees": 130},
    "single leaves among trees": {"trees": 40, "leaf": 0.6},
    "single leaves only": {"trees": 3, "leaf": 1.0},
    "targets, one without trees": {"trees": 50, "outputs": 4},
    "vector leaves": {"trees": 50, "outputs": 3, "vector": True},
    "votes": {"trees": 90, "outputs": 3, "whole": True},
}


@pytest.mark.parametrize("kind", FORESTS)
@pytest.mark.parametrize(("dtype", "values"), [("f32", "f32"), ("f64", "f64"), ("f32", "f64"), ("f64", "f32")])
def test_trees_have_the_bits_of_the_operator(kind: str, dtype: DType, values: DType, tmp_path: Path) -> None:
    op = forest(dtype=dtype, values=values, **FORESTS[kind])
    x = Input("X", dtype, ("N", 7))()
    graph = Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)}).verify()
    onnx.checker.check_model(build(graph, graph.inputs, versions()), full_check=True)
    executable = COMPILER.compile(graph, CompileOptions(threads=2))
    executable.export(str(tmp_path / "m.onnx"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2  # where the runtime's own kernel adds in another order
    bare = ort.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    for rows in (5000, 60, 2, 1, 0):
        X = rows_for(op, rows)
        expected = graph.evaluate(X)
        for method, (array,) in expected.items():
            np.testing.assert_array_equal(executable.run(method, [X])[0], array, strict=True)
            np.testing.assert_array_equal(bare.run([method], {"X": X})[0], array, strict=True)


def test_trees_without_trees() -> None:
    op = forest(1, "f32", "f32", outputs=2)
    none = replace(op, roots=op.roots[:0], target=op.target[:0])
    check(lambda x: none(x), rows_for(op, 5))
    check(lambda x: replace(none, output="leaf")(x), rows_for(op, 5))


def test_tables() -> None:
    codes = np.array([[2, 0], [1, 1]])
    check(lambda i: t.take(np.array([1.5, np.nan, -0.0]), i, 0), codes)
    check(lambda i: t.take(np.arange(12, dtype=np.float32).reshape(3, 4), i, 0), codes.astype(np.int32))
