"""Tables that are no frames, though they stand for one: records, dicts of columns, batches of pyarrow, and sparse columns of pandas."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hbc.errors import InvalidInputError
from hbc.ir.signature import InputSpec
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame
from hbc.runtime.input.pandas_frame import has_sparse_columns
from hbc.runtime.sparse import is_sparse

ONE_ROW = "For one row pass a list with the dict, [X]."


def as_frame(X: Any) -> Any:
    """The frame that X stands for, or X itself: pandas.DataFrame(X) of a list of dicts (records) or a dict of columns, the table of a
    batch of pyarrow, all rows of a reader. Raises InvalidInputError for a dict of single values, and without pandas."""
    if isinstance(X, list):
        records = X and type(X[0]) is not list and isinstance(X[0], Mapping)
        return _of_records(X) if records else X
    if isinstance(X, Mapping) and not is_sparse(X):  # a dok_matrix is a dict
        return _of_columns(X)
    name = type(X).__name__
    if name.startswith("RecordBatch") and type(X).__module__.startswith("pyarrow"):
        return X.read_all() if hasattr(X, "read_all") else sys.modules["pyarrow"].Table.from_batches([X])
    return X


def _of_columns(X: Mapping[Any, Any]) -> Any:
    single = [name for name, values in X.items() if isinstance(values, (str, bytes)) or not hasattr(values, "__len__")]
    if single or not X:
        found = (
            f"a dict whose value of {single[0]!r} is a single one ({X[single[0]]!r:.40})"
            if single
            else "a dict without columns"
        )
        raise InvalidInputError(found=found, expected="a column of values for each name", advice=ONE_ROW)
    return pandas_frame(dict(X))


def _of_records(X: list[Any]) -> Any:
    other = next((row for row, record in enumerate(X) if not isinstance(record, Mapping)), None)
    if other is not None:
        raise InvalidInputError(found=f"a list of dicts with a {type(X[other]).__name__} in row {other}", expected="dicts only")
    return pandas_frame([dict(record) for record in X])


def pandas_frame(X: Any) -> Any:
    """pandas.DataFrame(X). No other library will do: what stands for a missing value must be what the source has seen in fit."""
    kind = "a dict of columns" if isinstance(X, dict) else "a list of dicts"
    try:
        import narwhals.stable.v2 as nw  # which a folder of `hbc runtime` does not have

        pandas: Any = nw.Implementation.PANDAS.to_native_namespace()
    except ImportError as error:
        advice = "Install pandas, which makes a frame of it, or pass rows: [[record[name] for name in names] for record in X]."
        raise InvalidInputError(
            found=f"{kind}, and no pandas", expected="pandas, an array or a list of rows", advice=advice
        ) from error
    try:
        return pandas.DataFrame(X)
    except (ValueError, TypeError) as error:
        advice = "" if isinstance(error, UnicodeError) else "Give every column the same number of rows."
        raise InvalidInputError(found=f"{kind} that is no frame ({error})", expected="a table", advice=advice) from error


def without_sparse_columns(X: Any, spec: InputSpec, positions: Callable[[FrameView], Sequence[int]]) -> Any:
    """A frame of pandas as the source reads it if it has sparse columns; otherwise X itself. scikit-learn makes a sparse matrix of a frame
    of them, and dense columns if there are others beside; it misses the dtype, and reads float64. LightGBM and XGBoost make dense ones.
    `positions` tests the names. Raises InvalidInputError if an estimator picks columns: each part would be read differently."""
    if type(X).__name__ != "DataFrame" or type(X).__module__.partition(".")[0] != "pandas" or not has_sparse_columns(X):
        return X
    subtypes = {name: dtype.subtype for name, dtype in X.dtypes.items() if type(dtype).__name__ == "SparseDtype"}
    if spec.frames.by_column:
        raise InvalidInputError(
            found="sparse columns",
            expected="dense ones, since the source reads the columns that it picks as a sparse matrix or as a dense one",
            where=f"X, column {next(iter(subtypes))!r}",
            advice="Pass X.astype({column: X[column].dtype.subtype}) for them.",
        )
    if spec.frames.validated or spec.frames.stacked:
        advice = "One estimator reads them as a sparse matrix, another as dense columns: X.sparse.to_dense()."
        raise InvalidInputError(found="sparse columns", expected="dense ones", advice=advice)
    if spec.frames.no_numbers:  # LightGBM, XGBoost and CatBoost, which have dtypes of frames that they refuse
        return X.astype(subtypes)
    if len(subtypes) < X.shape[1]:
        return X.astype({name: float for name, dtype in X.dtypes.items() if dtype.kind in "fiub"})
    if any(subtype.kind == "b" for subtype in subtypes.values()):
        advice = "scikit-learn does not convert a sparse matrix of them: pass X.sparse.to_dense()."
        raise InvalidInputError(found="sparse columns of bool", expected="sparse columns of numbers", advice=advice)
    view = read_frame(X)
    if isinstance(view, FrameView):
        positions(view)
    try:
        return X.sparse.to_coo().astype(float)
    except ValueError as error:
        advice = "scikit-learn makes a sparse matrix of them, in which 0 is left out: pass X.sparse.to_dense()."
        raise InvalidInputError(
            found=f"sparse columns ({error})", expected="columns that leave out 0", advice=advice
        ) from error
