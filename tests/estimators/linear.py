"""Linear models: every class whose prediction is a linear function of its input, or a function of that."""

from __future__ import annotations

import numpy as np
from sklearn import linear_model as lm
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC, LinearSVR

from estimators.case import Case


def _binary(names=None):
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y if names is None else np.asarray(names)[y]


def _several(names=None):
    X, y = load_iris(return_X_y=True)
    return scale(X), y if names is None else np.asarray(names)[y]


def _binary_classifier(model, names=None, dtype=np.float64):
    X, y = _binary(names)
    return model.fit(X.astype(dtype), y), X[:200]


def _classifier(model, names=None, dtype=np.float64):
    X, y = _several(names)
    return model.fit(X.astype(dtype), y), X


def _multilabel_classifier(model):
    X, Y = make_multilabel_classification(150, 6, n_classes=3, random_state=0)
    return model.fit(scale(X), Y), scale(X)


def _targets(outputs):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = X @ rng.normal(size=(5, 3)) + 0.1 * rng.normal(size=(200, 3)) + 1
    return X, y[:, 0] if outputs == 0 else y[:, :outputs]


def _regressor(model, outputs=0, dtype=np.float64):
    X, y = _targets(outputs)
    return model.fit(X.astype(dtype), y.astype(dtype)), X


def _positive(model):
    X, y = _targets(0)
    return model.fit(X, np.exp(y / 4)), X


def _integers(model):
    rng = np.random.default_rng(0)
    X = rng.integers(-50, 50, (200, 4))
    return model.fit(X, X.sum(axis=1) > 0), X


def _sparse_coefficients():
    model, X = _binary_classifier(lm.SGDClassifier(loss="log_loss", penalty="l1", random_state=0))
    return model.sparsify(), X


