"""Naive Bayes."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB

from estimators.case import Case


def _iris(model, names=None, dtype=np.float64, **fit):
    X, y = load_iris(return_X_y=True)
    y = y if names is None else np.asarray(names)[y]
    return model.fit(X.astype(dtype), y, **fit), X


def _digits(model, classes=10, dtype=np.float64):
    X, y = load_digits(return_X_y=True)
    kept = y < classes
    return model.fit(X[kept].astype(dtype), y[kept]), X[kept][:200].astype(dtype)


def _categories(model, dtype=np.int64):
    rng = np.random.default_rng(0)
    X = rng.integers(0, [2, 5, 3], (200, 3))
    y = np.array(["no", "yes", "maybe"])[(X.sum(axis=1) + rng.integers(0, 2, 200)) % 3]
    return model.fit(X, y), (X + 0.75 if dtype == np.float64 else X).astype(dtype)


NAMES = ["setosa", "versicolor", "virginica"]

BY_ULPS = "1, or 1 less some ulps, as numpy's logarithms and exponentials round, which hangs on the processor too"

CASES = [
    Case("GaussianNB", lambda: _iris(GaussianNB()), rounded_ends=BY_ULPS),
    Case("GaussianNB priors, strings", lambda: _iris(GaussianNB(priors=[0.2, 0.3, 0.5]), NAMES), rounded_ends=BY_ULPS),
    Case("GaussianNB smoothed", lambda: _digits(GaussianNB(var_smoothing=1e-2))),
    Case("GaussianNB float32", lambda: _iris(GaussianNB(), dtype=np.float32), rounded_ends=BY_ULPS),
    Case("GaussianNB one class", lambda: _digits(GaussianNB(var_smoothing=1e-2), classes=1)),
    Case("BernoulliNB", lambda: _iris(BernoulliNB(binarize=1.5))),
    Case("BernoulliNB threshold that is no float32", lambda: _iris(BernoulliNB(binarize=1.4), NAMES)),
    Case("BernoulliNB threshold of float64", lambda: _iris(BernoulliNB(binarize=np.float64(1.4)))),
    Case("BernoulliNB on integers", lambda: _digits(BernoulliNB(binarize=7.5), dtype=np.int64)),
    Case("BernoulliNB without binarize", lambda: _digits(BernoulliNB(binarize=None, alpha=0.5))),
    Case("BernoulliNB without prior", lambda: _digits(BernoulliNB(fit_prior=False), classes=2)),
    Case("MultinomialNB", lambda: _digits(MultinomialNB())),
    Case("MultinomialNB prior, strings", lambda: _iris(MultinomialNB(class_prior=[0.2, 0.3, 0.5]), NAMES)),
    Case("MultinomialNB on integers", lambda: _digits(MultinomialNB(), dtype=np.int64)),
    Case("MultinomialNB one class", lambda: _digits(MultinomialNB(), classes=1)),
    Case("ComplementNB", lambda: _digits(ComplementNB())),
    Case("ComplementNB norm", lambda: _digits(ComplementNB(norm=True))),
    Case("CategoricalNB", lambda: _categories(CategoricalNB())),
    Case("CategoricalNB on floats", lambda: _categories(CategoricalNB(alpha=0.5, min_categories=6), np.float64)),
    Case("ComplementNB one class", lambda: _digits(ComplementNB(), classes=1)),
]
