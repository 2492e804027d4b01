"""The TVM backend beyond what every backend is held to (test_operators.py): bits, block boundaries, threads, targets."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.linear import Softmax
from hbc.ops.nearest import Distances, Smallest
from hbc.ops.tree import TreeEnsemble

tvm = pytest.importorskip("tvm")

from hbc.compiler.tvm.build import build  # noqa: E402
from hbc.compiler.tvm.compiler import COMPILER  # noqa: E402
from hbc.compiler.tvm.plan import plan  # noqa: E402
from hbc.compiler.tvm.plan.plan import MAX_ROWS, ROWS_IN_STATEMENT, WALK_ROWS, make_plan  # noqa: E402
from hbc.compiler.tvm.run.targets import host_machine  # noqa: E402

SINGLE = CompileOptions(threads=1)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 5e-324, 1e300, -1e300]
BATCHES = [0, 1, ROWS_IN_STATEMENT - 1, ROWS_IN_STATEMENT, ROWS_IN_STATEMENT + 1, MAX_ROWS, MAX_ROWS + ROWS_IN_STATEMENT + 3]


def given(dtype: DType, *columns: int, name: str = "x") -> Node:
    return Input(name, dtype, ("N", *columns))()


def compiled(*outputs: Node, inputs: tuple[Node, ...], options: CompileOptions = SINGLE) -> tuple[Graph, Any]:
    graph = Graph(inputs, {"predict": outputs}).verify()
    return graph, COMPILER.compile(graph, options)


def rows(n: int, columns: int, dtype: DType, seed: int = 0) -> Array:
    """Ordinary and special values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, columns)) * 10.0 ** rng.integers(-3, 4, (n, columns))
    with np.errstate(over="ignore"):
        return np.where(rng.random((n, columns)) < 0.1, rng.choice(SPECIAL, (n, columns)), x).astype(NUMPY_DTYPES[dtype])


def same(found: Array, expected: Array) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


def agrees(graph: Graph, executable: Any, *arrays: Array) -> None:
    for found, expected in zip(executable.run("predict", arrays), graph.evaluate(*arrays)["predict"], strict=True):
        same(found, expected)


# --- bits


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_products_are_rounded_before_they_are_added(dtype: DType) -> None:
    x, a, b = (given(dtype, name=name) for name in "xab")
    columns = [given(dtype, 3, name=name) for name in "uvw"]
    u, v, w = columns
    graph, executable = compiled(
        t.add(t.mul(x, a), b),
        t.sub(b, t.mul(x, a)),
        t.sum_(t.mul(u, v), axis=1, ordered=True),
        t.add(w, t.mul(u, np.array([1.1, 1.3, 1 / 3]))),
        inputs=(x, a, b, *columns),
    )
    rng = np.random.default_rng(0)
    flat = [rng.standard_normal(100_000).astype(NUMPY_DTYPES[dtype]) for _ in range(3)]
    wide = [rng.standard_normal((100_000, 3)).astype(NUMPY_DTYPES[dtype]) for _ in range(3)]
    agrees(graph, executable, *flat, *wide)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_floats_are_not_taken_for_reals(dtype: DType) -> None:
    x, y = given(dtype, 4), given(dtype, 4, name="y")
    outputs = [
        t.sub(x, x),
        t.mul(x, 0.0),
        t.add(x, 0.0),
        t.div(x, x),
        t.equal(x, x),
        t.less_equal(x, x),
        t.logical_not(t.less(x, y)),
        t.logical_not(t.less_equal(x, y)),
        t.cast(x, "bool"),
        t.div(x, 3.0),
        t.maximum(x, t.minimum(y, 0.5)),
        t.argmax(x, axis=1),
        t.where(t.isnan(x), 1.0, t.mul(x, 0.0)),
        t.cast(t.where(t.logical_not(t.less(t.absolute(x), 1e6)), 0.0, x), "i64"),
    ]
    graph, executable = compiled(*outputs, inputs=(x, y))
    agrees(graph, executable, rows(1000, 4, dtype), rows(1000, 4, dtype, seed=1))


