"""The input checks of the sources inside other estimators: a sample of their inputs (test_source_checks.py) for voting, stacking, unions,
columns, selectors and functions. What the source rejects is rejected; what both answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from backends import BACKENDS
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OutputCodeClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    SplineTransformer,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier
from verdicts import verdict

import hbc

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(3)
ROWS = 40
X = RANDOM.normal(size=(ROWS, 3)).round(1)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abc"))
FITTED_ON = {"array": X, "names": FRAME}

MODELS: dict[str, Callable[[], Any]] = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1, n_jobs=1),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1),
    "histogram": lambda: HistGradientBoostingClassifier(max_iter=3),
}
COMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "voting": lambda new: VotingClassifier([("a", new()), ("b", LogisticRegression())], voting="soft"),
    "stacking": lambda new: StackingClassifier([("a", new()), ("b", DecisionTreeClassifier(max_depth=3))], cv=2),
    "stacking with X": lambda new: StackingClassifier([("a", new()), ("b", LogisticRegression())], cv=2, passthrough=True),
    "union": lambda new: make_pipeline(FeatureUnion([("s", StandardScaler()), ("p", "passthrough")]), new()),
    "columns of frames": lambda new: make_pipeline(
        ColumnTransformer([("s", StandardScaler(), [0])], remainder="passthrough").set_output(transform="pandas"), new()
    ),
    "nested": lambda new: make_pipeline(make_pipeline(FunctionTransformer()), new()),
    "function": lambda new: make_pipeline(FunctionTransformer(np.abs), new()),
    "selector of frames": lambda new: make_pipeline(SelectKBest(k=2).set_output(transform="pandas"), new()),
}

LEFT_OUT = np.where(X > 0, X, 0)
INPUTS: dict[str, Any] = {
    "array": X,
    "float32": X.astype("f4"),
    ">f8": X.astype(">f8"),
    "masked": np.ma.masked_array(X, X > 1),
    "no rows": X[:0],
    "a column less": X[:, :2],
    "list": X.tolist(),
    "NaN": np.where(X > 1, np.nan, X),
    "infinite": np.where(X > 1.5, np.inf, X),
    "frame": FRAME,
    "another order": FRAME[list("bac")],
    "other names": FRAME.rename(columns={"c": "d"}),
    "integer names": pd.DataFrame(X),
    "float names": pd.DataFrame(X, columns=[0.5, 1.5, 2.5]),
    "names of two types": pd.DataFrame(X, columns=["a", "b", 2]),
    "None as a name": pd.DataFrame(X, columns=["a", None, "c"]),
    "names of two levels": pd.DataFrame(X, columns=pd.MultiIndex.from_tuples([("a", "x"), ("b", "y"), ("c", "z")])),
    "objects": FRAME.astype(object),
    "numeric strings": FRAME.astype(str),
    "categories of integers": FRAME.assign(b=pd.Categorical((FRAME.b > 0).astype(int))),
    "one missing of them": FRAME.assign(b=pd.Categorical((FRAME.b > 0).astype(int)).set_categories([1])),
    "Float64 with NA": FRAME.astype("Float64").where(FRAME > 0),
    "sparse columns": pd.DataFrame(LEFT_OUT, columns=list("abc")).astype(pd.SparseDtype(float, 0)),
    "sparse without NaN": FRAME.astype(pd.SparseDtype(float, np.nan)),
    "sparse bool": (FRAME > 0).astype(pd.SparseDtype(bool, False)),
    "csr": sp.csr_matrix(X),
    "polars": pl.DataFrame(X, schema=list("abc")),
    "polars strings": pl.DataFrame(X, schema=list("abc")).cast(pl.String),
    "arrow": pa.table({name: X[:, i] for i, name in enumerate("abc")}),
    "nulls only": pa.table({"a": X[:, 0], "b": pa.nulls(ROWS), "c": X[:, 2]}),
}


@pytest.mark.parametrize("on", FITTED_ON)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_what_the_source_rejects_is_rejected(name: str, kind: str, on: str) -> None:
    model = COMPOSITIONS[name](MODELS[kind]).fit(FITTED_ON[on], Y)
    compiled = hbc.convert(model, "numpy")
    wrong, answers = [], 0
    for method in ("predict", "predict_proba"):
        for container, given in INPUTS.items():
            try:
                expected = getattr(model, method)(given)
            except Exception:
                expected = None
            found = verdict(compiled, method, given, expected)
            if found in ("answered", "different"):
                wrong.append(f"{method} of {container}: {found}")
            answers += found == "same"
    assert not wrong, "\n".join(wrong)
    assert answers > 4


@pytest.mark.parametrize("known", [[0.5, 0.6, 0.7], [0.5, 0.5, 0.5]], ids=["narrow", "constant"])
def test_values_that_are_looked_up_may_lie_beyond_the_knots(known: list[float]) -> None:
    """No number is computed on the way to the check: an encoder looks up what lies outside."""
    X = np.repeat([0.0, 1.0, 2.0, 3.0], 10)[:, None]
    codes = OrdinalEncoder().fit(X)
    splines = SplineTransformer(degree=1, n_knots=2, extrapolation="error").fit(np.array(known)[:, None])
    model = Pipeline([("codes", codes), ("splines", splines)])
    compiled = hbc.convert(model, "numpy")
    for rows in (X, X[:1], X[-1:]):
        with pytest.raises(ValueError, match="beyond the limits of the knots"):
            model.transform(rows)
        with pytest.raises(hbc.InvalidInputError):
            compiled.transform(rows)


@pytest.mark.parametrize("backend", ["numpy", "tvm"])
@pytest.mark.parametrize("last", [LogisticRegression(), DummyClassifier(), None], ids=["a column", "no column", "transform"])
def test_columns_that_a_later_step_drops_are_checked(backend: str, last: Any, tmp_path: Any) -> None:
    """A frame's columns are nodes of their own, so that nothing reads the dropped ones. The source computes them before."""
    if not hbc.backends()[backend]:
        pytest.skip(f"{backend} is not installed")
    words = FRAME.assign(w=np.where(X[:, 2] > 0, "u", "v"))
    first = ColumnTransformer([("s", StandardScaler(), ["a"]), ("m", MinMaxScaler(), ["b"]), ("o", OrdinalEncoder(), ["w"])])
    second = ColumnTransformer([("p", "passthrough", ["s__a"])])
    steps = [first] if isinstance(last, DummyClassifier) else [first, second]
    source = make_pipeline(*steps, *([] if last is None else [last])).set_output(transform="pandas").fit(words, Y)
    hbc.convert(source, backend).save(tmp_path / "m.hbc")
    for compiled in (hbc.convert(source, backend), hbc.load(tmp_path / "m.hbc", backend=backend)):
        for method in ("transform",) if last is None else ("predict", "predict_proba"):
            found, expected = getattr(compiled, method)(words), getattr(source, method)(words)
            np.testing.assert_allclose(found, expected)
            for bad in (words.assign(w="z"), words.assign(b=np.inf)):
                with pytest.raises(ValueError, match=r"unknown|infinity"):
                    getattr(source, method)(bad)
                with pytest.raises(hbc.InvalidInputError):
                    getattr(compiled, method)(bad)


