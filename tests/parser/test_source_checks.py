"""The checks that the source libraries make of their input: lightgbm/basic.py, xgboost/data.py and core.py, catboost/core.py,
sklearn/utils/validation.py. One row of INPUTS for each: the compiled model gives what the source gives, or both raise. A compiled model may
reject what the source takes only if STRICTER has the row, with the reason."""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from installed import reads
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import hbc

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(3)
ROWS = 40
X = RANDOM.normal(size=(ROWS, 3)).round(1)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMES = ["a", "b", "c"]
FITTED_ON = {"array": X, "names": pd.DataFrame(X, columns=NAMES), "integers": pd.DataFrame(X)}


def changed(value: float) -> np.ndarray:
    """X with one other value."""
    y = X.copy()
    y[1, 1] = value
    return y


def arrays() -> dict[str, Any]:
    """dtypes (check_array's dtype="numeric", _np2d_to_np1d, _ensure_np_dtype), shapes (ensure_2d, ensure_min_samples), finite values,
    memory, and lists, which have no dtype until numpy finds one."""
    missing = changed(np.nan)
    objects = X.astype(object)
    frozen = X.copy()
    frozen.flags.writeable = False
    none = np.where(np.isnan(missing), None, missing.astype(object))
    return {
        **{kind: X.astype(kind) for kind in ("float64", "float32", "float16", "longdouble", "complex", ">f8", ">f4")},
        **{kind: (X * 10).astype(kind) for kind in ("int8", "int16", "int32", "int64", ">i8")},
        **{kind: np.abs(X * 10).astype(kind) for kind in ("uint8", "uint16", "uint32", "uint64")},
        "above int64": np.abs(X * 10).astype("u8") + np.uint64(2**63),
        "bool": X > 0,
        "object": objects,
        "object with None": none,
        "object with NA": np.where(np.isnan(missing), pd.NA, missing.astype(object)),
        "object of bool": (X > 0).astype(object),
        "object of Decimal": np.vectorize(decimal.Decimal, otypes=[object])(X),
        "object of numeric strings": X.astype(str).astype(object),
        "object with one": np.where(X > 2, "1.5", objects),
        "strings": X.astype(str),
        "bytes": X.astype("S"),
        "dates": X.astype("i8").astype("M8[s]"),
        "time spans": X.astype("i8").astype("m8[s]"),
        "records": np.zeros(ROWS, [("a", "f8"), ("b", "f8"), ("c", "f8")]),
        "NaN": missing,
        "infinite": changed(np.inf),
        "minus infinite": changed(-np.inf),
        "beyond float32": changed(1e39),
        "no rows": X[:0],
        "one row": X[:1],
        "a vector": X[0],
        "a number": np.float64(3),
        "3 dimensions": X[None],
        "no columns": X[:, :0],
        "a column less": X[:, :2],
        "a column more": np.c_[X, X[:, 0]],
        "by columns": np.asfortranarray(X),
        "strided": np.repeat(X, 2, 1)[:, ::2],
        "backwards": X[::-1],
        "read-only": frozen,
        "masked": np.ma.masked_array(X, np.isnan(missing)),
        "list": X.tolist(),
        "list of integers": (X * 10).astype(int).tolist(),
        "list of bool": (X > 0).tolist(),
        "list with None": none.tolist(),
        "list of strings": X.astype(str).tolist(),
        "list of Decimal": [[decimal.Decimal(value) for value in row] for row in X.tolist()],
        "list of arrays": list(X),
        "list of float32 arrays": list(X.astype("f4")),
        "list of tuples": list(map(tuple, X.tolist())),
        "tuple": tuple(map(tuple, X.tolist())),
        "list of numbers": X[0].tolist(),
        "empty list": [],
        "ragged": [[1, 2, 3], [1, 2]],
        "nested": [X.tolist()],
        "a string": "abc",
        "None": None,
    }


