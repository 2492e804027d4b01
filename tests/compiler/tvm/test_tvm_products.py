"""Products (hbc/compiler/tvm/kernels/products.py) and the smallest numbers of rows (nearest.py) for few rows: they are right, and a row's
result does not depend on other rows, nor on what lies behind the last one."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions
from hbc.ir.graph import Graph, Input
from hbc.ir.types import NUMPY_DTYPES, DType, N
from hbc.ops import tensor as t
from hbc.ops.coupling import ClassProducts
from hbc.ops.nearest import Smallest

pytest.importorskip("tvm")

from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.kernels.products import FEW_ROWS, TILES_OF_ROW
from hbc.compiler.tvm.plan.plan import MAX_ROWS, ROWS_IN_STATEMENT

TARGETS = [None, {"kind": "llvm", "mcpu": "haswell"}] if platform.machine() == "x86_64" else [None]
BATCHES = [1, 2, FEW_ROWS, FEW_ROWS + 1, ROWS_IN_STATEMENT, ROWS_IN_STATEMENT + 1, MAX_ROWS + FEW_ROWS]
WIDTHS = (3, 8, 9, 16 * TILES_OF_ROW, 16 * TILES_OF_ROW + 21)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("outputs", WIDTHS)
def test_products_of_few_rows_have_the_bits_of_many(dtype: DType, target: Any, outputs: int) -> None:
    """Widths below a tile, of whole tiles, and beyond those of a row's registers; a layer behind it; blocks with weights of their own."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype])

    x = Input("X", dtype, (N, 120))()
    layer = t.maximum(t.matmul(x, weights(120, outputs)), np.zeros((), NUMPY_DTYPES[dtype]))
    results = (t.matmul(layer, weights(outputs, 100)), t.block_matmul(t.reshape(x, N, 4, 30), weights(4, 30, outputs)))
    graph = Graph((x,), {"transform": results}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    rows = rng.standard_normal((BATCHES[-1], 120)).astype(NUMPY_DTYPES[dtype])
    rows[5, 7], rows[6, 8] = np.nan, np.inf
    whole = executable.run("transform", [rows])
    with np.errstate(all="ignore"):
        expected = graph.evaluate(rows)["transform"]
    for found, right in zip(whole, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4 if dtype == "f32" else 1e-12, atol=1e-4 if dtype == "f32" else 1e-12)
    for n in BATCHES:
        for start in (0, 5, len(rows) - n):
            for some, every in zip(executable.run("transform", [rows[start : start + n].copy()]), whole, strict=True):
                np.testing.assert_array_equal(some, every[start : start + n])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("counts", [(3, 40, 1, 77), tuple(range(1, 20))], ids=["4 classes", "19 classes"])
def test_products_of_classes_for_few_rows_have_the_bits_of_many(counts: tuple[int, ...], target: Any) -> None:
    """Each class has a number of columns of its own. The vector of 16 rows was multiplied for one of them."""
    rng = np.random.default_rng(0)
    x = Input("X", "f64", (N, sum(counts)))()
    of_classes = ClassProducts(counts, rng.standard_normal((len(counts) - 1, sum(counts))))
    graph = Graph((x,), {"transform": (of_classes(t.exp(x)),)}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    rows = rng.standard_normal((BATCHES[-1], sum(counts)))
    rows[5, 7], rows[6, 8] = np.nan, np.inf
    (whole,) = executable.run("transform", [rows])
    np.testing.assert_allclose(whole, graph.evaluate(rows)["transform"][0], rtol=1e-12, atol=1e-12)
    for n in BATCHES:
        for start in (0, 5, len(rows) - n):
            (some,) = executable.run("transform", [rows[start : start + n].copy()])
            np.testing.assert_array_equal(some, whole[start : start + n])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("width", "k"), [(40, 5), (40, 20), (2000, 5), (2000, 20), (300, 40)])
def test_the_smallest_numbers_of_few_rows(width: int, k: int, target: Any) -> None:
    """Kept in order, found in two passes, among candidates, in heaps. Calls of rows of falling numbers, of NaN and of equal numbers leave
    these behind the rows of the next call."""
    rng = np.random.default_rng(1)
    x = Input("X", "f64", (N, width))()
    graph = Graph((x,), {"kneighbors": (Smallest(k)(t.mul(x, 1.0)),)}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    falling = np.tile(-np.arange(width) * 1e9, (ROWS_IN_STATEMENT, 1))
    for left in (falling, np.full_like(falling, np.nan), np.zeros_like(falling)):
        for n in BATCHES:
            rows = rng.standard_normal((n, width)).round(2)
            executable.run("kneighbors", [left])
            (found,) = executable.run("kneighbors", [rows])
            np.testing.assert_array_equal(found, graph.evaluate(rows)["kneighbors"][0])
