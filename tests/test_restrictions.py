"""Inputs that Hummingbird 0.4.12 restricts, or computes wrong without an error (marked S). hbc agrees with the source for all of them.

Most of them are rows of THE table, which is tested on every backend (test_estimators.py). The few others are tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS
from installed import ABSENT
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import OneHotEncoder
from test_estimators import CASES

import hbc

RESTRICTIONS: dict[str, tuple[str, ...]] = {
    "string class labels": ("RandomForestClassifier 4 string classes", "LogisticRegression strings", "SVC ovo, strings"),
    "multi-output classification": ("RandomForestClassifier multi-output", "KNeighborsClassifier several outputs, strings"),
    "passthrough, drop and None steps": (
        "Pipeline that ends with passthrough",
        "Pipeline that ends with None",
        "VotingClassifier soft, dropped",
    ),
    "pipelines nested in unions": ("FeatureUnion", "Pipeline nested, with steps that do nothing", "ColumnTransformer nested"),
    "masks, slices and callables as columns": (
        "ColumnTransformer slices",
        "ColumnTransformer masks",
        "ColumnTransformer callables",
    ),
    "sparse input": ("SVC fitted on a sparse matrix", "XGBRegressor sparse matrix", "TfidfTransformer"),
    "NaN in any tree library (S)": (
        "RandomForestClassifier fitted with NaN, 2 classes",
        "HistGradientBoostingClassifier missing",
        "LGBMClassifier binary",
        "XGBClassifier binary",
    ),
    "HistGradientBoosting categorical splits (S)": (
        "HistGradientBoostingRegressor categories",
        "HistGradientBoostingClassifier categories",
    ),
    "HistGradientBoosting poisson and gamma links (S)": (
        "HistGradientBoostingRegressor poisson",
        "HistGradientBoostingRegressor gamma",
    ),
    "GradientBoosting init estimator, exponential loss (S)": (
        "GradientBoostingClassifier init estimator",
        "GradientBoostingRegressor init estimator",
        "GradientBoostingClassifier exponential",
    ),
    "IsolationForest max_features < 1 (S)": ("IsolationForest max_features",),
    "LightGBM categorical splits, one-hot and many-vs-many (S)": (
        "LGBMRegressor categorical one-hot",
        "LGBMRegressor categorical",
    ),
    "LightGBM rf (S), dart": ("LGBMClassifier rf", "LGBMRegressor rf", "LGBMClassifier dart", "LGBMRegressor dart"),
    "LightGBM poisson, gamma, tweedie links (S)": ("LGBMRegressor poisson", "LGBMRegressor gamma", "LGBMRegressor tweedie"),
    "LightGBM multiclassova, sigmoid (S)": ("LGBMClassifier multiclassova", "LGBMClassifier sigmoid"),
    "LightGBM linear trees (S)": ("LGBMRegressor linear_tree", "LGBMClassifier linear_tree"),
    "LightGBM class labels other than 0..n-1 (S)": (
        "LGBMClassifier integer labels",
        "LGBMClassifier string labels",
        "LGBMClassifier float labels",
    ),
    "LightGBM Booster of binary and multiclass models (S)": ("LightGBM Booster binary", "LightGBM Booster multiclass"),
    "LightGBM zero_as_missing, early stopping (S)": (
        "LGBMRegressor zero_as_missing",
        "LGBMClassifier zero_as_missing",
        "LGBMClassifier early stopping",
        "LightGBM Booster best_iteration",
    ),
    "XGBoost base_score (S)": ("XGBClassifier base_score", "XGBRegressor base_score", "XGBRegressor base_score poisson"),
    "XGBoost missing= (S)": (
        "XGBRegressor missing=0",
        "XGBRegressor missing=-999",
        "XGBRegressor missing=inf",
        "XGBRegressor missing=0.1",
    ),
    "XGBoost count, gamma, tweedie links (S)": (
        "XGBRegressor count:poisson",
        "XGBRegressor reg:gamma",
        "XGBRegressor reg:tweedie",
    ),
    "XGBoost dart, num_parallel_tree, best_iteration (S)": (
        "XGBClassifier dart",
        "XGBRegressor dart normalized",
        "XGBClassifier forest boosted",
        "XGBClassifier early stopping",
    ),
    "XGBoost categorical splits, native Booster, feature names, vector leaves, gblinear": (
        "XGBRegressor categorical",
        "XGBRegressor categorical one-hot",
        "XGBoost Booster multi:softprob",
        "XGBRegressor frame with categories",
        "XGBRegressor multi_output_tree",
        "XGBClassifier gblinear",
    ),
    "OneHotEncoder drop, min_frequency, max_categories": (
        "OneHotEncoder drop first",
        "OneHotEncoder drop if_binary",
        "OneHotEncoder drop chosen",
        "OneHotEncoder min_frequency",
        "OneHotEncoder max_categories",
    ),
    "OneHotEncoder handle_unknown, each value": (
        "OneHotEncoder ignore of strings",
        "OneHotEncoder infrequent_if_exist of strings",
        "OneHotEncoder warn of strings",
    ),
    "OneHotEncoder float categories (S), string prefixes": ("OneHotEncoder", "OneHotEncoder of fixed-width strings"),
    "SVC sigmoid kernel (S), probability=True (S), ovo and ovr": (
        "SVC sigmoid",
        "SVC probability",
        "SVC ovo, strings",
        "SVC break_ties",
    ),
    "KNN p, metrics, weights": (
        "KNeighborsClassifier brute, manhattan",
        "KNeighborsClassifier brute, minkowski 3",
        "KNeighborsClassifier brute, minkowski 1.5, weights",
        "KNeighborsClassifier brute, distance",
        "KNeighborsRegressor brute, distance",
    ),
    "SimpleImputer strings, add_indicator (S)": ("SimpleImputer of strings", "SimpleImputer mean indicator"),
    "Normalizer zero rows (S), MinMax clip (S)": ("Normalizer l1", "Normalizer l2", "Normalizer max", "MinMaxScaler clip"),
    "FunctionTransformer with a function (S)": ("FunctionTransformer log1p", "FunctionTransformer lambda"),
    "Stacking and Bagging of several classes (S)": (
        "StackingClassifier",
        "StackingClassifier predict",
        "BaggingClassifier 4 string classes",
    ),
}
X = np.random.default_rng(0).normal(size=(60, 3))


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_it_is_in_the_table(restriction: str) -> None:
    absent = [name for name in RESTRICTIONS[restriction] if name not in CASES]
    if absent and ABSENT:
        pytest.skip(f"the table lacks the families of {', '.join(sorted(ABSENT))}")
    assert absent == []


def categories() -> tuple[Any, Any]:
    words = np.array(["東京", "Zürich", "Zur", "Zürich ", "a" * 40, "a" * 41], object)  # prefixes of each other, too
    rows = np.random.default_rng(0).choice(words, (60, 2))
    return OneHotEncoder(sparse_output=False).fit(rows), rows


def zero_cuts() -> tuple[Any, Any]:
    """Thresholds and leaves that are exactly 0."""
    rows = np.repeat([[-1e-300], [-0.0], [0.0], [5e-324], [1.0]], 20, axis=0)
    return HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=1).fit(rows, rows[:, 0] > 0), rows


def few_and_many() -> tuple[Any, Any]:
    """Neighbours of two batches: one is larger than the training data, one smaller."""
    return KNeighborsClassifier(3).fit(X[:20], X[:20, 0] > 0), X


NOT_IN_THE_TABLE: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "non-ASCII categories": (categories, "transform"),
    "HistGradientBoosting threshold or leaf exactly 0 (S)": (zero_cuts, "predict"),
    "KNN of any batch size": (few_and_many, "predict_proba"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("restriction", NOT_IN_THE_TABLE)
def test_it_agrees_with_the_source(restriction: str, backend: str) -> None:
    make, method = NOT_IN_THE_TABLE[restriction]
    model, rows = make()
    compiled = hbc.convert(model, backend)
    for part in (rows, rows[:1], rows[:7]):
        np.testing.assert_allclose(getattr(compiled, method)(part), getattr(model, method)(part), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pca_does_not_write_into_the_caller_s_array(backend: str) -> None:
    rows = X.copy()
    hbc.convert(PCA(2).fit(X), backend).transform(rows)
    np.testing.assert_array_equal(rows, X)
