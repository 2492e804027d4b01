"""Selectors that select nothing give an array without columns, also for a sparse matrix. Results beside it are the source's or refused."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_selection import (
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFromModel,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    VarianceThreshold,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

import hbc

pytestmark = pytest.mark.filterwarnings("ignore:No features were selected", "ignore:Features .* are constant")

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.normal(size=(20, 4)), RANDOM.integers(0, 2, 20)

SELECTORS = [
    GenericUnivariateSelect(mode="k_best", param=0),
    SelectFdr(alpha=0),
    SelectFpr(alpha=0),
    SelectFromModel(LogisticRegression(), threshold=1e9),
    SelectFwe(alpha=0),
    SelectKBest(k=0),
    SelectPercentile(percentile=0),
    VarianceThreshold(),
]
PLACES = {
    "alone": lambda selector: selector,
    "last": lambda selector: make_pipeline(MaxAbsScaler(), selector),
    "after a scaler of floats": lambda selector: make_pipeline(StandardScaler(with_mean=False), selector),
    "beside its like": lambda selector: make_union(selector, clone(selector)),
    "beside a sparse matrix": lambda selector: make_union(selector, MaxAbsScaler()),
    "of some columns": lambda selector: make_column_transformer((selector, [0, 1]), (MaxAbsScaler(), [2, 3])),
    "beside the rest": lambda selector: make_column_transformer((selector, [0, 1]), remainder="passthrough"),
}
INPUTS = {
    "float64": X,
    "float32": X.astype(np.float32),
    "int64": (3 * X).astype(int),
    "no rows": X[:0],
    "list": X.tolist(),
    "objects": X.astype(object),
    "frame": pandas.DataFrame(X),
    "frame of objects": pandas.DataFrame(X.astype(object)),
    "csr_matrix": scipy.sparse.csr_matrix(X),
    "csr_array of float32": scipy.sparse.csr_array(X.astype(np.float32)),
    "csc_array": scipy.sparse.csc_array(X),
    "coo_matrix": scipy.sparse.coo_matrix(X),
}


def fitted(selector, place):
    """The model; what a threshold of variances would keep is set afterwards, since it does not fit where nothing is left."""
    model = PLACES[place](clone(selector))
    model.fit(X, Y)
    return model


def emptied(model):
    """The same, where every VarianceThreshold in it keeps nothing."""
    for name, part in vars(model).items():
        if name == "variances_":
            model.variances_ = np.zeros_like(part)
        for member in part if isinstance(part, list) else ():
            for piece in member if isinstance(member, tuple) else ():
                if hasattr(piece, "fit"):
                    emptied(piece)
    return model


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: type(s).__name__)
def test_nothing_selected(selector, place) -> None:
    """Class, dtype and shape are the source's, or the input is refused."""
    model = emptied(fitted(selector, place))
    compiled = hbc.convert(model, "numpy")
    answered = 0
    for given in INPUTS.values():
        try:
            expected = model.transform(given)
        except (TypeError, ValueError):
            expected = None
        try:
            found = compiled.transform(given)
        except hbc.InvalidInputError:
            continue
        answered += 1
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        dense = [value.toarray() if scipy.sparse.issparse(value) else value for value in (found, expected)]
        np.testing.assert_allclose(*dense, rtol=1e-6 if found.dtype == np.float32 else 1e-12)
    assert answered >= 7


@pytest.mark.parametrize("backend", ["tvm", "torch", "onnx"])
def test_nothing_selected_by_every_backend(backend) -> None:
    model = SelectKBest(k=0).fit(X, Y)
    compiled = hbc.convert(model, backend)
    for given in (X, scipy.sparse.csr_matrix(X)):
        found = compiled.transform(given)
        assert type(found) is np.ndarray
        assert found.shape == (20, 0)


def test_python_objects_beside_what_is_computed_are_refused() -> None:
    """numpy.hstack of a list's own values and computed ones makes Python objects of all."""
    for k in (0, 1):
        model = make_column_transformer((SelectKBest(k=k), [0, 1]), (MaxAbsScaler(), [2, 3])).fit(X, Y)
        assert model.transform(X.tolist()).dtype == object
        with pytest.raises(hbc.InvalidInputError, match=r"expected an array or a frame"):
            hbc.convert(model, "numpy").transform(X.tolist())
