"""Frames of every library, also with dtypes that arrays do not have, give the source's results in pipelines."""

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
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

import hbc
from hbc.ir.coded_strings import CodedStrings
from hbc.runtime.input.coded import WORTH_CODES, encoded
from hbc.runtime.input.frames import read_frame
from hbc.runtime.input.pandas_frame import PandasFrame

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
    """Asserts that hbc gives the source's result, or an error if the source raises one."""
    try:
        expected = model.transform(X)
    except (ValueError, TypeError, KeyError):
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
        # pyarrow's own reading of missing categories; those that some step may put into an array alone.
        refused = (kind.startswith(("date", "time")) and (name == "codes" or library == "polars")) or (
            kind == "categories" and missing and (library == "pyarrow" or name == "apart")
        )
        try:
            same(model, compiled, make(frame))
        except hbc.InvalidInputError:
            assert refused, library


@pytest.mark.parametrize(
    ("function", "dtypes"),
    [
        (np.exp, {"Int64": True, "Float64": True, "UInt8": False, "boolean": False, "Float32": False, "category": False}),
        (np.sign, {"Int64": True, "Int8": True, "object": False}),
        (np.square, {"Int64": True, "Int32": False, "float64": True}),
        (np.reciprocal, {"Int64": False, "Float64": True}),
    ],
)
def test_functions_that_compute_in_dtypes_of_pandas(function, dtypes):
    """pandas computes the exponential of UInt8 in float16, and the reciprocal of Int64 as an integer. hbc would read both as float64."""
    frame = pd.DataFrame({"a": [1.0, 1.0, 1.0], "b": [0.5, 1.5, 2.5]})
    model = FunctionTransformer(function).fit(frame)
    compiled = hbc.convert(model, "numpy", frame)
    for dtype, fits in dtypes.items():
        given = frame.astype({"a": dtype})
        if fits:
            np.testing.assert_array_equal(compiled.transform(given), model.transform(given).to_numpy(float))
        else:
            with pytest.raises(hbc.InvalidInputError, match="'a'"):
                compiled.transform(given)
    checked = FunctionTransformer(function, validate=True).fit(frame)
    given = frame.astype({"a": "UInt8"})
    np.testing.assert_array_equal(hbc.convert(checked, "numpy", frame).transform(given), checked.transform(given))


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
    values = (WORDS if unknown else FITTED_TEXT["w"].to_numpy(object)).copy()
    series = pd.Series(values, dtype=pd.ArrowDtype(ARROW[kind]) if kind in ARROW else kind)
    if missing:
        series[GONE] = None
    return pd.DataFrame({"w": series})[:rows]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_strings(encoder: str, missing: bool) -> None:
    """Strings are read as codes if there are many rows, and one by one if there are few."""
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
        texts = CodedStrings((codes,), (values,))
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


# --- frames that nobody fitted on --------------------------------------------------------------------------------------

SMALL = pd.DataFrame(
    {"a": np.arange(12) / 4, "b": np.arange(12.0) % 5, "w": ["red", "blue", "grün", ""] * 3, "z": np.arange(12)}
)
WORDS_OF_SMALL = pa.array(SMALL["w"].tolist())
SMALL_ARROW = pa.Table.from_pandas(SMALL, preserve_index=False)
SMALL_POLARS = pl.from_pandas(SMALL)


def with_columns(frame: pd.DataFrame, columns: Any) -> pd.DataFrame:
    frame = frame.copy()
    frame.columns = columns
    return frame


def with_arrow(name: str, values: Any) -> pa.Table:
    return SMALL_ARROW.set_column(SMALL_ARROW.column_names.index(name), name, values)


