"""scikit-learn's trees, forests and boosted trees."""

from __future__ import annotations

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    RandomTreesEmbedding,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier, ExtraTreeRegressor

from estimators.case import Case

FEATURES = 7


def data(classes=2, outputs=1, missing=False, strings=False, rows=300):
    """Features with ties (so that thresholds meet values), and a target that depends on them; NaN where `missing`."""
    rng = np.random.default_rng(0)
    X = np.round(rng.normal(size=(rows, FEATURES)), 1)
    score = X[:, :outputs] + X[:, 2:3] * X[:, 3:4] + rng.normal(size=(rows, outputs)) / 3
    y = score if classes == 0 else np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    if missing:
        X[rng.random(X.shape) < 0.15] = np.nan
    if strings:
        y = np.char.add("class ", y.astype(str))
    return X, y[:, 0] if outputs == 1 else y


def fit(model, sample_weight=None, **options):
    X, y = data(**options)
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    return model.fit(X, y, **weights), X[:200]


def classification(cls, **more):
    name = cls.__name__
    small = {**more, "random_state": 0}
    return [
        Case(f"{name} binary", lambda: fit(cls(**small))),
        Case(f"{name} 4 string classes", lambda: fit(cls(max_depth=4, **small), classes=4, strings=True)),
        Case(f"{name} one class", lambda: fit(cls(**small), classes=1)),
        Case(f"{name} multi-output", lambda: fit(cls(max_depth=5, **small), classes=3, outputs=2)),
        Case(f"{name} multi-output strings", lambda: fit(cls(max_depth=5, **small), classes=3, outputs=2, strings=True)),
        Case(f"{name} class_weight", lambda: fit(cls(class_weight="balanced", max_leaf_nodes=9, **small), classes=3)),
        Case(f"{name} log_loss", lambda: fit(cls(criterion="log_loss", min_samples_leaf=5, **small), classes=3)),
        Case(f"{name} sample_weight", lambda: fit(cls(ccp_alpha=0.01, **small), np.arange(300) % 4)),
        Case(f"{name} float classes", lambda: _float_classes(cls(max_depth=4, **small))),
        Case(f"{name} uneven multi-output", lambda: _uneven(cls(max_depth=4, **small))),
    ]


