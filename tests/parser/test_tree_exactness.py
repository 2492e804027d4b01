"""Every branch decision of every library is the source's own: rows drawn at the thresholds and one ulp on either side of them, with
NaN, infinities, signed zeros and subnormals, in both float dtypes, by numpy's evaluation and by every strategy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier, ExtraTreeRegressor

import hbc

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # the sources' own, for 1e300

STRATEGIES = ("auto", "gemm", "tree_trav", "perf_tree_trav")
FEATURES = 6
LARGEST = float(np.finfo(np.float32).max)
SPECIAL = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e-45, -1e-45, 1e-40, 1.17e-38, -1.17e-38]


def training_data(seed: int, classes: int, missing: bool) -> tuple[Any, Any]:
    """Columns of every scale: coarse ones with many ties, subnormals, huge numbers, and zeros of both signs."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(250, FEATURES))
    X[:, 1] = np.round(X[:, 1])
    X[:, 2] *= 1e-39
    X[:, 3] *= 1e37
    X[:, 4] = rng.choice([0.0, -0.0, 1e-45, -1e-45, 1.0], 250)
    X[:, 5] = X[:, 5].astype(np.float32) + rng.choice([0, 1e-9], 250)
    scaled = X / np.abs(X).max(axis=0)
    score = scaled @ rng.normal(size=FEATURES) + rng.normal(size=250) / 10
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score
    return X, y


def rows(seed: int, cuts: list[Any], dtype: type, special: list[float], count: int = 400) -> Any:
    """Rows whose columns are drawn from that column's thresholds and their neighbours in both float formats."""
    rng = np.random.default_rng(seed)
    columns = []
    for column in cuts:
        cut = np.asarray(column, np.float64)
        with np.errstate(over="ignore"):
            single = cut.astype(np.float32)
        around = [cut, np.nextafter(cut, np.inf), np.nextafter(cut, -np.inf)]
        around += [single, np.nextafter(single, np.float32(np.inf)), np.nextafter(single, np.float32(-np.inf))]
        pool = np.concatenate([np.concatenate(around).astype(np.float64), special])
        columns.append(rng.choice(pool, count))
    X = np.stack(columns, axis=1)
    if np.inf not in special:  # what a cast to float32 makes infinite is rejected too
        X = np.clip(X, -LARGEST, LARGEST)
    with np.errstate(over="ignore"):
        return X.astype(dtype)


def thresholds(trees: list[Any]) -> list[Any]:
    """The thresholds of every column in scikit-learn's trees."""
    inner = [(tree.feature[tree.feature >= 0], tree.threshold[tree.feature >= 0]) for tree in trees]
    feature, threshold = (np.concatenate(part) for part in zip(*inner, strict=True))
    return [threshold[feature == column] for column in range(FEATURES)]


MODELS = {
    "decision tree": (lambda: DecisionTreeClassifier(random_state=0), 3),
    "decision tree regressor": (lambda: DecisionTreeRegressor(random_state=0, max_depth=12), 0),
    "extra tree": (lambda: ExtraTreeClassifier(random_state=0, max_depth=14), 2),
    "extra tree regressor": (lambda: ExtraTreeRegressor(random_state=0, max_depth=13), 0),
    "random forest": (lambda: RandomForestClassifier(5, random_state=0, max_depth=12), 2),
    "random forest regressor": (lambda: RandomForestRegressor(5, random_state=0, max_depth=9), 0),
    "extra trees": (lambda: ExtraTreesClassifier(5, random_state=0, max_depth=11), 4),
    "extra trees regressor": (lambda: ExtraTreesRegressor(5, random_state=0, max_depth=10), 0),
    "gradient boosting": (lambda: GradientBoostingClassifier(n_estimators=6, random_state=0), 3),
    "gradient boosting regressor": (lambda: GradientBoostingRegressor(n_estimators=10, random_state=0, max_leaf_nodes=12), 0),
}


@functools.lru_cache(maxsize=4)
def fitted(name: str, missing: bool) -> Any:
    make, classes = MODELS[name]
    X, y = training_data(len(name), classes, missing)
    return make().fit(X, y)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_scikit_learn_leaves(name: str, missing: bool, strategy: str) -> None:
    """`apply` is equal for every row. Rows hold NaN if the model takes it, whether it was fitted with NaN or not."""
    if missing and "boosting" in name:
        pytest.skip("it does not take NaN")
    model = fitted(name, missing)
    compiled = hbc.convert(model, "numpy", strategy=strategy)
    trees = [tree.tree_ for tree in np.ravel(getattr(model, "estimators_", [model]))]
    special = [*SPECIAL, *([] if "boosting" in name else [np.nan] * 4)]
    for dtype in (np.float64, np.float32):
        X = rows(1, thresholds(trees), dtype, special)
        np.testing.assert_array_equal(compiled.apply(X), model.apply(X))


