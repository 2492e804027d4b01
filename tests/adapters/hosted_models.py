"""Two models that the adapters host: of a matrix of numbers, and of a frame with strings, whose labels are strings too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype("float32")
FRAME = pd.DataFrame(
    {
        "age": rng.integers(20, 60, 60).astype(float),
        "town": rng.choice(["Köln", "Ulm", "Bonn"], 60),
        "fare": X[:, 0].astype(float),
    }
)
NUMBERS = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)).fit(X, X[:, 0] > 0)
MIXED = make_pipeline(
    make_column_transformer((StandardScaler(), ["age", "fare"]), (OneHotEncoder(), ["town"])), LogisticRegression()
).fit(FRAME, np.where(X[:, 0] > 0, "yes", "no"))


def saved(folder: Path, which: str) -> Path:
    """The file of the model "numbers" or "mixed", written into a folder."""
    path = folder / "model.hbc"
    if which == "numbers":
        hbc.convert(NUMBERS, "numpy", X).save(path)
    else:
        hbc.convert(MIXED, "numpy", FRAME).save(path)
    return path


def records(rows: int) -> list[dict[str, Any]]:
    """The first rows of the frame as records."""
    return FRAME[:rows].to_dict("records")


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=1e-5, atol=1e-6)
