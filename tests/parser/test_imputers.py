"""Imputers of bool beside numbers, and indicators of None among Python objects. The answer and its dtype are the source's, or hbc rejects
what the source rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer

import hbc

FLAGS = np.array([True, False, True, True])
GAPS = np.array([1.0, 2.0, np.nan, 2.0])
MODELS = [
    SimpleImputer(strategy="most_frequent"),
    SimpleImputer(strategy="constant", fill_value=7),
    MissingIndicator(features="all"),
]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model)[:40])
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i8"])
def test_bool_beside_numbers(model: Any, make: Any, dtype: str) -> None:
    """scikit-learn makes one array of the frame. It rejects bool only where that array is of bool."""
    whole = np.arange(4) if dtype[0] == "i" else GAPS
    frame = make({"a": FLAGS, "b": whole.astype(dtype)})
    model.fit(frame)
    compiled = hbc.convert(model, "numpy")
    expected = model.transform(frame)
    found = compiled.transform(frame)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    only = make({"a": FLAGS, "b": ~FLAGS})
    for given in (only, np.column_stack([FLAGS, FLAGS])):
        with pytest.raises(ValueError, match="does not support data with dtype bool"):
            model.transform(given)
        with pytest.raises(hbc.InvalidInputError, match=r"column 0.*found bool"):
            compiled.transform(given)


def test_bool_alone_in_one_imputer_of_two() -> None:
    """Each imputer reads an array of its own."""
    frame = pd.DataFrame({"a": FLAGS, "b": GAPS, "c": FLAGS * 1.0})
    parts = [
        ("one", SimpleImputer(strategy="most_frequent"), ["a", "b"]),
        ("two", SimpleImputer(strategy="most_frequent"), ["c"]),
    ]
    model = ColumnTransformer(parts).fit(frame)
    compiled = hbc.convert(model, "numpy", frame)
    np.testing.assert_array_equal(compiled.transform(frame), model.transform(frame))
    changed = frame.assign(c=FLAGS)
    with pytest.raises(ValueError, match="does not support data with dtype bool"):
        model.transform(changed)
    with pytest.raises(hbc.InvalidInputError, match=r"'c'.*found bool"):
        compiled.transform(changed)


@pytest.mark.parametrize("features", ["all", "missing-only"])
def test_none_among_numbers(features: str) -> None:
    """scikit-learn takes None for the missing value among Python objects only, numbers or strings."""
    objects = np.array([[1, None], [2.5, 3], [True, "x"]], object)
    model = MissingIndicator(missing_values=None, features=features).fit(objects)
    compiled = hbc.convert(model, "numpy")
    for given in (objects, objects.tolist(), pd.DataFrame(objects, dtype=object)):
        np.testing.assert_array_equal(compiled.transform(given), model.transform(given))
    for wrong in (np.ones((2, 2)), np.array([[1, np.nan], [2, 3]], object)):
        with pytest.raises(ValueError, match=r"expected to be both numerical|contains NaN"):
            model.transform(wrong)
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(wrong)


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("full", [(), (0, 3), (0, 1, 2, 3, 4)])
def test_new_gaps_need_no_test_in_numpy(dtype: str, full: tuple[int, ...]) -> None:
    """An indicator rejects NaN in columns that had none in fitting. The input's limits say so, and no guard computes the mask before."""
    X = np.random.default_rng(0).normal(size=(40, 5)).astype(dtype)
    gaps = X.copy()
    for column in sorted(set(range(5)) - set(full)):
        gaps[column :: column + 2, column] = np.nan
    model = MissingIndicator().fit(gaps)
    compiled = hbc.convert(model, "numpy")
    for given in (gaps, gaps[:1], X, pd.DataFrame(gaps)):
        np.testing.assert_array_equal(compiled.transform(given), model.transform(given))
    assert not any(variant.facts.limits.guards for variant in compiled.variants.values())
    for column in full:
        wrong = gaps.copy()
        wrong[7, column] = np.nan
        for given in (wrong, wrong[7:8], wrong.astype(object), pd.DataFrame(wrong), pl.DataFrame(wrong)):
            with pytest.raises(ValueError, match="have missing values in transform but have no missing values in fit"):
                model.transform(given)
            with pytest.raises(hbc.InvalidInputError, match=rf"X, column {column}: found NaN"):
                compiled.transform(given)