@pytest.mark.parametrize("backend", ["torch", "onnx"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["random forest", "gradient boosting"])
def test_other_backends_take_the_same_branches(name: str, strategy: str, backend: str) -> None:
    """The tensor operators of the strategies take the same branches on other backends, which must not flush subnormals or reverse a
    comparison."""
    model = fitted(name, missing=False)
    compiled = hbc.convert(model, backend, strategy=strategy)
    X = rows(4, thresholds([tree.tree_ for tree in np.ravel(model.estimators_)]), np.float64, SPECIAL)
    np.testing.assert_array_equal(compiled.apply(X), model.apply(X))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_million_decisions(seed: int) -> None:
    """100 trees × 100,000 rows, with and without NaN in training."""
    X, y = training_data(seed, 3, missing=seed % 2 == 1)
    model = RandomForestClassifier(100, random_state=seed, min_samples_leaf=1 + seed).fit(X, y)
    cuts = thresholds([tree.tree_ for tree in model.estimators_])
    data = rows(seed, cuts, np.float64, [*SPECIAL, np.nan, np.nan], count=100_000)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").apply(data), model.apply(data))


def test_gradient_boosting_applies_rows_with_nan() -> None:
    """`apply` asks the trees, which take NaN; predictions reject it."""
    model = fitted("gradient boosting", missing=False)
    compiled = hbc.convert(model, "numpy")
    X = rows(5, thresholds([tree.tree_ for tree in model.estimators_.ravel()]), np.float64, [*SPECIAL, np.nan])
    np.testing.assert_array_equal(compiled.apply(X), model.apply(X))
    with pytest.raises(hbc.InvalidInputError, match="NaN"):
        compiled.predict(X)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [{}, {"max_features": 0.5}, {"contamination": 0.1}], ids=str)
def test_isolation_forest_scores(options: dict[str, Any], strategy: str) -> None:
    """It has no `apply`. The sum of depths is exact, so scores agree to the last bits and classes entirely. It accepts infinities."""
    X, _ = training_data(5, 0, missing=True)
    model = IsolationForest(n_estimators=8, random_state=0, **options).fit(X)
    compiled = hbc.convert(model, "numpy", strategy=strategy)
    cuts: list[list[float]] = [[] for _ in range(FEATURES)]
    for tree, features in zip(model.estimators_, model.estimators_features_, strict=True):
        for feature, threshold in zip(tree.tree_.feature, tree.tree_.threshold, strict=True):
            if feature >= 0:
                cuts[features[feature]].append(threshold)
    special = [*SPECIAL, np.nan, np.nan, np.inf, -np.inf, 1e300, -1e300]
    for data in (X, rows(2, cuts, np.float64, special), rows(3, cuts, np.float32, special)):
        np.testing.assert_array_equal(compiled.score_samples(data), model.score_samples(data))
        np.testing.assert_array_equal(compiled.predict(data), model.predict(data))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_histogram_boosting(classes: int, missing: bool, strategy: str) -> None:
    """It has no `apply`. Its leaves are all different, so equal raw predictions, bit by bit, of each tree mean equal leaves."""
    X, y = training_data(classes, classes, missing)
    cls = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    model = cls(max_iter=6, min_samples_leaf=2, max_depth=9, random_state=0).fit(X, y)
    compiled = hbc.convert(model, "numpy", strategy=strategy)
    nodes = np.concatenate([predictor.nodes for stage in model._predictors for predictor in stage])
    inner = nodes[nodes["is_leaf"] == 0]
    cuts = [inner["num_threshold"][inner["feature_idx"] == column] for column in range(FEATURES)]
    special = [*SPECIAL, np.nan, np.nan, np.inf, -np.inf, 1e300, -1e300]
    method = "decision_function" if classes else "predict"
    for seed, dtype in enumerate((np.float64, np.float32)):
        data = rows(seed, cuts, dtype, special)
        np.testing.assert_array_equal(getattr(compiled, method)(data), getattr(model, method)(data))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_histogram_boosting_categories(strategy: str) -> None:
    """Known, unknown, negative, fractional, huge and missing categories, in columns that were fitted with and without missing ones."""
    rng = np.random.default_rng(7)
    X, _ = training_data(7, 0, missing=True)
    X[:, 1] = rng.integers(0, 9, 250)
    X[:, 4] = rng.integers(-3, 60, 250)
    y = rng.normal(size=9)[X[:, 1].astype(int)] + rng.normal(size=63)[X[:, 4].astype(int) + 3]
    X[rng.random(250) < 0.1, 4] = np.nan
    options = {"max_iter": 8, "min_samples_leaf": 2, "max_depth": 8, "random_state": 0}
    model = HistGradientBoostingRegressor(categorical_features=[1, 4], **options).fit(X, y)
    compiled = hbc.convert(model, "numpy", strategy=strategy)
    pool = [*range(-5, 70), np.nan, np.nan, -0.0, -0.5, 0.5, 2.5, 1e10, -1e10, 5e-324]
    data = rng.choice(pool, size=(600, FEATURES))
    np.testing.assert_array_equal(compiled.predict(data), model.predict(data))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ties_between_classes(strategy: str) -> None:
    """Two trees that disagree make an exact tie: the class is the source's, which adds probabilities in the order of the trees."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(60, 4)).astype(float)
    y = rng.integers(0, 4, size=60)
    model = RandomForestClassifier(10, max_depth=3, random_state=0).fit(X, y)
    compiled = hbc.convert(model, "numpy", strategy=strategy)
    proba = model.predict_proba(X)
    np.testing.assert_array_equal(compiled.predict_proba(X), proba)
    np.testing.assert_array_equal(compiled.predict(X), model.predict(X))
