"""Trees of many leaves as sums of smaller trees (compiler/tvm/trees/scan/small_trees.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_trees import random_ensemble, random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.ops.tree import Tree, TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.tvm.trees.scan.scan import MOST_DEPTH, scannable
from hbc.compiler.tvm.trees.scan.small_trees import MOST_NUMBERED, small_trees


@pytest.mark.parametrize("by_class", [False, True])
def test_the_sums_stay(by_class: bool) -> None:
    """The values are integers, so that the order of the trees does not show."""
    rng = np.random.default_rng(by_class)
    values = rng.integers(-1000, 1000, (500, 1 if by_class else 3)).astype(float)
    sizes = (1, 255, 256, 257, 300, 511, 700, 2000, 3)
    grown = [random_tree(rng, size, 5, "f4", values, missing=True, digits=4) for size in sizes]
    op = join(grown, np.ones(3), np.arange(len(sizes)) % 3 if by_class else None)
    small = small_trees(op)
    assert int(small.leaf_counts.max()) <= MOST_NUMBERED
    assert small.n_trees <= 9 + 2 * (2 + 2 + 3 + 4 + 10) // 2
    small.require_sound()
    X = rows_at_thresholds(rng, op, 500, 5)
    np.testing.assert_array_equal(small.evaluate(X), op.evaluate(X))


def test_small_ensembles_stay_as_they_are() -> None:
    op, _ = random_ensemble("four registers, classes by tree", 1)
    assert small_trees(op) is op


@pytest.mark.parametrize("depth", [MOST_DEPTH, MOST_DEPTH + 1])
def test_deep_trees(depth: int) -> None:
    """A chain of splits whose last one has a tree of 400 leaves below it. If that is too deep, it is not scanned."""
    rng = np.random.default_rng(depth)
    below = random_tree(rng, 400, 3, "f4", rng.integers(0, 99, (50, 1)).astype(float), missing=False, digits=4)
    op = join([below], np.zeros(1), None)
    op = on_a_chain(op, depth - int(op.depths[0]))
    assert int(op.depths[0]) == depth
    assert scannable(op) == (depth <= MOST_DEPTH)
    X = rows_at_thresholds(rng, op, 300, 3)
    x = Input("X", "f32", (N, 3))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    for rows in (300, 64, 20, 3):
        np.testing.assert_array_equal(executable.run("predict", [X[:rows]])[0], op.evaluate(X[:rows]))


def on_a_chain(op: TreeEnsemble, splits: int) -> TreeEnsemble:
    """The tree behind splits that send high values of feature 0 to a leaf each."""
    nodes = np.arange(splits)
    inner = op.feature >= 0
    first = 2 * splits
    return join(
        [
            Tree(
                np.concatenate([np.zeros(splits, int), np.full(splits, -1), op.feature]),
                np.concatenate([np.linspace(9, 3, splits), np.zeros(splits), op.threshold]).astype("f4"),
                np.concatenate([np.append(nodes[1:], first), nodes * 0, np.where(inner, op.left + first, 0)]),
                np.concatenate([nodes + splits, nodes * 0, np.where(inner, op.right + first, 0)]),
                np.zeros(2 * splits + len(op.feature), bool),
                np.concatenate([np.zeros((splits, 1)), nodes[:, None] + 1.0, op.values[np.where(inner, 0, op.left)]]),
            )
        ],
        op.base,
        None,
    )
