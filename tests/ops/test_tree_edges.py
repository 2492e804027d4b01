"""Trees at the limits of their shape: single leaves, one feature and 5,000, depth 60, 5,000 trees, ties and zeros everywhere."""

from __future__ import annotations

import copy
import functools
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import hbc
from hbc.ops.tree import TreeEnsemble

WAYS = [
    ("numpy", "auto"),
    ("torch", "auto"),
    ("torchscript", "auto"),
    ("onnx", "auto"),
    ("tvm", "walk"),
    ("tvm", "scan"),
    ("tvm", "patches"),
    ("tvm", "ranges"),
]
ONE = {"n_jobs": 1, "random_state": 0}
LIGHT = {**ONE, "verbose": -1, "min_child_samples": 1}


def data(rows: int = 300, features: int = 6, levels: int = 0) -> tuple[Any, Any]:
    """Random data. `levels`: the number of different values in a column, for ties; 0: any floats."""
    rng = np.random.default_rng(rows + features)
    X = rng.normal(size=(rows, features)) if not levels else rng.integers(0, levels, (rows, features)).astype(float)
    return X, X[:, : min(features, 200)] @ rng.normal(size=min(features, 200)) + rng.normal(size=rows)


def halves(y: Any) -> Any:
    return (y > np.median(y)).astype(int)


def chain() -> tuple[Any, Any]:
    """A tree of depth 60, in which every split separates the largest value."""
    return np.arange(62.0)[:, None] ** [1, 2], 2.5 ** np.arange(62)


def fit(model: Any, rows: tuple[Any, Any], target: Callable[[Any], Any] = lambda y: y) -> tuple[Any, Any]:
    X, y = rows
    return model.fit(X, target(y)), X


def doubled(model: Any, rows: tuple[Any, Any]) -> tuple[Any, Any]:
    """One tree of a forest, 40 times."""
    X, y = rows
    model.fit(X, y)
    model.estimators_ = [model.estimators_[0]] * 40
    return model, X


