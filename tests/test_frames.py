"""Frames of every library, with the dtypes that arrays do not have, go through pipelines as the source takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from hbc.ir.texts import Texts
from hbc.runtime.frames import WORTH_CODES, read_frame

RNG = np.random.default_rng(0)
ROWS = WORTH_CODES + 44
WHOLE, REAL = RNG.integers(0, 5, ROWS), RNG.normal(size=ROWS).round(1)
GONE = RNG.random(ROWS) < 0.1
WORDS = RNG.choice(["red", "blue", "grün", ""], ROWS).astype(object)
FITTED = pd.DataFrame({"a": WHOLE.astype(float), "b": REAL})
FITTED_TEXT = pd.DataFrame({"w": RNG.choice(["red", "blue", "grün"], ROWS)})

LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


def same(model: Any, compiled: Any, X: Any) -> None:
    """The source's result, or an error where the source has one."""
    try:
        expected = model.transform(X)
    except (ValueError, TypeError):
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(X)
        return
    found = compiled.transform(X)
    if hasattr(expected, "toarray"):
        expected, found = expected.toarray(), found.toarray()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- numbers -----------------------------------------------------------------------------------------------------------

NUMBERS: dict[str, tuple[Any, Any]] = {
    "Int64": (pd.array(WHOLE, dtype="Int64"), pd.array(WHOLE, dtype="Int32")),
    "UInt8": (pd.array(WHOLE, dtype="UInt8"), pd.array(WHOLE, dtype="UInt16")),
    "Float64": (pd.array(REAL, dtype="Float64"), pd.array(REAL, dtype="Float64")),
    "Float32": (pd.array(REAL, dtype="Float32"), pd.array(REAL, dtype="Float32")),
    "boolean": (pd.array(WHOLE > 2, dtype="boolean"), pd.array(WHOLE > 1, dtype="boolean")),
    "arrow": (pd.array(WHOLE, dtype="int64[pyarrow]"), pd.array(REAL, dtype="double[pyarrow]")),
    "arrow, single": (pd.array(REAL, dtype="float[pyarrow]"), pd.array(REAL, dtype="float[pyarrow]")),
    "float32": (REAL.astype(np.float32), REAL.astype(np.float32)),
    "nullable beside plain": (pd.array(WHOLE, dtype="Int64"), REAL),
    "categories": (pd.Categorical(WHOLE), REAL),
    "dates": (pd.to_datetime("2026-01-01") + pd.to_timedelta(WHOLE, unit="D"),) * 2,
    "time spans": (pd.to_timedelta(WHOLE, unit="h"),) * 2,
    "dates beside numbers": (pd.to_datetime("2026-01-01") + pd.to_timedelta(WHOLE, unit="D"), REAL),
}
PIPELINES: dict[str, Any] = {
    "scaler": StandardScaler(),
    "imputer": make_pipeline(SimpleImputer(), StandardScaler()),
    "apart": ColumnTransformer([("a", StandardScaler(), ["a"]), ("b", MinMaxScaler(), ["b"])]),
    "codes": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
}


@pytest.fixture(scope="module", params=PIPELINES)
def numeric(request: pytest.FixtureRequest) -> tuple[Any, Any, str]:
    model = PIPELINES[request.param].fit(FITTED)
    return model, hbc.convert(model, "numpy"), request.param


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers(numeric: Any, kind: str, missing: bool) -> None:
    model, compiled, name = numeric
    frame = pd.DataFrame(dict(zip("ab", NUMBERS[kind], strict=True)))
    if missing:
        if kind == "UInt8":
            return
        frame.loc[GONE, "a"] = None
    for library, make in LIBRARIES.items():
        # What hbc refuses though the source takes it: dates that these pipelines compare, or that polars hands over one by one;
        # pyarrow's own reading of missing categories.
        refused = (kind.startswith(("date", "time")) and (name == "codes" or library == "polars")) or (
            kind == "categories" and library == "pyarrow" and missing
        )
        try:
            same(model, compiled, make(frame))
        except hbc.InvalidInputError:
            assert refused, library


