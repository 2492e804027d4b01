"""Every pass, as a picture of a graph before and after it. Both are compared as graphs, and executed with NaN and inf rows. Beside each
picture is a case in which the pass must not fire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from random_trees import stump

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.errors import InvalidInputError, UnsupportedOperatorError
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.rewrite import Noted
from hbc.ir.types import DType, N
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.curves import NormalQuantile
from hbc.ops.encoding import OneHot
from hbc.ops.functions import Function
from hbc.ops.linear import Linear, Logistic
from hbc.ops.scaling import Standardize
from hbc.optimizer.columns.simplify import FoldConstants, MergeColumns, RemoveChecks
from hbc.optimizer.host import PlaceFunctions
from hbc.optimizer.limits.checks import input_limits
from hbc.optimizer.lower import Lower
from hbc.optimizer.partition import BEFORE, partition
from hbc.optimizer.pipeline import Pass, optimize
from hbc.optimizer.strategy import ChooseStrategy

ROWS = np.array([[1.0, -2.0, 3.0], [np.nan, np.inf, -np.inf], [-0.0, 5e-324, 1e308]])


class TensorOnly:
    """A compiler that runs tensor operators and nothing else."""

    name, strategies, one_launch, handles_strings = "tensor-only", (), False, False

    def supports(self, op) -> bool:
        return op.level == "tensor"

    def seen(self, node, options):
        return node.op

    def choose_strategy(self, op, options):
        return "tree_trav", "the test says so"

    def compile(self, graph, options):
        raise AssertionError


class CallsC(TensorOnly):
    """Its code may call the C library of the computer that it is compiled on."""

    def calls_c_library(self, options: CompileOptions) -> bool:
        return not options.elsewhere


def select(x: Node, *indices: int) -> Node:
    return SelectColumns(np.array(indices))(x)


def one_hot(dtype: DType) -> OneHot:
    return OneHot(np.array([0, 2, 2]), np.array([1.0, np.nan, -np.inf]), dtype)


@dataclass
class Picture:
    name: str
    step: Pass
    before: Callable[[Node], Node]
    after: Callable[[Node], Node] | None  # None: the pass must not fire


weights = np.arange(6.0).reshape(3, 2)
PICTURES = [
    Picture("checks go", RemoveChecks(), lambda x: t.neg(Check("owner")(x)), t.neg),
    Picture("no check, no change", RemoveChecks(), t.neg, None),
    Picture("constants fold", FoldConstants(), lambda x: t.add(x, t.exp(t.constant(0.0))), lambda x: t.add(x, 1.0)),
    Picture("rows do not fold", FoldConstants(), lambda x: t.add(t.exp(x), 1.0), None),
    Picture("selections merge", MergeColumns(), lambda x: select(select(x, 2, 0), 1, 1), lambda x: select(x, 0, 0)),
    Picture("all columns in order are x", MergeColumns(), lambda x: t.neg(select(x, 0, 1, 2)), t.neg),
    Picture("another order is not x", MergeColumns(), lambda x: select(x, 0, 2, 1), None),
    Picture(
        "joined selections are one",
        MergeColumns(),
        lambda x: t.concat([select(x, 2), select(x, 0, 1)]),
        lambda x: select(x, 2, 0, 1),
    ),
    Picture("joined parts are x", MergeColumns(), lambda x: t.concat([select(x, 0), select(x, 1, 2)]), lambda x: x),
    Picture(
        "parts without columns go", MergeColumns(), lambda x: t.concat([SelectColumns(np.array([], int))(x), t.neg(x)]), t.neg
    ),
    Picture("selections of two values stay", MergeColumns(), lambda x: t.concat([select(x, 0), select(t.neg(x), 1)]), None),
    Picture(
        "zeros and ones get the other dtype at once",
        MergeColumns(),
        lambda x: t.cast(one_hot("f64")(x), "f32"),
        lambda x: one_hot("f32")(x),
    ),
    Picture("codes in float64 stay", MergeColumns(), lambda x: t.neg(one_hot("f64")(x)), None),
    Picture(
        "functions before trees stay on the host",
        PlaceFunctions(TensorOnly()),
        lambda x: stump()(t.neg(Function("log")(x))),
        lambda x: stump()(t.neg(Function("log", on_host=True)(x))),
    ),
    Picture("functions behind trees do not", PlaceFunctions(TensorOnly()), lambda x: Function("log")(stump()(x)), None),
    Picture("square roots do not", PlaceFunctions(TensorOnly()), lambda x: stump()(Function("sqrt")(x)), None),
    Picture(
        "numpy has not those of the C library",
        PlaceFunctions(load_compiler("numpy")),
        lambda x: stump()(Function("log", by_c_library=True)(x)),
        lambda x: stump()(Function("log", by_c_library=True, on_host=True)(x)),
    ),
    Picture(
        "compiled code calls the C library",
        PlaceFunctions(CallsC()),
        lambda x: stump()(NormalQuantile()(x)),
        lambda x: stump()(NormalQuantile(exact=True)(x)),
    ),
    Picture(
        "also its exponential",
        PlaceFunctions(CallsC()),
        lambda x: stump()(Logistic()(x)),
        lambda x: stump()(Logistic(exact=True)(x)),
    ),
    Picture("not behind trees", PlaceFunctions(CallsC()), lambda x: Logistic()(stump()(x)), None),
    Picture(
        "but not that of other computers",
        PlaceFunctions(CallsC(), CompileOptions(elsewhere=True)),
        lambda x: stump()(NormalQuantile()(x)),
        lambda x: stump()(NormalQuantile(on_host=True)(x)),
    ),
    Picture("numpy has its own bits", PlaceFunctions(load_compiler("numpy")), lambda x: stump()(Function("exp")(x)), None),
    Picture(
        "model operators lower",
        Lower(TensorOnly()),
        Linear(weights, np.ones(2)),
        lambda x: t.add(t.matmul(x, weights), np.ones(2)),
    ),
    Picture("supported operators stay", Lower(load_compiler("numpy")), Linear(weights, np.ones(2)), None),
    Picture(
        "a strategy is chosen",
        ChooseStrategy(load_compiler("numpy"), CompileOptions(), "auto"),
        stump(),
        lambda x: replace(stump(), strategy="reference")(x),
    ),
]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_picture(picture: Picture) -> None:
    x = Input("X", "f64", (N, 3))()
    before = Graph((x,), {"transform": (picture.before(x),)}).verify()
    found = picture.step(before)
    found = (found.graph if isinstance(found, Noted) else found).verify()
    expected = before if picture.after is None else Graph((x,), {"transform": (picture.after(x),)})
    assert found == expected, f"\n{found}\n{expected}"
    np.testing.assert_array_equal(found.evaluate(ROWS)["transform"][0], before.evaluate(ROWS)["transform"][0])


def test_a_caller_s_strategy_wins_and_is_noted():
    x = Input("X", "f64", (N, 3))()
    graph = Graph((x,), {"predict": (stump()(x),)})
    after, notes = ChooseStrategy(TensorOnly(), CompileOptions(), "gemm")(graph)
    assert after.outputs["predict"][0].op.strategy == "gemm"
    assert "asked for by the caller" in notes[0]
    result = optimize(graph, TensorOnly(), CompileOptions())
    assert all(node.op.level == "tensor" for node in result.graph.nodes)
    assert any("the test says so" in note for record in result.records for note in record.notes)


def test_a_scaler_whose_columns_trees_read_before_it_goes():
    """Also if it stands beside columns that trees read behind it."""
    x = Input("X", "f32", (N, 3))()
    scaled = Standardize(np.float32([1, 2]), np.float32([3, 4]))(select(x, 0, 1))
    one, both = stump(), [0, 1, 2, 0, 1, 2]
    trees = replace(
        one,
        roots=np.array([0, 3], np.int32),
        feature=np.array([1, -1, -1, 2, -1, -1], np.int32),
        threshold=np.full(6, 0.5, np.float32),
        left=one.left[both] + np.array([0, 0, 0, 3, 0, 0], np.int32),
        right=one.right[both] + np.array([0, 0, 0, 3, 0, 0], np.int32),
        missing_left=one.missing_left[both],
        target=np.zeros(2, np.int32),
    )
    y = trees(t.cast(t.concat([t.cast(scaled, "f64"), one_hot("f64")(t.cast(select(x, 2, 2, 2), "f64"))]), "f32"))
    graph = Graph((x,), {"predict": (y,)})
    assert [type(node.op) for node in graph.nodes].count(Standardize) == 1
    after = optimize(graph, load_compiler("numpy"), CompileOptions()).graph
    rows = np.float32([[1, 3, 1], [9, 4, 1], [2, np.nan, np.nan], [np.nan, 4.0000005, -np.inf]])
    np.testing.assert_array_equal(after.evaluate(rows)["predict"][0], graph.evaluate(rows)["predict"][0])
    assert not any(isinstance(node.op, (t.Div, Standardize)) for node in after.nodes)


def test_what_cannot_be_lowered_is_an_error_that_names_it():
    x = Input("X", "f64", (N, 3))()
    unknown = replace(stump(), strategy="nonsense")(x)
    with pytest.raises(UnsupportedOperatorError, match=r"TreeEnsemble.*nonsense"):
        optimize(Graph((x,), {"predict": (unknown,)}), TensorOnly(), CompileOptions(), "nonsense")


def test_strings_are_cut_off_before_and_after():
    X, S = Input("X", "f64", (N, 1))(), Input("S", "str", (N, 1))()
    codes = t.cast(Categorize(np.array(["a", "b"]))(S), "f64")
    index = t.cast(t.less(0.0, t.reshape(t.add(codes, X), N)), "i64")
    graph = Graph((X, S), {"predict": (t.take(np.array(["no", "yes"]), index, 0),), "decision_function": (t.add(codes, X),)})
    parts = partition(graph)
    assert parts.before is not None
    assert all("str" not in (node.type.dtype, *(s.type.dtype for s in node.inputs)) for node in parts.device.nodes)
    data = [np.array([[0.0], [-5.0], [np.nan]]), np.array([["b"], ["b"], ["x"]], object)]
    (crossing,) = parts.before.evaluate(*data).values()
    for method, expected in graph.evaluate(*data).items():
        (found,) = parts.device.evaluate(*crossing, methods=[method]).values()
        if method in parts.after:
            (found,) = parts.after[method].evaluate(*found, *data).values()
        np.testing.assert_array_equal(found[0], expected[0])
    assert list(parts.after) == ["predict"]
    assert list(parts.before.outputs) == [BEFORE]


def test_no_strings_nothing_to_cut():
    x = Input("X", "f64", (N, 3))()
    graph = Graph((x,), {"transform": (t.neg(x),)})
    parts = partition(graph)
    assert parts.device is graph
    assert parts.before is None


def test_missing_values_are_followed_by_column():
    x = Input("X", "f64", (N, 3))()
    scaled = t.neg(select(x, 2, 0))
    strict = Check("strict", allow_nan=False, allow_inf=False)(scaled)
    loose = Check("loose", allow_nan=True, allow_inf=False, limit=1e38)(x)
    graph = Graph((x,), {"a": (strict,), "b": (loose,)})
    (limits,) = input_limits(graph).inputs
    np.testing.assert_array_equal(limits.allow_nan, [False, True, False])
    np.testing.assert_array_equal(limits.allow_inf, [False, False, False])
    np.testing.assert_array_equal(limits.limit, [1e38] * 3)


def test_computed_numbers_are_guarded():
    """A scaled number may pass a check that the number itself does not pass, and the other way round, so computed numbers are guarded."""
    x = Input("X", "f64", (N, 2))()
    raw = select(x, 1)
    scaled = Check("strict", limit=10.0)(t.concat([t.div(select(x, 0), np.array([[1e3]])), raw]))
    limits = input_limits(Graph((x,), {"a": (scaled,)}))
    np.testing.assert_array_equal(limits.inputs[0].limit, [np.inf, 10.0])
    np.testing.assert_array_equal(limits.inputs[0].allow_inf, [True, False])
    np.testing.assert_array_equal(limits.inputs[0].allow_nan, [False, False])
    (guard,) = limits.guards
    guard.test([np.array([[1e4, 10.0]])])
    for bad in (1.1e4, np.inf):
        with pytest.raises(InvalidInputError):
            guard.test([np.array([[bad, 0.0]])])


def test_what_has_passed_a_check_is_not_guarded_again():
    x = Input("X", "f64", (N, 2))()
    once = Check("one")(t.mul(x, 2.0))
    assert len(input_limits(Graph((x,), {"a": (Check("two")(once),)})).guards) == 1
    assert len(input_limits(Graph((x,), {"a": (Check("two", limit=1e38)(once),)})).guards) == 2
    assert not input_limits(Graph((x,), {"a": (Check("two", allow_nan=True, allow_inf=True)(t.mul(x, 2.0)),)})).guards


def test_computed_numbers_may_be_nan_where_infinities_pass():
    x = Input("X", "f64", (N, 2))()
    for value, guards in ((t.sub(select(x, 0), select(x, 1)), 1), (t.log(x), 1), (x, 0)):
        assert len(input_limits(Graph((x,), {"a": (Check("owner", allow_inf=True)(value),)})).guards) == guards


def test_imputed_columns_may_be_missing():
    x = Input("X", "f64", (N, 2))()
    ranked = t.cast(Categorize(np.array([1.0, 2.0]))(select(x, 0)), "f64")
    graph = Graph((x,), {"a": (Check("strict")(t.concat([ranked, select(x, 1)])),)})
    (limits,) = input_limits(graph).inputs
    np.testing.assert_array_equal(limits.allow_nan, [True, False])
