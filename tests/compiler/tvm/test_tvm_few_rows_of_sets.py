"""One row and a few rows of models with category sets, beside their libraries: with AVX2, and with this computer's own instructions."""

from __future__ import annotations

import warnings
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import hbc

pytest.importorskip("tvm")
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.categories import CategoricalTrees, PackedSets, join_sets, pack_sets
from hbc.compiler.tvm.trees.pieces.split_order import ranked_trees
from hbc.compiler.tvm.trees.scan.scan import few_rows_with_sets, many_nodes
from hbc.compiler.tvm.trees.scan.scan_few_rows import MOST_MASK_BYTES, fits_lanes
from hbc.ir.types import Array
from hbc.ops.tree_ranks import RankedTrees

NUMBERS, COLUMNS = 3, 4
"""The columns of numbers, and behind them those of categories."""
AVX2 = machine("cpu", {"mcpu": "haswell"}).dialect
ROWS = (1, 2, 3, 4, 5, 8, 16, 31, 64)


def rows_of(most: int, n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=(n, NUMBERS)), rng.integers(0, most, (n, COLUMNS))])


def target_of(X: Array) -> Array:
    """Depends on the numbers, and on the categories without an order."""
    codes = X[:, NUMBERS:].astype(int)
    effect = np.random.default_rng(9).normal(size=(COLUMNS, 1 + codes.max()))
    return X[:, 0] * X[:, 1] + effect[np.arange(COLUMNS), codes].sum(axis=1)


def odd_rows(most: int, odd: tuple[float, ...]) -> Array:
    """Rows of which a third of the categories is odd."""
    rng = np.random.default_rng(1)
    X = rows_of(most, 128, 2)
    X[:, NUMBERS:] = np.where(rng.random((128, COLUMNS)) < 0.3, rng.choice(odd, (128, COLUMNS)), X[:, NUMBERS:])
    X[rng.random(len(X)) < 0.2, 0] = np.nan
    return X


def trees_of(compiled: Any) -> tuple[CategoricalTrees, RankedTrees, PackedSets]:
    """The trees of a model that are scanned, their ranks and their sets."""
    graph = join_sets(next(iter(compiled.variants.values())).plan.graph, {"scan": 0})
    op = next(node.op for node in graph.nodes if isinstance(node.op, CategoricalTrees))
    return op, ranked_trees(op), pack_sets(op)


def compare(model: Any, X: Array, method: str, target: dict[str, str] | None, expected: Array) -> None:
    compiled = hbc.convert(model, "tvm", threads=1, target=target)
    op, ranked, sets = trees_of(compiled)
    assert fits_lanes(op, ranked, sets, AVX2)
    run = getattr(compiled, method)
    for rows in ROWS:
        found = np.concatenate([run(X[i : i + rows]) for i in range(0, len(X), rows)])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(rows))


TARGETS = pytest.mark.parametrize("target", [None, {"kind": "llvm", "mcpu": "haswell"}], ids=["own", "haswell"])


@TARGETS
@pytest.mark.parametrize("most", [10, 150, 700, 950])  # sets of one, two, six and eight parts of 16 bytes
@pytest.mark.parametrize("kind", ["regressor", "binary", "multiclass"])
def test_lightgbm(kind: str, most: int, target: dict[str, str] | None) -> None:
    """Unseen, negative, fractional, huge and missing categories."""
    X = rows_of(most, 3000, 0)
    y = target_of(X)
    options = {"n_estimators": 40, "num_leaves": 15, "min_data_per_group": 1, "cat_smooth": 0.1, "verbose": -1, "n_jobs": 1}
    options["categorical_feature"] = list(range(NUMBERS, NUMBERS + COLUMNS))
    model = lgb.LGBMRegressor(**options) if kind == "regressor" else lgb.LGBMClassifier(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y if kind == "regressor" else np.digitize(y, [0] if kind == "binary" else [-1, 1]))
        odd = odd_rows(most, (np.nan, -1, -7, 0.5, 3.7, -0.5, most, most + 40, 1e6, 2.0**31, 1e30, np.inf))
        method = "predict" if kind == "regressor" else "predict_proba"
        compare(model, odd, method, target, getattr(model, method)(odd))