FUNCTIONS = {"exp": t.exp, "expm1": t.expm1, "log": t.log, "log1p": t.log1p, "tanh": t.tanh, "sigmoid": t.sigmoid}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate(name: str, dtype: DType) -> None:
    x = given(dtype)
    _, executable = compiled(FUNCTIONS[name](x), inputs=(x,))
    rng = np.random.default_rng(0)
    kind = NUMPY_DTYPES[dtype]
    with np.errstate(over="ignore", under="ignore"):
        values = np.concatenate(
            [
                rng.standard_normal(20_000) * 10.0 ** rng.integers(-8, 3, 20_000),
                np.linspace(-750, 750, 20_000),
                np.linspace(-2, 2, 20_001),
                SPECIAL,
                [88.7, 88.8, -87.3, -87.4, -103.9, -104, 709.7, 709.8, -708.4, -745.1, -745.2],
            ]
        ).astype(kind)
    (found,) = executable.run("predict", [values])
    # The wider type is the truth for float32; for float64 the widest there is.
    wide = values.astype(np.float64 if dtype == "f32" else np.longdouble)
    with np.errstate(all="ignore"):
        truth = 1 / (1 + np.exp(-wide)) if name == "sigmoid" else getattr(np, name)(wide)
        expected = truth.astype(kind)
    finite = np.isfinite(expected)
    same(found[~finite], expected[~finite])
    ulp = np.spacing(np.maximum(np.abs(expected[finite]), np.finfo(kind).tiny)).astype(wide.dtype)
    assert (np.abs(found[finite].astype(wide.dtype) - truth[finite]) / ulp).max() < 2.5
    assert np.array_equal(np.signbit(found[values == 0]), np.signbit(expected[values == 0]))


def test_power() -> None:
    x, y = given("f64"), given("f64", name="y")
    graph, executable = compiled(t.power(x, y), inputs=(x, y))
    values = [*SPECIAL, 2.0, 0.5, -3.0]
    left, right = np.repeat(values, len(values)), np.tile(values, len(values))
    (found,) = executable.run("predict", [left, right])
    np.testing.assert_allclose(found, graph.evaluate(left, right)["predict"][0], rtol=1e-15)


def test_integers_wrap() -> None:
    for dtype in ("i8", "u8", "i16", "u16", "i32", "i64"):
        x, y = given(dtype, 2), given(dtype, 2, name="y")
        graph, executable = compiled(t.add(x, y), t.sub(x, y), t.mul(x, y), t.maximum(x, y), t.less(x, y), inputs=(x, y))
        limits = np.iinfo(NUMPY_DTYPES[dtype])
        rng = np.random.default_rng(0)
        arrays = [rng.integers(limits.min, limits.max, (100, 2), NUMPY_DTYPES[dtype], endpoint=True) for _ in range(2)]
        agrees(graph, executable, *arrays)


# --- shapes and batches


def test_every_batch_size_is_served_by_one_compilation() -> None:
    x = given("f32", 5)
    shifted = t.div(t.sub(x, np.arange(5)), 3.0)
    graph, executable = compiled(
        shifted,
        t.sum_(shifted, axis=1, keepdims=True, ordered=True),
        t.concat([t.take(x, [4, 0], axis=1), t.max_(x, axis=1, keepdims=True), x]),
        t.less(t.take(x, [1], axis=1), 0.0),
        t.reshape(t.take(x, [3], axis=1), "N"),
        inputs=(x,),
    )
    for n in BATCHES:
        agrees(graph, executable, rows(n, 5, "f32", seed=n))


def test_views_of_views() -> None:
    x = given("f64", 6)
    twice = t.mul(x, 2.0)
    cube = t.reshape(twice, "N", 2, 3)
    graph, executable = compiled(
        t.reshape(t.take(cube, [1, 0, 1], axis=1), "N", 9),
        t.take(cube, np.array([[0, 2], [1, 1]]), axis=2),
        t.reshape(t.add(t.reshape(x, "N", 3, 2), np.arange(2.0)), "N", 2, 3),
        t.sum_(t.reshape(t.neg(x), "N", 3, 2), axis=1, ordered=True),
        inputs=(x,),
    )
    for n in BATCHES:
        agrees(graph, executable, rows(n, 6, "f64", seed=n))


