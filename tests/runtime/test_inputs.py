"""Every kind of input gives the result of the source estimator, and the caller's data is not changed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.cluster import FeatureAgglomeration
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

import hbc
from hbc.ir import signature
from hbc.ir.graph import Graph, Input
from hbc.ir.signature import Column, Frames, InputSpec, sum_of_squares
from hbc.ir.types import N
from hbc.runtime.input import gate
from hbc.runtime.input.intake import Intake, describe

RNG = np.random.default_rng(0)
X = np.round(RNG.normal(size=(40, 3)) * 4)
Y = np.array(["no", "yes"])[(X.sum(axis=1) > 0).astype(int)]
NAMES = ["a", "b", "c"]


def prepare(data, spec, variants):
    """(the variant for the data, the inputs of its graph)."""
    intake = Intake(spec, variants)
    return intake(intake.frame_of(data))


def quiet(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the source's warnings about names and dtypes are its own
        return function(*arguments)


@pytest.fixture(scope="module")
def plain():
    model = LogisticRegression().fit(X, Y)
    return model, hbc.convert(model, "numpy")


@pytest.fixture(scope="module")
def named():
    model = LogisticRegression().fit(pd.DataFrame(X, columns=NAMES), Y)
    return model, hbc.convert(model, "numpy")


# --- arrays ------------------------------------------------------------------------------------------------------------

FLOATS = ["float16", "float32", "float64", ">f4", ">f8", "longdouble"]
INTEGERS = ["int8", "int16", "int32", "int64", ">i4", "uint8", "uint16", "uint32", "uint64", "bool"]


def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[:] = x
    assert not view.flags.aligned
    return view


def readonly(x):
    x = x.copy()
    x.setflags(write=False)
    return x


LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "columns of a wider one": lambda x: np.hstack([x, x])[:, :3],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": readonly,
    "unaligned": unaligned,
    "masked": np.ma.masked_array,
    "objects": lambda x: x.astype(object),
}

CONTAINERS: dict[str, Any] = {
    "lists": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
    "list of arrays": list,
    "lists of integers": lambda x: x.astype(int).tolist(),
    "csr": scipy.sparse.csr_matrix,
    "csc array": scipy.sparse.csc_array,
    "coo of float32": lambda x: scipy.sparse.coo_matrix(x.astype(np.float32)),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_dtype(plain: Any, dtype: str) -> None:
    model, compiled = plain
    data = np.abs(X).astype(dtype)
    np.testing.assert_allclose(compiled.predict_proba(data), model.predict_proba(data).astype(float), rtol=1e-6)
    np.testing.assert_array_equal(compiled.predict(data), model.predict(data))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_nothing_is_written(plain: Any, layout: str, dtype: str) -> None:
    model, compiled = plain
    data = LAYOUTS[layout](X.astype(dtype))
    before = np.array(data, copy=True)
    np.testing.assert_allclose(compiled.predict_proba(data), quiet(model.predict_proba, data).astype(float), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(data), before)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container(plain: Any, container: str) -> None:
    model, compiled = plain
    data = CONTAINERS[container](X)
    expected = model.predict_proba(np.asarray(data) if container == "memoryview" else data)
    np.testing.assert_allclose(compiled.predict_proba(data), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32, torch.bool, torch.uint8])
def test_tensors_through_dlpack(plain: Any, dtype: torch.dtype) -> None:
    model, compiled = plain
    tensor = torch.tensor(np.abs(X)).to(dtype)
    np.testing.assert_allclose(compiled.predict_proba(tensor), model.predict_proba(tensor.numpy()), rtol=1e-6)
    np.testing.assert_allclose(compiled.predict_proba(tensor.T.contiguous().T), model.predict_proba(tensor.numpy()), rtol=1e-6)


# --- frames ------------------------------------------------------------------------------------------------------------

FRAMES: dict[str, Any] = {
    "pandas": lambda columns: pd.DataFrame(columns),
    "pandas nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pandas of pyarrow": lambda columns: pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow"),
    "pandas objects": lambda columns: pd.DataFrame(columns).astype(object),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
}
COLUMN_DTYPES = {
    "float64": ("float64",) * 3,
    "float32": ("float32",) * 3,
    "int64": ("int64",) * 3,
    "int and float": ("int64", "float64", "bool"),
    "single and double": ("float32", "float64", "float32"),
    "single and small int": ("float32", "int8", "float32"),
    "single and int": ("float32", "int64", "float32"),
}


@pytest.mark.parametrize("dtypes", COLUMN_DTYPES)
@pytest.mark.parametrize("library", FRAMES)
def test_frames_of_numbers(named: Any, plain: Any, library: str, dtypes: str) -> None:
    """scikit-learn's common dtype for the columns. Models fitted without names take frames by position."""
    columns = {name: X[:, i].astype(dtype) for i, (name, dtype) in enumerate(zip(NAMES, COLUMN_DTYPES[dtypes], strict=True))}
    frame = FRAMES[library](columns)
    for model, compiled in (named, plain):
        expected = quiet(model.predict_proba, frame)
        np.testing.assert_allclose(compiled.predict_proba(frame), expected.astype(float), rtol=1e-6)


