"""RecordHandle: a method of a model for single records, such as a server gets them. No frame is built."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, counted, shown
from hbc.runtime.calls import ArrayCall, FrameCall
from hbc.runtime.input.columns import KnownColumns, names_of
from hbc.runtime.input.record_frame import MISSING, MOST, RecordFrame
from hbc.runtime.input.tables import as_frame
from hbc.runtime.input.values import MOST_EXACT, MOST_SINGLE
from hbc.runtime.one_row import OneRow, picker

MOST_WAYS = 256
"""The most combinations of types of which the short way is remembered."""
MOST_LEARNT = 256
"""The most records of a call of which it is remembered what the host computes of their strings."""
STRINGS = {str}
BASIC = {int, float, type(None)}
"""The types of which only the set matters (see `by_set`)."""
INTEGERS = {int, np.int64}
REMEMBERED_TYPES = {*BASIC, bool, np.float64, np.float32, np.int64, np.int32, np.bool_}


class RecordHandle:
    """One method of a model, for records. `CompiledModel.bind_record` makes it.

    Called with a dict (column → value) or with a tuple or list of the values in the order of the columns, it returns the method's result
    for this one row. Values are str, numbers, bool and None. The answer is that of the method for `pandas.DataFrame([record])`, and so are
    the errors; pandas is not needed. `rows` takes many records, and `columns` a dict of columns.

    The first record of a kind (of certain Python types, with strings that were not there before) takes the way of a frame. Several threads
    may share a handle.

    Example:
        >>> score = hbc.convert(forest).bind_record("predict_proba")
        >>> (score((0.5, 1.0, -1.0, 0.0)) == forest.predict_proba([[0.5, 1.0, -1.0, 0.0]])).all()
        np.True_
    """

    __slots__ = (
        "_by_name",
        "_call",
        "_facts",
        "_items",
        "_keys",
        "_most",
        "_named",
        "_names",
        "_none_is_nan",
        "_places",
        "_plain",
        "_sized",
        "_some_nan",
        "_uniform",
        "_ways",
        "_width",
        "method",
    )

    def __init__(self, call: ArrayCall) -> None:
        spec, known = call.shared.spec, call.shared.intake.columns
        self.method = call.method
        self._call = call
        self._plain = spec.ndim == 2 and not spec.items
        """Whether the model takes tables. Otherwise a record is an item, such as a document."""
        self._names = names_of(spec)
        self._width = spec.n_features
        self._keys = self._names or range(spec.n_features)
        """The columns of the frame that values in order stand for."""
        self._by_name = spec.frames.by_name and self._names is not None
        self._items = picker(known.numbers), picker(known.texts)
        """(the numbers, the strings) among all values of a record in order."""
        names = self._names or ()
        read = known.numbers, known.texts
        self._named = tuple(picker([names[i] for i in columns]) for columns in read) if self._by_name else None
        """(the numbers, the strings) of a dict, where columns are found by name."""
        self._facts = dict(zip(self._keys, spec.columns, strict=True))
        """What None is in each column, for the usual way."""
        self._none_is_nan = tuple(spec.columns[i].none_is_nan for i in known.texts)
        """Whether None is NaN in each column of strings, for the short way."""
        self._some_nan = any(self._none_is_nan)
        self._places = [(known.numbers.index(i), place) for i, place in known.places.items()]
        """Where categories of pandas are among the numbers, and their places."""
        self._sized = len(known.numbers) + len(known.texts)
        self._most = largest_integer(known)
        self._uniform = by_set(known)
        self._ways: dict[Any, tuple[OneRow, bool]] = {}
        """The types of the numbers (a set, if their order does not matter) → (the short way, whether integers must be within `_most`)."""

    def __call__(self, record: Any) -> Any:
        """The result of the method for one record: that of a frame of one row. Raises InvalidInputError."""
        try:
            values = self._values(record)
        except (KeyError, TypeError):
            values = None
        if values is not None:
            numbers, texts = values
            key: Any = tuple(map(type, numbers))
            entry = (self._ways.get(frozenset(key)) if self._uniform else None) or self._ways.get(key)
            if entry is not None:
                row, whole = entry
                if self._some_nan:
                    texts = self._filled(texts)
                if not whole or within(numbers, self._most):
                    result = row.answer(numbers, texts)
                    if result is not None:
                        return result
        return self._slowly([record], values and [values])

    def _values(self, record: Any) -> tuple[Any, Any] | None:
        """(the numbers, the strings) of a record as a frame would have them in the model's columns. None or KeyError where the usual way
        must say."""
        kind = type(record)
        if kind is dict:
            if self._named is not None:
                if len(record) != self._sized and set(map(type, record)) != STRINGS:
                    return None
                return self._placed(self._named[0](record)), self._named[1](record)
            if len(record) != self._width or set(map(type, record)) != STRINGS:
                return None
            if self._names is not None and tuple(record) != self._names:
                return None
            record = tuple(record.values())
        elif (kind is not tuple and kind is not list) or len(record) != self._width:
            return None
        return self._placed(self._items[0](record)), self._items[1](record)

    def _placed(self, numbers: Any) -> Any:
        """The numbers, with the places of categories for categories. Raises KeyError for what is none."""
        if not self._places:
            return numbers
        found = list(numbers)
        for at, place in self._places:
            found[at] = place(found[at])
        return found

    def rows(self, records: Sequence[Any]) -> Any:
        """The result of the method for many records, one row for each: that of a frame of them, `pandas.DataFrame(records)`. Raises
        InvalidInputError."""
        values = self._values_of(records)
        return self._slowly(records, None) if values is None else self._answers(records, values)

    def without_frame(self, records: Sequence[Any]) -> Any:
        """The same for a few dicts, where it surely is the result for `pandas.DataFrame(records)`. None for other records: if a value is
        None, it may be another value in that frame than here."""
        values = self._values_of(records) if all(type(record) is dict for record in records) else None
        if values is None or any(value is None for pair in values for each in pair for value in each):
            return None
        return self(records[0]) if len(values) == 1 else self._answers(records, values)

    def _values_of(self, records: Sequence[Any]) -> list[Any] | None:
        """`_values` of each record. None where the usual way must say."""
        try:
            values = [self._values(record) for record in records] if self._plain and self._alike(records) else []
        except (KeyError, TypeError):
            return None
        return None if not values or None in values else values

    def _answers(self, records: Sequence[Any], values: list[Any]) -> Any:
        found = self._way(values)
        result = None if found is None else found.many(*zip(*values, strict=True))
        return self._slowly(records, values) if result is None else result

    def _alike(self, records: Sequence[Any]) -> bool:
        """Whether values count by position alike in all records: a frame has the columns in the order of its first record."""
        if self._named is not None:
            return True
        keys = {tuple(record) if isinstance(record, Mapping) else None for record in records}
        return len(keys) <= 1

    def _way(self, values: list[Any]) -> OneRow | None:
        """The short way for some records, with what None is among their strings put into `values`. None if there is none yet."""
        key = self._key([numbers for numbers, _ in values])
        row, whole = self._ways.get(key, (None, False))
        if row is None or (whole and not all(within(numbers, self._most) for numbers, _ in values)):
            return None
        if self._some_nan:
            for i, (numbers, texts) in enumerate(values):
                values[i] = numbers, self._filled(texts)
        return row

    def _filled(self, texts: Sequence[Any]) -> Sequence[Any]:
        """The strings, with NaN for None in the columns where None is NaN."""
        if None not in texts:
            return texts
        return [MISSING if text is None and nan else text for text, nan in zip(texts, self._none_is_nan, strict=True)]

    def _key(self, numbers: Sequence[Sequence[Any]]) -> Any:
        """The key of `_ways` for the numbers of some records. None if there can be none: the types of a column differ, and it matters."""
        kinds = frozenset(map(type, itertools.chain.from_iterable(numbers)))
        if self._uniform and kinds <= BASIC:
            return kinds
        alike = {tuple(map(type, each)) for each in numbers}
        return alike.pop() if kinds <= REMEMBERED_TYPES and len(alike) == 1 else None

    def _slowly(self, records: Sequence[Any], values: list[Any] | None) -> Any:
        """The result by the usual way, which says what is wrong with a record. It is remembered how such records get through."""
        if not self._plain:
            return self._call(records)
        frame, call = self._frame(records), self._call
        if not isinstance(frame, RecordFrame) or values is None or call.returns or not call.answers_rows:
            return call(frame)
        kinds, arrays = call.shared.intake(frame)
        variant = call.shared.variants[kinds]
        result = call.answer(variant, arrays)
        numbers = [each for each, _ in values]
        key, row = self._key(numbers), call.one_row(variant)
        if key is None or row is None or not all(within(each, self._most) for each in numbers):
            return result
        if 1 < len(numbers) <= MOST_LEARNT:  # of one row, `answer` has learnt
            row.learn(arrays)
        if len(self._ways) < MOST_WAYS:
            types = set(key)
            self._ways[key] = row, not INTEGERS.isdisjoint(types) and (not row.integers or self._most < MOST)
        return result

    def columns(self, columns: Mapping[Any, Any]) -> Any:
        """The result of the method for a dict of columns (lists or arrays of equal length): that of `pandas.DataFrame(columns)`. Raises
        InvalidInputError."""
        if isinstance(columns, Mapping) and self._plain and type(self._call) is not FrameCall:
            lists = list(columns.values())
            usual = all(isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim == 1) for values in lists)
            if usual and len(set(map(len, lists))) == 1:
                return self._call(RecordFrame(list(columns), lists, self._facts_of(columns)))
        return self._call(columns)

    def _frame(self, records: Sequence[Any]) -> Any:
        """The frame that records stand for: a RecordFrame, or one of pandas where the result is a frame. Raises InvalidInputError."""
        try:
            listed = list(records)
        except TypeError:
            raise InvalidInputError(found=shown(records), expected="a list of records") from None
        dicts = [record if isinstance(record, Mapping) else self._of_values(record, row) for row, record in enumerate(listed)]
        if not dicts:
            raise InvalidInputError(found="no records", expected="at least one")
        if type(self._call) is FrameCall and not self._call.shared.intake.columns.categorical:
            return as_frame(dicts)
        return RecordFrame.of_records(dicts, self._facts_of(dicts[0]))

    def _facts_of(self, names: Iterable[Any]) -> dict[Any, Any]:
        """The facts about each of these columns."""
        return self._facts if self._names is not None else dict(zip(names, self._facts.values(), strict=False))

    def _of_values(self, record: Any, row: int) -> dict[Any, Any]:
        """The dict of the values in order. Raises InvalidInputError for anything but a tuple or list of the right length."""
        if not isinstance(record, (tuple, list)):
            advice = "Pass a dict, column → value, or the values of all columns in order."
            raise InvalidInputError(
                found=f"a {type(record).__name__} in row {row}", expected="a record: a dict, tuple or list", advice=advice
            )
        if len(record) != self._width:
            found = f"a record of {counted(len(record), 'value')} in row {row}"
            raise InvalidInputError(found=found, expected=counted(self._width, "column"), advice=self._fitted_on)
        return dict(zip(self._keys, record, strict=True))

    @property
    def _fitted_on(self) -> str:
        return self._call.shared.intake.columns.fitted_on()

    def __repr__(self) -> str:
        return f"<{self.method} of {self._call.shared.info.source} for records of {counted(self._width, 'column')}>"


def by_set(known: KnownColumns) -> bool:
    """Whether the variant for a record depends on which of int, float and None are among its numbers, and not on where they are."""
    frames = known.spec.frames
    if known.functions or known.beside_numbers or known.objects_only or frames.apart or frames.stacked:
        return False
    return all(len(set(variant) - {"str", "unread"}) <= 1 for variant in known.variants)


def largest_integer(known: KnownColumns) -> int:
    """The largest magnitude of an integer of which the short way makes what the source makes of it: larger ones are looked at. (In a frame
    of pandas those of more than 64 bits are uint64, or Python objects.)"""
    if known.spec.frames.integers_exact:
        return int(MOST_SINGLE)
    if known.objects_stay:
        return int(MOST_EXACT) - 1  # encoders compare integers with their categories
    return int(MOST_EXACT) if known.at_once else MOST


def within(numbers: Sequence[Any], most: int) -> bool:
    """Whether no integer is larger."""
    return all(type(value) not in INTEGERS or -most <= value <= most for value in numbers)
