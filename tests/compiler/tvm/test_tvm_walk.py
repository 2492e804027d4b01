"""Walks of trees (walk.py): their keys (keys.py), and blocks of rows with NaN, and without, where trees send the NaN of a feature both
ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds

pytest.importorskip("tvm")

from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.compiler.tvm.trees.walk import walk
from hbc.compiler.tvm.trees.walk.walk import LINE, PackedNodes, lines_of_tiles, pack_nodes, steps_between_tests, walks_alone_of
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N, dtype_name
from hbc.ops.tensor import Cast
from hbc.ops.tree import TreeEnsemble, join

ROWS = (1, 15, 16, 17, 40, 4096, 4097, 4096 + 16, 9000)
"""Rows of calls: less than the 16 that walk together, some of these, and as many as a block has."""


def _data(rng: np.random.Generator, features: int, dtype: str) -> tuple[Array, Array]:
    X = rng.normal(size=(400, features)).astype(dtype)
    return X, X[:, :3].sum(axis=1) + rng.normal(size=400)


def _with_nan(rng: np.random.Generator, X: Array, places: str) -> Array:
    """The rows with NaN in places: of all rows, of a few, of the first or the last alone."""
    X = X.copy()
    column = rng.integers(X.shape[1])
    if places == "every row":
        X[rng.random(X.shape) < 0.3] = np.nan
        X[np.arange(len(X)), rng.integers(X.shape[1], size=len(X))] = np.nan
    elif places == "some rows":
        X[rng.integers(len(X), size=3), column] = np.nan
    elif places == "first row":
        X[0, column] = np.nan
    elif places == "last row":
        X[-1, column] = np.nan
    return X


def _packed(compiled: hbc.CompiledModel) -> PackedNodes:
    """The trees of a model, as a walk reads them."""
    return next(pack_nodes(node.op) for node in compiled.graph.nodes if isinstance(node.op, TreeEnsemble))


@pytest.mark.parametrize(
    ("features", "apart", "kind"),
    [
        (20, True, "regressor"),
        pytest.param(3, False, "regressor", marks=pytest.mark.slow),
        pytest.param(32, True, "classifier", marks=pytest.mark.slow),
        pytest.param(20, True, "float64", marks=pytest.mark.slow),
        pytest.param(140, True, "regressor", marks=pytest.mark.slow),
    ],
)
def test_blocks_with_nan_and_without_are_the_sources(features: int, apart: bool, kind: str) -> None:
    """Forests send NaN both ways even if they were trained without; boosted trees (float64) learn it."""
    rng = np.random.default_rng(features)
    X, y = _data(rng, features, "f8" if kind == "float64" else "f4")
    if kind == "float64":
        X[rng.random(X.shape) < 0.2] = np.nan
        model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(X, y)
    elif kind == "classifier":
        model = RandomForestClassifier(9, random_state=0).fit(X, (y > 0) + (y > 1))
    else:
        model = RandomForestRegressor(18, random_state=0).fit(X, y)
    compiled = hbc.convert(model, strategy="walk")
    assert _packed(compiled).apart == apart
    X = np.nan_to_num(np.tile(X, (-(-max(ROWS) // len(X)), 1)))
    for places in ("no row", "every row", "some rows", "first row", "last row"):
        for rows in ROWS:
            some = _with_nan(rng, X[:rows], places)
            for method in ("predict", "predict_proba") if kind == "classifier" else ("predict",):
                expected = getattr(model, method)(some)
                np.testing.assert_array_equal(getattr(compiled, method)(some), expected, f"{places} of {rows}")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("features", "unused", "both", "in_order"),
    [
        (3, (), (), True),  # one by one
        (4, (), (), True),  # a quarter of a register
        (7, (), tuple(range(7)), True),
        (8, (), (), True),
        (17, (), (), True),
        (40, (3, 39), (), True),
        (40, (), tuple(range(40)), True),
        (40, (), (0, 1), True),
        (40, (), (5, 30), False),  # the columns that need a second one come first
        (40, tuple(range(0, 40, 2)), (), False),
    ],
)
def test_keys_of_numbers_in_order(
    features: int, unused: tuple[int, ...], both: tuple[int, ...], in_order: bool, dtype: str
) -> None:
    """A register of numbers becomes keys at once, if (nearly) all are compared; and NaN of a few features, or of all, goes both ways."""
    rng = np.random.default_rng(features + len(unused) + len(both))
    used = np.setdiff1d(np.arange(features), unused)
    op = join([random_tree(rng, 120, len(used), dtype, rng.normal(size=(300, 1)), False) for _ in range(5)], np.ones(1), None)
    feature = np.where(op.feature >= 0, used[op.feature], -1).astype(op.feature.dtype)
    left = np.where(np.isin(feature, both), rng.random(len(feature)) < 0.5, feature % 2 == 0) & (feature >= 0)
    op = replace(op, feature=feature, missing_left=left, strategy="walk")
    compared = pack_nodes(op).compared
    assert ([feature for feature, _ in compared] == list(range(len(compared)))) == in_order
    X = rows_at_thresholds(rng, op, 200, features)
    x = Input("X", dtype_name(X.dtype), (N, features))()
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (op(x),)}), CompileOptions(threads=1))
    for rows in (200, 33, 16, 5, 1):
        for some in (X[:rows], np.nan_to_num(X[:rows])):
            np.testing.assert_array_equal(executable.run("predict", [some])[0], op.evaluate(some), strict=True)


@pytest.mark.parametrize("strategy", ["walk", "patches", "scan"])
@pytest.mark.parametrize("given", ["f8", "i8"])
@pytest.mark.parametrize("features", [3, 5, 16, 40])
def test_numbers_are_converted_in_registers(features: int, given: str, strategy: str) -> None:
    """The caller's rows become float32, then keys or ranks. Among them are numbers beside those that are float32."""
    rng = np.random.default_rng(features)
    values = rng.integers(-99, 99, (300, 1)).astype(np.float64)
    op = join([random_tree(rng, 120, features, "f4", values, True) for _ in range(2)], np.ones(1), None)
    op = replace(op, threshold=op.threshold * np.float32(1 if given == "f8" else 1e9), strategy=strategy)
    X = rows_at_thresholds(rng, op, 200, features).astype(np.float64)
    near = [X, np.nextafter(X, np.inf), np.nextafter(X, -np.inf), X * (1 + 2.0**-25)]
    X = np.choose(rng.integers(len(near), size=X.shape), near)
    if given == "i8":
        X = np.nan_to_num(X.clip(-(2.0**62), 2.0**62)).astype(np.int64) + rng.integers(-9, 9, X.shape)
    with np.errstate(over="ignore"):
        expected = op.evaluate(X.astype(np.float32))
    x = Input("X", dtype_name(X.dtype), (N, features))()
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (op(Cast("f32")(x)),)}), CompileOptions(threads=1))
    for rows in (200, 33, 5, 1):
        np.testing.assert_array_equal(executable.run("predict", [X[:rows]])[0], expected[:rows], strict=True)