@pytest.mark.parametrize("width", [1, 3, 8, 19])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_products(dtype: DType, width: int) -> None:
    x = given(dtype, 30)
    rng = np.random.default_rng(0)
    kind = NUMPY_DTYPES[dtype]
    w, blocks = rng.standard_normal((30, width)).astype(kind), rng.standard_normal((5, 6, width)).astype(kind)
    graph, executable = compiled(t.matmul(x, w), t.block_matmul(t.reshape(x, "N", 5, 6), blocks), inputs=(x,))
    for n in BATCHES:
        data = rng.standard_normal((n, 30)).astype(kind)
        for found, expected in zip(executable.run("predict", [data]), graph.evaluate(data)["predict"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if dtype == "f32" else 1e-13)


@pytest.mark.parametrize("count", [1, 7, 24, 25, 255, 256, 1000])
def test_ranks(count: int) -> None:
    rng = np.random.default_rng(count)
    edges = np.sort(rng.choice([*rng.standard_normal(1000), np.inf, -np.inf, 0.0, -0.0], (3, count)), axis=1).astype(np.float32)
    x = given("f32", 3)
    graph, executable = compiled(Rank(edges)(x), inputs=(x,))
    near = rng.choice(edges.reshape(-1), (500, 3))
    for data in (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)), rows(100, 3, "f32")):
        agrees(graph, executable, data)


def test_large_statements_are_cut() -> None:
    x = given("f64", 2)
    y = x
    for i in range(200):
        y = t.maximum(t.add(t.mul(y, 0.99), float(i)), y)
    graph, executable = compiled(y, inputs=(x,))
    agrees(graph, executable, rows(100, 2, "f64"))
    assert len(make_plan(graph.outputs["predict"]).steps) > 10


# --- trees


def ensemble(seed: int, trees: int, depth: int, dtype: DType, values: DType, **options: Any) -> TreeEnsemble:
    """A random ensemble: thresholds that rows hit exactly, both directions of NaN, lone leaves."""
    rng = np.random.default_rng(seed)
    outputs, vector, features = options.pop("outputs", 1), options.pop("vector", False), options.pop("features", 6)
    split = options.pop("split", 0.85)
    columns: dict[str, list[Any]] = {"feature": [], "threshold": [], "left": [], "right": [], "missing_left": []}
    leaves: list[Array] = []

    def grow(left_levels: int) -> int:
        number = len(columns["feature"])
        for column, empty in zip(columns.values(), (-1, 0.0, 0, 0, False), strict=True):
            column.append(empty)
        if left_levels and rng.random() < split:
            columns["feature"][number] = int(rng.integers(features))
            columns["threshold"][number] = float(rng.choice([rng.standard_normal(), 0.0, -0.0, 1.0, np.inf]))
            columns["missing_left"][number] = bool(rng.random() < 0.5)
            columns["left"][number] = grow(left_levels - 1)
            columns["right"][number] = grow(left_levels - 1)
        else:
            columns["left"][number] = len(leaves)
            leaves.append(rng.standard_normal(outputs if vector else 1))
        return number

    roots = [grow(depth) for _ in range(trees)]
    return TreeEnsemble(
        roots=np.array(roots, np.int32),
        feature=np.array(columns["feature"], np.int32),
        threshold=np.array(columns["threshold"], NUMPY_DTYPES[dtype]),
        left=np.array(columns["left"], np.int32),
        right=np.array(columns["right"], np.int32),
        missing_left=np.array(columns["missing_left"]),
        values=np.array(leaves, NUMPY_DTYPES[values]),
        target=np.array([0] * trees if vector else rng.integers(0, outputs, trees), np.int32),
        leaf_ids=rng.permutation(len(leaves)).astype(np.int64),
        base=rng.standard_normal(outputs).astype(NUMPY_DTYPES[values]),
        strategy="walk",
        **options,
    )


