"""Records and dicts of columns as a FrameView: what pandas.DataFrame would make of them, without pandas."""

from __future__ import annotations

import decimal
import functools
import importlib.metadata
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.runtime.input.coded import WORTH_CODES, encoded
from hbc.runtime.input.frame_view import FrameView

LEAST, MOST, MOST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1

MISSING = float("nan")
"""What a record without a key holds there, as in pandas.DataFrame(records)."""


class RecordFrame(FrameView):
    """A table of Python values. Each column has the dtype that pandas would find for these values: int64 for ints, float64 for floats and
    for numbers with None, bool, `str` for strings, and Python objects for the rest, None alone among them.

    names: the columns in order. columns: their values."""

    pandas = True
    library = "pandas"
    plain = False  # a column is looked at by its own dtype: see `own_dtype`

    def __init__(self, names: Sequence[Any], columns: Sequence[Sequence[Any]]) -> None:
        self.names = list(names)
        self.width = len(self.names)
        self.rows = len(columns[0]) if columns else 0
        self._values = columns
        self._read: dict[int, tuple[Array, bool]] = {}

    @classmethod
    def of_records(cls, records: Sequence[Mapping[Any, Any]], numbers: Collection[Any] = ()) -> RecordFrame:
        """The table of dicts. A column is missing where none of them has it. numbers: the columns in which None is NaN, even if they
        hold nothing else."""
        names = list(dict.fromkeys(name for record in records for name in record))
        columns = [[record.get(name, MISSING) for record in records] for name in names]
        for index, name in enumerate(names):
            if name in numbers and None in columns[index]:
                columns[index] = [MISSING if value is None else value for value in columns[index]]
        return cls(names, columns)

    def _column(self, index: int) -> tuple[Array, bool]:
        """(the values of a column, whether pandas holds them as strings)."""
        if index not in self._read:
            self._read[index] = inferred(self._values[index])
        return self._read[index]

    @property
    def known(self) -> bool:
        """Whether it is known what pandas makes of every column."""
        return all(map(known_to_infer, self._values))

    def column(self, index: int) -> Array:
        return self._column(index)[0]

    def block(self) -> Array | None:
        columns = [self.column(index) for index in range(self.width)]
        kinds = {column.dtype for column in columns}
        return np.stack(columns, axis=1) if len(kinds) == 1 and kinds.pop().kind in "fiu" else None

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        dtype = self.column(index).dtype
        return dtype if dtype.kind == "O" else None

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        values, text = self._column(index)
        kind = "StringDtype" if text else type(values.dtype).__name__
        return ("str" if text else str(values.dtype)) if f"pandas.{kind}" in no_numbers else ""

    def coded(self, index: int) -> tuple[Array, Array] | None:
        return encoded(self.column(index)) if self.rows >= WORTH_CODES and self.column(index).dtype.kind == "O" else None

    def whole_numbers(self, index: int) -> Array | None:
        return None


NUMBERS = frozenset({int, float})
OBJECTS = frozenset({decimal.Decimal, bytes, list, tuple, dict, set})
"""The types that stay Python objects in a frame of pandas, besides None, and strings and bool among other values."""


def known_to_infer(values: Sequence[Any]) -> bool:
    """Whether `inferred` knows what pandas makes of a column. It does not for dates, for types of other libraries, and where pandas
    itself looks at the order of values."""
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and (
            values.dtype.kind in "fiub" or (values.dtype.kind == "O" and known_to_infer(values.tolist()))
        )
    kinds = set(map(_kind, set(map(type, values))))
    if kinds & {np.generic, object}:
        return len(kinds) == 1 and len(set(map(type, values))) == 1 and object not in kinds
    return kinds == {int} or int not in kinds or all(type(v) is not int or LEAST <= v <= MOST for v in values)


def _kind(kind: type) -> Any:
    """The class of types that pandas treats alike: np.generic for numpy's numbers, object for those that are not known."""
    if issubclass(kind, str):
        return str
    if issubclass(kind, float):  # and np.float64
        return float
    if issubclass(kind, (np.integer, np.floating)):
        return np.generic
    return bool if kind is np.bool_ else kind if kind in (bool, int, type(None)) or kind in OBJECTS else object


def inferred(values: Sequence[Any]) -> tuple[Array, bool]:
    """(the values of a column as pandas.DataFrame holds them, whether as its strings). Raises InvalidInputError for a string that is no
    text (a lone surrogate), as pandas does."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values, False
    types = set(map(type, values))
    kinds = set(map(_kind, types))
    missing = kinds - {type(None)}
    if kinds == {bool}:
        return np.array(values, bool), False
    if kinds == {np.generic} and len(types) == 1:
        return np.array(values, types.pop()), False
    if kinds == {int}:
        least, most = min(values), max(values)
        if least >= LEAST and most <= MOST:
            return np.array(values, np.int64), False
        if least >= 0 and most <= MOST_UNSIGNED:
            return np.array(values, np.uint64), False
    elif missing and missing <= NUMBERS:
        return np.array([MISSING if v is None else float(v) for v in values]), False
    if str in kinds and kinds <= {str, float, type(None)} and strings_are_text():
        texts = [v for v in values if isinstance(v, str)]
        if len(texts) == len(values) or not any(isinstance(v, float) and v == v for v in values):
            _require_text(texts)
            return _objects([v if isinstance(v, str) else MISSING for v in values]), True
    return _objects(values), False


def _objects(values: Sequence[Any]) -> Array:
    y = np.empty(len(values), object)
    for row, value in enumerate(values):  # one by one: numpy would look into lists
        y[row] = value
    return y


def _require_text(values: Sequence[str]) -> None:
    for value in values:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise InvalidInputError(found=f"a list of dicts that is no frame ({error})", expected="a table") from error


def strings_are_text() -> bool:
    """Whether pandas makes columns of its own dtype `str` from strings, as it does since version 3. There None is NaN, and a lone surrogate
    an error. Without pandas it counts as new."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None:
        return _is_new()
    # To ask for the option warns since pandas 3.1. This function of pandas asks without.
    known = getattr(pandas._config, "using_string_dtype", None)
    return bool(known() if known is not None else pandas.options.future.infer_string)


@functools.cache
def _is_new() -> bool:
    try:
        return int(importlib.metadata.version("pandas").partition(".")[0]) >= 3
    except importlib.metadata.PackageNotFoundError:
        return True
