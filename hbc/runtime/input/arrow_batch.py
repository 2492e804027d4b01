"""`ArrowBatch` reads a batch of Arrow as the source reads the frame of pandas of it (`batch.to_pandas()`), without pandas."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import Column
from hbc.ir.types import Array
from hbc.lazy import cached_property
from hbc.runtime.input.arrow_frame import ARROW_NUMBERS, ARROW_TEXTS, ArrowFrame
from hbc.runtime.input.coded import WORTH_CODES
from hbc.runtime.input.frame_view import FrameRow
from hbc.runtime.input.places import MISSING, Places

NEUTRAL = Column()
TEXTS = ARROW_TEXTS | {"string_view"}
MANY = 1000
"""The most objects that are made without pyarrow's `to_numpy`, where that would import pandas. It takes a tenth of the time itself."""

Dictionaries = dict[int, tuple[Any, Any, Array]]
"""The position of a column of dictionaries → (the last dictionary there, what stands for a missing value, the values as objects)."""


class ArrowBatch(ArrowFrame):
    """A pyarrow.RecordBatch. A null is a missing value whatever stands beside it: NaN among numbers, among strings None or NaN,
    whichever the model was fitted with (`Column.none_is_nan`). A dictionary is a column of categories.

    facts: position → what the model knows of the column there. dictionaries: what is kept of dictionaries from batch to batch, since the
    batches of a file often share them: to make objects of 1,000 strings takes 25 µs. strings: the names of the columns of dictionaries
    that are strings, and no categories."""

    pandas = True
    library = "pandas"
    in_parts = False
    plain = False  # a column is looked at by its own dtype: see `own_dtype`

    def __init__(
        self, batch: Any, facts: Mapping[int, Column], dictionaries: Dictionaries, strings: Collection[str] = ()
    ) -> None:
        super().__init__(batch)
        self._strings = strings
        self.rows = batch.num_rows
        self._facts = facts
        self._dictionaries = dictionaries
        self._read: dict[int, Array] = {}

    @cached_property
    def names(self) -> list[Any]:
        return list(self._frame.schema.names)

    @cached_property
    def _types(self) -> tuple[str, ...]:
        types = self._stored_types()
        if not self._strings:
            return types
        schema = self._frame.schema
        return tuple(
            str(schema.field(i).type.value_type) if kind.startswith("dictionary") and schema.names[i] in self._strings else kind
            for i, kind in enumerate(types)
        )

    def block(self) -> Array | None:
        kinds = set(self._types)
        if len(kinds) != 1 or kinds.pop() not in ARROW_NUMBERS:
            return None
        if any(column.null_count for column in self._frame.columns):
            columns = [self.column(index) for index in range(self.width)]
            return np.column_stack(columns) if len({column.dtype for column in columns}) == 1 else None
        return np.asarray(self._frame.to_tensor().to_numpy())

    def row(self, numbers: Sequence[int], texts: Sequence[int]) -> FrameRow | None:
        return None

    def _missing(self, index: int) -> float | None:
        return MISSING if self._fact(index).none_is_nan else None

    def _fact(self, index: int) -> Column:
        return self._facts.get(index, NEUTRAL)

    def column(self, index: int) -> Array:
        found = self._read.get(index)
        if found is None:
            found = self._read[index] = self._values(index, self._frame.column(index), self._types[index])
        return found

    def _values(self, index: int, column: Any, kind: str) -> Array:
        if kind in ARROW_NUMBERS:
            return _numbers(column)
        if kind in TEXTS and str(column.type).startswith("dictionary"):
            codes, known = self._codes(index, column)
            return known[codes]
        if kind in TEXTS:
            return self._filled(column, self._missing(index))
        if kind == "bool":
            return np.asarray(self._filled(column, MISSING) if column.null_count else column.to_numpy(zero_copy_only=False))
        if kind == "null":
            fact = self._fact(index)
            return np.full(self.rows, self._missing(index), object if fact.strings else np.float64)
        if kind.startswith("decimal"):
            return self._filled(column, MISSING)
        if kind.startswith("duration") or (kind.startswith("timestamp") and column.type.tz is None):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        if kind.startswith("dictionary"):
            values, inner = column.dictionary, str(column.type.value_type)
            if inner in TEXTS:
                codes, known = self._codes(index, column)
                return known[codes]
            if inner in ARROW_NUMBERS or inner == "bool":
                if column.null_count or values.null_count:
                    if inner == "bool" and self._fact(index).strings:
                        raise InvalidInputError(
                            found="missing values in a dictionary of bool",
                            expected="strings",
                            where=f"X, column {self.names[index]!r}",
                            advice="The source library cannot compare them with the strings that it was fitted on: cast the column.",
                        )
                    self.doubtful = [*self.doubtful, index] if inner != "bool" and "int" in inner else self.doubtful
                return self._values(index, _decoded(column), inner)
        if kind.startswith("run_end_encoded"):
            import pyarrow.compute as pc

            decoded = pc.run_end_decode(column)
            return self._values(index, decoded, str(decoded.type))
        advice = "Cast the column before: pyarrow.compute.cast(column, pyarrow.float64()), or pyarrow.string()."
        if kind.startswith(("date", "time", "month")):
            advice = "Convert dates to numbers before (for example days since a fixed date)."
        raise InvalidInputError(
            found=f"the Arrow type {kind}",
            expected="numbers, bool, strings, or a dictionary of these",
            where=f"X, column {self.names[index]!r}",
            advice=advice,
        )

    def _stored(self, index: int) -> Any:
        """The column, strings as such: a dictionary may have more than the rows."""
        column = self._frame.column(index)
        return _decoded(column) if self._types[index] in TEXTS and str(column.type).startswith("dictionary") else column

    def _filled(self, column: Any, missing: Any) -> Array:
        """The column as Python objects, `missing` for nulls."""
        values = _objects(column)
        if column.null_count and missing is not None:
            values = values.copy()
            values[_numbers(column.is_null().cast("uint8")) == 1] = missing
        return values

    def coded(self, index: int) -> tuple[Array, Array] | None:
        kind = self._types[index]
        if self.rows == 1:
            return None  # a row has short ways of its own (one_row.py)
        if kind.startswith("dictionary"):
            column = self._frame.column(index)
            return self._codes(index, column) if str(column.type.value_type) in TEXTS else None
        if self.rows < WORTH_CODES or kind not in TEXTS:
            return None
        return self._codes(index, _encoded(self._frame.column(index)))

    def _codes(self, index: int, column: Any) -> tuple[Array, Array]:
        """(codes, values) of a column of a dictionary of strings. Only those values are there that rows have, if they are fewer than
        the rows."""
        if column.dictionary.null_count or len(column.dictionary) > len(column):
            column = _encoded(_decoded(column))
        codes, missing = column.indices, self._missing(index)
        known = self._known(index, column.dictionary, missing)
        if not codes.null_count:
            return _numbers(codes), known[:-1]
        return _numbers(codes.cast("int64").fill_null(len(known) - 1)), known

    def _known(self, index: int, dictionary: Any, missing: Any) -> Array:
        """The values of a dictionary, and then what stands for a missing one."""
        last = self._dictionaries.get(index)
        if last is not None and last[1] is missing and last[0].equals(dictionary):
            return last[2]
        known = np.empty(len(dictionary) + 1, object)
        known[:-1], known[-1] = _objects(dictionary), missing
        self._dictionaries[index] = dictionary, missing, known
        return known

    def own_dtype(self, index: int) -> np.dtype[Any] | None:
        dtype = self.column(index).dtype
        return dtype if dtype.kind == "O" else None

    def integers(self, index: int) -> Array | None:
        if self._types[index] not in ARROW_NUMBERS or "int" not in self._types[index]:
            return None
        return np.asarray(self._frame.column(index).fill_null(0).to_numpy(zero_copy_only=False))

    def whole_numbers(self, index: int) -> Array | None:
        return None  # a column without nulls is one of integers anyway

    def rejected_by(self, no_numbers: Sequence[str], index: int) -> str:
        kind = self._types[index]
        if kind.startswith("dictionary") or (kind in TEXTS and self._stands_for_categories(index)):
            return kind if "pandas.CategoricalDtype" in no_numbers else ""
        if kind in TEXTS:
            return kind if "pandas.StringDtype" in no_numbers else ""
        if kind == "bool":
            return ""  # nulls beside bool are Python objects in pandas, but missing values in a table of Arrow
        return kind if f"pandas.{type(self.column(index).dtype).__name__}" in no_numbers else ""

    def _stands_for_categories(self, index: int) -> bool:
        """Whether the values of a column count as the categories that equal them, as in a record."""
        fact = self._fact(index)
        return (fact.categories_only or bool(fact.category_values)) and not fact.category_of_frame

    def dictionary(self, index: int) -> list[Any] | None:
        column = self._stored(index)
        if self._types[index].startswith("dictionary"):
            found: list[Any] = column.dictionary.to_pylist()
            return found
        return _encoded(column).dictionary.to_pylist() or None if self._types[index] in TEXTS else None

    def categorical(self, index: int) -> Any:
        kind, column = self._types[index], self._stored(index)
        if (kind in TEXTS or kind in ARROW_NUMBERS) and self._stands_for_categories(index):
            column = _encoded(_in_dtype(column, self._fact(index).category_dtype))
        elif not kind.startswith("dictionary"):
            return None
        return ArrowCategories(column)


