"""LightGBM and XGBoost: every row reaches the source's own leaf in every tree, for rows drawn at the thresholds and next to them."""

from __future__ import annotations

import json

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from leaf_sweep import scrambled_lightgbm, scrambled_xgboost

import hbc
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.parser import boosting
from hbc.parser import lightgbm as lightgbm_parser
from hbc.parser import xgboost as xgboost_parser
from hbc.parser.files import read_model

ROWS, FEATURES = 3000, 5
DTYPES = {"f64": np.float64, "f32": np.float32, "i64": np.int64}
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 1e-45, -1e-45, 1e-40, -1e-40, np.nan, 1.5, -1.5, 3e38, -3e38]
INFINITE = [np.inf, -np.inf, 1e39, -1e39, 1e300, -1e300]


def neighbours(thresholds):
    """The values at which a decision can change, in float64 and in float32."""
    exact = np.concatenate([thresholds, np.nextafter(thresholds, np.inf), np.nextafter(thresholds, -np.inf)])
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
        around = [single, np.nextafter(single, np.float32(np.inf)), np.nextafter(single, np.float32(-np.inf))]
    return np.concatenate([exact, *(near.astype(np.float64) for near in around)])


def rows_at(rng, features, thresholds, dtype, extremes):
    """Rows of thresholds of their column, numbers one ulp beside them, extremes, categories, or other numbers."""
    X = np.empty((ROWS, FEATURES))
    for column in range(FEATURES):
        near = neighbours(thresholds[features == column])
        pool = np.concatenate([near, extremes, rng.normal(size=20), rng.integers(-3, 70, 20), rng.integers(0, 70, 20) + 0.5])
        X[:, column] = rng.choice(pool, ROWS)
    if dtype == "i64":
        X = np.nan_to_num(X, nan=7, posinf=2**40, neginf=-(2**40)).clip(-(2.0**60), 2.0**60)
        return X.astype(np.int64) + rng.integers(-1, 2, X.shape)
    with np.errstate(over="ignore"):
        return X.astype(DTYPES[dtype])


def training_data(rng, categorical):
    X = rng.normal(size=(500, FEATURES)).round(1)
    X[rng.random(X.shape) < 0.1] = 0
    X[rng.random(X.shape) < 0.1] = np.nan
    if categorical:
        X[:, :2] = rng.integers(0, [40, 4], (500, 2))
        X[rng.random(X.shape) < 0.05] = np.nan
    filled = np.nan_to_num(X)
    return X, np.sin(7 * filled[:, 0]) + filled[:, 1] * filled[:, 2] + filled[:, 3]


def graph_of(dtype, build):
    x = Input("X", dtype, (N, FEATURES))()
    return Graph((x,), {"leaves": (build(x),)}).verify()


# --- LightGBM --------------------------------------------------------------------------------------------------------

LIGHTGBM = {
    "missing NaN": {},
    "missing None": {"use_missing": False},
    "missing Zero": {"zero_as_missing": True},
    "deep": {"num_leaves": 200, "min_data_in_leaf": 1},
    "categorical": {"min_data_per_group": 2, "cat_smooth": 1},
    "categorical one-hot": {"max_cat_to_onehot": 100},
}


