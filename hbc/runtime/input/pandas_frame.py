"""Reads frames of pandas without narwhals, which is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.runtime.input.coded import WORTH_CODES, encoded, from_arrow, of_categories
from hbc.runtime.input.frame_view import FEW_ROWS, FrameRow, FrameView, duplicates

FEW_CATEGORIES = 16
"""The most rows for which a categorical column is read row by row, at
1.5 µs a row. pandas' own conversion takes 10 to 35 µs, narwhals 200."""


class PandasFrame(FrameView):
    """A pandas.DataFrame, read without narwhals. A column takes 1 µs. Through narwhals it takes 80 µs, and a frame of one row with 16
    columns takes longer to read than to score."""

    pandas = True
    in_parts = True
    library = "pandas"

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._columns = frame.columns
        self.levels = frame.columns.nlevels
        self.width = len(self._columns)
        self.rows = len(frame)
        # pandas keeps columns of one dtype together in blocks, which are ndarrays or arrays of its own. `_place` is the block and the row
        # in the block of each column. A public way to a column takes at least 11 µs, pandas' own private one 0.5, this one 0.1.
        try:
            manager = frame._mgr
            self._blocks = [block.values for block in manager.blocks]
            self._place = list(zip(manager.blknos.tolist(), manager.blklocs.tolist(), strict=True))
        except AttributeError:
            self._blocks = [frame.iloc[:, index].array for index in range(self.width)]
            self._place = [(index, 0) for index in range(self.width)]

    @cached_property
    def names(self) -> list[Any]:
        names: list[Any] = self._columns.tolist()
        if len(set(names)) < len(names):
            twice = [str(name) for name in self._columns[self._columns.duplicated()]]
            raise duplicates(", ".join(twice[:5]))
        return names

    @cached_property
    def plain(self) -> bool:  # type: ignore[override]
        return (
            all(isinstance(held, np.ndarray) for held in self._blocks)
            and len({held.dtype == bool for held in self._blocks}) < 2
        )

    def part(self, rows: slice) -> PandasFrame:
        return PandasFrame(self._frame.iloc[rows])

    @property
    def header(self) -> Any:
        return self._columns

    def has_header(self, header: Any) -> bool:
        # 0.2 µs if both frames were cut from one. Making a list of 50 names takes 6.
        return bool(self._columns.equals(header))

    def _held(self, index: int) -> Any:
        number, place = self._place[index]
        held = self._blocks[number]
        return held if held.ndim == 1 else held[place]

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        dtype = self._held(index).dtype
        if isinstance(dtype, np.dtype):
            return dtype if dtype.kind == "O" else None
        return np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", object)))

    def integers(self, index: int) -> Array | None:
        held, own = self._held(index), self.own_dtype(index)
        if own is None or own.kind not in "iu":
            return None
        return np.asarray(held.to_numpy(dtype=own, na_value=0))

    def holds_na(self, index: int) -> bool:
        held = self._held(index)
        return type(getattr(held.dtype, "na_value", None)).__name__ == "NAType" and bool(held.isna().any())

    def categorical(self, index: int) -> Any:
        held = self._held(index)
        return held if type(held.dtype).__name__ == "CategoricalDtype" else None

    def dictionary(self, index: int) -> list[Any] | None:
        held = self.categorical(index)
        return None if held is None else list(held.categories)

    def categories(self) -> tuple[int, ...]:  # see FrameView
        held = [self._held(index) for index in range(self.width)]
        known = [list(column.categories) for column in held if type(column.dtype).__name__ == "CategoricalDtype"]
        return tuple([len(each) if each == list(range(len(each))) else -1 for each in known])

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        dtype = self._held(index).dtype
        missing = "pandas.BooleanDtype with NA" in no_numbers and dtype.kind == "b"  # also of Arrow
        return str(dtype) if f"pandas.{type(dtype).__name__}" in no_numbers or (missing and self.holds_na(index)) else ""

    def block(self) -> Array | None:
        dtypes = {values.dtype for values in self._blocks}
        kind = next(iter(dtypes)) if len(dtypes) == 1 else None
        return np.asarray(self._frame.to_numpy()) if isinstance(kind, np.dtype) and kind.kind in "fiu" else None

    def row(self, numbers: Sequence[int], texts: Sequence[int]) -> FrameRow | None:
        # A block of numbers is read once, and its columns are looked up. One by one, 30 columns take 30 µs, and this way 8.
        blocks, place = self._blocks, self._place
        values: dict[int, list[Any]] = {}
        for number in {place[index][0] for index in numbers}:
            held = blocks[number]
            if type(held) is not np.ndarray or held.dtype.kind not in "fi" or held.ndim != 2 or not held.dtype.isnative:
                return None
            values[number] = held[:, 0].tolist()
        found: list[Any] = []
        for index in texts:
            number, at = place[index]
            text = _text(blocks[number], at)
            if text is _UNKNOWN:
                return None
            found.append(text)
        places = [place[index] for index in numbers]
        return FrameRow(
            tuple([blocks[number].dtype for number, _ in places]), [values[number][at] for number, at in places], found
        )

    def coded(self, index: int) -> tuple[Array, Array] | None:
        if self.rows < WORTH_CODES:
            return None
        held = self._held(index)
        kind = type(held.dtype).__name__
        if kind == "CategoricalDtype":
            return of_categories(held)
        if kind == "StringDtype":
            return from_arrow(held.__arrow_array__, held.dtype.na_value)
        return encoded(held) if isinstance(held, np.ndarray) and held.dtype.kind == "O" else None

    def _series(self, index: int) -> Any:
        import narwhals.stable.v2 as nw

        return nw.from_native(self._frame[self.names[index]], series_only=True)

    def column(self, index: int) -> Array:
        number, place = self._place[index]
        held = self._blocks[number]
        if isinstance(held, np.ndarray):
            return held[place]  # type: ignore[no-any-return]
        held = held if held.ndim == 1 else held[place]
        kind = type(held.dtype).__name__
        if kind == "DatetimeTZDtype":  # scikit-learn cannot convert it to floats
            raise InvalidInputError(
                found=f"dates with a time zone ({held.dtype})",
                expected="numbers or strings",
                where=f"X, column {self.names[index]!r}",
                advice="Convert them to numbers first (for example days since a fixed date).",
            )
        if kind == "StringDtype":
            return _few_strings(held) if self.rows <= FEW_ROWS else np.asarray(held)
        if kind == "CategoricalDtype" and _is_text(held.categories.dtype):
            if self.rows <= FEW_CATEGORIES and min(held.codes.tolist(), default=0) >= 0:
                return np.fromiter(map(held.__getitem__, range(self.rows)), object, self.rows)
            return np.asarray(held)
        if kind == "CategoricalDtype" and held.categories.dtype.kind in "iub" and (np.asarray(held.codes) < 0).any():
            self.doubtful = [*self.doubtful, index]
        return np.asarray(held) if isinstance(held.dtype, np.dtype) else super().column(index)


