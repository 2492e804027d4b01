"""Compiled code that methods and models share: the same function compiles once, for any data."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm_ffi
from tvm import tirx

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.run import cache, targets
from hbc.ir.graph import Graph, Input
from hbc.ir.types import NUMPY_DTYPES, DType
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble

SINGLE = CompileOptions(threads=1)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of compilations from here on, with an empty cache."""
    done: list[str] = []
    real = targets.compile_module

    def count(functions: Any, machine: Any) -> Any:
        done.extend(functions)
        return real(functions, machine)

    monkeypatch.setattr(cache, "compile_module", count)
    monkeypatch.setattr(cache, "_alive", type(cache._alive)())
    monkeypatch.setattr(cache, "_recent", type(cache._recent)())
    return done


def ensemble(seed: int, trees: int = 20, depth: int = 3, features: int = 6) -> TreeEnsemble:
    """Perfect trees of random splits, as arrays from the root on."""
    rng = np.random.default_rng(seed)
    splits, leaves = 2**depth - 1, 2**depth
    nodes = splits + leaves
    inner = np.tile(np.arange(nodes) < splits, trees)
    first = np.repeat(np.arange(trees) * nodes, nodes)
    here = np.tile(np.arange(nodes), trees)
    leaf = np.cumsum(~inner) - 1
    return TreeEnsemble(
        roots=(np.arange(trees) * nodes).astype(np.int32),
        feature=np.where(inner, rng.integers(features, size=len(inner)), -1).astype(np.int32),
        threshold=np.where(inner, rng.normal(size=len(inner)), 0).astype(np.float32),
        left=np.where(inner, first + 2 * here + 1, leaf).astype(np.int32),
        right=np.where(inner, first + 2 * here + 2, leaf).astype(np.int32),
        missing_left=np.zeros(len(inner), bool),
        values=rng.normal(size=(trees * leaves, 1)).astype(np.float32),
        target=np.zeros(trees, np.int32),
        leaf_ids=np.arange(trees * leaves),
        base=rng.normal(size=1).astype(np.float32),
    )


def executable(op: TreeEnsemble, features: int = 6, **more: Any) -> Any:
    x = Input("X", "f32", ("N", features))()
    outputs = {"predict": (op(x),), **{name: (make(op(x)),) for name, make in more.items()}}
    return COMPILER.compile(Graph((x,), outputs).verify(), SINGLE)


def rows(n: int, features: int = 6) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(n).normal(size=(n, features)).astype(np.float32)


def test_models_share_code(compilations: list[str]) -> None:
    for seed in range(3):
        op = ensemble(seed)
        for n in (1, 100):
            (found,) = executable(op).run("predict", [rows(n)])
            np.testing.assert_allclose(found, op.evaluate(rows(n)), rtol=1e-5, atol=1e-5)
    assert len(compilations) == 1


@pytest.mark.parametrize("strategy", ["walk", "patches", "ranges", "scan"])
@pytest.mark.parametrize(("trees", "rows_of_call"), [(20, 1), (20, 300), (300, 300)])
def test_models_of_other_widths_share_code(compilations: list[str], strategy: str, trees: int, rows_of_call: int) -> None:
    """All but the width is alike: the trees compare the same columns."""
    for width in (40, 56):
        op = replace(ensemble(0, trees, features=40), strategy=strategy)
        (found,) = executable(op, width).run("predict", [rows(rows_of_call, width)])
        np.testing.assert_allclose(found, op.evaluate(rows(rows_of_call, width)), rtol=1e-5, atol=1e-4)
    assert len(compilations) == 1


def test_methods_share_code_and_data(compilations: list[str]) -> None:
    model = executable(ensemble(0), decision_function=lambda y: y)
    first, second = model.run("predict", [rows(10)]), model.run("decision_function", [rows(10)])
    np.testing.assert_array_equal(first[0], second[0])
    assert len(compilations) == 1
    assert [id(a) for a in model.methods.kernel("predict").tables] == [
        id(a) for a in model.methods.kernel("decision_function").tables
    ]


def test_numbers_of_the_code_are_told_apart_to_the_last_bit(compilations: list[str]) -> None:
    for shape in (3, 4):
        x = Input("X", "f32", ("N", shape))()
        COMPILER.compile(Graph((x,), {"predict": (t.neg(x),)}), SINGLE).run("predict", [rows(2, shape)])
    assert len(compilations) == 2
    buffer = tirx.decl_buffer((1,), "float64")

    def stores(value: float) -> Any:
        return tvm_ffi.StructuralKey(tirx.PrimFunc([buffer], tirx.BufferStore(buffer, tirx.const(value, "float64"), [0])))  # type: ignore[call-arg]

    assert stores(1.0) == stores(1.0)
    assert all(stores(1.0) != stores(value) for value in (np.nextafter(1.0, 2.0), 1e-300, -1.0))
    assert stores(0.0) != stores(-0.0)


