"""The schema of a model: its columns and results, as its source has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from backends import BACKENDS
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC

import hbc

BACKEND = "torch" if "torch" in BACKENDS else "numpy"
PEOPLE = pd.DataFrame(
    {
        "age": [31.0, 24.0, np.nan, 45.0],
        "town": ["Ulm", "Bonn", "Ulm", "Bonn"],
        "job": pd.Series(["cook", None, "clerk", "cook"], dtype=object),
        "rooms": [1, 2, 3, 2],
        "spare": ["a", "b", "c", "d"],
    }
)


def people() -> Any:
    steps = make_column_transformer(
        (SimpleImputer(), ["age"]),
        (OneHotEncoder(), ["town", "job"]),
        (OneHotEncoder(handle_unknown="ignore"), ["rooms"]),
    )
    return make_pipeline(steps, LogisticRegression()).fit(PEOPLE, ["no", "yes", "yes", "no"])


def test_columns(tmp_path: Path) -> None:
    compiled = hbc.convert(people(), BACKEND, PEOPLE)
    found = {column.name: column for column in compiled.schema.columns}
    assert [(column.kind, column.categories, column.required) for column in found.values()] == [
        ("number", None, True),
        ("category", ("Bonn", "Ulm"), True),
        ("category", ("clerk", "cook"), True),
        ("category", (1, 2, 3), True),
        ("unread", None, False),
    ]
    assert [column.dtype for column in found.values()][1:3] == ["str", "str"]
    compiled.save(tmp_path / "model.hbc")
    assert hbc.load(tmp_path / "model.hbc").schema == compiled.schema
    assert json.loads(json.dumps(compiled.schema.json()))["columns"][2]["categories"] == ["clerk", "cook"]


def test_missing_values_are_allowed_where_the_model_takes_them() -> None:
    """As a record with None there says, and as the source does."""
    compiled = hbc.convert(people(), BACKEND, PEOPLE)
    score, record = compiled.bind_record("predict"), {"age": 3.0, "town": "Ulm", "job": "cook", "rooms": 1}
    for column in compiled.schema.columns[:4]:
        missing = {**record, column.name: None}
        if column.allows_missing:
            assert score(missing).shape == (1,)
        else:
            with pytest.raises(hbc.InvalidInputError):
                score(missing)
    assert [column.allows_missing for column in compiled.schema.columns] == [True, False, True, True, True]


def test_missing_strings_are_what_the_model_was_fitted_with() -> None:
    """NaN for one that knows NaN, None for one that knows None: alone, and among others."""
    for missing in (np.nan, None):
        words = pd.DataFrame({"word": pd.Series(["a", "b", missing, "a"], dtype=object)})
        model = OrdinalEncoder(encoded_missing_value=-5).fit(words)
        score = hbc.convert(model, BACKEND, words).bind_record("transform")
        expected = model.transform(words)
        records = [{"word": None if word is missing else word} for word in words["word"]]
        np.testing.assert_array_equal(score.rows(records), expected)
        for row, record in enumerate(records * 2):
            np.testing.assert_array_equal(score(record), expected[row % 4 : row % 4 + 1])


def outputs() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = np.arange(40) % 3
    return {
        "labels": (LogisticRegression().fit(X, np.array(["no", "yes", "well"])[y]), X),
        "targets": (RandomForestClassifier(2, max_depth=2).fit(X, np.stack([y, y > 0], axis=1)), X),
        "numbers": (LinearRegression().fit(X, np.stack([y, y], axis=1)), X),
        "several arrays": (NearestNeighbors(n_neighbors=2).fit(X), X),
        "a frame": (
            StandardScaler().set_output(transform="pandas").fit(pd.DataFrame(X, columns=list("abc"))),
            pd.DataFrame(X, columns=list("abc")),
        ),
    }


@pytest.mark.parametrize("name", ["labels", "targets", "numbers", "several arrays", "a frame"])
def test_outputs_are_those_of_the_methods(name: str) -> None:
    model, X = outputs()[name]
    compiled = hbc.convert(model, BACKEND, X)
    for method, output in compiled.schema.outputs.items():
        found = getattr(compiled, method)(X)
        parts = found if isinstance(found, (list, tuple)) else [found]
        assert len(parts) == 1 + len(output.more)
        for part, said in zip(parts, (output, *output.more), strict=True):
            values = np.asarray(part)
            assert values.dtype == np.dtype(said.dtype)
            assert values.shape[1:] == said.shape
    said = compiled.schema.outputs
    if name == "labels":
        assert said["predict_proba"].names == said["predict"].classes == tuple(model.classes_)
    if name == "targets":
        assert said["predict"].classes == ((0, 1, 2), (0, 1))
    if name == "a frame":
        assert said["transform"].names == ("a", "b", "c")


def test_models_of_text_and_without_names() -> None:
    words = ["a cat sat", "the dog ran", "a dog sat"]
    text = hbc.convert(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(words, [0, 1, 1]), BACKEND)
    assert [(column.kind, column.dtype) for column in text.schema.columns] == [("document", None)]
    numbers = hbc.convert(LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0]), BACKEND)
    assert [(column.name, column.allows_missing) for column in numbers.schema.columns] == [(None, False)] * 3


def test_only_columns_of_single_classes_are_named() -> None:
    """Three columns of `decision_function` can be the three pairs of three classes. Columns of several labels have classes each."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    pairs = hbc.convert(SVC(decision_function_shape="ovo").fit(X, np.arange(60) % 3), backend="numpy").schema.outputs
    assert pairs["decision_function"].shape == (3,)
    assert pairs["decision_function"].names is None
    labels = ClassifierChain(LogisticRegression()).fit(X, X[:, :2] > 0)
    assert hbc.convert(labels, backend="numpy").schema.outputs["predict_proba"].names is None