def pandas_frames() -> dict[str, Any]:
    """dtypes (_check_for_bad_pandas_dtypes, _pandas_dtype_mapper, pandas_requires_conversion), and names (_check_feature_names,
    _validate_features), which LightGBM ignores and XGBoost and CatBoost compare as text."""
    frame = FITTED_ON["names"]
    whole = (frame * 10).round()
    some = frame > 0
    dictionary = pa.dictionary(pa.int32(), pa.string())
    columns: dict[str, Any] = {
        "names": NAMES,
        "other names": ["a", "b", "d"],
        "another order": ["b", "a", "c"],
        "capital names": ["A", "B", "C"],
        "a space in a name": [" a", "b", "c"],
        "integer names": [0, 1, 2],
        "other integer names": [1, 2, 3],
        "float names": [0.5, 1.5, 2.5],
        "digits as names": ["0", "1", "2"],
        "a name beside integers": ["a", "b", 2],
        "bool names": [True, False, 2],
        "a name twice": ["a", "a", "c"],
        "None as a name": ["a", None, "c"],
        "names of two levels": pd.MultiIndex.from_tuples([("a", "x"), ("b", "y"), ("c", "z")]),
        "tuples as names": pd.Index([("a",), ("b",), ("c",)], tupleize_cols=False),
        "dates as names": pd.date_range("2020", periods=3),
    }
    return {
        **{name: pd.DataFrame(X, columns=kept) for name, kept in columns.items()},
        **{
            f"pandas {kind}": frame.astype(kind)
            for kind in ("float32", "float16", "Float64", "Float32", "object", "complex", "string")
        },
        **{f"pandas {kind}": whole.astype(kind) for kind in ("int8", "int64", "Int64", "int64[pyarrow]")},
        "pandas bool": some,
        "pandas boolean": some.astype("boolean"),
        "pandas bool[pyarrow]": some.astype("bool[pyarrow]"),
        "pandas double[pyarrow]": frame.astype("double[pyarrow]"),
        "bool beside": frame.assign(c=some.c),
        "float32 beside": frame.astype({"a": "f4"}),
        "Float32 beside": frame.astype({"a": "Float32"}),
        "double[pyarrow] beside": frame.astype({"a": "double[pyarrow]"}),
        "Int64 with NA": whole.astype("Int64").where(some),
        "Float64 with NA": frame.astype("Float64").where(some),
        "boolean with NA": some.astype("boolean").where(frame > -1),
        "objects with None": frame.astype(object).where(some, None),
        "numeric strings": frame.astype(str),
        "one of numeric strings": frame.assign(b=frame.b.astype(str)),
        "numeric strings as objects": frame.astype(str).astype(object),
        "categories of numbers": frame.assign(b=frame.b.astype("category")),
        "categories of integers": frame.assign(b=pd.Categorical(some.b.astype(int))),
        "categories of strings": frame.assign(b=pd.Categorical(np.where(some.b, "u", "v"))),
        "dictionary in pandas": frame.assign(b=pd.array(["u"] * ROWS, dtype=pd.ArrowDtype(dictionary))),
        "a date": frame.assign(b=pd.Timestamp("2020")),
        "only dates": pd.DataFrame({name: pd.date_range("2020", periods=ROWS) for name in NAMES}),
        "a time span": frame.assign(b=pd.Timedelta(3)),
        "a time zone": frame.assign(b=pd.Timestamp("2020", tz="UTC")),
        "a period": frame.assign(b=pd.Period("2020", "Y")),
        "an interval": frame.assign(b=pd.cut(frame.b, 3)),
        "sparse columns": frame.astype(pd.SparseDtype(float, 0)),
        "a sparse column": frame.astype({"a": pd.SparseDtype(float, 0)}),
        "sparse columns without NaN": frame.astype(pd.SparseDtype(float, np.nan)),
        "sparse columns of integers": whole.astype(int).astype(pd.SparseDtype(int, 0)),
        "sparse columns of bool": some.astype(pd.SparseDtype(bool, False)),
        "frame, a column less": frame[["a", "b"]],
        "frame, a column more": frame.assign(d=1.0),
        "frame without rows": frame[:0],
        "frame of one row": frame[:1],
        "another index": frame.set_index(np.arange(ROWS)[::-1]),
        "frame with NaN": pd.DataFrame(changed(np.nan), columns=NAMES),
        "frame with infinity": pd.DataFrame(changed(np.inf), columns=NAMES),
        "frame beyond float32": pd.DataFrame(changed(1e39), columns=NAMES),
        "a row": frame.iloc[0],
        "a column": frame.a,
    }