@TARGETS
@pytest.mark.parametrize("most", [10, 150])
def test_xgboost(most: int, target: dict[str, str] | None) -> None:
    """Missing categories, and sets beside single categories."""
    X = rows_of(most, 3000, 0).astype(np.float32)
    kinds = ["float"] * NUMBERS + ["c"] * COLUMNS
    data = xgb.DMatrix(X, target_of(X), feature_types=kinds, enable_categorical=True)
    model = xgb.train({"max_depth": 5, "max_cat_to_onehot": 4, "nthread": 1}, data, 50)
    odd = odd_rows(most, (np.nan,)).astype(np.float32)
    compare(model, odd, "predict", target, model.predict(xgb.DMatrix(odd, feature_types=kinds, enable_categorical=True)))


@TARGETS
@pytest.mark.parametrize("kind", [HistGradientBoostingRegressor, HistGradientBoostingClassifier])
def test_histogram_boosting(kind: type, target: dict[str, str] | None) -> None:
    """Unseen and missing categories."""
    X = rows_of(200, 3000, 0)
    y = target_of(X)
    regression = kind is HistGradientBoostingRegressor
    model = kind(max_iter=40, categorical_features=list(range(NUMBERS, NUMBERS + COLUMNS)))
    model.fit(X, y if regression else np.digitize(y, [-1, 1]))
    odd = odd_rows(200, (np.nan, 230.0, 254.0))
    method = "predict" if regression else "predict_proba"
    compare(model, odd, method, target, getattr(model, method)(odd))


def test_sets_make_lanes_pay() -> None:
    """Walks test all sets of a row. So lanes are faster where they would not be for as many splits of numbers; but not where their masks
    take too much memory. The more sets there are, the later a chunk of rows is faster."""
    X = rows_of(60, 9000, 0)
    data = xgb.DMatrix(X, target_of(X), feature_types=["float"] * NUMBERS + ["c"] * COLUMNS, enable_categorical=True)
    model = xgb.train({"max_depth": 8, "max_leaves": 255, "min_child_weight": 0, "eta": 0.1, "nthread": 1}, data, 64)
    op, ranked, sets = trees_of(hbc.convert(model, "tvm"))
    assert fits_lanes(op, ranked, sets, AVX2)
    assert not fits_lanes(op, ranked, None, AVX2)
    counts = np.full_like(sets.counts, 8 * MOST_MASK_BYTES // len(ranked.split_lo))
    assert not fits_lanes(op, ranked, PackedSets(**{**vars(sets), "counts": counts}), AVX2)
    few, many = (few_rows_with_sets(ranked, sets, tested, AVX2) for tested in (0, 10_000))
    assert 2 <= few < many <= 32


@pytest.mark.parametrize("target", [None, {"kind": "llvm", "mcpu": "znver4"}], ids=["own", "znver4"])
def test_large_trees_of_many_nodes(target: dict[str, str] | None) -> None:
    """Trees of more than 256 leaves, and of so many nodes that rows alone would take patches, which test no sets."""
    kinds = ["float"] * NUMBERS + ["c"]
    X = rows_of(40, 6000, 0)[:, : NUMBERS + 1].astype(np.float32)
    y = X[:, 0] * X[:, 1] + np.random.default_rng(9).normal(size=40)[X[:, NUMBERS].astype(int)]
    data = xgb.DMatrix(X, y, feature_types=kinds, enable_categorical=True)
    options = {"max_depth": 0, "max_leaves": 600, "grow_policy": "lossguide", "min_child_weight": 0, "eta": 0.05, "nthread": 1}
    model = xgb.train({**options, "max_cat_to_onehot": 4}, data, 120)
    compiled = hbc.convert(model, "tvm", threads=1, strategy="scan", target=target)
    op, _, _ = trees_of(compiled)
    assert int(op.leaf_counts.max()) > 256
    assert many_nodes(int((op.leaf_counts - 1).sum()), op.n_trees)
    odd = odd_rows(40, (np.nan,))[:, : NUMBERS + 1].astype(np.float32)
    expected = model.predict(xgb.DMatrix(odd, feature_types=kinds, enable_categorical=True))
    for rows in (1, 2, 5, 20, 63, 64, 65):
        found = np.concatenate([compiled.predict(odd[i : i + rows]) for i in range(0, len(odd), rows)])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=str(rows))