def few_values(op: TreeEnsemble) -> TreeEnsemble:
    """The ensemble with only three different vectors of leaf values. Two of them differ only in the sign of a zero."""
    different = np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], op.values.dtype)[:, : op.values.shape[1]]
    return replace(op, values=different[np.random.default_rng(0).integers(0, 3, len(op.values))])


def near_thresholds(op: TreeEnsemble, n: int, features: int = 6) -> Array:
    """Rows on thresholds, one ulp beside them, missing, infinite and ordinary."""
    rng = np.random.default_rng(n)
    kind = op.threshold.dtype.type
    at = rng.choice(op.threshold, (n, features))
    beside = np.nextafter(at, rng.choice([kind(np.inf), kind(-np.inf)], (n, features)))
    other = rows(n, features, "f32" if kind is np.float32 else "f64", seed=n)
    return np.choose(rng.integers(0, 3, (n, features)), [at, beside, other]).astype(kind)


ENSEMBLES = {
    "one output": ensemble(0, 40, 5, "f32", "f32"),
    "float64": ensemble(1, 33, 6, "f64", "f64"),
    "float64 sums of float32 splits": ensemble(2, 16, 4, "f32", "f64"),
    "three outputs": ensemble(3, 31, 4, "f64", "f32", outputs=3),
    "vector leaves": ensemble(4, 15, 5, "f32", "f64", outputs=3, vector=True),
    "leaves": ensemble(5, 20, 5, "f32", "f32", output="leaf"),
    "lone leaves": ensemble(6, 3, 0, "f32", "f64"),
    "one tree": ensemble(7, 1, 8, "f64", "f64"),
    "deep": ensemble(8, 3, 60, "f32", "f32", split=0.55),
    "many features": ensemble(9, 30, 8, "f32", "f32", features=900),
    "pure leaves": few_values(ensemble(10, 37, 6, "f32", "f64", outputs=2, vector=True)),
    "few scores": few_values(ensemble(11, 33, 9, "f64", "f32", outputs=3)),
}


@pytest.mark.parametrize("name", ENSEMBLES)
def test_trees(name: str) -> None:
    op = ENSEMBLES[name]
    features = 900 if name == "many features" else 6
    kind: DType = "f32" if op.threshold.dtype == np.float32 else "f64"
    x = given(kind, features)
    graph, executable = compiled(op(x), inputs=(x,))
    for n in [*BATCHES, WALK_ROWS + ROWS_IN_STATEMENT + 3]:
        agrees(graph, executable, near_thresholds(op, n, features))


def test_trees_that_are_the_result_are_computed_once() -> None:
    """(Full vectors of rows and the others had code of their own, and both computed the trees.)"""
    here = host_machine()
    kernel = build("predict", make_plan((ENSEMBLES["three outputs"](given("f64", 6)),)), here.dialect, {}, here.schedule)
    assert len(kernel.parts) == 1


def test_trees_behind_a_scaler_take_the_same_branches() -> None:
    x = given("f32", 6)
    wide = t.cast(x, "f64")
    scaled = t.cast(t.div(t.sub(wide, np.linspace(-1, 1, 6)), np.linspace(0.3, 2, 6)), "f32")
    graph, executable = compiled(ENSEMBLES["one output"](scaled), inputs=(x,))
    agrees(graph, executable, rows(1000, 6, "f32"))


def test_a_block_of_wide_rows_stays_in_the_cache_between_its_test_and_the_walk() -> None:
    one = ENSEMBLES["one tree"]
    assert make_plan((one(given("f64", 6)),)).rows == WALK_ROWS
    few_of_many = one(t.take(given("f64", 617), np.arange(6), axis=1))
    assert make_plan((few_of_many,)).rows == MAX_ROWS
    some = ensemble(3, 60, 8, "f64", "f64")
    columns = {name: np.tile(getattr(some, name), 50) for name in ("feature", "threshold", "left", "right", "missing_left")}
    many = replace(some, **columns)  # 3000 trees take 8 s to make; the trees are the larger part of what is read
    assert make_plan((many(t.take(given("f64", 617), np.arange(6), axis=1)),)).rows == WALK_ROWS