# --- strings -----------------------------------------------------------------------------------------------------------

TEXTS = ["str", "string", "string[python]", "category", "object", "arrow", "arrow dictionary"]
ARROW = {"arrow": pa.string(), "arrow dictionary": pa.dictionary(pa.int32(), pa.string())}
ENCODERS: dict[str, Any] = {
    "ignore": OneHotEncoder(handle_unknown="ignore"),
    "error": OneHotEncoder(),
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "imputed": make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")),
    "columns": ColumnTransformer([("w", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["w"])]),
}


def words(kind: str, missing: bool, rows: int = ROWS, unknown: bool = True) -> pd.DataFrame:
    values = WORDS if unknown else FITTED_TEXT["w"].to_numpy(object)
    series = pd.Series(values, dtype=pd.ArrowDtype(ARROW[kind]) if kind in ARROW else kind)
    if missing:
        series[GONE] = None
    return pd.DataFrame({"w": series})[:rows]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_strings(encoder: str, missing: bool) -> None:
    """As codes where there are many rows, and one by one where there are few."""
    fitted = FITTED_TEXT.copy()
    if missing or encoder == "imputed":
        fitted.loc[::10, "w"] = np.nan
    model = ENCODERS[encoder].fit(fitted.astype(object))
    compiled, other = hbc.convert(model, "numpy"), hbc.convert(model, "onnx")
    for kind in TEXTS:
        for library, make in LIBRARIES.items():
            if library == "pyarrow" and missing and kind in ("category", "arrow dictionary"):
                continue  # refused: its own reading takes the missing for another category
            for unknown in (True, False):
                frames = [make(words(kind, missing, rows, unknown)) for rows in (ROWS, 20)]
                if encoder == "imputed" and kind in ("string", "string[python]", "arrow", "arrow dictionary") and missing:
                    continue  # pandas.NA, at which the source stops
                for frame in frames:
                    same(model, compiled, frame)
                if unknown and kind == "str":
                    same(model, other, frames[0])


def test_strings_come_as_codes() -> None:
    for library, make in LIBRARIES.items():
        table = read_frame(make(words("str", True)))
        coded = table.coded(0)
        assert coded is not None, library
        codes, values = coded
        texts = Texts((codes,), (values,))
        expected = table.column(0)
        for found, wanted in zip(texts.dense()[:, 0].tolist(), expected.tolist(), strict=True):
            assert found == wanted or (found != found and wanted != wanted)
        assert texts[:7].shape == (7, 1)
        assert {str(value) for value in texts.distinct()[:, 0]} == {str(value) for value in expected}
    mixed = np.resize(np.array(["a", None, np.nan, pd.NA, "b"], object), ROWS)  # to scikit-learn, these are all different
    codes, values = read_frame(pd.DataFrame({"w": mixed}, dtype=object)).coded(0)
    assert all(found is given for found, given in zip(values[codes], mixed, strict=True))
    assert read_frame(pd.DataFrame({"w": [f"{i}" for i in range(ROWS)]}, dtype=object)).coded(0) is None  # all different
    assert read_frame(words("str", False, rows=20)).coded(0) is None


def test_an_unknown_word_is_still_named_with_its_column() -> None:
    model = ColumnTransformer([("w", OneHotEncoder(), ["w"])]).fit(FITTED_TEXT)
    with pytest.raises(hbc.InvalidInputError, match="'' in column 'w'"):
        hbc.convert(model, "numpy").transform(words("str", False))


def test_strings_before_a_device() -> None:
    model = make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OrdinalEncoder())
    frame = words("str", True).astype(object)
    model.fit(frame)
    expected = model.transform(frame)
    for backend in ("torch", "onnx"):
        np.testing.assert_array_equal(hbc.convert(model, backend).transform(words("str", True)), expected)
