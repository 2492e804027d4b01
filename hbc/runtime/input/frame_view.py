"""`FrameView` reads a frame of any library column by column, as scikit-learn would read it. It goes through narwhals; pandas, polars and
pyarrow have shorter ways in classes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.runtime.input.coded import WORTH_CODES, from_arrow

FEW_ROWS = 64
"""The most rows for which a frame is read row by row. With that many rows, reading by rows and by columns takes the same time."""


class FrameRow(NamedTuple):
    """One row of a frame, of some columns of numbers and some of strings."""

    dtypes: tuple[np.dtype[Any], ...]
    """Of the columns of numbers, as `FrameView.column` returns them: signed integers and floats."""
    numbers: Sequence[int | float]
    texts: Sequence[str | float | None]
    """str, None and NaN, each as `FrameView.column` has it."""


class FrameView:
    """A frame. A column is read only when it is asked for, so that columns that the model does not need may hold anything."""

    pandas = False
    """Whether it is a frame of pandas."""
    untyped = False
    """Whether its columns are Python values, without dtypes of their own."""
    library = "another library"
    """The name of the frame's library, for messages."""
    levels = 1
    """How many levels the names of its columns have."""
    in_parts = False
    """Whether a column of a `part` holds what these rows of the column hold."""
    doubtful: Sequence[int] = ()
    """The columns that were read and are categories of integers, of which one is missing. pandas makes an array of them alone in which the
    missing one is another integer."""
    plain = True
    """Whether its columns can be stacked unchanged. A frame of pandas can if no column has a dtype of pandas' own and no column of bool
    stands beside other dtypes."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.rows = len(frame)

    @cached_property
    def names(self) -> list[Any]:
        return list(self._frame.columns)

    @cached_property
    def width(self) -> int:
        return len(self.names)

    @property
    def header(self) -> Any:
        """The description of the columns that `has_header` compares, for frames of one library: the names, perhaps with dtypes."""
        return self.names

    def has_header(self, header: Any) -> bool:
        return bool(self.names == header)

    def part(self, rows: slice) -> FrameView:
        """Some rows of the frame."""
        return type(self)(self._frame[rows])

    def string_names(self) -> tuple[str, ...] | None:
        """The names if all are strings, None if none is. Raises InvalidInputError for names of both kinds, as scikit-learn does."""
        text = [isinstance(name, str) for name in self.names]
        if any(text) and not all(text):
            kinds = sorted({type(name).__name__ for name in self.names})
            raise InvalidInputError(
                found=f"column names of different types ({', '.join(kinds)})",
                expected="names that are all strings",
                advice="Convert them: X.columns = X.columns.astype(str).",
            )
        return tuple(self.names) if text and all(text) else None

    def names_as_text(self, tuples: bool = False) -> tuple[str, ...]:
        """The names as text. The name of a column of several levels is its levels with spaces between them, as in XGBoost; with `tuples`
        it is written as a tuple, as in CatBoost."""
        joined = self.levels > 1 and not tuples
        return tuple([" ".join(map(str, name)) if joined else str(name) for name in self.names])

    def block(self) -> Array | None:
        """All columns as one matrix if they are numbers of one plain dtype, otherwise None."""
        kinds = set(self._frame.schema.values())
        if len(kinds) != 1 or not next(iter(kinds)).is_numeric():
            return None
        values = np.asarray(self._frame.to_numpy())
        return values if values.dtype.kind in "fiu" and values.ndim == 2 else None

    def coded(self, index: int) -> tuple[Array, Array] | None:
        """(codes, values) of a column of strings, as CodedStrings takes them, if its library hands it over in Arrow's form. None for other
        columns, and for fewer than WORTH_CODES rows."""
        import narwhals.stable.v2 as nw

        if self.rows < WORTH_CODES:
            return None
        series = self._series(index)
        if series.implementation.is_pandas_like():
            return None  # objects may be None, NaN or NA, which scikit-learn tells apart
        own = (nw.String,) if series.implementation.is_pyarrow() else (nw.String, nw.Categorical, nw.Enum)
        return from_arrow(series.to_arrow, None) if series.dtype in own else None

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        """The dtype in which numpy's functions compute with a column of a dtype of pandas' own (Int8: int8), while `column` may return
        float64. object if they cannot compute with it. None for columns of numpy's dtypes."""
        return None

    def holds_na(self, index: int) -> bool:
        """Whether pandas.NA is in a column."""
        return False

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        """The dtype of a column if it is in `no_numbers`, the dtypes that a source
        library does not take as numbers (Frames.no_numbers). Otherwise ""."""
        return ""

    def categorical(self, index: int) -> Any:
        """The pandas.Categorical of a column of categories. None for other columns."""
        return None

    def dictionary(self, index: int) -> list[Any] | None:
        """The categories of a column of categories, whether they stand there or not. None for other columns, and if they are not known."""
        return None

    def cells(self, index: int) -> Sequence[Any]:
        """The Python values of a column, of an untyped frame."""
        raise NotImplementedError

    def categories(self) -> tuple[int, ...]:
        """The number of categories of each categorical column of pandas, in order; -1 for a column whose categories are not the integers
        from 0 on."""
        return ()

    def _series(self, index: int) -> Any:
        return self._frame.get_column(self.names[index])

    def column(self, index: int) -> Array:
        """The values of one column: numbers in their own dtype (float64 if some are missing), or objects."""
        return series_values(self._series(index), f"X, column {self.names[index]!r}")

    def row(self, numbers: Sequence[int], texts: Sequence[int]) -> FrameRow | None:
        """The values of these columns of a frame of one row, all at once. None where some are of other dtypes, or missing among numbers
        that may not be: then columns are read one by one."""
        return None

    def integers(self, index: int) -> Array | None:
        """The integers of a column that `column` reads as float64, since some may be missing; 0 for those. None for other columns."""
        return None

    def whole_numbers(self, index: int) -> Array | None:
        """The values of a column of integers or bool as int64 or uint64, which `column` reads as float64 if the dtype can hold missing
        values. None for other columns, and if some values are missing."""
        series = self._series(index)
        if not (series.dtype.is_integer() or str(series.dtype) == "Boolean") or series.null_count():
            return None
        return np.array(series.to_list(), np.uint64 if str(series.dtype).startswith("U") else np.int64)