@pytest.mark.parametrize("library", FRAMES)
def test_missing_numbers_in_frames_are_nan(library: str) -> None:
    columns = {"a": [1.0, None, 3.0, 4.0], "b": [1, 2, None, 4], "c": [True, None, False, True]}
    frame = FRAMES[library](columns)
    spec = InputSpec((Column(),) * 3, ("a", "b", "c"))
    _, (values,) = prepare(frame, spec, UNIFORM)
    np.testing.assert_array_equal(values, [[1, 1, 1], [np.nan, 2, np.nan], [3, np.nan, 0], [4, 4, 1]])


UNIFORM = (("f32",) * 3, ("f64",) * 3, ("i64",) * 3)


@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [
        (("float32", "float32", "float32"), "f32"),
        (("float16", "float32", "float32"), "f32"),
        (("int8", "int64", "bool"), "i64"),
        (("float32", "int8", "bool"), "f32"),
        (("float32", "int32", "float32"), "f64"),
        (("float32", "float64", "float32"), "f64"),
        (("int64", "float64", "float64"), "f64"),
    ],
)
def test_choice_of_the_variant(dtypes: tuple[str, ...], wanted: str) -> None:
    frame = pd.DataFrame({name: np.ones(2, dtype) for name, dtype in zip(NAMES, dtypes, strict=True)})
    kinds, (array,) = prepare(frame, InputSpec((Column(),) * 3, tuple(NAMES)), UNIFORM)
    assert set(kinds) == {wanted}
    assert array.flags.c_contiguous


def test_columns_of_different_dtypes_treated_apart() -> None:
    """If the source keeps dtypes apart, float32 columns beside others need a variant of their own."""
    spec = InputSpec((Column(),) * 3, tuple(NAMES), frames=Frames(by_column=True))
    mixed = ("f32", "f64", "f64")
    frame = pd.DataFrame({"a": np.ones(2, np.float32), "b": np.ones(2), "c": np.ones(2)})
    kinds, (singles, doubles) = prepare(frame, spec, (*UNIFORM, mixed))
    assert kinds == mixed
    assert singles.dtype == np.float32
    assert doubles.shape == (2, 2)
    with pytest.raises(hbc.InvalidInputError, match=r"float32 in column 0 \('a'\) beside .*sample"):
        prepare(frame, spec, UNIFORM)
    assert prepare(frame.astype({"a": int}), spec, UNIFORM)[0] == ("f64",) * 3


def test_one_dimensional_input() -> None:
    spec = InputSpec((Column(strings=True),), ndim=1)
    variants = (("str",),)
    values = ["x", "y", "x"]
    for data in (
        values,
        np.array(values),
        np.array(values, object),
        pd.Series(values),
        pl.Series(values),
        pa.chunked_array([values]),
    ):
        _, (array,) = prepare(data, spec, variants)
        assert array.tolist() == values
        assert array.dtype == object
    assert prepare(np.array(values)[:, None], spec, variants)[1][0].tolist() == values
    for wrong in (np.array([values, values]), "x", None, pd.DataFrame({"a": values, "b": values})):
        with pytest.raises(hbc.InvalidInputError):
            prepare(wrong, spec, variants)


# --- strings and names -------------------------------------------------------------------------------------------------


