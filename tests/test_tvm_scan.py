"""The scan of tree ensembles (compiler/tvm/scan.py, lanes.py) against the operator itself: random trees, rows at the thresholds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops.tree import Tree, TreeEnsemble, join

tvm = pytest.importorskip("tvm")


def random_tree(rng: np.random.Generator, leaves: int, features: int, dtype: str, values: Array, missing: bool) -> Tree:
    """A tree grown by splitting random leaves; thresholds repeat, so that ranks tie."""
    feature, left, right = [-1], [0], [0]
    open_leaves = [0]
    while len(open_leaves) < leaves:
        node = open_leaves.pop(rng.integers(len(open_leaves)))
        feature[node], left[node], right[node] = int(rng.integers(features)), len(feature), len(feature) + 1
        open_leaves += [len(feature), len(feature) + 1]
        feature += [-1, -1]
        left += [0, 0]
        right += [0, 0]
    size = len(feature)
    return Tree(
        feature=np.array(feature),
        threshold=np.round(rng.normal(size=size), 2).astype(dtype),
        left=np.array(left),
        right=np.array(right),
        missing_left=rng.random(size) < 0.5 if missing else np.zeros(size, bool),
        values=values[rng.integers(len(values), size=size)],
    )


def rows_at_thresholds(rng: np.random.Generator, op: TreeEnsemble, rows: int, features: int) -> Array:
    """At thresholds, one ulp beside them, NaN, infinities, −0.0, subnormals, and anything."""
    dtype = op.threshold.dtype
    at = rng.choice(op.threshold, (rows, features))
    special = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).smallest_subnormal], dtype), (rows, features))
    choices = [at, np.nextafter(at, dtype.type(np.inf)), np.nextafter(at, dtype.type(-np.inf)), special]
    choices.append(rng.normal(size=(rows, features)).astype(dtype))
    return np.choose(rng.integers(len(choices), size=(rows, features)), choices).astype(dtype)


def scanned(op: TreeEnsemble, X: Array, batches: tuple[int, ...]) -> list[Array]:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


CASES = {  # trees, most leaves, features, dtype of thresholds and of values, outputs, vector leaves, NaN both ways
    "one leaf table register": (13, 31, 5, "f4", "f8", 1, False, True),
    "float32 sums": (13, 31, 5, "f4", "f4", 1, False, True),
    "two registers, float64 thresholds": (50, 100, 6, "f8", "f8", 1, False, True),
    "four registers, classes by tree": (20, 250, 3, "f4", "f8", 3, False, False),
    "ranks of 16 bits": (60, 250, 2, "f4", "f8", 1, False, True),
    "vector leaves": (20, 64, 3, "f4", "f8", 3, True, True),
    "leaves of 16 bits": (20, 400, 3, "f8", "f4", 2, True, True),
    "single leaf": (1, 1, 1, "f4", "f8", 1, False, False),
    "planes in two registers": (40, 60, 100, "f4", "f8", 1, False, False),
    "planes in four registers, NaN both ways": (70, 60, 100, "f8", "f8", 1, False, True),
    "several groups of lanes": (330, 40, 9, "f4", "f4", 1, False, True),
    "several groups of lanes, classes by tree": (150, 31, 9, "f4", "f8", 3, False, False),
}
BATCHES = (333, 128, 64, 55, 31, 17, 15, 6, 5, 3, 2, 1, 0)


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_operator(name: str) -> None:
    """One wrong leaf is far beyond the tolerance, which is that of fixed point."""
    trees, leaves, features, dtype, kind, outputs, vector, missing = CASES[name]
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, outputs if vector else 1)).astype(kind)
    grown = [random_tree(rng, int(rng.integers(1, leaves + 1)), features, dtype, values, missing) for _ in range(trees)]
    op = join(grown, rng.normal(size=outputs), None if vector else np.arange(trees) % outputs)
    X = rows_at_thresholds(rng, op, max(BATCHES), features)
    tolerance = 1e-5 if kind == "f4" else 1e-10
    for rows, found in zip(BATCHES, scanned(op, X, BATCHES), strict=True):
        expected = op.evaluate(X[:rows])
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("values", [[[1 / 3, 2 / 3], [2 / 3, 1 / 3]], [[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]])
def test_ties_are_decided_by_the_source_s_own_rounding(values: list[list[float]]) -> None:
    """Class probabilities that tie but for the last bit: the largest is the one that a loop over the trees finds."""
    rng = np.random.default_rng(0)
    op = join([random_tree(rng, 8, 4, "f4", np.array(values), False) for _ in range(10)], np.zeros(2))
    X = rows_at_thresholds(rng, op, 2000, 4)
    expected = op.evaluate(X)
    near = np.abs(expected[:, 0] - expected[:, 1]) < 1e-12
    assert near.sum() > 20
    (found,) = scanned(op, X, (len(X),))
    np.testing.assert_array_equal(found[near], expected[near])
    np.testing.assert_array_equal(found.argmax(axis=1), expected.argmax(axis=1))
