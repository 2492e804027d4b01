"""Columns of every type of Arrow give the answers of the source for `table.to_pandas()`, or an error. Where one of the two answers and the
other does not, the case stands in a list with its reason."""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from lightgbm import LGBMRegressor
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from xgboost import XGBRegressor

import hbc
from hbc.runtime.input.coded import WORTH_CODES

RNG = np.random.default_rng(0)
ROWS = WORTH_CODES + 88
SMALL = RNG.integers(0, 5, ROWS)
GONE = RNG.random(ROWS) < 0.1
WORDS = RNG.choice(["red", "blue", "green", ""], ROWS)
B = RNG.normal(size=ROWS)
Y = SMALL + RNG.normal(scale=0.1, size=ROWS)


def holes(values: Any) -> list[Any]:
    return [None if gone else value for value, gone in zip(list(values), GONE, strict=True)]


def with_holes(array: Any) -> Any:
    """The array with nulls."""
    if pa.types.is_dictionary(array.type):  # pyarrow before 24 makes no dictionary of large strings at once
        return pa.array(holes(array.to_pylist()), array.type.value_type).dictionary_encode()
    return pa.array(holes(array.to_pylist()), array.type)


def cut(array: Any) -> Any:
    """The array as a slice of a longer one, which starts at an odd place."""
    return pa.concat_arrays([array.slice(0, 3), array, array.slice(0, 5)]).slice(3, len(array))


NUMBERS: dict[str, Any] = {
    **{str(kind): pa.array(SMALL, kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())},
    **{
        str(kind): pa.array((SMALL * 1.5).astype(kind.to_pandas_dtype()), kind)
        for kind in (pa.float16(), pa.float32(), pa.float64())
    },
    "bool": pa.array(SMALL > 2),
    "decimal": pa.array([decimal.Decimal(int(v)) / 4 for v in SMALL], pa.decimal128(9, 2)),
    "date": pa.array([datetime.date(2026, 1, 1 + int(v)) for v in SMALL]),
    "timestamp": pa.array([datetime.datetime(2026, 1, 1 + int(v)) for v in SMALL], pa.timestamp("us")),
    "zone": pa.array([datetime.datetime(2026, 1, 1 + int(v)) for v in SMALL], pa.timestamp("us", "UTC")),
    "duration": pa.array(SMALL, pa.duration("s")),
    "time": pa.array(SMALL.astype("i4"), pa.time32("s")),
    "dictionary of int64": pa.array(SMALL).dictionary_encode(),
    "dictionary of float64": pa.array(SMALL * 1.5).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(np.arange(1, ROWS + 1, dtype="i4"), pa.array(SMALL)),
    "list": pa.array([[int(v)] for v in SMALL]),
    "struct": pa.array([{"v": int(v)} for v in SMALL]),
    "binary": pa.array([bytes([v]) for v in SMALL]),
    "strings": pa.array(WORDS),
    "extension": pa.ExtensionArray.from_storage(pa.bool8(), pa.array((SMALL > 2).astype("i1"))),
    "null": pa.nulls(ROWS),
}
NUMBERS |= {
    f"{name} with nulls": with_holes(array) for name, array in NUMBERS.items() if name not in ("run ends", "null", "extension")
}
NUMBERS |= {
    f"{name}, cut": cut(array)
    for name, array in NUMBERS.items()
    if name.startswith(("int64", "bool", "double", "dictionary of int64"))
}