def mixed_frame() -> pd.DataFrame:
    rows = len(X)
    return pd.DataFrame(
        {
            "age": X[:, 0],
            "town": RNG.choice(["Bonn", "Köln", "Ulm"], rows),
            "income": X[:, 1],
            "unread": [object()] * rows,
            "size": RNG.choice(["S", "M"], rows),
        }
    )


FRAME = mixed_frame()


@pytest.fixture(scope="module")
def by_name():
    columns = ColumnTransformer(
        [("n", StandardScaler(), ["age", "income"]), ("s", OneHotEncoder(handle_unknown="ignore"), ["town", "size"])]
    )
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)
    return model, hbc.convert(model, "numpy")


READ = FRAME.drop(columns="unread")
MATCHED: dict[str, Any] = {
    "as fitted": FRAME,
    "another order": FRAME[FRAME.columns[::-1]],
    "further columns": FRAME.assign(more=1, another="x"),
    "without the unread": READ,
    "categorical": READ.astype({"town": "category", "size": "category"}),
    "objects": READ.astype({"town": object, "size": object}),
    "nullable strings": READ.astype({"town": "string", "size": "string"}),
    "missing strings": READ.assign(town=READ["town"].where(READ["town"] != "Ulm")),
    "None among objects": READ.assign(town=READ["town"].astype(object).where(READ["town"] != "Ulm", None)),
    "pandas.NA": READ.assign(town=READ["town"].astype("string").where(READ["town"] != "Ulm")),
    "never seen": READ.assign(town="Wien"),
    "integers": READ.astype({"age": int, "income": int}),
    "float32": READ.astype({"age": np.float32, "income": np.float32}),
    "polars": pl.from_pandas(READ),
    "polars with None": pl.from_pandas(READ.assign(town=READ["town"].where(READ["town"] != "Ulm"))),
    "polars categorical": pl.from_pandas(READ).with_columns(pl.col("town").cast(pl.Categorical)),
    "pyarrow": pa.Table.from_pandas(READ, preserve_index=False),
    "pyarrow dictionary": pa.Table.from_pandas(READ.astype({"town": "category"}), preserve_index=False),
    "one row": FRAME[:1],
    "rows by another index": FRAME.set_index(np.arange(len(FRAME))[::-1]),
}


@pytest.mark.parametrize("name", MATCHED)
def test_columns_are_matched_as_scikit_learn_does(by_name: Any, name: str) -> None:
    model, compiled = by_name
    data = MATCHED[name]
    expected = quiet(model.predict_proba, data)
    np.testing.assert_allclose(compiled.predict_proba(data), expected, rtol=1e-6)


UNMATCHED = {
    "missing": (FRAME.drop(columns=["age", "town"]), "without the columns age, town"),
    "a string among numbers": (FRAME.assign(age="old"), r"'old'.*row 0.*numbers|numbers.*'old'"),
    "numbers among strings": (FRAME.assign(town=1.5), r"column 1 \('town'\): found numbers"),
    "an object among strings": (FRAME.assign(town=[*["Ulm"] * 39, ("a",)]), r"'town'.*\('a',\).*tuple.*row 39"),
    "dates": (FRAME.assign(age=pd.Timestamp("2020-01-01")), "dates"),
    "narrow array": (FRAME.to_numpy()[:, :4], "4 columns.*5 columns"),
    "an array": (FRAME.to_numpy(), "expected a frame"),
    "NaN": (FRAME.assign(income=[*X[:39, 1], np.nan]), r"NaN in row 39"),
    "float32 beside float64": (FRAME.astype({"age": np.float32}), "float32 in column 0"),
    "numbered columns": (FRAME.set_axis(range(5), axis=1), "without the columns"),
}


@pytest.mark.parametrize("name", UNMATCHED)
def test_what_does_not_match_is_named(by_name: Any, name: str) -> None:
    _, compiled = by_name
    data, message = UNMATCHED[name]
    with pytest.raises(hbc.InvalidInputError, match=message):
        compiled.predict(data)


