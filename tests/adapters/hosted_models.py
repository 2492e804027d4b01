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


LISTS: dict[str, tuple[str, list[int], list[Any], str]] = {
    "whole": ("INT64", [1], [2.5], "found 2.5 in the data of INT64, expected integers"),
    "small": ("UINT8", [1], [300], "found 300 in the data of UINT8, expected integers from 0 to 255"),
    "large": ("INT64", [1], [10**30], "found 10+ in the data of INT64, expected integers"),
    "larger": ("FP64", [1], [10**400], "found an integer that is too large for FP64"),
    "numeral": ("FP64", [1], ["31"], "found '31' in the data of FP64, expected numbers"),
    "null": ("INT64", [1], [None], "found null in the data of INT64, expected integers"),
    "number": ("BYTES", [1], [3], "found 3 in the data of BYTES, expected strings"),
    "bytes": ("BYTES", [1], [b"\xff"], "found bytes that are no UTF-8 text"),
    "few": ("FP64", [3], [1.0], r"found 1 value, expected 3 for the shape \[3\]"),
    "negative": ("FP64", [-1], [1.0], r"found the shape \[-1\]"),
}
"""Lists that are no tensors: (datatype, shape, values, what is said). numpy makes 2 of 2.5, and 31.0 of "31"."""
