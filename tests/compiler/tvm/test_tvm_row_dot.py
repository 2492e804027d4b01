"""Products that are summed along the caller's rows (hbc/compiler/tvm/plan/row_dots.py): which they are, and that they are right."""

from __future__ import annotations

import platform
import time
from typing import Any

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions
from hbc.ir.graph import Constant, Graph, Input, Node, topological
from hbc.ir.types import NUMPY_DTYPES, Array, DType
from hbc.ops import tensor as t

pytest.importorskip("tvm")

from hbc.compiler.tvm.compiler import COMPILER
from hbc.compiler.tvm.plan.plan import MAX_ROWS, ROWS_IN_STATEMENT, make_plan
from hbc.compiler.tvm.plan.row_dots import RowDot, _windows

TARGETS = [None, {"kind": "llvm", "mcpu": "haswell"}] if platform.machine() == "x86_64" else [None]
BATCHES = [0, 1, ROWS_IN_STATEMENT - 1, ROWS_IN_STATEMENT, ROWS_IN_STATEMENT + 3, MAX_ROWS + ROWS_IN_STATEMENT + 1]


def given(columns: int, dtype: DType = "f64", name: str = "x") -> Node:
    return Input(name, dtype, ("N", columns))()


def weights(columns: int, outputs: int = 1, dtype: DType = "f64") -> Node:
    return Constant(np.random.default_rng(columns).standard_normal((columns, outputs)).astype(NUMPY_DTYPES[dtype]))()


def dots(*outputs: Node) -> int:
    return sum(isinstance(node.op, RowDot) for node in topological(make_plan(outputs, register=512).outputs))


def agrees(y: Node, *inputs: Node, missing: float = 0.0, target: Any = None) -> None:
    """Asserts that results are right for all numbers of rows, and that the result of a row does not depend on other rows."""
    graph = Graph(inputs, {"predict": (y,)}).verify()
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    rng = np.random.default_rng(0)
    for n in BATCHES:
        arrays: list[Array] = []
        for node in inputs:
            x = rng.standard_normal((n, node.type.columns)) * 4
            if node.type.dtype.startswith("f"):
                x[rng.random(x.shape) < missing] = np.nan
            arrays.append(x.astype(NUMPY_DTYPES[node.type.dtype]))
        (found,) = executable.run("predict", arrays)
        (expected,) = graph.evaluate(*arrays)["predict"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5 if found.dtype == np.float32 else 1e-11, atol=1e-5)
        for i in range(0, n, 7):
            (alone,) = executable.run("predict", [x[i : i + 1] for x in arrays])
            np.testing.assert_array_equal(alone, found[i : i + 1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "columns", "outputs"), [("f64", 8, 1), ("f64", 29, 1), ("f64", 40, 2), ("f32", 16, 1), ("f32", 67, 2)]
)
def test_products(dtype: DType, columns: int, outputs: int, target: Any) -> None:
    x = given(columns, dtype)
    y = t.matmul(x, weights(columns, outputs, dtype))
    assert dots(y) == 1
    agrees(y, x, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_single_columns(target: Any) -> None:
    """Chosen columns that are imputed, others that are encoded, all of them scaled; of integers too."""
    x, codes = given(43, "f32"), given(9, "i32", "codes")
    numbers = t.take(x, np.array([40, 3, 4, 5, 6, 7, 8, 9, 10, 0, 42, 20, 21, 22, 23, 24]), axis=1)
    filled = t.cast(t.where(t.isnan(numbers), np.arange(16, dtype=np.float32), numbers), "f64")
    scaled = t.div(t.sub(filled, np.linspace(-1, 1, 16)), np.linspace(1, 3, 16))
    encoded = t.cast(t.equal(t.take(codes, np.repeat(np.arange(9), 3), axis=1), np.tile(np.int32([0, 1, -2]), 9)), "f64")
    x_encoded = t.cast(t.equal(t.take(x, np.repeat(np.arange(30), 2), axis=1), np.tile(np.float32([0, 1]), 30)), "f64")
    y = t.matmul(t.concat([scaled, encoded, x_encoded]), weights(16 + 27 + 60))
    assert dots(y) == 1
    agrees(y, x, codes, missing=0.2, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_chosen_does_not_count(target: Any) -> None:
    """NaN and infinities in columns that nothing reads do not change the sum. In columns that are read they make it NaN or infinite."""
    chosen = np.array([0, 1, 2, 4, 5, 6, 7, 9, 10, 12])
    x = given(13)
    y = t.matmul(t.take(x, chosen, axis=1), weights(10))
    assert dots(y) == 1
    graph = Graph((x,), {"predict": (y,)})
    executable = COMPILER.compile(graph, CompileOptions(threads=1, target=target))
    values = np.random.default_rng(0).standard_normal((40, 13))
    values[:, [3, 8, 11]] = np.nan, np.inf, -np.inf
    values[3, 4], values[20, 12], values[39, 0], values[38, [1, 2]] = np.nan, np.inf, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        expected = graph.evaluate(values)["predict"][0]
    for n in (40, 39, 4, 1):
        np.testing.assert_allclose(executable.run("predict", [values[-n:]])[0], expected[-n:], rtol=1e-12)


def test_a_part_that_is_no_function_of_single_columns_is_multiplied_as_before() -> None:
    x = given(20)
    halves = t.matmul(x, weights(20, 10))  # ten outputs, each of all columns
    y = t.matmul(t.concat([x, halves]), weights(30))
    assert dots(y) == 1
    agrees(y, x)


def test_where_it_does_not_pay() -> None:
    x = given(64)
    assert dots(t.matmul(x, weights(64, 3))) == 0  # more outputs than MOST_OUTPUTS
    assert dots(t.matmul(given(12), weights(12, 2))) == 0  # two outputs, of few columns
    assert dots(t.matmul(given(7), weights(7))) == 0  # less than a register
    assert dots(t.matmul(t.exp(x), weights(64))) == 0  # costly: of rows turned over, it is computed in full vectors too
    assert dots(t.matmul(t.sub(x, t.Sum(axis=1, keepdims=True)(x)), weights(64))) == 0  # a function of the whole row
    assert dots(t.matmul(t.take(x, np.arange(0, 64, 8), axis=1), weights(8))) == 0  # one column a window
    assert not any(isinstance(node.op, RowDot) for node in topological(make_plan((t.matmul(x, weights(64)),)).outputs))


def test_windows_of_many_columns() -> None:
    """Each window looked at all columns that were left: 300,000 took 28 s, now less than 1 s."""
    columns = np.random.default_rng(0).permutation(300_000)
    before, seen = time.process_time(), np.zeros(len(columns), int)
    for start, positions in _windows(columns, len(columns), 4):
        kept = positions >= 0
        assert (columns[positions[kept]] == start + np.flatnonzero(kept)).all()
        seen[positions[kept]] += 1
    assert (seen == 1).all()
    assert time.process_time() - before < 14
