"""scikit-learn's trees, forests and boosted trees."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
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
    return Case(f"IsolationForest {name}", lambda: fit(IsolationForest(n_estimators=10, random_state=0, **options), missing=missing))


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
]