def test_more_rows_walk_trees_that_come_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    many, x = ensemble(1, 30, 8, "f32", "f64"), given("f32", 6)
    monkeypatch.setattr(plan, "FAR_BYTES", plan.NODE_BYTES * len(many.feature))
    assert make_plan((many(x),)).rows == WALK_ROWS
    monkeypatch.setattr(plan, "FAR_BYTES", plan.FAR_BYTES - 1)
    assert make_plan((many(x),)).rows == plan.FAR * WALK_ROWS
    assert make_plan((replace(many, strategy="patches")(x),)).rows == WALK_ROWS
    graph, executable = compiled(many(x), inputs=(x,))
    agrees(graph, executable, rows(plan.FAR * WALK_ROWS + 35, 6, "f32"))


@pytest.mark.parametrize(("columns", "rows_of_block"), [(8, 2048), (9, MAX_ROWS), (26, 128), (100, 64)])
def test_the_sums_of_a_block_stay_in_the_first_cache(columns: int, rows_of_block: int) -> None:
    rng = np.random.default_rng(columns)
    one = ensemble(columns, 3, 6, "f32", "f64", outputs=columns, vector=True)
    x = given("f32", 6)
    assert make_plan((one(x),)).rows == rows_of_block
    graph, executable = compiled(one(x), inputs=(x,))
    agrees(graph, executable, near_thresholds(one, 300 + int(rng.integers(64)), 6))


def test_trees_beside_an_input_of_conditions() -> None:
    """The host gives conditions to the device, as a Yeo-Johnson transform before a tree does. Their size in memory is that of a byte."""
    condition, x = given("bool", 6, name="condition"), given("f64", 6)
    one = ENSEMBLES["one tree"]
    graph, executable = compiled(one(t.where(condition, x, t.neg(x))), inputs=(condition, x))
    X = near_thresholds(one, 50, 6).astype("f8")
    agrees(graph, executable, X > 0, X)


def test_a_chain_of_trees() -> None:
    """The second ensemble reads the first's result: exact sums, or another branch."""
    x = given("f32", 6)
    first = ENSEMBLES["one output"](x)
    joined = t.concat([t.take(x, [0, 1, 2, 3, 4], axis=1), first])
    graph, executable = compiled(ENSEMBLES["leaves"](joined), inputs=(x,))
    agrees(graph, executable, rows(1000, 6, "f32"))


# --- calls


def test_threads_change_nothing() -> None:
    op = ENSEMBLES["three outputs"]
    x = given("f64", 6)
    output = Softmax().lower(op(x))
    _, one = compiled(output, inputs=(x,))
    _, three = compiled(output, inputs=(x,), options=CompileOptions(threads=3))
    data = near_thresholds(op, 20_011)
    expected = one.run("predict", [data])[0]
    same(three.run("predict", [data])[0], expected)
    assert three._pool is not None  # it was worth threads, else this tests nothing
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: three.run("predict", [data])[0], range(8)):
            same(found, expected)


def test_first_calls_from_many_threads() -> None:
    x = given("f32", 6)
    _, executable = compiled(ENSEMBLES["one output"](x), inputs=(x,))
    data = rows(10, 6, "f32")
    start = threading.Barrier(4)

    def call(_: int) -> Array:
        start.wait()
        result: Array = executable.run("predict", [data])[0]
        return result

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(call, range(4))
    for other in others:
        same(other, first)


def _call(executable: Any, data: Array, results: Any) -> None:
    results.put(executable.run("predict", [data])[0].tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_after_a_fork() -> None:
    op = ENSEMBLES["one output"]
    x = given("f32", 6)
    _, executable = compiled(op(x), inputs=(x,), options=CompileOptions(threads=2))
    data = near_thresholds(op, 20_011)
    expected = executable.run("predict", [data])[0]
    assert executable._pool is not None
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_call, args=(executable, data, results))
    child.start()
    assert results.get() == expected.tobytes()
    child.join()


def test_read_only_and_unaligned_arrays() -> None:
    x = given("f64", 3)
    graph, executable = compiled(t.add(x, 1.0), inputs=(x,))
    data = rows(50, 3, "f64")
    data.flags.writeable = False
    agrees(graph, executable, data)
    memory = bytearray(data.nbytes + 1)
    unaligned = np.frombuffer(memory, np.float64, data.size, offset=1).reshape(data.shape)
    unaligned[...] = data
    agrees(graph, executable, unaligned)


