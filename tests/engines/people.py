"""The model that the tests of the engines run: numbers, strings, missing values, and labels that are strings."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc

ROWS = 5_000
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "town": RNG.choice(["Ulm", "Bonn", "Köln"], ROWS),
        "id": np.arange(ROWS),
        "k": RNG.integers(0, 9, ROWS),
        "age": RNG.normal(size=ROWS),
    }
)
"""The model reads age, k and town."""
FRAME.loc[::7, "town"] = None
FRAME.loc[::11, "age"] = np.nan


@functools.cache
def people() -> tuple[Any, Any]:
    """(the source, the compiled model)."""
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "k"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["town"]),
        ]
    )
    labels = np.where(FRAME["k"] + FRAME["age"].fillna(0) + RNG.normal(size=ROWS) > 4, "yes", "no")
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, labels)
    return model, hbc.convert(model, backend="numpy")