HOSTILE: dict[str, Callable[[], Any]] = {
    "extra, objects": lambda: SMALL.assign(q=object()),
    "extra in front": lambda: SMALL.assign(q=1)[["q", "a", "b", "w", "z"]],
    "other order": lambda: SMALL[["w", "z", "b", "a"]],
    "without an unread column": lambda: SMALL[["a", "b", "w"]],
    "without a column": lambda: SMALL[["a", "w", "z"]],
    "one name twice": lambda: pd.concat([SMALL, SMALL[["a"]]], axis=1),
    "MultiIndex": lambda: with_columns(SMALL, pd.MultiIndex.from_tuples([(name, 1) for name in SMALL])),
    "names of numbers": lambda: with_columns(SMALL, range(4)),
    "names of several types": lambda: with_columns(SMALL, ["a", 1, "w", "z"]),
    "categories as names": lambda: with_columns(SMALL, pd.CategoricalIndex(SMALL.columns)),
    "no rows": lambda: SMALL[:0],
    "no columns": lambda: SMALL[[]],
    "every second row": lambda: SMALL[::2],
    "unused categories": lambda: SMALL.assign(w=pd.Categorical(SMALL["w"], ["zz", "red", "", "grün", "blue"])),
    "ordered, reversed": lambda: SMALL.assign(w=pd.Categorical(SMALL["w"], ["red", "grün", "blue", ""], ordered=True)),
    "categories of numbers": lambda: SMALL.assign(b=pd.Categorical(SMALL["b"])),
    "categories of numbers, some missing": lambda: SMALL.assign(b=pd.Categorical(SMALL["b"].where(SMALL["b"] < 3))),
    "nullable": lambda: SMALL.convert_dtypes(),
    "of pyarrow": lambda: SMALL.convert_dtypes(dtype_backend="pyarrow"),
    "dates and their zone, unread": lambda: SMALL.assign(z=pd.date_range("2026", periods=12, tz="UTC")),
    "dates and their zone": lambda: SMALL.assign(b=pd.date_range("2026", periods=12, tz="UTC")),
    "dates, two columns": lambda: SMALL.assign(a=pd.date_range("2026", periods=12), z=pd.date_range("2020", periods=12)),
    "None, NaN": lambda: SMALL.assign(w=pd.Series(["red", None, np.nan] * 4, dtype=object)),
    "numbers among words": lambda: SMALL.assign(w=pd.Series(["red", 1, 2.5] * 4, dtype=object)),
    "bytes among words": lambda: SMALL.assign(w=pd.Series(["red", b"red", "blue"] * 4, dtype=object)),
    "subclass of str": lambda: SMALL.assign(w=pd.Series([np.str_(word) for word in SMALL["w"]], dtype=object)),
    "digits": lambda: SMALL.assign(b=SMALL["b"].astype(str).astype(object)),
    "bool": lambda: SMALL.assign(b=SMALL["b"] > 2),
    "single": lambda: SMALL.astype({"a": "f4", "b": "f4"}),
    "polars": lambda: SMALL_POLARS,
    "polars, lazy": SMALL_POLARS.lazy,
    "polars, categories": lambda: SMALL_POLARS.with_columns(pl.col("w").cast(pl.Categorical)),
    "polars, enum": lambda: SMALL_POLARS.with_columns(pl.col("w").cast(pl.Enum(["zz", "red", "", "grün", "blue"]))),
    "polars, 128 bits": lambda: SMALL_POLARS.cast({"b": pl.Int128}),
    "polars, dates": lambda: SMALL_POLARS.with_columns(b=pl.Series(pd.date_range("2026", periods=12, tz="UTC"))),
    "polars, chunks": lambda: pl.concat([SMALL_POLARS[:5], SMALL_POLARS[5:]], rechunk=False),
    "arrow": lambda: SMALL_ARROW,
    "arrow, chunks": lambda: pa.concat_tables([SMALL_ARROW[:5], SMALL_ARROW[5:5], SMALL_ARROW[5:]]),
    "arrow, no rows": lambda: SMALL_ARROW[:0],
    "arrow, other order": lambda: SMALL_ARROW.select(["w", "b", "a"]),
    "arrow, without a column": lambda: SMALL_ARROW.select(["w", "a"]),
    "arrow, one name twice": lambda: SMALL_ARROW.append_column("a", WORDS_OF_SMALL),
    "arrow, large strings": lambda: with_arrow("w", WORDS_OF_SMALL.cast("large_string")),
    "arrow, dictionaries that differ": lambda: with_arrow(
        "w", pa.chunked_array([WORDS_OF_SMALL[:5].dictionary_encode(), WORDS_OF_SMALL[5:].dictionary_encode()])
    ),
    "arrow, missing in a dictionary": lambda: with_arrow("w", pa.array(["red", None, "blue"] * 4).dictionary_encode()),
    "arrow, missing": lambda: with_arrow("w", pa.array(["red", None, "blue"] * 4)),
    "arrow, missing integers": lambda: with_arrow("b", pa.array([1, None, 2] * 4)),
    "arrow, missing bool": lambda: with_arrow("b", pa.array([True, None, False] * 4)),
    "arrow, dates": lambda: with_arrow("b", pa.array(pd.date_range("2026", periods=12, tz="UTC"))),
    "arrow, nothing": lambda: with_arrow("b", pa.nulls(12)),
    "arrow, lists": lambda: with_arrow("b", pa.array([[1.0]] * 12)),
}
REFUSED = {
    "numbers among words", "bytes among words", "polars, dates", "polars, 128 bits", "arrow, missing in a dictionary",
}  # fmt: skip
"""Dtypes that scikit-learn takes and hbc does not."""
READERS: dict[str, Any] = {
    "by name": ColumnTransformer([
        ("n", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
        ("w", OneHotEncoder(handle_unknown="ignore"), ["w"]),
    ]),
    "by place": ColumnTransformer([("n", SimpleImputer(), [0, 1]), ("w", OneHotEncoder(handle_unknown="ignore"), [2])]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Determining the data types of a LazyFrame")  # by scikit-learn before 1.8
@pytest.mark.parametrize("reader", READERS)
def test_frames_that_differ_from_the_fitted_one(reader: str) -> None:
    """Frames go through one model one after the other, so that it must forget the columns of the frame before."""
    model = READERS[reader].fit(SMALL)
    compiled = hbc.convert(model, "numpy")
    for name, make in HOSTILE.items():
        try:
            same(model, compiled, make())
        except hbc.InvalidInputError:
            assert name in REFUSED, name
        except (AssertionError, pytest.fail.Exception) as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("rest", ["drop", "passthrough"])
def test_what_is_picked_by_name_must_be_there_though_nothing_reads_it(rest: str) -> None:
    """The inner ColumnTransformer drops b; the outer one names it, and asks for it."""
    inner = ColumnTransformer([("a", StandardScaler(), ["a"])]).set_output(transform="pandas")
    frame = FITTED.assign(c=REAL, d=REAL)
    model = ColumnTransformer([("inner", inner, ["a", "b"]), ("c", "passthrough", ["c"])], remainder=rest).fit(frame)
    compiled = hbc.convert(model, "numpy")
    for columns in ("abcd", "dcba", "abc", "acd", "ab"):
        same(model, compiled, frame[list(columns)])
    with pytest.raises(hbc.InvalidInputError, match="without the columns b"):
        compiled.transform(frame[["a", "c", "d"]])


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "i4", "i8"])
def test_narrow_integers_beside_float32(dtype: str) -> None:
    """Beside float32, numpy computes narrow integers in float32 and wider ones in float64. (Computed in float64, 60 of 90 numbers had other
    last digits.)"""
    frame = SMALL.assign(a=SMALL["a"].astype("f4"), b=(SMALL["b"] > 2).astype(dtype))
    for scaler in (StandardScaler(), make_pipeline(SimpleImputer(), StandardScaler())):
        model = ColumnTransformer([("n", scaler, ["a", "b"]), ("w", OneHotEncoder(), ["w"])]).fit(frame)
        compiled = hbc.convert(model, "numpy", frame)
        if np.dtype(dtype).itemsize < 4:  # rejected, since hbc has no columns of them
            with pytest.raises(hbc.InvalidInputError, match=r"\('b'\): .*cast the column"):
                compiled.transform(frame)
        else:
            same(model, compiled, frame)


def test_a_sample_with_one_name_twice_is_named() -> None:
    with pytest.raises(hbc.InvalidInputError, match=r"sample X.*two columns of one name \(a\)"):
        hbc.convert(StandardScaler().fit(FITTED.to_numpy()), "numpy", pd.concat([FITTED, FITTED[["a"]]], axis=1))


class WithoutManager:
    """A pandas.DataFrame without the private `_mgr`, as a later version may be."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __getattr__(self, name: str) -> Any:
        if name == "_mgr":
            raise AttributeError(name)
        return getattr(self.frame, name)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, name: str) -> Any:
        return self.frame[name]


def test_a_pandas_that_does_not_show_its_blocks() -> None:
    frame = SMALL.assign(d=pd.date_range("2026", periods=12), e=pd.date_range("2020", periods=12), q=None, c=SMALL["b"] > 2)
    short, long = PandasFrame(frame), PandasFrame(WithoutManager(frame))
    for i in range(short.width):
        np.testing.assert_array_equal(short.column(i), frame.iloc[:, i].to_numpy())
        np.testing.assert_array_equal(short.column(i), long.column(i))
        assert short.column(i).dtype == long.column(i).dtype


def test_codes_of_more_words_than_a_byte_holds() -> None:
    for different in (256, 257):
        values = np.array([f"word {i}" for i in range(different)], object)
        column = np.concatenate([values[:100].repeat(6), values])
        coded = encoded(column)
        assert coded is not None
        np.testing.assert_array_equal(coded[1][coded[0]], column)


def test_a_missing_one_among_categories_of_integers_beside_integers() -> None:
    """pandas makes an array of integers of such a frame, and -9223372036854775808 of the missing one."""
    fitted = pd.DataFrame({"a": [0, 1, 2], "b": [0, 3, 6]})
    model = MinMaxScaler().fit(fitted)
    compiled = hbc.convert(model, backend="numpy")
    frame = pd.DataFrame({"a": pd.Categorical([2, None, 1]), "b": [1, 2, 3]})
    with np.errstate(invalid="ignore"):
        assert model.transform(frame)[1, 0] < -1e18
    with pytest.raises(hbc.InvalidInputError, match="missing one among categories of integers"):
        compiled.transform(frame)
    same(model, compiled, frame.assign(b=[1.0, 2.0, 3.0]))


@pytest.mark.filterwarnings("ignore:Label 0 is present")
def test_a_label_that_all_rows_have_behind_picked_columns() -> None:
    """OneVsRestClassifier compares names for such a label, but only of what it is given."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(30, 3)), columns=list("abc"))
    labels = np.column_stack([np.ones(30, int), frame["a"] > 0, frame["b"] > 0]).astype(int)
    for picked in (
        ColumnTransformer([("x", "passthrough", ["a", "b"]), ("y", "passthrough", ["c"])]),
        ColumnTransformer([("x", "passthrough", ["a", "b"])]).set_output(transform="pandas"),
    ):
        behind = make_pipeline(picked, OneVsRestClassifier(LogisticRegression())).fit(frame, labels)
        compiled = hbc.convert(behind, "numpy")
        for given in (frame, frame[["c", "b", "a"]], frame.assign(more=1)):
            np.testing.assert_array_equal(compiled.predict(given), behind.predict(given))
        inside = OneVsRestClassifier(make_pipeline(picked, LogisticRegression())).fit(frame, labels)
        compiled = hbc.convert(inside, "numpy")
        np.testing.assert_array_equal(compiled.predict(frame), inside.predict(frame))
        for given in (frame[["c", "b", "a"]], frame.assign(more=1)):
            with pytest.raises(ValueError, match="feature names should match"):
                inside.predict(given)
            with pytest.raises(hbc.InvalidInputError, match="feature names"):
                compiled.predict(given)