def series_values(series: Any, where: str) -> Array:
    """The values of a narwhals series as scikit-learn would read it. Raises InvalidInputError for lists, 128-bit integers, and missing
    values in a pyarrow dictionary."""
    import narwhals.stable.v2 as nw

    if series.implementation.is_pyarrow() and series.dtype in (nw.Categorical, nw.Enum) and series.null_count():
        # pyarrow's own conversion, and so scikit-learn, turns a missing value into some other category.
        raise InvalidInputError(
            found="missing values in a dictionary column of pyarrow",
            expected="strings",
            where=where,
            advice="Decode the column: pyarrow.compute.cast(column, pyarrow.string()).",
        )
    if series.dtype in (nw.Int128, nw.UInt128):
        advice = "Convert the column to Int64 or Float64."
        raise InvalidInputError(found=f"integers of 128 bits ({series.dtype})", expected="numbers", where=where, advice=advice)
    values: Array = np.asarray(series.to_numpy())
    if series.implementation.is_pyarrow() and str(series.to_native().type) == "null":
        return np.full(len(values), None, object)  # most estimators read None as NaN, but not all
    if values.dtype == object and series.dtype == nw.Boolean and series.implementation.is_pandas_like():
        missing = np.asarray(series.is_null().to_numpy(), bool)
        values = np.array([np.nan if gone else value for gone, value in zip(missing, values, strict=True)], np.float64)
    if series.implementation.is_pandas_like() and values.dtype.kind in "fiub":
        nullable = hasattr(series.to_native().dtype, "na_value")
        if nullable and series.dtype not in (nw.Categorical, nw.Unknown):
            values = values.astype(np.float64)  # check_array reads pandas' nullable dtypes as float64, Float32 too
    if values.ndim != 1:
        raise InvalidInputError(found="lists", expected="numbers or strings", where=where)
    return values


def duplicates(names: str) -> InvalidInputError:
    return InvalidInputError(
        found=f"two columns of one name ({names})",
        expected="different column names",
        advice="Rename them, or pass X.to_numpy().",
    )