def test_a_sample_brings_a_variant_for_its_dtypes(by_name: Any) -> None:
    model, _ = by_name
    frame = READ.astype({"age": np.float32})
    compiled = hbc.convert(model, "numpy", frame)
    np.testing.assert_allclose(compiled.predict_proba(frame), model.predict_proba(frame), rtol=1e-6)
    np.testing.assert_allclose(compiled.predict_proba(READ), model.predict_proba(READ), rtol=1e-6)
    with pytest.raises(hbc.InvalidInputError, match="float32 in column 2"):
        compiled.predict_proba(READ.astype({"income": np.float32}))


@pytest.mark.parametrize("make", [lambda f: f.to_numpy(), lambda f: f.to_numpy().tolist(), lambda f: f, pl.from_pandas])
def test_columns_by_position(make: Any) -> None:
    """If columns are selected by position, arrays and lists of numbers beside strings work as well as frames."""
    columns = ColumnTransformer([("n", StandardScaler(), [0, 2]), ("s", OneHotEncoder(), [1, 3])])
    model = make_pipeline(columns, LogisticRegression()).fit(READ, Y)
    data = make(READ)
    expected = quiet(model.predict_proba, data)
    np.testing.assert_allclose(hbc.convert(model, "numpy").predict_proba(data), expected, rtol=1e-6)


def test_pandas_na_is_no_category() -> None:
    frame = pd.DataFrame({"a": ["x", "y", "x"]})
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(frame)
    compiled = hbc.convert(encoder, "numpy")
    data = pd.DataFrame({"a": pd.Series(["y", None, "z"], dtype="string")})
    np.testing.assert_array_equal(compiled.transform(data), encoder.transform(data))


def test_pandas_na_stops_an_imputer() -> None:
    frame = pd.DataFrame({"a": pd.Series(["x", "y", "x"], dtype=object)})
    model = make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder()).fit(frame)
    data = pd.DataFrame({"a": pd.Series(["x", pd.NA], dtype=object)})
    with pytest.raises(TypeError):
        model.transform(data)
    compiled = hbc.convert(model, "numpy")
    with pytest.raises(hbc.InvalidInputError, match=r"column 0 \('a'\): found pandas.NA in row 1"):
        compiled.transform(data)
    data["a"] = ["x", np.nan]
    np.testing.assert_array_equal(compiled.transform(data), model.transform(data))


