"""Kernel densities and imputation by neighbours."""

from __future__ import annotations

import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import KNNImputer
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline

from estimators.case import Case


def _density(model, weights=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    return model.fit(X[:100], sample_weight=rng.random(100) if weights else None), X


def _missing(model, empty=False, value=np.nan, dtype=np.float64):
    """Rows that the model was not fitted on. Some are far from all fitted rows."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((240, 4)).astype(dtype)
    X[rng.random(X.shape) < 0.2] = value
    X[200, :3] = X[201] = value
    if empty:
        X[:, 2] = value
    return model.fit(X[:100]), X[100:].astype(np.float64)


def _few_donors(model):
    """Rows that share columns with fewer training rows than there are neighbours. The last training row lacks these columns."""
    n = np.nan
    X = np.array([[1, 2, n], [n, 5, 1.0], [n, 7, 2.0], [n, n, 3.0], [4, n, n]])
    return model.fit(X), np.concatenate([X, [[n, 2.0, n], [3.0, n, n], [1.0, n, n], [n, n, 1.0], [n, n, n]]])


EXPONENTIAL = {"kernel": "exponential"}
CASES = [
    Case("KernelDensity", lambda: _density(KernelDensity(**EXPONENTIAL, bandwidth=0.9))),
    Case("KernelDensity weights", lambda: _density(KernelDensity(**EXPONENTIAL, bandwidth="scott"), weights=True)),
    Case("KernelDensity ball_tree", lambda: _density(KernelDensity(**EXPONENTIAL, metric="manhattan", algorithm="ball_tree"))),
    Case("KNNImputer", lambda: _missing(KNNImputer())),
    Case("KNNImputer distance", lambda: _missing(KNNImputer(n_neighbors=3, weights="distance"))),
    Case("KNNImputer indicator, empty", lambda: _missing(KNNImputer(n_neighbors=3, add_indicator=True), empty=True)),
    Case("KNNImputer keeps empty", lambda: _missing(KNNImputer(n_neighbors=3, keep_empty_features=True), empty=True)),
    Case("KNNImputer of a number", lambda: _missing(KNNImputer(n_neighbors=3, missing_values=-9.0), value=-9.0)),
    Case("KNNImputer few donors", lambda: _few_donors(KNNImputer(n_neighbors=3))),
    Case("KNNImputer few donors, distance", lambda: _few_donors(KNNImputer(n_neighbors=3, weights="distance"))),
    Case(
        "KNNImputer distance before what rejects NaN",
        lambda: _missing(make_pipeline(KNNImputer(n_neighbors=3, weights="distance"), PCA(2))),
    ),
    Case("KNNImputer float32", lambda: _missing(KNNImputer(n_neighbors=3), dtype=np.float32)),
]
