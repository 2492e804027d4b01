"""How a library tests whether the model accepts its input, as `Gate` does in Python (hbc/runtime/input/gate.py).

    passed = run(X, …, bound)            # the method tests the sum of the squares of each block of rows: the cheapest test
    if not passed:
        passed = test(X)                 # number by number, which is slower
        if not passed: return REJECTED
        run(X, …, NaN)                   # without a test

Where that sum says nothing (integers, several inputs, or what the graph itself tests: known categories, no negative numbers), `test` comes
first. Numbers of more than Limits.safe are rejected, although some of them the source may take: what it then tests is computed in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.tir.dialect import DTYPES
from hbc.ir.graph import Graph
from hbc.ir.signature import Guard, Limits
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.lazy import record


@record
class InputTest:
    """The test of a method's inputs.

    bound: the bound to give to the method's function, if the sum of squares is tested first. missing: NaN is left out of that sum.
    accepted: the graphs that the function computes besides, which must be true for all rows. columns: for each input the largest magnitude
    and whether NaN may come, of each column; None for an input of which every number passes.
    """

    min_rows: int
    bound: float | None
    missing: bool
    accepted: tuple[Graph, ...]
    columns: tuple[tuple[Array, Array] | None, ...]


def input_test(limits: Limits, types: Sequence[TensorType]) -> InputTest:
    """The test of inputs of these types. The guards that no compiled code can do must have been refused (`untestable`)."""
    accepted = tuple(guard.accepted for guard in limits.tests if guard.accepted is not None)
    dtypes = [NUMPY_DTYPES[kind.dtype] for kind in types]
    columns: list[tuple[Array, Array] | None] = []
    for entry, dtype in zip(limits.inputs, dtypes, strict=True):
        if entry.sum_of_squares(dtype, limits.safe) is None or not entry.limit.size:
            columns.append(None)
        elif dtype.kind == "f":
            columns.append((entry.largest(dtype, limits.safe).astype(np.float64), entry.allow_nan))
        else:
            columns.append((np.minimum(entry.limit, limits.safe), entry.allow_nan))
    bound = None
    if len(dtypes) == 1 and dtypes[0].kind == "f" and not accepted and columns[0] is not None:
        bound = float(limits.inputs[0].sum_of_squares(dtypes[0], limits.safe))
    missing = bool(limits.inputs[0].allow_nan.all())
    return InputTest(limits.min_rows, bound, missing, accepted, tuple(columns))


def untestable(limits: Limits) -> list[Guard]:
    """The guards that compute in numpy for ordinary numbers too, so that a library could not tell what the source rejects."""
    return [guard for guard in limits.tests if guard.accepted is None]


def test_function(name: str, kind: TensorType) -> Any:
    """The TIR function name(x, largest, missing, first row, end row) -> 1 if each number of x is at most its column's largest, or is NaN
    where missing[column] is not 0. Else it returns 0."""
    n, columns = tirx.Var("n", "int64"), elements(kind)
    x = tirx.decl_buffer((n, columns), DTYPES[kind.dtype], name="x", data_alignment=NUMPY_DTYPES[kind.dtype].itemsize)
    largest = tirx.decl_buffer((columns,), "float64", name="largest")
    missing = tirx.decl_buffer((columns,), "uint8", name="missing")
    first, end = tirx.Var("first", "int64"), tirx.Var("end", "int64")
    good = tirx.decl_buffer((1,), "int64", name="good")
    with IRBuilder() as builder, T.serial(first, end) as row, T.serial(tirx.const(0, "int64"), columns) as column:
        value = T.Bind(tirx.Cast("float64", x[row, column]))
        passes = tirx.LE(tirx.abs(value), largest[column])
        if kind.is_float:
            allowed = tirx.NE(missing[column], tirx.const(0, "uint8"))
            passes = tirx.Or(passes, tirx.And(tirx.isnan(value), allowed))
        T.buffer_store(good, tirx.Mul(good[0], tirx.Cast("int64", passes)), [0])
    one = tirx.const(1, "int64")
    body = [tirx.AllocBuffer(good), tirx.BufferStore(good, one, [0]), builder.get(), tirx.Return(good[0])]
    function = tirx.PrimFunc([x, largest, missing, first, end], tirx.SeqStmt(body))
    return function.with_attr("tirx.noalias", True).with_attr("global_symbol", name)
