"""The PyTorch and TorchScript backends: memory, threads, processes, blocks of rows, and files that PyTorch reads alone."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from backends import about  # noqa: E402
from operator_cases import random_trees, rows, summable  # noqa: E402
from random_trees import RANDOM, random_ensemble, random_tree, rows_at_thresholds, stump  # noqa: E402

import hbc.compiler.torch.eager as torch_backend  # noqa: E402
import hbc.compiler.torch.program as programs  # noqa: E402
import hbc.compiler.torch.run as running  # noqa: E402
from hbc.builder import Builder  # noqa: E402
from hbc.compiler.base import CompileOptions, load_compiler  # noqa: E402
from hbc.compiler.memory import writable  # noqa: E402
from hbc.compiler.torch.exact import exact_sqrt  # noqa: E402
from hbc.compiler.torch.products import MOST_PARTS, by_parts  # noqa: E402
from hbc.compiler.torch.program import Program, entry  # noqa: E402
from hbc.compiler.torch.rules import function_of  # noqa: E402
from hbc.errors import BackendUnavailableError, InvalidInputError  # noqa: E402
from hbc.ir.graph import Graph, Input, Node  # noqa: E402
from hbc.ir.rewrite import rewrite  # noqa: E402
from hbc.ir.types import NUMPY_DTYPES, N  # noqa: E402
from hbc.ops import tensor as t  # noqa: E402
from hbc.ops.columns import SelectColumns  # noqa: E402
from hbc.ops.encoding import OneHot  # noqa: E402
from hbc.ops.linear import Linear  # noqa: E402
from hbc.ops.missing import Impute  # noqa: E402
from hbc.ops.tree import Tree, join  # noqa: E402

BOTH = pytest.mark.parametrize("name", ["torch", "torchscript"])
WEIGHTS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def matrix(dtype: str = "f32", columns: int = 5, name: str = "X") -> Node:
    return Input(name, dtype, (N, columns))()  # type: ignore[arg-type]


def compiled(graph: Graph, name: str = "torch", strategy: str = "auto", **options: object):
    builder = Builder(name, CompileOptions(**options), strategy)  # type: ignore[arg-type]
    return builder.compile(builder.plan(graph))


def model() -> Graph:
    """Several methods, among them one with several values and one that is called like a method of nn.Module."""
    x = matrix()
    product = t.matmul(x, WEIGHTS)
    ensemble = random_trees("f32", [3, 2, 4], outputs=3)
    return Graph(
        (x,),
        {
            "predict": (t.argmax(product, 1),),
            "predict_proba": (t.exp(product), t.sum_(product, 1, ordered=True)),
            "decision_function": (ensemble(x),),
            "apply": (t.reshape(product, N, 1, 3),),
        },
    ).verify()


@BOTH
def test_constants_are_buffers_and_each_is_there_once(name: str) -> None:
    x = matrix()
    both = t.add(t.matmul(x, WEIGHTS), t.matmul(t.exp(x), WEIGHTS.copy()))
    program = compiled(Graph((x,), {"predict": (both,), "transform": (t.matmul(x, WEIGHTS),)}), name).program
    assert [tuple(buffer.shape) for buffer in program.buffers()] == [WEIGHTS.shape]
    assert not list(program.parameters())


@BOTH
@pytest.mark.parametrize("strategy", ["gemm", "tree_trav", "perf_tree_trav", "scan"])
def test_rows_in_blocks_are_rows_at_once(name: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = compiled(model(), name, strategy)
    data = np.tile(rows("f32", 5), (40, 1))
    for method in model().outputs:
        whole = executable.run(method, [data])
        with monkeypatch.context() as patch:
            patch.setattr(running, "BLOCK_BYTES", 1)  # the least block: 64 rows
            parts = executable.run(method, [data])
        for a, b in zip(whole, parts, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_an_input_that_is_read_once_needs_no_small_blocks() -> None:
    """Blocks cut a call of scaler and logistic regression by the size of X, which no cache need keep: 20 to 50 µs for each."""
    x = matrix()
    once, twice = t.matmul(x, WEIGHTS), t.matmul(t.exp(x), WEIGHTS)
    program = compiled(Graph((x,), {"predict": (once,), "transform": (t.add(once, twice),)}), "torch").program
    X, result = 4 * len(WEIGHTS), 4 * WEIGHTS.shape[1]
    assert result < X
    assert program.width("predict") == (X, result)
    assert program.width("transform") == (X, X)


@BOTH
def test_rows_and_columns_read_backwards(name: str) -> None:
    """numpy calls an array contiguous whose axis of one element has a negative stride, which PyTorch refuses."""
    x = matrix()
    executable = compiled(Graph((x,), {"predict": (t.neg(x),)}), name)
    backwards = np.arange(5, dtype=np.float32).reshape(1, 5)[::-1]
    assert backwards.flags.carray
    assert backwards.strides[0] < 0
    np.testing.assert_array_equal(executable.run("predict", [backwards])[0], -backwards)
    direct = executable.direct("predict", None)
    assert direct is not None
    np.testing.assert_array_equal(direct(backwards, 1), -backwards)


@BOTH
def test_results_are_new_memory_and_inputs_may_be_read_only(name: str) -> None:
    x = matrix()
    executable = compiled(
        Graph(
            (x,), {"transform": (x, t.reshape(x, N, 1, 5), SelectColumns(np.array([1, 2]))(x)), "predict": (t.neg(x), t.neg(x))}
        ),
        name,
    )
    data = rows("f32", 5)
    data.setflags(write=False)
    for method in ("transform", "predict"):
        results = executable.run(method, [data])
        for i, result in enumerate(results):
            assert result.flags.c_contiguous
            assert result.flags.writeable
            assert result.base is None or result.base.nbytes == result.nbytes
            assert not any(np.shares_memory(result, other) for other in (data, *results[:i]))
    again = executable.run("predict", [data])[0]
    again[:] = 0
    assert executable.run("predict", [data])[0].any()


def test_a_call_copies_no_input() -> None:
    data = np.zeros((1000, 5))
    assert torch.from_numpy(writable(data)).data_ptr() == data.ctypes.data
    data.setflags(write=False)
    assert torch.from_numpy(writable(data)).data_ptr() == data.ctypes.data


@BOTH
@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_threads_belong_to_the_model(name: str, threads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LEAST_BYTES", 1)
    graph = model()
    executable = compiled(graph, name, threads=threads)
    data = np.tile(rows("f32", 5), (200, 1))
    before = torch.get_num_threads()
    seen: list[tuple[int, int]] = []
    together, blocks = threading.Barrier(threads or 1), itertools.count()

    class Spy:
        def __init__(self, program: object) -> None:
            self.program = program

        def decision_function(self, *tensors: object) -> object:
            if next(blocks) < (threads or 1):
                together.wait(timeout=300)  # every thread of the model is here at once
            seen.append((threading.get_ident(), torch.get_num_threads()))
            return self.program.decision_function(*tensors)  # type: ignore[attr-defined]

    object.__setattr__(executable, "program", Spy(executable.program))
    (found,) = executable.run("decision_function", [data])
    np.testing.assert_array_equal(found, graph.evaluate(data, methods=["decision_function"])["decision_function"][0])
    assert len({thread for thread, _ in seen}) <= (threads or before)
    assert {limit for _, limit in seen} == {1}
    assert torch.get_num_threads() == before


def test_a_limit_is_the_calling_threads_own() -> None:
    before = torch.get_num_threads()
    with running.OneThread(), ThreadPoolExecutor(1) as pool:
        assert torch.get_num_threads() == 1
        assert pool.submit(torch.get_num_threads).result() == before
    assert torch.get_num_threads() == before


def test_threads_are_refused_where_they_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "thread_limits", lambda: None)
    with pytest.raises(InvalidInputError, match=r"torch\.set_num_threads"):
        compiled(model(), "torch", threads=2)
    assert compiled(model(), "torch").run("predict", [rows("f32", 5)])[0].shape == (67,)


@BOTH
def test_calls_from_many_threads(name: str) -> None:
    graph = model()
    executable = compiled(graph, name)
    inputs = [rows("f32", 5, seed=seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda data: executable.run("decision_function", [data])[0], inputs * 4))
    for data, result in zip(inputs * 4, found, strict=True):
        np.testing.assert_array_equal(result, graph.evaluate(data, methods=["decision_function"])["decision_function"][0])


FORK = """
import os, sys
import numpy as np, torch
from test_torch import compiled, model
torch.set_num_threads(4)
data = np.zeros((400_000, 5), np.float32)
for name in sys.argv[1:]:
    executable = compiled(model(), name)
    expected = executable.run("predict_proba", [data])  # starts the threads of OpenMP, which no child will have
    child = os.fork()
    if child == 0:
        found = executable.run("predict_proba", [data])
        os._exit(0 if all(map(np.array_equal, found, expected)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, name
"""


def in_a_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_wait_for_the_parents_threads() -> None:
    done = in_a_process(FORK, "torch", "torchscript")
    assert done.returncode == 0, done.stderr


ALONE = """
import sys
import torch
exchange, *paths = sys.argv[1:]
data = torch.load(exchange, weights_only=True)
results = {}
for path in paths:
    module = torch.jit.load(path)
    for size in (data.shape[0], 1, 0):
        for method in ("predict", "predict_proba", "decision_function", "apply_"):
            value = getattr(module, method)(data[:size])
            for i, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
                results[f"{path} {method} {size} {i}"] = tensor
assert not [name for name in sys.modules if name.startswith("hbc")]
torch.save(results, exchange)
"""


def test_exported_files_need_only_torch(tmp_path) -> None:
    """One process loads the files of all strategies: to import torch takes 2 s."""
    graph, data, exchange = model(), summable("f32", 5), tmp_path / "data.pt"
    torch.save(torch.from_numpy(data), exchange)
    paths = [str(tmp_path / f"{strategy}.pt") for strategy in ("gemm", "tree_trav", "perf_tree_trav", "scan", "walk")]
    for path in paths:
        Builder("torchscript", CompileOptions(), Path(path).stem).export(graph, path, about(graph), None, {})
    done = in_a_process(ALONE, str(exchange), *paths)
    assert done.returncode == 0, done.stderr
    results = torch.load(exchange, weights_only=True)
    for path, size in ((path, size) for path in paths for size in (len(data), 1, 0)):
        for method, values in graph.evaluate(data[:size]).items():
            for i, expected in enumerate(values):
                found = results[f"{path} {entry(method)} {size} {i}"].numpy()
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                if method == "decision_function" or found.dtype.kind == "i":
                    np.testing.assert_array_equal(found, expected)
                else:
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@BOTH
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:99"])
def test_a_device_that_is_not_there(name: str, device: str) -> None:
    if torch.cuda.is_available() and device != "cuda:99":
        pytest.skip("there is a GPU")
    with pytest.raises(BackendUnavailableError, match=device):
        compiled(model(), name, device=device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@BOTH
@pytest.mark.parametrize("strategy", ["gemm", "tree_trav", "perf_tree_trav", "scan"])
def test_a_gpu_agrees(name: str, strategy: str) -> None:
    graph = model()
    executable = compiled(graph, name, strategy, device="cuda")
    data = rows("f32", 5)
    (found,) = executable.run("decision_function", [data])
    np.testing.assert_array_equal(found, graph.evaluate(data, methods=["decision_function"])["decision_function"][0])
    (result,) = executable.run_tensors("decision_function", [torch.from_numpy(data).cuda()])
    assert result.is_cuda


def test_tensors_stay_tensors() -> None:
    executable = compiled(model(), "torch")
    data = torch.from_numpy(rows("f32", 5))
    (result,) = executable.run_tensors("decision_function", [data])
    np.testing.assert_array_equal(result.numpy(), executable.run("decision_function", [data.numpy()])[0])


@pytest.mark.parametrize(
    ("depths", "batch_size", "expected"),
    [
        ([4] * 5, 1, "walk"),
        ([3] * 20, 100_000, "scan"),
        ([3] * 500, 10_000, "scan"),
        ([5] * 500, 10_000, "walk"),
        ([3] * 20, None, "scan"),
        ([10] * 3, None, "walk"),
        ([17, 2], None, "walk"),
    ],
)
def test_the_choice_of_a_strategy(depths: list[int], batch_size: int | None, expected: str) -> None:
    op = random_trees("f32", depths)
    chosen, reason = load_compiler("torch").choose_strategy(op, CompileOptions(batch_size=batch_size))
    assert chosen == expected, reason


def test_square_roots_are_correctly_rounded() -> None:
    for dtype in (np.float32, np.float64):
        x = np.exp(np.random.default_rng(0).standard_normal(20_000) * 20).astype(dtype)
        np.testing.assert_array_equal(exact_sqrt(torch.from_numpy(x)).numpy(), np.sqrt(x))


@BOTH
def test_a_deep_graph_keeps_few_values(name: str) -> None:
    """Values that no later step needs are freed, so that the memory of a chain does not grow with its length."""
    x = y = matrix(columns=64)
    for _ in range(300):
        y = t.neg(t.add(y, 1.0))
    program = Program(Graph((x,), {"transform": (y,)}))
    assert all(step.dead for step in program._methods["transform"].steps[1:])
    data = rows("f32", 64)
    graph = Graph((x,), {"transform": (y,)})
    np.testing.assert_array_equal(compiled(graph, name).run("transform", [data])[0], graph.evaluate(data)["transform"][0])


@BOTH
@pytest.mark.parametrize("strategy", ["scan", "walk"])
@pytest.mark.parametrize("kind", RANDOM)
def test_trees_are_the_references(name: str, kind: str, strategy: str) -> None:
    """The two strategies of PyTorch's own give the same leaves and the same bits as the reference: at the thresholds, beside them, and for
    NaN that goes left at some nodes and right at others."""
    op, X = random_ensemble(kind, rows=130)
    if strategy == "scan" and int(op.leaf_counts.max()) not in range(2, 257):
        pytest.skip("leaves that a byte does not number")
    x = matrix("f32" if op.threshold.dtype == np.float32 else "f64", X.shape[1])
    graph = Graph(
        (x,), {"predict": (replace(op, strategy=strategy)(x),), "apply": (replace(op, strategy=strategy, output="leaf")(x),)}
    )
    executable = compiled(graph, name)
    for n in (130, 3, 1, 0):
        np.testing.assert_array_equal(executable.run("predict", [X[:n]])[0], op.evaluate(X[:n]))
        np.testing.assert_array_equal(executable.run("apply", [X[:n]])[0], replace(op, output="leaf").evaluate(X[:n]))


@BOTH
@pytest.mark.parametrize("trees", [1, 700])
def test_walks_of_few_and_many_trees(name: str, trees: int) -> None:
    """Groups of trees, levels that are full and lower ones, a chain beside a stump, and a matrix of which trees read a part."""
    rng = np.random.default_rng(trees)
    grown = [random_tree(rng, [2, 1, 40, 9][i % 4], 4, "f4", rng.normal(size=(30, 2)), i % 3 == 0) for i in range(trees)]
    op = replace(join(grown, np.array([0.5, -1.0])), strategy="walk")
    X = np.asfortranarray(rows_at_thresholds(rng, op, 300, 6))
    x = matrix("f32", 6)
    executable = compiled(Graph((x,), {"predict": (op(x),)}), name)
    np.testing.assert_array_equal(executable.run("predict", [np.ascontiguousarray(X)])[0], op.evaluate(X))


def test_walks_where_only_nan_goes_right() -> None:
    """Such a split has the threshold +inf. With the largest float as another threshold, no float is left for it."""
    largest, inf, nan = np.finfo(np.float64).max, np.inf, np.nan
    only_nan = replace(stump(0, inf), missing_left=np.zeros(3, bool)).run_as("walk")
    x = matrix("f64", 1)
    for op in (only_nan, stump(0, inf).run_as("walk")):
        executable, data = (
            compiled(Graph((x,), {"predict": (op(x),)}), "torch"),
            np.array([[inf], [nan], [largest], [-inf], [0.0]]),
        )
        np.testing.assert_array_equal(executable.run("predict", [data])[0], op.evaluate(data))
    both = join(
        [
            Tree(np.array([0, -1, 0, -1, -1]), np.array([inf, 0, largest, 0, 0]), *np.array([[1, 0, 3, 0, 0], [2, 0, 4, 0, 0]]),
                 np.zeros(5, bool), np.arange(5.0)[:, None])
        ],
        np.zeros(1),
    )  # fmt: skip
    compiler = load_compiler("torch")
    assert compiler.supports(only_nan)
    assert not compiler.supports(both.run_as("walk"))
    assert "walk" not in compiler.candidates(both, CompileOptions())  # type: ignore[attr-defined]
    executable = compiled(Graph((x,), {"predict": (both.run_as("scan")(x),)}), "torch")
    np.testing.assert_array_equal(executable.run("predict", [data])[0], both.evaluate(data))


def encoded(x: Node, missing: float = 2.0, dtype: str = "f64") -> Node:
    """Chosen columns imputed, and codes of others."""
    numbers = Impute(np.array([5.0, -0.0]))(SelectColumns(np.array([3, 1]))(x))
    codes = OneHot(np.array([1, 0, 0, 1]), np.array([0.0, 1.0, missing, 1.0]), dtype)(SelectColumns(np.array([4, 0]))(x))  # type: ignore[arg-type]
    return t.concat([numbers, t.cast(codes, "f64")])


def small_codes() -> np.ndarray:
    data = np.random.default_rng(0).integers(0, 3, (300, 5)).astype(np.float64)
    data[::7], data[3] = np.nan, -0.0
    data[5, 4], data[6, 0] = np.inf, -np.inf
    return data


@BOTH
@pytest.mark.parametrize("missing", [2.0, np.nan])
@pytest.mark.parametrize("dtype", ["f64", "f32", "u8", "u16", "bool"])
def test_one_hot_codes_are_the_references(name: str, missing: float, dtype: str) -> None:
    x = matrix("f64")
    by_column = t.matmul(t.sub(encoded(x, missing, dtype), 1.0), np.eye(6))
    graph = Graph((x,), {"transform": (encoded(x, missing, dtype),), "predict": (by_column,)}).verify()
    data = small_codes()
    for method in graph.outputs:
        (expected,) = compiled(graph, "numpy").run(method, [data])
        for count in (1, 300):
            (result,) = compiled(graph, name).run(method, [data[:count]])
            np.testing.assert_array_equal(result.view(np.int64), expected[:count].view(np.int64))


def by_column(monkeypatch: pytest.MonkeyPatch, x: Node, *results: Node) -> list[str]:
    """The names of the operators whose results are stored column after column."""
    found = []

    def noted(node: Node, by_column: bool, unsigned: bool) -> object:
        found.extend([type(node.op).__name__] if by_column else [])
        return function_of(node, by_column, unsigned)

    monkeypatch.setattr(programs, "function_of", noted)
    Program(Graph((x,), {str(i): (result,) for i, result in enumerate(results)}).verify())
    return sorted(set(found))


def test_columns_lie_one_after_the_other_where_products_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = matrix("f64")
    joined = t.concat([t.take(x, np.array([3, 1]), axis=1), OneHot(np.array([4]), np.array([2.0]), "f64")(x)])
    scaled = t.div(t.sub(joined, 1.0), 3.0)
    names = ["Concat", "Div", "OneHot", "Sub", "Take"]
    assert by_column(monkeypatch, x, Linear(np.ones((3, 2)), np.zeros(2))(scaled)) == names
    assert by_column(monkeypatch, x, t.matmul(scaled, np.ones((3, 2)))) == names


@pytest.mark.parametrize("use", ["result", "rows", "sum", "also a result"])
def test_rows_stay_rows_where_others_read_them(monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    x = matrix("f64")
    chosen = t.take(x, np.array([3, 1]), axis=1)
    uses = {
        "result": [chosen],
        "rows": [t.take_along(chosen, t.cast(t.take(x, np.array([0]), axis=1), "i64"))],
        "sum": [t.sum_(chosen, 1)],
        "also a result": [t.neg(chosen), t.matmul(t.neg(chosen), np.ones((2, 2)))],
    }
    found = by_column(monkeypatch, x, *uses[use][:1])
    assert not found
    assert by_column(monkeypatch, x, *uses[use]) == (["Neg", "Take"] if use == "also a result" else [])


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_shorter_way_tests_its_input(name: str, dtype: str) -> None:
    x = matrix(dtype)
    kind = NUMPY_DTYPES[dtype]
    executable = compiled(Graph((x,), {"transform": (t.neg(x),), "predict": (t.neg(x), x)}).verify(), name)
    assert executable.direct("predict", 1e20) is None  # two results
    data = np.arange(1.0, 11).reshape(2, 5).astype(kind)
    out = np.empty_like(data)
    for missing in (False, True):
        direct = executable.direct("transform", kind.type(1e20), missing)
        found = direct(data, 2)
        np.testing.assert_array_equal(found, -data)
        assert direct(data, 2, out) is out
        np.testing.assert_array_equal(out, -data)
        for value in (np.inf, -np.inf, 2e10):
            assert direct(np.where(data == 7, kind.type(value), data), 2) is None
        gap = np.where(data == 7, kind.type(np.nan), data)
        assert (direct(gap, 2) is None) == (not missing)
        many = np.ones((running.MOST_DIRECT + 1, 5), kind)
        assert (direct(many, len(many)) is None) == missing  # the caller's test is faster
        for row in (0, -1):
            for value in (np.nan, np.inf, 2e10):
                rejected = many.copy()
                rejected[row, 1] = value
                assert direct(rejected, len(many)) is None
    np.testing.assert_array_equal(executable.direct("transform", kind.type(1e20))(many, len(many)), -many)
    untested = executable.direct("transform", None)
    np.testing.assert_array_equal(untested(gap, 2), -gap)
    np.testing.assert_array_equal(untested(many, len(many)), -many)


SPECIAL = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-310, -3.5])


@BOTH
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("fill", [[1.5, -2.0, 0.0, -0.0, 1e30], [np.inf, np.nan, 1.0, 2.0, 3.0]], ids=["finite", "infinite"])
def test_imputed_numbers_are_the_references(name: str, dtype: str, fill: list[float]) -> None:
    """Zeros keep their sign if something else than products reads them."""
    x = matrix(dtype)
    imputed = Impute(np.array(fill, NUMPY_DTYPES[dtype]))(x)
    product = Linear(np.diag([1.0, 2.0, -1.0, 3.0, 0.5]).astype(imputed.op.fill.dtype), np.ones(5, imputed.op.fill.dtype))
    graph = Graph((x,), {"transform": (imputed,), "predict": (product(imputed),)}).verify()
    data = np.random.default_rng(0).choice(SPECIAL, (1000, 5)).astype(imputed.op.fill.dtype)
    data[:500] = np.where(np.isinf(data[:500]), 7, data[:500])  # 0 · inf is NaN in all columns
    executable = compiled(graph, name)
    for some in (data, data[:1], data[:0]):
        expected = imputed.op.evaluate(some)
        found = executable.run("transform", [some])[0]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(executable.run("predict", [some])[0], product.evaluate(expected), rtol=1e-6)


@BOTH
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_products_of_several_parts(name: str, parts: int) -> None:
    x, random = matrix("f64"), np.random.default_rng(0)
    codes = OneHot(np.array([4, 4, 4]), np.array([0.0, 1.0, np.nan]), "f64")(x)
    values = [Impute(random.normal(size=5))(x), codes, t.exp(t.take(x, np.array([2, 0]), axis=1)), t.neg(x)][:parts]
    whole = t.concat(values)
    product = Linear(random.normal(size=(whole.type.columns, 2)), random.normal(size=2))
    graph = Graph((x,), {"transform": (product(whole),)}).verify()
    joined = [node for node in rewrite(graph, by_parts).nodes if isinstance(node.op, t.Concat)]
    assert len(joined) == (parts > MOST_PARTS)
    data = np.where(random.random((50, 5)) < 0.2, np.nan, random.integers(0, 3, (50, 5)))
    executable, reference = compiled(graph, name), compiled(graph, "numpy")
    for some in (data, data[:1], data[:0]):
        np.testing.assert_allclose(executable.run("transform", [some])[0], reference.run("transform", [some])[0], rtol=1e-12)


def test_rows_of_a_table_are_not_columns() -> None:
    x = matrix("i64")
    rows = t.take(np.arange(12.0).reshape(4, 3), t.reshape(t.take(x, np.array([2]), axis=1), N), axis=0)
    graph = Graph((x,), {"predict": (t.matmul(rows, np.eye(3)),)}).verify()
    data = np.random.default_rng(0).integers(0, 4, (50, 5))
    np.testing.assert_array_equal(compiled(graph).run("predict", [data])[0], np.arange(12.0).reshape(4, 3)[data[:, 2]])
