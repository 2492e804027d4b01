"""Columns by the hash of a name. These operators run on the host, and their matrices are mostly zeros: see hbc.ir.rows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import chain, compress, count
from typing import Any

import numpy as np

from hbc.ir.graph import operator
from hbc.ir.rows import Rows, summed_rows
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.ops.vectorizers.strings import (
    NUMBERS_AND_STRINGS,
    Maker,
    derived,
    hashed,
    lone_surrogate,
    rejected,
    require_objects,
    row_of_each,
)

MOST_ALONE = 256
"""The most names of a dict that is hashed without arrays."""
MOST_KEPT, LONGEST_KEPT = 1 << 14, 64
"""The most names whose columns are kept, and the length of the longest of them: at most some 4 MB."""


@operator
class HashTerms(Maker):
    """y[N, width] = Σ ±1 over the terms of the list x[N]. With h = MurmurHash3 (32 bit, seed 0) of the term, the column is |h| mod
    width, and the sign is that of h if `alternate`, else +1. `binary`: 1 wherever there is a term, whatever they add up to
    (HashingVectorizer)."""

    width: int
    alternate: bool
    binary: bool
    dtype: DType

    @property
    def non_negative(self) -> bool:
        return not self.alternate

    def infer(self, x: TensorType) -> TensorType:
        require_objects(x)
        return TensorType(self.dtype, (x.shape[0], self.width))

    def all_rows_of(self, x: Array) -> Rows:
        lists = [list(_iterable(item)) for item in x.tolist()]
        signed = _hashes(list(chain.from_iterable(lists)))
        column, sign = _places(signed, self.width, self.alternate)
        y = summed_rows(row_of_each(lists), column, sign, len(lists), self.width, NUMPY_DTYPES[self.dtype])
        return y.with_data(np.ones_like(y.data)) if self.binary else y


@operator
class HashItems(Maker):
    """y[N, width] = Σ ±value over the (name, value) pairs of the dict or list x[N]. A string as value makes the name "name=value"
    and the value 1. Columns and signs are those of HashTerms, by the names. Values of 0 are ignored (FeatureHasher.transform)."""

    width: int
    alternate: bool
    dtype: DType

    creates_missing = True

    def infer(self, x: TensorType) -> TensorType:
        require_objects(x)
        return TensorType(self.dtype, (x.shape[0], self.width))

    def pairs(self, x: Array) -> tuple[Array, list[Any], Array]:
        """(the number of pairs of each x, the names of all pairs, their values). Some values may be 0."""
        items = x.tolist()
        if (values := _floats(items)) is not None:
            names: list[Any] = list(chain.from_iterable(items))
        else:
            items = [[(name, value) for name, value in map(_named, _pairs(item)) if value != 0] for item in items]
            names = [name for pairs in items for name, _ in pairs]
            values = np.array([value for pairs in items for _, value in pairs], np.float64)
        return np.fromiter(map(len, items), np.int64, len(items)), names, values

    def row_of(self, item: Any) -> Rows | None:
        if type(item) is not dict or len(item) > MOST_ALONE or not NUMBERS_AND_STRINGS.issuperset(map(type, item.values())):
            return None
        known, totals = derived(self, dict), dict[int, float]()
        try:
            named = [(f"{name}={value}", 1.0) if type(value) is str else (name, float(value)) for name, value in item.items()]
            pairs = [(name, value) for name, value in named if value != 0]
            unknown = [name for name, _ in pairs if name not in known]
            if unknown and not self._learn(unknown):
                return None
            for name, value in pairs:
                column, sign = known[name]
                totals[column] = totals.get(column, 0.0) + sign * value
        except (KeyError, OverflowError):  # another thread has forgotten the names; an integer beyond float64
            return None
        columns = sorted(totals)
        data = np.array([totals[column] for column in columns], NUMPY_DTYPES[self.dtype])
        return Rows(np.array([0, len(columns)], np.int32), np.array(columns, np.int32), data, self.width)

    def _learn(self, names: list[Any]) -> bool:
        """Keep the column and the sign of each name, since the names of one dict are mostly those of the next. False if a name is not to
        be kept: it is no string, or a long one."""
        if not all(type(name) is str and len(name) <= LONGEST_KEPT for name in names):
            return False
        known = derived(self, dict)
        if len(known) + len(names) > MOST_KEPT:
            known.clear()
        column, sign = _places(_hashes(names), self.width, self.alternate)
        known.update(zip(names, zip(column.tolist(), sign.tolist(), strict=True), strict=True))
        return True

    def all_rows_of(self, x: Array) -> Rows:
        return self.of_pairs(*self.pairs(x))

    def of_pairs(self, counts: Array, names: list[Any], values: Array) -> Rows:
        kept = values != 0
        row, names, values = np.repeat(np.arange(len(counts)), counts)[kept], list(compress(names, kept.tolist())), values[kept]
        column, sign = _places(_hashes(names), self.width, self.alternate)
        return summed_rows(row, column, values * sign, len(counts), self.width, NUMPY_DTYPES[self.dtype])


def _floats(items: list[Any]) -> Array | None:
    """The values of all items, if these are dicts of values that float() takes and that are no strings; else None. Then there is
    no need to look at each (3,000 of 20 numbers: 46 → 4 ms)."""
    if set(map(type, items)) - {dict}:
        return None
    values = list(chain.from_iterable(map(dict.values, items)))
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values))
    except struct.error:  # a value that float() does not take, or a string
        return None


def _named(pair: tuple[Any, Any]) -> tuple[Any, float]:
    name, value = pair
    return (f"{name}={value}", 1.0) if isinstance(value, str) else (name, _number(value))


def _iterable(item: Any) -> Iterable[Any]:
    if isinstance(item, (str, bytes)) or not isinstance(item, Iterable):
        raise rejected(item, "a list of strings for every row")
    return item


def _pairs(item: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(item, Mapping):
        return item.items()
    pairs = list(_iterable(item))
    for pair in pairs:
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise rejected(pair, "pairs of a name and a value")
    return pairs


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise rejected(value, "a number or a string for every name") from error


def _hashes(terms: list[Any]) -> Array:
    """The hash of each term, i32. Each different term is hashed once, and terms of one length together."""
    number = dict(zip(dict.fromkeys(terms), count(), strict=False))
    places = np.fromiter(map(number.__getitem__, terms), np.int64, len(terms))
    try:
        encoded = [term if isinstance(term, bytes) else str.encode(term) for term in number]
    except TypeError as error:
        strange = next(term for term in number if not isinstance(term, (str, bytes)))
        raise rejected(strange, "names that are strings") from error
    except UnicodeEncodeError as error:
        raise lone_surrogate() from error
    return hashed(encoded, murmur, np.dtype(np.int32))[places]


def murmur(data: Array) -> Array:
    """MurmurHash3_x86_32 with seed 0 of each row of data u8[M, length], i32[M]."""
    length = data.shape[1]
    whole = length // 4 * 4
    blocks = np.ascontiguousarray(data[:, :whole]).view("<u4").astype(np.uint32)
    h = np.zeros(len(data), np.uint32)
    for block in blocks.T:
        h = _rotated(h ^ _mixed(block), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if length > whole:
        tail = np.zeros(len(data), np.uint32)
        for i in range(whole, length):
            tail |= data[:, i].astype(np.uint32) << np.uint32(8 * (i - whole))
        h ^= _mixed(tail)
    h ^= np.uint32(length)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (h ^ (h >> np.uint32(16))).view(np.int32)


def _mixed(block: Array) -> Array:
    return _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _places(signed: Array, width: int, alternate: bool) -> tuple[Array, Array]:
    wide = signed.astype(np.int64)
    # The source's own rule for -2**31, whose absolute value is no int32.
    column = np.where(wide == -(2**31), (2147483647 - (width - 1)) % width, np.abs(wide) % width)
    return column, np.where(wide >= 0, 1.0, -1.0) if alternate else np.ones(len(wide))
