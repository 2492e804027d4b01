"""Frames of every library (pandas, polars, pyarrow, …) through narwhals, column by column, as scikit-learn would read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array


class Table:
    """A frame. A column is read when it is asked for, so that columns nobody needs may hold anything."""

    def __init__(self, frame: Any) -> None:
        import narwhals.stable.v2 as nw

        self._nw = nw
        self._frame = frame
        self.names: list[Any] = list(frame.columns)
        self.rows = len(frame)
        self._pandas = frame.implementation.is_pandas_like()
        self._pyarrow = frame.implementation.is_pyarrow()

    def string_names(self) -> tuple[str, ...] | None:
        """The names, where all are strings. Mixed with others they are an error, as in scikit-learn."""
        text = [isinstance(name, str) for name in self.names]
        if any(text) and not all(text):
            kinds = sorted({type(name).__name__ for name in self.names})
            raise InvalidInputError(
                found=f"column names of different types ({', '.join(kinds)})",
                expected="names that are all strings",
                advice="Convert them: X.columns = X.columns.astype(str).",
            )
        return tuple(self.names) if text and all(text) else None

    def block(self) -> Array | None:
        """All columns as one matrix, where they are numbers of one plain dtype."""
        if self._pandas:
            # 20 µs for 30 columns, where narwhals' schema takes 330.
            native = self._frame.to_native()
            dtypes = set(native.dtypes.tolist())
            plain = len(dtypes) == 1 and all(isinstance(dtype, np.dtype) and dtype.kind in "fiu" for dtype in dtypes)
            return np.asarray(native.to_numpy()) if plain else None
        kinds = set(self._frame.schema.values())
        if len(kinds) != 1 or not next(iter(kinds)).is_numeric():
            return None
        values = np.asarray(self._frame.to_numpy())
        return values if values.dtype.kind in "fiu" and values.ndim == 2 else None

    def column(self, index: int) -> Array:
        """One column: numbers in their own dtype (float64 where some are missing), or objects."""
        return self._values(self._frame.get_column(self.names[index]), f"X, column {self.names[index]!r}")

    def _values(self, series: Any, where: str) -> Array:
        nw = self._nw
        if self._pyarrow and series.dtype in (nw.Categorical, nw.Enum) and series.null_count():
            # pyarrow's own conversion, and so scikit-learn, takes a missing value for some other category.
            raise InvalidInputError(
                found="missing values in a dictionary column of pyarrow",
                expected="strings",
                where=where,
                advice="Decode the column: pyarrow.compute.cast(column, pyarrow.string()).",
            )
        values: Array = np.asarray(series.to_numpy())
        if values.dtype == object and series.dtype == nw.Boolean:
            missing = np.asarray(series.is_null().to_numpy(), bool)
            values = np.array([np.nan if gone else value for gone, value in zip(missing, values, strict=True)], np.float64)
        nullable = self._pandas and values.dtype.kind in "fiub" and hasattr(series.to_native().dtype, "na_value")
        if nullable and series.dtype not in (nw.Categorical, nw.Unknown):
            values = values.astype(np.float64)  # check_array reads pandas' nullable dtypes as float64, float32 too
        if values.ndim != 1:
            raise InvalidInputError(found="lists", expected="numbers or strings", where=where)
        return values


def read_frame(X: Any) -> Table | Array | None:
    """A Table for a frame, the values of a series, None for anything else."""
    import narwhals.stable.v2 as nw

    if type(X).__module__.startswith("narwhals.") and hasattr(X, "to_native"):
        X = X.to_native()
    try:
        frame = nw.from_native(X, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise InvalidInputError(
            found=f"two columns of one name ({_first_line(error)})",
            expected="different column names",
            advice="Rename them, or pass X.to_numpy().",
        ) from error
    if isinstance(frame, nw.LazyFrame):
        raise InvalidInputError(found="a lazy frame", expected="a frame with values", advice="Call X.collect() first.")
    if isinstance(frame, nw.DataFrame):
        return Table(frame)
    if isinstance(frame, nw.Series):
        return Table(frame.to_frame()).column(0)
    return None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