TEXTS: dict[str, Any] = {
    "string": pa.array(WORDS),
    "large": pa.array(WORDS.tolist(), pa.large_string()),
    "view": pa.array(WORDS.tolist(), pa.string_view()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "dictionary of views": pa.array(WORDS.tolist(), pa.string_view()).dictionary_encode(),
    "large dictionary": pa.array(WORDS.tolist(), pa.large_string()).dictionary_encode(),
    "dictionary of uint8": pa.array(WORDS).dictionary_encode().cast(pa.dictionary(pa.uint8(), pa.string())),
}
TEXTS |= {f"{name} with nulls": with_holes(array) for name, array in TEXTS.items() if " of " not in name}
TEXTS |= {f"{name}, cut": cut(array) for name, array in TEXTS.items()}
TEXTS |= {f"{name}, few rows": array.slice(0, 20) for name, array in TEXTS.items()}
TEXTS |= {
    "null": pa.nulls(ROWS),
    "numbers": pa.array(SMALL),
    "unused": pa.DictionaryArray.from_arrays(pa.array(SMALL % 2), pa.array(["red", "blue", "never seen"])),
    "unknown": pa.array(np.where(SMALL > 3, "new", WORDS)),
    "more views than rows": pa.DictionaryArray.from_arrays(
        pa.array(SMALL % 2), pa.array(["red", "blue", *map(str, range(ROWS))], pa.string_view())
    ),
    "null in the dictionary": pa.DictionaryArray.from_arrays(pa.array(SMALL % 2), pa.array(["red", None])),
    "twice in the dictionary": pa.DictionaryArray.from_arrays(pa.array(SMALL % 2), pa.array(["red", "red"])),
    "more categories than rows": pa.DictionaryArray.from_arrays(
        pa.array(SMALL % 2), pa.array(["red", "blue", *map(str, range(ROWS))])
    ),
}


def missing_words() -> Any:
    words = pd.Series(holes(WORDS), dtype="str")
    return words.where(words.notna(), np.nan)  # pandas before 3 has None


FRAME = pd.DataFrame({"a": np.where(GONE, np.nan, SMALL * 1.5), "b": B})
TEXT_FRAME = pd.DataFrame({"a": missing_words(), "b": B})
CATEGORIES = TEXT_FRAME.assign(a=pd.Categorical(missing_words(), ["red", "green", "blue", ""]))

MODELS: dict[str, Any] = {
    "scaler": make_pipeline(SimpleImputer(), StandardScaler(), LinearRegression()).fit(FRAME, Y),
    "columns": make_pipeline(
        ColumnTransformer([("a", make_pipeline(SimpleImputer(), StandardScaler()), ["a"]), ("b", StandardScaler(), ["b"])]),
        LinearRegression(),
    ).fit(FRAME, Y),
    "lightgbm": LGBMRegressor(n_estimators=5, verbose=-1).fit(FRAME, Y),
    "xgboost": XGBRegressor(n_estimators=5).fit(FRAME, Y),
}
TEXT_MODELS: dict[str, Any] = {
    name: make_pipeline(ColumnTransformer([("a", encoder, ["a"]), ("b", "passthrough", ["b"])]), LinearRegression()).fit(
        TEXT_FRAME, Y
    )
    for name, encoder in {
        "one hot": OneHotEncoder(handle_unknown="ignore"),
        "one hot, strict": OneHotEncoder(),
        "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2),
        "imputed": make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")),
    }.items()
}
CATEGORY_MODELS: dict[str, Any] = {
    "lightgbm": LGBMRegressor(n_estimators=5, min_child_samples=5, verbose=-1).fit(CATEGORIES, Y),
    "xgboost": XGBRegressor(n_estimators=5, enable_categorical=True).fit(CATEGORIES, Y),
}
WHOLE = FRAME.assign(a=pd.Categorical(SMALL * 10, [10, 0, 30, 20, 40]))
WHOLE_MODEL = LGBMRegressor(n_estimators=5, min_child_samples=5, verbose=-1).fit(WHOLE, Y)
"""Categories of pandas that are integers, and not their own places."""


@functools.cache
def compiled(model: Any) -> Any:
    return hbc.convert(model, backend="numpy").arrow("predict")


def both(model: Any, array: Any) -> tuple[Any, Any]:
    """(the answer of the source for the frame of pandas, or its error; the answer of hbc, or its error)."""
    table = pa.table({"a": array, "b": B[: len(array)]})
    method = compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unknown categories
        try:
            frame = table.to_pandas()
            if frame.a.dtype == object:  # pandas before 3 has None for a null, which scikit-learn tells from the NaN of fitting
                frame["a"] = frame.a.where(frame.a.notna(), np.nan)
            expected = model.predict(frame)
        except Exception as error:
            expected = error
        try:
            found = method(table)["predict"].to_numpy()
        except hbc.InvalidInputError as error:
            found = error
    return expected, found


def short(answer: Any) -> str:
    return repr(answer if isinstance(answer, Exception) else answer[:3])


ONLY_HBC: dict[str, str] = {
    "(lightgbm|xgboost): (null|bool with nulls)(, cut)?": "pandas makes Python objects of them; in Arrow a null is missing",
    ".*: twice in the dictionary": "pandas rejects such categories before the source sees them",
    ".*(one hot|strict|ordinal|imputed|lightgbm): null in the dictionary": "the same",
    "one hot, strict: null": "pandas makes None of them, which is unknown to the encoder; to hbc a null is NaN, as in fit",
    "categories of .*: (string|large|view)( with nulls)?(, cut)?(, few rows)?": "strings are the categories of these names, as in records",
    "integer categories of lightgbm: (numbers|floats|numbers with nulls)": "numbers are the categories that equal them, as in records",
    "categories of lightgbm: unknown": "the same; the unknown ones are missing",
}
"""Cases that hbc answers, though the source rejects the frame of pandas → why."""

ONLY_SOURCE: dict[str, str] = {
    "(scaler|columns): halffloat.*": "the scaler computes in three digits",
    "columns: float( with nulls)?": "float32 beside float64: docs/inputs.md",
    "columns: zone.*": "dates with a time zone",
    ".*: extension": "an extension type says not what its storage means",
    "columns: dictionary of int64 with nulls.*": "in a frame of nothing else, pandas makes −9223372036854775808 of the missing ones",
    "xgboost: dictionary of int64.*": "categories for a model that was fitted on numbers",
    "imputed: numbers": "numbers where fit had strings",
    "categories of xgboost: (unused|more .* than rows)": "XGBoost rejects some categories that no row has: docs/inputs.md",
}
"""Cases that the source answers, though hbc rejects them → why."""

ALL_NULL = {"one hot: null", "ordinal: null", "imputed: null"}
"""To hbc a null is what was missing in fit, NaN. pandas makes None of a column of nothing else, which the source takes for an unknown
category: another answer, and not the one that is meant."""


def check(model: Any, array: Any, case: str) -> None:
    if case in ALL_NULL:
        np.testing.assert_allclose(
            both(model, array)[1],
            model.predict(pd.DataFrame({"a": pd.Series([None] * len(array), dtype="str"), "b": B[: len(array)]})),
        )
        return
    expected, found = both(model, array)
    wanted = (
        any(re.fullmatch(pattern, case) for pattern in ONLY_HBC),
        any(re.fullmatch(pattern, case) for pattern in ONLY_SOURCE),
    )
    if isinstance(expected, Exception) or isinstance(found, Exception):
        state = isinstance(expected, Exception), isinstance(found, Exception)
        assert state == (wanted if any(wanted) else (True, True)), f"source: {short(expected)}; hbc: {short(found)}"
    else:
        assert not any(wanted), "the lists of this file name it, but both answer"
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", MODELS)
def test_numbers(name: str, kind: str) -> None:
    check(MODELS[name], NUMBERS[kind], f"{name}: {kind}")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_strings(name: str, kind: str) -> None:
    check(TEXT_MODELS[name], TEXTS[kind], f"{name}: {kind}")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", CATEGORY_MODELS)
def test_categories(name: str, kind: str) -> None:
    check(CATEGORY_MODELS[name], TEXTS[kind], f"categories of {name}: {kind}")


INTEGERS = {
    "dictionary": pa.array(SMALL * 10).dictionary_encode(),
    "dictionary with nulls": pa.array(holes(SMALL * 10), pa.int64()).dictionary_encode(),
    "dictionary of int8": pa.array(SMALL * 10, pa.int8()).dictionary_encode(),
    "dictionary of floats": pa.array(SMALL * 10.0).dictionary_encode(),
    "unknown": pa.array(SMALL * 7).dictionary_encode(),
    "numbers": pa.array(SMALL * 10),
    "numbers with nulls": pa.array(holes(SMALL * 10), pa.int64()),
    "floats": pa.array(SMALL * 10.0),
    "strings": pa.array(WORDS).dictionary_encode(),
}


@pytest.mark.every_case
@pytest.mark.parametrize("kind", INTEGERS)
def test_categories_that_are_integers(kind: str) -> None:
    check(WHOLE_MODEL, INTEGERS[kind], f"integer categories of lightgbm: {kind}")


@pytest.mark.every_case
@pytest.mark.parametrize("kind", ["numbers", "numbers with nulls", "floats"])
def test_numbers_are_the_categories_that_equal_them(kind: str) -> None:
    """As the same numbers in a dictionary, which the source takes."""
    method = compiled(WHOLE_MODEL)
    plain, coded = (pa.table({"a": array, "b": B}) for array in (INTEGERS[kind], INTEGERS[kind].dictionary_encode()))
    assert method(plain).equals(method(coded))
    strict = hbc.convert(XGBRegressor(n_estimators=3, enable_categorical=True).fit(WHOLE, Y), backend="numpy").arrow()
    if kind != "floats":
        assert strict(plain).equals(strict(coded))
        narrow = plain.set_column(0, "a", plain["a"].cast(pa.int8()))
        assert strict(narrow).equals(strict(plain))
    else:
        with pytest.raises(hbc.InvalidInputError, match="categories of float64"):
            strict(plain)
    with pytest.raises(hbc.InvalidInputError, match="the category 7"):
        strict(plain.set_column(0, "a", pa.array(np.full(ROWS, 7))))


def answer_or_error(method: Any, table: Any, **options: Any) -> Any:
    try:
        return method(table, **options)
    except hbc.InvalidInputError as error:
        return str(error)


@pytest.mark.parametrize("kind", [kind for kind, array in TEXTS.items() if pa.types.is_dictionary(array.type)])
@pytest.mark.parametrize("name", [*TEXT_MODELS, *(f"categories of {name}" for name in CATEGORY_MODELS)])
def test_dictionaries_that_are_strings(name: str, kind: str) -> None:
    """As the strings themselves: those of a dictionary that no row has are not there."""
    method = compiled({**TEXT_MODELS, **{f"categories of {each}": model for each, model in CATEGORY_MODELS.items()}}[name])
    coded, b = TEXTS[kind], B[: len(TEXTS[kind])]
    strings = pa.array(coded.to_pylist(), pa.string())
    expected = answer_or_error(method, pa.table({"a": strings, "b": b}))
    table = pa.table({"a": coded, "b": b})
    assert answer_or_error(method, table, strings=["a", "b", "no column"]) == expected
    reader = answer_or_error(method, table.to_reader(), strings={"a"})
    assert answer_or_error(lambda given: given.read_all(), reader) == expected if not isinstance(reader, str) else expected
    for rows in (1, 3):
        expected = answer_or_error(method, pa.table({"a": strings, "b": b}).slice(0, rows))
        assert answer_or_error(method, table.slice(0, rows).to_batches()[0], strings=["a"]) == (
            expected if isinstance(expected, str) else expected.to_batches()[0]
        )


@pytest.mark.parametrize("kind", ["int8", "float32", "bool"])
@pytest.mark.parametrize("beside", ["float32", "float64"])
def test_categories_of_numbers_beside_float32(kind: str, beside: str) -> None:
    """scikit-learn makes float64 of a frame with categories, also if all its numbers are float32 or narrower."""
    frame = pd.DataFrame({"a": pd.Categorical((SMALL % 2).astype(kind)), "b": B.astype(beside)})
    for apart in (False, True):
        parts = ColumnTransformer([("a", StandardScaler(), ["a"]), ("b", StandardScaler(), ["b"])])
        model = (parts if apart else StandardScaler()).fit(frame)
        made = hbc.convert(model, "numpy", frame)
        calls = [lambda made=made: made.transform(frame), lambda made=made: made.arrow()(pa.table(frame)).to_pandas()]
        for call in calls:
            if (kind == "float32" and apart) or (beside == "float32" and not apart):
                with pytest.raises(hbc.InvalidInputError, match=r"column 0 \('a'\): found categories .* X\.astype\(float\)"):
                    call()
            else:
                np.testing.assert_allclose(call(), model.transform(frame), rtol=1e-15, atol=1e-15)