def check_lightgbm(booster, rng, dtype):
    model = lightgbm_parser.read_model(booster)

    def build(x):
        x = lightgbm_parser.as_read(x)
        ensemble, read = lightgbm_parser.ensemble(model, x)
        return boosting.leaves(ensemble, read)

    thresholds = model.numbers("threshold").copy()
    thresholds[model.integers("decision_type") & 1 > 0] = 3
    X = rows_at(rng, model.integers("split_feature"), thresholds, dtype, EXTREMES + INFINITE)
    (found,) = graph_of(dtype, build).evaluate(X)["leaves"]
    np.testing.assert_array_equal(found, booster.predict(X, pred_leaf=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm_reaches_the_same_leaves(name, dtype):
    rng = np.random.default_rng(len(name))
    X, y = training_data(rng, "categorical" in name)
    parameters = {"verbose": -1, "num_threads": 1, "num_leaves": 31, "min_data_in_leaf": 5, "max_bin": 63, **LIGHTGBM[name]}
    data = lgb.Dataset(X, y, categorical_feature=[0, 1] if "categorical" in name else [])
    check_lightgbm(lgb.train(parameters, data, 20), rng, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lightgbm_reaches_the_same_leaves_with_any_threshold_and_missing_type(dtype):
    rng = np.random.default_rng(3)
    X, y = training_data(rng, categorical=False)
    booster = lgb.train({"verbose": -1, "num_threads": 1, "num_leaves": 31, "min_data_in_leaf": 5}, lgb.Dataset(X, y), 20)
    check_lightgbm(lgb.Booster(model_str=scrambled_lightgbm(booster.model_to_string(), rng)), rng, dtype)


# --- XGBoost ---------------------------------------------------------------------------------------------------------

XGBOOST = {
    "hist": {},
    "exact": {"tree_method": "exact"},
    "deep": {"max_depth": 14, "min_child_weight": 0},
    "dart": {"booster": "dart", "rate_drop": 0.5},
    "categorical": {"max_cat_to_onehot": 1},
    "categorical one-hot": {"max_cat_to_onehot": 100},
}


def check_xgboost(booster, rng, dtype, feature_types=None):
    machine = xgboost_parser.BoosterOutputs(xgboost_parser.read_model(booster))
    dumped = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    trees = dumped.get("gbtree", dumped)["model"]["trees"]
    features = np.concatenate([tree["split_indices"] for tree in trees])
    thresholds = np.concatenate([tree["split_conditions"] for tree in trees])
    X = rows_at(rng, features, thresholds, dtype, EXTREMES)
    with np.errstate(over="ignore"):
        X[np.isinf(X.astype(np.float32))] = 0
    graph = graph_of(dtype, lambda x: machine.leaves(xgboost_parser.as_read(x)))
    (found,) = graph.evaluate(X)["leaves"]
    data = xgb.DMatrix(X, feature_types=feature_types, enable_categorical=True)
    np.testing.assert_array_equal(found, booster.predict(data, pred_leaf=True))

    # A DMatrix rejects infinite values, inplace_predict takes them: the float32 sums of leaves are compared bit by bit
    # (dart's inplace_predict adds in another order than its predict).
    X = rows_at(rng, features, thresholds, dtype, EXTREMES + INFINITE)
    graph = graph_of(dtype, lambda x: machine.margin(xgboost_parser.as_read(x)))
    (found,) = graph.evaluate(X)["leaves"]
    expected = booster.inplace_predict(X, predict_type="margin")
    np.testing.assert_allclose(found[:, 0], expected, rtol=0, atol=1e-6 if machine.learner.booster == "dart" else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost_reaches_the_same_leaves(name, dtype):
    rng = np.random.default_rng(len(name))
    categorical = "categorical" in name
    feature_types = ["c", "c", "q", "q", "q"] if categorical else None
    X, y = training_data(rng, categorical)
    data = xgb.DMatrix(X, y, feature_types=feature_types, enable_categorical=True)
    booster = xgb.train({"nthread": 1, "max_depth": 6, **XGBOOST[name]}, data, 20)
    check_xgboost(booster, rng, dtype, feature_types)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xgboost_reaches_the_same_leaves_with_any_threshold_and_default(dtype):
    rng = np.random.default_rng(4)
    X, y = training_data(rng, categorical=False)
    booster = xgb.train({"nthread": 1, "max_depth": 6}, xgb.DMatrix(X, y), 20)
    check_xgboost(scrambled_xgboost(booster, rng), rng, dtype)


# --- every backend ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "onnx", "tvm"])
def test_lightgbm_is_exact_on_every_backend(backend):
    """One wrong leaf would change a sum by far more than the tolerance, which is that of adding in fixed point."""
    rng = np.random.default_rng(3)
    X, y = training_data(rng, categorical=False)
    booster = lgb.train({"verbose": -1, "num_threads": 1, "num_leaves": 31, "min_data_in_leaf": 5}, lgb.Dataset(X, y), 20)
    booster = lgb.Booster(model_str=scrambled_lightgbm(booster.model_to_string(), rng))
    model = lightgbm_parser.read_model(booster)
    compiled = hbc.convert(booster, backend)
    for dtype in DTYPES:
        X = rows_at(rng, model.integers("split_feature"), model.numbers("threshold"), dtype, EXTREMES + INFINITE)
        np.testing.assert_allclose(compiled.predict(X), booster.predict(X), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["torch", "onnx", "tvm"])
def test_xgboost_is_exact_on_every_backend(backend):
    rng = np.random.default_rng(4)
    X, y = training_data(rng, categorical=False)
    model = xgb.XGBRegressor(n_estimators=20, max_depth=6, n_jobs=1).fit(X, y)
    document = scrambled_xgboost(model.get_booster(), rng).save_raw("json")
    model.load_model(document)
    trees = json.loads(document)["learner"]["gradient_booster"]["model"]["trees"]
    features = np.concatenate([tree["split_indices"] for tree in trees])
    thresholds = np.concatenate([tree["split_conditions"] for tree in trees])
    compiled = hbc.convert(model, backend)
    for dtype in DTYPES:
        X = rows_at(rng, features, thresholds, dtype, EXTREMES)
        with np.errstate(over="ignore"):
            X[np.isinf(X.astype(np.float32))] = 0
        np.testing.assert_array_equal(compiled.apply(X), model.apply(X))
        np.testing.assert_allclose(compiled.predict(X), model.predict(X), rtol=1e-5, atol=1e-6)


def test_lightgbm_files_of_version_3(tmp_path):
    """Files as LightGBM 2 and 3 wrote them, without the fields that came later. (They were compared with files of these versions.)"""
    rng = np.random.default_rng(5)
    X, y = training_data(rng, categorical=True)
    parameters = {"verbose": -1, "num_threads": 1, "min_data_per_group": 2}
    booster = lgb.train(parameters, lgb.Dataset(X, y, categorical_feature=[0, 1]), 20)
    later = ("is_linear", "internal_weight", "monotone_constraints", "tree_sizes")
    lines = [line for line in booster.model_to_string().splitlines() if not line.startswith(later)]
    path = tmp_path / "model.txt"
    path.write_text("\n".join(lines).replace("version=v4", "version=v3") + "\n")
    compiled = hbc.convert(read_model(path), "numpy")
    np.testing.assert_array_equal(compiled.apply(X), booster.predict(X, pred_leaf=True))
    np.testing.assert_allclose(compiled.predict(X), booster.predict(X), rtol=1e-12)


@pytest.mark.parametrize(
    ("backend", "strategy"),
    [("numpy", "auto"), ("tvm", "auto"), ("tvm", "select"), ("torch", "gemm"), ("torchscript", "tree_trav"), ("onnx", "auto")],
)
@pytest.mark.parametrize(("base_score", "classes"), [(None, 1), (123.456, 1), (None, 3)])
def test_sums_of_dart_have_xgboost_s_bits(base_score: float | None, classes: int, backend: str, strategy: str) -> None:
    """They cancel, and inplace_predict (of the estimators) takes the base score off every tree, in float32. A DMatrix's does not."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=len(X))
    options = {"booster": "dart", "n_estimators": 15, "max_depth": 4, "learning_rate": 0.5, "rate_drop": 0.3}
    options |= {} if base_score is None else {"base_score": base_score}
    cls, target = (xgb.XGBRegressor, y) if classes == 1 else (xgb.XGBClassifier, np.digitize(y, [-0.5, 0.5]))
    model = cls(**options).fit(X, target)
    booster = model.get_booster()
    of_matrix = booster.predict(xgb.DMatrix(X), output_margin=True)
    for source, expected in ((model, model.predict(X, output_margin=True)), (booster, of_matrix)):
        compiled = hbc.convert(source, backend, strategy=strategy)
        for rows in (len(X), 100, 1):
            np.testing.assert_array_equal(compiled.raw_score(X[:rows]), expected[:rows])
