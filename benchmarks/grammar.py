"""Pipelines of OpenML-CC18's grammar, and tables of its tasks' shapes, drawn with a fixed seed.

The paper ran the pipelines that people had uploaded for the 72 tasks of CC18: per flow the best run, built of scikit-learn's imputers,
encoders, scalers, reductions, selections and classifiers, on label-encoded matrices of numbers. Without OpenML the same grammar is sampled
here, on generated tables: what a pipeline costs depends on its steps and on shapes, not on what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import (
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline

from benchmarks.trained import Array

SEED = 18


@dataclass(frozen=True)
class Shape:
    """The shape of a task's table: `categories` columns are codes of categories, and a part of the values is `missing`."""

    name: str
    rows: int
    numbers: int
    categories: int
    classes: int
    missing: float = 0.0


SHAPES = (
    Shape("kr-vs-kp", 3196, 0, 36, 2),
    Shape("letter", 20000, 16, 0, 26),
    Shape("balance-scale", 625, 4, 0, 3),
    Shape("mfeat-factors", 2000, 216, 0, 10),
    Shape("breast-w", 699, 9, 0, 2, 0.003),
    Shape("cmc", 1473, 2, 7, 3),
    Shape("credit-approval", 690, 6, 9, 2, 0.006),
    Shape("credit-g", 1000, 7, 13, 2),
    Shape("diabetes", 768, 8, 0, 2),
    Shape("spambase", 4601, 57, 0, 2),
    Shape("splice", 3190, 0, 60, 3),
    Shape("tic-tac-toe", 958, 0, 9, 2),
    Shape("vehicle", 846, 18, 0, 4),
    Shape("electricity", 45312, 7, 1, 2),
    Shape("satimage", 6430, 36, 0, 6),
    Shape("eucalyptus", 736, 14, 5, 5, 0.03),
    Shape("isolet", 7797, 617, 0, 26),
    Shape("vowel", 990, 10, 2, 11),
    Shape("dmft", 797, 0, 4, 6),
    Shape("pc4", 1458, 37, 0, 2),
    Shape("phoneme", 5404, 5, 0, 2),
    Shape("blood-transfusion", 748, 4, 0, 2),
    Shape("adult", 48842, 6, 8, 2, 0.01),
    Shape("nomao", 34465, 89, 29, 2),
    Shape("bank-marketing", 45211, 7, 9, 2),
    Shape("churn", 5000, 16, 4, 2),
    Shape("segment", 2310, 16, 0, 7),
    Shape("sick", 3772, 7, 22, 2, 0.055),
    Shape("optdigits", 5620, 64, 0, 10),
    Shape("pendigits", 10992, 16, 0, 10),
    Shape("jungle-chess", 44819, 6, 0, 3),
    Shape("wall-robot", 5456, 24, 0, 4),
    Shape("mice-protein", 1080, 77, 0, 8, 0.016),
    Shape("cylinder-bands", 540, 18, 19, 2, 0.05),
    Shape("steel-plates", 1941, 27, 0, 7),
    Shape("qsar-biodeg", 1055, 41, 0, 2),
    Shape("madelon", 2600, 500, 0, 2),
    Shape("dna", 3186, 0, 180, 3),
    Shape("semeion", 1593, 256, 0, 10),
    Shape("ilpd", 583, 9, 1, 2),
)
"""40 of the 72 tasks."""
MOST_ROWS = 2000
"""The most rows to train on: 80 % of the task's, but not more."""


