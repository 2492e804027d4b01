"""Methods that return the caller's own array, as scikit-learn's do, and methods that only return an equal one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from backends import BACKENDS
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

import hbc

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
IDENTITIES: dict[str, BaseEstimator] = {
    "function": FunctionTransformer(),
    "passthrough": Pipeline([("nothing", "passthrough")]),
    "both": Pipeline([("none", None), ("function", FunctionTransformer()), ("nothing", "passthrough")]),
}
OTHERS: dict[str, BaseEstimator] = {
    "validated": FunctionTransformer(validate=True),
    "a function": FunctionTransformer(lambda x: x + 0.0),
    "all columns": SelectKBest(k="all"),
    "columns": ColumnTransformer([("all", "passthrough", [0, 1, 2])]),
    "union": FeatureUnion([("all", "passthrough")]),
    "imputer": SimpleImputer(),
    "pipeline": Pipeline([("nothing", "passthrough"), ("union", FeatureUnion([("all", "passthrough")]))]),
    "nested": Pipeline([("inner", Pipeline([("nothing", "passthrough")]))]),
}
INPUTS: dict[str, np.ndarray] = {
    "float64": X,
    "float32": X.astype(np.float32),
    "int64": (X * 9).astype(np.int64),
    "int8": (X * 9).astype(np.int8),
    "bool": X > 0,
    "turned over": np.asfortranarray(X),
    "every other row": X[::2],
    "no rows": X[:0],
    "one row": X[:1],
    "special": np.array([[np.nan, np.inf, -0.0], [-np.inf, 1e-310, 1e300]]),
}


def read_only() -> np.ndarray:
    data = X.copy()
    data.setflags(write=False)
    return data


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IDENTITIES)
def test_the_array_itself(name: str, backend: str) -> None:
    source = IDENTITIES[name].fit(X)
    model = hbc.convert(source, backend, X)
    for data in (*INPUTS.values(), read_only()):
        before = data.copy()
        for _ in range(2):  # the second call has a shorter way
            assert source.transform(data) is data
            assert model.transform(data) is data
        np.testing.assert_array_equal(data, before)


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
def test_the_sparse_matrix_itself(name: str, kind: str) -> None:
    source = IDENTITIES[name].fit(X)
    model = hbc.convert(source, "numpy", X)
    for holder in ("matrix", "array"):
        make = getattr(scipy.sparse, f"{kind}_{holder}")
        given = make(np.where(X > 0, X, 0))
        assert source.transform(given) is given
        assert model.transform(given) is given
        with pytest.raises(hbc.InvalidInputError, match="found 2 columns"):
            model.transform(make(X[:, :2]))


@pytest.mark.parametrize("holder", ["matrix", "array"])
def test_the_format_behind_a_function(holder: str) -> None:
    """CSC stays CSC: for a function, after a validation, and in a scaler behind an identity."""
    sources = [
        FunctionTransformer(np.abs),
        FunctionTransformer(validate=True, accept_sparse=True),
        Pipeline([("f", FunctionTransformer()), ("s", MaxAbsScaler())]),
    ]
    for source in sources:
        model = hbc.convert(source.fit(X), "numpy", X)
        for kind in ("csr", "csc"):
            given = getattr(scipy.sparse, f"{kind}_{holder}")(np.where(X > 0, X, 0))
            expected, found = source.transform(given), model.transform(given)
            assert type(found) is type(expected)
            np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-14)


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_be_new_memory(name: str) -> None:
    source = OTHERS[name].fit(X, Y)
    model = hbc.convert(source, "tvm", X)
    for _ in range(2):
        found = model.transform(X)
        np.testing.assert_array_equal(found, source.transform(X))
        assert not np.shares_memory(found, X)


def test_other_containers_become_arrays() -> None:
    model = hbc.convert(FunctionTransformer().fit(X), "tvm", X)
    model.transform(X)
    for given in (X.tolist(), pd.DataFrame(X), np.ma.masked_array(X)):
        found = model.transform(given)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, X)
        assert not np.shares_memory(found, X)


def test_what_is_no_such_matrix_is_rejected() -> None:
    model = hbc.convert(FunctionTransformer().fit(X), "tvm", X)
    model.transform(X)
    for wrong in (X[:, :2], X[0], np.array([["a", "b", "c"]])):
        with pytest.raises(hbc.InvalidInputError):
            model.transform(wrong)


def test_a_saved_model_does_the_same(tmp_path) -> None:
    model = hbc.convert(IDENTITIES["both"].fit(X), "tvm", X)
    model.save(tmp_path / "model.hbc")
    loaded = hbc.load(tmp_path / "model.hbc")
    assert loaded.transform(X) is X
    assert loaded.transform(X) is X
    handle = model.bind("transform", np.float64)
    assert not np.shares_memory(handle(X), X)
    np.testing.assert_array_equal(handle(X, handle.empty(len(X))), X)


def test_stacked_objects_are_refused_for_the_reason_that_holds() -> None:
    """It was "The source library does not make numbers of Python objects there", which holds for `transform` only."""
    source = StackingClassifier([("a", LogisticRegression())], passthrough=True).fit(X, Y)
    objects = X[:5].astype(object)
    assert source.transform(objects).dtype == object
    np.testing.assert_array_equal(source.predict(objects), source.predict(X[:5]))
    said = r"found Python objects, .* A result of the source library holds these objects as they are"
    with pytest.raises(hbc.InvalidInputError, match=said):
        hbc.convert(source, "numpy").predict(objects)
