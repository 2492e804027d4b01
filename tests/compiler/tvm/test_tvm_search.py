"""Searches of the tvm backend against numpy's: every edge and its neighbours, at every size where the way of searching changes."""

from __future__ import annotations

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.compiler import COMPILER
from hbc.ir.graph import Graph, Input, Operator
from hbc.ir.types import NUMPY_DTYPES, Array, N
from hbc.ops.columns import Rank, TakeByColumn

NARROW = {"kind": "llvm", "mcpu": "haswell"}
SIZES = {
    "f32": (1, 8, 9, 15, 16, 31, 32, 127, 128, 2047, 2048),
    "f64": (8, 9, 15, 16, 63, 64, 1023, 1024),
    "i32": (9, 127, 128),
    "i64": (9, 63, 64, 1024),
}


def run(op: Operator, x: Array, dtype: str, target: dict[str, str] | None = None) -> Array:
    node = Input("x", dtype, (N, x.shape[1]))()
    graph = Graph((node,), {"transform": (op(node),)})
    (found,) = COMPILER.compile(graph, CompileOptions(threads=1, target=target)).run("transform", [x])
    return found


def edges(dtype: str, count: int) -> Array:
    """Three columns: different numbers, equal ones among them, and hardly any."""
    rng, kind = np.random.default_rng(count), NUMPY_DTYPES[dtype]
    some = rng.normal(size=(3, count)) if kind.kind == "f" else rng.integers(-5000, 5000, size=(3, count))
    some[1, count // 2 :] = some[1, -1]
    some[2, 1:] = np.inf if kind.kind == "f" else np.iinfo(kind).max
    return np.sort(some.astype(kind), axis=1)


def around(values: Array) -> Array:
    """All values [F, K] and the numbers next to them, as rows; and special ones."""
    kind, x = values.dtype, values.T
    if kind.kind == "f":
        tiny = np.finfo(kind).smallest_subnormal
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, np.finfo(kind).max, np.finfo(kind).min], kind)
        rows = [x, np.nextafter(x, kind.type(np.inf)), np.nextafter(x, kind.type(-np.inf))]
    else:
        special = np.array([0, np.iinfo(kind).max, np.iinfo(kind).min], kind)
        rows = [x, np.maximum(x, np.iinfo(kind).min + 1) - 1, np.minimum(x, np.iinfo(kind).max - 1) + 1]
    return np.ascontiguousarray(np.concatenate([*rows, np.repeat(special[:, None], len(values), axis=1)]))


@pytest.mark.parametrize(("dtype", "count"), [(dtype, count) for dtype, counts in SIZES.items() for count in counts])
def test_ranks(dtype: str, count: int) -> None:
    op = Rank(edges(dtype, count))
    x = around(op.edges)
    np.testing.assert_array_equal(run(op, x, dtype), op.evaluate(x))


@pytest.mark.parametrize(("dtype", "count"), [("f32", 64), ("f32", 65), ("f64", 100), ("i64", 33)])
def test_ranks_without_wide_registers(dtype: str, count: int) -> None:
    op = Rank(edges(dtype, count))
    x = around(op.edges)
    np.testing.assert_array_equal(run(op, x, dtype, NARROW), op.evaluate(x))


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 256, 257])
def test_ranks_of_few_rows(rows: int) -> None:
    op = Rank(edges("f32", 300))
    x = around(op.edges)[:rows]
    np.testing.assert_array_equal(run(op, x, "f32"), op.evaluate(x))


@pytest.mark.parametrize(("dtype", "count"), [("f64", 9), ("f64", 50), ("i64", 60), ("f64", 300)])
def test_rows_of_one_register(dtype: str, count: int) -> None:
    """Both registers were searched for the rows of one. What is looked up for rows that do not exist is there."""
    op = Rank(edges(dtype, count))
    look_up = TakeByColumn(np.random.default_rng(0).normal(size=(3, count + 1)))
    node = Input("x", dtype, (N, 3))()
    graph = Graph((node,), {"transform": (op(node), look_up(op(node)))})
    executable, x = COMPILER.compile(graph, CompileOptions(threads=1)), around(op.edges)
    for rows in (1, 2, 7, 8, 9, 15, 16, 17, 24, 25):
        for start in (0, 3, len(x) - rows):
            part = x[start : start + rows].copy()
            for found, expected in zip(executable.run("transform", [part]), graph.evaluate(part)["transform"], strict=True):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", [None, NARROW], ids=["host", "narrow"])
@pytest.mark.parametrize(
    ("dtype", "count"), [("f32", 16), ("f32", 17), ("f32", 128), ("f32", 129), ("f64", 64), ("f64", 65), ("i64", 9)]
)
def test_tables_of_columns(dtype: str, count: int, target: dict[str, str] | None) -> None:
    op = TakeByColumn(edges(dtype, count))
    places = np.random.default_rng(0).integers(0, count, (33, 3)).astype(np.int32)
    places[0], places[-1] = 0, count - 1
    np.testing.assert_array_equal(run(op, places, "i32", target), op.evaluate(places))
