"""Linear models."""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from estimators.case import Case


def _binary():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


def _logistic(**options):
    X, y = _binary()
    return LogisticRegression(max_iter=1000, **options).fit(X, y), X[:200]


CASES = [Case("LogisticRegression binary", _logistic), Case("LogisticRegression l1", lambda: _logistic(l1_ratio=1, solver="saga"))]
