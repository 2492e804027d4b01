"""Neighbours: every algorithm with its own rounding and its own ties, every metric, weights, several outputs."""

from __future__ import annotations

import numpy as np
from sklearn import neighbors as nb
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris

from estimators.case import Case

NAMES = np.array(["setosa", "versicolor", "virginica"])


def _points(features=4, classes=3, dtype=np.float64, ties=False, rows=240):
    """Points around a few centres. `ties`: of few different numbers, so that many distances are equal."""
    rng = np.random.default_rng(features)
    y = rng.integers(0, classes, rows)
    X = rng.standard_normal((rows, features)) + 2 * y[:, None]
    if ties:
        X = (X * 1.5).round()
    return X.astype(dtype), y


def _classifier(model, labels=None, outputs=1, float32=False, own=20, **data):
    """Fitted on the first half of the points. The queries are the other half, and before them `own` points of the first."""
    X, y = _points(**data)
    target = y if labels is None else np.asarray(labels)[y]
    if outputs > 1:
        target = np.column_stack([target, *(y[::-1] % (2 + i) for i in range(outputs - 1))])
    half = len(X) // 2
    fit = X[:half].astype(np.float32) if float32 else X[:half]
    return model.fit(fit, target[:half]), X[half - own :].astype(np.float64)


def _regressor(model, outputs=None, dtype=np.float64, own=20, **data):
    """As `_classifier`."""
    X, y = _points(**data)
    target = np.sin(X[:, 0]) + y
    if outputs is not None:
        target = np.column_stack([target * (i + 1) - X[:, 1] for i in range(outputs)])
    half = len(X) // 2
    return model.fit(X[:half], target[:half].astype(dtype)), X[half - own :].astype(np.float64)


def _iris(model):
    X, y = load_iris(return_X_y=True)
    return model.fit(X[::2], y[::2]), X


def _missing(model):
    X, y = _points()
    X[np.random.default_rng(0).random(X.shape) < 0.1] = np.nan
    return model.fit(X[:120], y[:120]), X[120:]


def _cancer(model):
    X, y = load_breast_cancer(return_X_y=True)
    return model.fit(X[:250], y[:250]), X[-200:]


def _labels_of_two_kinds(model):
    X, y = _points()
    return model.fit(X, np.column_stack([NAMES[y], np.array(["yes", "no", "perhaps"])[y[::-1]]])), X


KNC, KNR, RNC, RNR = (
    nb.KNeighborsClassifier,
    nb.KNeighborsRegressor,
    nb.RadiusNeighborsClassifier,
    nb.RadiusNeighborsRegressor,
)
ALGORITHMS = ("brute", "kd_tree", "ball_tree")
METRICS = {
    "manhattan": {"metric": "manhattan"},
    "chebyshev": {"metric": "chebyshev"},
    "minkowski 3": {"p": 3},
    "minkowski 1.5, weights": {"p": 1.5, "metric_params": {"w": np.array([1.0, 2.0, 0.5, 3.0])}},
    "seuclidean": {"metric": "seuclidean", "metric_params": {"V": np.array([1.0, 2.0, 0.5, 3.0])}},
    "canberra": {"metric": "canberra"},
    "hamming": {"metric": "hamming"},
    "cosine": {"metric": "cosine"},
    "sqeuclidean": {"metric": "sqeuclidean"},
    "l2": {"metric": "l2"},
}


def _fits(name, algorithm):
    """Whether the source has the metric for the algorithm."""
    trees = {"kd_tree": ("manhattan", "chebyshev", "minkowski 3", "l2"), "ball_tree": tuple(METRICS)[:7]}
    return name in trees[algorithm] if algorithm in trees else name != "hamming"  # hbc refuses hamming by brute force


TO_ITSELF = "by x² - 2xy + y² the source's distance of a point to itself is 1e-7 or 0, as the rounding of its product falls; here it is 0"


def _own(algorithm, weights):
    """How many of the fitted points to ask for: none where a point's distance to itself is its weight (see TO_ITSELF)."""
    return 0 if (algorithm, weights) == ("brute", "distance") else 20


