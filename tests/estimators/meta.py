"""Estimators over other estimators: voting, stacking, calibration, thresholds, self-training, transformed targets; and dummies."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_iris, make_multilabel_classification
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    scale,
)
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from estimators.case import Case

FLOWERS = ["setosa", "versicolor", "virginica"]


def iris(model, names=None):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    return model.fit(X, y if names is None else np.asarray(names)[y]), X


def cancer(model, names=None):
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :6]
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


def _passed_through():
    return StackingClassifier([("linear", _logistic())], cv=3, passthrough=True)


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
    Case(
        "StackingClassifier passthrough behind a selection by name",
        lambda: _frame(make_pipeline(ColumnTransformer([("some", StandardScaler(), ["c", "a"])]), _passed_through())),
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


def _calibrated(estimator=None, **options):
    return CalibratedClassifierCV(estimator, cv=2, **options)


def _prefit(estimator, names=None, **options):
    X, y = load_iris(return_X_y=True)
    X, y = scale(X), y if names is None else np.asarray(names)[y]
    return CalibratedClassifierCV(FrozenEstimator(estimator.fit(X[::2], y[::2])), **options).fit(X[1::2], y[1::2]), X


def _single_precision(model):
    X, y = load_iris(return_X_y=True)
    return model.fit(scale(X).astype(np.float32), y), scale(X)


AT_A_KNOT = (
    "rows of the training data are knots of the curve, and the last bit of their decisions says on which side of 0 they are"
)


def _all_kinds():
    for method in ("sigmoid", "isotonic", "temperature"):
        for of, model in (("decisions", LinearSVC), ("probabilities", GaussianNB)):
            name = f"CalibratedClassifierCV {method} of {of}"
            yield Case(name, lambda method=method, model=model: cancer(_calibrated(model(), method=method)))
            yield Case(
                f"{name}, several classes",
                lambda method=method, model=model: iris(_calibrated(model(), method=method), FLOWERS),
                rounded_ends=AT_A_KNOT if method == "isotonic" else "",
            )
        options = {"method": method, "ensemble": False}
        yield Case(
            f"CalibratedClassifierCV {method}, one ensemble", lambda options=options: iris(_calibrated(_tree(), **options))
        )


def _calibrated_in_float32(method):
    return Case(
        f"CalibratedClassifierCV {method}, fitted on float32",
        lambda: _single_precision(_calibrated(_logistic(), method=method)),
        rtol=1e-5,
        atol=1e-6,
        reason="the probabilities are float64, but those of float32 scores",
        rounded_ends=AT_A_KNOT if method == "isotonic" else "",
    )


CALIBRATION = [
    *_all_kinds(),
    Case("CalibratedClassifierCV of its own choice", lambda: cancer(_calibrated())),
    Case("CalibratedClassifierCV prefit", lambda: _prefit(_logistic(), FLOWERS)),
    Case("CalibratedClassifierCV prefit, isotonic", lambda: _prefit(_deep_forest(), method="isotonic")),
    *map(_calibrated_in_float32, ("sigmoid", "isotonic", "temperature")),
]


def _fixed(estimator=None, **options):
    return FixedThresholdClassifier(estimator or _logistic(), **options)


def _prefit_threshold():
    model, X = cancer(_logistic())
    return FixedThresholdClassifier(model, threshold=0.8), X


def _partly_labelled(model, strings=False):
    X, y = load_iris(return_X_y=True)
    y = np.asarray(FLOWERS, object)[y] if strings else y.copy()
    y[::3] = -1
    return model.fit(scale(X), y), scale(X)


THRESHOLDS = [
    Case("FixedThresholdClassifier", lambda: cancer(_fixed())),
    Case("FixedThresholdClassifier positive label", lambda: cancer(_fixed(threshold=0.7, pos_label="bad"), ["bad", "good"])),
    Case("FixedThresholdClassifier of trees", lambda: cancer(_fixed(_tree(), threshold=0.4), ["bad", "good"])),
    Case("FixedThresholdClassifier of decisions", lambda: cancer(_fixed(LinearSVC(), threshold=np.float64(0.3)))),
    Case(
        "FixedThresholdClassifier decisions for the first class",
        lambda: cancer(_fixed(threshold=-1, pos_label=0, response_method="decision_function")),
    ),
    Case("FixedThresholdClassifier not fitted itself", _prefit_threshold),
    Case("TunedThresholdClassifierCV", lambda: cancer(TunedThresholdClassifierCV(_logistic(), cv=3))),
    Case(
        "TunedThresholdClassifierCV by a score, strings",
        lambda: cancer(
            TunedThresholdClassifierCV(_tree(), scoring=make_scorer(f1_score, pos_label="bad"), cv=3), ["bad", "good"]
        ),
    ),
    Case("SelfTrainingClassifier", lambda: _partly_labelled(SelfTrainingClassifier(_logistic()))),
    Case(
        "SelfTrainingClassifier strings",
        lambda: _partly_labelled(SelfTrainingClassifier(GaussianNB(), criterion="k_best"), True),
        rounded_ends="1, or 1 less some ulps, as the logarithms and exponentials of GaussianNB round",
    ),
]


def _target(transformer=None, regressor=None, **options):
    return TransformedTargetRegressor(regressor or Ridge(), transformer=transformer, **options)


TRANSFORMERS = {
    "StandardScaler": StandardScaler,
    "StandardScaler without mean": lambda: StandardScaler(with_mean=False),
    "MinMaxScaler": lambda: MinMaxScaler((-1, 3)),
    "MaxAbsScaler": MaxAbsScaler,
    "RobustScaler": RobustScaler,
    "RobustScaler without centering": lambda: RobustScaler(with_centering=False),
    "PowerTransformer": PowerTransformer,
    "PowerTransformer not standardized": lambda: PowerTransformer(standardize=False),
    "PowerTransformer box-cox": lambda: PowerTransformer("box-cox"),
    "QuantileTransformer": lambda: QuantileTransformer(n_quantiles=50),
    "QuantileTransformer to normal": lambda: QuantileTransformer(n_quantiles=50, output_distribution="normal"),
    "Pipeline": lambda: make_pipeline(FunctionTransformer(np.log, np.exp), "passthrough", StandardScaler()),
}
INVERSES = {np.log: np.exp, np.log1p: np.expm1, np.sqrt: np.square, np.log2: np.exp2, np.exp: np.log, np.negative: np.negative}
TARGETS = [
    Case("TransformedTargetRegressor", lambda: targets(_target())),
    *(
        Case(f"TransformedTargetRegressor {name}", lambda make=make: targets(_target(make()), link=np.exp))
        for name, make in TRANSFORMERS.items()
    ),
    *(
        Case(
            f"TransformedTargetRegressor {function.__name__}",
            lambda function=function, back=back: targets(_target(func=function, inverse_func=back), link=np.exp),
        )
        for function, back in INVERSES.items()
    ),
    Case("TransformedTargetRegressor several targets", lambda: targets(_target(PowerTransformer()), 3)),
    Case("TransformedTargetRegressor one target as a matrix", lambda: targets(_target(MinMaxScaler()), 1)),
    Case(
        "TransformedTargetRegressor of trees",
        lambda: targets(_target(StandardScaler(), DecisionTreeRegressor(max_depth=4, random_state=0)), 2),
    ),
]
CASES = [*VOTING, *STACKING, *DUMMIES, *CALIBRATION, *THRESHOLDS, *TARGETS]