class NoRows:
    """The schema of a batch in place of the batch. pyarrow cannot make a batch without rows of every type."""

    num_rows = 0

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.num_columns = len(schema)

    def __len__(self) -> int:
        return 0


class ArrowCategories:
    """A column of a dictionary, with what is asked of a pandas.Categorical."""

    def __init__(self, column: Any) -> None:
        if column.dictionary.null_count:
            column = _encoded(_decoded(column))
        self.categories: Array = np.asarray(column.dictionary.to_numpy(zero_copy_only=False))
        codes = column.indices.cast("int64")
        self.codes: Array = np.asarray(codes.fill_null(-1).to_numpy(zero_copy_only=False))

    def set_categories(self, values: Sequence[Any]) -> ArrowCategories:
        """The column with these categories; others are missing. Raises ValueError for bool beside numbers, which are equal in places."""
        old = self.categories.tolist()
        kinds, given = {_kind(value) for value in values}, {_kind(value) for value in old}
        if "bool" in kinds ^ given:
            raise ValueError("bool is no number")
        places = Places(Column(category_values=tuple(values)))
        found = np.array([*[places(value) if _kind(value) in kinds else np.nan for value in old], np.nan])
        other = object.__new__(ArrowCategories)
        other.categories = np.array(list(values), object)
        other.codes = np.nan_to_num(found, nan=-1).astype(np.int64)[self.codes]
        return other


