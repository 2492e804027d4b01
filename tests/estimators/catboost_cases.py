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
    classifier(
        "2 classes of strings, Focal", np.where(Z > 0, "yes", "no"), loss_function="Focal:focal_alpha=0.3;focal_gamma=2"
    ),
    classifier("3 labels", np.stack([Z > 0, Z > 1, Z < -1], axis=1).astype(int), loss_function="MultiLogloss"),
    classifier(
        "2 labels with names, MultiCrossEntropy",
        np.stack([Y3 / 2, Z > 0], axis=1),
        loss_function="MultiCrossEntropy",
        class_names=["many", "any"],
    ),
    regressor("squared error", Z),
    regressor("NaN above every border", Z, nan_mode="Max"),
    regressor("Poisson", np.abs(np.round(Z)), loss_function="Poisson"),
    regressor("Tweedie, Depthwise", np.abs(Z), loss_function="Tweedie:variance_power=1.5", grow_policy="Depthwise"),
    regressor("absolute error", Z, loss_function="MAE"),
    regressor("two outputs", np.stack([Z, -Z], axis=1), loss_function="MultiRMSE"),
    regressor("mean and variance", Z, loss_function="RMSEWithUncertainty"),
    Case("CatBoostRegressor: one-hot categories", lambda: of_categories("CatBoostRegressor", one_hot_max_size=20)),
    Case(
        "CatBoostClassifier: statistics of categories, of pairs of them, and of them and splits",
        lambda: of_categories(
            "CatBoostClassifier", max_ctr_complexity=3, one_hot_max_size=4, boosting_type="Plain", model_size_reg=0
        ),
    ),
    Case(
        "CatBoostRegressor: other statistics, NaN above", lambda: of_categories("CatBoostRegressor", nan_mode="Max", **OTHERS)
    ),
    Case("CatBoost: raw values", fitted("CatBoost", (Z > 0).astype(int), loss_function="Logloss")),
    Case("CatBoostRanker: raw values", lambda: ranker()),
]

OTHERS = {
    "max_ctr_complexity": 2,
    "simple_ctr": ["Borders:TargetBorderCount=3", "BinarizedTargetMeanValue", "Counter", "Buckets:TargetBorderCount=2"],
    "combinations_ctr": ["BinarizedTargetMeanValue:TargetBorderCount=4", "Counter", "Buckets:TargetBorderCount=2"],
}


def categories(rows: int, seed: int, unseen: int = 0) -> Any:
    """Strings, integers, a pandas categorical and a category that no tree reads, beside numbers with NaN."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    numbers = np.where(rng.random((rows, 2)) < 0.1, np.nan, rng.normal(size=(rows, 2)))
    texts = np.array([*"abcdefgh", "Straße", "東京" * 20, *map(str, range(unseen))], object)
    return pd.DataFrame(
        {
            "text": rng.choice(texts, rows),
            "x": numbers[:, 0],
            "integer": rng.integers(-6 - unseen, 6, rows),
            "category": pd.Categorical(rng.choice(["u", "v", "w", "z"][: 3 + bool(unseen)], rows)),
            "same": "same",
            "z": numbers[:, 1],
        }
    )


def of_categories(name: str, **options: Any) -> tuple[Any, Any]:
    """A model, and a frame that has categories that the model has not seen."""
    frame = categories(400, 0)
    x = np.nan_to_num(frame.x)
    y = 3.0 * (frame.category == "u") * (frame.integer % 3 - 1) + (frame.integer > 2) * (x > 0) + (frame.text == "a") * 2 + x
    y = y > 1 if name == "CatBoostClassifier" else y
    settings = {"iterations": 25, "depth": 4, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    import catboost

    model = getattr(catboost, name)(**settings, cat_features=["text", "integer", "category", "same"], **options)
    return model.fit(frame, y), categories(200, 1, 5)


def ranker() -> tuple[Any, Any]:
    import catboost

    model = catboost.CatBoostRanker(iterations=5, depth=3, verbose=0, allow_writing_files=False, thread_count=1)
    return model.fit(X, Y3, group_id=np.arange(200) // 10), X
