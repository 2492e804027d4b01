"""Linear projections."""

from __future__ import annotations

import numpy as np
from sklearn.cross_decomposition import CCA, PLSSVD, PLSCanonical, PLSRegression
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import (
    PCA,
    DictionaryLearning,
    FactorAnalysis,
    FastICA,
    IncrementalPCA,
    MiniBatchDictionaryLearning,
    MiniBatchSparsePCA,
    SparseCoder,
    SparsePCA,
    TruncatedSVD,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from estimators.case import Case


def _iris(model, dtype=np.float64):
    X, _ = load_iris(return_X_y=True)
    return model.fit(X.astype(dtype)), X


def _digits(model):
    X, _ = load_digits(return_X_y=True)
    return model.fit(X), X[:200]


def _targets(model, columns=2, dtype=np.float64):
    """Fitted on the first columns to predict the others."""
    X, _ = load_iris(return_X_y=True)
    y = X[:, 2:].astype(dtype) if columns == 2 else X[:, 3].astype(dtype)
    return model.fit(X.astype(dtype), y), X


def _atoms():
    return np.random.default_rng(0).normal(size=(3, 4))


INTEGERS = np.random.default_rng(1).integers(0, 9, size=(200, 5))

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
    Case("PLSRegression", lambda: _targets(PLSRegression(2))),
    Case("PLSRegression of one target", lambda: _targets(PLSRegression(2, scale=False), 1)),
    Case("PLSRegression float32", lambda: _targets(PLSRegression(2), dtype=np.float32)),
    Case("PLSRegression of integers", lambda: (PLSRegression(2).fit(INTEGERS, INTEGERS[:, 0] ** 2), INTEGERS)),
    Case("PLSCanonical", lambda: _targets(PLSCanonical(2))),
    Case("PLSCanonical svd", lambda: _targets(PLSCanonical(1, algorithm="svd", scale=False))),
    Case("CCA", lambda: _targets(CCA(2))),
    Case("PLSSVD", lambda: _targets(PLSSVD(2))),
    Case("SparsePCA", lambda: _digits(SparsePCA(3, random_state=0, max_iter=10)), one_row=False),
    Case(
        "SparsePCA with more components than columns",
        lambda: _iris(SparsePCA(6, ridge_alpha=0.5, random_state=0, max_iter=10)),
        one_row=False,
    ),
    Case("SparsePCA float32", lambda: _iris(SparsePCA(2, random_state=0, max_iter=10), np.float32), one_row=False),
    Case("MiniBatchSparsePCA", lambda: _iris(MiniBatchSparsePCA(2, random_state=0, max_iter=10)), one_row=False),
    Case("SparseCoder", lambda: _iris(SparseCoder(_atoms(), transform_algorithm="threshold"))),
    Case(
        "SparseCoder split",
        lambda: _iris(SparseCoder(_atoms(), transform_algorithm="threshold", transform_alpha=0.3, split_sign=True)),
    ),
    Case(
        "DictionaryLearning",
        lambda: _iris(
            DictionaryLearning(3, fit_algorithm="cd", transform_algorithm="threshold", positive_code=True, random_state=0)
        ),
    ),
    Case(
        "MiniBatchDictionaryLearning",
        lambda: _iris(MiniBatchDictionaryLearning(3, transform_algorithm="threshold", max_iter=2, random_state=0), np.float32),
    ),
    Case("GaussianRandomProjection", lambda: _iris(GaussianRandomProjection(3, random_state=0))),
    Case("GaussianRandomProjection of integers", lambda: (GaussianRandomProjection(2, random_state=0).fit(INTEGERS), INTEGERS)),
    Case(
        "SparseRandomProjection",
        lambda: _digits(SparseRandomProjection(7, random_state=0)),
        rounded_ends="whole numbers times 1.07 that cancel: whether 0 or 4e-16 is left depends on the order of the sum",
    ),
    Case(
        "SparseRandomProjection dense float32",
        lambda: _iris(SparseRandomProjection(3, dense_output=True, random_state=0), np.float32),
    ),
]