def _kind(value: Any) -> str:
    return "string" if isinstance(value, str) else "bool" if isinstance(value, (bool, np.bool_)) else "number"


FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's name of a type → numpy's. Those of integers are the same."""


def _numbers(column: Any) -> Array:
    """A column of numbers as pyarrow's `to_numpy` has it: NaN for nulls, which makes float64 of integers. That imports pandas at its first
    call (and before pyarrow 26 `to_pandas_dtype` does), which takes longer than all else that a process with a small file does."""
    kind = str(column.type)
    dtype, end = np.dtype(FLOATS.get(kind, kind)), column.offset + len(column)
    bits, data = column.buffers()
    values: Array = np.frombuffer(data, dtype, end)[column.offset :] if end else np.empty(0, dtype)
    if not column.null_count:
        return values
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[column.offset :]
    values = values.astype(np.float64 if dtype.kind in "iu" else dtype)
    values[valid == 0] = np.nan
    return values


def _objects(column: Any) -> Array:
    """A column as Python objects, None for nulls."""
    if len(column) > MANY or "pandas" in sys.modules:
        return np.asarray(column.to_numpy(zero_copy_only=False), object)
    values = np.empty(len(column), object)
    values[:] = column.to_pylist()
    return values


def _encoded(column: Any) -> Any:
    """A column of strings or numbers as a dictionary of those that it has."""
    return column.dictionary_encode()


def _decoded(column: Any) -> Any:
    """The values of a column of a dictionary. pyarrow's cast does not know dictionaries of views."""
    values = column.dictionary
    return (values.cast("large_string") if str(values.type) == "string_view" else values).take(column.indices)


def _in_dtype(column: Any, dtype: str) -> Any:
    """A column of integers in numpy's dtype of this name, where that holds them. Other columns as they are."""
    whole = "int" in str(column.type) and "int" in dtype
    try:
        return column.cast(dtype) if whole else column
    except ValueError:  # too large: the dtype is an error then
        return column
