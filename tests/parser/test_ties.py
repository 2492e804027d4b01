"""Labels that do not follow from the two largest sums of one ensemble of trees. There kernels do not see near ties, so the sums that decide
have the source's bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from backends import installed
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier

import hbc

GRID = np.array(list(itertools.product(range(6), repeat=4)), np.float64)


def few_trees(seed: int = 0) -> ExtraTreesClassifier:
    """Its leaves are shares of three rows and more, whose sums often tie."""
    return ExtraTreesClassifier(6, min_samples_leaf=3, random_state=seed)


def weighted() -> VotingClassifier:
    return VotingClassifier([("a", few_trees(0)), ("b", few_trees(1))], voting="soft", weights=[1, 2])


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "several outputs": (few_trees, 2),
    "votes": (weighted, 2),
    "one class against the rest": (lambda: OneVsRestClassifier(few_trees()), 3),
    "a regressor for each class": (lambda: OneVsRestClassifier(ExtraTreesRegressor(6, min_samples_leaf=3, random_state=0)), 4),
    "a threshold": (lambda: FixedThresholdClassifier(few_trees(), threshold=0.4), 2),
    "forests in bags": (lambda: BaggingClassifier(few_trees(), 5, random_state=0), 2),
}
"""name → (the model, how many classes there are)."""


@pytest.mark.every_case
@pytest.mark.parametrize("name", MODELS)
def test_labels_at_ties_are_the_source_s(name: str) -> None:
    make, classes = MODELS[name]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.integers(0, 6, size=(1200, 4)).astype(np.float64)
        y = rng.integers(0, classes, len(X))
        model = make().fit(X, np.column_stack([y, X[:, 0] > 2]) if name == "several outputs" else y)
        for backend in installed("torch", "tvm"):
            compiled = hbc.convert(model, backend, X[:5], strategy="scan", threads=1)
            np.testing.assert_array_equal(compiled.predict(GRID), model.predict(GRID))


@pytest.mark.parametrize("backend", installed("torch", "tvm"))
def test_each_of_several_labels_is_compared_with_its_own_threshold(backend: str, tmp_path: Path) -> None:
    """The first output adds 1e6, some 0.2 and -1e6 in float32, which leaves multiples of 1/16. The others are far from it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    fitted = xgb.XGBClassifier(n_estimators=3, max_depth=6, n_jobs=1).fit(X, X[:, :3] > 0)
    document = json.loads(fitted.get_booster().save_raw("json"))
    trees = document["learner"]["gradient_booster"]["model"]
    for number, (tree, output) in enumerate(zip(trees["trees"], trees["tree_info"], strict=True)):
        for node, left in enumerate(tree["left_children"]):
            if left < 0:
                small = float(np.float32(0.2 + 0.1 * rng.normal()))
                value = 50.0 * output if output else (1e6, small, -1e6)[number // 3]
                tree["base_weights"][node] = tree["split_conditions"][node] = value
    (tmp_path / "model.json").write_text(json.dumps(document))
    model = xgb.XGBClassifier()
    model.load_model(tmp_path / "model.json")
    expected = model.predict(X)
    assert 0 < expected[:, 0].mean() < 1
    compiled = hbc.convert(model, backend, X[:5], strategy="scan", threads=1)
    for rows in (300, 64, 3, 1):
        np.testing.assert_array_equal(compiled.predict(X[:rows]), expected[:rows])
        np.testing.assert_allclose(compiled.predict_proba(X[:rows]), model.predict_proba(X[:rows]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", installed("torch", "tvm"))
def test_thresholds_that_are_no_numbers(backend: str) -> None:
    """All rows are above the least, none is above the largest, and none is on a side of NaN, which torch sorts behind all numbers."""
    X = np.random.default_rng(0).integers(0, 6, size=(100, 4)).astype(np.float64)
    for threshold in (-np.inf, np.inf, np.nan):
        model = FixedThresholdClassifier(few_trees(), threshold=threshold).fit(X, X[:, 0] > 2)
        np.testing.assert_array_equal(hbc.convert(model, backend, X[:5]).predict(GRID), model.predict(GRID))


def stacked_forests(X: Any, y: Any) -> StackingClassifier:
    members = [(str(seed), few_trees(seed).fit(X, y)) for seed in range(2)]
    return StackingClassifier(members, HistGradientBoostingClassifier(max_iter=10), cv="prefit").fit(X, y)


def stacked_boosters(X: Any, y: Any) -> StackingRegressor:
    member = GradientBoostingRegressor(n_estimators=20, random_state=0).fit(X, y)
    return StackingRegressor([("a", member)], HistGradientBoostingRegressor(max_iter=10), cv="prefit").fit(X, y)


def isotonic(X: Any, y: Any) -> CalibratedClassifierCV:
    forest = ExtraTreesClassifier(60, min_samples_leaf=3, random_state=0).fit(X, y)
    return CalibratedClassifierCV(FrozenEstimator(forest), method="isotonic").fit(X, y)


@pytest.mark.parametrize("make", [stacked_forests, stacked_boosters, isotonic])
def test_what_was_fitted_on_sums_of_trees_finds_the_same_sums(make: Callable[[Any, Any], Any]) -> None:
    """Sums that differ in their last bits may be on two sides of a threshold of the final trees, which are compared in float64."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.integers(0, 6, size=(1200, 4)).astype(np.float64)
        model = make(X, rng.integers(0, 2, len(X)))
        for backend in installed("torch", "tvm"):
            compiled = hbc.convert(model, backend, X[:5], strategy="scan", threads=1)
            np.testing.assert_allclose(compiled.predict(GRID), model.predict(GRID), rtol=1e-12)
            if hasattr(model, "predict_proba"):
                np.testing.assert_allclose(compiled.predict_proba(GRID), model.predict_proba(GRID), rtol=1e-12)


def stacked_probabilities(X: Any, y: Any) -> StackingClassifier:
    members = [(str(k), GradientBoostingClassifier(n_estimators=30, subsample=0.7, random_state=k).fit(X, y)) for k in range(2)]
    return StackingClassifier(members, HistGradientBoostingClassifier(max_iter=20), cv="prefit").fit(X, y)


def steep_isotonic(X: Any, y: Any) -> CalibratedClassifierCV:
    boosted = xgb.XGBClassifier(n_estimators=50, max_depth=4, subsample=0.7, n_jobs=1).fit(X[::2], y[::2])
    return CalibratedClassifierCV(FrozenEstimator(boosted), method="isotonic").fit(X, y)


@pytest.mark.parametrize("backend", installed("tvm"))  # whose code alone calls the C library's exponential
@pytest.mark.parametrize("make", [stacked_probabilities, steep_isotonic])
def test_probabilities_before_steps_have_the_source_s_bits(make: Callable[[Any, Any], Any], backend: str) -> None:
    """Another exponential rounds 1 or 2 % of the probabilities in another way."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 8)).astype(np.float32)
    model = make(X, X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) > 0)
    for strategy in ("scan", "auto"):
        compiled = hbc.convert(model, backend, X[:5], strategy=strategy, threads=1)
        np.testing.assert_array_equal(compiled.predict(X), model.predict(X))
        np.testing.assert_allclose(compiled.predict_proba(X), model.predict_proba(X), rtol=1e-5, atol=1e-6)