def _uneven(model):
    """Outputs with different numbers of classes, so that the leaves' rows are padded."""
    X, y = data(classes=4, outputs=2)
    return model.fit(X, np.stack([y[:, 0], y[:, 1] // 2], axis=1)), X[:200]


def _float_classes(model):
    X, y = data(classes=3)
    return model.fit(X, y * 10.0), X[:200]


def regression(cls, **more):
    name = cls.__name__
    small = {**more, "random_state": 0}
    return [
        Case(f"{name}", lambda: fit(cls(**small), classes=0)),
        Case(f"{name} multi-output", lambda: fit(cls(max_depth=6, **small), classes=0, outputs=2)),
        Case(f"{name} absolute_error", lambda: fit(cls(criterion="absolute_error", max_depth=3, **small), classes=0)),
        Case(f"{name} monotonic", lambda: fit(cls(monotonic_cst=[1, 0, -1, 0, 0, 0, 0], **small), classes=0)),
        Case(f"{name} constant target", lambda: _constant(cls(**small))),
    ]


def _constant(model):
    X, _ = data()
    return model.fit(X, np.full(len(X), 3.5)), X[:200]


def missing(cls, classes, **more):
    model = cls(random_state=0, max_depth=6, **more)
    return Case(f"{cls.__name__} fitted with NaN, {classes} classes", lambda: fit(model, classes=classes, missing=True))


def isolation(name, missing=False, **options):
    return Case(
        f"IsolationForest {name}", lambda: fit(IsolationForest(n_estimators=10, random_state=0, **options), missing=missing)
    )


def boosting(name, classes, **options):
    cls = GradientBoostingClassifier if classes else GradientBoostingRegressor
    model = cls(n_estimators=8, random_state=0, **options)
    if not isinstance(options.get("init"), (LogisticRegression, LinearRegression)):
        return Case(f"{cls.__name__} {name}", lambda: fit(model, classes=classes))
    reason = "init is given the matrix as float32, and a linear model predicts in the dtype it is given"
    return Case(f"{cls.__name__} {name}", lambda: fit(model, classes=classes), rtol=1e-5, atol=1e-6, reason=reason)


def histogram(name, classes, missing=False, strings=False, make=None, **options):
    cls = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    model = cls(max_iter=8, min_samples_leaf=5, random_state=0, **options)
    make = make or (lambda model: fit(model, classes=classes, missing=missing, strings=strings))
    return Case(f"{cls.__name__} {name}", lambda: make(model))


def _positive(model):
    X, y = data(classes=0)
    return model.fit(X, np.exp(y)), X[:200]


def _categories(model, classes=0, dtype=float):
    """Columns 1 and 4 are categories whose effect has no order; the rows to score have unknown ones too."""
    rng = np.random.default_rng(3)
    X, _ = data(missing=True)
    X[:, 1] = rng.integers(0, 12, len(X)) * 3
    X[:, 4] = rng.integers(-2, 40, len(X))
    effect = rng.normal(size=50)
    score = effect[(X[:, 1] / 3).astype(int)] + effect[X[:, 4].astype(int) + 2] + np.nan_to_num(X[:, 0])
    X[rng.random(len(X)) < 0.1, 1] = np.nan
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score
    model.fit(X, y)
    test = X[:200].copy()
    test[:40, 1] = rng.choice([1, 2.5, -1, 0.5, 300, 1e10, -0.0, np.nan], 40)
    test[20:60, 4] = rng.choice([100, -3, 7.5, np.nan], 40)
    return model, test


def _frame(model, names):
    """A frame with a categorical and a string column beside numbers. The rows to score have unknown categories too."""
    import pandas as pd

    rng = np.random.default_rng(5)
    size = rng.choice(["small", "medium", "large", "huge"], 300)
    town = rng.choice(list("abcdefgh"), 300)
    number = np.round(rng.normal(size=300), 1)
    y = number + (size == "medium") * 2 - np.isin(town, ["b", "e"]) * 3
    frame = pd.DataFrame({"number": number, "town": town, "other": rng.normal(size=300), "size": size})
    if not names:
        frame = frame.astype({"town": "category", "size": "category"})
    model.fit(frame, y)
    test = frame[:200].copy()
    if names:
        test.loc[:20, "town"] = "z"
    return model, test


def bagging(name, classes, strings=False, missing=False, **options):
    cls = BaggingClassifier if classes else BaggingRegressor
    model = cls(n_estimators=6, random_state=0, **options)
    return Case(f"{cls.__name__} {name}", lambda: fit(model, classes=classes, strings=strings, missing=missing))


def _rare_class(model):
    """One class has two rows, so that not every member has seen it."""
    X, y = data(classes=2)
    y[:2] = 7
    return model.fit(X, y), X[:200]


def _far(model):
    """Rows so far away that probabilities are 0, but their logarithms are finite."""
    X, y = data(classes=2)
    return model.fit(X, y), np.concatenate([X[:100], 50 * X[:100]])


def adaboost(name, classes, strings=False, **options):
    cls = AdaBoostClassifier if classes else AdaBoostRegressor
    model = cls(random_state=0, **{"n_estimators": 9, **options})
    return Case(f"{cls.__name__} {name}", lambda: fit(model, classes=classes, strings=strings))


CASES = [
    *classification(DecisionTreeClassifier),
    *classification(ExtraTreeClassifier),
    *classification(RandomForestClassifier, n_estimators=7),
    *classification(ExtraTreesClassifier, n_estimators=7),
    *regression(DecisionTreeRegressor),
    *regression(ExtraTreeRegressor),
    *regression(RandomForestRegressor, n_estimators=7),
    *regression(ExtraTreesRegressor, n_estimators=7),
    missing(DecisionTreeClassifier, 3),
    missing(DecisionTreeRegressor, 0),
    missing(ExtraTreeClassifier, 2),
    missing(RandomForestClassifier, 2, n_estimators=5),
    missing(RandomForestRegressor, 0, n_estimators=5),
    missing(ExtraTreesRegressor, 0, n_estimators=5),
    isolation("auto"),
    isolation("contamination", contamination=0.1),
    isolation("max_features", max_features=0.5, max_samples=100),
    isolation("max_features 1.0 bootstrap", bootstrap=True, contamination=0.05),
    isolation("one sample", max_samples=1),
    isolation("two samples", max_samples=2),
    isolation("missing", missing=True),
    boosting("log_loss", 2),
    boosting("exponential", 2, loss="exponential"),
    boosting("3 classes", 3, subsample=0.7, max_features=3),
    boosting("zero", 2, init="zero"),
    boosting("zero, 3 classes", 3, init="zero"),
    boosting("init estimator", 2, init=LogisticRegression()),
    boosting("init estimator exponential", 2, init=LogisticRegression(), loss="exponential"),
    boosting("init estimator, 3 classes", 3, init=DecisionTreeClassifier(max_depth=3)),
    boosting("init prior", 3, init=DummyClassifier(strategy="prior")),
    boosting("early stopping", 2, n_iter_no_change=2, learning_rate=0.7),
    boosting("squared_error", 0),
    boosting("absolute_error", 0, loss="absolute_error"),
    boosting("huber", 0, loss="huber", alpha=0.8),
    boosting("quantile", 0, loss="quantile", alpha=0.3),
    boosting("zero", 0, init="zero", max_leaf_nodes=5),
    boosting("init estimator", 0, init=LinearRegression()),
    boosting("init constant", 0, init=DummyRegressor(strategy="constant", constant=2.0)),
    histogram("binary", 2),
    histogram("3 string classes", 3, strings=True, learning_rate=0.3),
    histogram("missing", 2, missing=True),
    histogram("missing, 4 classes", 4, missing=True, max_bins=16),
    histogram("class_weight", 3, class_weight="balanced", l2_regularization=1.0),
    histogram("early stopping", 2, early_stopping=True, n_iter_no_change=1),
    histogram("squared_error", 0, missing=True),
    histogram("absolute_error", 0, loss="absolute_error"),
    histogram("quantile", 0, loss="quantile", quantile=0.2),
    histogram("gamma", 0, loss="gamma", make=_positive),
    histogram("poisson", 0, loss="poisson", make=_positive),
    histogram("monotonic", 0, monotonic_cst=[1, 0, 0, -1, 0, 0, 0], interaction_cst="no_interactions"),
    histogram("categories", 0, categorical_features=[1, 4], make=_categories),
    histogram("all categories", 0, categorical_features=[True] * 7, make=_categories),
    histogram("categories", 3, categorical_features=[1, 4], make=lambda m: _categories(m, 3)),
    histogram("string categories", 0, categorical_features=["town", "size"], make=lambda m: _frame(m, True)),
    histogram("pandas categories", 0, make=lambda m: _frame(m, False)),
    bagging("binary", 2),
    bagging("4 string classes", 4, strings=True, max_samples=0.5),
    bagging("max_features", 3, max_features=0.5, bootstrap_features=True),
    bagging("missing", 2, missing=True),
    bagging("linear", 2, estimator=LogisticRegression(), max_features=0.6),
    bagging("votes", 2, estimator=LinearSVC()),
    Case("BaggingClassifier far", lambda: _far(BaggingClassifier(GaussianNB(), n_estimators=4, random_state=0))),
    Case(
        "BaggingClassifier rare class, normal",
        lambda: _rare_class(BaggingClassifier(GaussianNB(), n_estimators=6, max_samples=0.3, random_state=0)),
    ),
    Case(
        "BaggingClassifier rare class", lambda: _rare_class(BaggingClassifier(n_estimators=6, random_state=0, max_samples=0.3))
    ),
    Case(
        "BaggingClassifier rare class, forest",
        lambda: _rare_class(
            BaggingClassifier(RandomForestClassifier(3, max_depth=3), n_estimators=4, random_state=0, max_samples=0.3)
        ),
    ),
    bagging("trees", 0),
    bagging("max_features", 0, max_features=3, estimator=ExtraTreeRegressor(max_depth=5)),
    bagging("linear", 0, estimator=LinearRegression()),
    Case("BaggingRegressor multi-output", lambda: fit(BaggingRegressor(n_estimators=4, random_state=0), classes=0, outputs=2)),
    adaboost("binary", 2),
    adaboost("4 string classes", 4, strings=True, estimator=DecisionTreeClassifier(max_depth=3), learning_rate=0.5),
    adaboost("linear", 3, n_estimators=4, estimator=LogisticRegression()),
    adaboost("string classes, linear", 2, strings=True, n_estimators=4, estimator=LogisticRegression()),
    adaboost("trees", 0),
    adaboost("square", 0, loss="square", estimator=DecisionTreeRegressor(max_depth=2)),
    adaboost("linear", 0, estimator=LinearRegression(), loss="exponential"),
    Case("RandomTreesEmbedding", lambda: fit(RandomTreesEmbedding(n_estimators=5, random_state=0, max_depth=4))),
    Case("RandomTreesEmbedding dense", lambda: fit(RandomTreesEmbedding(3, random_state=0, sparse_output=False), missing=True)),
]
