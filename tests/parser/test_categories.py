"""XGBoost and LightGBM fitted on categories of pandas, alone and inside other estimators: to frames of all dtypes, to arrays and to tables
of other libraries the compiled model answers as the source does, or both reject them. A case is a row of COMPOSITIONS and one of FITTED."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from verdicts import verdict

import hbc

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(11)
ROWS = 120
DRAWN, OTHERS = RANDOM.choice(4, ROWS), RANDOM.choice(3, ROWS)
X_VALUES = RANDOM.normal(size=ROWS)
Y = (DRAWN % 2 + OTHERS + X_VALUES > 1.5).astype(int)

FITTED: dict[str, tuple[Any, Any]] = {
    "places": (np.array([0, 1, 2, 3]), np.array([0, 1, 2])),
    "tens": (np.array([10, 20, 30, 40]), np.array([7, 5, 9])),
    "not in order": (np.array([3, 1, 0, 2]), np.array([2, 1, 0])),
    "narrow": (np.array([-1, 100, 7, 5], np.int8), np.array([0, 1, 2])),
    "strings": (np.array(["a", "b", "e", "d"], object), np.array(["p", "q", "r"], object)),
    "floats": (np.array([0.5, 1.0, 2.5, -3.0]), np.array([0.0, 1.0, 2.0])),
    "bool": (np.array([10, 20, 30, 40]), np.array([False, True])),
}
LIBRARIES: dict[str, Callable[[], Any]] = {
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True, n_jobs=1),
    "lightgbm": lambda: lightgbm.LGBMClassifier(
        n_estimators=4, num_leaves=6, min_child_samples=3, min_data_per_group=3, cat_smooth=1, verbose=-1, n_jobs=1
    ),
}


def frame_of(fitted: str) -> pd.DataFrame:
    c, d = FITTED[fitted]
    return pd.DataFrame(
        {"c": pd.Categorical(c[DRAWN], categories=c), "x": X_VALUES, "d": pd.Categorical(d[OTHERS % len(d)], categories=d)}
    )


def scaled() -> ColumnTransformer:
    made = ColumnTransformer([("s", StandardScaler(), ["x"])], remainder="passthrough", verbose_feature_names_out=False)
    return made.set_output(transform="pandas")


def only_x() -> ColumnTransformer:
    return ColumnTransformer([("x", StandardScaler(), ["x"])]).set_output(transform="pandas")


def as_it_is(frame: Any) -> Any:
    return frame


def all_alike(frame: Any, y: Any) -> Any:
    return np.ones(frame.shape[1]), np.ones(frame.shape[1])


def voting(new: Callable[[], Any], other: Any) -> Any:
    return VotingClassifier([("a", new()), ("b", other)], voting="soft")


COMPOSITIONS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "alone": lambda new: new(),
    "pipeline": lambda new: make_pipeline(new()),
    "identity": lambda new: make_pipeline(FunctionTransformer(), new()),
    "identity that makes frames": lambda new: make_pipeline(FunctionTransformer().set_output(transform="pandas"), new()),
    "function": lambda new: make_pipeline(FunctionTransformer(as_it_is), new()),
    "function that makes frames": lambda new: make_pipeline(
        FunctionTransformer(as_it_is).set_output(transform="pandas"), new()
    ),
    "nested": lambda new: make_pipeline(make_pipeline(FunctionTransformer()), new()),
    "nested passthrough": lambda new: make_pipeline(Pipeline([("as it is", "passthrough")]), new()),
    "nested twice": lambda new: make_pipeline(
        make_pipeline(make_pipeline(FunctionTransformer()), FunctionTransformer()), new()
    ),
    "nested function": lambda new: make_pipeline(make_pipeline(FunctionTransformer(as_it_is)), new()),
    "nested columns": lambda new: make_pipeline(make_pipeline(scaled()), new()),
    "selector": lambda new: make_pipeline(SelectKBest(all_alike, k="all").set_output(transform="pandas"), new()),
    "variance": lambda new: make_pipeline(VarianceThreshold().set_output(transform="pandas"), new()),
    "columns": lambda new: make_pipeline(scaled(), new()),
    "columns as an array": lambda new: make_pipeline(
        ColumnTransformer([("s", StandardScaler(), ["x"])], remainder="passthrough"), new()
    ),
    "union": lambda new: make_pipeline(
        FeatureUnion([("all", FunctionTransformer())], verbose_feature_names_out=False).set_output(transform="pandas"), new()
    ),
    "union of two": lambda new: make_pipeline(
        FeatureUnion([("all", FunctionTransformer()), ("x", make_pipeline(only_x()))]).set_output(transform="pandas"),
        new(),
    ),
    "search": lambda new: GridSearchCV(new(), {"max_depth": [2]}, cv=2),
    "voting of two": lambda new: voting(new, make_pipeline(new())),
    "with a linear model": lambda new: voting(new, LogisticRegression()),
    "with a tree": lambda new: voting(new, DecisionTreeClassifier(max_depth=3, random_state=0)),
    "with histograms": lambda new: voting(new, HistGradientBoostingClassifier(max_iter=3, categorical_features=None)),
    "with categorical histograms": lambda new: voting(new, HistGradientBoostingClassifier(max_iter=3)),
    "with a scaler": lambda new: voting(new, make_pipeline(StandardScaler(), LogisticRegression())),
    "with an encoder": lambda new: voting(
        new,
        make_pipeline(ColumnTransformer([("o", OrdinalEncoder(), ["c"]), ("x", "passthrough", ["x"])]), LogisticRegression()),
    ),
    "with one-hot codes": lambda new: voting(new, make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())),
    "with an imputer": lambda new: voting(new, make_pipeline(SimpleImputer(strategy="most_frequent"), LogisticRegression())),
    "with x alone": lambda new: voting(
        new, make_pipeline(ColumnTransformer([("x", "passthrough", ["x"])]), LogisticRegression())
    ),
    "both libraries": lambda new: VotingClassifier([(name, each()) for name, each in LIBRARIES.items()], voting="soft"),
    "stacking": lambda new: StackingClassifier([("a", new()), ("b", make_pipeline(scaled(), new()))], cv=2),
    "stacking with X": lambda new: StackingClassifier([("a", new()), ("b", new())], cv=2, passthrough=True),
    "stacking with a linear model": lambda new: StackingClassifier([("a", new()), ("b", LogisticRegression())], cv=2),
    "calibrated": lambda new: CalibratedClassifierCV(make_pipeline(scaled(), new()), cv=2),
    "encoded again": lambda new: make_pipeline(
        ColumnTransformer([("o", OrdinalEncoder(), ["c"]), ("p", "passthrough", ["c", "x", "d"])]).set_output(
            transform="pandas"
        ),
        new(),
    ),
}


def containers(frame: pd.DataFrame) -> dict[str, Any]:
    known, values, of_d = np.asarray(frame.c.cat.categories), np.asarray(frame.c), np.asarray(frame.d)
    codes = np.column_stack([frame.c.cat.codes, frame.x, frame.d.cat.codes])
    text, whole = known.dtype.kind == "O", known.dtype.kind in "iu"
    one_more = [*known.tolist(), "zz" if text else known.max() + 1]
    table = pl.DataFrame({"c": values.tolist(), "x": X_VALUES, "d": of_d.tolist()})
    strings = table.with_columns(pl.col("c").cast(pl.String), pl.col("d").cast(pl.String))
    enums = {name: pl.Enum(strings[name].unique().to_list()) for name in "cd"}
    x = frame.x
    found = {
        "as fitted": frame,
        "one row": frame[5:6],
        "no rows": frame[:0],
        "another order": frame.assign(c=frame.c.cat.reorder_categories(known[::-1])),
        "fewer": frame.assign(c=frame.c.cat.set_categories(known[1:3])),
        "some rows": frame[frame.c != known[1]],
        "some missing": frame.assign(c=frame.c.where(frame.index % 3 > 0)),
        "all missing": frame.assign(c=frame.c.where(frame.index < 0)),
        "missing in both": frame.assign(c=frame.c.where(frame.index % 3 > 0), d=frame.d.where(frame.index % 2 > 0)),
        "ordered": frame.assign(c=frame.c.cat.as_ordered()),
        **{f"{kind} beside": frame.assign(x=x.astype(kind)) for kind in ("float32", "float16", "object", "Float64", "str")},
        "integers beside": frame.assign(x=x.round().astype(int)),
        "Int64 beside": frame.assign(x=x.round().astype("Int64")),
        "bool beside": frame.assign(x=x > 0),
        "categories beside": frame.assign(x=x.round().astype(int).astype("category")),
        "NaN beside": frame.assign(x=np.nan),
        "infinity beside": frame.assign(x=np.where(frame.index == 3, np.inf, x)),
        "names in another order": frame[["x", "d", "c"]],
        "swapped": frame.rename(columns={"c": "d", "d": "c"})[["c", "x", "d"]],
        "a column more": frame.assign(more=1.0),
        "a column less": frame[["c", "x"]],
        "another name": frame.rename(columns={"x": "z"}),
        "names of two levels": frame.set_axis(pd.MultiIndex.from_tuples([("c", "1"), ("x", "1"), ("d", "1")]), axis=1),
        "of strings": frame.assign(c=pd.Categorical(values.astype(str))),
        "of objects": frame.assign(c=pd.Categorical(values.astype(object), categories=known.astype(object))),
        "one more": frame.assign(c=frame.c.cat.add_categories(one_more[-1:])),
        "unknown": frame.assign(c=pd.Categorical([one_more[-1], *values.tolist()[1:]], categories=one_more)),
        "only unknown": frame.assign(c=pd.Categorical([one_more[-1]] * ROWS)),
        "values": frame.assign(c=values, d=of_d),
        "values of one": frame.assign(c=values),
        "codes": frame.assign(c=frame.c.cat.codes, d=frame.d.cat.codes),
        "codes of one": frame.assign(c=frame.c.cat.codes),
        "float codes": frame.assign(c=frame.c.cat.codes.astype(float), d=frame.d.cat.codes.astype(float)),
        "Int64 codes": frame.assign(c=frame.c.cat.codes.astype("Int64")),
        "objects": frame.astype(object),
        "array": codes,
        "array of float32": codes.astype("f4"),
        "array of integers": codes.round().astype(int),
        "array with NaN": np.where(codes == 1, np.nan, codes),
        "array of objects": codes.astype(object),
        "array of the frame": frame.astype(object).to_numpy(),
        "list": codes.tolist(),
        "csr": sp.csr_matrix(codes),
        "polars": table,
        "polars of codes": pl.DataFrame(codes, schema=list("cxd")),
        "polars of strings": strings,
        "polars Categorical": strings.with_columns(pl.col("c", "d").cast(pl.Categorical)),
        "polars Enum": strings.with_columns(pl.col(name).cast(kind) for name, kind in enums.items()),
        "arrow": pa.table({"c": values.tolist(), "x": X_VALUES, "d": of_d.tolist()}),
        "arrow of codes": pa.table({name: codes[:, i] for i, name in enumerate("cxd")}),
        "dictionaries": pa.table(
            {
                "c": pa.array(values.tolist()).dictionary_encode(),
                "x": X_VALUES,
                "d": pa.array(of_d.tolist()).dictionary_encode(),
            }
        ),
    }
    if not text:
        found["of floats"] = frame.assign(c=pd.Categorical(values.astype(float), categories=known.astype(float)))
        found["of bool"] = frame.assign(c=pd.Categorical(values > known[1]))
    if whole:
        found["of int32"] = frame.assign(c=pd.Categorical(values.astype("i4"), categories=known.astype("i4")))
        found["of Int64"] = frame.assign(c=frame.c.astype(pd.CategoricalDtype(pd.array(known, dtype="Int64"))))
    return found


SAMPLE = {
    ("xgboost", "tens", "nested"),
    ("xgboost", "places", "with a tree"),
    ("xgboost", "strings", "columns"),
    ("xgboost", "tens", "selector"),
    ("lightgbm", "tens", "alone"),
    ("lightgbm", "floats", "columns"),
    ("lightgbm", "places", "with a tree"),
    ("lightgbm", "strings", "nested function"),
    ("lightgbm", "places", "both libraries"),
}
CASES = [
    pytest.param(library, fitted, name, marks=() if (library, fitted, name) in SAMPLE else pytest.mark.slow)
    for library in LIBRARIES
    for fitted in FITTED
    for name in COMPOSITIONS
]


def has(model: Any, method: str) -> bool:
    """Whether the source has the method, or LightGBM's option of `predict` that stands for it."""
    return hasattr(model, method) or isinstance(model, lightgbm.LGBMClassifier)


