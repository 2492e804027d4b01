"""Pipelines, unions, column transformers and searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.decomposition import PCA
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, HalvingRandomSearchCV, RandomizedSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, StandardScaler

from estimators.case import Case


def _iris():
    X, y = load_iris(return_X_y=True)
    return X, y


def _cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, y


def _fit(model, transform=None):
    X, y = _iris()
    return model.fit(X, y), X if transform is None else transform(X)


LOGISTIC = LogisticRegression(max_iter=2000)


def _pipeline():
    return _fit(make_pipeline(StandardScaler(), LOGISTIC))


def _nested():
    inner = Pipeline([("a", StandardScaler()), ("nothing", None), ("b", MinMaxScaler())])
    return _fit(Pipeline([("first", "passthrough"), ("inner", inner), ("model", LinearRegression())]))


def _union(**options):
    parts = [("scale", StandardScaler()), ("same", "passthrough"), ("gone", "drop"), ("pca", PCA(2))]
    return _fit(make_pipeline(FeatureUnion(parts, **options), LOGISTIC))


def _columns(parts, **options):
    return _fit(ColumnTransformer(parts, **options))


def _columns_of(*specs, **options):
    makers = [StandardScaler(), MinMaxScaler(), "passthrough", "drop"]
    parts = [(f"t{i}", maker, columns) for i, (maker, columns) in enumerate(zip(makers, specs, strict=False))]
    return _columns(parts, **options)


def _numeric_frame(by_name=True):
    X, y = _cancer()
    frame = pd.DataFrame(X[:, :6], columns=[f"c{i}" for i in range(6)])
    parts = [("a", StandardScaler(), ["c4", "c0"]), ("b", MinMaxScaler(), slice("c1", "c2")), ("c", "drop", ["c5"])]
    model = make_pipeline(ColumnTransformer(parts, remainder="passthrough"), LOGISTIC).fit(frame, y)
    shuffled = frame[["c3", "c0", "c2", "c1", "c4"]].assign(extra="text")
    return model, (shuffled if by_name else frame)[:200]


def adult(rows=300, missing=True):
    """A frame like the census data: numbers and strings, both with missing values."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows).astype(float),
            "job": rng.choice(["clerk", "farmer", "sales", "tech"], rows).astype(object),
            "hours": rng.normal(40, 10, rows),
            "country": rng.choice(["France", "Österreich", "日本"], rows).astype(object),
            "gain": rng.exponential(1000, rows),
        }
    )
    y = np.where(frame["age"] + frame["hours"] + 20 * (frame["job"] == "tech") > 100, ">50K", "<=50K")
    if missing:
        for i, column in enumerate(["age", "job", "gain", "country"]):
            frame.loc[rng.random(rows) < 0.1 + 0.02 * i, column] = np.nan
    return frame, y


NUMBERS, STRINGS = ["age", "hours", "gain"], ["job", "country"]


def _adult_preparation(encoder=None):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    strings = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder or OneHotEncoder(handle_unknown="ignore"))
    return ColumnTransformer([("num", numbers, NUMBERS), ("cat", strings, STRINGS)])


def _adult(select=lambda frame: frame, encoder=None):
    frame, y = adult()
    model = make_pipeline(_adult_preparation(encoder), LOGISTIC).fit(frame[:200], y[:200])
    return model, select(frame[200:].reset_index(drop=True))


def _unseen(frame):
    frame.loc[3, "job"] = "astronaut"
    return frame


def _adult_selector():
    frame, y = adult(missing=False)
    parts = [
        ("cat", OneHotEncoder(), make_column_selector(dtype_exclude=np.number)),
        ("num", StandardScaler(), make_column_selector(dtype_include=np.number)),
    ]
    return ColumnTransformer(parts).fit(frame, y), frame[:200]


def _adult_remainder():
    frame, y = adult(missing=False)
    parts = [("cat", OneHotEncoder(sparse_output=False), STRINGS)]
    model = ColumnTransformer(parts, remainder=MinMaxScaler(), transformer_weights={"cat": 2, "remainder": 0.5})
    return make_pipeline(model, LOGISTIC).fit(frame, y), frame[:200]


def _adult_strings_between():
    frame, y = adult()
    strings = ColumnTransformer([("cat", SimpleImputer(strategy="most_frequent"), STRINGS)])
    return make_pipeline(strings, OneHotEncoder(), LOGISTIC).fit(frame, y), frame[:200]


