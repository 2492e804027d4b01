"""The scan of tree ensembles (compiler/tvm/scan.py, lanes.py) against the operator itself: random trees, rows at the thresholds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops import tensor as t
from hbc.ops.tree import CategoryPlanes, Tree, TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.tvm.categories import CategoricalTrees
from hbc.compiler.tvm.ranks import PLANE, rank_encode, triples
from hbc.compiler.tvm.targets import machine


def random_tree(
    rng: np.random.Generator, leaves: int, features: int, dtype: str, values: Array, missing: bool, digits: int = 2
) -> Tree:
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
        threshold=np.round(rng.normal(size=size), digits).astype(dtype),
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


def scanned(op: TreeEnsemble, X: Array, batches: tuple[int, ...], target: dict[str, object] | None = None) -> list[Array]:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


CASES = {  # trees, most leaves, features, dtype of thresholds and of values, outputs, vector leaves, NaN both ways
    "one leaf table register": (13, 31, 5, "f4", "f8", 1, False, True),
    "float32 sums": (13, 31, 5, "f4", "f4", 1, False, True),
    "two registers, float64 thresholds": (50, 100, 6, "f8", "f8", 1, False, True),
    "four registers, classes by tree": (20, 250, 3, "f4", "f8", 3, False, False),
    "several planes a feature": (60, 250, 2, "f4", "f8", 1, False, True),
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
    tolerance = 1e-5 if kind == "f4" else 1e-9
    for rows, found in zip(BATCHES, scanned(op, X, BATCHES), strict=True):
        expected = op.evaluate(X[:rows])
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


OTHER_TARGETS = {  # what compares of bytes give, and in how long registers
    "masks of 64 bits": {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512vbmi"]},
    "bytes of halves": {"kind": "llvm", "mcpu": "znver4"},
    "bytes": {"kind": "llvm", "mcpu": "haswell"},
}


@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_other_processors(name: str) -> None:
    target = OTHER_TARGETS[name]
    if machine("cpu", target).missing:
        pytest.skip("this computer cannot run its code")
    rng = np.random.default_rng(7)
    values = rng.normal(size=(500, 1))
    for leaves in (31, 300):
        grown = [random_tree(rng, int(rng.integers(1, leaves + 1)), 5, "f8", values, missing=True) for _ in range(15)]
        op = join(grown, np.zeros(1), None)
        X = rows_at_thresholds(rng, op, 400, 5)
        (found,) = scanned(op, X, (400,), target)
        np.testing.assert_allclose(found, op.evaluate(X), rtol=1e-9, atol=1e-9)


def test_triples_hold_whole_tops_of_trees() -> None:
    rng = np.random.default_rng(3)
    grown = [random_tree(rng, int(rng.integers(1, 200)), 5, "f4", np.ones((500, 1)), missing=False) for _ in range(30)]
    ranked = rank_encode(join(grown, np.zeros(1), None))
    found = triples(ranked)
    members = found[found >= 0]
    assert len(np.unique(members)) == len(members) > len(ranked.split_lo) // 2
    above = np.full(len(ranked.split_lo), -1)
    for below in (ranked.split_left, ranked.split_right):
        above[below[below >= 0]] = np.flatnonzero(below >= 0)
    assert np.isin(above[members], [-1, *members]).all()
    position = np.full(len(above), -1)
    position[members] = np.nonzero(found >= 0)[0]
    assert (position[above[members]][above[members] >= 0] <= position[members][above[members] >= 0]).all()


def test_a_feature_whose_nan_go_both_ways_is_ranked_once() -> None:
    rng = np.random.default_rng(5)
    grown = [random_tree(rng, 40, 3, "f4", np.ones((500, 1)), missing=True, digits=1) for _ in range(10)]
    ranked = rank_encode(join(grown, np.zeros(1), None))
    assert (len(ranked.column_feature), len(ranked.below), ranked.planes) == (3, 3, 6)
    assert (ranked.missing_rank == PLANE).all()


@pytest.mark.parametrize("trees", [30, 80])
def test_thousands_of_thresholds(trees: int) -> None:
    """Two and three levels of pivots above the lines of 16 thresholds."""
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, 1))
    op = join([random_tree(rng, 250, 1, "f4", values, missing=True, digits=9) for _ in range(trees)], np.zeros(1))
    assert (rank_encode(op).most_thresholds > 8191) == (trees > 30)
    X = rows_at_thresholds(rng, op, 1000, 1)
    (found,) = scanned(op, X, (1000,))
    np.testing.assert_allclose(found, op.evaluate(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("most", "outputs", "target"), [(40, 1, None), (700, 3, None), (700, 1, {"kind": "llvm", "mcpu": "haswell"})]
)
def test_category_sets(most: int, outputs: int, target: dict[str, str] | None) -> None:
    """Trees that test numbers and category sets: categories in range, unseen, negative, fractional, huge, NaN."""
    rng = np.random.default_rng(most)
    features, sets, width = 6, 50, 4
    members = [np.unique(rng.integers(0, most, size=int(rng.integers(0, most)))) for _ in range(sets)]
    planes = CategoryPlanes(
        columns=np.sort(rng.integers(1, features, size=sets)),
        categories=np.concatenate(members),
        offsets=np.cumsum([0, *map(len, members)]),
        inside=rng.random(sets) < 0.5,
        missing=rng.random(sets) < 0.5,
        invalid=rng.random(sets) < 0.5,
        truncate_negative=outputs == 1,
        limit=float(2**24),
    )
    values = rng.normal(size=(300, 1))
    grown = [random_tree(rng, int(rng.integers(1, 40)), width + sets, "f4", values, missing=False) for _ in range(40)]
    for tree in grown:
        tests_set = tree.feature >= width
        tree.feature[tests_set] += features - width
        tree.threshold[tests_set] = 0.5
    op = join(grown, np.zeros(outputs), np.arange(len(grown)) % outputs)
    X = rng.integers(-2, most + 3, size=(300, features)).astype(np.float32)
    odd = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, -0.5, 1.5, 1e30, 2.0**24, 2.0**31], np.float32), X.shape)
    X = np.where(rng.random(X.shape) < 0.2, odd, X)
    x = Input("X", "f32", (N, features))()
    y = replace(op, strategy="scan")(t.concat([x, planes(x)]))
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (y,)}), CompileOptions(threads=1, target=target))
    assert isinstance(executable.graph.outputs["predict"][0].op, CategoricalTrees)
    for rows in (300, 64, 7, 6, 5, 3, 2, 1):
        expected = op.evaluate(np.concatenate([X[:rows], planes.evaluate(X[:rows])], axis=1))
        np.testing.assert_allclose(executable.run("predict", [X[:rows]])[0], expected, rtol=1e-9, atol=1e-9)


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
