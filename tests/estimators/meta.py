"""Estimators over other estimators: voting, stacking, calibration, thresholds, self-training, transformed targets; and dummies."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from estimators.case import Case

FLOWERS = ["setosa", "versicolor", "virginica"]


def iris(model, names=None, rows=None):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    y = y if names is None else np.asarray(names)[y]
    return model.fit(X[rows], y[rows]) if rows is not None else model.fit(X, y), X


def cancer(model, names=None, width=6):
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :width]
    return model.fit(X, y if names is None else np.asarray(names)[y]), X[:200]


def several_labels(model, labels=3):
    X, Y = make_multilabel_classification(150, 5, n_classes=labels, random_state=0)
    return model.fit(scale(X), Y), scale(X)


def targets(model, outputs=0, link=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = X @ rng.normal(size=(5, 3)) + 0.1 * rng.normal(size=(200, 3)) + 1
    y = y if link is None else link(y / 4)
    return model.fit(X, y[:, 0] if outputs == 0 else y[:, :outputs]), X


def _logistic():
    return LogisticRegression(max_iter=1000)


def _tree():
    return DecisionTreeClassifier(max_depth=3, random_state=0)


def _classifiers():
    return [("linear", _logistic()), ("tree", _tree()), ("bayes", GaussianNB())]


def _regressors():
    return [("linear", LinearRegression()), ("tree", DecisionTreeRegressor(max_depth=4, random_state=0)), ("ridge", Ridge())]


def _voting(**options):
    return VotingClassifier(_classifiers(), **options)


def _dropped(model, **options):
    return model.set_params(tree="drop", **options)


def _frame(model):
    """Members that pick columns by name, and that take all."""
    X, y = load_iris(return_X_y=True)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    return model.fit(frame, np.asarray(FLOWERS)[y]), frame


def _by_name(*columns):
    return make_pipeline(ColumnTransformer([("some", StandardScaler(), list(columns))]), _logistic())


def _stacking(**options):
    return StackingClassifier(_classifiers(), cv=3, **options)


def _deep_forest():
    return RandomForestClassifier(5, max_depth=4, random_state=0)


def _dummy(model, outputs=1, names=None):
    X, y = load_iris(return_X_y=True)
    y = np.asarray(names)[y] if names is not None else y
    return model.fit(X[:120], y[:120] if outputs == 1 else np.stack([y[:120], y[30:150]], axis=1)), X


VOTING = [
    Case("VotingClassifier hard", lambda: iris(_voting())),
    Case("VotingClassifier hard, weights, strings", lambda: iris(_voting(weights=[1, 2.5, 1.5]), FLOWERS)),
    Case("VotingClassifier soft", lambda: iris(_voting(voting="soft"))),
    Case("VotingClassifier soft, weights, strings", lambda: iris(_voting(voting="soft", weights=[1, 2, 0.5]), FLOWERS)),
    Case("VotingClassifier soft, integer weights, binary", lambda: cancer(_voting(voting="soft", weights=[3, 2, 1]))),
    Case("VotingClassifier soft, dropped", lambda: iris(_dropped(_voting(voting="soft", weights=[1, 2, 3])))),
    Case("VotingClassifier hard, dropped", lambda: iris(_dropped(_voting()))),
    Case(
        "VotingClassifier soft, transform not flat",
        lambda: iris(_voting(voting="soft", flatten_transform=False)),
        methods=("predict", "predict_proba"),
    ),
    Case(
        "VotingClassifier of pipelines by name",
        lambda: _frame(VotingClassifier([("x", _by_name("c", "a")), ("y", _logistic())])),
    ),
    Case("VotingRegressor", lambda: targets(VotingRegressor(_regressors()))),
    Case("VotingRegressor weights", lambda: targets(VotingRegressor(_regressors(), weights=[1, 2, 0.5]))),
    Case("VotingRegressor dropped", lambda: targets(_dropped(VotingRegressor(_regressors(), weights=[1, 2, 4])))),
]
STACKING = [
    Case("StackingClassifier", lambda: iris(_stacking())),
    Case("StackingClassifier binary, strings", lambda: cancer(_stacking(), ["bad", "good"])),
    Case("StackingClassifier passthrough, strings", lambda: iris(_stacking(passthrough=True), FLOWERS)),
    Case("StackingClassifier predict", lambda: iris(_stacking(stack_method="predict", final_estimator=_tree()))),
    Case(
        "StackingClassifier decision_function",
        lambda: cancer(StackingClassifier([("a", _logistic()), ("b", LinearSVC())], cv=3)),
    ),
    Case("StackingClassifier dropped", lambda: cancer(_dropped(_stacking(final_estimator=SGDClassifier(random_state=0))))),
    Case(
        "StackingClassifier several labels",
        lambda: several_labels(StackingClassifier([("a", _deep_forest())], _deep_forest(), cv=3)),
    ),
    Case(
        "StackingClassifier two labels, of a network",
        lambda: several_labels(
            StackingClassifier([("a", MLPClassifier(3, max_iter=50, random_state=0))], _deep_forest(), cv=3), 2
        ),
    ),
    Case(
        "StackingClassifier passthrough of a frame",
        lambda: _frame(StackingClassifier([("x", _by_name("c", "a"))], passthrough=True)),
    ),
    Case("StackingRegressor", lambda: targets(StackingRegressor(_regressors()))),
    Case("StackingRegressor passthrough", lambda: targets(StackingRegressor(_regressors(), Ridge(), passthrough=True))),
    Case(
        "StackingRegressor dropped",
        lambda: targets(_dropped(StackingRegressor(_regressors(), DecisionTreeRegressor(max_depth=3)))),
    ),
]
DUMMIES = [
    Case("DummyClassifier prior", lambda: _dummy(DummyClassifier(strategy="prior"))),
    Case("DummyClassifier most_frequent, strings", lambda: _dummy(DummyClassifier(strategy="most_frequent"), names=FLOWERS)),
    Case("DummyClassifier constant", lambda: _dummy(DummyClassifier(strategy="constant", constant=1))),
    Case("DummyClassifier prior, several targets", lambda: _dummy(DummyClassifier(), 2)),
    Case(
        "DummyClassifier constants, several targets", lambda: _dummy(DummyClassifier(strategy="constant", constant=[0, 2]), 2)
    ),
    Case("DummyRegressor", lambda: targets(DummyRegressor())),
    Case("DummyRegressor quantile, several targets", lambda: targets(DummyRegressor(strategy="quantile", quantile=0.3), 2)),
    Case("DummyRegressor constant", lambda: targets(DummyRegressor(strategy="constant", constant=3))),
]
CASES = [*VOTING, *STACKING, *DUMMIES]
