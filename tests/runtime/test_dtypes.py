"""Inputs of every dtype and container into estimators that keep, stack or read them. The answer and its dtype are the source's, or hbc
raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from pandas.testing import assert_frame_equal
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import AdaBoostClassifier, VotingRegressor
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBRegressor

import hbc

RNG = np.random.default_rng(0)
WHOLE, REAL = RNG.integers(0, 4, 24), RNG.normal(size=24).round(2)
GAPS = [None if i % 5 == 1 else value for i, value in enumerate(WHOLE.tolist())]
FRAME = pd.DataFrame({"a": WHOLE.astype(float), "b": REAL})
ARRAY = FRAME.to_numpy()
DAYS = pd.to_datetime("2026-01-01") + pd.to_timedelta(WHOLE, unit="D")


def stacked(member: Any, **options: Any) -> ColumnTransformer:
    return ColumnTransformer([("first", member, ["a"])], remainder="passthrough", **options)


UNKNOWN: dict[str, Any] = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
MODELS: dict[str, Any] = {
    "all": ColumnTransformer([("same", "passthrough", ["b", "a"])]),
    "all, by place": ColumnTransformer([("same", "passthrough", [1, 0])]),
    "one": ColumnTransformer([("same", "passthrough", ["b"])]),
    "one by one": ColumnTransformer([("one", "passthrough", ["b"]), ("two", FunctionTransformer(), ["a"])]),
    "beside a scaler": stacked(StandardScaler()),
    "beside a function": stacked(FunctionTransformer(np.sign)),
    "functions beside a scaler": ColumnTransformer(
        [("scaled", StandardScaler(), [0]), ("size", FunctionTransformer(np.abs), [1])]  # by place: lists are read
    ),
    "before a scaler": make_pipeline(ColumnTransformer([("same", "passthrough", ["b", "a"])]), StandardScaler()),
    "before a model": make_pipeline(stacked(MinMaxScaler()), LinearRegression()),
    "in a pipeline": stacked(Pipeline([("same", "passthrough")])),
    "one selected": SelectKBest(k=1),
    "beside codes": ColumnTransformer([("code", OrdinalEncoder(dtype=np.float32, **UNKNOWN), ["a"])], remainder="passthrough"),
    "codes and imputed": FeatureUnion([("flag", Binarizer()), ("full", SimpleImputer(strategy="most_frequent"))]),
    "flags of flags": FeatureUnion(
        [("flag", make_pipeline(Binarizer(), SelectKBest(k=1), Binarizer())), ("same", "passthrough")]
    ),
    "weighted": ColumnTransformer([("same", "passthrough", ["a", "b"])], transformer_weights={"same": 2.0}),
    "union": FeatureUnion([("same", "passthrough"), ("scaled", MinMaxScaler())]),
    "union of the same": FeatureUnion([("same", "passthrough"), ("kept", VarianceThreshold())]),
    "selected": VarianceThreshold(),
    "selected before a scaler": make_pipeline(VarianceThreshold(), StandardScaler()),
    "binarized": Binarizer(),
    "normalized": Normalizer(),
    "scaled": StandardScaler(),
    "powers": PowerTransformer(),
    "projected": PCA(2),
    "regression": LinearRegression(),
    "LightGBM": LGBMRegressor(n_estimators=3, min_child_samples=2, verbose=-1),
    "XGBoost": XGBRegressor(n_estimators=3),
}
INPUTS: dict[str, Callable[[], Any]] = {
    **{dtype: lambda dtype=dtype: ARRAY.astype(dtype) for dtype in ("f8", "f4", "f2", ">f8", ">f4", "longdouble")},
    **{dtype: lambda dtype=dtype: np.abs(ARRAY).round().astype(dtype) for dtype in ("i8", "i4", "i1", "u1", ">i4", "?")},
    "list": lambda: ARRAY.tolist(),
    **{f"pandas {dtype}": lambda dtype=dtype: FRAME.astype(dtype) for dtype in ("f8", "f4", ">f4", "Float64", "Float32")},
    **{f"pandas {dtype}": lambda dtype=dtype: FRAME.round().astype(dtype) for dtype in ("Int64", "Int8", "int64[pyarrow]")},
    "pandas float[pyarrow]": lambda: FRAME.astype("float[pyarrow]"),
    "pandas boolean": lambda: (FRAME > 1).astype("boolean"),
    "pandas bool": lambda: FRAME > 1,
    "pandas bool, i8": lambda: FRAME.astype({"a": "?", "b": "i8"}),
    "pandas categories, i8": lambda: FRAME.assign(a=pd.Categorical(WHOLE), b=WHOLE),
    "pandas i8, Int16": lambda: FRAME.astype({"a": "i8"}).assign(b=pd.array(WHOLE, dtype="Int16")),
    "pandas bool, f8": lambda: FRAME.assign(a=FRAME["a"] > 1),
    "pandas Float32, f8": lambda: FRAME.astype({"a": "Float32"}),
    "pandas f8, Float32": lambda: FRAME.astype({"b": "Float32"}),
    "pandas i4, f4": lambda: FRAME.astype({"a": "i4", "b": "f4"}),
    "pandas i8, f8": lambda: FRAME.astype({"a": "i8"}),
    "pandas NA": lambda: FRAME.assign(a=pd.array(GAPS, dtype="Int64")),
    "pandas NA, Float32": lambda: FRAME.assign(b=pd.array(GAPS, dtype="Float32")),
    "pandas categories": lambda: FRAME.assign(a=pd.Categorical(WHOLE)),
    "pandas objects": lambda: FRAME.astype(object),
    "pandas dates": lambda: FRAME.assign(a=DAYS),
    "pandas dates only": lambda: FRAME.assign(a=DAYS, b=DAYS),
    "pandas sparse": lambda: FRAME.astype(pd.SparseDtype("float64", 0.0)),
    "polars f8": lambda: pl.from_pandas(FRAME),
    "polars f4": lambda: pl.from_pandas(FRAME.astype("f4")),
    "polars bool": lambda: pl.from_pandas(FRAME > 1),
    "polars i4, f4": lambda: pl.from_pandas(FRAME.astype({"a": "i4", "b": "f4"})),
    "pyarrow f8": lambda: pa.table({"a": ARRAY[:, 0], "b": REAL}),
    "pyarrow f2": lambda: pa.table({"a": ARRAY[:, 0].astype("f2"), "b": REAL.astype("f2")}),
    "pyarrow bool": lambda: pa.table({"a": WHOLE > 1, "b": REAL > 0}),
    "pyarrow gaps": lambda: pa.table({"a": GAPS, "b": REAL}),
}
UNUSUAL = (
    *("f2", ">f4", ">f8", ">i4", "longdouble", "list", "pandas >f4", "pandas categories", "pandas dates only", "pandas sparse"),
    *("pandas Float32", "pandas Int8", "pandas float[pyarrow]", "pandas boolean", "pandas bool, f8", "pandas f8, Float32"),
    *("pandas Float64", "pandas Int64", "pandas int64[pyarrow]", "pandas Float32, f8", "pandas i4, f4", "pandas objects"),
    *("pandas bool, i8", "pandas i8, Int16", "pandas categories, i8"),
    *("pandas NA", "pandas NA, Float32", "polars i4, f4", "pyarrow f2", "pandas dates"),
)
"""Inputs that hbc may reject although scikit-learn takes them."""
NARROW = ("i4", "i1", "u1", "?", "pandas bool", "polars bool", "pyarrow bool")
"""What `np.abs` alone may not be given: hbc counts in int64, and the absolute value of -128 in int8 is -128."""
ANSWERED = {
    ("one by one", "pandas bool, f8"),
    ("beside a scaler", "pandas bool, f8"),
    ("before a model", "pandas Int64"),
    ("before a scaler", "pandas bool, f8"),
    ("before a scaler", "pandas Float64"),
    ("selected", "pandas Float32"),
    ("selected", "pyarrow f2"),
    ("selected", ">f4"),
    ("scaled", ">f4"),
    ("scaled", "longdouble"),
    ("regression", "longdouble"),
    ("regression", ">f8"),
    ("scaled", "pandas NA"),
}
"""Unusual inputs that hbc takes."""


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    model = MODELS[request.param].fit(FRAME, WHOLE if request.param in ("one selected", "flags of flags") else REAL)
    return request.param, model, hbc.convert(model, "numpy")


@pytest.mark.filterwarnings("ignore")  # the source's own, about names and casts
@pytest.mark.parametrize("name", INPUTS)
def test_the_answer_with_its_dtype(pair: tuple[str, Any, Any], name: str) -> None:
    what, model, compiled = pair
    method = "predict" if hasattr(model, "predict") else "transform"
    try:
        expected = getattr(model, method)(INPUTS[name]())
    except Exception:
        with pytest.raises(hbc.InvalidInputError):
            getattr(compiled, method)(INPUTS[name]())
        return
    try:
        found = getattr(compiled, method)(INPUTS[name]())
    except hbc.InvalidInputError:
        assert (
            name in UNUSUAL
            or (what, name[-4:]) == ("beside codes", "bool")
            or (what, name[:6]) == ("weighted", "polars")
            or (what == "functions beside a scaler" and name in NARROW)
        )
        assert (what, name) not in ANSWERED
        return
    if name == "longdouble":
        expected = np.asarray(expected, found.dtype)  # hbc computes in float64
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    if sparse.issparse(expected):
        found, expected = found.toarray(), expected.toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_function_of_a_list_beside_a_scaler() -> None:
    """The source gives the function Python objects, which np.exp rejects."""
    stack = ColumnTransformer([("scaled", StandardScaler(), [0]), ("exp", FunctionTransformer(np.exp), [1])]).fit(ARRAY)
    with pytest.raises(TypeError):
        stack.transform(ARRAY.tolist())
    with pytest.raises(hbc.InvalidInputError, match="found a list"):
        hbc.convert(stack, "numpy").transform(ARRAY.tolist())


def test_numbers_that_no_float64_is() -> None:
    given = ARRAY.astype("longdouble") + np.longdouble(2.0**-60)
    assert (given.astype(float) != given).any()
    with pytest.raises(hbc.InvalidInputError, match="the dtype <f16"):
        hbc.convert(LinearRegression().fit(ARRAY, REAL), "numpy").predict(given)


def test_longdouble_before_logarithms_of_probabilities() -> None:
    """Of a probability of 1e-900 it has a logarithm; float64 has 0, and its logarithm is -inf."""
    classes = np.arange(len(ARRAY)) % 3
    model = LogisticRegression().fit(ARRAY, classes)
    compiled = hbc.convert(model, "numpy")
    given = (ARRAY * 2000 / np.abs(model.decision_function(ARRAY)).max()).astype("longdouble")
    assert np.isfinite(model.predict_log_proba(given)).all()
    with pytest.raises(hbc.InvalidInputError, match="found the dtype longdouble"):
        compiled.predict_log_proba(given)
    np.testing.assert_array_equal(compiled.predict(given), model.predict(given))
    trees = DecisionTreeClassifier().fit(ARRAY, classes)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(hbc.convert(trees, "numpy").predict_log_proba(given), trees.predict_log_proba(given))


def test_longdouble_for_one_classifier_a_class() -> None:
    """The source takes no score for the largest one, and answers with the first class."""
    X, y = RNG.normal(size=(60, 3)), np.arange(60) % 3
    alone = OneVsRestClassifier(LinearSVC()).fit(X, y)
    with pytest.raises(hbc.InvalidInputError, match="the dtype <f16"):
        hbc.convert(alone, "numpy").predict(X.astype("longdouble"))
    scaled = make_pipeline(StandardScaler(), alone).fit(X, y)
    found = hbc.convert(scaled, "numpy").predict(X.astype("longdouble"))
    np.testing.assert_array_equal(found, scaled.predict(X.astype("longdouble")))


@pytest.mark.filterwarnings("ignore")  # the source's own, about names
@pytest.mark.parametrize("backend", ["numpy", "tvm"])
@pytest.mark.parametrize("name", ["f8", "f4", "f2", "longdouble", "i8", "i1", "u1", "?", "pandas f4", "pandas bool"])
def test_adaboost_of_one_class(name: str, backend: str) -> None:
    """Its decision_function is zeros in the dtype of X."""
    model = AdaBoostClassifier(n_estimators=2).fit(FRAME, np.zeros(len(FRAME)))
    compiled = hbc.convert(model, backend)
    X = INPUTS[name]()
    np.testing.assert_array_equal(compiled.predict(X), model.predict(X))
    found, expected = compiled.decision_function(X), model.decision_function(X)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert not found.any()


@pytest.mark.parametrize("dtype", [">f4", ">f8", "longdouble"])
def test_frames_of_unusual_floats_are_rejected(dtype: str) -> None:
    """The frame that the source returns from a Binarizer has their byte order."""
    compiled = hbc.convert(Binarizer().set_output(transform="pandas").fit(FRAME), "numpy")
    assert_frame_equal(compiled.transform(ARRAY.astype("f4")), (FRAME > 0).astype("f4"), check_dtype=True)
    with pytest.raises(hbc.InvalidInputError, match="the dtype"):
        compiled.transform(ARRAY.astype(dtype))


@pytest.mark.parametrize("weight", [2.0, 2, np.float32(2), np.float64(2), np.int64(2)], ids=repr)
@pytest.mark.parametrize("framed", [False, True])
def test_weights_in_every_dtype(weight: Any, framed: bool) -> None:
    """200 · 2 is 144 in uint8, and 60,000 · 2 infinite in float16. pandas takes a scalar of numpy for a Python number."""
    model = ColumnTransformer([("same", "passthrough", [0, 1])], transformer_weights={"same": weight})
    compiled, answered = hbc.convert(model.fit(FRAME if framed else ARRAY), "numpy"), set()
    for dtype in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"):
        X = np.array([[200, 60_000], [100, 3]]).astype(dtype)
        given = pd.DataFrame(X, columns=list("ab")) if framed else X
        with np.errstate(over="ignore"):
            expected = model.transform(given)
        try:
            found = compiled.transform(given)
        except hbc.InvalidInputError:
            continue
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        answered.add(dtype)
    assert {"f8", "i8"} <= answered
    assert "f4" in answered or (framed and isinstance(weight, np.generic))


# --- functions ---------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sign": np.sign,
    "floor": np.floor,
    "fabs": np.fabs,
    "positive": np.positive,
    "maximum 300": lambda x: np.maximum(x, 300),
    "maximum -1": lambda x: np.maximum(x, -1),
    "maximum 0.3": lambda x: np.maximum(x, 0.3),
    "maximum int8": lambda x: np.maximum(x, np.int8(3)),
    "plus float32": lambda x: x + np.float32(2),
    "clip": lambda x: np.clip(x, -1, 2),
    "remainder": lambda x: x % 3,
    "fmod 3": lambda x: np.fmod(x, 3),
    "fmod 0.7": lambda x: np.fmod(x, 0.7),
    "fmod -2": lambda x: np.fmod(x, -2),
    "square": lambda x: x**2.0,
    "beside flags": lambda x: np.hstack([x, x > 0]),
    "flags": lambda x: np.where(x > 0, 1, 0),
    "column": lambda x: x[:, [1]],
}
SPECIAL = np.concatenate([RNG.normal(size=(30, 2)) * 3, [[0.0, -0.0], [6.0, -6.0], [1e300, -1e300], [5e-324, -1.4]]])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"])
def test_functions_of_every_dtype(name: str, dtype: str) -> None:
    """Functions of every dtype give numpy's result, or are rejected. (hbc once gave int64 for every integer, and answered for bool and for
    -1 beside unsigned integers, where numpy raises an error.)"""
    model = FunctionTransformer(FUNCTIONS[name]).fit(SPECIAL)
    compiled = hbc.convert(model, "numpy", SPECIAL)
    with np.errstate(all="ignore"):
        small = np.abs(SPECIAL) if dtype[0] == "u" else SPECIAL
        given = (small.clip(-9, 9).round() if dtype[0] in "iu?" else SPECIAL).astype(dtype)
        try:
            expected = model.transform(given)
        except (TypeError, OverflowError):
            expected = None
    if expected is None:
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(given)
        return
    try:
        found = compiled.transform(given)
    except hbc.InvalidInputError:
        assert (
            dtype in ("f2", "?")
            or name in ("plus float32", "maximum int8", "beside flags", "fabs", "clip", "square")
            or "m" in name
        )
        assert dtype not in ("f8", "f4", "i8")
        return
    np.testing.assert_array_equal(found, expected, strict=True)
    np.testing.assert_array_equal(np.signbit(found[found == found]), np.signbit(expected[found == found]))


@pytest.mark.parametrize("backend", ["torch", "torchscript", "onnx", "tvm"])
@pytest.mark.parametrize("divisor", [3, 0.7, -2])
def test_fmod_on_every_backend(backend: str, divisor: float) -> None:
    model = FunctionTransformer(lambda x: np.fmod(x, divisor)).fit(SPECIAL)
    compiled = hbc.convert(model, backend, SPECIAL)
    with np.errstate(all="ignore"):
        for given in (SPECIAL, SPECIAL.astype("f4")[:32], SPECIAL.round().clip(-99, 99).astype("i8")):
            found, expected = compiled.transform(given), model.transform(given)
            np.testing.assert_array_equal(found, expected, strict=True)
            if backend != "onnx":  # there the remainder of 6 and 3 is -0.0
                known = found == found
                np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


# --- what each library reads, and rejects ------------------------------------------------------------------------------

SPARSE = np.where(np.abs(ARRAY) < 1, 0, ARRAY)
BOOSTERS: dict[str, Any] = {
    "LightGBM": LGBMRegressor(n_estimators=3, min_child_samples=2, verbose=-1),
    "XGBoost": XGBRegressor(n_estimators=3),
    "CatBoost": CatBoostRegressor(iterations=3, depth=2, verbose=0, allow_writing_files=False),
}
READ: dict[str, Callable[[], Any]] = {
    "categories": lambda: FRAME.assign(a=pd.Categorical(3 - WHOLE)),
    "categories of floats": lambda: FRAME.assign(b=pd.Categorical(REAL)),
    "objects": lambda: FRAME.astype(object),
    "pandas.NA beside objects": lambda: FRAME.assign(a=pd.array(GAPS, dtype="Int64"), b=FRAME["b"].astype(object)),
    "arrow": lambda: FRAME.astype("float[pyarrow]"),
    "pyarrow": lambda: pa.table({"a": ARRAY[:, 0], "b": REAL}),
    "polars Float16": lambda: pl.from_pandas(FRAME).cast(pl.Float16),
    "nullable": lambda: FRAME.assign(a=pd.array(GAPS, dtype="Int64")),
    "nullable bool": lambda: FRAME.assign(a=pd.array([gap if gap is None else gap > 1 for gap in GAPS], dtype="boolean")),
    "categories of pyarrow": lambda: pa.table({"a": pa.array(REAL).dictionary_encode(), "b": REAL}),
    "csr": lambda: sparse.csr_matrix(SPARSE),
    "csr array": lambda: sparse.csr_array(SPARSE),
    "csc": lambda: sparse.csc_matrix(SPARSE),
    "coo array": lambda: sparse.coo_array(SPARSE),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("name", BOOSTERS)
def test_what_boosters_read(name: str, kind: str) -> None:
    """XGBoost reads the codes of categories as numbers. (hbc once read the categories themselves.)"""
    model = BOOSTERS[name].fit(FRAME, REAL)
    compiled = hbc.convert(model, "numpy")
    try:
        expected = model.predict(READ[kind]())
    except Exception:
        with pytest.raises(hbc.InvalidInputError):
            compiled.predict(READ[kind]())
        return
    if kind.startswith("categories"):
        with pytest.raises(hbc.InvalidInputError, match="category"):
            compiled.predict(READ[kind]())
        return
    np.testing.assert_allclose(compiled.predict(READ[kind]()), expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder()])
def test_encoders_of_objects_take_no_other_numbers(encoder: Any) -> None:
    """The source fails, because numpy has no isnan for categories that are objects. (hbc once answered.)"""
    frame = pd.DataFrame({"a": [1, 2, 1, 3]}, dtype=object)
    model = encoder.fit(frame)
    compiled = hbc.convert(model, "numpy")
    same = compiled.transform(frame)
    assert (same != model.transform(frame)).sum() == 0
    for given in (
        frame.astype(float),
        frame.astype("Int64"),
        frame.to_numpy().astype(int),
        pl.from_pandas(frame.astype(float)),
    ):
        with pytest.raises(TypeError, match="isnan"):
            model.transform(given)
        with pytest.raises(hbc.InvalidInputError, match=r"expected Python objects|a frame of polars"):
            compiled.transform(given)


def test_lists_of_strings_are_no_objects_to_a_missing_indicator() -> None:
    words = [["x", "y"], ["y", "x"]]
    model = MissingIndicator(missing_values=None, features="all").fit(np.array(words, object))
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.transform(np.array(words, object)), np.zeros((2, 2), bool))
    for given in (words, np.array(words)):
        with pytest.raises(ValueError, match="dtype <U1"):
            model.transform(given)
        with pytest.raises(hbc.InvalidInputError, match="fixed width"):
            compiled.transform(given)


def test_dates_that_another_estimator_compares() -> None:
    columns = [
        ("scale", StandardScaler(), ["a"]),
        ("code", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["a"]),
    ]
    compiled = hbc.convert(ColumnTransformer(columns).fit(FRAME), "numpy")
    for library in (pl.from_pandas, lambda frame: frame):
        with pytest.raises(hbc.InvalidInputError, match="dates"):
            compiled.transform(library(FRAME.assign(a=DAYS)))
    with pytest.raises(hbc.InvalidInputError, match="time zone"):
        hbc.convert(StandardScaler().fit(FRAME), "numpy").transform(FRAME.assign(a=DAYS.tz_localize("UTC")))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_sparse_matrices_before_frames_are_rejected() -> None:
    """An imputer returns a sparse matrix for a sparse one, from which the source cannot make a frame. A COO matrix has no columns to
    select."""
    inner = make_pipeline(SimpleImputer().set_output(transform="pandas"), LinearRegression()).fit(FRAME, REAL)
    picked = ColumnTransformer([("scaled", StandardScaler(with_mean=False), [0])]).fit(ARRAY)
    for model, method, data in (
        (inner, "predict", sparse.csr_matrix(SPARSE)),
        (picked, "transform", sparse.coo_matrix(SPARSE)),
    ):
        with pytest.raises((ValueError, TypeError)):
            getattr(model, method)(data)
        with pytest.raises(hbc.InvalidInputError, match="sparse"):
            getattr(hbc.convert(model, "numpy"), method)(data)


def test_objects_that_a_selector_leaves_out_still_make_objects() -> None:
    given = FRAME.assign(a=WHOLE, b=FRAME["b"].astype(object))
    model = SelectKBest(k=1).fit(FRAME, WHOLE > 1)
    assert model.transform(given).dtype == object
    with pytest.raises(hbc.InvalidInputError, match="Python objects"):
        hbc.convert(model, "numpy").transform(given)


@pytest.mark.parametrize("union", [False, True])
def test_functions_of_frames_as_their_library_computes_them(union: bool) -> None:
    """With a number, numpy's functions make float64 from a frame of pandas, and operators make it from a frame of polars. (hbc once gave
    float32.)"""
    for function, library in ((lambda x: np.maximum(x, 0.3), pd.DataFrame), (lambda x: x * 0.3 + 1, pl.from_pandas)):
        model = FunctionTransformer(function).fit(FRAME)
        model = FeatureUnion([("own", model), ("size", FunctionTransformer(np.abs))]).fit(FRAME) if union else model
        given = library(FRAME.astype("f4"))
        assert np.asarray(model.transform(given)).dtype == np.float64
        compiled = hbc.convert(model, "numpy", FRAME)
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(given)
        np.testing.assert_array_equal(compiled.transform(FRAME), np.asarray(model.transform(FRAME)))
        array = FRAME.to_numpy().astype("f4")
        np.testing.assert_array_equal(compiled.transform(array), model.transform(array), strict=True)


def test_strings_where_numbers_are_needed_are_refused() -> None:
    """The source reads digits as numbers. (hbc.convert once raised TypeError.)"""
    digits = np.array([["1"], ["2"], ["1"], ["3"]], object)
    model = make_pipeline(SimpleImputer(strategy="most_frequent"), StandardScaler()).fit(digits)
    with pytest.raises(hbc.UnsupportedOperatorError, match="strings have no cast"):
        hbc.convert(model, "numpy")


def test_an_encoder_of_no_columns_is_refused() -> None:
    model = make_pipeline(MissingIndicator(), OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1))
    model.steps[0][1].fit(FRAME)
    model.steps[1][1].categories_ = []
    model.steps[1][1].n_features_in_ = 0
    with pytest.raises(hbc.UnsupportedOperatorError, match="no columns at all"):
        hbc.convert(model, "numpy")


BEHIND: dict[str, Callable[[Any], Any]] = {
    "alone": lambda model: model,
    "a search": lambda model: GridSearchCV(model, {"n_estimators": [3]}, cv=2),
    "a pipeline": make_pipeline,
    "a pipeline that passes its input through": lambda model: make_pipeline("passthrough", model),
    "a vote": lambda model: VotingRegressor([("one", model), ("other", model)]),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("place", BEHIND)
def test_lightgbm_reads_integers_of_frames_as_float64_wherever_it_stands(place: str) -> None:
    """Integers of arrays are float32 to it, without 2**24 + 1. (hbc once read those of frames so too, unless LightGBM stood alone.)"""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": 2**24 + rng.integers(0, 6, 300), "b": rng.integers(0, 9, 300)})
    model = BEHIND[place](LGBMRegressor(n_estimators=3, min_child_samples=1, min_data_in_bin=1, verbose=-1))
    model.fit(X, X["a"] % 2)
    compiled = hbc.convert(model, "numpy")
    for given in (X, X.to_numpy()):
        np.testing.assert_allclose(compiled.predict(given), model.predict(given), rtol=1e-12)
    assert not np.allclose(compiled.predict(X), compiled.predict(X.to_numpy()))


def test_float32_beside_float64_is_answered_as_the_error_says() -> None:
    """Behind a ColumnTransformer each column is computed in its own dtype. A sample with these dtypes gives the source's answers for
    it, and for frames of one dtype."""
    frame = pd.DataFrame({"a": REAL, "b": REAL[::-1] * 3})
    parts = ColumnTransformer([("a", StandardScaler(), ["a"]), ("b", StandardScaler(), ["b"])])
    model = make_pipeline(parts, LinearRegression()).fit(frame, WHOLE)
    mixed, single = frame.astype({"a": "float32"}), frame.astype("float32")
    table = pa.Table.from_pandas(mixed)
    plain = hbc.convert(model, "numpy", frame)
    for call in (lambda: plain.predict(mixed), lambda: plain.arrow()(table)):
        with pytest.raises(
            hbc.InvalidInputError, match=r"float32 in column 0 \('a'\) beside .* Pass such a frame as the sample"
        ):
            call()
    np.testing.assert_allclose(plain.predict(single), model.predict(single), rtol=1e-12)
    for backend in ("numpy", "tvm"):
        advised = hbc.convert(model, backend, mixed)
        for X in (mixed, frame, single):
            np.testing.assert_allclose(advised.predict(X), model.predict(X), rtol=1e-12)
        np.testing.assert_array_equal(advised.arrow()(table)["predict"].to_numpy(), advised.predict(mixed))


def test_the_error_names_the_dtype_that_came() -> None:
    parts = ColumnTransformer([("one", "passthrough", ["a"]), ("two", "passthrough", ["b"])])
    compiled = hbc.convert(make_pipeline(parts, LinearRegression()).fit(FRAME, WHOLE), "numpy")
    with pytest.raises(hbc.InvalidInputError, match="float16 in column 0"):
        compiled.predict(FRAME.astype({"a": "float16"}))


@pytest.mark.parametrize("member", [LinearRegression(), StandardScaler()])
def test_categories_of_digits_are_no_numbers(member: Any) -> None:
    """scikit-learn's linear models fail at them (TypeError), and its scalers make numbers of them."""
    compiled: Any = hbc.convert(member.fit(FRAME, WHOLE), "numpy")
    method = compiled.methods[0]
    digits = FRAME.assign(a=pd.Categorical(list("1234") * 6))
    if isinstance(member, LinearRegression):
        with pytest.raises(TypeError):
            member.predict(digits)
    for call in (lambda: getattr(compiled, method)(digits), lambda: compiled.arrow()(pa.Table.from_pandas(digits))):
        with pytest.raises(hbc.InvalidInputError, match=r"column 0 \('a'\): found categories that are strings"):
            call()
    whole = FRAME.assign(a=pd.Categorical([1, 2, 3, 4] * 6))
    np.testing.assert_allclose(getattr(compiled, method)(whole), getattr(member, method)(whole), rtol=1e-12)