def _adult_array():
    frame, y = adult()
    array = frame.to_numpy(dtype=object)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    strings = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    model = make_pipeline(ColumnTransformer([("num", numbers, [0, 2, 4]), ("cat", strings, [1, 3])]), LOGISTIC)
    return model.fit(array, y), array[:200]


def _search(kind, **options):
    X, y = _iris()
    model = make_pipeline(StandardScaler(), LOGISTIC)
    return kind(model, {"logisticregression__C": [0.1, 1.0]}, cv=3, **options).fit(X, y), X


def _search_transformer():
    X, _ = _iris()
    model = make_pipeline(StandardScaler(), PCA())
    return GridSearchCV(model, {"pca__n_components": [1, 2]}, cv=3).fit(X), X


def _frozen():
    X, y = _iris()
    scaler = FrozenEstimator(StandardScaler().fit(X))
    return make_pipeline(scaler, FrozenEstimator(LOGISTIC.fit(X, y))).fit(X, y), X


WEIGHTS = {"t0": 2, "t1": np.float64(0.5), "t2": 3}

CASES = [
    Case("Pipeline", _pipeline),
    Case("Pipeline of transformers", lambda: _fit(make_pipeline(StandardScaler(), MinMaxScaler()))),
    Case("Pipeline that ends with passthrough", lambda: _fit(Pipeline([("a", StandardScaler()), ("b", "passthrough")]))),
    Case("Pipeline that ends with None", lambda: _fit(Pipeline([("a", StandardScaler()), ("b", None)]))),
    Case("Pipeline nested, with steps that do nothing", _nested),
    Case("Pipeline of nothing", lambda: _fit(Pipeline([("a", "passthrough")])), sample=True),
    Case("FeatureUnion", _union),
    Case("FeatureUnion weights", lambda: _union(transformer_weights={"scale": 0.5, "same": 3})),
    Case("FeatureUnion transform", lambda: _fit(FeatureUnion([("a", StandardScaler()), ("b", "passthrough")]))),
    Case("ColumnTransformer lists", lambda: _columns_of([2, 0], [1])),
    Case("ColumnTransformer slices", lambda: _columns_of(slice(0, 2), slice(3, None), remainder="passthrough")),
    Case("ColumnTransformer masks", lambda: _columns_of([True, False, False, True], np.array([False, True, False, False]))),
    Case("ColumnTransformer callables", lambda: _columns_of(lambda X: [0, 3], lambda X: [1], [2])),
    Case("ColumnTransformer negative", lambda: _columns_of([-1], [-2, 0], remainder="passthrough")),
    Case("ColumnTransformer column twice", lambda: _columns_of([0, 1], [1, 0], [0], [3])),
    Case("ColumnTransformer empty columns", lambda: _columns_of([], [False] * 4, [0, 1])),
    Case("ColumnTransformer remainder estimator", lambda: _columns_of([1, 2], remainder=StandardScaler())),
    Case(
        "ColumnTransformer weights",
        lambda: _columns_of([0], [1], [2], remainder="passthrough", transformer_weights=WEIGHTS),
    ),
    Case("ColumnTransformer nested", lambda: _columns([("a", ColumnTransformer([("b", StandardScaler(), [1])]), [2, 3])])),
    Case("ColumnTransformer frame by name", _numeric_frame),
    Case("ColumnTransformer frame in order", lambda: _numeric_frame(by_name=False)),
    Case("ColumnTransformer frame with strings and missing values", _adult),
    Case("ColumnTransformer frame with an unseen category", lambda: _adult(_unseen)),
    Case("ColumnTransformer frame, columns in another order", lambda: _adult(lambda frame: frame[frame.columns[::-1]])),
    Case(
        "ColumnTransformer frame, ordinal",
        lambda: _adult(encoder=OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)),
    ),
    Case("ColumnTransformer frame, selectors", _adult_selector),
    Case("ColumnTransformer frame, remainder and weights", _adult_remainder),
    Case("ColumnTransformer strings between steps", _adult_strings_between),
    Case("ColumnTransformer object array", _adult_array),
    Case("GridSearchCV", lambda: _search(GridSearchCV)),
    Case("GridSearchCV of a transformer", _search_transformer),
    Case("RandomizedSearchCV", lambda: _search(RandomizedSearchCV, n_iter=2, random_state=0)),
    Case("HalvingGridSearchCV", lambda: _search(HalvingGridSearchCV, random_state=0)),
    Case("HalvingRandomSearchCV", lambda: _search(HalvingRandomSearchCV, n_candidates=2, random_state=0)),
    Case("FrozenEstimator", _frozen),
]