def has_sparse_columns(frame: Any) -> bool:
    """Whether a frame of pandas has sparse columns. Its blocks are asked, since asking for its dtypes makes a Series."""
    try:
        kinds = {type(block.values) for block in frame._mgr.blocks}
    except AttributeError:
        return any(type(dtype).__name__ == "SparseDtype" for dtype in frame.dtypes)
    return any(base.__name__ == "SparseArray" for kind in kinds for base in kind.__mro__)


def _is_text(dtype: Any) -> bool:
    """Whether a dtype of pandas holds strings or any Python objects."""
    return dtype.kind == "O" and (isinstance(dtype, np.dtype) or type(dtype).__name__ == "StringDtype")


_UNKNOWN = object()


def _text(held: Any, at: int) -> Any:
    """The one value of a column of strings in a block, if it is a str, None or NaN. Otherwise _UNKNOWN."""
    if type(held) is np.ndarray:
        value = held[at, 0] if held.dtype.kind == "O" and held.ndim == 2 else _UNKNOWN
        return value if type(value) is str or value is None or (type(value) is float and value != value) else _UNKNOWN
    if type(held).__name__ != "ArrowStringArray":
        return _UNKNOWN
    (value,) = held.__arrow_array__().to_pylist()
    if value is None:
        value = held.dtype.na_value
        return value if type(value) is float else _UNKNOWN
    return value


def _few_strings(held: Any) -> Array:
    """The strings of a short column. One takes 1 µs this way, and 4 µs by pandas' own conversion."""
    column = held.__arrow_array__() if type(held).__name__ == "ArrowStringArray" else None
    return np.asarray(held) if column is None or column.null_count else np.array(column.to_pylist(), object)
