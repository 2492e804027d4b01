"""Checks that run inside the compiled function: which rows they accept, and what happens to the others."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.kernel_approximation import AdditiveChi2Sampler, SkewedChi2Sampler
from sklearn.naive_bayes import CategoricalNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

import hbc
from hbc.runtime.model import CompiledModel

RNG = np.random.default_rng(0)
ROWS = 530  # two blocks and a part of one, whose last vector is not full
PLACES = [(0, 0), (15, 1), (16, 2), (255, 0), (256, 1), (511, 2), (512, 0), (527, 1), (528, 2), (529, 0)]


def data(dtype: type) -> np.ndarray:
    """Three columns of 5, 40 and 300 numbers."""
    X = np.column_stack([RNG.integers(0, n, ROWS) for n in (5, 40, 300)]) - 2
    X[:300, 2] = np.arange(300) - 2
    return (X * (1 if dtype is np.int64 else 0.37)).astype(dtype)


def short(model: CompiledModel, method: str, X: np.ndarray) -> np.ndarray | None:
    """The result of the compiled function alone; None if it leaves the rows to the host."""
    if X.dtype not in model._short[method]:
        getattr(model, method)(X[:1])
    found, _ = model._short[method][X.dtype]
    return found(X, len(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("encoder", [OrdinalEncoder(), OneHotEncoder(sparse_output=False)], ids=["ordinal", "one-hot"])
def test_known_categories_stay_on_the_device_and_others_are_rejected(encoder, dtype) -> None:
    X = data(dtype)
    encoder.fit(X)
    model = hbc.convert(encoder, "tvm", X)
    expected = encoder.transform(X)
    np.testing.assert_array_equal(model.transform(X), expected)
    np.testing.assert_array_equal(short(model, "transform", X), expected)
    for row, column in PLACES:
        for value in (1000, X[row, column] + (1 if dtype is np.int64 else np.spacing(X[row, column]))):
            bad = X.copy()
            bad[row, column] = value
            if np.isin(bad[row, column], encoder.categories_[column]):
                continue
            assert short(model, "transform", bad) is None
            with pytest.raises(hbc.InvalidInputError, match=f"column {column}"):
                model.transform(bad)
            if row:  # what stands behind the rows is not read
                np.testing.assert_array_equal(short(model, "transform", bad[:row]), expected[:row])
    np.testing.assert_array_equal(model.transform(X), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_is_a_category_where_it_was_one(dtype) -> None:
    X = data(dtype)
    X[3, 1] = np.nan
    encoder = OrdinalEncoder(encoded_missing_value=-7).fit(X)
    model = hbc.convert(encoder, "tvm", X)
    np.testing.assert_array_equal(short(model, "transform", X), encoder.transform(X))
    for column in (0, 2):
        bad = X.copy()
        bad[100, column] = np.nan
        with pytest.raises(hbc.InvalidInputError, match=f"column {column}"):
            model.transform(bad)
    minus = np.where(X == 0, dtype(-0.0), X)
    assert np.signbit(minus[minus == 0]).all()
    np.testing.assert_array_equal(short(model, "transform", minus), encoder.transform(minus))


@pytest.mark.parametrize("value", [7.5, -1.0, 5.0, 1e9, -1e9, 3e18, 1e30, -1e38, np.nan, np.inf])
def test_tables_are_not_read_for_categories_that_are_not_there(value) -> None:
    """Places far outside of the table: the code that would look there does not run."""
    X = RNG.integers(0, 5, (400, 4)).astype(np.float32)
    source = CategoricalNB(min_categories=5).fit(X, RNG.integers(0, 3, 400))
    model = hbc.convert(source, "tvm", X)
    np.testing.assert_allclose(short(model, "predict_proba", X), source.predict_proba(X), rtol=1e-12)
    for row in (0, 300, 399):
        bad = X.copy()
        bad[row, 2] = value
        with pytest.raises(hbc.InvalidInputError):
            model.predict_proba(bad)


def test_fractions_of_categories_are_the_categories_of_the_source() -> None:
    X = RNG.integers(0, 5, (50, 2)).astype(np.float32)
    source = CategoricalNB().fit(X, RNG.integers(0, 2, 50))
    np.testing.assert_array_equal(hbc.convert(source, "tvm").predict(X + 0.5), source.predict((X + 0.5).astype(np.float32)))


def test_a_warning_comes_once_a_call() -> None:
    X = data(np.float32)
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore", drop="first").fit(X)
    model = hbc.convert(encoder, "tvm", X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(short(model, "transform", X), encoder.transform(X))
    bad = X.copy()
    bad[[4, 300], [0, 1]] = 1000
    with pytest.warns(UserWarning, match="unknown categories"):
        expected = encoder.transform(bad)
    with pytest.warns(UserWarning, match=r"columns \[0, 1\]") as found:
        np.testing.assert_array_equal(model.transform(bad), expected)
    assert len(found) == 1


@pytest.mark.parametrize("sampler", [AdditiveChi2Sampler(), SkewedChi2Sampler(skewedness=0.1, random_state=0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_negative_numbers(sampler, dtype) -> None:
    X = np.abs(np.random.default_rng(0).normal(size=(300, 3))).astype(dtype)
    X[5, 1] = 0.0
    model = hbc.convert(sampler.fit(X), "tvm", X)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype is np.float32 else {"rtol": 1e-9}  # a cosine near 0 is absolutely exact
    np.testing.assert_allclose(short(model, "transform", X), sampler.transform(X), **tolerance)
    np.testing.assert_allclose(model.transform(-0.0 * X), sampler.transform(-0.0 * X), rtol=1e-4)
    bad = X.copy()
    bad[299, 2] = -0.2
    with pytest.raises(hbc.InvalidInputError):
        model.transform(bad)


def test_encoders_in_front_of_others() -> None:
    X = data(np.float32)
    pipeline = make_pipeline(
        OrdinalEncoder(), StandardScaler(), SelectKBest(f_regression, k=2), DecisionTreeRegressor(max_depth=6)
    )
    pipeline.fit(X, X @ [1.0, 2.0, 3.0])
    model = hbc.convert(pipeline, "tvm", X)
    np.testing.assert_allclose(short(model, "predict", X), pipeline.predict(X), rtol=1e-6)
    for column in range(3):  # also the one that nobody reads
        bad = X.copy()
        bad[257, column] = 1000
        with pytest.raises(hbc.InvalidInputError):
            model.predict(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_frames_are_tested_there_too(dtype) -> None:
    frame = pd.DataFrame(data(dtype), columns=list("abc"))
    encoder = OrdinalEncoder().fit(frame)
    model = hbc.convert(encoder, "tvm", frame)
    bad = frame.copy()
    bad.loc[511, "b"] = dtype(1000)
    for _ in range(2):  # the second call has the shorter way
        np.testing.assert_array_equal(model.transform(frame), encoder.transform(frame))
        with pytest.raises(hbc.InvalidInputError, match="1000"):
            model.transform(bad)
        with pytest.raises(hbc.InvalidInputError):
            model.transform(frame[["b", "a", "c"]])
    first, second = model.transform(frame), model.transform(frame)
    assert not np.shares_memory(first, second)


def test_what_is_computed_is_tested_on_the_host() -> None:
    """No two backends compute alike: a category that is one in numpy might not be one in compiled code."""
    X = data(np.float32)
    pipeline = make_pipeline(StandardScaler(), OrdinalEncoder()).fit(X)
    model = hbc.convert(pipeline, "tvm", X)
    np.testing.assert_array_equal(model.transform(X), pipeline.transform(X))
    assert short(model, "transform", X) is None


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"target": {"kind": "llvm", "mcpu": "haswell"}, "threads": 1}], ids=["threads", "narrow"]
)
def test_every_part_of_the_rows_is_tested(options) -> None:
    X = np.tile(data(np.float32), (300, 1))
    encoder = OrdinalEncoder().fit(X)
    model = hbc.convert(encoder, "tvm", X, **options)
    np.testing.assert_array_equal(short(model, "transform", X), encoder.transform(X))
    for row in (0, len(X) // 2, len(X) - 1):
        bad = X.copy()
        bad[row, 1] = 1000
        assert short(model, "transform", bad) is None
        with pytest.raises(hbc.InvalidInputError, match="1000"):
            model.transform(bad)
