"""Integers that float32 or float64 do not hold, in every container, through pipelines that hand on arrays, lists or frames: the compiled
model gives what the source gives, or rejects the input. Rows stand at thresholds and beside them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from installed import reads
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor, StackingRegressor, VotingRegressor
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

import hbc

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 150
NAMES = ["a", "b", "c"]


@functools.cache
def rows(kind: str) -> np.ndarray:
    """Integers. "float32": beyond 2**24. "float64": beyond 2**53, beside the middle of two float32, where rounding twice shows."""
    random = np.random.default_rng(0)
    if kind == "float32":
        return np.column_stack(
            [2**24 + random.integers(0, 40, ROWS), 2**25 + random.integers(0, 60, ROWS), random.integers(0, 50, ROWS)]
        )
    middles = 2**53 + 2**30 * random.integers(0, 30, (ROWS, 3)) + 2**29
    return middles + random.integers(-1, 2, (ROWS, 3))


def target(X: np.ndarray) -> np.ndarray:
    z = (X - X.mean(0)) / X.std(0)
    return np.sin(3 * z[:, 0]) + np.cos(2 * z[:, 1]) * z[:, 2]


def forms(X: np.ndarray) -> dict[str, Any]:
    """The same rows in every container and dtype; some with a value missing in every seventh row."""
    frame, objects = pd.DataFrame(X, columns=NAMES), X.astype(object)
    objects[::7, 0] = None
    lists = {name: frame[name].tolist() for name in NAMES}
    missing = {name: [None if i % 7 == 0 else v for i, v in enumerate(values)] for name, values in lists.items()}
    given = polars.DataFrame(lists)
    return {
        "int64": X,
        "float64": X.astype(float),
        "float32": X.astype("f4"),
        "between": X + 2.0**-6,
        "uint64": X.astype("u8"),
        "above int64": X.astype("u8") + np.uint64(2**63),
        "float16": (X % 2000).astype("f2"),
        "bool": X % 2 == 0,
        "longdouble": X.astype(np.longdouble),
        "other byte order": X.astype(">i8"),
        "floats of the other byte order": (X + 2.0**-6).astype(">f8"),
        "list": X.tolist(),
        "tuple": tuple(map(tuple, X.tolist())),
        "list of floats beside": [[a, float(b), c] for a, b, c in X.tolist()],
        "list of arrays": list(X.astype("f4")),
        "list with None": objects.tolist(),
        "list of floats with None": [[None if i % 7 == 0 else v + 2.0**-6 for v in row] for i, row in enumerate(X.tolist())],
        "list beyond 64 bits": [[a + 2**70, b, c] for a, b, c in X.tolist()],
        "objects": X.astype(object),
        "objects with None": objects,
        "pandas": frame,
        "float64 beside": frame.astype({"c": float}),
        "float32 beside": frame.astype({"c": "f4"}),
        "floats of both": frame.astype({"a": "f8", "b": "f4", "c": "f4"}),
        "bool beside": frame.assign(c=X[:, 2] % 2 == 0),
        "Int64": frame.astype("Int64"),
        "one Int64": frame.astype({"a": "Int64"}),
        "Int64 with NA": frame.astype("Int64").where(frame.index.to_series() % 7 > 0, pd.NA),
        "Float32 beside": frame.astype({"c": "Float32"}),
        "arrow in pandas": frame.astype("int64[pyarrow]"),
        "objects in pandas": frame.astype(object),
        "one of objects": frame.astype({"a": object}),
        "polars": given,
        "polars, float32 beside": given.with_columns(polars.col("c").cast(polars.Float32)),
        "polars of float32": given.cast(polars.Float32),
        "polars with null": polars.DataFrame(missing),
        "polars of objects": polars.DataFrame(
            {name: polars.Series(values, dtype=polars.Object) for name, values in lists.items()}
        ),
        "arrow": pyarrow.table(lists),
        "arrow, float32 beside": pyarrow.table({**lists, "c": X[:, 2].astype("f4")}),
        "arrow with null": pyarrow.table(missing),
        "csr": sp.csr_matrix(X),
        "csc": sp.csc_matrix(X),
        "coo": sp.coo_matrix(X),
        "csr of floats": sp.csr_matrix(X.astype(float)),
        "csr array": sp.csr_array(X),
    }


def lgb() -> Any:
    options = {"n_estimators": 6, "num_leaves": 12, "min_child_samples": 2, "min_data_in_bin": 1, "max_bin": 1000}
    return lightgbm.LGBMRegressor(**options, verbose=-1, n_jobs=1)


def xgb() -> Any:
    return xgboost.XGBRegressor(n_estimators=4, max_depth=4, n_jobs=1)


def cat() -> Any:
    return catboost.CatBoostRegressor(iterations=4, depth=4, verbose=0, allow_writing_files=False, thread_count=1)


def tree() -> Any:
    return DecisionTreeRegressor(max_depth=6, random_state=0)


def function(kind: str = "default", func: Any = None) -> Any:
    return FunctionTransformer(func, feature_names_out="one-to-one").set_output(transform=kind)


def columns(kind: str = "default", first: Any = "passthrough") -> Any:
    parts = ColumnTransformer([("first", first, [0])], remainder="passthrough", verbose_feature_names_out=False)
    return parts.set_output(transform=kind)


ENDS: dict[str, Callable[[], Any]] = {"lightgbm": lgb, "xgboost": xgb, "catboost": cat, "tree": tree}
STEPS: dict[str, Callable[[], list[Any]]] = {
    "alone": lambda: [],
    "function": lambda: [function()],
    "function, pandas": lambda: [function("pandas")],
    "function, polars": lambda: [function("polars")],
    "columns": lambda: [columns()],
    "columns, pandas": lambda: [columns("pandas")],
    "columns, polars": lambda: [columns("polars")],
    "scaled column": lambda: [columns("default", MinMaxScaler())],
    "scaled column, pandas": lambda: [columns("pandas", MinMaxScaler())],
    "scaled column, polars": lambda: [columns("polars", MinMaxScaler())],
    "selected": lambda: [VarianceThreshold()],
    "selected, pandas": lambda: [VarianceThreshold().set_output(transform="pandas")],
    "selected, polars": lambda: [VarianceThreshold().set_output(transform="polars")],
    "imputed, pandas": lambda: [SimpleImputer(strategy="most_frequent").set_output(transform="pandas")],
    "union": lambda: [FeatureUnion([("x", "passthrough"), ("s", MaxAbsScaler())])],
    "union, pandas": lambda: [FeatureUnion([("x", "passthrough"), ("s", MaxAbsScaler())]).set_output(transform="pandas")],
    "function, pandas, scaled": lambda: [function("pandas"), StandardScaler()],
    "function, polars, scaled": lambda: [function("polars"), StandardScaler()],
    "function, pandas, columns": lambda: [function("pandas"), columns()],
    "absolute": lambda: [function("default", np.abs)],
    "absolute, pandas": lambda: [function("pandas", np.abs)],
    "square": lambda: [function("default", np.square)],
    "root, pandas": lambda: [function("pandas", np.sqrt)],
}
MIXED: dict[str, Callable[[], Any]] = {
    "vote, lightgbm and tree": lambda: VotingRegressor([("a", lgb()), ("b", tree())]),
    "vote, lightgbm and linear": lambda: VotingRegressor(
        [("a", lgb()), ("b", make_pipeline(StandardScaler(), LinearRegression()))]
    ),
    "vote, lightgbm and selected": lambda: VotingRegressor(
        [("a", lgb()), ("b", make_pipeline(function("default", np.square), tree()))]
    ),
    "vote, lightgbm and xgboost": lambda: VotingRegressor([("a", lgb()), ("b", xgb())]),
    "vote, lightgbm and catboost": lambda: VotingRegressor([("a", lgb()), ("b", cat())]),
    "vote, xgboost and tree": lambda: VotingRegressor([("a", xgb()), ("b", tree())]),
    "vote, catboost and tree": lambda: VotingRegressor([("a", cat()), ("b", tree())]),
    "vote, columns before lightgbm": lambda: VotingRegressor([("a", make_pipeline(columns(), lgb())), ("b", tree())]),
    "vote, pandas before lightgbm": lambda: VotingRegressor([("a", make_pipeline(function("pandas"), lgb())), ("b", tree())]),
    "vote, pandas before both": lambda: make_pipeline(function("pandas"), VotingRegressor([("a", lgb()), ("b", tree())])),
    "stack, lightgbm and tree": lambda: StackingRegressor([("a", lgb()), ("b", tree())], Ridge(), cv=2),
    "stack, input to lightgbm": lambda: StackingRegressor([("b", tree())], lgb(), cv=2, passthrough=True),
    "stack, input to tree": lambda: StackingRegressor([("a", lgb()), ("b", tree())], tree(), cv=2, passthrough=True),
    "bag of lightgbm": lambda: BaggingRegressor(lgb(), n_estimators=2, random_state=0),
    "forest": lambda: RandomForestRegressor(3, max_depth=6, random_state=0),
}
MODELS: dict[str, Callable[[], Any]] = MIXED | {
    f"{steps}: {end}": (
        lambda steps=steps, end=end: make_pipeline(*STEPS[steps](), ENDS[end]()) if STEPS[steps]() else ENDS[end]()
    )
    for steps in STEPS
    for end in ENDS
}
ALWAYS = {"float32": ("int64", "float64", "float32"), "float64": ("float64", "float32")}
"""The arrays that every model takes, unless the source rejects them."""


@pytest.mark.parametrize("fitted", ["array", "frame"])
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_large_integers(name: str, kind: str, fitted: str) -> None:
    X = rows(kind)
    if ", polars:" in name and not reads(name.rpartition(": ")[2], "polars"):
        pytest.skip("the source takes no frames of polars")
    model = MODELS[name]().fit(X if fitted == "array" else pd.DataFrame(X, columns=NAMES), target(X))
    compiled = hbc.convert(model, "numpy")
    wrong, answers = [], 0
    for form, given in forms(X).items():
        try:
            expected = np.asarray(model.predict(given), float)
        except (Exception, polars.exceptions.PanicException):
            expected = None
        if expected is None and not (reads("lightgbm", form) and reads("catboost", form)):
            continue
        try:
            found = compiled.predict(given)
        except hbc.InvalidInputError as error:
            if expected is not None and form in ALWAYS[kind] and "name" not in str(error):
                wrong.append(f"{form}: rejected, {error}")
            continue
        answers += 1
        if expected is None:
            wrong.append(f"{form}: answered")
        elif not np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True):
            wrong.append(f"{form}: {np.sum(~np.isclose(found, expected, rtol=1e-5, atol=1e-6))} of {len(X)} rows differ")
    assert not wrong, "\n".join(wrong)
    assert answers >= 2


def test_a_booster_reads_objects_as_float32() -> None:
    """The scikit-learn class makes float64 of an array of objects before, and float32 of a list with None, as the Booster does."""
    X = rows("float32")
    model = lgb().fit(X.astype(float), target(X))
    objects = np.where(np.arange(ROWS)[:, None] % 7 == 0, None, (X + 2.0**-6).astype(object))
    for each in (model, model.booster_):
        compiled = hbc.convert(each, "numpy")
        for given in (objects, objects.tolist(), objects[:1], objects[1:2].tolist()):
            np.testing.assert_allclose(compiled.predict(given), each.predict(given), rtol=1e-12)
    assert (model.predict(objects) != model.predict(objects.tolist())).any()


def test_what_the_messages_say() -> None:
    """They name the number, the column and what to do."""
    X = rows("float64")
    compiled = hbc.convert(tree().fit(X, target(X)), "numpy")
    with pytest.raises(
        hbc.InvalidInputError,
        match=r"X, column [0-2]: found the integer 90\d+, expected integers that float64 holds\..*float32",
    ):
        compiled.predict(X.tolist())
    vote = VotingRegressor([("a", lgb()), ("b", make_pipeline(function("default", np.square), tree()))]).fit(X, target(X))
    with pytest.raises(
        hbc.InvalidInputError, match=r"found an integer above 2\*\*24, expected floats, or integers up to 2\*\*24"
    ):
        hbc.convert(vote, "numpy").predict(pd.DataFrame(X))


@pytest.mark.parametrize("name", ["columns: tree", "alone: xgboost", "alone: lightgbm", "vote, lightgbm and selected"])
def test_records_of_large_integers(name: str) -> None:
    """The short way of a record answers as a frame of one row does, and so do its rejections."""
    X = rows("float64")
    model = MODELS[name]().fit(pd.DataFrame(X, columns=NAMES), target(X))
    compiled = hbc.convert(model, "numpy")
    score = compiled.bind_record("predict")
    for kind in ("float32", "float64"):
        for values in rows(kind)[:30].tolist():
            for row in ([0, *values[1:]], [*values[:2], 0.5], values, [np.int64(values[0]), 0.5, 3]):
                record = dict(zip(NAMES, row, strict=True))
                try:
                    expected = compiled.predict([record])
                except hbc.InvalidInputError as error:
                    with pytest.raises(hbc.InvalidInputError, match=re.escape(str(error))):
                        score(record)
                    continue
                np.testing.assert_array_equal(score(record), expected)
                np.testing.assert_allclose(expected, model.predict(pd.DataFrame([record])), rtol=1e-6)


@pytest.mark.parametrize("fitted", [[2**53, 2**53 + 1, 5], [float(2**53), 5.0, np.nan]], ids=["integers", "floats"])
@pytest.mark.parametrize(
    "encoder",
    [
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    ],
    ids=["ordinal", "one-hot"],
)
def test_python_objects_that_encoders_compare_one_by_one(encoder: Any, fitted: list[Any]) -> None:
    """2**53 + 1 is no 2**53 as an object, but is in float64, of which the compiled model makes its numbers."""
    frame = pd.DataFrame({"a": fitted})
    source = encoder.fit(frame)
    model = hbc.convert(source, "numpy", frame)
    for value in (5, 2**53 - 1, -7.5):
        given = pd.DataFrame({"a": pd.Series([value], dtype=object)})
        np.testing.assert_array_equal(model.transform(given), source.transform(given))
    for value in (2**53, 2**53 + 1, float(2**53), np.int64(2**53 + 1), -(2**60)):
        for given in (pd.DataFrame({"a": pd.Series([5, value], dtype=object)}), np.array([[5], [value]], object)):
            with pytest.raises(hbc.errors.InvalidInputError, match=r"2\*\*53 or more among Python objects"):
                model.transform(given)
    whole = pd.DataFrame({"a": [5, 2**53 + 1]})
    np.testing.assert_array_equal(model.transform(whole), source.transform(whole))


def test_integers_that_encoders_compare_beside_columns_of_other_dtypes() -> None:
    """The compiled model has variants for the dtypes of fitting. For others all numbers become float64, in which 2**53 + 1 is 2**53."""
    frame = pd.DataFrame({"a": [2**53, 2**53 + 1, 2**53 + 2, 7], "b": np.float32([1, 2, 3, 4])})
    source = make_pipeline(ColumnTransformer([("a", OrdinalEncoder(), ["a"])], remainder="passthrough")).fit(frame)
    model = hbc.convert(source, "numpy", frame)
    np.testing.assert_array_equal(model.transform(frame), source.transform(frame))
    wide = frame.astype({"b": float})
    np.testing.assert_array_equal(model.transform(wide.tail(1)), source.transform(wide.tail(1)))
    for _ in range(2):
        for given in (wide, wide.head(1), wide.head(1).to_dict("records"), polars.from_pandas(wide.head(1))):
            with pytest.raises(hbc.errors.InvalidInputError, match=r"2\*\*53 or more"):
                model.transform(given)
        handle = model.bind_record("transform")
        handle({"a": 7, "b": 0.5})
        with pytest.raises(hbc.errors.InvalidInputError, match=r"2\*\*53 or more"):
            handle({"a": 2**53 + 1, "b": 0.5})


@pytest.mark.parametrize("backend", ["numpy", "torch", "tvm"])
def test_categories_that_are_one_number_in_the_dtype_of_the_input(backend: str) -> None:
    """2**53 + 1 is 2**53 in float64. The source finds the first of two equal categories, so one column is set, not both."""
    integers = np.array([[2**53], [2**53 + 1], [2**53 + 2], [7]])
    for encoder in (OneHotEncoder(sparse_output=False), OneHotEncoder(sparse_output=False, drop="first"), OrdinalEncoder()):
        source = encoder.fit(integers)
        model = hbc.convert(source, backend)
        for given in (integers, integers.astype(float)):
            np.testing.assert_array_equal(model.transform(given), source.transform(given))


@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore", sparse_output=False), OrdinalEncoder()])
def test_unsigned_integers_beside_categories_that_are_signed(encoder: Any) -> None:
    """numpy compares uint64 with int64 as float64, in which 2**53 + 1 is 2**53."""
    for fitted, refused in (([2**53, 2**53 + 1, 7], True), ([7, 2**53 - 1, 2**40], False)):
        frame = pd.DataFrame({"a": fitted})
        source = encoder.fit(frame)
        model = hbc.convert(source, "numpy", frame)
        np.testing.assert_array_equal(model.transform(frame), source.transform(frame))
        unsigned = frame.astype("uint64")
        table = pyarrow.table({"a": pyarrow.array(fitted, "uint64")})
        for call in (lambda X=unsigned, m=model: m.transform(X), lambda X=table, m=model: m.arrow()(X).to_pandas().to_numpy()):
            if refused:
                with pytest.raises(hbc.errors.InvalidInputError, match="found uint64, expected int64"):
                    call()
            else:
                np.testing.assert_array_equal(call(), source.transform(unsigned))


@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore", sparse_output=False), OrdinalEncoder()])
def test_signed_integers_beside_categories_that_are_unsigned(encoder: Any) -> None:
    frame = pd.DataFrame({"a": np.array([2**53, 2**53 + 1, 7], "uint64")})
    source = encoder.fit(frame)
    model = hbc.convert(source, "numpy", frame)
    small = pd.DataFrame({"a": np.array([7, 7], "int32")})
    for exact in (frame, small, frame.astype("float64")):
        np.testing.assert_array_equal(model.transform(exact), source.transform(exact))
    for given in (frame.astype("int64"), frame.astype("int64").to_numpy()):
        with pytest.raises(hbc.errors.InvalidInputError, match="found int64, expected uint64, float32 or float64"):
            model.transform(given)


def test_decimals_that_encoders_compare_one_by_one() -> None:
    """Decimal("0.1") is no 0.1, and Decimal("0.5") is 0.5."""
    frame = pd.DataFrame({"a": [0.1, 0.5, 2.0]})
    source = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(frame)
    model = hbc.convert(source, "numpy", frame)
    held = pyarrow.table({"a": pyarrow.array([Decimal("0.5"), Decimal("2"), Decimal("3.25")])})
    np.testing.assert_array_equal(model.transform(held.to_pandas()), source.transform(held.to_pandas()))
    np.testing.assert_array_equal(model.arrow()(held).to_pandas(), source.transform(held.to_pandas()))
    for value in (Decimal("0.1"), Decimal(2**53 + 1), Decimal("NaN")):
        given = pd.DataFrame({"a": pd.Series([Decimal("0.5"), value], dtype=object)})
        with pytest.raises(hbc.errors.InvalidInputError, match="a Decimal that float64 does not hold"):
            model.transform(given)
    with pytest.raises(hbc.errors.InvalidInputError, match="a Decimal that float64 does not hold"):
        model.arrow()(pyarrow.table({"a": pyarrow.array([Decimal("0.1")])}))
