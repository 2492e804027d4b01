"""Feature selectors."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import (
    RFE,
    RFECV,
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFromModel,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    SequentialFeatureSelector,
    VarianceThreshold,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from estimators.case import Case


def _data():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X)[:, :12], y


def _fit(selector):
    X, y = _data()
    return selector.fit(X, y), X[:200]


def _logistic():
    return LogisticRegression(max_iter=200)


def _integers():
    X, y = _data()
    X = np.round(X * 100).astype(np.int64)
    return SelectKBest(k=5).fit(X, y), X[:200]


def _missing():
    X, y = _data()
    X[::7, 3] = np.nan
    return VarianceThreshold(0.5).fit(X * np.linspace(0.1, 2, 12), y), X[:200]


def _prefit():
    X, y = _data()
    return SelectFromModel(_logistic().fit(X, y), threshold="median", prefit=True).fit(X, y), X[:200]


def _pipeline():
    X, y = _data()
    return make_pipeline(StandardScaler(), SelectKBest(k=6), _logistic()).fit(X, y), X[:200]


CASES = [
    Case("SelectKBest", lambda: _fit(SelectKBest(k=4))),
    Case("SelectKBest all", lambda: _fit(SelectKBest(k="all"))),
    Case("SelectKBest of integers", _integers),
    Case("SelectPercentile", lambda: _fit(SelectPercentile(percentile=30))),
    Case("SelectFpr", lambda: _fit(SelectFpr(alpha=1e-30))),
    Case("SelectFdr", lambda: _fit(SelectFdr(alpha=1e-30))),
    Case("SelectFwe", lambda: _fit(SelectFwe(alpha=1e-30))),
    Case("GenericUnivariateSelect", lambda: _fit(GenericUnivariateSelect(mode="k_best", param=3))),
    Case("VarianceThreshold with missing values", _missing),
    Case("SelectFromModel", lambda: _fit(SelectFromModel(_logistic()))),
    Case("SelectFromModel prefit", _prefit),
    Case("RFE", lambda: _fit(RFE(_logistic(), n_features_to_select=4))),
    Case("RFECV", lambda: _fit(RFECV(_logistic(), cv=2, step=4))),
    Case("SequentialFeatureSelector", lambda: _fit(SequentialFeatureSelector(_logistic(), n_features_to_select=2, cv=2))),
    Case("SelectKBest between StandardScaler and LogisticRegression", _pipeline),
]