def arrow_frames() -> dict[str, Any]:
    """Frames that the libraries read through Arrow (`__pred_for_narwhals`, _transform_arrow_table) or scikit-learn by `__array__`."""
    table, frame = pa.table({name: X[:, i] for i, name in enumerate(NAMES)}), pl.DataFrame(X, schema=NAMES)
    whole = (frame * 10).cast(pl.Int64)
    missing = [[None if value != value else value for value in column] for column in changed(np.nan).T.tolist()]

    def beside(values: Any) -> Any:
        return pa.table({"a": X[:, 0], "b": values, "c": X[:, 2]})

    return {
        "polars": frame,
        "polars float32": frame.cast(pl.Float32),
        "polars integers": whole,
        "polars Int8": whole.cast(pl.Int8),
        "polars UInt64": whole.select(pl.all().abs()).cast(pl.UInt64),
        "polars bool": frame.select(pl.all() > 0),
        "polars, float32 beside": frame.with_columns(pl.col("a").cast(pl.Float32)),
        "polars with null": pl.DataFrame(dict(zip(NAMES, missing, strict=True))),
        "polars with NaN": pl.DataFrame(changed(np.nan), schema=NAMES),
        "polars of strings": frame.cast(pl.String),
        "polars categories": frame.cast(pl.String).cast(pl.Categorical),
        "polars chunks": pl.concat([frame[:20], frame[20:]], rechunk=False),
        "polars, other names": frame.rename({"c": "d"}),
        "polars, another order": frame[["b", "a", "c"]],
        "polars, a column less": frame[["a", "b"]],
        "polars without rows": frame[:0],
        "lazy": frame.lazy(),
        "a polars column": frame["a"],
        "arrow": table,
        "arrow float32": table.cast(pa.schema([(name, pa.float32()) for name in NAMES])),
        "arrow float16": pa.table({name: pa.array(X[:, i].astype("f2")) for i, name in enumerate(NAMES)}),
        "arrow integers": pa.table({name: (X[:, i] * 10).astype(int) for i, name in enumerate(NAMES)}),
        "arrow with null": pa.table(dict(zip(NAMES, missing, strict=True))),
        "arrow of strings": pa.table({name: X[:, i].astype(str).tolist() for i, name in enumerate(NAMES)}),
        "arrow bool": pa.table({name: X[:, i] > 0 for i, name in enumerate(NAMES)}),
        "arrow chunks": pa.concat_tables([table.slice(0, 20), table.slice(20)]),
        "arrow without rows": table.slice(0, 0),
        "arrow, other names": table.rename_columns(["a", "b", "d"]),
        "arrow, a name twice": pa.Table.from_arrays(table.columns, names=["a", "a", "c"]),
        "arrow, another order": table.select(["b", "a", "c"]),
        "arrow, a column less": table.select(["a", "b"]),
        "a dictionary": beside(pa.array(["u"] * ROWS).dictionary_encode()),
        "a dictionary of integers": beside(pa.array([3] * ROWS).dictionary_encode()),
        "an arrow date": beside(pa.array([datetime.date(2020, 1, 1)] * ROWS)),
        "an arrow decimal": beside(pa.array([decimal.Decimal("1.5")] * ROWS)),
        "nulls only": beside(pa.nulls(ROWS)),
        "an arrow array": pa.array(X[:, 0]),
    }


CRASHES = {
    "polars decimal": pl.DataFrame(X, schema=NAMES).with_columns(pl.col("b").cast(pl.Decimal(10, 2))),
    "polars date": pl.DataFrame(X, schema=NAMES).with_columns(pl.lit(datetime.date(2020, 1, 1)).alias("b")),
    "polars objects": pl.DataFrame({name: pl.Series(X[:, i].tolist(), dtype=pl.Object) for i, name in enumerate(NAMES)}),
    "polars list": pl.DataFrame(X, schema=NAMES).with_columns(pl.concat_list("a", "b").alias("b")),
    "polars null": pl.DataFrame(X, schema=NAMES).with_columns(pl.lit(None).alias("b")),
}
"""CatBoost 1.2 ends the process for some of these."""


def sparse_matrices() -> dict[str, Any]:
    """Formats and classes (accept_sparse, SPARSE_MATRIX_TYPES, is_scipy_csr), dtypes (_c_float_array), duplicates, indices of 64 bits."""
    csr = sp.csr_matrix(X)
    return {
        **{
            kind: getattr(sp, kind)(X)
            for kind in ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array", "csc_array", "coo_array")
        },
        **{kind: csr.asformat(kind) for kind in ("dok", "lil", "dia", "bsr")},
        **{f"csr of {kind}": sp.csr_matrix((X * 10).astype(kind)) for kind in ("f4", "i8", "?", "c16")},
        "a cell twice": sp.coo_matrix(
            (np.r_[csr.tocoo().data, 1.0], (np.r_[csr.tocoo().row, 1], np.r_[csr.tocoo().col, 1])), csr.shape
        ),
        "csr with NaN": sp.csr_matrix(changed(np.nan)),
        "csr with infinity": sp.csr_matrix(changed(np.inf)),
        "csr beyond float32": sp.csr_matrix(changed(1e39)),
        "csr without rows": sp.csr_matrix((0, 3)),
        "csr, a column less": sp.csr_matrix(X[:, :2]),
        "long indices": sp.csr_matrix((csr.data, csr.indices.astype("i8"), csr.indptr.astype("i8")), csr.shape),
        "a sparse vector": sp.coo_array(X[:, 0]),
    }


