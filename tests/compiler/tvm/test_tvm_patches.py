"""Patches of tree ensembles (compiler/tvm/trees/patches) against the operator itself: random trees, rows at the thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_trees import RANDOM, random_ensemble, random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops.tree import Tree, TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.costs import Shape
from hbc.compiler.tvm import costs
from hbc.compiler.tvm.plan.plan import WALK_ROWS
from hbc.compiler.tvm.run.targets import Machine
from hbc.compiler.tvm.trees.patches import patches, scanned_tops
from hbc.compiler.tvm.trees.patches.packed_patches import IN_MEMORY, IN_REGISTERS, Form, columns_of, cut, pack_patches
from hbc.compiler.tvm.trees.patches.patches import FEW_ROWS, patchable
from hbc.compiler.tvm.trees.patches.scanned_tops import LEAST_ROWS, pack_tops
from hbc.compiler.tvm.trees.patches.walked_rows import many_rows_walk
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY


def by_patches(op: TreeEnsemble, X: Array, batches: tuple[int, ...], target: dict[str, Any] | None = None) -> list[Array]:
    x = Input("X", "f32" if op.threshold.dtype == np.float32 else "f64", (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="patches")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


BATCHES = (
    EVERY + LEAST_ROWS,
    EVERY + LEAST_ROWS - 1,
    LEAST_ROWS,
    LEAST_ROWS - 1,
    FEW_ROWS + 1,
    FEW_ROWS,
    FEW_ROWS - 1,
    17,
    2,
    1,
    0,
)


def check(op: TreeEnsemble, X: Array, batches: tuple[int, ...] = BATCHES, target: dict[str, Any] | None = None) -> None:
    """The sums have every bit of a loop over the trees."""
    for rows, found in zip(batches, by_patches(op, X, batches, target), strict=True):
        np.testing.assert_array_equal(found, op.evaluate(X[:rows]), strict=True)


@pytest.mark.parametrize("kind", RANDOM)
def test_sums_are_those_of_the_operator(kind: str) -> None:
    op, X = random_ensemble(kind, max(BATCHES))
    check(op, X)


@pytest.mark.parametrize("kind", RANDOM)
def test_sums_are_those_of_the_operator_where_many_rows_walk(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with NaN, and blocks without."""
    monkeypatch.setattr(patches, "many_rows_walk", lambda shape: True)
    monkeypatch.setattr(Machine, "processor", "znver5")
    op, X = random_ensemble(kind, max(BATCHES))
    check(op, X, (*BATCHES, LEAST_ROWS + 15, LEAST_ROWS + 16))
    check(op, np.nan_to_num(X), (LEAST_ROWS + 15, 17))
    check(replace(op, output="leaf"), X, (LEAST_ROWS + 15, 17))


