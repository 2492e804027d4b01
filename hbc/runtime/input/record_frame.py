"""Records and dicts of columns as a FrameView: what pandas.DataFrame would make of them, without pandas."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import Column
from hbc.ir.types import Array
from hbc.runtime.input.coded import WORTH_CODES, encoded
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.pandas_frame import PandasFrame
from hbc.runtime.input.tables import as_frame, pandas_frame
from hbc.runtime.input.values import decimals

LEAST, MOST, MOST_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1

MISSING = float("nan")
"""What a record without a key holds there, as in pandas.DataFrame(records)."""


class RecordFrame(FrameView):
    """A table of Python values. Each column has the dtype that pandas would find for these values: int64 for ints, float64 for floats and
    for numbers with None, bool, `str` for strings, and Python objects for the rest, None alone among them. pandas itself is asked for
    values of other types, such as dates.

    names: the columns in order. columns: their values. facts: columns of a model, in which None is the same in any company
    (`Column.none_is_nan`). In pandas, and in the other columns, it depends on the other values."""

    pandas = True
    untyped = True
    library = "pandas"
    plain = False  # a column is looked at by its own dtype: see `own_dtype`

    def __init__(
        self, names: Sequence[Any], columns: Sequence[Sequence[Any]], facts: Mapping[Any, Column] = MappingProxyType({})
    ) -> None:
        self.names = list(names)
        self.width = len(self.names)
        self.rows = len(columns[0]) if columns else 0
        self._values, self._facts = columns, facts
        self._read: dict[int, Held] = {}

    @classmethod
    def of_records(
        cls, records: Sequence[Mapping[Any, Any]], facts: Mapping[Any, Column] = MappingProxyType({})
    ) -> RecordFrame:
        """The table of dicts. Where some have a column, it is NaN for the others, as in pandas."""
        names = list(dict.fromkeys(name for record in records for name in record))
        return cls(names, [[record.get(name, MISSING) for record in records] for name in names], facts)

    def _held(self, index: int) -> Held:
        held = self._read.get(index)
        if held is None:
            held = self._read[index] = self._find(self.names[index], self._values[index])
        return held

    def _find(self, name: Any, values: Sequence[Any]) -> Held:
        if isinstance(values, np.ndarray) and values.dtype.kind == "O":
            values = values.tolist()
        if not known_to_infer(values):
            rows = list(values)
            return Held(np.empty(0), False, PandasFrame(pandas_frame([{name: value} for value in rows])))
        fact = self._facts.get(name)
        if fact is None or isinstance(values, np.ndarray) or None not in values:
            return Held(*inferred(values), None)
        missing = MISSING if fact.none_is_nan else None
        filled = [missing if value is None else value for value in values]
        if not fact.strings:
            return Held(*inferred(filled), None)
        if all(value is None or value != value for value in filled):
            return Held(_objects(filled), False, None)
        array, text = inferred(values)
        return Held(_objects(filled) if array.dtype.kind == "O" else array, text, None)

    def column(self, index: int) -> Array:
        held = self._held(index)
        return held.values if held.pandas is None else held.pandas.column(0)

    def block(self) -> Array | None:
        columns = [self.column(index) for index in range(self.width)]
        kinds = {column.dtype for column in columns}
        return np.stack(columns, axis=1) if len(kinds) == 1 and kinds.pop().kind in "fiu" else None

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        held = self._held(index)
        if held.pandas is not None:
            return held.pandas.own_dtype(0)
        return held.values.dtype if held.values.dtype.kind == "O" else None

    def holds_na(self, index: int) -> bool:
        held = self._held(index)
        return held.pandas is not None and held.pandas.holds_na(0)

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        held = self._held(index)
        if held.pandas is not None:
            return held.pandas.rejected_by(no_numbers, 0)
        kind = "StringDtype" if held.text else type(held.values.dtype).__name__
        return ("str" if held.text else str(held.values.dtype)) if f"pandas.{kind}" in no_numbers else ""

    def cells(self, index: int) -> Sequence[Any]:
        values = self._values[index]
        return values.tolist() if isinstance(values, np.ndarray) else values

    def coded(self, index: int) -> tuple[Array, Array] | None:
        return encoded(self.column(index)) if self.rows >= WORTH_CODES and self.column(index).dtype.kind == "O" else None

    def whole_numbers(self, index: int) -> Array | None:
        held = self._held(index)
        return None if held.pandas is None else held.pandas.whole_numbers(0)


def as_record_frame(X: Any) -> Any:
    """A list of dicts, or a dict of lists and arrays, as a RecordFrame, where values may stand for categories of pandas. Any other X as
    `as_frame` has it."""
    found = as_frame(X)  # it rejects what is no table
    if found is X:
        return X
    if isinstance(X, list):
        return RecordFrame.of_records(X)
    if isinstance(X, Mapping) and all(isinstance(values, (list, np.ndarray)) for values in X.values()):
        return RecordFrame(list(X), list(X.values()))
    return found


class Held(NamedTuple):
    """One column as pandas would hold it."""

    values: Array
    text: bool
    """It has pandas' own dtype for strings."""
    pandas: PandasFrame | None
    """The column in a frame of pandas, where only pandas knows what to make of it."""


NUMBERS = frozenset({int, float})
OBJECTS = frozenset({bytes, list, tuple, dict, set})
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
    if kind is np.bool_:
        return bool
    return kind if kind in (bool, int, type(None), *decimals()) or kind in OBJECTS else object


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
            return _objects([str(v) if isinstance(v, str) else MISSING for v in values]), True
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
    import importlib.metadata  # 20 ms

    try:
        return int(importlib.metadata.version("pandas").partition(".")[0]) >= 3
    except importlib.metadata.PackageNotFoundError:
        return True
