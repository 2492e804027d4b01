"""Pipelines, unions, column transformers and searches that are refused. One error names every culprit with its path."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.cluster import DBSCAN
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import hbc

X = np.random.default_rng(0).normal(size=(30, 4))
Y = (X.sum(axis=1) > 0).astype(int)


class Halve(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X / 2


class Scaler(StandardScaler):
    def transform(self, X, copy=None):
        return super().transform(X) + 1


class Model(LinearRegression):
    pass


def culprits(model):
    with pytest.raises(hbc.UnsupportedOperatorError) as caught:
        hbc.convert(model, "numpy")
    return [(culprit.operator.rpartition(".")[2], culprit.path) for culprit in caught.value.culprits]


def test_every_culprit_of_a_pipeline_is_named() -> None:
    """Culprits are named also behind a refused transformer whose output width is not known."""
    inner = FeatureUnion([("good", MinMaxScaler()), ("bad", Scaler())])
    model = Pipeline([("half", Halve()), ("union", inner), ("none", None), ("model", Model())]).fit(X, Y)
    assert culprits(model) == [
        ("Halve", "model.steps[0] 'half'"),
        ("Scaler", "model.steps[1] 'union'.transformer_list[1] 'bad'"),
        ("Model", "model.steps[3] 'model'"),
    ]


def test_every_culprit_of_a_column_transformer_is_named() -> None:
    parts = [("a", Halve(), [0]), ("b", StandardScaler(), [1]), ("c", make_pipeline(MinMaxScaler(), Scaler()), [2, 3])]
    model = GridSearchCV(make_pipeline(ColumnTransformer(parts), LinearRegression()), {}, cv=2).fit(X, Y)
    path = "model.best_estimator_.steps[0] 'columntransformer'"
    assert culprits(model) == [
        ("Halve", f"{path}.transformers[0] 'a'"),
        ("Scaler", f"{path}.transformers[2] 'c'.steps[1] 'scaler'"),
    ]


@pytest.mark.parametrize("last", [KernelDensity(), DBSCAN()])
def test_a_last_step_without_predict_is_named(last: BaseEstimator) -> None:
    name = type(last).__name__
    assert culprits(make_pipeline(StandardScaler(), last).fit(X)) == [(name, f"model.steps[1] {name.lower()!r}")]


def test_search_without_refit_is_refused() -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match="refit=False"):
        hbc.convert(GridSearchCV(LogisticRegression(), {}, refit=False, cv=2).fit(X, Y), "numpy")


def test_transformer_without_columns_is_refused() -> None:
    with pytest.raises(hbc.UnsupportedOperatorError, match="no columns"):
        hbc.convert(ColumnTransformer([("a", "drop", [0, 1])]).fit(X), "numpy")


def test_strings_beside_numbers_are_refused() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "name": ["a", "b"]})
    model = ColumnTransformer([("scale", StandardScaler(), ["x"]), ("same", "passthrough", ["name"])]).fit(frame)
    with pytest.raises(hbc.UnsupportedOperatorError, match="strings beside numbers"):
        hbc.convert(model, "numpy", frame)


@pytest.mark.parametrize(
    "model",
    [make_pipeline(StandardScaler(), LogisticRegression()), GridSearchCV(LogisticRegression(), {}), ColumnTransformer([])],
    ids=["pipeline", "search", "columns"],
)
def test_unfitted_is_an_error(model) -> None:
    with pytest.raises(hbc.NotFittedError):
        hbc.convert(model, "numpy")


def test_pipeline_has_the_methods_of_its_class_only() -> None:
    """A pipeline has no `apply`, though its last step may have one; a plain column transformer has `transform` alone."""
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    compiled = hbc.convert(model, "numpy")
    assert set(compiled.graph.outputs) == {"predict", "predict_proba", "predict_log_proba", "decision_function"}
    columns = hbc.convert(ColumnTransformer([("a", StandardScaler(), [0])]).fit(X), "numpy")
    assert set(columns.graph.outputs) == {"transform"}


def test_object_labels_that_are_not_of_one_kind_are_refused() -> None:
    model = LogisticRegression().fit(X, Y)
    model.classes_ = np.array(["a", 1], dtype=object)
    with pytest.raises(hbc.UnsupportedOperatorError, match="int and str"):
        hbc.convert(model, "numpy")


def test_labels_that_are_bytes_are_refused() -> None:
    model = LogisticRegression().fit(X, Y)
    model.classes_ = model.classes_.astype("S")
    with pytest.raises(hbc.UnsupportedOperatorError, match="S21"):
        hbc.convert(model, "numpy")


def test_sample_in_another_order_with_other_columns() -> None:
    """A column transformer's sample is matched by name, like its input: dtypes belong to names, not to places."""
    frame = pd.DataFrame(X, columns=list("abcd")).astype({"b": np.float32})
    model = ColumnTransformer([("a", StandardScaler(), ["b"]), ("same", "passthrough", ["d"]), ("gone", "drop", ["c"])])
    model.fit(frame)
    given = frame[["d", "b", "a"]].assign(more="text")
    compiled = hbc.convert(model, "numpy", given)
    np.testing.assert_array_equal(compiled.transform(given), model.transform(given), strict=True)


def test_a_block_without_columns_still_rejects():
    """An encoder that drops its only category gives no column, but it still rejects unknown categories."""
    data = np.column_stack([np.zeros(20), np.arange(20.0)])
    model = ColumnTransformer([("c", OneHotEncoder(drop="first"), [0]), ("x", StandardScaler(), [1])]).fit(data)
    compiled = hbc.convert(model, "numpy")
    np.testing.assert_array_equal(compiled.transform(data), model.transform(data))
    with pytest.raises(hbc.InvalidInputError, match="categories"):
        compiled.transform(data + 1.0)
