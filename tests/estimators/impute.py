"""Imputers of missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline

from estimators.case import Case

RANDOM = np.random.default_rng(2)
ROWS = 300
X = np.round(RANDOM.normal(size=(ROWS, 5)), 1)
GAPS = np.where(RANDOM.random(X.shape) < 0.2, np.nan, X)
GAPS[:, 3] = X[:, 3]
EMPTY = GAPS.copy()
EMPTY[:200, 1] = np.nan
CODED = np.where(np.isnan(GAPS), -1.0, GAPS)
INTEGERS = RANDOM.integers(-1, 5, size=(ROWS, 4))
TEXTS = np.array(["red", "green", "blue", "?"], dtype=object)[RANDOM.integers(0, 4, size=(ROWS, 3))]
TEXT_NANS = np.where(RANDOM.random(TEXTS.shape) < 0.2, np.nan, TEXTS)
TEXT_NONES = np.where(RANDOM.random(TEXTS.shape) < 0.2, None, TEXTS)
TEXT_BOTH = np.where(RANDOM.random(TEXTS.shape) < 0.2, np.nan, TEXT_NONES)
EMPTY_TEXTS = TEXT_NANS.copy()
EMPTY_TEXTS[:200, 1] = np.nan


def _fit(imputer, data=GAPS):
    return imputer.fit(data[:200]), data[100:]


def _float32(imputer, data=GAPS):
    return imputer.fit(data[:200].astype(np.float32)), data[100:]


STRATEGIES = ("mean", "median", "most_frequent", "constant")
SIMPLE = [
    case
    for strategy in STRATEGIES
    for case in (
        Case(f"SimpleImputer {strategy}", lambda s=strategy: _fit(SimpleImputer(strategy=s))),
        Case(f"SimpleImputer {strategy} indicator", lambda s=strategy: _fit(SimpleImputer(strategy=s, add_indicator=True))),
        Case(f"SimpleImputer {strategy} of an empty column", lambda s=strategy: _fit(SimpleImputer(strategy=s), EMPTY)),
        Case(
            f"SimpleImputer {strategy} keeps an empty column",
            lambda s=strategy: _fit(SimpleImputer(strategy=s, keep_empty_features=True, add_indicator=True), EMPTY),
        ),
        Case(f"SimpleImputer {strategy} for -1", lambda s=strategy: _fit(SimpleImputer(strategy=s, missing_values=-1), CODED)),
        Case(f"SimpleImputer {strategy} for 0.1", lambda s=strategy: _fit(SimpleImputer(strategy=s, missing_values=0.1), X)),
        Case(f"SimpleImputer {strategy} for NA", lambda s=strategy: _fit(SimpleImputer(strategy=s, missing_values=pd.NA))),
        Case(f"SimpleImputer {strategy} fitted on float32", lambda s=strategy: _float32(SimpleImputer(strategy=s))),
        Case(
            f"SimpleImputer {strategy} of integers",
            lambda s=strategy: _fit(SimpleImputer(strategy=s, missing_values=-1, add_indicator=True), INTEGERS),
        ),
    )
] + [
    Case("SimpleImputer constant 7.1", lambda: _fit(SimpleImputer(strategy="constant", fill_value=7.1))),
    Case(
        "SimpleImputer numpy 0.1",
        lambda: _fit(SimpleImputer(strategy="constant", fill_value=0.1, missing_values=np.float64(0.1)), X),
    ),
    Case("SimpleImputer constant of float32", lambda: _float32(SimpleImputer(strategy="constant", fill_value=np.float32(0.1)))),
    Case("SimpleImputer callable", lambda: _fit(SimpleImputer(strategy=np.max))),
    Case("SimpleImputer of whole data", lambda: _fit(SimpleImputer(add_indicator=True), X)),
    Case("SimpleImputer of strings", lambda: _fit(SimpleImputer(strategy="most_frequent"), TEXT_NANS)),
    Case("SimpleImputer of strings, constant", lambda: _fit(SimpleImputer(strategy="constant"), TEXT_NANS)),
    Case(
        "SimpleImputer of strings, given", lambda: _fit(SimpleImputer(strategy="constant", fill_value="a long word"), TEXT_NANS)
    ),
    Case("SimpleImputer of ?", lambda: _fit(SimpleImputer(strategy="most_frequent", missing_values="?"), TEXTS)),
    Case("SimpleImputer of None", lambda: _fit(SimpleImputer(strategy="constant", missing_values=None), TEXT_NONES)),
    Case("SimpleImputer of NA strings", lambda: _fit(SimpleImputer(strategy="constant", missing_values=pd.NA), TEXT_BOTH)),
    Case("SimpleImputer of NaN beside None", lambda: _fit(SimpleImputer(strategy="constant"), TEXT_BOTH)),
    Case("SimpleImputer of an empty string column", lambda: _fit(SimpleImputer(strategy="constant"), EMPTY_TEXTS)),
    Case("SimpleImputer of a frame", lambda: _fit(SimpleImputer(), pd.DataFrame(GAPS, columns=list("abcde")))),
]

INDICATORS = [
    Case("MissingIndicator", lambda: _fit(MissingIndicator())),
    Case("MissingIndicator all", lambda: _fit(MissingIndicator(features="all"))),
    Case("MissingIndicator sparse", lambda: _fit(MissingIndicator(sparse=True))),
    Case("MissingIndicator of new gaps", lambda: _fit(MissingIndicator(error_on_new=False))),
    Case("MissingIndicator for -1", lambda: _fit(MissingIndicator(missing_values=-1, error_on_new=False), CODED)),
    Case("MissingIndicator of integers", lambda: _fit(MissingIndicator(missing_values=-1), INTEGERS)),
    Case("MissingIndicator of ?", lambda: _fit(MissingIndicator(missing_values="?"), TEXTS)),
    Case("MissingIndicator of None", lambda: _fit(MissingIndicator(missing_values=None, features="all"), TEXT_NONES)),
]


def _iterative(data=GAPS, fit=_fit, max_iter=2, **options):
    return fit(IterativeImputer(max_iter=max_iter, random_state=0, **options), data)


def _labelled():
    model = make_pipeline(IterativeImputer(max_iter=2), LogisticRegression())
    return model.fit(GAPS[:200], X[:200, 0] > 0), GAPS[100:]


ITERATIVE = [
    Case("IterativeImputer", lambda: _iterative()),
    Case("IterativeImputer float32", lambda: _iterative(fit=_float32)),
    Case("IterativeImputer of new gaps", lambda: _iterative(np.vstack([X[:200], GAPS[100:]]))),
    Case(
        "IterativeImputer initially median, descending",
        lambda: _iterative(initial_strategy="median", imputation_order="descending"),
    ),
    Case(
        "IterativeImputer initially constant, random",
        lambda: _iterative(initial_strategy="constant", fill_value=0.5, imputation_order="random"),
    ),
    Case("IterativeImputer roman, few neighbours", lambda: _iterative(n_nearest_features=2, imputation_order="roman")),
    Case(
        "IterativeImputer arabic, limits",
        lambda: _iterative(imputation_order="arabic", min_value=-0.5, max_value=[0.1, 0.2, 0.3, 0.4, np.inf]),
    ),
    Case("IterativeImputer indicator, skip_complete", lambda: _iterative(add_indicator=True, skip_complete=True)),
    Case("IterativeImputer of an empty column", lambda: _iterative(EMPTY)),
    Case(
        "IterativeImputer keeps an empty column",
        lambda: _iterative(EMPTY, keep_empty_features=True, add_indicator=True),
        options={"transform": lambda model, X: model.transform(X.copy())},  # the source writes into a single row
    ),
    Case("IterativeImputer for -1", lambda: _iterative(CODED, missing_values=-1, estimator=LinearRegression())),
    Case("IterativeImputer of integers", lambda: _iterative(INTEGERS, missing_values=-1)),
    Case("IterativeImputer without rounds", lambda: _iterative(max_iter=0)),
    Case(
        "IterativeImputer by a forest",
        lambda: _iterative(GAPS[:, :2], estimator=RandomForestRegressor(2, max_depth=3, random_state=0)),
    ),
    Case("IterativeImputer before LogisticRegression", _labelled),
]

CASES = [*SIMPLE, *INDICATORS, *ITERATIVE]
