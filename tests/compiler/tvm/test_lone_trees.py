"""One tree, or a few, with fewer steps than columns: walks compare the numbers of a row as they stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

from random_trees import random_tree, rows_at_thresholds

from hbc.builder import Builder
from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.trees.lone import walks_alone
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.ops import tensor as t
from hbc.ops.tree import TreeEnsemble, join


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("behind", [False, True], ids=["of the caller's rows", "of computed rows"])
def test_lone_trees_are_the_references(dtype: str, trees: int, behind: bool) -> None:
    """At thresholds, beside them, at thresholds that are infinite, and for NaN that goes either way."""
    rng = np.random.default_rng(trees + 10 * behind)
    grown = [random_tree(rng, 60, 150, dtype, rng.normal(size=(40, 2)), True) for _ in range(trees)]
    for tree in grown:
        tree.threshold[::9], tree.threshold[::11] = np.inf, -np.inf
    op = replace(join(grown, np.array([1.0, -2.0])), strategy="walk")
    assert walks_alone(op)
    x = Input("X", "f32" if dtype == "f4" else "f64", (N, 151))()
    below = t.mul(x, np.full(151, 2, dtype)) if behind else x
    graph = Graph((x,), {"predict": (op(below),), "apply": (replace(op, output="leaf")(below),)})
    builder = Builder("tvm", CompileOptions(threads=1), "walk")
    executable = builder.compile(builder.plan(graph))
    rows = rows_at_thresholds(rng, op, 200, 151) / (1 + behind)
    for count in (200, 17, 16, 1):
        some = rows[:count].astype(dtype)
        for method, (expected,) in graph.evaluate(some).items():
            np.testing.assert_array_equal(executable.run(method, [some])[0], expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("values", [3, 4, 7, 8, 9, 17, 26, 100])
@pytest.mark.parametrize("strategy", ["walk", "select"])
def test_values_of_one_tree_are_copied(strategy: str, values: int, dtype: str) -> None:
    """By whole registers, and by one that overlaps its neighbour; labels by one number. Nothing behind the last row is written."""
    rng = np.random.default_rng(values)
    leaves = rng.normal(size=(40, values)).astype(dtype)
    op = join([random_tree(rng, 60, 9, "f4", leaves, True)], np.zeros(values, dtype))
    x = Input("X", "f32", (N, 9))()
    graph = Graph((x,), {"predict": (t.argmax(op(x), axis=1),), "predict_proba": (op(x),)})
    builder = Builder("tvm", CompileOptions(threads=1), strategy)
    plan = builder.plan(graph)
    assert any(isinstance(node.op, t.Take) for node in plan.graph.nodes)
    assert {node.op.output for node in plan.graph.nodes if isinstance(node.op, TreeEnsemble)} <= {"leaf"}
    executable = builder.compile(plan)
    rows = rows_at_thresholds(rng, op, 5000, 9).astype("f4")
    for count in (5000, 257, 17, 16, 1):
        for method, (expected,) in graph.evaluate(rows[:count]).items():
            np.testing.assert_array_equal(executable.run(method, [rows[:count]])[0], expected)


@pytest.mark.parametrize("strategy", ["auto", "walk", "scan", "select", "patches"])
def test_outputs_that_are_copied_from_several_tables(strategy: str) -> None:
    """An output is copied after all have been computed: its indices must have memory of their own till then."""
    rng = np.random.default_rng(1)
    x = Input("X", "f32", (N, 4))()
    tables = [rng.normal(size=(4, 3)), rng.normal(size=(2, 3)), rng.normal(size=(2, 5))]
    above = [t.cast(t.less(np.float32(edge), t.take(x, [i], axis=1)), "i64") for i, edge in enumerate((-0.5, 0.0, 0.5))]
    taken = [t.take(table, t.reshape(place, N), axis=0) for table, place in zip(tables, above, strict=True)]
    trees = [
        join([random_tree(rng, 8, 4, "f4", rng.normal(size=(9, 3)), True)], np.zeros(3)),
        join([random_tree(rng, 8, 4, "f4", rng.normal(size=(9, 5)), True)], np.zeros(5)),
    ]
    graph = Graph(
        (x,), {"tables": tuple(taken), "trees": tuple(op(x) for op in trees), "all": (*taken, *(op(x) for op in trees))}
    )
    executable = (builder := Builder("tvm", CompileOptions(threads=1), strategy)).compile(builder.plan(graph))
    rows = rng.normal(size=(300, 4)).astype("f4")
    for count in (300, 17, 16, 1):
        for method, expected in graph.evaluate(rows[:count]).items():
            for one, other in zip(executable.run(method, [rows[:count]]), expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_trees_of_many_steps_make_keys() -> None:
    rng = np.random.default_rng(0)
    assert not walks_alone(join([random_tree(rng, 60, 5, "f4", rng.normal(size=(9, 1)), False)], np.zeros(1)))
