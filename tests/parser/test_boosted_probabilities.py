"""Boosted probabilities at the ends: each is 0, 1 and without a logarithm exactly where the source's is, for margins (sums of leaves) of
every size. The sources compute 1 / (1 + e^-x), which is 1 from 36.7 on (float32: 16.6) and 0 below -709.8, unless they say otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier

import hbc
from hbc.ir.types import Array

# Around the ends of float32 and of float64, where 1 + e^-x rounds to 1 or e^-x overflows.
ENDS = [
    *np.linspace(16, 18, 24),
    *np.linspace(36, 38, 24),
    *np.linspace(87, 105, 10),
    *np.linspace(708, 712, 10),
    744,
    746,
    760,
]
MARGINS = np.sort([0.0, 1.0, -1.0, *ENDS, *np.negative(ENDS)])
X = np.linspace(-1, 1, len(MARGINS), dtype=np.float32)[:, None]
CLASSES = (X[:, 0] > 0).astype(int)
THREE = np.digitize(X[:, 0], [-0.3, 0.3])


def histogram() -> Any:
    model = HistGradientBoostingClassifier(max_iter=1, max_leaf_nodes=None, min_samples_leaf=1, max_bins=255).fit(X, CLASSES)
    return with_histogram_margins(model)


def with_histogram_margins(model: Any) -> Any:
    """The model with margins of every size, as far as its tree has leaves."""
    nodes = model._predictors[0][0].nodes
    leaves = np.flatnonzero(nodes["is_leaf"])
    nodes["value"][leaves] = (
        MARGINS[np.linspace(0, len(MARGINS) - 1, len(leaves)).astype(int)] - model._baseline_prediction.ravel()
    )
    return model


def deep(y: Array, **options: Any) -> Any:
    """One tree with a leaf for each row, which holds that row's margin."""
    model = GradientBoostingClassifier(n_estimators=1, max_depth=None, init="zero", learning_rate=1.0, **options)
    model.fit(X, y)
    rows = np.random.default_rng(0).permutation(len(X))
    for k, wrapped in enumerate(model.estimators_[0]):
        regressor = type(wrapped)(random_state=0).fit(X, rows)
        regressor.tree_.value[regressor.apply(X), 0, 0] = np.roll(MARGINS, 7 * k)
        model.estimators_[0, k] = regressor
    return model


