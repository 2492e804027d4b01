"""Columns that nobody reads are not computed, and one-hot codes before trees become set tests: each pass as a picture, executed on
both sides, beside what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import N
from hbc.ops import tensor as t
from hbc.ops.columns import SelectColumns
from hbc.ops.features import Normalize, OneHot, Standardize
from hbc.ops.tree import CategoryPlanes, TreeEnsemble
from hbc.optimizer.absorb import CategoriesIntoTrees
from hbc.optimizer.select import PushSelection

ROWS = np.array([[1.0, -2.0, 3.0, 0.0], [np.nan, np.inf, -np.inf, 1.0], [-0.0, 5e-324, 1e308, 2.0]])
CODES = np.array([[0, 3], [-1, 1], [2, 2]])
OFFSET, SCALE = np.arange(4.0), np.arange(1.0, 5.0)


def select(x: Node, *indices: int) -> Node:
    return SelectColumns(np.array(indices))(x)


def stump(feature: int, threshold: float = 0.5, **options: Any) -> TreeEnsemble:
    """One tree: x[:, feature] <= threshold, NaN to the left, leaves 10 and 20."""
    return TreeEnsemble(
        roots=np.zeros(1, np.int32),
        feature=np.array([feature, -1, -1], np.int32),
        threshold=np.array([threshold, 0, 0]),
        left=np.array([1, 0, 1], np.int32),
        right=np.array([2, 0, 1], np.int32),
        missing_left=np.array([True, False, False]),
        values=np.array([[10.0], [20.0]]),
        target=np.zeros(1, np.int32),
        leaf_ids=np.array([1, 2]),
        base=np.zeros(1),
        **options,
    )


def scaled(x: Node, *kept: int) -> Node:
    return Standardize(OFFSET[list(kept)], SCALE[list(kept)])(select(x, *kept)) if kept else Standardize(OFFSET, SCALE)(x)


def hot(c: Node, source: list[int], value: list[int]) -> Node:
    return OneHot(np.array(source), np.array(value), "f64")(c)


@dataclass
class Picture:
    name: str
    before: Callable[[Node, Node], Node | tuple[Node, ...]]
    after: Callable[[Node, Node], Node | tuple[Node, ...]] | None  # None: the pass must not fire


PICTURES = [
    Picture("trees", lambda x, c: stump(2)(scaled(x)), lambda x, c: stump(0)(scaled(x, 2))),
    Picture("a selection", lambda x, c: select(scaled(x), 3, 1), lambda x, c: select(scaled(x, 1, 3), 1, 0)),
    Picture(
        "one-hot codes",
        lambda x, c: stump(5)(t.concat([scaled(x), hot(c, [0, 1, 1], [0, 1, 2])])),
        lambda x, c: stump(0)(hot(select(c, 1), [0], [1])),
    ),
    Picture(
        "readers together",
        lambda x, c: (stump(0)(y := scaled(x)), stump(2)(y)),
        lambda x, c: (stump(0)(y := scaled(x, 0, 2)), stump(1)(y)),
    ),
    Picture("somebody reads all", lambda x, c: (stump(0)(y := scaled(x)), t.neg(y)), None),
    Picture("the result itself", lambda x, c: (stump(0)(y := scaled(x)), y), None),
    Picture("the input", lambda x, c: stump(2)(x), None),
    Picture("a row consumed whole", lambda x, c: stump(2)(Normalize("l2")(x)), None),
]


def graph_of(make: Callable[[Node, Node], Node | tuple[Node, ...]]) -> Graph:
    x, c = Input("X", "f64", (N, 4))(), Input("C", "i64", (N, 2))()
    made = make(x, c)
    return Graph((x, c), {"transform": made if isinstance(made, tuple) else (made,)}).verify()


def assert_picture(found: Graph, before: Graph, after: Graph) -> None:
    assert found.verify() == after, f"\n{found}\n{after}"
    for ours, expected in zip(found.evaluate(ROWS, CODES)["transform"], before.evaluate(ROWS, CODES)["transform"], strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_selections_move(picture: Picture) -> None:
    before = graph_of(picture.before)
    assert_picture(PushSelection()(before), before, before if picture.after is None else graph_of(picture.after))


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
    after = graph_of(lambda x, c: stump(7, **SCAN)(planes(t.concat([t.cast(c, "f64"), x]), [0, 1], [2, 3])))
    notes: list[str] = []
    assert_picture(CategoriesIntoTrees(Sets(True), notes)(before), before, after)
    assert "2 columns" in notes[0]


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
    assert CategoriesIntoTrees(Sets(True), [])(graph) == graph


def test_a_compiler_without_sets_gets_none() -> None:
    graph = graph_of(lambda x, c: stump(1, **SCAN)(hot(c, [0, 1], [2, 3])))
    assert CategoriesIntoTrees(Sets(False), [])(graph) == graph