def answer(model: Any, method: str, given: Any) -> Any:
    """What the source gives; None if it rejects the input."""
    try:
        if method == "apply" and isinstance(model, lightgbm.LGBMClassifier):
            return np.asarray(model.predict(given, pred_leaf=True))
        return np.asarray(getattr(model, method)(given))
    except BaseException:
        return None


def converted(model: Any, frame: pd.DataFrame) -> Any:
    """The compiled model, or the reason why it does not convert."""
    try:
        return hbc.convert(model, "numpy")
    except hbc.InvalidInputError:  # it has columns of strings that it does not name
        return hbc.convert(model, "numpy", frame)
    except hbc.UnsupportedOperatorError as error:
        return str(error)


@pytest.mark.parametrize("fitted", ["tens", "narrow", "strings"])
def test_columns_without_categories(fitted: str) -> None:
    """XGBoost rejects them, in frames of all libraries, though all values are missing; LightGBM does not."""
    frame = frame_of(fitted)
    few = frame.head(2)
    dtype = frame["c"].cat.categories.dtype
    given: list[Any] = [
        few.assign(c=pd.Categorical([None, None], categories=pd.Index([], dtype=dtype))),
        few.assign(c=pd.Categorical([None, None])),
    ]
    if fitted == "strings":
        empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), pa.array([], pa.string()))
        given.append(pl.from_pandas(few).with_columns(c=pl.Series([None, None], dtype=pl.Categorical)))
        given.append(pa.Table.from_pandas(few).set_column(0, "c", empty))
    for library, new in LIBRARIES.items():
        source = new().fit(frame, Y)
        model = hbc.convert(source, "numpy", frame)
        for each in given:
            if library == "xgboost":
                with pytest.raises((xgboost.core.XGBoostError, ValueError)):
                    source.predict_proba(each)
                with pytest.raises(
                    hbc.errors.InvalidInputError, match=r"without categories|the category|categories of (object|float64)"
                ):
                    model.predict_proba(each)
            elif isinstance(each, pd.DataFrame):
                np.testing.assert_allclose(model.predict_proba(each), source.predict_proba(each), rtol=1e-6)


@pytest.mark.parametrize(("library", "fitted", "name"), CASES)
def test_the_same_answer_or_both_an_error(library: str, fitted: str, name: str) -> None:
    frame = frame_of(fitted)
    try:
        model = COMPOSITIONS[name](LIBRARIES[library]).fit(frame, Y)
    except Exception as error:
        pytest.skip(f"the source does not fit it: {error}")
    compiled = converted(model, frame)
    if isinstance(compiled, str):
        assert "another estimator reads as well" in compiled or "hold strings" in compiled
        return
    methods = [method for method in ("predict", "predict_proba", "apply") if method in compiled.methods and has(model, method)]
    wrong, same = [], 0
    for container, given in containers(frame).items():
        for method in methods:
            found = verdict(compiled, method, given, answer(model, method, given))
            if found in ("answered", "different"):
                wrong.append(f"{method} of {container}: {found}")
            same += found == "same"
    assert not wrong, "\n".join(wrong)
    assert same, "nothing was answered"