def test_a_list_that_a_union_multiplies() -> None:
    """It multiplies the list itself, which repeats its rows or fails."""
    union = FeatureUnion([("a", StandardScaler()), ("b", "passthrough")], transformer_weights={"b": 0.5})
    compiled = hbc.convert(union.fit(X), "numpy")
    np.testing.assert_allclose(compiled.transform(X), union.transform(X), rtol=1e-12)
    with pytest.raises(TypeError):
        union.transform(X.tolist())
    with pytest.raises(hbc.InvalidInputError, match="found a list"):
        compiled.transform(X.tolist())


def test_scores_that_are_infinite() -> None:
    """OutputCodeClassifier compares them with its codes by distances, and so rejects them."""
    coded = OutputCodeClassifier(LogisticRegression(C=1e3), random_state=0).fit(X, Y)
    compiled, large = hbc.convert(coded, "numpy"), np.array([[1.7e308, 1.7e308, 0.0]])
    np.testing.assert_array_equal(compiled.predict(X), coded.predict(X))
    with pytest.raises(ValueError, match="infinity"):
        coded.predict(large)
    with pytest.raises(hbc.InvalidInputError, match="OutputCodeClassifier"):
        compiled.predict(large)


@pytest.mark.parametrize("kind", [object, "float16", "Int64"])
def test_columns_beside_sparse_ones_in_a_union(kind: Any) -> None:
    """scipy stacks neither Python objects nor float16, and no dtype of pandas' own. hbc answered."""
    X = pd.DataFrame({"a": [1, 2, 3, 1], "b": [1, 2, 1, 2]})
    union = FeatureUnion([("same", "passthrough"), ("codes", OneHotEncoder(handle_unknown="ignore"))])
    model = make_pipeline(union, LogisticRegression()).fit(X, [0, 1, 0, 1])
    compiled = hbc.convert(model, "numpy")
    for taken in (X, X.to_numpy("int8"), X.astype(bool), X.astype("float32"), X.to_numpy().tolist()):
        np.testing.assert_allclose(compiled.decision_function(taken), model.decision_function(taken), rtol=1e-6)
    for rejected in (X.astype(kind), X.astype(kind).to_numpy(object if kind == "Int64" else kind)):
        with pytest.raises(ValueError, match=r"scipy\.sparse does not support dtype"):
            model.predict(rejected)
        with pytest.raises(hbc.InvalidInputError):
            compiled.predict(rejected)


