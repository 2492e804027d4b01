"""`set_output`: transform gives the frame that the source gives: its library, names, dtypes, index and values."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from installed import older
from pandas.testing import assert_frame_equal
from polars.testing import assert_frame_equal as assert_polars_equal
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

import hbc

RNG = np.random.default_rng(0)
ROWS = 30
NUMBERS = pd.DataFrame(RNG.normal(size=(ROWS, 4)), columns=[*"abcd"], index=np.arange(ROWS)[::-1] * 7)
MIXED = pd.DataFrame(
    {
        "x": RNG.normal(size=ROWS),
        "small": RNG.integers(0, 9, ROWS).astype(np.int8),
        "flag": RNG.random(ROWS) < 0.5,
        "word": pd.Series(RNG.choice(["red", "blue"], ROWS)),
        "kind": pd.Categorical(RNG.choice(["u", "v"], ROWS)),
        "day": pd.date_range("2026-01-01", periods=ROWS),
        "y": RNG.normal(size=ROWS),
    }
).set_index(np.arange(ROWS)[::-1] * 3)
Y = (NUMBERS["a"] > 0).to_numpy().astype(int)
DENSE = {"sparse_output": False, "handle_unknown": "ignore"}


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, pl.DataFrame):
        return assert_polars_equal(found, expected)
    assert found.columns.dtype == expected.columns.dtype
    return assert_frame_equal(
        found, expected, check_exact=False, rtol=1e-7, check_index_type="exact", check_column_type="exact"
    )


def mixed(**options: Any) -> ColumnTransformer:
    parts = [
        ("number", make_pipeline(SimpleImputer(), StandardScaler()), ["y", "x"]),
        ("same", "passthrough", ["day", "small", "flag"]),
        ("hot", OneHotEncoder(**DENSE, dtype=np.int32), ["word"]),
        ("code", OrdinalEncoder(), ["kind"]),
    ]
    return ColumnTransformer(parts, **options)


MODELS: dict[str, Any] = {
    "scaler": StandardScaler(),
    "PCA": PCA(2),
    "selector": SelectKBest(k=2),
    "pipeline": make_pipeline(StandardScaler(), PCA(2)),
    "ends with passthrough": Pipeline([("a", StandardScaler()), ("b", "passthrough")]),
    "union": FeatureUnion([("a", StandardScaler()), ("b", PCA(2)), ("same", "passthrough")]),
    "columns": ColumnTransformer([("a", StandardScaler(), [0, 1])], remainder="passthrough"),
    "short names": ColumnTransformer(
        [("a", StandardScaler(), [3, 1])], remainder="passthrough", verbose_feature_names_out=False
    ),
    "selector in columns": make_pipeline(ColumnTransformer([("a", MinMaxScaler(), [0, 1, 2])]), VarianceThreshold()),
    "ufunc": ColumnTransformer([("a", FunctionTransformer(np.tanh, feature_names_out="one-to-one"), [0, 2])]),
}


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("name", MODELS)
def test_frames_of_numbers(name: str, library: str) -> None:
    model = sklearn.clone(MODELS[name])
    if library == "polars" and name == "selector":
        model.fit(NUMBERS, Y).set_output(transform="polars")
        with pytest.raises(hbc.UnsupportedOperatorError, match="set_output"):
            hbc.convert(model, "numpy")
        return
    # Before scikit-learn 1.8, "short names" finds x0 and x1 twice in an array.
    only_frames = name == "union" or (name == "short names" and older("sklearn", 1, 8))
    for fitted_on in (NUMBERS,) if only_frames else (NUMBERS, NUMBERS.to_numpy()):
        model = sklearn.clone(MODELS[name]).set_output(transform=library).fit(fitted_on, Y)
        compiled = hbc.convert(model, "numpy")
        data = NUMBERS.to_numpy()
        arrays = () if name == "union" else (data, data.astype(np.float32), data[:1])
        for given in (*arrays, NUMBERS if library == "pandas" else pl.from_pandas(NUMBERS)):
            assert_same(compiled.transform(given), model.transform(given))
        if isinstance(fitted_on, pd.DataFrame) and library == "pandas":
            copy = pickle.loads(pickle.dumps(compiled))
            assert_same(copy.transform(NUMBERS), model.transform(NUMBERS))


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("remainder", ["drop", "passthrough"])
def test_columns_keep_their_dtypes(library: str, remainder: str, tmp_path: Path) -> None:
    frame = MIXED if library == "pandas" else pl.from_pandas(MIXED)
    model = mixed(remainder=remainder).set_output(transform=library).fit(frame)
    compiled = hbc.convert(model, "numpy")
    assert f"transform gives a frame of {library}" in compiled.explain()
    assert_same(compiled.transform(frame), model.transform(frame))
    turned = frame[list(frame.columns)[::-1]]
    assert_same(compiled.transform(turned), model.transform(turned))
    compiled.save(tmp_path / "m.hbc")
    assert_same(hbc.load(tmp_path / "m.hbc").transform(frame), model.transform(frame))
    with pytest.raises(hbc.InvalidInputError, match="day"):
        compiled.transform(frame[[name for name in frame.columns if name != "day"]])
    other = pl.from_pandas(MIXED) if library == "pandas" else MIXED
    with pytest.raises(hbc.InvalidInputError, match=f"a frame of {library}"):
        compiled.transform(other)
    with pytest.raises(ValueError, match="set_output"):
        compiled.export(tmp_path / "m.onnx")


def test_frames_between_steps_keep_strings() -> None:
    """A ColumnTransformer passes a column of strings through, and the next one encodes it by its name."""
    first = ColumnTransformer([("scale", StandardScaler(), ["x"])], remainder="passthrough", verbose_feature_names_out=False)
    second = ColumnTransformer([("code", OneHotEncoder(**DENSE), ["word"]), ("scale", MinMaxScaler(), ["y", "x"])])
    frame = MIXED[["x", "word", "y"]]
    model = make_pipeline(first, second).set_output(transform="pandas").fit(frame)
    assert_same(hbc.convert(model, "numpy").transform(frame), model.transform(frame))
    classifier = make_pipeline(first, second, LogisticRegression()).set_output(transform="pandas").fit(frame, Y)
    compiled = hbc.convert(classifier, "numpy")
    np.testing.assert_allclose(compiled.predict_proba(frame), classifier.predict_proba(frame), rtol=1e-7)


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
def test_the_configuration_at_convert_counts() -> None:
    model = make_pipeline(StandardScaler(), PCA(2)).fit(NUMBERS)
    with sklearn.config_context(transform_output="pandas"):
        compiled, expected = hbc.convert(model, "numpy"), model.transform(NUMBERS)
    assert_same(compiled.transform(NUMBERS), expected)
    assert isinstance(hbc.convert(model, "numpy").transform(NUMBERS), np.ndarray)
    model[0].set_output(transform="pandas")  # the last step decides
    assert isinstance(hbc.convert(model, "numpy").transform(NUMBERS), np.ndarray)


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
def test_the_index_is_lost_where_the_source_loses_it() -> None:
    model = make_pipeline(StandardScaler(), PCA(2)).fit(NUMBERS)
    model[1].set_output(transform="pandas")
    found = hbc.convert(model, "numpy").transform(NUMBERS)
    assert_same(found, model.transform(NUMBERS))
    assert found.index[0] == 0


def test_a_union_hands_frames_on_and_stacks_arrays() -> None:
    """FeatureUnion.set_output does not reach its own "passthrough": for an array the source stacks arrays, of one dtype. One that was
    fitted on an array names the columns of a frame, and would compare these names."""
    model = sklearn.clone(MODELS["union"]).set_output(transform="pandas").fit(NUMBERS)
    with pytest.raises(hbc.InvalidInputError, match="a frame of pandas"):
        hbc.convert(model, "numpy").transform(NUMBERS.to_numpy())
    model.fit(NUMBERS.to_numpy())
    compiled = hbc.convert(model, "numpy")
    with pytest.raises(hbc.InvalidInputError, match=r"fitted without names.* pandas.DataFrame\(X.to_numpy\(\)\)"):
        compiled.transform(NUMBERS)
    unnamed = pd.DataFrame(NUMBERS.to_numpy())
    assert_same(compiled.transform(unnamed), model.transform(unnamed))
    # Frames of polars always have names.
    model = sklearn.clone(MODELS["union"]).set_output(transform="polars").fit(NUMBERS.to_numpy())
    with pytest.raises(hbc.UnsupportedOperatorError, match="set_output: it was fitted on an array"):
        hbc.convert(model, "numpy")


def test_float32_between_frames_of_polars() -> None:
    """scikit-learn reads float32 of polars as float64."""
    data = NUMBERS.to_numpy().astype(np.float32)
    model = make_pipeline(StandardScaler(), MinMaxScaler()).set_output(transform="polars").fit(data)
    assert_same(hbc.convert(model, "numpy").transform(data), model.transform(data))
    plain = StandardScaler().fit(NUMBERS)
    frame = pl.from_pandas(NUMBERS.astype(np.float32))
    np.testing.assert_array_equal(hbc.convert(plain, "numpy").transform(frame), plain.transform(frame), strict=True)


REFUSED: dict[str, Any] = {
    "sparse": OneHotEncoder(),
    "weights": ColumnTransformer([("a", "passthrough", [0])], transformer_weights={"a": 2.0}),
    "function": FunctionTransformer(np.abs, feature_names_out="one-to-one"),
    "identity": FunctionTransformer(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name: str) -> None:
    model = sklearn.clone(REFUSED[name]).fit(NUMBERS).set_output(transform="pandas")
    with pytest.raises(hbc.UnsupportedOperatorError, match="set_output"):
        hbc.convert(model, "numpy")


def test_a_last_step_that_does_nothing_keeps_strings_beside_numbers() -> None:
    """(hbc.convert once raised TypeError: it joined the strings with the codes, although nothing reads them.)"""
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer([("same", "passthrough", ["word"]), ("code", codes, ["y"])])
    model = make_pipeline(columns, "passthrough").set_output(transform="pandas").fit(MIXED)
    assert_same(hbc.convert(model, "numpy").transform(MIXED), model.transform(MIXED))


def test_float32_of_another_library_is_float32_in_the_frame_that_a_step_hands_on() -> None:
    first = ColumnTransformer([("same", "passthrough", list(NUMBERS.columns))])
    model = make_pipeline(first, StandardScaler()).set_output(transform="pandas").fit(NUMBERS)
    frame = pl.from_pandas(NUMBERS.astype(np.float32))
    assert_same(hbc.convert(model, "numpy").transform(frame), model.transform(frame))


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
@pytest.mark.parametrize("backend", ["numpy", "tvm"])
def test_parts_that_follow_the_dtype_of_their_columns(backend: str) -> None:
    """A Binarizer gives integers for integers, so that the dtypes of a mixed frame must be known when the model is converted."""
    mixed = NUMBERS.assign(**{NUMBERS.columns[0]: np.arange(len(NUMBERS)) % 3})
    model = (
        ColumnTransformer([("a", Binarizer(), [0]), ("b", StandardScaler(), [1])]).set_output(transform="pandas").fit(NUMBERS)
    )
    compiled = hbc.convert(model, backend)
    for given in (NUMBERS, NUMBERS.astype(np.float32), NUMBERS.round().astype(np.int64), NUMBERS.to_numpy()):
        assert_same(compiled.transform(given), model.transform(given))
    with pytest.raises(hbc.InvalidInputError, match="int64 in column 0"):
        compiled.transform(mixed)
    with pytest.raises(hbc.InvalidInputError, match="int8"):
        compiled.transform(NUMBERS.round().astype(np.int8))
    for sample in (mixed, NUMBERS.astype({NUMBERS.columns[0]: np.float32})):
        known = hbc.convert(model, backend, sample)
        for given in (NUMBERS, sample):
            assert_same(known.transform(given), model.transform(given))


def test_what_is_rejected() -> None:
    compiled = hbc.convert(StandardScaler(with_mean=False).fit(NUMBERS).set_output(transform="pandas"), "numpy")
    with pytest.raises(hbc.InvalidInputError, match="sparse"):
        compiled.transform(scipy.sparse.csr_array(NUMBERS.to_numpy()))
    with pytest.raises(ValueError, match="a frame"):
        compiled.bind("transform", np.float64)
    binarizer = hbc.convert(Binarizer().fit(NUMBERS).set_output(transform="pandas"), "numpy")
    with pytest.raises(hbc.InvalidInputError, match="int64"):
        binarizer.transform(NUMBERS.astype(np.int8))


@pytest.mark.parametrize("backend", ["torch", "torchscript", "onnx", "tvm"])
def test_every_backend(backend: str) -> None:
    model = mixed().set_output(transform="pandas").fit(MIXED)
    found, expected = hbc.convert(model, backend).transform(MIXED), model.transform(MIXED)
    assert_frame_equal(found, expected, rtol=1e-6)


def test_frames_without_scikit_learn(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), PCA(2)).set_output(transform="pandas").fit(NUMBERS)
    hbc.convert(model, "numpy").save(tmp_path / "m.hbc")
    NUMBERS.to_pickle(tmp_path / "X.pkl")
    code = (
        "import sys, pandas, hbc; sys.modules['sklearn'] = None; "
        f"print(hbc.load({str(tmp_path / 'm.hbc')!r}).transform(pandas.read_pickle({str(tmp_path / 'X.pkl')!r})).columns.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['pca0', 'pca1']"


@pytest.mark.parametrize("beside", [False, True])
def test_a_frame_that_becomes_an_array_beside_others(beside: bool) -> None:
    """A FeatureUnion makes an array of the frame of pandas that a member gives. Columns of pandas' own dtypes, and bool beside numbers,
    become Python objects there."""
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 5.0, 2.0]})
    parts = [("same", "passthrough", ["a"]), ("other", StandardScaler() if beside else "passthrough", ["b"])]
    members = [("frame", ColumnTransformer(parts).set_output(transform="pandas")), ("more", ColumnTransformer(parts[1:]))]
    union = FeatureUnion(members).fit(frame)
    compiled = hbc.convert(union, "numpy")
    for given in (frame, frame.astype("f4"), frame.astype({"a": "i1"})):
        expected = union.transform(given)
        np.testing.assert_allclose(compiled.transform(given), expected, rtol=1e-6, strict=True)
    for dtype in ("Int64", "Float64", "bool", "double[pyarrow]"):
        given = frame.astype({"a": dtype})
        assert union.transform(given).dtype == object
        with pytest.raises(hbc.InvalidInputError, match="become Python objects"):
            compiled.transform(given)
    model = make_pipeline(union, LinearRegression()).fit(frame, [1, 2, 4])  # it makes numbers of the objects
    for dtype in ("Int64", "bool"):
        given = frame.astype({"a": dtype})
        np.testing.assert_allclose(hbc.convert(model, "numpy").predict(given), model.predict(given), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:When .set_output. is configured")
@pytest.mark.parametrize("passed", ["passthrough", FunctionTransformer()])
def test_a_union_in_polars_of_a_frame_of_pandas(passed: Any) -> None:
    """Of pandas' own dtypes, and of bool beside numbers, it makes columns of objects, with which some estimators then compute."""
    frame = pd.DataFrame({"a": np.arange(20) % 7, "b": np.arange(20) / 3})
    union = FeatureUnion([("same", passed), ("scaled", StandardScaler())]).set_output(transform="polars")
    model = make_pipeline(union, RidgeClassifier()).fit(pl.from_pandas(frame), np.arange(20) % 2)
    compiled = hbc.convert(model, "numpy", pl.from_pandas(frame))
    expected = model.decision_function(pl.from_pandas(frame))
    np.testing.assert_allclose(compiled.decision_function(pl.from_pandas(frame)), expected, rtol=1e-9)
    assert model.decision_function(frame.astype({"a": "Int64"})).dtype == object
    with pytest.raises(hbc.InvalidInputError, match="expected a frame of polars"):
        compiled.decision_function(frame.astype({"a": "Int64"}))