@pytest.mark.parametrize("member", [OneHotEncoder(handle_unknown="ignore", sparse_output=False), OrdinalEncoder(**UNKNOWN)])
def test_a_dictionary_of_bool_with_nulls_is_no_column_of_strings(member: Any) -> None:
    compiled = hbc.convert(member.fit(pd.DataFrame({"a": ["True", "False", "x"]})), "numpy")
    gaps = pa.table({"a": pa.array([True, False, None]).dictionary_encode()})
    with pytest.raises(TypeError):
        member.transform(gaps.to_pandas())
    with pytest.raises(hbc.InvalidInputError, match="'a': found missing values in a dictionary of bool"):
        compiled.arrow()(gaps)
    words = pa.table({"a": pa.array(["x", "True", "?"]).dictionary_encode()})
    np.testing.assert_array_equal(np.column_stack(compiled.arrow()(words).columns), member.transform(words.to_pandas()))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("narrow", ["?", "i1", "u2"])
def test_narrow_integers_beside_float32_and_float64(make: Any, narrow: str) -> None:
    """The common dtype is float64, whatever the integers are. (Without the float64 column it would be float32.)"""
    rows = np.random.default_rng(0).normal(size=(12, 2))
    frame = make({"a": rows[:, 0].astype("f4"), "b": rows[:, 1], "c": (rows[:, 0] > 0).astype(narrow), "s": list("xy") * 6})
    model = ColumnTransformer([("n", StandardScaler(), list("abc")), ("s", OneHotEncoder(sparse_output=False), ["s"])])
    expected = model.fit_transform(frame)
    np.testing.assert_allclose(hbc.convert(model, "numpy", frame).transform(frame), expected, rtol=1e-12, atol=1e-12)


def test_a_function_of_several_dtypes_in_polars() -> None:
    """pandas computes each column in its own dtype, and so does hbc. polars makes one array of float64 before, whose squares differ from
    those in float32 and in int64."""
    data = {"a": np.array([0.1, 1.1], "f4"), "b": np.array([0.1, 0.2]), "c": np.array([2**40, 3])}
    for names in (["a", "b"], ["b", "c"], ["a"], ["c"]):
        model = ColumnTransformer([("f", FunctionTransformer(np.square), names)])
        for make in (pd.DataFrame, pl.DataFrame):
            frame = make({name: data[name] for name in names})
            compiled = hbc.convert(model.fit(frame), "numpy", frame)
            if make is pl.DataFrame and len(names) > 1:
                with pytest.raises(hbc.InvalidInputError, match="expected one dtype"):
                    compiled.transform(frame)
            else:
                np.testing.assert_array_equal(compiled.transform(frame), model.transform(frame))
