"""LeavesIntoTables: results of one tree are looked up by its leaf."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import N
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble, join
from hbc.optimizer.trees.tables import LeavesIntoTables

COLUMNS = 6


class OneFunction:
    """A compiler that makes one function of a method."""

    name, one_launch = "one-function", True


def after(graph: Graph, compiler: object = OneFunction(), device: str = "cpu") -> Graph:
    return LeavesIntoTables(compiler, CompileOptions(device=device))(graph).graph


def trees(count: int, values: int) -> TreeEnsemble:
    rng = np.random.default_rng(count + values)
    leaves = rng.choice([-0.0, 0.0, 0.25, 1.0, np.nan], size=(40, values))
    return join([random_tree(rng, 30, COLUMNS, "f8", leaves, True) for _ in range(count)], np.linspace(0.0, 1.0, values))


RESULTS: dict[str, Callable[[Node], Node]] = {
    "sums": lambda y: y,
    "labels": lambda y: t.take(np.arange(10, 14), t.argmax(y, axis=1), axis=0),
    "logarithms": lambda y: t.log(y),
    "two functions": lambda y: t.concat([t.add(y, 1.0), t.neg(y)]),
    "a row's sum": lambda y: t.sum_(y, axis=1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_one_tree_are_looked_up(name: str) -> None:
    """The bits stay: of sums with the base, of zeros with a sign, of NaN."""
    x, op = Input("X", "f64", (N, COLUMNS))(), trees(1, 4)
    before = Graph((x,), {"result": (RESULTS[name](op(x)),)})
    graph = after(before)
    kinds = [type(node.op).__name__ for node in graph.nodes]
    assert sorted(kinds) == ["Constant", "Input", "Reshape", "Take", "TreeEnsemble"]
    (left,) = (node.op for node in graph.nodes if isinstance(node.op, TreeEnsemble))
    assert left.output == "leaf"
    rows = rows_at_thresholds(np.random.default_rng(0), op, 100, COLUMNS)
    (expected,), (found,) = before.evaluate(rows)["result"], graph.evaluate(rows)["result"]
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_leaves_that_give_the_same_share_a_row() -> None:
    x, op = Input("X", "f64", (N, COLUMNS))(), trees(1, 3)
    graph = after(Graph((x,), {"predict": (t.argmax(op(x), axis=1),)}))
    (table,) = (node.op.value for node in graph.nodes if type(node.op).__name__ == "Constant")
    assert len(table) == len(np.unique(table)) <= 3


def test_what_other_values_are_computed_with_stays() -> None:
    x = Input("X", "f64", (N, COLUMNS))()
    one, two = trees(1, 4)(x), trees(2, 4)(x)
    narrow, regressor = trees(1, 2)(x), trees(1, 1)(x)
    for stays in (two, narrow, regressor, t.add(one, two), t.concat([one, x])):
        graph = Graph((x,), {"result": (stays,)})
        assert after(graph) is graph or after(graph).nodes == graph.nodes


def test_strings_are_taken_by_the_labels_places() -> None:
    """The host looks up strings: the table of the compiled part holds numbers."""
    x = Input("X", "f64", (N, COLUMNS))()
    names = t.take(np.array(["a", "b", "c", "d"], object), t.argmax(trees(1, 4)(x), axis=1), axis=0)
    (result,) = after(Graph((x,), {"predict": (names,)})).outputs["predict"]
    assert result.type == names.type
    assert type(result.inputs[1].op).__name__ == "Take"
    assert len(result.inputs[0].op.value) == 4


def test_only_for_one_function_on_a_cpu() -> None:
    x = Input("X", "f64", (N, COLUMNS))()
    graph = Graph((x,), {"result": (trees(1, 4)(x),)})
    assert after(graph, load_compiler("numpy")).nodes == graph.nodes
    assert after(graph, device="cuda").nodes == graph.nodes
