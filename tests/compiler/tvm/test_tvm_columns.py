"""Methods whose elements are computed by themselves, with constants of a number for each column (`Repeated` in plan/plan.py)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.plan.plan import Repeated, make_plan
from hbc.ir.graph import Graph, Input, topological
from hbc.ir.types import N
from hbc.ops import tensor as t


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 15, 16, 17, 20, 33, 700])
@pytest.mark.parametrize("threads", [1, 3])
def test_constants_of_columns_are_those_of_the_reference(width: int, dtype: str, threads: int) -> None:
    """Numbers, flags, and a constant that two statements read; few rows, vectors that end anywhere in a row, and several threads."""
    rng = np.random.default_rng(width)
    shift, scale, fill = (rng.normal(size=width).astype(dtype) for _ in range(3))
    x = Input("X", "f32" if dtype == "f4" else "f64", (N, width))()
    flags = t.logical_and(t.isnan(x), rng.random((1, width)) < 0.7)
    filled = t.where(flags, fill, x)
    y = t.mul(t.sub(filled, shift), scale)
    graph = Graph((x,), {"transform": (t.maximum(y, shift),), "flags": (flags,)})
    plan = make_plan(graph.outputs["transform"], flatten=True)
    assert plan.row == (width,)
    assert any(isinstance(node.op, Repeated) for node in topological(plan.outputs)) == (width > 1)
    executable = COMPILER.compile(graph, CompileOptions(threads=threads))
    rows = rng.normal(size=(20_000 // width + 300, width)).astype(dtype)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    for count in (len(rows), 257, 16, 7, 1, 0):
        for method, (expected,) in graph.evaluate(rows[:count]).items():
            np.testing.assert_array_equal(executable.run(method, [rows[:count]])[0], expected, err_msg=f"{method} {count}")


@pytest.mark.parametrize("shape", [(3, 4), (4, 1)])
def test_constants_of_other_shapes_do_not_count_elements_as_rows(shape: tuple[int, int]) -> None:
    """A row of a matrix, whose constant has a number for each of its own rows."""
    x = Input("X", "f64", (N, *shape))()
    y = t.add(x, np.arange(shape[0], dtype=float)[:, None])
    assert make_plan((y,), flatten=True).row == ((4, 1) if shape == (4, 1) else None)
