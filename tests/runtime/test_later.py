"""Inputs that are read a few rows at a time hold what the whole input holds, or reading them fails, as reading the whole does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from test_estimators import CASES as ALL_CASES
from test_estimators import converted

import hbc
from hbc.ir.coded_strings import CodedStrings, dense
from hbc.ir.later import Later, part_of, read

WORDS = ("string", "categor", "encod", "None", "text", "CatBoost", "ColumnTransformer", "object", "?")
CASES = {name: case for name, case in ALL_CASES.items() if any(word.lower() in name.lower() for word in WORDS)}
STEP = 600
"""Enough rows for codes."""


def longer(X: Any, rows: int) -> Any:
    """The rows of X again and again."""
    places = np.arange(rows) % len(X)
    if isinstance(X, list):
        return [X[i] for i in places]
    return X.iloc[places].reset_index(drop=True) if hasattr(X, "iloc") else X[places]


def forms(X: Any) -> Iterator[Any]:
    """X in other containers, and with a strange value in its last row."""
    yield X
    if isinstance(X, np.ndarray):
        X = pd.DataFrame(X) if X.dtype.kind != "U" else pd.DataFrame(X.astype(object))
        yield X.to_numpy().tolist()
    if not isinstance(X, pd.DataFrame):
        return
    objects = X.astype(object)
    yield objects
    yield objects.to_numpy()
    yield X.astype(dict.fromkeys(X.columns[X.dtypes == X.dtypes.iloc[0]], "category"))
    for change in (lambda X: X.convert_dtypes(), pl.from_pandas, lambda X: pa.Table.from_pandas(X, preserve_index=False)):
        try:
            yield change(X)
        except (TypeError, ValueError, pa.ArrowException, pl.exceptions.PolarsError):
            continue  # of names that are no strings, of mixed columns
    for value in (None, np.nan, pd.NA, 3, "never seen", np.inf, 2**60 + 1, b"x"):
        for column in (0, X.shape[1] - 1):
            odd = objects.copy()
            odd.iloc[-1, column] = value
            yield odd
            yield odd.to_numpy()
    for column in range(min(X.shape[1], 2)):
        odd = objects.copy()
        odd.iloc[:STEP, column] = np.nan
        yield odd
        yield odd.infer_objects()


@pytest.mark.parametrize("name", CASES)
def test_parts_hold_what_the_whole_holds(name: str) -> None:
    _, X, compiled = converted(CASES[name], "numpy")
    intake = next(iter(compiled._calls.values())).shared.intake
    if intake.spec.ndim != 2 or intake.spec.items or not intake.texts or not len(X):
        pytest.skip("no columns of strings")
    for number, given in enumerate(forms(longer(X, 2 * STEP + 100))):
        try:
            frame = intake.frame_of(given)
            kinds, arrays = intake(frame)
        except hbc.InvalidInputError:
            arrays = None
        try:
            frame = intake.frame_of(given)
            found, later = intake(frame, STEP)
            parts = [[part_of(each, i, min(i + STEP, len(each))) for i in range(0, len(each), STEP)] for each in later]
        except hbc.InvalidInputError:
            assert arrays is None or number, "the own input cannot be read in parts"
            continue
        assert arrays is not None, "the whole is rejected, and its parts are not"
        assert found == kinds
        for whole, pieces, each in zip(arrays, parts, later, strict=True):
            joined = np.concatenate([dense(piece) for piece in pieces])
            for other in (joined, dense(read(each))):
                assert other.dtype == whole.dtype
                assert other.flags.c_contiguous
                pd.testing.assert_frame_equal(pd.DataFrame(other), pd.DataFrame(dense(whole)))
            if isinstance(each, Later):
                assert (each.shape, each.dtype, each.ndim) == (whole.shape, whole.dtype, whole.ndim)


def test_a_part_has_no_more_values_than_rows() -> None:
    x = CodedStrings(
        (np.array([3, 0, 3, 2]), np.array([0, 0, 0, 0])), (np.array(list("abcd"), object), np.array(["z"], object))
    )
    part = part_of(x, 0, 3)
    assert [list(values) for values in part.values] == [["a", "d"], ["z"]] or len(part.values[0]) <= 3
    np.testing.assert_array_equal(part.dense(), x.dense()[:3])
