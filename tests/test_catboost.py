"""CatBoost: every leaf at the borders, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimators.catboost_cases import Y3, X, Z

import hbc

catboost = pytest.importorskip("catboost")
SETTINGS: dict[str, Any] = {"iterations": 25, "depth": 6, "verbose": 0, "allow_writing_files": False, "thread_count": 1}


@pytest.mark.parametrize("backend", ["numpy", "torch", "torchscript", "onnx", "tvm"])
@pytest.mark.parametrize("policy", ["SymmetricTree", "Depthwise"])
@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_leaves_at_the_borders(nan_mode: str, policy: str, backend: str, tmp_path: Path) -> None:
    """float64 values at every border and one float32 and float64 ulp beside it, NaN, ±inf, -0.0: CatBoost's own leaf numbers, and sums."""
    model = catboost.CatBoostRegressor(**SETTINGS, nan_mode=nan_mode, grow_policy=policy).fit(X, Z)
    model.save_model(str(tmp_path / "m.json"), format="json")
    features = json.loads((tmp_path / "m.json").read_text())["features_info"]["float_features"]
    rng = np.random.default_rng(0)
    rows = np.empty((400, 5))
    for feature in features:
        b = np.float32(feature["borders"] or [0.0])
        pool = [b, np.nextafter(b, np.float32(9)), np.nextafter(b, np.float32(-9)), np.nextafter(b.astype(float), 9)]
        pool += [np.nextafter(b.astype(float), -9), [np.nan, np.inf, -np.inf, -0.0, 1e-45, 1e300]]
        rows[:, feature["flat_feature_index"]] = rng.choice(np.concatenate([np.asarray(p, float) for p in pool]), 400)
    compiled = hbc.convert(model, backend)
    with np.errstate(over="ignore"):
        inputs = (rows, rows.astype(np.float32))
    for data in inputs:
        np.testing.assert_allclose(compiled.predict(data), model.predict(data), rtol=1e-7, atol=1e-9)
        if policy == "SymmetricTree":
            np.testing.assert_array_equal(compiled.calc_leaf_indexes(data), model.calc_leaf_indexes(data))


def test_threshold_of_probability() -> None:
    model = catboost.CatBoostClassifier(**SETTINGS).fit(X, (Z > 0).astype(int))
    model.set_probability_threshold(0.8)
    np.testing.assert_array_equal(hbc.convert(model, "numpy").predict(X), model.predict(X))


def test_saved_models_need_no_catboost(tmp_path: Path) -> None:
    model = catboost.CatBoostClassifier(**SETTINGS).fit(X, Y3)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.classes_, model.classes_)
    compiled.save(tmp_path / "model.hbc")
    np.testing.assert_allclose(hbc.load(tmp_path / "model.hbc").predict_proba(X), model.predict_proba(X), rtol=1e-9)


def test_what_is_refused() -> None:
    categories = np.where(np.nan_to_num(X[:, :1]) > 0, "a", "b").astype(object)
    frame = np.concatenate([categories, X.astype(object)], axis=1)
    one_hot = catboost.CatBoostRegressor(**SETTINGS, cat_features=[0]).fit(frame, Z + (categories[:, 0] == "a"))
    with pytest.raises(hbc.UnsupportedOperatorError, match="OneHotFeature"):
        hbc.convert(one_hot, "numpy")
    log_loss = catboost.CatBoostClassifier(**SETTINGS, loss_function="MultiLogloss").fit(
        X, np.stack([Z > 0, Z > 1], 1).astype(int)
    )
    with pytest.raises(hbc.UnsupportedOperatorError, match="MultiLogloss"):
        hbc.convert(log_loss, "numpy")
    with pytest.raises(hbc.NotFittedError):
        hbc.convert(catboost.CatBoostRegressor(), "numpy")