def negation(columns: int) -> Any:
    """An executable with code of its own, which was called."""
    x = Input("X", "f32", ("N", columns))()
    made = COMPILER.compile(Graph((x,), {"p": (t.neg(x),)}), SINGLE)
    np.testing.assert_array_equal(made.run("p", [rows(2, columns)])[0], -rows(2, columns))
    return made


def test_the_one_used_longest_ago_is_forgotten(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    size = negation(1)._ready["p"].code.bytes
    monkeypatch.setattr(cache, "CAPACITY", int(2.5 * size))
    for columns in (2, 1, 3, 1, 2):
        negation(columns)
    assert len(compilations) == 4  # 1, 2, 3, and 2 again


def test_code_in_use_is_shared_although_forgotten(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CAPACITY", 0)
    used = negation(1)
    negation(2)
    assert negation(1)._ready["p"].code is used._ready["p"].code
    assert len(compilations) == 2
    negation(2)
    assert len(compilations) == 3
    del used
    negation(3)
    assert len(cache._alive) == len(cache._recent) == 1


def loaded() -> int:
    """The number of libraries of hbc's that are in memory."""
    gc.collect()
    return len({line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:hbc" in line})


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux")
def test_code_is_a_small_library_that_goes_with_its_last_model(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CAPACITY", 0)
    cache._recent.clear()
    before = loaded()
    kept = [negation(columns) for columns in range(2, 6)]
    assert loaded() == before + 4
    assert max(made._ready["p"].code.bytes for made in kept) < 50_000
    kept.clear()
    for columns in range(6, 9):
        negation(columns)
    cache._recent.clear()
    assert len(compilations) == 7
    assert loaded() == before


def test_equal_paths_do_not_stand_for_equal_libraries(compilations: list[str]) -> None:
    """The system's loader takes a path that it knows for the library that it knows: descriptors have the same number again and again."""
    made = [negation(columns) for columns in range(2, 9)]
    for columns, model in zip(range(2, 9), made, strict=True):
        np.testing.assert_array_equal(model.run("p", [rows(3, columns)])[0], -rows(3, columns))


def test_threads_compile_once(compilations: list[str]) -> None:
    results: list[Any] = []

    def work(seed: int) -> None:
        op = ensemble(seed)
        results.append(np.allclose(executable(op).run("predict", [rows(50)])[0], op.evaluate(rows(50)), atol=1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
    assert len(compilations) == 1


# --- the shorter way (Executable.direct)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("threads", [1, 2])
def test_bounded_calls(dtype: DType, threads: int) -> None:
    x = Input("X", dtype, ("N", 30))()
    executable = COMPILER.compile(Graph((x,), {"predict": (t.neg(x),)}), CompileOptions(threads=threads))
    direct = executable.direct("predict", 1e20)
    assert direct is not None
    for n in (1, 17, 5000, 50_000):
        data = rows(n, 30).astype(NUMPY_DTYPES[dtype])
        found = direct(data, n)
        np.testing.assert_array_equal(found, -data)
        out = np.empty_like(data)
        assert direct(data, n, out) is out
        np.testing.assert_array_equal(out, -data)
        for bad in (np.nan, np.inf, -np.inf, 2e10, -2e10):
            for place in ((0, 0), (n - 1, 29), (n // 2, 15), (0, 16)):
                spoilt = data.copy()
                spoilt[place] = bad
                assert direct(spoilt, n) is None
                if n == 17:  # `run` tests nothing
                    np.testing.assert_array_equal(executable.run("predict", [spoilt])[0], -spoilt)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_missing_numbers_are_within_bounds(dtype: DType) -> None:
    x = Input("X", dtype, ("N", 30))()
    direct = COMPILER.compile(Graph((x,), {"predict": (t.neg(x),)}), CompileOptions(threads=1)).direct("predict", 1e20, True)
    assert direct is not None
    for n in (1, 17):
        for place in ((0, 0), (n - 1, 29), (n // 2, 15)):
            data = rows(n, 30).astype(NUMPY_DTYPES[dtype])
            data[place] = np.nan
            np.testing.assert_array_equal(direct(data, n), -data)
            for bad in (np.inf, -np.inf, 2e10):
                data[n // 2, 16] = bad
                assert direct(data, n) is None


def test_where_there_is_no_shorter_way() -> None:
    x, y = Input("X", "f32", ("N", 2))(), Input("Y", "i64", ("N", 2))()
    assert COMPILER.compile(Graph((x,), {"p": (x, t.neg(x))}), SINGLE).direct("p", None) is None
    assert COMPILER.compile(Graph((x, y), {"p": (t.neg(x),)}), SINGLE).direct("p", None) is None
    integers = COMPILER.compile(Graph((y,), {"p": (t.neg(y),)}), SINGLE)
    assert integers.direct("p", 1.0) is None
    assert integers.direct("p", None) is not None
    unbounded = COMPILER.compile(Graph((x,), {"p": (t.neg(x),)}), SINGLE)
    unbounded.run("p", [rows(2, 2)])
    assert unbounded.direct("p", 1.0) is None  # the method was compiled without the test