def lightgbm_classifier(y: Array, **options: Any) -> Any:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMClassifier(
        n_estimators=1, num_leaves=200, min_child_samples=1, min_child_weight=0, min_data_in_bin=1, verbose=-1, **options
    ).fit(X, y)
    for tree, count in enumerate(
        model.booster_.trees_to_dataframe().groupby("tree_index")["left_child"].apply(lambda c: c.isna().sum())
    ):
        for leaf in range(count):
            model.booster_.set_leaf_output(tree, leaf, float(MARGINS[(leaf * len(MARGINS)) // count + tree]))
    return model


def xgboost_classifier() -> Any:
    """XGBClassifier's own margins are far smaller: leaves of a regressor under the objective of a classifier."""
    xgboost = pytest.importorskip("xgboost")
    options = {
        "n_estimators": 1,
        "max_depth": 9,
        "learning_rate": 1.0,
        "reg_lambda": 0,
        "min_child_weight": 0,
        "base_score": 0.0,
    }
    document = json.loads(xgboost.XGBRegressor(**options).fit(X, MARGINS).get_booster().save_raw("json"))
    document["learner"]["objective"]["name"] = "binary:logistic"
    document["learner"]["learner_model_param"]["base_score"] = "5E-1"
    model = xgboost.XGBClassifier()
    model.load_model(bytearray(json.dumps(document).encode()))
    return model


def catboost_classifier(loss: str) -> Callable[[], Any]:
    def fitted() -> Any:
        catboost = pytest.importorskip("catboost")
        options = {
            "iterations": 3,
            "depth": 2,
            "learning_rate": 1,
            "verbose": 0,
            "allow_writing_files": False,
            "thread_count": 1,
        }
        model = catboost.CatBoostClassifier(**options, loss_function=loss).fit(X, CLASSES if loss == "Logloss" else THREE)
        largest = np.abs(model.predict(X, prediction_type="RawFormulaVal")).max()
        model.set_scale_and_bias(760 / largest, model.get_scale_and_bias()[1])
        return model

    return fitted


def catboost_at(margin: float) -> Callable[[], Any]:
    """All margins near this one."""

    def fitted() -> Any:
        model = catboost_classifier("Logloss")()
        model.set_scale_and_bias(0.3, [margin])
        return model

    return fitted


MODELS: dict[str, Callable[[], Any]] = {
    "HistGradientBoosting": histogram,
    "GradientBoosting": lambda: deep(CLASSES),
    "GradientBoosting, exponential loss": lambda: deep(CLASSES, loss="exponential"),
    "GradientBoosting of three": lambda: deep(THREE),
    "OneVsRest": lambda: OneVsRestClassifier(HistGradientBoostingClassifier(max_iter=1, min_samples_leaf=1)).fit(X, THREE),
    "MultiOutput": lambda: MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=1)).fit(
        X, np.c_[CLASSES, 1 - CLASSES]
    ),
    "LightGBM": lambda: lightgbm_classifier(CLASSES),
    "LightGBM of three": lambda: lightgbm_classifier(THREE),
    "LightGBM, one against all": lambda: lightgbm_classifier(THREE, objective="multiclassova"),
    "LightGBM rf": lambda: lightgbm_classifier(CLASSES, boosting_type="rf", bagging_freq=1, bagging_fraction=0.9),
    "LightGBM dart": lambda: lightgbm_classifier(CLASSES, boosting_type="dart"),
    "LightGBM goss": lambda: lightgbm_classifier(CLASSES, data_sample_strategy="goss"),
    "XGBoost": xgboost_classifier,
    "CatBoost": catboost_classifier("Logloss"),
    "CatBoost near 36.7": catboost_at(36.7),
    "CatBoost near -709": catboost_at(-709.0),
    "CatBoost of three": catboost_classifier("MultiClass"),
    "CatBoost, one against all": catboost_classifier("MultiClassOneVsAll"),
}


def assert_same_ends(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True) if isinstance(expected, list) else [(found, expected)]:
        for end in (0, 1, -np.inf):
            np.testing.assert_array_equal(a == end, b == end, err_msg=f"{end}")
        np.testing.assert_allclose(a, b, rtol=1e-5 if b.dtype == np.float32 else 1e-7, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_the_ends(name: str, backend: str) -> None:
    model = MODELS[name]()
    if isinstance(model, OneVsRestClassifier | MultiOutputClassifier):
        for each in model.estimators_:
            with_histogram_margins(each)
    compiled = hbc.convert(model, backend)
    for method in ("predict_proba", "predict_log_proba", "staged_predict_proba"):
        if hasattr(compiled, method) and hasattr(model, method):
            for rows in (len(X), 1):
                given = X[:rows]
                with np.errstate(all="ignore"):
                    expected = getattr(model, method)(given)
                    found = getattr(compiled, method)(given)
                    if method.startswith("staged"):
                        found, expected = (np.stack(list(each), axis=1) for each in (found, expected))
                    assert_same_ends(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_that_are_no_numbers(backend: str) -> None:
    """Linear leaves make NaN of infinities. Once OneVsRestClassifier meets such a score, it finds no larger one; hbc took the first NaN."""
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4))
    y = np.digitize(rows[:, 0] + rows[:, 1] * rows[:, 2], [-1, -0.3, 0.5])
    new = lightgbm.LGBMClassifier(n_estimators=5, linear_tree=True, num_leaves=5, verbose=-1, n_jobs=1)
    source = OneVsRestClassifier(new).fit(rows, y)
    infinite = np.where(rng.random(rows.shape) < 0.15, rng.choice([np.inf, -np.inf, 1e300], rows.shape), rows)
    unknown = np.isnan(np.stack([member.predict_proba(infinite)[:, 1] for member in source.estimators_], axis=1))
    assert unknown[:, -1].any()
    assert unknown[:, 0].any()
    assert (unknown.any(1) & ~unknown[:, -1]).any()
    model = hbc.convert(source, backend)
    for given in (rows, infinite):
        np.testing.assert_array_equal(model.predict(given), source.predict(given), strict=True)