def test_many_rows_of_limited_depth_and_many_thresholds_walk() -> None:
    """Forests of depth 16 and of unlimited depth, and LightGBM."""
    numbers = {"trees": 100, "width": 2, "outputs": 2, "bytes": 4, "columns": 28, "leaves": 5000}
    for splits, depth, steps, mean_depth, planes, walk in (
        (209_495, 16, 1600, 13.8, 834, True),
        (482_121, 56, 3778, 18.8, 1902, False),
        (409_009, 48, 3620, 18.3, 28, False),
    ):
        shape = Shape(splits=splits, depth=depth, steps=steps, mean_depth=mean_depth, planes=planes, **numbers)
        assert many_rows_walk(shape) == walk
        assert ("walk: row and step" in costs.patches(shape, 1000, walks=True)) == walk
        assert costs.patches(shape, LEAST_ROWS - 1, walks=True) == costs.patches(shape, LEAST_ROWS - 1)
        few = replace(shape, trees=10, splits=splits // 10, steps=steps // 10)
        assert not many_rows_walk(few)


@pytest.mark.parametrize("kind", ["vector leaves", "single leaf", "several planes a feature"])
def test_leaf_numbers_are_those_of_the_operator(kind: str) -> None:
    op, X = random_ensemble(kind, LEAST_ROWS)
    check(replace(op, output="leaf", leaf_ids=np.arange(len(op.leaf_ids)) * 1_000_003 - 7), X, (LEAST_ROWS, 100, 5, 1, 0))


@pytest.mark.parametrize("columns", [1, 16, 17, 33, 64, 65, 129, 256, 257, 512, 513, 1500])
@pytest.mark.parametrize("missing", ["left", "right", "both ways"])
def test_numbers_of_columns(columns: int, missing: str) -> None:
    """The keys of a row are in 1 to 16 registers, or stay in memory."""
    rng = np.random.default_rng(columns)
    values = rng.normal(size=(500, 1))
    grown = [random_tree(rng, 300, columns, "f4", values, missing == "both ways") for _ in range(7)]
    op = join(grown, np.ones(1), None)
    if missing != "both ways":
        op = replace(op, missing_left=np.full(len(op.feature), missing == "left"))
    assert patchable(op)
    check(op, rows_at_thresholds(rng, op, 200, columns), (200, 9))


@pytest.mark.parametrize("columns", [20, 60, 250, 300])
@pytest.mark.parametrize("more", [1, 8, 200])
def test_features_that_no_split_compares(columns: int, more: int) -> None:
    """Few of them have keys too, so that the keys of a row are in the order of its features."""
    rng = np.random.default_rng(columns + more)
    op = join([random_tree(rng, 300, columns, "f4", rng.normal(size=(50, 1)), True) for _ in range(7)], np.ones(1), None)
    places = np.sort(rng.choice(columns + more, columns, replace=False))
    op = replace(op, feature=np.where(op.feature >= 0, places[op.feature], -1).astype(op.feature.dtype))
    compared = columns_of(op)[0].compared
    in_order = [feature for feature, _ in compared] == list(range(len(compared)))
    assert in_order == (more == 1 or (more == 8 and columns != 60 and columns != 250))
    check(op, rows_at_thresholds(rng, op, 100, columns + more), (100, 9))


def test_rows_with_nan_in_some_blocks() -> None:
    """A block of rows that need another look at each patch stands between others."""
    rng = np.random.default_rng(0)
    op = join([random_tree(rng, 50, 20, "f4", rng.normal(size=(9, 2)), missing=True) for _ in range(3)], np.zeros(2), None)
    X = rng.normal(size=(3 * WALK_ROWS + 70, 20)).astype("f4")
    X[WALK_ROWS + 5, 3] = X[-1, 19] = np.nan
    check(op, X, (len(X), 2 * WALK_ROWS + 1))


def test_deep_and_shallow_trees() -> None:
    """A chain of 400 splits, its mirror image, trees of one leaf, and random trees up to sizes at which the cutting changes."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(300, 1))
    grown = [chain(400, False), chain(400, True)]
    for leaves in (1, 2, 15, 16, 17, 31, 31, 32, 33, 127, 128, 129, 1000, 5000):
        grown.append(random_tree(rng, leaves, 4, "f4", values, missing=True, digits=5))
    op = join(grown, np.zeros(1), None)
    check(op, rows_at_thresholds(rng, op, 300, 4), (300, 20))


def chain(splits: int, mirrored: bool) -> Tree:
    """A tree in which every split but the last has a leaf on the same side."""
    feature = np.tile([0, -1], splits + 1)[: 2 * splits + 1]
    feature[-1] = -1
    inner = np.flatnonzero(feature >= 0)
    left, right = np.zeros(len(feature), int), np.zeros(len(feature), int)
    left[inner], right[inner] = inner + 1, inner + 2
    if mirrored:
        left, right = right, left
    threshold = np.zeros(len(feature), "f4")
    threshold[inner] = np.linspace(-2, 2, splits) * (-1 if mirrored else 1)
    values = np.arange(len(feature), dtype=float)[:, None]
    return Tree(feature, threshold, left, right, np.zeros(len(feature), bool), values)


@pytest.mark.parametrize(("most", "splits"), [(1 << 16, 255), (350, 15), (10, 0)])
def test_tops_of_many_thresholds(most: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tops of trees have two levels of patches, one, or none."""
    from hbc.compiler.tvm.run.targets import machine

    monkeypatch.setattr(scanned_tops, "MOST_THRESHOLDS", most)
    rng = np.random.default_rng(5)
    op = join([random_tree(rng, 5000, 3, "f4", rng.normal(size=(9, 1)), True, 6) for _ in range(60)], np.zeros(1), None)
    tops = pack_tops(op, pack_patches(op, wide=True), machine("cpu", {"kind": "llvm", "mcpu": "x86-64-v4"}).dialect)
    assert tops.ranked.leaf_counts.max() == splits + 1
    assert tops.ranked.most_thresholds <= most
    check(op, rows_at_thresholds(rng, op, 300, 3), (300,))


def test_more_values_than_two_bytes_number() -> None:
    """Each leaf then has values of its own. Leaves of 70,000 values, and more of them."""
    rng = np.random.default_rng(2)
    grown = [random_tree(rng, 9000, 3, "f4", rng.normal(size=(100_000, 2)), missing=False, digits=6) for _ in range(9)]
    op = join(grown, np.zeros(2), None)
    packed = pack_patches(op, wide=True)
    assert packed.codes is None
    assert len(packed.values) >= 81_000
    check(op, rows_at_thresholds(rng, op, 200, 3), (200, 7))


def test_categories_become_numbers() -> None:
    import lightgbm as lgb

    import hbc

    rng = np.random.default_rng(3)
    X = np.column_stack([rng.integers(0, 30, 2000), rng.normal(size=(2000, 3))])
    model = lgb.LGBMRegressor(n_estimators=20, verbose=-1, n_jobs=1).fit(
        X, rng.permutation(30)[X[:, 0].astype(int)] + X[:, 1], categorical_feature=[0]
    )
    found = hbc.convert(model, "tvm", strategy="patches").predict(X)
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mcpu": "x86-64-v4"},
        {"kind": "llvm", "mcpu": "znver4"},
        {"kind": "llvm", "mcpu": "sapphirerapids"},
        {"kind": "llvm", "mcpu": "haswell"},
    ],
    ids=lambda target: target["mcpu"],
)
def test_other_processors(target: dict[str, Any]) -> None:
    """haswell has no AVX-512, so that keys stay in memory."""
    from hbc.compiler.tvm.run.targets import machine

    if (reason := machine("cpu", target).missing) is not None:
        pytest.skip(reason)
    for kind in ("vector leaves", "several planes a feature"):
        op, X = random_ensemble(kind, 300)
        check(op, X, (300, 100, 5), target)


