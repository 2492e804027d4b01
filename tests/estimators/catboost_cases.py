"""CatBoost: losses, growing policies, missing values, labels. CatBoost logs nothing and writes no files here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from estimators.case import Case

RNG = np.random.default_rng(11)
X = RNG.normal(size=(200, 5))
X[RNG.random(X.shape) < 0.1] = np.nan
Z = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1] * 2)
Y3 = np.digitize(Z, [-1, 1])


def fitted(name: str, y: Any, **options: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        import catboost

        settings = {
            "iterations": 12,
            "depth": 4,
            "verbose": 0,
            "allow_writing_files": False,
            "thread_count": 1,
            "random_seed": 0,
        }
        merged = {**settings, **options}
        model = catboost.CatBoost(merged) if name == "CatBoost" else getattr(catboost, name)(**merged)
        return model.fit(X, y), X

    return make


def classifier(about: str, y: Any, **options: Any) -> Case:
    return Case(f"CatBoostClassifier: {about}", fitted("CatBoostClassifier", y, **options))


def regressor(about: str, y: Any, **options: Any) -> Case:
    return Case(f"CatBoostRegressor: {about}", fitted("CatBoostRegressor", y, **options))


CASES = [
    classifier("2 classes", (Z > 0).astype(int)),
    classifier("2 classes of strings, Lossguide", np.where(Z > 0, "yes", "no"), grow_policy="Lossguide", max_leaves=9),
    classifier("3 classes", Y3),
    classifier("3 classes of strings, one against all", np.array(["a", "b", "c"])[Y3], loss_function="MultiClassOneVsAll"),
    classifier("2 classes, CrossEntropy", (Z > 0).astype(float), loss_function="CrossEntropy"),
    regressor("squared error", Z),
    regressor("NaN above every border", Z, nan_mode="Max"),
    regressor("Poisson", np.abs(np.round(Z)), loss_function="Poisson"),
    regressor("Tweedie, Depthwise", np.abs(Z), loss_function="Tweedie:variance_power=1.5", grow_policy="Depthwise"),
    regressor("absolute error", Z, loss_function="MAE"),
    regressor("two outputs", np.stack([Z, -Z], axis=1), loss_function="MultiRMSE"),
    regressor("mean and variance", Z, loss_function="RMSEWithUncertainty"),
    Case("CatBoost: raw values", fitted("CatBoost", (Z > 0).astype(int), loss_function="Logloss")),
    Case("CatBoostRanker: raw values", lambda: ranker()),
]


def ranker() -> tuple[Any, Any]:
    import catboost

    model = catboost.CatBoostRanker(iterations=5, depth=3, verbose=0, allow_writing_files=False, thread_count=1)
    return model.fit(X, Y3, group_id=np.arange(200) // 10), X
