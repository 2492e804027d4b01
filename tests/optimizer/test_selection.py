"""Columns that nothing reads are not computed, and one-hot codes before trees become tests for sets. Each pass is a picture, which is
executed before and after, beside pictures that it must leave alone. Also: every operator before a selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from operator_cases import CASES, Fixed
from random_trees import stump
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.ir.graph import Constant, Graph, Input, Node
from hbc.ir.types import N, type_of
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.encoding import OneHot
from hbc.ops.functions import Polynomial
from hbc.ops.linear import Linear
from hbc.ops.scaling import Normalize, Standardize
from hbc.ops.tree import CategoryPlanes
from hbc.optimizer.columns.select import PushSelection
from hbc.optimizer.trees.absorb_categories import CategoriesIntoTrees

ROWS = np.array([[1.0, -2.0, 3.0, 0.0], [np.nan, np.inf, -np.inf, 1.0], [-0.0, 5e-324, 1e308, 2.0]])
CODES = np.array([[0, 3], [-1, 1], [2, 2]])
OFFSET, SCALE = np.arange(4.0), np.arange(1.0, 5.0)


def select(x: Node, *indices: int) -> Node:
    return SelectColumns(np.array(indices))(x)


def scaled(x: Node, *kept: int) -> Node:
    return Standardize(OFFSET[list(kept)], SCALE[list(kept)])(select(x, *kept)) if kept else Standardize(OFFSET, SCALE)(x)


def hot(c: Node, source: list[int], value: list[int]) -> Node:
    return OneHot(np.array(source), np.array(value), "f64")(c)


WEIGHTS = np.array([[0.0, 0.0], [1.0, -0.0], [0.0, 0.0], [0.0, 2.0]])
BIAS = np.array([0.5, -0.5])


def linear(x: Node, *rows: int) -> Node:
    return Linear(WEIGHTS[list(rows)] if rows else WEIGHTS, BIAS)(x)


def check(x: Node, **options: Any) -> Node:
    return Check("owner", **options)(x)


@dataclass
class Picture:
    name: str
    before: Callable[[Node, Node], Node | tuple[Node, ...]]
    after: Callable[[Node, Node], Node | tuple[Node, ...]] | None  # None: the pass must not fire
    finite: bool = False  # the rows that a Check lets pass


PICTURES = [
    Picture("trees", lambda x, c: stump(2)(scaled(x)), lambda x, c: stump(0)(scaled(x, 2))),
    Picture("a selection", lambda x, c: select(scaled(x), 3, 1), lambda x, c: select(scaled(x, 1, 3), 1, 0)),
    Picture("in order", lambda x, c: select(scaled(x), 1, 3), lambda x, c: scaled(x, 1, 3)),
    Picture(
        "of a selection", lambda x, c: select(select(scaled(x), 3, 1, 0), 0, 2), lambda x, c: select(scaled(x, 0, 3), 1, 0)
    ),
    Picture(
        "one-hot codes",
        lambda x, c: stump(5)(t.concat([scaled(x), hot(c, [0, 1, 1], [0, 1, 2])])),
        lambda x, c: stump(0)(hot(c, [1], [1])),
    ),
    Picture(
        "the scaler behind the encoder",
        lambda x, c: select(Standardize(np.arange(7.0), np.arange(1.0, 8))(t.concat([x, hot(c, [0, 1, 1], [0, 1, 2])])), 1, 5),
        lambda x, c: Standardize(np.array([1.0, 5]), np.array([2.0, 6]))(t.concat([select(x, 1), hot(c, [1], [1])])),
    ),
    Picture(
        "readers together",
        lambda x, c: (stump(0)(y := scaled(x)), stump(2)(y)),
        lambda x, c: (stump(0)(y := scaled(x, 0, 2)), stump(1)(y)),
    ),
    Picture(
        "two operands",
        lambda x, c: select(t.where(t.isnan(x), OFFSET, t.mul(t.neg(x), x)), 2),
        lambda x, c: t.where(t.isnan(y := select(x, 2)), OFFSET[2:3], t.mul(t.neg(y), y)),
    ),
    Picture("a column for all", lambda x, c: select(t.mul(x, select(x, 1)), 3), lambda x, c: t.mul(select(x, 3), select(x, 1))),
    Picture(
        "terms",
        lambda x, c: select(Polynomial(np.array([[-1, -1], [-1, 0], [2, 3], [-1, 3]]))(t.neg(x)), 0, 3),
        lambda x, c: Polynomial(np.array([[-1], [0]]))(t.neg(select(x, 3))),
    ),
    Picture("products", lambda x, c: select(linear(x), 1), lambda x, c: Linear(WEIGHTS[:, 1:], BIAS[1:])(x)),
    Picture(
        "weights of 0", lambda x, c: linear(check(scaled(x))), lambda x, c: linear(check(scaled(x, 1, 3)), 1, 3), finite=True
    ),
    Picture(
        "weights of 0 of one result",
        lambda x, c: select(linear(check(scaled(x))), 1),
        lambda x, c: Linear(WEIGHTS[3:, 1:], BIAS[1:])(check(scaled(x, 3))),
        finite=True,
    ),
    Picture("a tree that reads nothing", lambda x, c: stump(-1)(scaled(x)), lambda x, c: stump(-1)(scaled(x, 0))),
    Picture("weights of 0 that may meet NaN", lambda x, c: linear(scaled(x)), None),
    Picture("or infinities", lambda x, c: linear(check(scaled(x), allow_inf=True)), None),
    Picture("or what overflows behind the check", lambda x, c: linear(scaled(check(x))), None),
    Picture("the input of a product", lambda x, c: linear(check(x)), None, finite=True),
    Picture("one column of eight", lambda x, c: select(t.neg(Normalize("l1")(t.concat([x, x]))), *range(7)), None),
    Picture("somebody reads all", lambda x, c: (stump(0)(y := scaled(x)), t.neg(y)), None),
    Picture("the result itself", lambda x, c: (stump(0)(y := scaled(x)), y), None),
    Picture("the input", lambda x, c: stump(2)(x), None),
    Picture("a row consumed whole", lambda x, c: stump(2)(Normalize("l2")(x)), None),
    Picture("and what is behind it", lambda x, c: stump(2)(Normalize("l2")(scaled(x))), None),
]


def graph_of(make: Callable[[Node, Node], Node | tuple[Node, ...]]) -> Graph:
    x, c = Input("X", "f64", (N, 4))(), Input("C", "i64", (N, 2))()
    made = make(x, c)
    return Graph((x, c), {"transform": made if isinstance(made, tuple) else (made,)}).verify()


def assert_picture(found: Graph, before: Graph, after: Graph, finite: bool = False) -> None:
    assert found.verify() == after, f"\n{found}\n{after}"
    rows, codes = (ROWS[[0, 2]], CODES[[0, 2]]) if finite else (ROWS, CODES)
    for ours, expected in zip(found.evaluate(rows, codes)["transform"], before.evaluate(rows, codes)["transform"], strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_selections_move(picture: Picture) -> None:
    before = graph_of(picture.before)
    after = before if picture.after is None else graph_of(picture.after)
    assert_picture(PushSelection()(before), before, after, picture.finite)


@pytest.mark.parametrize("name", CASES)
def test_every_operator_before_a_selection(name: str) -> None:
    """The selected columns have the same bits as without the pass; except for products, whose sums may have another order."""
    for op, operands in CASES[name]:
        inputs: list[Node] = []
        nodes: list[Node] = []
        for operand in operands:
            if isinstance(operand, Fixed):
                nodes.append(Constant(operand.array)())
            else:
                nodes.append(Input(f"x{len(inputs)}", type_of(operand).dtype, (N, *operand.shape[1:]))())
                inputs.append(nodes[-1])
        y = op(*nodes)
        if not y.type.batched or len(y.type.shape) != 2 or y.type.width < 2:
            continue
        arrays = [operand for operand in operands if not isinstance(operand, Fixed)]
        (whole,) = Graph(tuple(inputs), {"transform": (y,)}).evaluate(*arrays)["transform"]
        for chosen in ([y.type.width - 1], [1, 0], list(range(1, y.type.width))):
            before = Graph(tuple(inputs), {"transform": (select(y, *chosen),)})
            after = PushSelection()(before).verify()
            (found,) = after.evaluate(*arrays)["transform"]
            if name in ("MatMul", "Linear"):
                # If terms cancel, the error of the sum is relative to the terms.
                terms = np.abs(whole[np.isfinite(whole)]).max(initial=0)
                np.testing.assert_allclose(found, whole[:, chosen], rtol=1e-5, atol=1e-6 * terms)
            else:
                same = str if found.dtype.kind == "O" else found.dtype  # a NaN among objects is equal to itself only
                np.testing.assert_array_equal(found.astype(same), whole[:, chosen].astype(same))
            assert len(after.nodes) <= len(before.nodes) + len(inputs)


def test_strings_that_nobody_reads_are_not_encoded_but_still_validated() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "s": rng.choice(["a", "b", "c"], 60), "t": rng.choice(["u", "v"], 60)})
    columns = ColumnTransformer([("numbers", StandardScaler(), ["x"]), ("texts", OneHotEncoder(), ["s", "t"])])
    labels = (frame["s"] == "a") ^ (rng.random(60) < 0.1)
    model = make_pipeline(columns, SelectKBest(k=1), LogisticRegression()).fit(frame, labels)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_allclose(compiled.predict_proba(frame), model.predict_proba(frame))
    graph = next(variant.plan.graph for variant in compiled.variants.values() if "f64" in variant.kinds)
    operators = [type(node.op).__name__ for node in graph.nodes]
    assert operators.count("Categorize") == 1
    assert "Standardize" not in operators
    spoils = {"missing": frame.drop(columns="t"), "unknown": frame.assign(t="never seen"), "infinity": frame.assign(x=np.inf)}
    for message, spoilt in spoils.items():
        with pytest.raises(ValueError, match=message):
            model.predict_proba(spoilt)
        with pytest.raises(hbc.InvalidInputError):
            compiled.predict_proba(spoilt)


@dataclass
class Sets:
    """A compiler that tests sets, or none."""

    able: bool

    def supports(self, op: Any) -> bool:
        return self.able and isinstance(op, CategoryPlanes)


def planes(y: Node, columns: list[int], values: list[int]) -> Node:
    false, true = np.zeros(len(values), bool), np.ones(len(values), bool)
    offsets = np.arange(len(values) + 1)
    sets = CategoryPlanes(np.array(columns), np.array(values), offsets, true, false, false, limit=float(1 << 20))
    return t.concat([y, sets(y)])


SCAN = {"strategy": "scan"}


def test_one_hot_codes_become_set_tests() -> None:
    before = graph_of(lambda x, c: stump(1, **SCAN)(t.concat([hot(c, [0, 1], [2, 3]), x])))
    after = graph_of(lambda x, c: stump(2, **SCAN)(planes(t.cast(c, "f64"), [1], [3])))
    found, notes = CategoriesIntoTrees(Sets(True))(before)
    assert_picture(found, before, after)
    assert "set tests: 1;" in notes[0]


UNTOUCHED = {
    "no code is read": lambda x, c: stump(5, **SCAN)(t.concat([hot(c, [0, 1], [2, 3]), x])),
    "trees that are walked": lambda x, c: stump(1)(hot(c, [0, 1], [2, 3])),
    "no integers": lambda x, c: stump(1, **SCAN)(OneHot(np.array([0, 1]), np.array([2.0, 0.5]), "f64")(x)),
    "negative": lambda x, c: stump(1, **SCAN)(hot(c, [0, 1], [2, -3])),
    "a threshold that does not tell 0 from 1": lambda x, c: stump(1, 1.5, **SCAN)(hot(c, [0, 1], [2, 3])),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_is_no_set_test_stays(name: str) -> None:
    graph = graph_of(UNTOUCHED[name])
    assert CategoriesIntoTrees(Sets(True))(graph).graph == graph


def test_a_compiler_without_sets_gets_none() -> None:
    graph = graph_of(lambda x, c: stump(1, **SCAN)(hot(c, [0, 1], [2, 3])))
    assert CategoriesIntoTrees(Sets(False))(graph).graph == graph
