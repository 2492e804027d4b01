"""Every operator of the table in operator_cases.py: its inferred types agree with its evaluation, its lowering agrees with the operator,
and every backend agrees with both; on random and special values, for many rows, one row and none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from zlib import crc32

import numpy as np
import pytest
from backends import BACKENDS
from operator_cases import CASES, INEXACT_SUM, ORDERED_SUM, ROWS, TOLERANCES, Fixed, Tolerance

from hbc.builder import Builder
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import OPERATORS, Constant, Graph, Input, Node, Operator
from hbc.ir.magnitudes import by_column, fits
from hbc.ir.rewrite import rewrite
from hbc.ir.soundness import require_sound
from hbc.ir.spans import span_of
from hbc.ir.types import Array, N, type_of
from hbc.ops import import_all
from hbc.ops import tensor as t
from hbc.ops.nearest import Ascending

import_all()

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
    # The table of estimators compares operators of sparse rows (texts). The tests of a compiler compare its own operators.
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
        return  # the host computes these too, on every backend: HOST_OPERATORS in test_house.py
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


@pytest.mark.parametrize("name", ALL)
def test_cuda_agrees_with_the_reference(name: str) -> None:
    """The kernels run on the processor (tests/cuda_on_cpu), with threads and blocks in an order of the case's own."""
    cuda_on_cpu = pytest.importorskip("cuda_on_cpu")
    if why := cuda_on_cpu.cannot_run():
        pytest.skip(why)
    op, operands, tolerance = ALL[name]
    graph, arrays = graph_of(op, operands)
    with cuda_on_cpu.emulated(seed=crc32(name.encode())):
        builder = Builder("tvm", CompileOptions(device="cuda"))
        executable = builder.compile(builder.plan(graph))
        if isinstance(op, Ascending):
            with pytest.raises(UnsupportedOperatorError, match="CUDA"):
                executable.run("predict", arrays)
            return
        for rows in (ROWS, 1, 0):
            some = [array[:rows] for array in arrays]
            (found,) = executable.run("predict", some)
            assert_agrees(found, evaluated(graph, some), tolerance)


def calm(operand: Array | Fixed) -> Array | Fixed:
    """The operand without NaN and infinities, and with numbers for which no function overflows."""
    array = operand.array if isinstance(operand, Fixed) else operand
    if array.dtype.kind == "f":
        array = np.where(np.abs(array) < 50, array, array.dtype.type(1.5))
    if array.dtype.kind in "iu":
        array = np.where((array >= -100) & (array <= 100), array, array.dtype.type(1))
    return Fixed(array) if isinstance(operand, Fixed) else array


@pytest.mark.parametrize("name", ALL)
def test_results_lie_within_the_declared_magnitudes_and_spans(name: str) -> None:
    op, operands, _ = ALL[name]
    if any(node.type.dtype == "str" for node in graph_of(op, operands)[0].nodes):
        pytest.skip("strings have no magnitude")
    graph, arrays = graph_of(op, [calm(operand) for operand in operands])
    (node,) = graph.outputs["predict"]
    found = evaluated(graph, arrays)
    given = [
        source.op.value if isinstance(source.op, Constant) else arrays[graph.inputs.index(source)] for source in node.inputs
    ]
    spans = [span_of(x) if x.dtype.kind in "iu" else (0, 1) if x.dtype == bool else None for x in given]
    if found.dtype.kind != "f":
        span = op.span(node, spans)
        assert span is None or (span[0] <= found.min() and found.max() <= span[1])
    if found.dtype.kind in "iu" and found.dtype.itemsize < 4:
        return  # narrow integers wrap around, and magnitudes and signs do not follow that
    if not found.size or any(x.size == 0 for x in given):
        return
    with np.errstate(all="ignore"):
        bounds = [by_column(x.reshape(-1, source.type.width)).max(0) for x, source in zip(given, node.inputs, strict=True)]
        magnitude = op.magnitude(node, bounds)
    if magnitude is not None:
        magnitude = np.broadcast_to(magnitude, node.type.width)
        small = fits(magnitude, node.type.dtype if node.type.is_float else "f64")  # otherwise a step may overflow
        assert not (by_column(found.reshape(-1, node.type.width)) > magnitude * (1 + 1e-5) + 1e-30)[:, small].any()
    assert not op.never_negative(node.inputs) or not (found < 0).any()
    assert not op.never_positive(node.inputs) or not (found > 0).any()


def test_integers_that_wrap_around_can_be_anything() -> None:
    """A product's ends may be small though a number between them wraps around, and so may a byte's."""
    x = Input("x", "i64", (N, 1))()
    y = t.mul(t.constant(np.array([[0, 2**62]])), t.constant(np.array([[0, 4]])))
    assert y.op.evaluate(np.array([0, 2**62]), np.array([0, 4])).tolist() == [0, 0]
    assert y.op.span(y, [(0, 2**62), (0, 4)]) == (-(2**63), 2**63 - 1)
    assert t.cast(x, "i8").op.span(t.cast(x, "i8"), [(0, 200)]) == (-128, 127)
    table, places = np.arange(300.0), t.constant(np.array([200]))
    with pytest.raises(ValueError, match="-128 to 127, expected 0 to 299"):
        require_sound(
            Graph((x,), {"predict": (t.add(t.take(table, t.cast(t.cast(places, "i8"), "i64"), 0), t.cast(x, "f64")),)})
        )


def test_what_an_operator_looks_up_is_checked() -> None:
    """Every integer that a case's operator names is one of the places it says, and one more is found out."""
    checked = 0
    for op, operands, _ in ALL.values():
        graph, _ = graph_of(op, operands)
        require_sound(graph)
        (node,) = graph.outputs["predict"]
        for name, places in op.looks_up(node.inputs).items():
            if isinstance(name, str) and getattr(op, name).size:
                array = getattr(op, name).copy()
                array.flat[0] = places.stop
                with pytest.raises((ValueError, TypeError, IndexError)):
                    require_sound(graph_of(replace(op, **{name: array}), operands)[0])  # type: ignore[type-var]
                checked += 1
    assert checked > 10


def test_quantiles_on_the_host_have_the_bits_of_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    op = OPERATORS["NormalQuantile"](on_host=True)
    x = np.random.default_rng(0).random((1000, 20)) ** np.arange(1, 21)
    x[::7] = 1 - x[::7]
    x[5, :3] = np.nan, 0.0, 1.0
    assert np.array_equal(op.evaluate(x), special.ndtri(np.clip(x, 1e-13, 1 - 1e-13)), equal_nan=True)


@pytest.mark.parametrize("rows", [1, 7, 3000])
def test_compiled_quantiles_have_the_bits_of_scipy(rows: int) -> None:
    """Where a decision follows, TVM's code calls the C library's logarithm."""
    special = pytest.importorskip("scipy.special")
    x, rng = Input("X", "f64", (N, 4))(), np.random.default_rng(rows)
    graph = Graph((x,), {"transform": (OPERATORS["NormalQuantile"](exact=True)(x),)})
    builder = Builder("tvm", CompileOptions(threads=1))
    values = np.exp(-30 * rng.random((rows, 4)) ** 2)
    values[::2] = 1 - values[::2]
    values[-1, :3] = np.nan, 0.0, 1.0
    found = builder.compile(builder.plan(graph)).run("transform", [values])[0]
    assert np.array_equal(found, special.ndtri(np.clip(values, 1e-13, 1 - 1e-13)), equal_nan=True)
