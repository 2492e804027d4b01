"""Methods that fail in the source for every input, since their parameters cannot be computed: the model converts without them, and they
are refused with the source's reason when they are called."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(60, 2)) @ RANDOM.normal(size=(2, 5))  # of rank 2
Y = (X[:, 0] > 0).astype(int)


def without_noise(noise: float) -> Any:
    """A model with this noise variance, as a fit to data without noise leaves it, up to rounding. Its covariance is exactly singular, and
    not up to rounding: whether LAPACK fails would depend on the processor."""
    model = PCA(2).fit(X)
    model.noise_variance_ = noise
    model.components_ = np.eye(2, X.shape[1])
    return model


def broken_process() -> Any:
    model = GaussianProcessClassifier().fit(X, Y)
    model.base_estimator_.L_ = np.zeros_like(model.base_estimator_.L_)
    return model


def searched() -> Any:
    model = GridSearchCV(PCA(2), {"whiten": [True]}, cv=2, scoring=lambda m, X, y=None: 0.0).fit(X)
    model.best_estimator_.noise_variance_ = 0.0
    model.best_estimator_.components_ = np.eye(2, X.shape[1])
    return model


MODELS = {
    "PCA, zero": (lambda: without_noise(0.0), "transform", "score_samples"),
    "PCA, subnormal": (lambda: without_noise(1e-320), "transform", "score_samples"),
    "pipeline": (
        lambda: make_pipeline(StandardScaler().fit(X), without_noise(0.0)),
        "transform",
        "score_samples",
    ),
    "frozen": (lambda: FrozenEstimator(without_noise(0.0)), "transform", "score_samples"),
    "search": (searched, "transform", "score_samples"),
    "Gaussian process": (broken_process, "predict", "predict_proba"),
}


def fails(model: Any, method: str) -> bool:
    with np.errstate(all="ignore"):
        try:
            found = getattr(model, method)(X)
        except Exception:
            return True
    return bool(np.isnan(found).all())


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_the_other_methods_work(name: str, tmp_path: Any) -> None:
    make, works, broken = MODELS[name]
    model = make()
    expected = getattr(model, works)(X)
    assert fails(model, broken)
    compiled = hbc.convert(model, "numpy")
    compiled.save(tmp_path / "model.hbc")
    for other in (compiled, hbc.load(tmp_path / "model.hbc"), pickle.loads(pickle.dumps(compiled)), copy.deepcopy(compiled)):
        np.testing.assert_allclose(getattr(other, works)(X), expected, rtol=1e-6, atol=1e-9)
        if broken in other.methods:  # the source gives NaN instead of an error
            np.testing.assert_array_equal(getattr(other, broken)(X), getattr(model, broken)(X))
            continue
        assert hasattr(other, broken)
        with pytest.raises(
            hbc.UnsupportedOperatorError, match=rf"at {broken}.*in the source library too, for every input: \w+Error:"
        ):
            getattr(other, broken)(X)
        with pytest.raises(ValueError, match=r"method: found .*, expected one of"):
            other.bind(broken)
        other.explain()


def test_by_tvm() -> None:
    model = without_noise(0.0)
    compiled = hbc.convert(model, "tvm")
    np.testing.assert_allclose(compiled.transform(X), model.transform(X), rtol=1e-7, atol=1e-12)


def test_the_likelihood_of_a_sparse_matrix() -> None:
    """PCA projects one, but rejects it in `score_samples`."""
    codes = (X > 0).astype(int)
    model = make_pipeline(OneHotEncoder(), PCA(2)).fit(codes)
    with pytest.raises(TypeError, match="dense data is required"):
        model.score_samples(codes)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_allclose(compiled.transform(codes), model.transform(codes), atol=1e-9)
    with pytest.raises(hbc.UnsupportedOperatorError, match="dense data is required"):
        compiled.score_samples(codes)


@pytest.mark.parametrize("solver", ["svd", "lsqr"])
def test_a_discriminant_of_one_class_is_refused(solver: str) -> None:
    """Positive decisions have no label in the source. Compiled code would read behind the end of `classes_`."""
    model = LinearDiscriminantAnalysis(solver=solver).fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="axis 1"):
        model.predict_proba(X)
    with pytest.raises(hbc.UnsupportedOperatorError, match="fitted on one class"):
        hbc.convert(model, "numpy")