def edited_xgboost(model: Any, rows: tuple[Any, Any], edit: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A Booster's trees changed in its document."""
    X, y = rows
    document = json.loads(model.fit(X, y).get_booster().save_raw("json"))
    trees = document["learner"]["gradient_booster"]["model"]
    trees["trees"] = edit(trees["trees"])
    count = len(trees["trees"])
    for number, tree in enumerate(trees["trees"]):
        tree["id"] = number
    trees["gbtree_model_param"]["num_trees"] = str(count)
    trees.update(tree_info=[0] * count, iteration_indptr=list(range(count + 1)))
    model.load_model(bytearray(json.dumps(document), "utf-8"))
    return model, X


def zeros(trees: list[Any]) -> list[Any]:
    """The trees with all thresholds 0, and half of the leaves 0 of either sign."""
    for tree in trees:
        leaf = np.array(tree["left_children"]) < 0
        condition = np.where(leaf, tree["split_conditions"], 0.0)
        condition[leaf & (np.arange(len(leaf)) % 2 == 0)] = 0.0
        condition[leaf & (np.arange(len(leaf)) % 4 == 1)] = -0.0
        tree["split_conditions"] = condition.tolist()
    return trees


def zero_lightgbm() -> tuple[Any, Any]:
    X, y = data(levels=3)
    X -= 1
    lines = []
    for line in lgb.LGBMRegressor(n_estimators=10, **LIGHT).fit(X, y).booster_.model_to_string().splitlines():
        key, _, value = line.partition("=")
        if key == "threshold":
            value = " ".join("0" if i % 2 else "-0.0" for i, _ in enumerate(value.split()))
        if key == "leaf_value":
            value = " ".join(old if i % 2 else "0" for i, old in enumerate(value.split()))
        lines.append(f"{key}={value}" if key in ("threshold", "leaf_value") else line)
    return lgb.Booster(model_str="\n".join(line for line in lines if not line.startswith("tree_sizes")) + "\n"), X


def deep_lightgbm() -> tuple[Any, Any]:
    """Twelve trees of depth 60, of 61 leaves each: every node has a leaf on one side."""
    X, y = data(features=2, levels=9)
    rng = np.random.default_rng(0)
    text = lgb.LGBMRegressor(n_estimators=12, num_leaves=4, **LIGHT).fit(X, y).booster_.model_to_string()
    lines, fields = [], {}
    next_node, leaf = np.append(np.arange(1, 60), -61), -1 - np.arange(60)
    for line in text.splitlines():
        key = line.partition("=")[0]
        if key == "num_leaves":  # the first field of a tree
            turned = rng.random(60) < 0.3
            fields = {
                "num_leaves": [61],
                "split_feature": rng.integers(0, 2, 60).tolist(),
                "threshold": (np.round(rng.normal(size=60) * 5) + 0.5).tolist(),
                "decision_type": rng.choice([2, 8, 10], 60).tolist(),
                "left_child": np.where(turned, next_node, leaf).tolist(),
                "right_child": np.where(turned, leaf, next_node).tolist(),
                "leaf_value": rng.normal(size=61).tolist(),
                **dict.fromkeys(["leaf_weight", "leaf_count"], [1] * 61),
                **dict.fromkeys(["split_gain", "internal_value", "internal_weight", "internal_count"], [1] * 60),
            }
        lines.append(f"{key}={' '.join(map(str, fields[key]))}" if key in fields else line)
    return lgb.Booster(model_str="\n".join(line for line in lines if not line.startswith("tree_sizes")) + "\n"), X


def doubled_lightgbm() -> tuple[Any, Any]:
    X, y = data()
    first = lgb.LGBMRegressor(n_estimators=1, **LIGHT).fit(X, y).booster_.model_to_string()
    head, tree, rest = first.partition("Tree=0")[0], *first.partition("Tree=0")[2].split("end of trees", 1)
    head = "\n".join(line for line in head.splitlines() if not line.startswith("tree_sizes"))
    return lgb.Booster(model_str=head + "\n\n" + "".join(f"Tree={i}{tree}" for i in range(40)) + "end of trees" + rest), X


def deep(model: Any) -> tuple[Any, Any]:
    model, X = fit(model, chain())
    for tree in getattr(model, "estimators_", [model]):
        tree.tree_.value[:] = np.random.default_rng(0).normal(size=tree.tree_.value.shape)
    return model, np.concatenate([X, X + 0.5, X - 0.5, np.nextafter(X + 0.5, 0)])


def chains(trees: list[Any]) -> list[Any]:
    """Twelve trees of depth 60, in which one of each pair of children is a leaf. (XGBoost requires children side by side.)"""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(12):
        at = 0
        left, parents = np.full(121, -1), np.full(121, 2147483647)
        for child in range(1, 121, 2):
            left[at] = child
            parents[child : child + 2] = at
            at = child + int(rng.random() < 0.3)
        leaf = left < 0
        numbers = {"base_weights": 0.0, "loss_changes": 1.0, "sum_hessian": 1.0, "split_type": 0}
        tree = {**copy.deepcopy(trees[0]), **{field: [value] * 121 for field, value in numbers.items()}}
        tree["left_children"] = left.tolist()
        tree["right_children"] = np.where(leaf, -1, left + 1).tolist()
        tree["parents"] = parents.tolist()
        tree["split_indices"] = np.where(leaf, 0, rng.integers(0, 2, 121)).tolist()
        tree["split_conditions"] = np.where(leaf, rng.normal(size=121), np.round(rng.normal(size=121) * 5)).tolist()
        tree["default_left"] = rng.integers(0, 2, 121).tolist()
        tree["tree_param"]["num_nodes"] = "121"
        made.append(tree)
    return made


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "single leaf: tree": lambda: fit(DecisionTreeRegressor(), data(), np.zeros_like),
    "single leaf: forest": lambda: fit(RandomForestClassifier(5, **ONE), data(), np.zeros_like),
    "single leaf: GradientBoosting": lambda: fit(GradientBoostingRegressor(n_estimators=3), data(), np.ones_like),
    "single leaf: HistGradientBoosting": lambda: fit(HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=999), data()),
    "single leaf: LightGBM": lambda: fit(lgb.LGBMRegressor(n_estimators=3, **{**LIGHT, "min_child_samples": 999}), data()),
    "single leaf: XGBoost": lambda: fit(xgb.XGBRegressor(n_estimators=3, gamma=1e9, **ONE), data()),
    "single leaf: IsolationForest": lambda: fit(IsolationForest(n_estimators=3, max_samples=1, **ONE), data()),
    "one class: tree": lambda: fit(DecisionTreeClassifier(), data(), lambda y: np.full(len(y), "only")),
    "one class: LightGBM": lambda: fit(lgb.LGBMClassifier(n_estimators=3, **LIGHT), data(), lambda y: np.ones(len(y), int)),
    "one class: XGBoost": lambda: fit(xgb.XGBClassifier(n_estimators=3, **ONE), data(), lambda y: np.zeros(len(y), int)),
    "one feature: forest": lambda: fit(RandomForestClassifier(9, **ONE), data(features=1), halves),
    "one feature: HistGradientBoosting": lambda: fit(HistGradientBoostingClassifier(max_iter=9), data(features=1), halves),
    "one feature: LightGBM": lambda: fit(lgb.LGBMClassifier(n_estimators=60, **LIGHT), data(features=1), halves),
    "one feature: XGBoost": lambda: fit(xgb.XGBClassifier(n_estimators=60, **ONE), data(features=1), halves),
    "5,000 features: forest": lambda: fit(ExtraTreesRegressor(20, max_features=50, **ONE), data(100, 5000)),
    "5,000 features: LightGBM": lambda: fit(lgb.LGBMRegressor(n_estimators=30, max_bin=15, **LIGHT), data(100, 5000)),
    "5,000 features: XGBoost": lambda: fit(xgb.XGBRegressor(n_estimators=20, max_bin=15, **ONE), data(100, 5000)),
    "depth 60: tree": lambda: deep(DecisionTreeRegressor(random_state=0)),
    "depth 60: forest": lambda: deep(RandomForestRegressor(12, **ONE, bootstrap=False, max_features=1)),
    "depth 60: LightGBM": deep_lightgbm,
    "depth 60: XGBoost": lambda: edited_xgboost(xgb.XGBRegressor(n_estimators=1, **ONE), data(features=2, levels=9), chains),
    "5,000 trees: forest": lambda: fit(RandomForestClassifier(5000, max_depth=1, **ONE), data(50), halves),
    "5,000 trees: LightGBM": lambda: fit(lgb.LGBMRegressor(n_estimators=5000, num_leaves=3, **LIGHT), data(100)),
    "5,000 trees: XGBoost": lambda: fit(xgb.XGBRegressor(n_estimators=5000, max_depth=2, **ONE), data(100)),
    "equal thresholds: forest": lambda: fit(RandomForestClassifier(20, **ONE), data(levels=2), halves),
    "equal thresholds: HistGradientBoosting": lambda: fit(HistGradientBoostingRegressor(max_iter=30), data(levels=2)),
    "equal thresholds: LightGBM": lambda: fit(lgb.LGBMRegressor(n_estimators=60, **LIGHT), data(levels=2)),
    "equal thresholds: XGBoost": lambda: fit(xgb.XGBRegressor(n_estimators=60, **ONE), data(levels=2)),
    "zeros: LightGBM": zero_lightgbm,
    "zeros: XGBoost": lambda: edited_xgboost(xgb.XGBRegressor(n_estimators=9, **ONE), data(levels=3), zeros),
    "duplicates: forest": lambda: doubled(RandomForestClassifier(1, **ONE), (data()[0], halves(data()[1]))),
    "duplicates: LightGBM": doubled_lightgbm,
    "duplicates: XGBoost": lambda: edited_xgboost(
        xgb.XGBRegressor(n_estimators=1, **ONE), data(), lambda trees: [copy.deepcopy(trees[0]) for _ in range(40)]
    ),
}