SPARSE: dict[str, Any] = {
    "a linear model": (lambda: LogisticRegression(), True),
    "trees": (lambda: DecisionTreeClassifier(), True),
    "histogram trees": (lambda: HistGradientBoostingClassifier(max_iter=2), False),
    "a centring scaler": (lambda: StandardScaler(), False),
    "a scaler": (lambda: StandardScaler(with_mean=False), True),
    "a pipeline": (lambda: make_pipeline(StandardScaler(), LogisticRegression()), False),
    "dense inside": (lambda: make_pipeline(TruncatedSVD(2), HistGradientBoostingClassifier(max_iter=2)), True),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_matrices_where_the_source_takes_them(name: str) -> None:
    make, accepted = SPARSE[name]
    model = make().fit(X, Y)
    compiled = hbc.convert(model, "numpy")
    method = "transform" if hasattr(model, "transform") else "predict"
    data = scipy.sparse.csr_matrix(X)
    if accepted:
        expected = getattr(model, method)(data)
        found = getattr(compiled, method)(data)
        assert type(found) is type(expected)
        if scipy.sparse.issparse(expected):
            expected, found = expected.toarray(), found.toarray()
        if expected.dtype.kind == "f":
            # On sparse matrices scikit-learn multiplies by 1 / scale_ where it divides otherwise: the last bit may differ.
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        else:
            np.testing.assert_array_equal(found, expected)
        return
    with pytest.raises((TypeError, ValueError)):
        getattr(model, method)(data)
    with pytest.raises(hbc.InvalidInputError, match=r"sparse matrix.*toarray"):
        getattr(compiled, method)(data)


NAMES_TABLE = [
    (["a", "c", "b"], "another order"),
    (["a", "b", "z"], "unseen at fit time: z and .* missing: c"),
    (["a", "b"], "missing: c"),
    (["a", "b", "c", "d"], "unseen at fit time: d"),
    (["a", "b", 3], "different types"),
    (["a", "b", "b"], "two columns of one name"),
]


@pytest.mark.parametrize(("names", "message"), NAMES_TABLE)
def test_names_must_be_the_fitted_ones(named: Any, names: list[Any], message: str) -> None:
    model, compiled = named
    frame = pd.DataFrame(np.ones((2, len(names))), columns=names)
    with pytest.raises((ValueError, TypeError)):
        model.predict(frame)
    with pytest.raises(hbc.InvalidInputError, match=message):
        compiled.predict(frame)


def test_frames_without_names_go_by_position(named: Any) -> None:
    model, compiled = named
    frame = pd.DataFrame(X)
    np.testing.assert_array_equal(compiled.predict(frame), quiet(model.predict, frame))
    with pytest.raises(hbc.InvalidInputError, match=r"2 columns.*3 columns"):
        compiled.predict(frame[[0, 1]])


# --- samples -----------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "float32": (X.astype(np.float32), None, ("f32",) * 3),
    "integers": (X.astype(np.int8).tolist(), None, ("i64",) * 3),
    "objects": (np.array([["a", 1, 1.5], ["b", 2, None]], object), None, ("str", "f64", "f64")),
    "texts": (np.array([["a", "b"]]), None, ("str", "str")),
    "lists": ([["a", 1.5]], None, ("str", "f64")),
    "pandas": (FRAME[["age", "town"]].astype({"age": np.float32}), ("age", "town"), ("f32", "str")),
    "pandas categories": (pd.DataFrame({"a": pd.Categorical(["x"]), "b": pd.Categorical([1])}), ("a", "b"), ("str", "i64")),
    "nullable": (pd.DataFrame({"a": pd.array([1, None], "Int64")}), ("a",), ("f64",)),
    "dates": (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"]), "b": [1]}), ("a", "b"), ("f64", "i64")),
    "polars": (pl.DataFrame({"a": ["x"], "b": [1.0]}), ("a", "b"), ("str", "f64")),
    "pyarrow": (pa.table({"a": ["x"], "b": pa.array([1.0], pa.float32())}), ("a", "b"), ("str", "f32")),
    "numbered": (pd.DataFrame([[1.0, 2]]), None, ("f64", "i64")),
    "vector": (np.array(["a", "b"]), None, ("str",)),
    "sparse": (scipy.sparse.csr_matrix(X), None, ("f64",) * 3),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_describe(name: str) -> None:
    data, names, kinds = SAMPLES[name]
    sample = describe(data)
    assert sample.names == names
    assert sample.kinds == kinds


@pytest.mark.parametrize("wrong", [None, 3, "x", np.ones((2, 2, 2)), [[1, 2], [3]]])
def test_describe_says_that_it_is_the_sample(wrong: Any) -> None:
    with pytest.raises(hbc.InvalidInputError, match="the sample X"):
        describe(wrong)


def test_a_graph_input_is_the_array_itself() -> None:
    """No copy where none is needed."""
    data = np.ascontiguousarray(X)
    _, (array,) = prepare(data, InputSpec((Column(),) * 3), UNIFORM)
    assert np.shares_memory(array, data)
    assert Graph((Input("X", "f64", (N, 3))(),), {}).inputs[0].type.columns == array.shape[1]


def test_functions_that_compute_in_the_dtype_of_the_input():
    """numpy squares int32 in int32 and takes the exponential of int8 in float16: such columns are rejected, not widened."""
    frame = pd.DataFrame({"a": [1, 2, 70000], "b": [0.5, 1.5, 2.5]})
    model = ColumnTransformer([("f", FunctionTransformer(np.square), ["a"]), ("g", FunctionTransformer(np.exp), ["b"])]).fit(
        frame
    )
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.transform(frame), model.transform(frame))
    for column, dtype in (("a", np.int32), ("b", np.float16), ("b", np.int8), ("b", bool)):
        with pytest.raises(hbc.InvalidInputError, match=f"column . \\('{column}'\\): found {np.dtype(dtype)}"):
            compiled.transform(frame.astype({column: dtype}))
    exponential = frame.astype({"b": np.int32})
    np.testing.assert_array_equal(compiled.transform(exponential), model.transform(exponential))


def test_families_that_compute_in_the_dtype_of_the_input():
    """A mixture squares X, and collects sums of squares, in an array of X's dtype; splines and pooled sums of float16 are float16."""
    data = np.random.default_rng(0).integers(0, 100, (40, 3)).astype(np.float64)
    narrow = {
        GaussianMixture(2, covariance_type="full", random_state=0): [np.uint8, np.int16, np.float16],
        BayesianGaussianMixture(n_components=2, covariance_type="spherical", random_state=0): [np.uint8, np.int16, np.float16],
        SplineTransformer(): [np.float16],
        FeatureAgglomeration(2, pooling_func=np.sum): [np.float16],
    }
    single = {KernelRidge(): [np.float16]}  # float32 models compute with these in float32
    for model, dtypes in (narrow | single).items():
        fitted = model.fit(data.astype(np.float32 if model in single else np.float64), data[:, 0])
        compiled = hbc.convert(fitted, "numpy")
        for dtype in dtypes:
            with pytest.raises(hbc.InvalidInputError, match=np.dtype(dtype).name):
                (compiled.predict if hasattr(compiled, "predict") else compiled.transform)(data.astype(dtype))


def test_functions_of_columns_of_two_dtypes():
    """numpy computes each column of a frame in its own dtype."""
    frame = pd.DataFrame({"a": np.linspace(0, 1, 50).astype(np.float32), "b": np.linspace(1, 2, 50)})
    model = ColumnTransformer([("f", FunctionTransformer(np.exp), ["a", "b"])]).fit(frame)
    np.testing.assert_array_equal(hbc.convert(model, "numpy", frame).transform(frame), model.transform(frame))


@pytest.mark.parametrize("other", [StandardScaler(), "passthrough"])
def test_frames_for_a_union_of_columns_by_name_and_by_position(other):
    """Beside a ColumnTransformer, which takes columns by name, something takes them in order: only that order is accepted."""
    frame = pd.DataFrame(X, columns=list("abc"))
    named = ColumnTransformer([("x", StandardScaler(), ["b"])])
    model = FeatureUnion([("named", named), ("other", other)]).fit(frame)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.transform(frame), model.transform(frame))
    for wrong in (frame[["c", "a", "b"]], frame.assign(z=1.0)):
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(wrong)
    both = hbc.convert(FeatureUnion([("one", named), ("two", named)]).fit(frame), "numpy")
    np.testing.assert_array_equal(both.transform(frame[["c", "a", "b"]]), both.transform(frame))