# Functions, since some of the classes warn when they are made.
REGRESSORS = {
    "ARDRegression": lambda: lm.ARDRegression(),
    "BayesianRidge": lambda: lm.BayesianRidge(),
    "ElasticNet": lambda: lm.ElasticNet(alpha=0.1),
    "ElasticNetCV": lambda: lm.ElasticNetCV(cv=3),
    "HuberRegressor": lambda: lm.HuberRegressor(),
    "Lars": lambda: lm.Lars(),
    "LarsCV": lambda: lm.LarsCV(cv=3),
    "Lasso": lambda: lm.Lasso(alpha=0.1),
    "LassoCV": lambda: lm.LassoCV(cv=3),
    "LassoLars": lambda: lm.LassoLars(alpha=0.01),
    "LassoLarsCV": lambda: lm.LassoLarsCV(cv=3),
    "LassoLarsIC": lambda: lm.LassoLarsIC(),
    "LinearRegression": lambda: lm.LinearRegression(),
    "LinearRegression without intercept": lambda: lm.LinearRegression(fit_intercept=False),
    "LinearRegression positive": lambda: lm.LinearRegression(positive=True),
    "LinearSVR": lambda: LinearSVR(random_state=0, max_iter=5000),
    "OrthogonalMatchingPursuit": lambda: lm.OrthogonalMatchingPursuit(),
    "OrthogonalMatchingPursuitCV": lambda: lm.OrthogonalMatchingPursuitCV(cv=3),
    "PassiveAggressiveRegressor": lambda: lm.PassiveAggressiveRegressor(random_state=0),
    "QuantileRegressor": lambda: lm.QuantileRegressor(alpha=0.01),
    "RANSACRegressor": lambda: lm.RANSACRegressor(random_state=0),
    "Ridge": lambda: lm.Ridge(),
    "RidgeCV": lambda: lm.RidgeCV(),
    "SGDRegressor": lambda: lm.SGDRegressor(random_state=0),
    "SGDRegressor averaged": lambda: lm.SGDRegressor(average=True, random_state=0),
    "TheilSenRegressor": lambda: lm.TheilSenRegressor(random_state=0, max_subpopulation=100),
}
OF_SEVERAL = {
    "ElasticNet": lambda: lm.ElasticNet(alpha=0.1),
    "Lars": lambda: lm.Lars(),
    "LinearRegression": lambda: lm.LinearRegression(),
    "MultiTaskElasticNet": lambda: lm.MultiTaskElasticNet(alpha=0.1),
    "MultiTaskElasticNetCV": lambda: lm.MultiTaskElasticNetCV(cv=3),
    "MultiTaskLasso": lambda: lm.MultiTaskLasso(alpha=0.1),
    "MultiTaskLassoCV": lambda: lm.MultiTaskLassoCV(cv=3),
    "OrthogonalMatchingPursuit": lambda: lm.OrthogonalMatchingPursuit(),
    "RANSACRegressor": lambda: lm.RANSACRegressor(random_state=0),
    "Ridge": lambda: lm.Ridge(),
    "RidgeCV": lambda: lm.RidgeCV(),
}
GENERALIZED = {
    "PoissonRegressor": lambda: lm.PoissonRegressor(),
    "GammaRegressor": lambda: lm.GammaRegressor(),
    "TweedieRegressor identity": lambda: lm.TweedieRegressor(power=0),
    "TweedieRegressor log": lambda: lm.TweedieRegressor(power=1.5),
    "TweedieRegressor power 0, log": lambda: lm.TweedieRegressor(power=0, link="log"),
    "TweedieRegressor power 2, without intercept": lambda: lm.TweedieRegressor(power=2, fit_intercept=False),
}
CLASSIFIERS = {
    "LogisticRegression": lambda: lm.LogisticRegression(max_iter=1000),
    "LogisticRegression without intercept": lambda: lm.LogisticRegression(max_iter=1000, fit_intercept=False),
    "LogisticRegressionCV": lambda: lm.LogisticRegressionCV(Cs=2, cv=3, max_iter=1000, use_legacy_attributes=False),
    "LinearSVC": lambda: LinearSVC(),
    "LinearSVC crammer_singer": lambda: LinearSVC(multi_class="crammer_singer", max_iter=10000),
    "LinearSVC without intercept": lambda: LinearSVC(fit_intercept=False),
    "PassiveAggressiveClassifier": lambda: lm.PassiveAggressiveClassifier(random_state=0),
    "Perceptron": lambda: lm.Perceptron(random_state=0),
    "RidgeClassifier": lambda: lm.RidgeClassifier(),
    "RidgeClassifierCV": lambda: lm.RidgeClassifierCV(),
    **{
        f"SGDClassifier {loss}": lambda loss=loss: lm.SGDClassifier(loss=loss, random_state=0)
        for loss in ("hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron", "squared_error", "huber")
    },
    "SGDClassifier averaged": lambda: lm.SGDClassifier(loss="log_loss", average=True, random_state=0),
}
CASES = [
    *(Case(name, lambda model=model: _regressor(model())) for name, model in REGRESSORS.items()),
    *(Case(f"{name}, several targets", lambda model=model: _regressor(model(), 3)) for name, model in OF_SEVERAL.items()),
    *(Case(name, lambda model=model: _positive(model())) for name, model in GENERALIZED.items()),
    *(Case(f"{name}, binary", lambda model=model: _binary_classifier(model())) for name, model in CLASSIFIERS.items()),
    *(
        Case(f"{name}, multi-class, strings", lambda model=model: _classifier(model(), ["setosa", "versicolor", "virginica"]))
        for name, model in CLASSIFIERS.items()
    ),
    Case("LinearRegression, one target as a matrix", lambda: _regressor(lm.LinearRegression(), 1)),
    Case("Ridge, one target as a matrix", lambda: _regressor(lm.Ridge(), 1)),
    Case("Lasso, one target as a matrix", lambda: _regressor(lm.Lasso(alpha=0.1), 1)),
    Case("LinearRegression float32", lambda: _regressor(lm.LinearRegression(), dtype=np.float32)),
    Case("Ridge float32 without intercept", lambda: _regressor(lm.Ridge(fit_intercept=False), 2, dtype=np.float32)),
    Case("LogisticRegression l1", lambda: _binary_classifier(lm.LogisticRegression(l1_ratio=1, solver="saga", max_iter=1000))),
    Case("LogisticRegression liblinear", lambda: _binary_classifier(lm.LogisticRegression(solver="liblinear"))),
    # Small coefficients: if p is close to 1, log(1 - p) in float32 has less than five right digits, in the source as well as here.
    Case("LogisticRegression float32", lambda: _binary_classifier(lm.LogisticRegression(C=1e-3), dtype=np.float32)),
    Case("LogisticRegression multi-class, float32", lambda: _classifier(lm.LogisticRegression(), dtype=np.float32)),
    Case("LogisticRegression strings", lambda: _binary_classifier(lm.LogisticRegression(), ["malignant", "benign"])),
    Case("LogisticRegression integers", lambda: _binary_classifier(lm.LogisticRegression(), [7, -3])),
    Case("LogisticRegression bool", lambda: _binary_classifier(lm.LogisticRegression(), [True, False])),
    Case("LogisticRegression floats", lambda: _classifier(lm.LogisticRegression(), [0.0, 10.0, 20.0])),
    Case("LogisticRegression objects", lambda: _classifier(lm.LogisticRegression(), np.array(["a", "bbb", "cc"], object))),
    Case("LogisticRegression uint8 labels", lambda: _classifier(lm.LogisticRegression(), np.array([3, 5, 250], np.uint8))),
    Case("LogisticRegression on integers", lambda: _integers(lm.LogisticRegression(max_iter=1000))),
    Case("LinearSVC on integers", lambda: _integers(LinearSVC())),
    Case("SGDClassifier sparse coefficients", _sparse_coefficients),
    Case("SGDOneClassSVM", lambda: _classifier(lm.SGDOneClassSVM(nu=0.3, random_state=0))),
    Case("RidgeClassifier several labels", lambda: _multilabel_classifier(lm.RidgeClassifier())),
    Case("RidgeClassifierCV several labels", lambda: _multilabel_classifier(lm.RidgeClassifierCV())),
]
