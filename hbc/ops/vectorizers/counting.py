"""Counts of terms, values of dicts and sets of labels, by names that are known. These operators run on the host, and their matrices are
mostly zeros: see hbc.ir.rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, repeat
from numbers import Number, Real
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, shown
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.rows import Rows, sorted_rows, summed_rows
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType, require
from hbc.lazy import record
from hbc.ops.vectorizers.strings import (
    NUMBERS,
    NUMBERS_AND_STRINGS,
    Maker,
    derived,
    pack,
    rejected,
    require_objects,
    require_texts,
    row_of_each,
    unpack,
)


@record(eq=False, repr=False)
class _NamedColumns(Maker):
    """An operator whose columns have names: term i of `terms` (packed, see `pack`) has the column columns[i] of `width`; -1 is no
    column."""

    terms: Array
    ends: Array
    columns: Array
    width: int
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        require_objects(x)
        require(len(self.ends) == len(self.columns), "there must be a column for every term")
        return TensorType(self.dtype, (x.shape[0], self.width))

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"columns": range(-1, self.width)}

    def require_sound(self) -> None:
        require_texts(self.terms, self.ends)

    def column_of(self) -> dict[Any, int]:
        """The column of each term."""
        return derived(self, lambda: dict(zip(unpack(self.terms, self.ends), self.columns.tolist(), strict=True)))

    def with_values(self, items: list[Any], names: Iterable[Any], values: Iterable[Any], distinct: bool) -> Rows:
        """The values of all items in the columns of their names. `distinct`: no item has a name twice. Raises InvalidInputError for a value
        that the dtype cannot hold."""
        column = np.fromiter(map(self.column_of().get, names, repeat(-1)), np.int64)
        known = column >= 0
        row, column = row_of_each(items)[known], column[known]
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 is infinite
                numbers = np.array(list(compress(values, known.tolist())), NUMPY_DTYPES[self.dtype])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                found=f"a value that is no {self.dtype} ({error})", expected="numbers", where="X"
            ) from error
        key = row * np.int64(max(self.width, 1)) + column
        return sorted_rows(row, column, numbers, len(items), self.width, unique=distinct or len(np.unique(key)) == len(key))


@operator
class CountTerms(_NamedColumns):
    """y[N, width] = how often the list x[N] holds each term (1 if it does, where `binary`). Term i of `terms` (packed, see `pack`)
    has the column columns[i]. Other terms are ignored (CountVectorizer._count_vocab)."""

    binary: bool

    non_negative = True

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.zeros(1, np.int64),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        place = dict(zip(kept.tolist(), range(len(kept)), strict=True))
        found = {term: place[column] for term, column in self.column_of().items() if column in place}
        terms, ends = pack(found)
        return CountTerms(terms, ends, np.array(list(found.values()), np.int64), len(kept), self.dtype, self.binary), kept

    def all_rows_of(self, x: Array) -> Rows:
        table = self.column_of()
        lists = x.tolist()
        column = np.fromiter(map(table.get, chain.from_iterable(lists), repeat(-1)), np.int64)
        known = column >= 0
        counts = summed_rows(row_of_each(lists)[known], column[known], None, len(lists), self.width, NUMPY_DTYPES[self.dtype])
        return counts.with_data(np.ones_like(counts.data)) if self.binary else counts


@operator
class CountItems(_NamedColumns):
    """y[N, width] from the dicts x[N]. A number (None is NaN) goes to the column of its key. A string goes as 1 to the column of
    "key" + separator + string, and so does each string of a list. Keys without a column are ignored (DictVectorizer.transform). As a sparse
    matrix it has indices of int64 (scikit-learn before 1.9: int32)."""

    separator: str
    index: DType = "i64"

    creates_missing = True

    def row_of(self, item: Any) -> Rows | None:
        if type(item) is not dict:
            return None
        kinds = set(map(type, item.values()))
        named = item if kinds <= NUMBERS else self._strings_named(item) if kinds <= NUMBERS_AND_STRINGS else None
        if named is None:
            return None
        find = self.column_of().get
        found = sorted([(column, value) for name, value in named.items() if (column := find(name)) is not None and column >= 0])
        try:
            data = np.array([value for _, value in found], NUMPY_DTYPES[self.dtype])
        except OverflowError:  # an integer beyond float64
            return None
        kind = NUMPY_DTYPES[self.index]
        return Rows(np.array([0, len(found)], kind), np.array([column for column, _ in found], kind), data, self.width)

    def _strings_named(self, item: dict[Any, Any]) -> dict[Any, Any] | None:
        """The dict with 1 for `key + separator + string` in place of each string. None if two of its keys are the same then."""
        named = {
            f"{name}{self.separator}{value}" if type(value) is str else name: 1 if type(value) is str else value
            for name, value in item.items()
        }
        return named if len(named) == len(item) else None

    def all_rows_of(self, x: Array) -> Rows:
        items = x.tolist()
        numbers_only = _numbers(items)
        names: Iterable[Any]
        if numbers_only is not None:
            names, values = chain.from_iterable(items), numbers_only
        else:
            items = [list(self._named(item)) for item in items]
            names, values = ([pair[i] for pairs in items for pair in pairs] for i in (0, 1))
        y = self.with_values(items, names, values, numbers_only is not None)
        kind = NUMPY_DTYPES[self.index]
        return replace(y, indptr=y.indptr.astype(kind), indices=y.indices.astype(kind))

    def _named(self, item: Any) -> Iterator[tuple[Any, Any]]:
        if not isinstance(item, Mapping):
            raise rejected(item, "a dict for every row")
        for name, value in item.items():
            if isinstance(value, str):
                yield f"{name}{self.separator}{value}", 1
            elif isinstance(value, Number) or value is None:
                yield name, value
            elif isinstance(value, Iterable) and not isinstance(value, Mapping):
                for one in value:
                    if not isinstance(one, str):
                        raise rejected(one, f"strings in the list of {name!r}")
                    yield f"{name}{self.separator}{one}", 1
            else:
                raise rejected(value, f"a number, a string or a list of strings for {name!r}")


@operator
class MapValues(_NamedColumns):
    """y[N, width] from the maps x[N], dicts of numbers by strings: a number goes to the column of its key, and keys without a column are
    ignored. Nobody can give ONNX Runtime an empty map, or other keys and values (DictVectorizer of ONNX)."""

    creates_missing = True

    def all_rows_of(self, x: Array) -> Rows:
        items = x.tolist()
        if _numbers(items) is None or not all(items) or set(map(type, chain.from_iterable(items))) - {str}:
            for item in items:
                if not isinstance(item, Mapping) or not item:
                    raise rejected(item, "a dict with at least one number for every row")
                for name, value in item.items():
                    if not isinstance(name, str):
                        raise rejected(name, "strings as the keys of the dicts")
                    if not isinstance(value, Real):
                        raise rejected(value, f"a number for {name!r}")
        values = chain.from_iterable(item.values() for item in items)
        return self.with_values(items, chain.from_iterable(items), values, True)


def _numbers(items: list[Any]) -> list[Any] | None:
    """The values of all items, if these are dicts of numbers only; else None. Then there is no need to look at each (3,000 of 20
    numbers: 87 → 7 ms)."""
    if set(map(type, items)) - {dict}:
        return None
    values = list(chain.from_iterable(map(dict.values, items)))
    return None if set(map(type, values)) - NUMBERS else values


@operator
class HoldsLabels(Maker):
    """y[N, K] = 1 where x[N], a sequence or a set of labels, holds label k, else 0; i64. The labels are those of `terms` (strings,
    packed: see `pack`), then integers i64, then floats f64; columns[K] are their columns. Other labels are ignored, with one
    warning for all of a call (MultiLabelBinarizer.transform)."""

    terms: Array
    ends: Array
    integers: Array
    floats: Array
    columns: Array

    mixes_rows = True  # there is one warning for all rows

    def require_sound(self) -> None:
        require_texts(self.terms, self.ends)

    def infer(self, x: TensorType) -> TensorType:
        require_objects(x)
        return TensorType("i64", (x.shape[0], len(self.columns)))

    def column_of(self) -> dict[Any, int]:
        """The column of each label."""

        def made() -> dict[Any, int]:
            labels = [*unpack(self.terms, self.ends), *self.integers.tolist(), *self.floats.tolist()]
            return dict(zip(labels, self.columns.tolist(), strict=True))

        return derived(self, made)

    def all_rows_of(self, x: Array) -> Rows:
        sets = [_labels(item) for item in x.tolist()]
        labels = list(chain.from_iterable(sets))
        try:
            column = np.fromiter(map(self.column_of().get, labels, repeat(-1)), np.int64, len(labels))
        except TypeError as error:  # a list, for one, has no hash
            raise InvalidInputError(found=f"labels that cannot be in a set ({error})", expected="labels", where="X") from error
        known = column >= 0
        if not known.all():
            unknown = {labels[i] for i in np.flatnonzero(~known)}
            warnings.warn(f"unknown class(es) {sorted(unknown, key=str)} will be ignored", UserWarning, stacklevel=2)
        y = summed_rows(row_of_each(sets)[known], column[known], None, len(sets), len(self.columns), np.dtype(np.int64))
        return y.with_data(np.ones_like(y.data))

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {"columns": range(len(self.columns))}


def _labels(item: Any) -> Any:
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    try:
        return list(item)
    except TypeError as error:
        found = shown(item)
        raise InvalidInputError(found=found, expected="a set of labels for every row", where="X") from error
