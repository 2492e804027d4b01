"""Scans in turns (compiler/tvm/trees/scan/turns.py): sums have the bits of a scan of all trees at once, also where NaN go both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds
from sklearn.ensemble import RandomForestClassifier

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.costs import Shape
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops.tree import Tree, TreeEnsemble, join
from hbc.ops.tree_ranks import MOST_IN_PLANE, rank_encode

pytest.importorskip("tvm")
from hbc.compiler.tvm import costs
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.leaves.fixed_point import fixed_point
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.compiler.tvm.trees.scan import packed_trees, scan, turns
from hbc.compiler.tvm.trees.scan.packed_trees import TREES_IN_GROUP, pack_trees
from hbc.compiler.tvm.trees.scan.turns import BITS, LEFT, Turns

COLUMNS = 3
VBMI = machine("cpu", {"mcpu": "znver4"}).dialect
OTHERS = ("x86-64-v4", "haswell")
TARGETS = [pytest.param(None, id="own"), *(pytest.param({"mcpu": name}, id=name, marks=pytest.mark.slow) for name in OTHERS)]
BATCHES = (600, 333, 165, 65, 64, 33, 5, 1, 0)


def forest(kind: str) -> TreeEnsemble:
    """160 planes and more. "few": column 0 has too few thresholds for columns of its own for NaN that go left."""
    rng = np.random.default_rng(len(kind))
    width = 3 if kind == "vectors" else 1
    trees, leaves = (160, 250) if kind == "small" else (120 if kind == "few" else 80, 500)
    values = rng.normal(size=(40, width))
    made = [_tree(rng, leaves, values, kind) for _ in range(trees)]
    target = np.sort(rng.integers(0, 3, trees)).astype(np.int32) if kind == "outputs" else None
    return join(made, rng.normal(size=3 if kind in ("vectors", "outputs") else 1), target)


def _tree(rng: np.random.Generator, leaves: int, values: Array, kind: str) -> Tree:
    tree = random_tree(rng, leaves, COLUMNS, "f8" if kind == "doubles" else "f4", values, kind != "right", digits=6)
    few = np.round(tree.threshold, 1) if kind == "few" else tree.threshold
    return replace(tree, threshold=np.where(tree.feature == 0, few, tree.threshold))


def scanned(op: TreeEnsemble, X: Array, target: dict[str, object] | None) -> list[Array]:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, COLUMNS))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    return [executable.run("predict", [X[:rows]])[0] for rows in BATCHES]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Turns | None]:
    """Those of the ensembles that are compiled. Chunks take all rows but the last ones, and no rows go in lanes."""
    found: list[Turns | None] = []

    def pack(*args: object) -> Turns | None:
        found.append(turns.pack_turns(*args))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(packed_trees, "pack_turns", pack)
    monkeypatch.setattr(scan, "fits_lanes", lambda *_: False)
    monkeypatch.setattr(scan, "rows_alone", lambda *_: 20)
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["small", "both", "right", "few", "doubles", "outputs", "vectors"])
def test_sums_are_those_of_one_scan(
    kind: str, target: dict[str, object] | None, packed: list[Turns | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first 300 rows have no NaN, the others many."""
    op = forest(kind)
    X = rows_at_thresholds(np.random.default_rng(0), op, max(BATCHES), COLUMNS)
    X[:300] = np.nan_to_num(X[:300], nan=0.25)
    found = scanned(op, X, target)
    assert packed[0] is not None
    assert packed[0].count > 1
    assert [len(columns) for columns in (packed[0].nan, np.flatnonzero(packed[0].nan))] == [
        COLUMNS,
        0 if kind == "right" else 3,
    ]
    monkeypatch.setattr(turns, "take_turns", lambda *_: False)
    for rows, own, other in zip(BATCHES, found, scanned(op, X, target), strict=True):
        np.testing.assert_array_equal(own, other)
        np.testing.assert_allclose(own, op.evaluate(X[:rows]), rtol=1e-5, atol=1e-5)
    assert packed[1:] == [None]


def test_a_turn_tells_its_own_thresholds_apart(packed: list[Turns | None]) -> None:
    op = forest("small")
    ranked = ranked_trees(op)
    fixed = fixed_point(op)
    assert fixed is not None
    order = pack_trees(op, ranked, fixed, VBMI, True)
    (found,) = packed
    assert found is not None
    assert (np.diff(found.of_group) >= 0).all()
    assert found.plane.max() < 2 * LEFT
    assert found.last_plane.max() <= LEFT
    assert len(order.turn_starts) == found.count + 1
    for turn in range(found.count):
        for place in range(found.starts[turn], found.starts[turn + 1]):
            count = -(-(len(found.columns.thresholds[found.ranked[place]]) + 2) // BITS)
            words = found.words[found.first_word[place] : found.first_word[place] + count]
            ones = [bin(int(word) & 0xFFFFFFFF).count("1") for word in words]
            np.testing.assert_array_equal(words >> BITS, np.cumsum(ones) - ones)
            planes = found.last_plane[place] - found.first_plane[place]
            assert planes == -(-sum(ones) // MOST_IN_PLANE)


def test_wide_data_and_category_sets_take_no_turns() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(9, 1))
    group = np.repeat(np.arange(80) // TREES_IN_GROUP, 499)
    few = join([random_tree(rng, 500, COLUMNS, "f4", values, True, 6) for _ in range(80)], np.zeros(1), None)
    wide = join([random_tree(rng, 500, LEFT + 1, "f4", values, True, 6) for _ in range(80)], np.zeros(1), None)
    assert turns.pack_turns(rank_encode(few), group, 20) is not None
    assert turns.pack_turns(rank_encode(wide), group, 20) is None
    sets = rank_encode(few, COLUMNS - 1)
    assert sets.tests_sets
    assert turns.pack_turns(sets, group, 20) is None


def test_many_planes_of_few_columns_take_little_longer() -> None:
    def time_of(columns: int, planes: int) -> float:
        shape = Shape(500, 420_000, 15, 7_500, 11.0, 842, 1, 1, 4, columns, planes)
        return costs.scan(shape, 10_000)["256 rows and split"] / costs.scan(shape, 10_000)["call"]

    few, turned, wide = time_of(28, 100), time_of(28, 1_500), time_of(500, 1_500)
    assert few < turned < 1.15 * few < wide


@pytest.mark.parametrize("missing", [False, True])
def test_forests_are_those_of_the_source(missing: bool, packed: list[Turns | None]) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3_000, 4)).astype(np.float32)
    y = np.digitize(np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) / 3, [-0.5, 0.7])
    if missing:
        X[rng.random(X.shape) < 0.05] = np.nan
    source = RandomForestClassifier(90, max_leaf_nodes=600, n_jobs=1, random_state=0).fit(X, y)
    model = hbc.convert(source, "tvm", strategy="scan", threads=1)
    for rows in (1, 64, 700, 3_000):
        np.testing.assert_allclose(model.predict_proba(X[:rows]), source.predict_proba(X[:rows]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(model.predict(X[:rows]), source.predict(X[:rows]))
    assert packed[0] is not None
