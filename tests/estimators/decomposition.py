"""Linear projections."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA, FactorAnalysis, FastICA, IncrementalPCA, TruncatedSVD

from estimators.case import Case


def _iris(model, dtype=np.float64):
    X, _ = load_iris(return_X_y=True)
    return model.fit(X.astype(dtype)), X


def _digits(model):
    X, _ = load_digits(return_X_y=True)
    return model.fit(X), X[:200]


CASES = [
    Case("PCA", lambda: _iris(PCA(2))),
    Case("PCA all components", lambda: _iris(PCA())),
    Case("PCA whiten", lambda: _iris(PCA(3, whiten=True))),
    Case("PCA whiten, rank deficient", lambda: _digits(PCA(20, whiten=True))),
    Case("PCA float32", lambda: _iris(PCA(2), np.float32)),
    Case("PCA mle", lambda: _iris(PCA("mle"))),
    Case("PCA randomized", lambda: _digits(PCA(5, svd_solver="randomized", random_state=0))),
    Case("IncrementalPCA", lambda: _iris(IncrementalPCA(2, whiten=True))),
    Case("TruncatedSVD", lambda: _iris(TruncatedSVD(2, random_state=0))),
    Case("TruncatedSVD arpack", lambda: _digits(TruncatedSVD(5, algorithm="arpack", random_state=0))),
    Case("FastICA", lambda: _iris(FastICA(2, random_state=0, whiten="unit-variance"))),
    Case("FastICA arbitrary variance", lambda: _iris(FastICA(2, random_state=0, whiten="arbitrary-variance"))),
    Case("FastICA without whitening", lambda: _iris(FastICA(random_state=0, whiten=False, max_iter=5))),
    Case("FactorAnalysis", lambda: _iris(FactorAnalysis(2))),
]
