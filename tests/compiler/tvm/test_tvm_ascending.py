"""What is within a radius, sorted by the TVM backend (compiler/tvm/kernels/nearest.py): in numpy's order, where a compiler sorts at all."""

from __future__ import annotations

import platform
import shutil
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS
from sklearn.neighbors import RadiusNeighborsTransformer

import hbc
from hbc.builder import Builder
from hbc.compiler.base import CompileOptions, is_available, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array
from hbc.ops.nearest import Ascending, PresentEntries
from hbc.optimizer.lower import Lower

pytest.importorskip("tvm")

from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.kernels.nearest import COMPARED, RUN
from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT

TARGETS = [None, {"kind": "llvm", "mcpu": "haswell"}] if platform.machine() == "x86_64" else [None]
WIDTHS = [1, 2, COMPARED - 1, COMPARED, COMPARED + 1, RUN - 1, RUN, RUN + 1, 2 * RUN, 2 * RUN + 1, 4 * RUN, 4 * RUN + 1, 300]
SPECIAL = [0.0, -0.0, 5e-324, 1e-310, 1.0, 1e308, np.inf, np.nan, -1.0, -5e-324, -np.inf]
BATCHES = [0, 1, ROWS_IN_STATEMENT - 1, ROWS_IN_STATEMENT + 1]


def counted(width: int) -> Array:
    """Rows in which 0, 1, … and all numbers are present, at random positions; all numbers are different."""
    rng = np.random.default_rng(width)
    values = rng.permuted(np.tile(np.arange(width) + 0.5, (width + 1, 1)), axis=1)
    absent = rng.permuted(np.tile(np.arange(width), (width + 1, 1)), axis=1) >= np.arange(width + 1)[:, None]
    return np.where(absent, rng.choice([-1.0, np.nan, -np.inf], values.shape), values)


def cases(width: int) -> list[Array]:
    rng = np.random.default_rng(width)
    return [
        counted(width),
        rng.choice(SPECIAL, (3 * ROWS_IN_STATEMENT + 1, width)),
        rng.integers(-1, 4, (ROWS_IN_STATEMENT + 3, width)).astype(np.float64),  # many ties
        np.array([[0.0], [1.0], [-1.0]]) * np.arange(width),
        np.broadcast_to(np.array([[np.inf], [np.nan], [-1.0]]), (3, width)).copy(),
        np.where(np.arange(5 * width).reshape(5, width) % 2, 0.0, -0.0),
    ]


def expected_order(row: Array) -> list[int]:
    """The order by Python's own sort, which is stable."""
    there = sorted((i for i in range(len(row)) if row[i] >= 0), key=row.__getitem__)
    return there + [len(row)] * (len(row) - len(there))


def ascending(width: int) -> Graph:
    x = Input("x", "f64", ("N", width))()
    return Graph((x,), {"predict": (Ascending()(x),)}).verify()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_in_order_and_equal_ones_by_column(width: int, target: Any) -> None:
    graph = ascending(width)
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    for values in cases(width):
        expected = np.array([expected_order(row) for row in values])
        for n in (*BATCHES, len(values)):
            (found,) = executable.run("predict", [values[:n]])
            assert (found.dtype, found.shape) == (np.int64, (min(n, len(values)), width))
            np.testing.assert_array_equal(found, expected[:n])
            np.testing.assert_array_equal(graph.evaluate(values[:n])["predict"][0], expected[:n])


def test_threads_have_memory_of_their_own() -> None:
    values = np.tile(counted(130), (30, 1))
    (found,) = COMPILER.compile(ascending(130), CompileOptions(threads=4)).run("predict", [values])
    np.testing.assert_array_equal(found, ascending(130).evaluate(values)["predict"][0])


