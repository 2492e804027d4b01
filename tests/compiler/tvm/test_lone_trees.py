"""One tree: walks that compare the numbers of a row as they stand, where it has fewer steps than columns (lone.py); and scans whose leaves
are looked up (one_tree_scan.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

from random_trees import random_tree, rows_at_thresholds

from hbc.builder import Builder
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.scan.one_tree_scan import scans_one
from hbc.compiler.tvm.trees.walk.lone import walks_alone
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


COUNTS = (600, 513, 512, 511, 300, 256, 255, 224, 223, 131, 100, 72, 71, 67, 64, 63, 40, 36, 33, 32, 31, 17, 8, 7, 4, 3, 2, 1)
"""Rows of calls: around whole rounds of 256 rows, chunks of 64 and 32, and the few that are walked."""


@pytest.mark.parametrize(
    "target", [None, *({"kind": "llvm", "mcpu": cpu} for cpu in ("x86-64", "znver4", "x86-64-v4"))], ids=str
)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("leaves", "features"), [(1, 1), (2, 3), (9, 4), (20, 40), (113, 5), (120, 16), (256, 2), (250, 9)])
def test_one_tree_is_scanned(leaves: int, features: int, dtype: str, target: dict[str, object] | None) -> None:
    """Rows of four to 15 columns are turned in squares of their own size, and those beside squares one after the other. Sums have
    every bit, and nothing behind the last row is written."""
    if target is not None and (reason := machine("cpu", target).missing) is not None:
        pytest.skip(reason)
    rng = np.random.default_rng(leaves)
    tree = random_tree(rng, leaves, features, dtype, rng.normal(size=(300, 2)), True, digits=4)
    tree.threshold[::9], tree.threshold[::11] = np.inf, -np.inf
    op = replace(join([tree], np.array([0.1, -2.0])), strategy="scan")
    assert scans_one(op)
    x = Input("X", "f32" if dtype == "f4" else "f64", (N, features))()
    graph = Graph((x,), {"predict": (op(x),), "apply": (replace(op, output="leaf")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    rows = rows_at_thresholds(rng, op, 600, features).astype(dtype)
    for count in COUNTS:
        for method, (expected,) in graph.evaluate(rows[:count]).items():
            np.testing.assert_array_equal(executable.run(method, [rows[:count]])[0], expected, err_msg=f"{method} {count}")


def test_one_tree_of_many_outputs_is_scanned() -> None:
    """Their columns lie side by side where a block has few rows. One of them alone has a tree."""
    rng = np.random.default_rng(3)
    tree = random_tree(rng, 60, 4, "f4", rng.normal(size=(80, 1)), True)
    op = replace(join([tree], rng.normal(size=70), np.array([69])), strategy="scan")
    x = Input("X", "f32", (N, 4))()
    graph = Graph((x,), {"predict": (op(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    rows = rows_at_thresholds(rng, op, 300, 4)
    for count in (300, 64, 20, 8, 2, 1):
        np.testing.assert_array_equal(executable.run("predict", [rows[:count]])[0], op.evaluate(rows[:count]))


@pytest.mark.parametrize(("leaves", "rows", "chosen"), [(8, None, "select"), (110, None, "scan"), (110, 100_000, "scan")])
def test_the_faster_way_is_chosen_for_one_tree(leaves: int, rows: int | None, chosen: str) -> None:
    """Few splits are nested choices; a hundred over four columns are scanned (AVX2)."""
    rng = np.random.default_rng(0)
    op = join([random_tree(rng, leaves, 4, "f4", rng.normal(size=(200, 1)), False)], np.zeros(1))
    options = CompileOptions(target={"kind": "llvm", "mcpu": "haswell"}, batch_size=rows)
    assert load_compiler("tvm").choose_strategy(op, options)[0] == chosen
