"""The ONNX backend: models are valid, have a symbolic number of rows, and compute what the operators do, in hbc and in a bare ONNX
Runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from backends import about  # noqa: E402

import hbc  # noqa: E402
from hbc.compiler.base import CompileOptions  # noqa: E402
from hbc.compiler.onnx import COMPILER, OnnxCompiler, session  # noqa: E402
from hbc.compiler.onnx.builder import OLDEST, build  # noqa: E402
from hbc.compiler.onnx.file import USUAL, FileOptions  # noqa: E402
from hbc.compiler.onnx.session import newest  # noqa: E402
from hbc.errors import BackendUnavailableError  # noqa: E402
from hbc.ir.graph import Graph, Input, Node  # noqa: E402
from hbc.ir.types import NUMPY_DTYPES, Array, DType  # noqa: E402
from hbc.ops import tensor as t  # noqa: E402
from hbc.ops.columns import Categorize, Rank, SelectColumns  # noqa: E402
from hbc.ops.linear import Linear, Softmax  # noqa: E402
from hbc.ops.missing import ImputeText, MissingText  # noqa: E402
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
    """Asserts that the model is valid and gives the operator's own results, for all rows, one row and none. `signs`: zeros have equal
    signs."""
    inputs = tuple(Input(f"X{i}", _name(a), ("N", *a.shape[1:]))() for i, a in enumerate(arrays))
    graph = Graph(inputs, {"transform": (make(*inputs),)}).verify()
    onnx.checker.check_model(build(graph, graph.inputs, newest()), full_check=True)
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
}
"""Function → the tolerance for the ulps of float32 libraries."""
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
@pytest.mark.parametrize("opset", [USUAL, OLDEST])
def test_trees_have_the_bits_of_the_operator(kind: str, dtype: DType, values: DType, opset: int, tmp_path: Path) -> None:
    op = forest(dtype=dtype, values=values, **FORESTS[kind])
    x = Input("X", dtype, ("N", 7))()
    graph = Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)}).verify()
    onnx.checker.check_model(build(graph, graph.inputs, newest()), full_check=True)
    executable = COMPILER.compile(graph, CompileOptions(threads=2))
    OnnxCompiler(FileOptions(opset)).export(graph, CompileOptions(), str(tmp_path / "m.onnx"), about(graph))
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


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("edges", [0, 1, 16, 255])
def test_rank(dtype: DType, edges: int) -> None:
    rng = np.random.default_rng(0)
    number = NUMPY_DTYPES[dtype].type
    op = Rank(np.sort(rng.choice(rng.normal(size=200), (9, edges)).astype(number), axis=1))
    padded = op.edges.copy()
    for i in range(0, 9, 2):
        padded[i, rng.integers(edges + 1) :] = np.inf
    near = [*padded.ravel(), *np.nextafter(padded, number(9)).ravel(), *np.nextafter(padded, number(-9)).ravel(), *SPECIAL]
    with np.errstate(all="ignore"):
        x = rng.choice(np.array(near).astype(number), (500, 9))
    check(lambda x: Rank(padded)(x) if COMPILER.supports(Rank(padded)) else Rank(padded).lower(x), x)


@pytest.mark.parametrize(("dtype", "rtol"), [("f32", 1e-5), ("f64", 1e-12)])
def test_linear(dtype: DType, rtol: float) -> None:
    rng = np.random.default_rng(0)
    coef, intercept = rng.normal(size=(6, 4)).astype(NUMPY_DTYPES[dtype]), rng.normal(size=4).astype(NUMPY_DTYPES[dtype])
    x = rng.normal(size=(50, 6)).astype(NUMPY_DTYPES[dtype])
    x[0, 0], x[1, 0], x[2, 0] = np.nan, np.inf, -1000
    check(lambda x: Linear(coef, intercept)(x), x, rtol=rtol * 10)  # sums that cancel
    check(lambda x: Softmax()(x), x, rtol=rtol)


def test_tables() -> None:
    codes = np.array([[2, 0], [1, 1]])
    check(lambda i: t.take(np.array([1.5, np.nan, -0.0]), i, 0), codes)
    check(lambda i: t.take(np.arange(12, dtype=np.float32).reshape(3, 4), i, 0), codes.astype(np.int32))


# --- what the runtime's optimizer would change -----------------------------------------------------------------------

REWRITABLE: dict[str, Callable[[Node, Node], Node]] = {
    "x · (1 / b)": lambda x, b: t.mul(x, t.div(1.0, b)),
    "(1 / b) · x": lambda x, b: t.mul(t.div(1.0, b), x),
    "x + 0": lambda x, b: t.add(x, 0.0),
    "x · 0": lambda x, b: t.mul(x, 0.0),
    "product by a number": lambda x, b: t.mul(t.matmul(x, np.eye(8)), 0.3),
    "product to one column": lambda x, b: t.div(t.mul(t.matmul(x, np.eye(8)[:, :1]), 0.3), 1.7),
    "product, sum, quotient": lambda x, b: t.div(t.add(t.matmul(x, np.eye(8)), 0.25), 3.0),
    "blocks by a number": lambda x, b: t.mul(t.block_matmul(t.reshape(x, "N", 4, 2), np.eye(2)[None].repeat(4, 0)), 0.3),
    "rounded twice": lambda x, b: t.cast(t.cast(x, "f32"), x.type.dtype),
    "floats by way of integers": lambda x, b: t.cast(t.cast(t.minimum(t.maximum(x, -9.0), 9.0), "i32"), x.type.dtype),
    "standardized": lambda x, b: t.div(t.sub(x, np.linspace(0.1, 0.9, 8)), np.linspace(1.1, 3.3, 8)),
    "choice of not": lambda x, b: t.where(t.logical_not(t.less(x, b)), x, b),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("case", REWRITABLE)
def test_no_optimization_changes_a_result(case: str, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x, b = Input("X", dtype, ("N", 8))(), Input("B", dtype, ("N", 8))()
    graph = Graph((x, b), {"transform": (REWRITABLE[case](x, b),)}).verify()
    X, B = (rng.normal(size=(200, 8)).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    (expected,) = graph.evaluate(X, B)["transform"]
    executable = COMPILER.compile(graph, CompileOptions())
    np.testing.assert_array_equal(executable.run("transform", [X, B])[0], expected)
    content = build(graph, graph.inputs, FileOptions().dialect).SerializeToString()
    bare = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(bare.run(None, {"X": X, "B": B})[0], expected)


# --- executables -----------------------------------------------------------------------------------------------------


def small() -> Graph:
    x, unused = Input("X", "f32", ("N", 3))(), Input("X_i64", "i64", ("N", 1))()
    scores = t.matmul(x, np.eye(3))
    return Graph((unused, x), {"predict": (t.argmax(scores, 1),), "pair": (scores, x, scores)}).verify()


def test_methods_and_several_outputs() -> None:
    graph = small()
    executable = COMPILER.compile(graph, CompileOptions())
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    arrays = [np.zeros((5, 1), np.int64), X]
    np.testing.assert_array_equal(executable.run("predict", arrays)[0], X.argmax(1))
    for result in executable.run("pair", arrays):
        np.testing.assert_array_equal(result, X)
        assert not np.shares_memory(result, X)
    model = build(graph, graph.inputs, newest())
    assert [output.name for output in model.graph.output] == ["predict", "pair_0", "pair_1", "pair_2"]
    assert model.graph.input[1].type.tensor_type.shape.dim[0].dim_param == "N"


def test_blocks_and_threads_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    op = forest(60, "f32", "f32", outputs=3)
    x = Input("X", "f32", ("N", 7))()
    graph = Graph((x,), {"predict": (t.div(op(x), 3.0),)})
    X = rows_for(op, 1001)
    (expected,) = graph.evaluate(X)["predict"]
    monkeypatch.setattr(session, "BLOCK_BYTES", 1)
    monkeypatch.setattr(session, "PARALLEL_BYTES", 1)
    for threads in (1, 2, 3):
        executable = COMPILER.compile(graph, CompileOptions(threads=threads))
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _, e=executable: e.run("predict", [X])[0], range(8)):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PARALLEL_BYTES", 1)
    executable = COMPILER.compile(small(), CompileOptions(threads=2))
    arrays = [np.zeros((500, 1), np.int64), np.ones((500, 3), np.float32)]
    executable.run("predict", arrays)
    child = os.fork()
    if child == 0:
        good = bool((executable.run("predict", arrays)[0] == 0).all())
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


CUDA = "CUDAExecutionProvider"


class Sessions:
    """A stand-in for the InferenceSession of an onnxruntime with CUDA: it runs on the CPU. made: the providers and options of each.
    started: how many of them CUDA starts for; for the others onnxruntime leaves it out, as it does if a library is missing."""

    def __init__(self, started: float) -> None:
        self.made: list[tuple[Any, Any]] = []
        self.started = started
        self.real = ort.InferenceSession

    def __call__(self, model: bytes, options: Any, providers: list[Any], **others: Any) -> Any:
        session = self.real(model, options, providers=["CPUExecutionProvider"])
        if providers == ["CPUExecutionProvider"]:
            return session
        self.made.append((providers, others))
        names = [CUDA, "CPUExecutionProvider"] if len(self.made) <= self.started else ["CPUExecutionProvider"]
        return SimpleNamespace(run=session.run, get_providers=lambda: names)


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Sessions]]:
    """A function (how many sessions CUDA starts for) → the stand-in that is in the place of InferenceSession from then on."""

    def begin(started: float) -> Sessions:
        sessions = Sessions(started)
        monkeypatch.setattr(ort, "InferenceSession", sessions)
        return sessions

    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    session.require_device.cache_clear()
    yield begin
    session.require_device.cache_clear()


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:1", 1)])
def test_cuda(with_cuda: Callable[[float], Sessions], device: str, number: int) -> None:
    """All sessions are CUDA's, on that GPU, without TF32, and without the fall-back to the CPU when something fails."""
    sessions = with_cuda(np.inf)
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = (
        pytest.importorskip("sklearn.ensemble").RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, X[:, 0] > X[:, 1])
    )
    compiled = hbc.convert(model, "onnx", device=device)
    np.testing.assert_allclose(compiled.predict_proba(X), model.predict_proba(X), rtol=1e-6)
    np.testing.assert_array_equal(compiled.predict(X), model.predict(X))
    providers = [(CUDA, {"device_id": number, "use_tf32": 0}), "CPUExecutionProvider"]
    assert sessions.made == [(providers, {"enable_fallback": 0})] * 3, "the probe, and two methods"
    assert "tree_trav" in compiled.explain()


