"""What scikit-learn's tools ask of an estimator: its kind, its score, and the options of its `predict`."""

from __future__ import annotations

import sys
from typing import Any

from hbc.parser.registry import public_name

SCORES = {
    "ClassifierMixin.score": "accuracy",
    "RegressorMixin.score": "r2",
    "CatBoostClassifier.score": "accuracy",
    "CatBoostRegressor.score": "r2",
}
"""The function that is an estimator's `score`, by its name → the metric of `predict` that it is."""
OPTIONS = {
    "lightgbm": {"raw_score": {"raw_score": True}, "apply": {"pred_leaf": True}},
    "xgboost": {"raw_score": {"output_margin": True}, "apply": {"pred_leaf": True}},
}
"""Library → method of a compiled model → the options of `predict` that stand for it, where the source has no method of this name."""
OF_PIPELINES = {"lightgbm": ("raw_score", "apply"), "xgboost": ("raw_score",)}
"""Library → those of the methods that a Pipeline has too. (`predict` of XGBoost's estimators knows no pred_leaf.)"""


def kind_of(model: Any) -> str:
    """The kind of an estimator in scikit-learn's words, such as "classifier"; "" if it has none (a transformer, a booster)."""
    # CatBoost's tags import scikit-learn, which a process without it need not pay for.
    tags = getattr(model, "__sklearn_tags__", None) if "sklearn" in sys.modules else None
    try:
        kind = getattr(model, "_estimator_type", None) if tags is None else tags().estimator_type
    except (AttributeError, TypeError):  # an estimator whose tags cannot be asked for: of an older library, for example
        kind = None
    return str(kind or "")


def options_of(model: Any) -> str:
    """The library whose options the `predict` of a Pipeline hands on to its last step, if that is LightGBM or XGBoost; otherwise ""."""
    steps = getattr(model, "steps", None)
    if public_name(type(model)) != "sklearn.pipeline.Pipeline" or not steps:
        return ""
    library = public_name(type(steps[-1][1])).partition(".")[0]
    return library if library in ("lightgbm", "xgboost") else options_of(steps[-1][1])


def score_of(model: Any) -> str:
    """The metric that an estimator's `score` is: "accuracy" or "r2"; "" for any other, and where there is none."""
    function = getattr(type(model), "score", None)
    name = getattr(function, "__qualname__", "")
    if name in SCORES:
        return SCORES[name]
    if name == "BaseSearchCV.score":
        return "" if model.scoring else score_of(getattr(model, "best_estimator_", None))
    if getattr(model, "steps", None) and type(model).__name__ == "Pipeline":
        return score_of(model.steps[-1][1])
    return score_of(model.estimator) if type(model).__name__ == "FrozenEstimator" else ""
