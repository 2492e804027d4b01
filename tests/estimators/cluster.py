"""Clusters, mixtures, discriminants and covariances."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn import cluster as cl
from sklearn import covariance as cov
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import NearestCentroid

from estimators.case import Case

NAMES = np.array(["setosa", "versicolor", "virginica"])
COVARIANCES = ("full", "tied", "diag", "spherical")


def _data(features=4, classes=3):
    rng = np.random.default_rng(features)
    y = rng.integers(0, classes, 200)
    return rng.standard_normal((200, features)) * (1 + y[:, None] / 2) + 3 * y[:, None], y


def _fitted(model, names=None, dtype=np.float64, **data):
    X, y = _data(**data)
    return model.fit(X.astype(dtype), y if names is None else np.asarray(names)[y]), X


def _elsewhere(model, dtype=np.float64):
    """A fitted model, and rows that it was not fitted on. The distance of a point to itself would be a rounding error of
    x² - 2xy + y²."""
    X, y = _data()
    return model.fit(X.astype(dtype), y), X + 0.03


def _integers(model):
    X, y = _data()
    return model.fit(X, y), (X * 2).round().astype(np.int64)


def _sparse():
    """Whole numbers. Many are equally near to two exemplars."""
    X = np.random.default_rng(0).poisson(1.0, (60, 4)).astype(float)
    return cl.AffinityPropagation(random_state=0).fit(sparse.csr_array(X)), X


LDA, QDA = LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
WITHOUT_TRANSFORM = ("predict", "predict_proba", "predict_log_proba", "decision_function")
SPHERICAL = {"rtol": 2e-6, "atol": 1e-6, "reason": "of float32 rows, Σx² is added up in float32, in einsum's own order"}

CASES = [
    # Lloyd's kernel takes rows and centres of one dtype; for others the source raises an error.
    Case("KMeans", lambda: _fitted(cl.KMeans(5, n_init=1, random_state=0)), float32=False),
    Case("KMeans elkan", lambda: _fitted(cl.KMeans(3, n_init=1, random_state=0, algorithm="elkan")), float32=False),
    Case("MiniBatchKMeans", lambda: _fitted(cl.MiniBatchKMeans(4, n_init=1, random_state=0)), float32=False),
    Case("BisectingKMeans", lambda: _fitted(cl.BisectingKMeans(6, random_state=0)), float32=False),
    Case("BisectingKMeans one cluster", lambda: _fitted(cl.BisectingKMeans(1, random_state=0)), float32=False),
    Case("MeanShift", lambda: _fitted(cl.MeanShift(bandwidth=4))),
    Case("MeanShift float32", lambda: _fitted(cl.MeanShift(bandwidth=4), dtype=np.float32)),
    Case("AffinityPropagation", lambda: _fitted(cl.AffinityPropagation(random_state=0))),
    Case("AffinityPropagation did not converge", lambda: _fitted(cl.AffinityPropagation(max_iter=2, random_state=0))),
    Case("AffinityPropagation fitted on a sparse matrix", _sparse),
    Case("Birch", lambda: _elsewhere(cl.Birch(threshold=2.0, n_clusters=3))),
    Case("Birch without clusters, float32", lambda: _elsewhere(cl.Birch(threshold=2.0, n_clusters=None), np.float32)),
    Case("FeatureAgglomeration", lambda: _fitted(cl.FeatureAgglomeration(3), features=8)),
    Case("FeatureAgglomeration max", lambda: _fitted(cl.FeatureAgglomeration(3, pooling_func=np.max), features=8)),
    Case("FeatureAgglomeration sum", lambda: _fitted(cl.FeatureAgglomeration(3, pooling_func=np.sum), features=8)),
    Case("FeatureAgglomeration on integers", lambda: _integers(cl.FeatureAgglomeration(2))),
    *(
        Case(
            f"GaussianMixture {kind}",
            lambda k=kind: _fitted(GaussianMixture(3, covariance_type=k, random_state=0)),
            **SPHERICAL if kind == "spherical" else {},
        )
        for kind in COVARIANCES
    ),
    *(
        Case(
            f"BayesianGaussianMixture {kind}",
            lambda k=kind: _fitted(BayesianGaussianMixture(n_components=3, covariance_type=k, random_state=0)),
            **SPHERICAL if kind == "spherical" else {},
        )
        for kind in COVARIANCES
    ),
    Case(
        "BayesianGaussianMixture dirichlet_distribution",
        lambda: _fitted(
            BayesianGaussianMixture(n_components=3, weight_concentration_prior_type="dirichlet_distribution", random_state=0)
        ),
    ),
    Case("GaussianMixture float32", lambda: _fitted(GaussianMixture(2, random_state=0), dtype=np.float32)),
    *(
        Case(f"GaussianMixture {kind} on integers", lambda k=kind: _integers(GaussianMixture(2, covariance_type=k)))
        for kind in COVARIANCES
    ),
    Case("LinearDiscriminantAnalysis svd", lambda: _fitted(LDA(), NAMES)),
    Case("LinearDiscriminantAnalysis svd, one component", lambda: _fitted(LDA(n_components=1))),
    Case("LinearDiscriminantAnalysis eigen", lambda: _fitted(LDA(solver="eigen", shrinkage="auto"))),
    Case("LinearDiscriminantAnalysis lsqr", lambda: _fitted(LDA(solver="lsqr")), methods=WITHOUT_TRANSFORM),
    Case("LinearDiscriminantAnalysis binary", lambda: _fitted(LDA(), ["no", "yes"], classes=2)),
    Case("LinearDiscriminantAnalysis float32", lambda: _fitted(LDA(), dtype=np.float32)),
    Case("QuadraticDiscriminantAnalysis", lambda: _fitted(QDA(), NAMES)),
    Case("QuadraticDiscriminantAnalysis binary", lambda: _fitted(QDA(reg_param=0.1), classes=2)),
    Case("QuadraticDiscriminantAnalysis eigen", lambda: _fitted(QDA(solver="eigen", shrinkage=0.1))),
    Case("NearestCentroid", lambda: _fitted(NearestCentroid(), NAMES)),
    Case("NearestCentroid shrunken", lambda: _fitted(NearestCentroid(shrink_threshold=0.2))),
    Case("NearestCentroid priors", lambda: _fitted(NearestCentroid(priors="empirical"))),
    Case("NearestCentroid manhattan", lambda: _fitted(NearestCentroid(metric="manhattan"))),
    Case("NearestCentroid manhattan, priors", lambda: _fitted(NearestCentroid(metric="manhattan", priors=[0.2, 0.3, 0.5]))),
    Case("NearestCentroid binary", lambda: _fitted(NearestCentroid(), classes=2)),
    Case("NearestCentroid float32", lambda: _fitted(NearestCentroid(), dtype=np.float32)),
    Case("EllipticEnvelope", lambda: _fitted(cov.EllipticEnvelope(random_state=0))),
    Case("EllipticEnvelope float32", lambda: _fitted(cov.EllipticEnvelope(random_state=0), dtype=np.float32)),
    *(
        Case(type(model).__name__, lambda m=model: _fitted(m), methods=("mahalanobis",))
        for model in (
            cov.EmpiricalCovariance(),
            cov.GraphicalLasso(),
            cov.GraphicalLassoCV(cv=2, n_refinements=1),
            cov.LedoitWolf(),
            cov.MinCovDet(random_state=0),
            cov.OAS(),
            cov.ShrunkCovariance(),
        )
    ),
]