@functools.lru_cache(maxsize=4)
def fitted(name: str) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fitting is not tested
        return MODELS[name]()


def marked(value: Any, name: str) -> Any:
    """A parameter, marked as slow if the model is large or the backend runs strategies of others: all of them take four minutes."""
    marks = [pytest.mark.slow] if name.startswith(("5,000", "torchscript", "onnx")) else []
    return pytest.param(*value, marks=marks)


@pytest.mark.parametrize(("backend", "strategy"), [marked(way, way[0]) for way in WAYS])  # varies fastest: fitted once
@pytest.mark.parametrize("name", [marked((name,), name) for name in MODELS])
def test_edges(name: str, backend: str, strategy: str) -> None:
    """All methods agree for many and few rows, in both float dtypes. On TVM only every second method of float64 is compiled (see
    test_estimators.py) and one of float32; for the next model and the other strategy these are other methods."""
    compiled = converted(name, backend, strategy)
    if name.startswith("depth 60"):
        assert max(int(node.op.depths.max()) for node in compiled.graph.nodes if isinstance(node.op, TreeEnsemble)) >= 60
    methods = whole(compiled)
    turn = list(MODELS).index(name) + (strategy == "scan")  # patches and ranges take the methods of walks
    few = backend == "tvm"
    check(name, compiled, methods[turn % min(2, len(methods)) :: 2] if few else methods, np.float64)
    check(name, compiled, [methods[turn % len(methods)]] if few else methods, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["walk", "scan", "patches", "ranges"])
