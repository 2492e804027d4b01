"""Bounds on values inside a graph. They decide whether a computed value must be tested in numpy at every call."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.decomposition import KernelPCA
from sklearn.ensemble import StackingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import Isomap
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import hbc

MEMBERS = {
    "softmax": LogisticRegression(max_iter=1000),
    "naive Bayes": GaussianNB(),
    "scaled": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "logistic": OneVsRestClassifier(LogisticRegression(max_iter=1000)),
    "calibrated": CalibratedClassifierCV(LogisticRegression(max_iter=1000), cv=2),
    "isotonic": CalibratedClassifierCV(LogisticRegression(max_iter=1000), cv=2, method="isotonic"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_probabilities_are_known_to_be_small(name: str) -> None:
    """The final estimator rejects NaN and ±inf, but ordinary inputs cannot lead to them. So no guard computes the members in numpy."""
    X, y = load_iris(return_X_y=True)
    model: Any = StackingClassifier([("member", MEMBERS[name]), ("tree", DecisionTreeClassifier(max_depth=3))], cv=2).fit(X, y)
    for variant in hbc.convert(model, "numpy").variants.values():
        assert variant.facts.limits.guards
        assert all(guard.safe >= 1e4 for guard in variant.facts.limits.guards)


FROM_DISTANCES = {
    "Isomap": Isomap(neighbors_algorithm="kd_tree"),
    "Isomap, by brute force": Isomap(n_neighbors=3, neighbors_algorithm="brute"),
    "Isomap, most points": Isomap(n_neighbors=48, neighbors_algorithm="ball_tree"),
    **{f"Isomap, {metric}": Isomap(metric=metric) for metric in ("manhattan", "chebyshev", "canberra")},
    "Isomap, minkowski": Isomap(metric="minkowski", p=3),
    "kernel PCA": KernelPCA(kernel="rbf"),
    "Gaussian process": GaussianProcessClassifier(2.0 * RBF([1.0, 2.0, 3.0, 4.0])),
    "Gaussian process, exponential": GaussianProcessClassifier(Matern(nu=0.5)),
}


@pytest.mark.parametrize("name", FROM_DISTANCES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_follows_from_distances_is_known_to_be_small(name: str, dtype: Any) -> None:
    """Guards that computed Isomap's geodesics and kernels in numpy at every call took 9/10 of its time (2/3 for a Gaussian process). The
    magnitude that needs no guard is right: from such inputs no rejected value is computed."""
    X, y = load_iris(return_X_y=True)
    X, y = X[3::3].astype(dtype), y[3::3]  # an odd number, so that a leaf of the tree is padded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Isomap joins the two parts of the graph of neighbours
        model = FROM_DISTANCES[name].fit(X, y)
    compiled = hbc.convert(model, "numpy", X)
    limits = compiled.variants[compiled._main].facts.limits
    assert limits.guards
    rng = np.random.default_rng(0)
    for guard in limits.guards:
        assert guard.safe >= 10
        corners = guard.safe * rng.choice([-1.0, 1.0], (200, 4))
        rows = np.concatenate([corners, corners * rng.random((200, 4)), X]).astype(dtype)
        assert guard.harmless([rows])
        with np.errstate(all="raise", under="ignore"):
            (value,) = guard.graph.evaluate(rows)["value"]
        guard.require(value)


def test_what_may_be_large_is_still_computed() -> None:
    """A row beyond that magnitude still runs the guard."""
    X = load_iris().data[:50]
    compiled = hbc.convert(Isomap().fit(X), "numpy")
    far = np.concatenate([X, X[:1] * 1e9])
    with pytest.raises(hbc.InvalidInputError, match="the model itself computes"):
        compiled.transform(far)
    (guard,) = compiled.variants[compiled._main].facts.limits.guards
    assert not guard.harmless([far])


def test_sums_of_linear_leaves_are_known_to_be_small() -> None:
    """The number of a leaf, by which coefficients are looked up, had no known magnitude. So scores were computed in numpy at every call:
    10,000 rows of 10 trees took 238 ms, and 2.4 without (source 8)."""
    lightgbm = pytest.importorskip("lightgbm")
    X, y = load_iris(return_X_y=True)
    X[::5, 0] = np.nan
    new = lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, linear_tree=True, verbose=-1)
    source = CalibratedClassifierCV(new, method="isotonic", cv=2, ensemble=False).fit(X, y)
    compiled = hbc.convert(source, "numpy")
    for variant in compiled.variants.values():
        assert variant.facts.limits.guards
        assert all(guard.safe >= 1e12 for guard in variant.facts.limits.guards)
    np.testing.assert_allclose(compiled.predict_proba(X * 1e12), source.predict_proba(X * 1e12), rtol=1e-9)
