"""Several classes or targets by an estimator each: sklearn.multiclass and sklearn.multioutput."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor, RegressorChain
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from estimators.case import Case
from estimators.meta import FLOWERS, cancer, iris, several_labels, targets


def _logistic():
    return LogisticRegression(max_iter=1000)


def _tree(depth=3):
    return DecisionTreeClassifier(max_depth=depth, random_state=0)


def _constant_label(model):
    """A label that every row has, and one that none has."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4))
    return model.fit(X, np.stack([np.ones(150, int), X[:, 0] > 0, np.zeros(150, int)], axis=1)), X


def _named_targets(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    sizes = np.array(["small", "medium", "large"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    return model.fit(X, np.stack([sizes, np.where(X[:, 1] > 0, "yes", "no")], axis=1)), X


def _numbered_targets(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    return model.fit(X, np.stack([np.digitize(X[:, 0], [-0.5, 0.5]), X[:, 1] > 0, X[:, 2] > X[:, 3]], axis=1).astype(int)), X


def _frame(model):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 4)), columns=["a", "b", "c", "d"])
    return model.fit(frame, frame[["a", "b"]].to_numpy() > 0), frame[["d", "c", "b", "a"]]


def _by_name():
    return make_pipeline(ColumnTransformer([("some", StandardScaler(), ["b", "a"])]), _logistic())


def _integers(model):
    rng = np.random.default_rng(0)
    X = rng.integers(-50, 50, (200, 4))
    return model.fit(X, np.stack([X[:, 0] > X[:, 1], X[:, 2] > 0], axis=1).astype(int)), X


MULTICLASS = [
    Case("OneVsRestClassifier", lambda: iris(OneVsRestClassifier(_logistic()), FLOWERS)),
    Case("OneVsRestClassifier of trees", lambda: iris(OneVsRestClassifier(_tree()))),
    Case("OneVsRestClassifier of regressors", lambda: iris(OneVsRestClassifier(Ridge()))),
    Case("OneVsRestClassifier binary", lambda: cancer(OneVsRestClassifier(_logistic()), ["good", "bad"])),
    Case("OneVsRestClassifier binary, of trees", lambda: cancer(OneVsRestClassifier(_tree()))),
    Case("OneVsRestClassifier several labels", lambda: several_labels(OneVsRestClassifier(_logistic()))),
    Case("OneVsRestClassifier several labels, of trees", lambda: several_labels(OneVsRestClassifier(_tree()))),
    Case("OneVsRestClassifier constant labels", lambda: _constant_label(OneVsRestClassifier(_logistic()))),
    Case("OneVsOneClassifier", lambda: iris(OneVsOneClassifier(LinearSVC()), FLOWERS)),
    Case("OneVsOneClassifier of trees", lambda: iris(OneVsOneClassifier(_tree(2)))),
    Case("OneVsOneClassifier of regressors", lambda: iris(OneVsOneClassifier(Ridge()))),
    Case("OneVsOneClassifier binary", lambda: cancer(OneVsOneClassifier(GaussianNB()), ["good", "bad"])),
    Case("OutputCodeClassifier", lambda: iris(OutputCodeClassifier(_logistic(), code_size=2, random_state=0), FLOWERS)),
    Case("OutputCodeClassifier of trees", lambda: iris(OutputCodeClassifier(_tree(), code_size=1.5, random_state=1))),
    Case(
        "OutputCodeClassifier with equal codes", lambda: iris(OutputCodeClassifier(LinearSVC(), code_size=0.4, random_state=1))
    ),
]
MULTIOUTPUT = [
    Case("MultiOutputClassifier", lambda: several_labels(MultiOutputClassifier(_logistic()))),
    Case("MultiOutputClassifier strings", lambda: _named_targets(MultiOutputClassifier(_tree()))),
    Case("MultiOutputClassifier without probabilities", lambda: several_labels(MultiOutputClassifier(Perceptron()))),
    Case("MultiOutputClassifier of pipelines by name", lambda: _frame(MultiOutputClassifier(_by_name()))),
    Case("MultiOutputRegressor", lambda: targets(MultiOutputRegressor(Ridge()), 3)),
    Case("MultiOutputRegressor of one target", lambda: targets(MultiOutputRegressor(DecisionTreeRegressor(max_depth=3)), 1)),
    Case("ClassifierChain", lambda: several_labels(ClassifierChain(_logistic()))),
    Case("ClassifierChain order", lambda: several_labels(ClassifierChain(_tree(), order=[2, 0, 1], cv=3))),
    Case(
        "ClassifierChain of probabilities", lambda: several_labels(ClassifierChain(_logistic(), chain_method="predict_proba"))
    ),
    Case(
        "ClassifierChain of logarithms",
        lambda: several_labels(ClassifierChain(_logistic(), order="random", chain_method="predict_log_proba", random_state=0)),
    ),
    Case(
        "ClassifierChain of decisions",
        lambda: several_labels(ClassifierChain(LinearSVC(), chain_method=["decision_function", "predict"])),
        methods=("predict", "decision_function"),
    ),
    Case("ClassifierChain several classes", lambda: _numbered_targets(ClassifierChain(_tree())), methods=("predict",)),
    Case("ClassifierChain on integers", lambda: _integers(ClassifierChain(_tree()))),
    Case("RegressorChain", lambda: targets(RegressorChain(Ridge()), 3)),
    Case("RegressorChain order", lambda: targets(RegressorChain(DecisionTreeRegressor(max_depth=4), order=(1, 2, 0)), 3)),
]
CASES = [*MULTICLASS, *MULTIOUTPUT]