# float32 queries of float64 points by brute force are left out if the result depends on how x² - 2xy + y² is rounded (for the distance of a
# point to its own float32 image), or on which of equally near points numpy's argpartition puts first (this depends on the CPU).
CASES = [
    *(
        Case(
            f"KNeighborsClassifier {algorithm}, {weights}",
            lambda a=algorithm, w=weights: _classifier(KNC(5, algorithm=a, weights=w), own=_own(a, w)),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
        for weights in ("uniform", "distance")
    ),
    *(
        Case(
            f"KNeighborsClassifier {algorithm}, ties, {k}",
            lambda a=algorithm, k=k: _classifier(KNC(k, algorithm=a, leaf_size=5), ties=True),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
        for k in (1, 4, 9)
    ),
    *(
        Case(
            f"KNeighborsClassifier {algorithm}, {name}",
            lambda a=algorithm, p=params: _classifier(KNC(4, algorithm=a, leaf_size=10, **p)),
        )
        for name, params in METRICS.items()
        for algorithm in ALGORITHMS
        if _fits(name, algorithm)
    ),
    Case("KNeighborsClassifier strings", lambda: _classifier(KNC(3), NAMES)),
    Case("KNeighborsClassifier several outputs", lambda: _classifier(KNC(3, weights="distance"), outputs=3)),
    Case("KNeighborsClassifier several outputs, strings", lambda: _labels_of_two_kinds(KNC(3))),
    Case("KNeighborsClassifier float32", lambda: _classifier(KNC(4, algorithm="brute"), float32=True)),
    Case("KNeighborsClassifier float32, manhattan", lambda: _classifier(KNC(4, algorithm="brute", p=1), float32=True)),
    Case("KNeighborsClassifier float32, tree", lambda: _classifier(KNC(4), float32=True)),
    Case("KNeighborsClassifier fitted on integers", lambda: _classifier(KNC(4), ties=True, dtype=np.int64)),
    Case("KNeighborsClassifier 20 features", lambda: _classifier(KNC(), features=20)),
    Case("KNeighborsClassifier all points", lambda: _classifier(KNC(120))),
    # Weights by distance: if distances overflow, the CPU decides which of the infinite ones the source chooses.
    Case(
        "KNeighborsRegressor missing values",
        lambda: _missing(KNR(3, metric="nan_euclidean", weights="distance")),
        float32=False,
    ),
    Case("KNeighborsClassifier iris", lambda: _iris(KNC())),
    Case("KNeighborsClassifier cancer, kd_tree", lambda: _cancer(KNC(7, algorithm="kd_tree", weights="distance"))),
    *(
        Case(
            f"KNeighborsRegressor {algorithm}, {weights}",
            lambda a=algorithm, w=weights: _regressor(KNR(5, algorithm=a, weights=w), own=_own(a, w)),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
        for weights in ("uniform", "distance")
    ),
    *(
        Case(
            f"KNeighborsRegressor {algorithm}, ties",
            lambda a=algorithm: _regressor(KNR(6, algorithm=a, leaf_size=8), ties=True),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
    ),
    Case("KNeighborsRegressor several outputs", lambda: _regressor(KNR(weights="distance"), 2)),
    Case("KNeighborsRegressor one output as a matrix", lambda: _regressor(KNR(p=1), 1)),
    Case("KNeighborsRegressor float32 targets", lambda: _regressor(KNR(), 2, dtype=np.float32)),
    Case("KNeighborsRegressor integer targets", lambda: _regressor(KNR(), dtype=np.int64)),
    *(
        Case(
            f"RadiusNeighborsClassifier {algorithm}, {weights}",
            lambda a=algorithm, w=weights: _classifier(RNC(1.2, algorithm=a, weights=w, outlier_label=1), own=_own(a, w)),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
        for weights in ("uniform", "distance")
    ),
    Case("RadiusNeighborsClassifier everybody has neighbours", lambda: _classifier(RNC(30.0))),
    Case("RadiusNeighborsClassifier most frequent", lambda: _classifier(RNC(1.0, outlier_label="most_frequent"), NAMES)),
    Case("RadiusNeighborsClassifier another label", lambda: _classifier(RNC(1.0, outlier_label=-7))),
    Case(
        "RadiusNeighborsClassifier brute manhattan",
        lambda: _classifier(RNC(1.5, algorithm="brute", p=1, weights="distance", outlier_label=1), [1, 2, 3]),
    ),
    Case("RadiusNeighborsClassifier several outputs", lambda: _classifier(RNC(1.0, outlier_label=[0, 1]), outputs=2)),
    Case("RadiusNeighborsClassifier ties", lambda: _classifier(RNC(2.0, outlier_label=0, algorithm="brute"), ties=True)),
    *(
        Case(
            f"RadiusNeighborsRegressor {algorithm}, {weights}",
            lambda a=algorithm, w=weights: _regressor(RNR(1.2, algorithm=a, weights=w), own=_own(a, w)),
            float32=algorithm != "brute",
        )
        for algorithm in ALGORITHMS
        for weights in ("uniform", "distance")
    ),
    Case("RadiusNeighborsRegressor several outputs", lambda: _regressor(RNR(1.2, p=1), 2)),
    *(
        Case(
            f"NearestNeighbors {algorithm}",
            lambda a=algorithm: _classifier(nb.NearestNeighbors(n_neighbors=4, algorithm=a)),
            atol=5e-7 if algorithm == "brute" else 1e-9,
            reason="by x² - 2xy + y² the source's distance of a point to itself is 2e-7 or 0, as its processor rounds; here it is 0",
            float32=algorithm != "brute",
            rounded_ends=TO_ITSELF if algorithm == "brute" else "",
            methods=("kneighbors",),
        )
        for algorithm in ALGORITHMS
    ),
    Case(
        "KNeighborsRegressor p=1",
        lambda: _regressor(KNR(4, p=1), features=2),
    ),
    *(
        Case(f"{name}Transformer {mode}, {algorithm}", lambda m=model: _classifier(clone(m)))
        for mode, algorithm in (("distance", "auto"), ("connectivity", "brute"))
        for name, model in (
            ("KNeighbors", nb.KNeighborsTransformer(n_neighbors=3, mode=mode, algorithm=algorithm)),
            ("RadiusNeighbors", nb.RadiusNeighborsTransformer(radius=1.2, mode=mode, algorithm=algorithm)),
        )
    ),
    Case("LocalOutlierFactor", lambda: _regressor(nb.LocalOutlierFactor(novelty=True))),
    Case("LocalOutlierFactor contamination", lambda: _regressor(nb.LocalOutlierFactor(5, novelty=True, contamination=0.1))),
    Case("LocalOutlierFactor float32", lambda: _classifier(nb.LocalOutlierFactor(5, novelty=True), float32=True)),
    Case("LocalOutlierFactor brute cosine", lambda: _classifier(nb.LocalOutlierFactor(5, novelty=True, metric="cosine"))),
    Case("NeighborhoodComponentsAnalysis", lambda: _iris(nb.NeighborhoodComponentsAnalysis(2, random_state=0, max_iter=5))),
]