@pytest.mark.parametrize("form", [IN_REGISTERS, IN_MEMORY], ids=lambda form: f"{form.lanes - 1} splits")
def test_cutting(form: Form) -> None:
    """Every split is in one patch. Patches are half full at least, and a leaf is behind at most half as many more as if all were full."""
    rng = np.random.default_rng(4)
    op = join([random_tree(rng, 3000, 9, "f4", rng.normal(size=(9, 1)), False, 5) for _ in range(4)], np.zeros(1), None)
    levels = cut(op, form)
    splits = np.concatenate([level.splits[level.splits >= 0] for level in levels])
    assert len(np.unique(splits)) == len(splits) == 4 * 2999
    for level in levels:
        used = level.splits >= 0
        assert ((level.exits >= 0).sum(axis=1) == used.sum(axis=1) + 1).all()
        assert level.splits.shape[1] == form.lanes - 1
        assert level.exits.shape[1] == form.lanes
    patches = sum(len(level.tree) for level in levels)
    assert len(splits) / (form.lanes - 1) <= patches <= len(splits) / (form.lanes / 2)
    leaves = [(level.exits >= 0).sum() - level.inner.sum() for level in levels]
    assert np.average(1 + np.arange(len(levels)), weights=leaves) < 1.5 * np.log(3000) / np.log(form.lanes)