def test_inputs_that_a_method_does_not_read() -> None:
    x, y = given("f32", 2), given("f64", 2, name="y")
    graph = Graph((x, y), {"predict": (t.neg(y),), "transform": (x,)}).verify()
    executable = COMPILER.compile(graph, SINGLE)
    arrays = [rows(20, 2, "f32"), rows(20, 2, "f64")]
    agrees(graph, executable, *arrays)
    same(executable.run("transform", arrays)[0], arrays[0])


# --- targets


@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 8])
def test_rows_of_a_few_columns(columns: int, dtype: DType) -> None:
    x = given(dtype, columns)
    chosen = t.take(x, np.array([columns - 1, 0]), axis=1)
    for y in (t.add(x, x), chosen, t.reshape(t.sum_(x, 1), "N")):
        graph, executable = compiled(y, inputs=(x,))
        for n in BATCHES:
            agrees(graph, executable, np.random.default_rng(0).integers(-99, 99, (n, columns)).astype(NUMPY_DTYPES[dtype]))


@pytest.mark.parametrize("gaps", [0.0, 0.01, 0.5])
def test_what_replaces_missing_values_is_computed_where_there_are_any(gaps: float) -> None:
    x = given("f64", 3)
    distances = Distances(np.arange(12.0).reshape(4, 3), "squared")(t.where(t.isnan(x), 0.0, x))
    nearest = t.take(np.arange(4.0), t.minimum(Smallest(1)(distances), 3), axis=0)
    second = t.take(x, np.array([1]), axis=1)
    y = t.where(t.isnan(second), nearest, second)
    plan = make_plan((y,))
    assert nearest in plan.needed
    assert distances in plan.needed
    assert not make_plan((y, nearest)).needed  # it is asked for itself
    assert not make_plan((t.where(t.isnan(second), second, nearest),)).needed
    graph, executable = compiled(y, inputs=(x,))
    rng = np.random.default_rng(0)
    for n in BATCHES:
        values = rng.standard_normal((n, 3))
        values[rng.random(values.shape) < gaps] = np.nan
        agrees(graph, executable, values)


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512"])
def test_older_processors(cpu: str) -> None:
    if tvm.target.codegen.llvm_get_system_triple().split("-")[0] != "x86_64":
        pytest.skip("another architecture")
    op = ENSEMBLES["one output"]
    x = given("f32", 6)
    output = t.add(t.mul(op(x), 1.1), t.matmul(t.where(t.isnan(x), 0.0, t.minimum(t.maximum(x, -3.0), 3.0)), np.ones((6, 9))))
    options = CompileOptions(threads=1, target={"kind": "llvm", "mcpu": cpu})
    graph, executable = compiled(output, op(x), inputs=(x,), options=options)
    if executable.methods.machine.missing:
        pytest.skip(executable.methods.machine.missing)
    data = near_thresholds(op, 300)
    found = executable.run("predict", [data])
    expected = graph.evaluate(data)["predict"]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    same(found[1], expected[1])


def test_code_for_another_computer_is_not_run() -> None:
    x = given("f32", 6)
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}
    _, executable = compiled(ENSEMBLES["one output"](x), inputs=(x,), options=CompileOptions(target=target))
    if tvm.target.codegen.llvm_get_system_triple().startswith("aarch64"):
        pytest.skip("this is that computer")
    with pytest.raises(BackendUnavailableError, match="aarch64"):
        executable.run("predict", [rows(3, 6, "f32")])
    assert "fadd" in executable.methods.source("asm")


def test_unknown_devices_and_targets() -> None:
    x = given("f32", 6)
    graph = Graph((x,), {"predict": (t.neg(x),)})
    with pytest.raises(BackendUnavailableError, match="'tpu'"):
        COMPILER.compile(graph, CompileOptions(device="tpu"))
    with pytest.raises(InvalidInputError, match="llvm"):
        COMPILER.compile(graph, CompileOptions(target={"kind": "hexagon"}))
