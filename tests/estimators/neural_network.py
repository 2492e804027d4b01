"""Multi-layer perceptrons: every activation, every kind of output."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.neural_network import BernoulliRBM, MLPClassifier, MLPRegressor
from sklearn.preprocessing import minmax_scale, scale

from estimators.case import Case

SMALL = {"hidden_layer_sizes": (8, 5), "max_iter": 30, "random_state": 0}


def _classifier(load, names=None, dtype=np.float64, **options):
    X, y = load(return_X_y=True)
    X = scale(X)[:, :10]
    y = y if names is None else np.asarray(names)[y]
    return MLPClassifier(**{**SMALL, **options}).fit(X.astype(dtype), y), X[:200]


def _multilabel():
    X, Y = make_multilabel_classification(150, 6, n_classes=3, random_state=0)
    return MLPClassifier(**SMALL).fit(scale(X), Y), scale(X)


def _regressor(outputs=0, dtype=np.float64, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = np.abs(X @ rng.normal(size=(5, 3)))
    y = y[:, 0] if outputs == 0 else y[:, :outputs]
    return MLPRegressor(**{**SMALL, **options}).fit(X.astype(dtype), y), X


def _rbm():
    X, _ = load_iris(return_X_y=True)
    X = minmax_scale(X)
    return BernoulliRBM(3, n_iter=3, random_state=0).fit(X), X


CASES = [
    *(
        Case(f"MLPClassifier {activation}", lambda activation=activation: _classifier(load_iris, activation=activation))
        for activation in ("identity", "logistic", "tanh", "relu")
    ),
    Case("MLPClassifier binary", lambda: _classifier(load_breast_cancer)),
    Case("MLPClassifier binary, strings", lambda: _classifier(load_breast_cancer, ["malignant", "benign"])),
    Case("MLPClassifier multi-class, strings", lambda: _classifier(load_iris, ["setosa", "versicolor", "virginica"])),
    Case("MLPClassifier several labels", _multilabel),
    Case("MLPClassifier float32", lambda: _classifier(load_iris, dtype=np.float32)),
    Case("MLPRegressor", _regressor),
    Case("MLPRegressor several targets", lambda: _regressor(3, activation="tanh")),
    Case("MLPRegressor one target as a matrix", lambda: _regressor(1)),
    Case("MLPRegressor poisson", lambda: _regressor(loss="poisson")),
    Case("MLPRegressor without hidden layers", lambda: _regressor(hidden_layer_sizes=())),
    Case("BernoulliRBM", _rbm, methods=("transform",)),  # its score_samples is drawn at random,
]
