"""Every operator of the table in operator_cases.py: inference agrees with evaluation, the lowering with the operator, and every
backend with both; on random and on special values, for many rows, one and none."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import numpy as np
import pytest
from operator_cases import CASES, INEXACT_SUM, ORDERED_SUM, ROWS, TOLERANCES, Fixed, Tolerance

import hbc.ops
from hbc.api import Builder
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import OPERATORS, Constant, Graph, Input, Node, Operator
from hbc.ir.rewrite import rewrite
from hbc.ir.types import Array, N, type_of

for module in pkgutil.iter_modules(hbc.ops.__path__):
    importlib.import_module(f"hbc.ops.{module.name}")

BACKENDS = ["numpy", "torch", "torchscript", "onnx", "tvm"]
EXACT = Tolerance(0, 0, "")
ALL: dict[str, tuple[Operator, list[Array | Fixed], Tolerance]] = {
    f"{name}-{i}": (op, operands, TOLERANCES.get(name, EXACT))
    for name, cases in CASES.items()
    for i, (op, operands) in enumerate(cases)
}
ALL.update({f"Sum-ordered-{i}": (op, operands, EXACT) for i, (op, operands) in enumerate(ORDERED_SUM)})
for i, (op, operands) in enumerate(INEXACT_SUM):
    tolerance = (
        Tolerance(1e-5, 2e-6, "the source adds 60 float32") if op.values.dtype == np.float32 else Tolerance(1e-10, 1e-10, "")
    )
    ALL[f"TreeEnsemble-inexact-{i}"] = (op, operands, tolerance)


def graph_of(op: Operator, operands: list[Array | Fixed]) -> tuple[Graph, list[Array]]:
    """The operator alone, as a model with one method."""
    inputs: list[Node] = []
    nodes: list[Node] = []
    for operand in operands:
        if isinstance(operand, Fixed):
            nodes.append(Constant(operand.array)())
            continue
        assert len(operand) == ROWS
        nodes.append(Input(f"x{len(inputs)}", type_of(operand).dtype, (N, *operand.shape[1:]))())
        inputs.append(nodes[-1])
    graph = Graph(tuple(inputs), {"predict": (op(*nodes),)}).verify()
    return graph, [operand for operand in operands if not isinstance(operand, Fixed)]


def evaluated(graph: Graph, arrays: list[Array]) -> Array:
    return graph.evaluate(*arrays)["predict"][0]


def assert_agrees(found: Array, expected: Array, tolerance: Tolerance) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "O":
        same = [a == b or (a != a and b != b) for a, b in zip(found.flat, expected.flat, strict=True)]
        assert all(same)
        return
    if expected.dtype.kind != "f" or tolerance is EXACT:
        np.testing.assert_array_equal(found, expected)
        return
    share = 1 if expected.dtype == np.float32 else 1e-7
    np.testing.assert_allclose(found, expected, tolerance.rtol * share, tolerance.atol * share)


def test_every_operator_has_a_case() -> None:
    # Those of sparse rows are compared by the table (texts), those of a compiler by its own tests.
    ours = {name for name, op in OPERATORS.items() if op.__module__.startswith(("hbc.ops.", "hbc.ir.")) and not op.rows}
    assert ours - set(CASES) == {"Input", "Constant", "Analyze"}  # every case has the first two; texts are in the table


@pytest.mark.parametrize("name", ALL)
def test_inference_agrees_with_evaluation(name: str) -> None:
    op, operands, _ = ALL[name]
    graph, arrays = graph_of(op, operands)
    kind = graph.outputs["predict"][0].type
    for rows in (ROWS, 1, 0):
        result = evaluated(graph, [array[:rows] for array in arrays])
        found = type_of(result)
        assert (found.dtype, found.shape) == (kind.dtype, (rows, *kind.shape[1:]))


@pytest.mark.parametrize("name", [name for name, (op, _, _) in ALL.items() if op.level == "model"])
def test_lowering_agrees_with_the_operator(name: str) -> None:
    op, operands, tolerance = ALL[name]
    graph, arrays = graph_of(op, operands)
    if any(node.type.dtype == "str" for node in graph.nodes):
        return  # strings are never lowered: the host computes them
    if op.level == "model" and type(op).lower is Operator.lower:
        return  # nor is what it computes whatever the backend: HOST_OPERATORS in test_house.py
    if getattr(op, "strategy", "") == "auto":
        return  # the optimizer has to choose first
    lowered = rewrite(graph, lambda node: node.op.lower(*node.inputs) if node.op.level == "model" else None)
    for rows in (ROWS, 1, 0):
        some = [array[:rows] for array in arrays]
        assert_agrees(evaluated(lowered, some), evaluated(graph, some), tolerance)


@cache
def builder_of(backend: str) -> Builder:
    try:
        load_compiler(backend)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"{backend} is not there: {error}")
    return Builder(backend, CompileOptions())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ALL)
def test_backends_agree_with_the_reference(name: str, backend: str) -> None:
    op, operands, tolerance = ALL[name]
    graph, arrays = graph_of(op, operands)
    builder = builder_of(backend)
    executable = builder.compile(builder.plan(graph))
    for rows in (ROWS, 1, 0):
        some = [array[:rows] for array in arrays]
        bits = [array.tobytes() for array in some]
        (found,) = executable.run("predict", some)
        assert_agrees(found, evaluated(graph, some), tolerance)
        assert [array.tobytes() for array in some] == bits  # inputs are never written to
