"""Models as older versions of XGBoost wrote them, read by the installed one."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from installed import older

import hbc
from hbc.ir.graph import Graph, Input
from hbc.ir.types import N
from hbc.parser import xgboost
from hbc.parser.files import read_model

KINDS = ["c", "q", "q", "q"]


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[:, 0] = rng.integers(0, 30, 300)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, np.isin(X[:, 0] % 5, [1, 3]) + np.nan_to_num(X[:, 1]) * np.nan_to_num(X[:, 2])


@pytest.mark.skipif(not older("xgboost", 3, 4), reason="the installed version writes these documents itself")
def test_dart_as_version_3_4_writes_it() -> None:
    """A gbtree whose model has the weights. Its margins are those of a DMatrix, also in place. (Compared with models that 3.4.1 wrote.)"""
    X, y = data()
    booster = xgb.XGBRegressor(n_estimators=20, booster="dart", rate_drop=0.5, random_state=0).fit(X, y).get_booster()
    document = copy.deepcopy(xgboost.read_model(booster).document)
    old = document["gradient_booster"]
    model = {**old["gbtree"]["model"], "weight_drop": old["weight_drop"]}
    learner = xgboost.Learner({**document, "gradient_booster": {"name": "gbtree", "model": model}})
    x = Input("X", "f32", (N, X.shape[1]))()
    expected = booster.predict(xgb.DMatrix(X), output_margin=True)
    for in_place in (False, True):
        margin = xgboost.BoosterOutputs(learner, in_place=in_place).margin(x)
        found = Graph((x,), {"predict": (margin,)}).evaluate(X.astype(np.float32))["predict"][0]
        np.testing.assert_array_equal(found[:, 0], expected)


def as_version_2(document: dict[str, Any]) -> dict[str, Any]:
    """The document as XGBoost 2.1 wrote it: one base score for all outputs, as a number; no table of categories; NaN as the threshold of a
    category set; vector leaves among the weights of nodes. (It was compared with models that 2.1 wrote.)"""
    learner = document["learner"]
    parameters = learner["learner_model_param"]
    parameters["base_score"] = parameters["base_score"].strip("[]").split(",")[0]
    booster = learner["gradient_booster"]
    model = booster["gbtree"]["model"] if "gbtree" in booster else booster["model"]
    model.pop("cats", None)
    for tree in model.get("trees", ()):
        tree.pop("leaf_weights", None)
        for node in tree["categories_nodes"]:
            tree["split_conditions"][node] = float("nan")
    document["version"] = [2, 1, 4]
    return document


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "squared error": ({"base_score": 0.25}, lambda y: y),
    "logistic": ({"objective": "binary:logistic", "base_score": 0.3}, lambda y: y > 0.5),
    "poisson": ({"objective": "count:poisson", "base_score": 1.5}, np.exp),
    "classes": ({"objective": "multi:softprob", "num_class": 3, "base_score": 0.5}, lambda y: np.digitize(y, [0, 1])),
    "dart": ({"booster": "dart", "rate_drop": 0.5, "base_score": 0.5}, lambda y: y),
    "gblinear": ({"booster": "gblinear", "base_score": 0.5}, lambda y: y),
    "forest": ({"num_parallel_tree": 3, "subsample": 0.5, "base_score": 0.5}, lambda y: y),
    "two outputs": ({"base_score": 0.5}, lambda y: np.stack([y, y * y], axis=1)),
    "category sets": ({"max_cat_to_onehot": 1, "base_score": 0.5}, lambda y: y),
    "categories one-hot": ({"max_cat_to_onehot": 100, "base_score": 0.5}, lambda y: y),
}


@pytest.mark.parametrize("name", CASES)
def test_models_of_version_2(name: str, tmp_path: Path) -> None:
    parameters, target = CASES[name]
    X, y = data()
    kinds = KINDS if "categor" in name else None
    rows = xgb.DMatrix(X, target(y), feature_types=kinds, enable_categorical=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gblinear
        now = xgb.train({"nthread": 1, "max_depth": 4, **parameters}, rows, 8)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(as_version_2(json.loads(now.save_raw("json")))))
    compiled = hbc.convert(read_model(path), "numpy")
    np.testing.assert_allclose(compiled.predict(X), now.predict(rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled.raw_score(X), now.predict(rows, output_margin=True), rtol=1e-5, atol=1e-6)
    if "gblinear" not in name:
        np.testing.assert_array_equal(compiled.apply(X), now.predict(rows, pred_leaf=True))


@pytest.mark.skipif(older("xgboost", 3, 2), reason="older versions read what they wrote")
def test_vector_leaves_of_version_2_are_refused(tmp_path: Path) -> None:
    """XGBoost 3.2 does not raise an error for such a file: it crashes."""
    X, y = data()
    now = xgb.train({"multi_strategy": "multi_output_tree", "nthread": 1}, xgb.DMatrix(X, np.stack([y, -y], axis=1)), 2)
    path = tmp_path / "model.json"
    document = json.loads(now.save_raw("json"))
    path.write_text(json.dumps(document))
    read_model(path)
    path.write_text(json.dumps(as_version_2(document)))
    with pytest.raises(hbc.ArtifactError, match=r"before XGBoost 3\.2"):
        read_model(path)


@pytest.mark.parametrize("score", ["0E0", "1E0", "[1E-7]", "9.999999E-1"])
def test_base_score_at_the_ends(score: str) -> None:
    """XGBoost estimates 0 or 1 if all labels are equal. From 3.2 on it moves them away from 0 and 1 before it takes the logarithm."""
    X, y = data()
    model = xgb.train({"objective": "binary:logistic", "base_score": 0.5, "nthread": 1}, xgb.DMatrix(X, y > 0.5), 3)
    document = json.loads(model.save_raw("json"))
    document["learner"]["learner_model_param"]["base_score"] = score
    model = xgb.Booster(model_file=bytearray(json.dumps(document), "utf-8"))
    if older("xgboost", 3, 2) and score in ("0E0", "1E0"):
        for use in (lambda: model.predict(xgb.DMatrix(X)), lambda: hbc.convert(model, "numpy")):
            with pytest.raises(xgb.core.XGBoostError, match=r"base_score must be in \(0,1\)"):
                use()
        return
    expected = model.predict(xgb.DMatrix(X), output_margin=True)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(hbc.convert(model, "numpy").raw_score(X), expected, rtol=1e-5, atol=1e-6)


def test_children_apart_are_refused() -> None:
    """XGBoost takes the node behind the left child for the right child, and does not read right_children."""
    X, y = data()
    model = xgb.train({"max_depth": 1, "base_score": 0.5, "nthread": 1}, xgb.DMatrix(X, y), 1)
    document = json.loads(model.save_raw("json"))
    (tree,) = document["learner"]["gradient_booster"]["model"]["trees"]
    tree["left_children"][0], tree["right_children"][0] = 2, 1
    with pytest.raises(hbc.UnsupportedOperatorError, match="side by side"):
        hbc.convert(xgb.Booster(model_file=bytearray(json.dumps(document), "utf-8")), "numpy")
