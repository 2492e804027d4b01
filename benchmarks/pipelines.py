"""Real pipelines on real data: the demo's, and the end-to-end rows of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightgbm import LGBMClassifier
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, PolynomialFeatures, StandardScaler
from xgboost import XGBClassifier

from datasets import load_titanic


@dataclass(frozen=True)
class Workload:
    """A pipeline. `make()` fits it and returns (pipeline, rows to score). `method`: the method that users call."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    method: str = "predict_proba"


def _arrays(load: Callable[..., Any], model: Any) -> tuple[Any, Any]:
    X, y = load(return_X_y=True)
    return model.fit(X, y), X


NUMBERS = ["pclass", "age", "sibsp", "parch", "fare"]
TEXTS = ["sex", "embarked"]


def _titanic(classifier: Any, ordinal: bool = False) -> tuple[Any, Any]:
    """A pipeline and its rows: numbers are imputed and scaled, strings are imputed and encoded, then comes the classifier. Labels are
    strings."""
    X, y = load_titanic(download=False)
    encoder = (
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        if ordinal
        else OneHotEncoder(handle_unknown="ignore")
    )
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), NUMBERS),
            ("texts", make_pipeline(SimpleImputer(strategy="most_frequent"), encoder), TEXTS),
        ]
    )
    if isinstance(classifier, XGBClassifier):
        y = (y == "1").astype(int)  # XGBoost takes integer labels only
    return make_pipeline(columns, classifier).fit(X, y), X


PIPELINES = [
    Workload(
        "breast_cancer: scaler + logistic regression",
        lambda: _arrays(load_breast_cancer, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))),
    ),
    Workload(
        "digits: min-max + PCA + MLP",
        lambda: _arrays(load_digits, make_pipeline(MinMaxScaler(), PCA(32), MLPClassifier((64,), max_iter=60, random_state=0))),
    ),
    Workload(
        "diabetes: polynomial + ridge",
        lambda: _arrays(load_diabetes, make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())),
        "predict",
    ),
    Workload(
        "diabetes: gradient boosting",
        lambda: _arrays(load_diabetes, GradientBoostingRegressor(random_state=0)),
        "predict",
    ),
    Workload("titanic: frame + logistic regression", lambda: _titanic(LogisticRegression(max_iter=1000))),
    Workload("titanic: frame + LightGBM", lambda: _titanic(LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1))),
    Workload("titanic: frame + XGBoost", lambda: _titanic(XGBClassifier(n_estimators=100, max_depth=6, n_jobs=1))),
    Workload(
        "titanic: frame + HistGradientBoosting", lambda: _titanic(HistGradientBoostingClassifier(random_state=0), ordinal=True)
    ),
    Workload(
        "titanic: frame + random forest",
        lambda: _titanic(RandomForestClassifier(100, max_depth=8, random_state=0, n_jobs=1)),
    ),
]