def test_none_is_not_nan_to_an_encoder():
    data = np.array([[1.0], [2.0], [np.nan]])
    compiled = hbc.convert(OneHotEncoder(handle_unknown="ignore").fit(data), "numpy")
    np.testing.assert_array_equal(compiled.transform(data.astype(object)).toarray(), np.eye(3))
    with pytest.raises(hbc.InvalidInputError, match="None"):
        compiled.transform(np.array([[1.0], [None]], dtype=object))


def test_float16_is_rejected_where_the_source_would_compute_in_it():
    """A scaler's result has the dtype of X: float16 differs in the third digit. Trees and linear models read float16 exactly."""
    data = np.random.default_rng(0).normal(size=(50, 3))
    labels = data[:, 0] > 0
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(data, labels)
    with pytest.raises(hbc.InvalidInputError, match="float16"):
        hbc.convert(scaled, "numpy").predict(data.astype(np.float16))
    plain = LogisticRegression().fit(data, labels)
    half = data.astype(np.float16)
    np.testing.assert_allclose(hbc.convert(plain, "numpy").predict_proba(half), plain.predict_proba(half), rtol=1e-7)
    flags = data > 0
    np.testing.assert_allclose(hbc.convert(scaled, "numpy").predict_proba(flags), scaled.predict_proba(flags), rtol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_values_of_a_call_are_added_up_once(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """A guard that lets small numbers pass once added them up again: a sixth of a call of 100,000 rows on torch."""
    model = hbc.convert(make_pipeline(StandardScaler(), LogisticRegression()).fit(X.astype(dtype), Y), "numpy", X.astype(dtype))
    assert model.variants[model._main].facts.limits.strictest is not None
    seen: list[int] = []

    def counted(array: Any) -> Any:
        seen.append(len(array))
        return sum_of_squares(array)

    monkeypatch.setattr(gate, "sum_of_squares", counted)
    monkeypatch.setattr(signature, "sum_of_squares", counted)
    model.predict(np.resize(X.astype(dtype), (5000, 3)))
    assert seen == [5000]
