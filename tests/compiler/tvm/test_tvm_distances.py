"""Distances of few rows, which have code of their own, are those of many rows, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")

from hbc.builder import Builder
from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.kernels.distances import FEW_ROWS
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N, dtype_name
from hbc.ops.nearest import Distances

FEATURES = 7


@pytest.mark.parametrize("metric", ["squared", "absolute", "canberra", "chi2", "unequal", "largest"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("points", [1, 2, 3, 8, 21])
def test_few_rows_have_the_bits_of_many(metric: str, dtype: str, points: int) -> None:
    rng = np.random.default_rng(points)
    rows = np.abs(rng.normal(size=(40, FEATURES))).astype(dtype)
    rows[::7, 2], rows[1::9, 3], rows[3] = np.nan, np.inf, 0.0
    weights = rng.uniform(1, 2, FEATURES) if metric == "squared" else None
    op = Distances(np.abs(rng.normal(size=(points, FEATURES))).astype(dtype), metric, weights=weights)
    x = Input("X", dtype_name(np.dtype(dtype)), (N, FEATURES))()
    graph = Graph((x,), {"result": (op(x),)})
    builder = Builder("tvm", CompileOptions(threads=1))
    executable = builder.compile(builder.plan(graph))
    (whole,) = executable.run("result", [rows])
    with np.errstate(invalid="ignore"):  # inf / inf
        expected = op.evaluate(rows)
    np.testing.assert_allclose(whole, expected, rtol=1e-6 if dtype == "f4" else 1e-14)
    for first, count in ((0, 1), (1, 2), (0, FEW_ROWS), (2, FEW_ROWS + 1), (5, 16), (3, 17), (0, 16 + FEW_ROWS)):
        (some,) = executable.run("result", [rows[first : first + count]])
        np.testing.assert_array_equal(some, whole[first : first + count])