@dataclass(frozen=True)
class Drawn:
    """A pipeline that was drawn, not yet fitted. `steps`: the classes of its steps, as readers see them."""

    number: int
    shape: Shape
    pipeline: Any
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.number:03d} {self.shape.name}: {' → '.join(self.steps)}"

    def fitted(self, rows: int, most: int = MOST_ROWS) -> tuple[Any, Array]:
        """(the fitted pipeline, so many other rows to score). All differ: a branch predictor would learn a few rows that come again, and
        scikit-learn's trees took 0.02 µs a row instead of 0.1. most: the most rows to train on."""
        count = min(self.shape.rows * 4 // 5, most)
        X, y = data(self.shape, self.number, count + rows)
        return self.pipeline.fit(X[:count], y[:count]), X[count:]


def data(shape: Shape, seed: int, rows: int) -> tuple[Array, Array]:
    """(columns, classes) as the experiment had them: a float64 matrix, categories as codes, missing values as NaN. Numbers are partly
    skewed, partly counts with ties, as tables of people are. Every class has some rows."""
    random = np.random.default_rng((SEED, seed))
    numbers = random.normal(size=(rows, shape.numbers))
    kinds = random.integers(0, 3, shape.numbers)
    numbers[:, kinds == 1] = np.exp(numbers[:, kinds == 1])
    numbers[:, kinds == 2] = np.round(4 * np.abs(numbers[:, kinds == 2]))
    codes = np.column_stack(
        [random.integers(0, random.integers(2, 8), rows) for _ in range(shape.categories)] or [np.empty((rows, 0))]
    )
    X = np.hstack([numbers, codes]).astype(np.float64)
    used = random.permutation(X.shape[1])[:12]
    scaled = (X[:, used] - X[:, used].mean(axis=0)) / (X[:, used].std(axis=0) + 1e-9)
    scores = scaled @ random.normal(size=(len(used), shape.classes)) + random.gumbel(size=(rows, shape.classes))
    y = scores.argmax(axis=1)
    y[: 10 * shape.classes] = np.repeat(np.arange(shape.classes), 10)
    if shape.missing:
        X[random.random(X.shape) < shape.missing] = np.nan
    return X, y


def draw(count: int) -> list[Drawn]:
    """So many pipelines; the first ones are the same for every count."""
    return [_draw(number) for number in range(count)]


def _draw(number: int) -> Drawn:
    random = np.random.default_rng((SEED, 1, number))

    def one(*some: Any) -> Any:
        return some[random.integers(len(some))]

    def happens(share: float) -> bool:
        return bool(random.random() < share)

    shape = one(*SHAPES)
    width = shape.numbers + shape.categories
    kind = random.choice(list(MODELS), p=np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values()))
    steps: list[Any] = []
    encoded = bool(shape.categories) and happens(0.6)
    imputes = shape.missing > 0 or happens(0.35)
    if imputes and not (encoded and shape.numbers):
        steps.append(_imputer(one))
    if encoded:
        encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        if shape.numbers:
            numbers = _imputer(one) if imputes else "passthrough"
            if imputes and happens(0.5):
                numbers = make_pipeline(numbers, preprocessing.StandardScaler())
            texts = make_pipeline(impute.SimpleImputer(strategy="most_frequent"), encoder) if imputes else encoder
            places = [("numbers", numbers, list(range(shape.numbers))), ("codes", texts, list(range(shape.numbers, width)))]
            steps.append(ColumnTransformer(places))
        else:
            steps.append(encoder)
    if happens(0.65):
        steps.append(_scaler(one, width))
    if happens(0.35):
        steps.append(_reduction(one, width))
    if kind == "MultinomialNB":
        steps.append(preprocessing.MinMaxScaler(clip=True))
    model = MODELS[kind](one)
    if width > 60 and getattr(model, "max_features", None) == 0.5:
        model.set_params(max_features="sqrt")  # half of 617 columns for each of 300 trees take minutes to train
    steps.append(model)
    return Drawn(number, shape, make_pipeline(*steps), tuple(_name(step) for step in steps))


def _name(step: Any) -> str:
    name = type(step).__name__
    if isinstance(step, preprocessing.QuantileTransformer):
        return f"{name}({step.output_distribution})"
    return name


def _imputer(one: Any) -> Any:
    strategy = one("mean", "mean", "median", "most_frequent", "constant")
    return impute.SimpleImputer(strategy=strategy, add_indicator=one(False, False, False, True))


def _scaler(one: Any, width: int) -> Any:
    makers: Sequence[Any] = (
        *3 * (preprocessing.StandardScaler,),
        *2 * (preprocessing.MinMaxScaler,),
        preprocessing.MaxAbsScaler,
        preprocessing.RobustScaler,
        lambda: preprocessing.Normalizer(one("l1", "l2", "max")),
        lambda: preprocessing.QuantileTransformer(
            n_quantiles=one(10, 100, 1000), output_distribution=one("uniform", "normal"), random_state=0
        ),
        lambda: preprocessing.KBinsDiscretizer(one(3, 5, 10), encode=one("onehot-dense", "ordinal"), strategy="uniform"),
        lambda: (
            preprocessing.PolynomialFeatures(2, include_bias=one(True, False))
            if width <= 40
            else preprocessing.StandardScaler()
        ),
        lambda: preprocessing.PowerTransformer(),
        lambda: preprocessing.Binarizer(),
    )
    return one(*makers)()