INPUTS = arrays() | pandas_frames() | arrow_frames() | sparse_matrices()

OPTIONS = {"n_estimators": 3, "num_leaves": 4, "verbose": -1, "n_jobs": 1}
MODELS: dict[str, Any] = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(**OPTIONS),
    "lightgbm.Booster": lambda: lightgbm.LGBMClassifier(**OPTIONS),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1),
    "xgboost, linear": lambda: xgboost.XGBRegressor(n_estimators=3, booster="gblinear", n_jobs=1),
    "catboost": lambda: catboost.CatBoostClassifier(
        iterations=3, depth=2, verbose=0, allow_writing_files=False, thread_count=1
    ),
    "tree": lambda: DecisionTreeClassifier(max_depth=3, random_state=0),
    "linear": LogisticRegression,
    "bayes": GaussianNB,
    "histogram": lambda: HistGradientBoostingClassifier(max_iter=3),
    "scaler, linear": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "scaler, lightgbm": lambda: make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**OPTIONS)),
    "function, lightgbm": lambda: make_pipeline(FunctionTransformer(), lightgbm.LGBMClassifier(**OPTIONS)),
    "function, xgboost": lambda: make_pipeline(
        FunctionTransformer(), xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1)
    ),
    "columns, linear": lambda: make_pipeline(
        ColumnTransformer([("scaled", StandardScaler(), [0])], remainder="passthrough"), LogisticRegression()
    ),
}
METHODS = ("predict", "predict_proba", "raw_score", "apply")

