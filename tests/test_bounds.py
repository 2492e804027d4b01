"""How large values inside a graph can be: what decides whether a computed value is tested at every call, in numpy."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import hbc

MEMBERS = {
    "softmax": LogisticRegression(max_iter=1000),
    "naive Bayes": GaussianNB(),
    "scaled": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "logistic": OneVsRestClassifier(LogisticRegression(max_iter=1000)),
    "calibrated": CalibratedClassifierCV(LogisticRegression(max_iter=1000), cv=2),
    "isotonic": CalibratedClassifierCV(LogisticRegression(max_iter=1000), cv=2, method="isotonic"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_probabilities_are_known_to_be_small(name: str) -> None:
    """The estimator on top rejects NaN and ±inf, which ordinary inputs cannot give: no guard computes the members in numpy."""
    X, y = load_iris(return_X_y=True)
    model: Any = StackingClassifier([("member", MEMBERS[name]), ("tree", DecisionTreeClassifier(max_depth=3))], cv=2).fit(X, y)
    for variant in hbc.convert(model, "numpy").variants.values():
        assert variant.plan.limits.guards
        assert all(guard.safe >= 1e4 for guard in variant.plan.limits.guards)
