"""Sums of rows of a table (hbc/compiler/tvm/kernels/table_sums.py): they are right, and the sum of a row does not depend on other rows."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions
from hbc.ir.graph import Graph, Input
from hbc.ir.types import NUMPY_DTYPES, DType, N
from hbc.ops import tensor as t
from hbc.ops.linear import TableSum

pytest.importorskip("tvm")

from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.plan.plan import MAX_ROWS, ROWS_IN_STATEMENT

TARGETS = [None, {"kind": "llvm", "mcpu": "haswell"}] if platform.machine() == "x86_64" else [None]
BATCHES = [0, 1, ROWS_IN_STATEMENT - 1, ROWS_IN_STATEMENT, MAX_ROWS + ROWS_IN_STATEMENT + 3]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sums_for_all_numbers_of_rows(dtype: DType, target: Any) -> None:
    """One column, columns that fill no register, whole tiles, and some columns more; a single place; a sum that is read once more."""
    rng = np.random.default_rng(0)
    places = Input("places", "i32", (N, 5))()
    sums = [TableSum(rng.standard_normal((30, width)).astype(NUMPY_DTYPES[dtype]))(places) for width in (1, 3, 16, 41)]
    alone = TableSum(rng.standard_normal((30, 9)).astype(NUMPY_DTYPES[dtype]))(t.take(places, np.array([3]), 1))
    outputs = (*sums, alone, t.max_(sums[-1], 1))
    graph = Graph((places,), {"predict": outputs}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    for n in BATCHES:
        rows = rng.integers(0, 30, (n, 5)).astype(np.int32)
        found = executable.run("predict", [rows])
        for each, expected in zip(found, graph.evaluate(rows)["predict"], strict=True):
            assert each.dtype == expected.dtype
            np.testing.assert_array_equal(each, expected)
        for i in range(0, n, 19):
            for each, one in zip(found, executable.run("predict", [rows[i : i + 1]]), strict=True):
                np.testing.assert_array_equal(one, each[i : i + 1])