def test_cuda_that_does_not_start(with_cuda: Callable[[float], Sessions], monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime would go on with the CPU and say nothing."""
    with_cuda(0)
    with pytest.raises(
        BackendUnavailableError, match=r"could not start its CUDAExecutionProvider for device 'cuda:1'.*driver.*preload_dlls"
    ):
        COMPILER.compile(small(), CompileOptions(device="cuda:1"))
    with_cuda(1)  # only the probe
    executable = COMPILER.compile(small(), CompileOptions(device="cuda:1"))
    with pytest.raises(BackendUnavailableError, match="could not start its CUDAExecutionProvider"):
        executable.run("predict", [np.zeros((5, 1), np.int64), np.ones((5, 3), np.float32)])

    def fails(*_: Any, providers: list[Any], **__: Any) -> Any:
        raise RuntimeError("CUDA failure 101: invalid device ordinal")

    monkeypatch.setattr(ort, "InferenceSession", fails)
    with pytest.raises(BackendUnavailableError, match=r"device 'cuda:7'.*invalid device ordinal"):
        COMPILER.compile(small(), CompileOptions(device="cuda:7"))


@pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="this onnxruntime has it")
def test_devices_that_are_not_there() -> None:
    for device in ("cuda", "cuda:1"):
        with pytest.raises(BackendUnavailableError, match=f"device '{device}' is not there.*onnxruntime-gpu"):
            COMPILER.compile(small(), CompileOptions(device=device))
    with pytest.raises(BackendUnavailableError, match="no device"):
        COMPILER.compile(small(), CompileOptions(device="tpu"))


# --- export ----------------------------------------------------------------------------------------------------------

BARE = """
import sys, json
import numpy as np, onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
feeds = {name: np.array(rows, dtype) for name, (rows, dtype) in json.loads(sys.stdin.read()).items()}
print(json.dumps({output.name: session.run([output.name], feeds)[0].tolist() for output in session.get_outputs()}))
assert not {"hbc", "onnx", "sklearn"} & set(sys.modules)
"""


def run_bare(path: Path, feeds: dict[str, tuple[list[list[object]], str]]) -> dict[str, list[object]]:
    """The outputs of a model in a process that has nothing but onnxruntime and numpy; nothing may be printed on the way."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(path)],
        input=json.dumps(feeds),
        capture_output=True,
        text=True,
        check=False,
        cwd=path.parent,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    results: dict[str, list[object]] = json.loads(done.stdout)
    return results


def test_strings(tmp_path: Path) -> None:
    texts, X = Input("S", "str", ("N", 2))(), Input("X", "f64", ("N", 1))()
    first, second = SelectColumns(np.array([1]))(texts), SelectColumns(np.array([0]))(texts)
    filled = ImputeText(np.array(["grün"]))(MissingText(True, True, "?")(second), second)
    codes = Categorize(np.array(["grün", "rot", ""]), nan=7, none=8, unknown=-1)
    columns = t.concat([t.cast(codes(first), "f64"), t.cast(codes(filled), "f64"), X])
    labels = t.take(t.constant(np.array(["nein", "日本", "ja"])), t.argmax(columns, 1), 0)
    outputs = {"transform": (columns,), "predict": (labels,), "pick": (t.concat([first, filled]),)}
    graph = Graph((texts, X), outputs).verify()
    COMPILER.export(graph, CompileOptions(), str(tmp_path / "m.onnx"), about(graph))
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    markers = {prop.key: prop.value for prop in model.metadata_props}
    assert "hbc.none" in model.doc_string
    S = np.array([["rot", None], [np.nan, "grün"], ["?", "blau"], ["", np.nan], [None, ""]], object)
    numbers = np.array([[0.5], [np.nan], [9], [8], [-3]])
    expected = graph.evaluate(S, numbers)
    fed = [[markers["hbc.none"] if v is None else v if v == v else markers["hbc.nan"] for v in row] for row in S]
    found = run_bare(tmp_path / "m.onnx", {"S": (fed, "object"), "X": (numbers.tolist(), "float64")})
    np.testing.assert_array_equal(np.array(found["transform"]), expected["transform"][0])
    assert found["predict"] == expected["predict"][0].tolist()
    names = {"None": markers["hbc.none"], "nan": markers["hbc.nan"]}
    assert found["pick"] == [[names.get(str(v), v) for v in row] for row in expected["pick"][0]]


def test_pipeline_of_strings_and_numbers(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "c": rng.choice(["x", "y", "ö"], 80), "b": rng.normal(size=80)})
    y = np.where(frame["a"] + (frame["c"] == "x") > 0.5, "yes", "no")
    columns = make_column_transformer((StandardScaler(), ["a", "b"]), (OneHotEncoder(handle_unknown="ignore"), ["c"]))
    pipeline = make_pipeline(columns, RandomForestClassifier(20, random_state=0)).fit(frame, y)
    compiled = hbc.convert(pipeline, "onnx", frame)
    new = frame.sample(60, random_state=1)
    new.loc[new.index[:5], "c"] = "unseen"
    assert compiled.predict(new).tolist() == pipeline.predict(new).tolist()
    compiled.export(str(tmp_path / "m.onnx"))
    feeds = {"X": (new[["a", "b"]].to_numpy().tolist(), "float64"), "S": (new[["c"]].to_numpy().tolist(), "object")}
    found = run_bare(tmp_path / "m.onnx", feeds)
    assert found["predict"] == pipeline.predict(new).tolist()
    np.testing.assert_allclose(np.array(found["predict_proba"]), pipeline.predict_proba(new), rtol=1e-12)