def _reduction(one: Any, width: int) -> Any:
    few = max(1, min(width // 2, one(2, 5, 20)))
    makers: Sequence[Any] = (
        lambda: decomposition.PCA(few, whiten=one(False, True), random_state=0),
        lambda: decomposition.TruncatedSVD(max(1, min(few, width - 1)), random_state=0),
        lambda: decomposition.FastICA(few, random_state=0, max_iter=100),
        lambda: decomposition.KernelPCA(few, kernel=one("linear", "rbf", "poly"), random_state=0),
        lambda: feature_selection.SelectKBest(k=few),
        lambda: feature_selection.SelectPercentile(percentile=one(20, 50, 80)),
        lambda: feature_selection.VarianceThreshold(),
        lambda: discriminant_analysis.LinearDiscriminantAnalysis(),
    )
    return one(*makers)()


def _trees(one: Any) -> dict[str, Any]:
    return {
        "n_estimators": one(10, 100, 100, 300),
        "max_depth": one(None, None, 4, 8, 16),
        "max_features": one("sqrt", 0.5),
        "min_samples_leaf": one(1, 1, 5),
        "random_state": 0,
    }


MODELS: dict[str, Any] = {
    "RandomForest": lambda one: ensemble.RandomForestClassifier(**_trees(one), criterion=one("gini", "entropy")),
    "ExtraTrees": lambda one: ensemble.ExtraTreesClassifier(**_trees(one)),
    "GradientBoosting": lambda one: ensemble.GradientBoostingClassifier(
        n_estimators=one(20, 50), max_depth=one(3, 5), max_features="sqrt", random_state=0
    ),
    "HistGradientBoosting": lambda one: ensemble.HistGradientBoostingClassifier(
        max_iter=one(20, 50), max_leaf_nodes=one(15, 31), random_state=0
    ),
    "AdaBoost": lambda one: ensemble.AdaBoostClassifier(
        tree.DecisionTreeClassifier(max_depth=one(1, 3, 8)), n_estimators=one(50, 100), random_state=0
    ),
    "DecisionTree": lambda one: tree.DecisionTreeClassifier(max_depth=one(None, 5, 10), random_state=0),
    "LogisticRegression": lambda one: linear_model.LogisticRegression(C=one(0.01, 1.0, 100.0), max_iter=200),
    "LogisticRegressionCV": lambda one: linear_model.LogisticRegressionCV(
        Cs=3, cv=3, max_iter=100, l1_ratios=(0.0,), use_legacy_attributes=False
    ),
    "SGD": lambda one: linear_model.SGDClassifier(loss=one("hinge", "log_loss", "modified_huber"), random_state=0, max_iter=50),
    "GaussianNB": lambda one: naive_bayes.GaussianNB(),
    "BernoulliNB": lambda one: naive_bayes.BernoulliNB(alpha=one(0.01, 1.0)),
    "MultinomialNB": lambda one: naive_bayes.MultinomialNB(),
    "MLP": lambda one: neural_network.MLPClassifier(
        one((32,), (64, 32), (128,)), activation=one("relu", "tanh", "logistic"), max_iter=40, random_state=0
    ),
    "SVC": lambda one: svm.SVC(C=one(0.1, 1.0, 10.0), kernel=one("rbf", "rbf", "poly", "linear", "sigmoid"), cache_size=500),
    "NuSVC": lambda one: svm.NuSVC(nu=0.1, kernel=one("rbf", "poly")),
    "LinearSVC": lambda one: svm.LinearSVC(C=one(0.1, 1.0), max_iter=500),
    "KNN": lambda one: neighbors.KNeighborsClassifier(one(1, 5, 20), weights=one("uniform", "distance"), p=one(1, 2, 2)),
}
WEIGHTS = {
    "RandomForest": 16,
    "ExtraTrees": 5,
    "GradientBoosting": 8,
    "HistGradientBoosting": 3,
    "AdaBoost": 7,
    "DecisionTree": 10,
    "LogisticRegression": 10,
    "LogisticRegressionCV": 1,
    "SGD": 5,
    "GaussianNB": 4,
    "BernoulliNB": 3,
    "MultinomialNB": 1,
    "MLP": 6,
    "SVC": 10,
    "NuSVC": 1,
    "LinearSVC": 3,
    "KNN": 7,
}
"""How often each model comes, as on OpenML: forests, support vectors, trees and linear models most."""