LIGHTGBM = ("lightgbm", "lightgbm.Booster", "function, lightgbm")
XGBOOST = ("xgboost", "xgboost, linear", "function, xgboost")
SCALED = ("scaler, linear", "scaler, lightgbm", "columns, linear")
CONVERTS = ("tree", "histogram", *SCALED)
"""The estimators of scikit-learn that ask for a dtype, so that it makes numbers of whatever numpy can."""
REASONS: list[tuple[str, str, tuple[str, ...]]] = [
    ("hbc computes with int64", "above int64", tuple(MODELS)),
    ("some libraries ignore the mask, others make NaN of it", "masked", tuple(MODELS)),
    (
        "LightGBM makes float32 of them, XGBoost reads other numbers",
        "longdouble; >f8; >f4; >i8",
        (*LIGHTGBM, *XGBOOST, "columns, linear"),
    ),
    (
        "dates are not numbers",
        "dates; time spans; only dates; an arrow date; polars date",
        (*LIGHTGBM, "linear", "bayes", *CONVERTS),
    ),
    ("the same", "a time span", ("catboost",)),
    ("numbers as text", "strings; bytes; list of strings", ("lightgbm.Booster", "catboost", *CONVERTS)),
    ("the same", "polars of strings; arrow of strings; polars categories", CONVERTS),
    (
        "Decimal",
        "list of Decimal; an arrow decimal; polars decimal",
        (*LIGHTGBM, *XGBOOST, "catboost", "linear", "bayes", *CONVERTS),
    ),
    ("Python objects", "polars objects", ("linear", "bayes", *CONVERTS)),
    ("LightGBM reads them as float32 in a list, float64 in an array", "object; object with None; list with None", LIGHTGBM),
    ("the same", "object of Decimal; object of numeric strings; object with one", LIGHTGBM),
    ("the imaginary part is dropped", "complex; pandas complex", ("lightgbm.Booster", "catboost")),
    ("hbc finds columns by name", "a name beside integers; a name twice; None as a name", LIGHTGBM),
    (
        "codes for numbers, in a model that knows no categories",
        "categories of numbers; categories of integers",
        (*LIGHTGBM, *XGBOOST),
    ),
    ("the same", "categories of strings; an interval; polars categories; a dictionary", (*LIGHTGBM, *XGBOOST)),
    ("no rows", "polars without rows; arrow without rows; frame without rows", (*LIGHTGBM, *XGBOOST, "catboost")),
    ("other containers", "dok; lazy", (*LIGHTGBM, *XGBOOST, "catboost", "tree", "linear")),
    ("one row without its dimension", "a row; a column; a polars column", ("lightgbm.Booster", *XGBOOST, "catboost")),
    ("the same", "a vector; list of numbers", ("catboost",)),
    ("a DMatrix may have any width", "no columns; a column less; a column more; polars, a column less", (*XGBOOST, "catboost")),
    ("the same", "arrow, a column less; csr, a column less", XGBOOST),
    ("the same", "frame, a column less; frame, a column more", (*XGBOOST, "catboost")),
    (
        "CatBoost finds columns by name, hbc in their order",
        "another order; polars, another order",
        ("catboost", *LIGHTGBM, *XGBOOST),
    ),
    (
        "XGBoost compares names of pandas only",
        "polars, other names; arrow, other names; arrow, another order",
        (*LIGHTGBM, *XGBOOST),
    ),
    ("the pipeline knows the names", "other names; capital names; a space in a name; digits as names", LIGHTGBM),
    (
        "fitted on integer names, which a frame of polars or Arrow cannot have",
        "polars; polars float32; polars integers",
        XGBOOST,
    ),
    ("the same", "polars Int8; polars UInt64; polars bool; polars, float32 beside; polars with null; polars with NaN", XGBOOST),
    ("the same", "polars chunks; arrow; arrow float32; arrow integers; arrow with null; arrow bool; arrow chunks", XGBOOST),
    ("computed in float16", "float16; pandas float16; arrow float16", SCALED),
    ("scikit-learn's trees reject them", "sparse columns of bool", ("linear",)),
    (
        "what is left out is missing to XGBoost",
        "csr_matrix; csc_matrix; coo_matrix; csr_array; csc_array; coo_array; lil; dia; bsr",
        XGBOOST,
    ),
    ("the same", "csr of f4; csr of i8; csr of ?; a cell twice; csr with NaN; csr with infinity; csr beyond float32", XGBOOST),
    ("the same", "csr without rows; long indices", XGBOOST),
    ("dtypes of their own columns", "list of float32 arrays; float32 beside", ("columns, linear",)),
]
"""(the reason, the inputs, the models) of what a compiled model rejects, though the source takes it."""
STRICTER = {(name, kind) for _, names, kinds in REASONS for name in names.split("; ") for kind in kinds}
LOOSER = {("lightgbm.Booster", "apply")}
"""(model, method) that answer for no rows where the source fails: it divides by their number."""


def source(model: Any, method: str, given: Any) -> Any:
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    options = {"raw_score": {"raw_score": True}, "apply": {"pred_leaf": True}} if "lightgbm" in type(last).__module__ else {}
    if method in options:
        return model.predict(given, **options[method])
    return model.predict(given, output_margin=True) if method == "raw_score" else getattr(model, method)(given)


@functools.cache
def fitted(kind: str, on: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[kind]().fit(FITTED_ON[on], Y)
    return model.booster_ if kind == "lightgbm.Booster" else model


def answers(model: Any, compiled: Any, method: str, given: Any) -> tuple[Any, Any]:
    """(what the source gives, what the compiled model gives); None for an error."""
    try:
        expected = np.asarray(source(model, method, given))
    except Exception:
        expected = None
    try:
        return expected, getattr(compiled, method)(given)
    except hbc.InvalidInputError:
        return expected, None


@pytest.mark.parametrize("on", FITTED_ON)
@pytest.mark.parametrize("kind", MODELS)
def test_the_same_answer_or_both_an_error(kind: str, on: str) -> None:
    model = fitted(kind, on)
    compiled = hbc.convert(model, "numpy")
    wrong = []
    for method in (method for method in METHODS if method in compiled.methods):
        for name, given in (INPUTS if kind == "catboost" else INPUTS | CRASHES).items():
            if not reads(re.split(r"\W", kind.rpartition(", ")[2])[0], name):
                continue
            expected, found = answers(model, compiled, method, given)
            if found is None:
                if expected is not None and (name, kind) not in STRICTER:
                    wrong.append(f"{method} of {name}: rejected")
            elif expected is None:
                if (kind, method) not in LOOSER or len(found):
                    wrong.append(f"{method} of {name}: answered")
            elif found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True):
                wrong.append(f"{method} of {name}: different")
    assert not wrong, "\n".join(wrong)


def test_every_reason_is_about_inputs() -> None:
    assert {name for name, _ in STRICTER} <= {*INPUTS, *CRASHES}