def test_an_imputer_of_bool_with_nulls() -> None:
    """The source makes Python objects of the columns, and leaves None as it is."""
    frame = pl.DataFrame({"a": [True, False, True, None], "b": [True, True, False, False]})
    source = SimpleImputer(strategy="most_frequent").fit(frame)
    assert source.transform(frame).tolist()[3] == [None, False]
    with pytest.raises(hbc.UnsupportedOperatorError, match="Make numbers of bool before"):
        hbc.convert(source, "numpy")
    numbers = frame.cast(pl.Float32)
    source = SimpleImputer(strategy="most_frequent").fit(numbers)
    np.testing.assert_array_equal(hbc.convert(source, "numpy").transform(numbers), source.transform(numbers))


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_leaves_answer_missing_values(backend: str) -> None:
    """A linear leaf gives its plain value where a number is missing. hbc saw a way of NaN into the scores, and rejected
    the rows, since isotonic regression and linear models reject NaN. What is infinite is rejected still, if the score is."""
    rows = np.random.default_rng(0).normal(size=(300, 3))
    rows[::3, 0], rows[::7, 1] = np.nan, np.nan
    y = (np.nan_to_num(rows[:, 0]) * rows[:, 2] > 0).astype(int)
    new = lambda: lightgbm.LGBMClassifier(n_estimators=4, num_leaves=5, linear_tree=True, verbose=-1, n_jobs=1)  # noqa: E731
    for source in (
        CalibratedClassifierCV(new(), method="isotonic", cv=2, ensemble=False),
        StackingClassifier([("a", new())], cv=2),
    ):
        source.fit(rows, y)
        model = hbc.convert(source, backend)
        np.testing.assert_allclose(model.predict_proba(rows), source.predict_proba(rows), rtol=1e-9)
        for i in range(3):
            infinite = rows[:30].copy()
            infinite[4::7, i] = np.inf
            try:
                expected = source.predict_proba(infinite)
            except ValueError:
                with pytest.raises(hbc.InvalidInputError):
                    model.predict_proba(infinite)
            else:
                np.testing.assert_allclose(model.predict_proba(infinite), expected, rtol=1e-9)