@pytest.mark.parametrize("name", MODELS)
def test_edges_of_all_methods_on_tvm(name: str, strategy: str) -> None:
    compiled = converted(name, "tvm", strategy)
    check(name, compiled, whole(compiled), np.float64)
    check(name, compiled, whole(compiled), np.float32)


def whole(compiled: Any) -> list[str]:
    """The methods without the staged ones, which are tested in the table."""
    return [method for method in compiled.methods if not method.startswith("staged")]


def converted(name: str, backend: str, strategy: str) -> Any:
    return hbc.convert(fitted(name)[0], backend, strategy=strategy, threads=1)


def check(name: str, compiled: Any, methods: Sequence[str], dtype: Any) -> None:
    model, X = fitted(name)
    X = np.concatenate([X, -X, np.zeros_like(X[:1]), -np.zeros_like(X[:1])]).astype(dtype)
    for data in (X, X[:1], X[5:22]):
        for method in methods:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = source(model, method, data)
            found = getattr(compiled, method)(data)
            assert found.shape == expected.shape
            if expected.dtype.kind == "f" and method != "apply":
                single = expected.dtype == np.float32
                atol = 1e-6 if single else 1e-9
                if name == "5,000 trees: XGBoost":
                    atol = 2e-5  # it adds 5,000 float32 numbers one by one, and errs by 8e-6 itself; hbc's scan by 2e-7
                np.testing.assert_allclose(found, expected, rtol=1e-5 if single else 1e-7, atol=atol)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("strategy", ["walk", "scan", "patches", "ranges"])
@pytest.mark.parametrize("largest", [1e6, 1e8])
def test_one_huge_leaf_does_not_spoil_small_sums(largest: float, strategy: str) -> None:
    """A row that reaches small leaves only has a small, exact sum."""
    X = np.repeat([[0.0], [1.0]], 50, axis=0)
    model = DecisionTreeRegressor().fit(X, np.repeat([1 / 3, largest], 50))
    compiled = hbc.convert(model, "tvm", strategy=strategy)
    np.testing.assert_allclose(compiled.predict(X), model.predict(X), rtol=1e-7, atol=1e-9)


def source(model: Any, method: str, X: Any) -> Any:
    if hasattr(model, method):
        return np.asarray(getattr(model, method)(X))
    if method == "raw_score":
        return model.predict(X, **{"output_margin" if isinstance(model, xgb.XGBModel) else "raw_score": True})
    return model.predict(X, pred_leaf=True)
