"""Numbers among the Python objects of a column on which an encoder was fitted with strings: categories that it does not know, as in
scikit-learn. A column of numbers of numpy's dtypes is rejected, as there."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

import hbc

MIXED = {"a": ["x", "y", None, "x"], "b": [0.5, None, 2.0, 0.5], "c": [1, 2, 3, 1], "d": [True, False, True, True]}

WORDS = np.array(["x", "y", "z", "1"], object)[np.arange(80) % 4]
OTHERS = np.array(["u", None, "v", np.nan], object)[np.arange(80) % 4]
TARGET = (np.arange(80) % 3 == 0).astype(int)
FRAME = pd.DataFrame({"a": WORDS, "b": OTHERS}, dtype=object)

ENCODERS: dict[str, Any] = {
    "ignored": lambda: OneHotEncoder(handle_unknown="ignore"),
    "rejected": lambda: OneHotEncoder(sparse_output=False),
    "infrequent": lambda: OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=21),
    "dropped": lambda: OneHotEncoder(handle_unknown="ignore", drop="first", sparse_output=False),
    "a code": lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "ordinal": OrdinalEncoder,
    "target": lambda: TargetEncoder(random_state=0),
}


def with_items(*items: Any) -> pd.DataFrame:
    """The frame with these instead of the first words."""
    changed = FRAME.copy()
    changed["a"] = np.array([*items, *WORDS[len(items) :]], object)
    return changed


NUMBERS: dict[str, Any] = {
    "words": FRAME,
    "an int": with_items(1),
    "a float": with_items(1.5),
    "an infinity": with_items(float("inf")),
    "bool": with_items(True, np.False_),
    "a Decimal": with_items(decimal.Decimal("1.5")),
    "a complex number": with_items(1j),
    "numpy's": with_items(np.int64(1), np.float32(2), np.uint8(3)),
    "beyond 64 bits": with_items(2**70),
    "beside missing values": with_items(1, None, np.nan),
    "only numbers": with_items(*range(80)),
    "a list": with_items([1]),
    "int64": FRAME.assign(a=np.arange(80)),
    "float64": FRAME.assign(a=np.arange(80) + 0.5),
    "array": with_items(1).to_numpy(),
    "rows": with_items(1).to_numpy().tolist(),
    "one row": with_items(1)[:1],
    "a category": with_items(1).astype({"a": "category"}),
    "many rows": pd.concat([with_items(1)] * 10),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["numpy", "tvm"])
@pytest.mark.parametrize("name", ENCODERS)
def test_as_scikit_learn(name: str, backend: str) -> None:
    model = ENCODERS[name]().fit(FRAME, TARGET)
    compiled = hbc.convert(model, backend)
    taken = 0
    for form, X in NUMBERS.items():
        try:
            expected = model.transform(X)
        except (TypeError, ValueError):
            with pytest.raises(hbc.InvalidInputError):
                compiled.transform(X)
            continue
        taken += 1
        found = compiled.transform(X)
        dense = (each.toarray() if hasattr(each, "toarray") else each for each in (found, expected))
        np.testing.assert_allclose(*dense, rtol=1e-12, err_msg=form)
    assert taken >= (1 if name in ("rejected", "ordinal") else 14)


def test_the_message_shows_the_number() -> None:
    compiled = hbc.convert(OrdinalEncoder().fit(FRAME), "numpy")
    with pytest.raises(
        hbc.InvalidInputError, match=r"found 1 in column 'a', expected one of the categories when OrdinalEncoder"
    ):
        compiled.transform(with_items(1))


@pytest.mark.filterwarnings("ignore")
def test_behind_an_imputer_and_in_records() -> None:
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    frame = with_items(np.nan)
    model = make_pipeline(ColumnTransformer([("words", words, ["a"])]), LogisticRegression()).fit(frame, TARGET)
    compiled = hbc.convert(model, "numpy")
    score = compiled.bind_record("predict_proba")
    for form in ("words", "an int", "a float", "bool", "numpy's", "only numbers"):
        X = NUMBERS[form]
        np.testing.assert_allclose(compiled.predict_proba(X), model.predict_proba(X), rtol=1e-9, err_msg=form)
        for record in X[:3].to_dict("records"):
            if isinstance(record["a"], str):
                np.testing.assert_allclose(score(record), model.predict_proba(pd.DataFrame([record])), rtol=1e-9)
                continue
            with pytest.raises(hbc.InvalidInputError, match="expected strings"):  # a frame of one number has a dtype of numpy
                score(record)


def test_what_returns_the_strings_rejects_numbers() -> None:
    """A method that returns the column would have to return the numbers themselves."""
    model = SimpleImputer(strategy="most_frequent").fit(FRAME[["a"]])
    with pytest.raises(hbc.InvalidInputError, match="expected strings"):
        hbc.convert(model, "numpy").transform(with_items(1)[["a"]])


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table])
@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore", sparse_output=False), OrdinalEncoder()])
def test_numbers_beside_strings_in_frames_of_other_libraries(make: Any, encoder: Any) -> None:
    """scikit-learn makes one array of Python objects of them, in fit too, so that the categories of numbers are objects."""
    frame = make(MIXED)
    model = encoder.fit(frame)
    assert all(known.dtype == object for known in model.categories_)
    compiled = hbc.convert(model, "numpy", frame)
    unseen = make({**MIXED, "b": [0.5, 7.0, None, 2.0]}) if isinstance(encoder, OneHotEncoder) else frame
    for given in (frame, unseen):
        np.testing.assert_array_equal(compiled.transform(given), model.transform(given))
    with pytest.raises((TypeError, ValueError)):
        model.transform(pd.DataFrame(MIXED))
    with pytest.raises(hbc.InvalidInputError):
        compiled.transform(pd.DataFrame(MIXED))


def test_numbers_alone_in_frames_of_other_libraries_are_no_objects() -> None:
    objects = np.array([[1], [2]], object)
    model = OneHotEncoder(sparse_output=False).fit(objects)
    with pytest.raises(hbc.InvalidInputError, match=r"frame of polars"):
        hbc.convert(model, "numpy", objects).transform(pl.DataFrame({"a": [1, 2]}))