@pytest.mark.parametrize("in_tile", [1, 4])
def test_lines_of_tiles_hold_all_nodes_of_their_trees(in_tile: int) -> None:
    """Nodes are asked for by tiles of trees. Among the trees are some of one leaf, and some whose leaves are shared with others."""
    rng = np.random.default_rng(0)
    X, y = _data(rng, 4, "f4")
    small = RandomForestClassifier(9, max_depth=1, min_samples_leaf=150, random_state=0).fit(X, y > 0)
    large = RandomForestClassifier(9, random_state=0).fit(X, y > 0)
    mixed = RandomForestClassifier(9, random_state=0).fit(X, y > 0)
    mixed.estimators_ = [tree for pair in zip(small.estimators_, large.estimators_, strict=True) for tree in pair]
    compiled = hbc.convert(mixed, strategy="walk")
    op = next(node.op for node in compiled.graph.nodes if isinstance(node.op, TreeEnsemble))
    packed = pack_nodes(op)
    lines = lines_of_tiles(packed, in_tile)
    assert len(lines) == -(-op.n_trees // in_tile) + 2
    assert (np.diff(lines) >= 0).all()
    assert lines[-1] == packed.words.nbytes // LINE
    left = packed.words[:, 1] >> packed.shift
    for tree in range(op.n_trees):
        at, first, behind = tree, lines[tree // in_tile], lines[tree // in_tile + 1]
        while left[at] != at:
            at = left[at] + rng.integers(2)
            assert at < packed.begins[0] or first <= at * packed.words[0].nbytes // LINE <= behind
    compiled_rows = np.tile(X, (11, 1))
    np.testing.assert_array_equal(compiled.predict_proba(compiled_rows), mixed.predict_proba(compiled_rows))


def test_forests_from_memory_ask_for_more_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FROM_MEMORY", 0)
    monkeypatch.setattr(walk, "MOST_LINES", 0)  # so the code would ask for none
    rng = np.random.default_rng(8)
    X, y = _data(rng, 6, "f4")
    model = RandomForestRegressor(30, random_state=8).fit(X, y)
    compiled = hbc.convert(model, strategy="walk")
    for rows in (16, 33, 100, 400):
        np.testing.assert_array_equal(compiled.predict(X[:rows]), model.predict(X[:rows]))


def test_rows_alone_leave_few_walks_without_a_tree() -> None:
    assert {trees: walks_alone_of(trees, 13) for trees in (16, 28, 40, 60, 100)} == {16: 16, 28: 14, 40: 14, 60: 16, 100: 16}
    assert walks_alone_of(60, 12) == walk.WALKS_ALONE


def test_steps_between_tests_suit_the_depth() -> None:
    """Trees of limited depth waste few steps; others end at many depths."""
    steps = {depth: steps_between_tests(np.full(7, depth)) for depth in range(14)}
    assert steps == dict(enumerate([4, 3, 3, 3, 4, 5, 3, 4, 4, 3, 5, 4, 4, 4]))


@pytest.mark.parametrize("depth", [10, pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)])
def test_walks_of_limited_depth_end(depth: int) -> None:
    """They take steps by threes, or by fives, until all have ended."""
    rng = np.random.default_rng(depth)
    X, y = _data(rng, 5, "f4")
    model = RandomForestRegressor(7, max_depth=depth, random_state=0).fit(X, y)
    compiled = hbc.convert(model, strategy="walk")
    for rows in (1, 16, 33):
        np.testing.assert_array_equal(compiled.predict(X[:rows]), model.predict(X[:rows]))


@pytest.mark.parametrize(("outputs", "dtype"), [(1, "f4"), pytest.param(3, "f4", marks=pytest.mark.slow), (1, "f8")])
def test_rows_alone_go_by_passes(monkeypatch: pytest.MonkeyPatch, outputs: int, dtype: str) -> None:
    """Trees of one leaf and of many; rows alone, behind groups of 16, and with NaN."""
    monkeypatch.setattr(walk, "LEAST_BYTES", 0)
    rng = np.random.default_rng(outputs)
    values = rng.normal(size=(50, outputs))
    trees = [random_tree(rng, leaves, 6, dtype, values, True) for leaves in [1, 2, 700, 31, 5] * 8]
    op = replace(join(trees, np.arange(float(outputs)), None), strategy="walk")
    X = rows_at_thresholds(rng, op, 100, 6)
    x = Input("X", dtype_name(X.dtype), (N, 6))()
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (op(x),)}), CompileOptions(threads=1))
    for rows in (1, 2, 15, 17, 100):
        np.testing.assert_array_equal(executable.run("predict", [X[:rows]])[0], op.evaluate(X[:rows]), strict=True)


def test_leaf_numbers_of_rows_alone_go_by_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "LEAST_BYTES", 0)
    rng = np.random.default_rng(0)
    X, y = _data(rng, 6, "f4")
    model = RandomForestRegressor(40, random_state=0).fit(X, y)
    compiled = hbc.convert(model, strategy="walk")
    for rows in (1, 3, 20):
        np.testing.assert_array_equal(compiled.apply(X[:rows]), model.apply(X[:rows]))
        np.testing.assert_array_equal(compiled.predict(X[:rows]), model.predict(X[:rows]))
