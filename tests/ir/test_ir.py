"""The graph language: types, verification, text, rewriting."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from hbc.errors import ArtifactError
from hbc.ir.graph import Constant, Graph, Input, Node, topological
from hbc.ir.printer import _Reader, print_graph, read_graph
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.types import N, TensorType, broadcast_shapes, dtype_name
from hbc.ops import tensor as t
from hbc.ops.columns import SelectColumns


def matrix(dtype="f64", columns=3, name="X") -> Node:
    return Input(name, dtype, (N, columns))()


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((N, 3), (3,)), (N, 3)),
        (((N, 1), (1, 4)), (N, 4)),
        (((), (N, 2)), (N, 2)),
        (((2, 3), (1, 3)), (2, 3)),
        (((N, 3, 1), (5,)), (N, 3, 5)),
    ],
)
def test_shapes_broadcast_as_numpys(shapes, expected):
    assert broadcast_shapes(*shapes) == expected


@pytest.mark.parametrize("shapes", [((N, 3), (2,)), ((N,), (3,)), ((2, 3), (3, 2))])
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(TypeError, match="broadcast"):
        broadcast_shapes(*shapes)


def test_rows_are_the_first_axis():
    with pytest.raises(TypeError, match="first axis"):
        TensorType("f32", (3, N))


@pytest.mark.parametrize(
    ("dtype", "name"), [("<f4", "f32"), (">f8", "f64"), ("U5", "str"), (object, "str"), ("?", "bool"), ("u1", "u8")]
)
def test_dtype_names(dtype, name):
    assert dtype_name(dtype) == name


def test_unknown_dtypes_are_refused():
    with pytest.raises(TypeError, match="complex128"):
        dtype_name(complex)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: t.Add()(matrix("f64"), matrix("f32")), "same dtype"),
        (lambda: t.matmul(matrix(), np.ones((4, 2))), "inner dimensions"),
        (lambda: t.Sum(0)(matrix()), "rows cannot be reduced"),
        (lambda: t.take(matrix(), np.array([0]), axis=0), "axis ≥ 1"),
        (lambda: t.Concat(1)(matrix("f64"), matrix("f32")), "same dtype"),
        (lambda: t.reshape(matrix(), N, 4), "elements"),
        (lambda: t.where(matrix(), 1.0, 0.0), "condition"),
        (lambda: SelectColumns(np.array([3]))(matrix()), "0..2"),
        (lambda: t.add(t.cast(matrix(), "i64"), 0.5), "not exact in i64"),
    ],
)
def test_wrong_types_are_refused_when_a_node_is_made(build, message):
    with pytest.raises(TypeError, match=message):
        build()


def test_verify_finds_an_undeclared_input():
    x, other = matrix(), matrix(name="Y")
    with pytest.raises(TypeError, match="'Y' is used but not declared"):
        Graph((x,), {"transform": (t.add(x, other),)}).verify()


def test_verify_finds_an_output_without_rows():
    x = matrix()
    with pytest.raises(TypeError, match="no row axis"):
        Graph((x,), {"transform": (t.constant(1.0),)}).verify()


def test_parameters_cannot_be_changed():
    offset = np.ones(3)
    op = Constant(offset)
    offset[0] = 7
    assert op.value[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        op.value[0] = 7


def test_operators_are_equal_by_their_bits():
    assert Constant(np.array([np.nan])) == Constant(np.array([np.nan]))
    assert Constant(np.array([0.0])) != Constant(np.array([-0.0]))
    assert Constant(np.array([1.0])) != Constant(np.array([1.0], np.float32))


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 0.1, 1e308, -1.5])


@pytest.mark.parametrize(
    "value",
    [
        SPECIAL,
        SPECIAL[[0, 1, 2, 3, 5]].astype(np.float32),
        np.arange(12.0).reshape(3, 4),
        np.array(0.1, np.float32),
        np.array([True, False]),
        np.array([], np.float64),
        np.array(["a", "é'\n\"", ""]),
        np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max]),
    ],
    ids=lambda v: f"{v.dtype}{v.shape}",
)
def test_constants_print_and_read_back(value):
    x = matrix()
    graph = Graph((x,), {"transform": (x,), "c": (Constant(value)(),)})
    text, arrays = print_graph(graph)
    assert _Reader(arrays, {}).graph(ast.parse(text)) == graph  # not read_graph, which refuses an output without rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os",
        "def graph(X: f64[N, 2]):\n    return {'p': (v9,)}\n",
        "def graph(X: f64[N, 2]):\n    v0: f64[N, 2] = __import__('os')(X)\n    return {'p': (v0,)}\n",
        "def graph(X: f64[N, 2]):\n    v0: f64[N, 3] = Neg(X)\n    return {'p': (v0,)}\n",
        "def graph(X: f64[N, 2]):\n    v0: f64[2] = Constant(value=f64[2] @ kmissing)\n    return {'p': (X,)}\n",
        "def graph(X: f64[N, 2]):\n    v0: f64[N, 2] = Neg(X, evil=print('x'))\n    return {'p': (v0,)}\n",
    ],
)
def test_text_that_is_no_graph_is_refused_and_never_run(text):
    with pytest.raises(ArtifactError):
        read_graph(text, {})


def test_deep_graphs_need_no_recursion():
    x, one = matrix(), t.constant(1.0)
    node = x
    for _ in range(5000):
        node = t.add(node, one)
    graph = Graph((x,), {"transform": (node,)}).verify()
    text, arrays = print_graph(graph)
    assert read_graph(text, arrays) == graph
    assert rewrite(graph, lambda node: None) == graph
    assert graph.evaluate(np.zeros((1, 3)))["transform"][0][0, 0] == 5000


def test_evaluate_runs_only_what_a_method_needs():
    x = matrix()
    graph = Graph((x,), {"a": (t.neg(x),), "b": (t.matmul(x, np.ones((3, 2))),)})
    (result,) = graph.evaluate(np.ones((2, 3)), methods=["a"]).values()
    np.testing.assert_array_equal(result[0], -np.ones((2, 3)))


def test_rewrite_joins_what_became_equal():
    x = matrix()
    graph = Graph((x,), {"transform": (t.add(t.neg(t.neg(x)), t.exp(t.neg(t.neg(x)))),)})

    def double_negation(node: Node) -> Node | None:
        if isinstance(node.op, t.Neg) and isinstance(node.inputs[0].op, t.Neg):
            return node.inputs[0].inputs[0]
        return None

    after = rewrite(graph, double_negation)
    assert after == Graph((x,), {"transform": (t.add(x, t.exp(x)),)})
    X = np.array([[np.nan, np.inf, 1.0]])
    np.testing.assert_array_equal(after.evaluate(X)["transform"], graph.evaluate(X)["transform"])


def test_rewrite_refuses_another_type():
    x = matrix()
    graph = Graph((x,), {"transform": (t.neg(x),)})
    with pytest.raises(TypeError, match="another type"):
        rewrite(graph, lambda node: t.isnan(node.inputs[0]) if isinstance(node.op, t.Neg) else None)


def test_rewrite_that_never_ends_is_stopped():
    x = matrix()
    graph = Graph((x,), {"transform": (t.neg(x),)})
    with pytest.raises((RuntimeError, RecursionError)):
        rewrite(graph, lambda node: t.add(node, 1.0) if isinstance(node.op, t.Neg | t.Add) else None)


def test_substitute_keeps_what_does_not_depend():
    x = matrix()
    kept, changed = t.exp(x), t.neg(x)
    root = t.add(kept, changed)
    (after,) = substitute([root], {changed: x})
    assert after.inputs == (kept, x)
    assert list(topological([after])) == [x, kept, after]
