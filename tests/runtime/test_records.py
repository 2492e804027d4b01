"""Single records, many records and columns: the answers and the errors of the frame that they stand for, and of the source."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from estimators import all_cases

import hbc

pytestmark = pytest.mark.filterwarnings("ignore")

CASES = {case.name: case for case in all_cases()}


def outcome(call: Any) -> Any:
    """What a call returns, or the words of the error that it raises."""
    try:
        return call()
    except hbc.HbcError as error:
        return str(error)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    elif isinstance(expected, str):
        assert found == expected
    else:
        dense = [x.toarray() if scipy.sparse.issparse(x) else np.asarray(x) for x in (found, expected)]
        assert dense[0].dtype == dense[1].dtype
        np.testing.assert_array_equal(*dense)


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
        return
    dense = [x.toarray() if scipy.sparse.issparse(x) else np.asarray(x) for x in (found, expected)]
    if dense[1].dtype.kind == "f":
        np.testing.assert_allclose(*dense, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(*dense)


def frame_of(model: Any, records: list[Any]) -> pd.DataFrame:
    """The frame that records stand for: None among numbers is NaN."""
    columns = model.schema.columns
    numbers = {column.name if column.name is not None else i for i, column in enumerate(columns) if column.dtype != "str"}
    if not isinstance(records[0], dict):
        names = [column.name if column.name is not None else i for i, column in enumerate(columns)]
        records = [dict(zip(names, record, strict=True)) for record in records]
    return pd.DataFrame(
        [{k: float("nan") if v is None and k in numbers else v for k, v in record.items()} for record in records]
    )


def tabular(X: Any) -> bool:
    return isinstance(X, pd.DataFrame) or (isinstance(X, np.ndarray) and X.ndim == 2)


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_the_frame_of_it(name: str) -> None:
    """Rows of every kind of table, each twice: the first time a record goes the way of a frame, the second time its own."""
    case = CASES[name]
    model, X = case.make()
    if not tabular(X):
        pytest.skip("no table")
    compiled = hbc.convert(model, "numpy", X if case.sample else None)
    records = X[:6].to_dict("records") if isinstance(X, pd.DataFrame) else [tuple(row) for row in X[:6].tolist()]
    for method in compiled.methods:
        if method in case.options or method.startswith("staged"):
            continue
        handle = compiled.bind_record(method)
        call = compiled._calls[method]
        for record in records * 2:
            frame = frame_of(compiled, [record])
            found = outcome(partial(handle, record))
            assert_equal(found, outcome(partial(call, frame)))
            if not isinstance(found, str) and hasattr(model, method):
                try:
                    expected = getattr(model, method)(frame)
                except Exception:
                    continue  # what the source refuses of frames only, hbc may take
                assert_close(found, expected)
        assert_equal(outcome(partial(handle.rows, records)), outcome(partial(call, frame_of(compiled, records))))