@pytest.mark.parametrize("width", [1, 9, 65])
def test_entries_in_a_given_order_are_those_that_the_host_sorts(width: int) -> None:
    for values in cases(width):
        for x in (values, values[:1], values[:0]):
            alone, given = PresentEntries().rows_of(x), PresentEntries().rows_of(x, Ascending().evaluate(x))
            assert alone.width == given.width
            for name in ("indptr", "indices", "data"):
                found, expected = getattr(given, name), getattr(alone, name)
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
            orders = [[i for i in expected_order(row) if i < width] for row in x]
            np.testing.assert_array_equal(given.indices, np.concatenate([*orders, np.zeros(0)]))
            np.testing.assert_array_equal(np.diff(given.indptr), [len(order) for order in orders])
            data = np.concatenate([*(row[order] for row, order in zip(x, orders, strict=True)), np.zeros(0)])
            np.testing.assert_array_equal(given.data.view(np.int64), data.view(np.int64))


def test_an_order_has_the_shape_of_the_numbers() -> None:
    x, other = Input("x", "f64", ("N", 3))(), Input("y", "f64", ("N", 4))()
    with pytest.raises(TypeError, match="order"):
        PresentEntries()(x, Ascending()(other))
    with pytest.raises(TypeError, match="f64"):
        Ascending()(Input("x", "f32", ("N", 3))())


def sorts(backend: str, device: str = "cpu") -> bool:
    """Whether the host gets the order from this backend."""
    x = Input("x", "f64", ("N", 3))()
    graph = Lower(load_compiler(backend), device)(Graph((x,), {"transform": (PresentEntries()(x),)})).verify()
    return any(isinstance(node.op, Ascending) for node in graph.nodes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiler_sorts_where_it_supports_that(backend: str) -> None:
    if not is_available(backend):
        pytest.skip(f"{backend} is not installed")
    assert sorts(backend) == load_compiler(backend).supports(Ascending()) == (backend in ("numpy", "tvm"))


def points(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 3))


def test_a_gpu_does_not_sort() -> None:
    assert not sorts("tvm", "cuda")
    assert not sorts("tvm", "cuda:1")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_code_for_a_gpu_compiles() -> None:
    x = points(20)
    saved = hbc.convert(RadiusNeighborsTransformer(radius=1.0).fit(x), "numpy")
    builder = Builder("tvm", CompileOptions(device="cuda", target={"kind": "cuda", "arch": "sm_90"}))
    plan = builder.plan(saved.graph)
    assert any(isinstance(node.op, PresentEntries) for node in plan.graph.nodes)
    assert not any(isinstance(node.op, Ascending) for node in plan.graph.nodes)
    builder.compile(plan)


@pytest.mark.parametrize("radius", [1e-9, 0.7, 2.0, 100.0], ids=["none", "few", "many", "all"])
@pytest.mark.parametrize("algorithm", ["brute", "kd_tree"])
@pytest.mark.parametrize("mode", ["distance", "connectivity"])
def test_neighbours_within_a_radius(mode: str, algorithm: str, radius: float) -> None:
    for count in (1, RUN + 1, 300):
        model = RadiusNeighborsTransformer(mode=mode, algorithm=algorithm, radius=radius).fit(points(count))
        compiled = hbc.convert(model, "tvm")
        queries = points(ROWS_IN_STATEMENT + 3, 1)
        queries[5] = 50  # far from everything, but within 100
        for data in (queries, queries[:1], queries[5:6]):
            found, expected = compiled.transform(data), model.transform(data)
            assert (found.shape, found.dtype, found.indices.dtype) == (expected.shape, expected.dtype, expected.indices.dtype)
            np.testing.assert_array_equal(found.indptr, expected.indptr)
            if (mode, algorithm) == ("connectivity", "kd_tree"):
                expected.sort_indices()  # the source lists those of a tree as it finds them there
            np.testing.assert_array_equal(found.indices, expected.indices)
            # By brute force distances are √(x² - 2xy + y²), of a matrix product.
            np.testing.assert_allclose(found.data, expected.data, rtol=1e-12 if algorithm == "brute" else 0)
