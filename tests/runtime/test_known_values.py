"""The categories in a model's schema are values that its encoders know of the column itself: numbers too, but no codes and no bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

import hbc

rng = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": rng.integers(20, 60, 80).astype(float),
        "town": rng.choice(["Köln", "Ulm", "Bonn"], 80),
        "class": rng.choice([1, 2, 3], 80),
        "size": rng.normal(size=80),
        "step": rng.choice([1.5, 2.5], 80),
    }
)
TARGET = np.where(FRAME["age"] + 10 * FRAME["class"] > 60, "yes", "no")
TOWNS, CLASSES, STEPS = ("Bonn", "Köln", "Ulm"), (1, 2, 3), (1.5, 2.5)

CASES: list[tuple[Any, dict[str, Any]]] = [
    ((OneHotEncoder(handle_unknown="ignore"), ["town", "class"]), {"town": TOWNS, "class": CLASSES}),
    ((OneHotEncoder(), ["class", "step"]), {"class": CLASSES, "step": STEPS}),
    (
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["class", "step"]),
        {"class": CLASSES, "step": STEPS},
    ),
    ((make_pipeline(SimpleImputer(), OneHotEncoder(handle_unknown="ignore")), ["step"]), {"step": STEPS}),
    ((make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["town"]), {"town": TOWNS}),
    (
        (make_pipeline(OrdinalEncoder(), OneHotEncoder(handle_unknown="ignore")), ["class", "town"]),
        {"town": TOWNS, "class": CLASSES},
    ),
    ((make_pipeline(StandardScaler(), OneHotEncoder(handle_unknown="ignore")), ["step"]), {}),
    ((KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"), ["size"]), {}),
    ((TargetEncoder(), ["town"]), {"town": TOWNS}),
]


@pytest.mark.every_case
@pytest.mark.parametrize("case", range(len(CASES)))
def test_categories_are_values_of_the_column(case: int) -> None:
    step, known = CASES[case]
    model = make_pipeline(make_column_transformer((StandardScaler(), ["age"]), step), LogisticRegression()).fit(FRAME, TARGET)
    for sample in (FRAME, None):  # without a sample, numbers are float32, which an encoder of float64 casts
        columns = hbc.convert(model, "numpy", sample).schema.columns
        assert {column.name: column.categories for column in columns if column.categories} == known
        assert all((column.kind == "category") == (column.name in known) for column in columns)


def test_columns_of_an_array() -> None:
    X = FRAME[["class"]].to_numpy()
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(X, TARGET)
    (column,) = hbc.convert(model, "numpy", X).schema.columns
    assert (column.name, column.categories) == (None, CLASSES)
