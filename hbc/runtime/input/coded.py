"""Encodes columns of strings: as codes, and the different strings that the codes stand for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.types import Array

WORTH_CODES = 512
"""The fewest rows for which columns of strings are encoded. From there on, encoding them takes less time than looking at them one by one: a
quarter for few different strings, as much for 1,000 different ones."""


def encoded(values: Array) -> tuple[Array, Array] | None:
    """(codes, values) of a column of Python objects. None if most of the first WORTH_CODES are
    different, or if some object is neither string, float, None nor pandas.NA. With 100 different
    strings in 100,000 rows, a call takes half the time with codes, encoding included."""
    items = values.tolist()
    try:
        if len(set(items[:WORTH_CODES])) > WORTH_CODES // 2:
            return None
        places = {item: place for place, item in enumerate(set(items))}
    except TypeError:
        return None
    kinds = set(map(type, places))
    if not all(issubclass(kind, (str, float, type(None))) or kind.__name__ == "NAType" for kind in kinds):
        return None  # 1 and True are equal, but are different values to the source
    known = np.empty(len(places), object)
    known[:] = list(places)
    found = operator.itemgetter(*items)(places)  # 12 ns an item; map and fromiter 27
    return np.frombuffer(bytes(found), np.uint8) if len(places) <= 256 else np.fromiter(found, np.int64, len(items)), known


def of_categories(held: Any) -> tuple[Array, Array] | None:
    """(codes, values) of a categorical column of pandas. None if some category is no string, or there are more categories than rows."""
    known, codes = np.asarray(held.categories, object), np.asarray(held.codes)
    if len(known) > len(codes) or not all(isinstance(value, str) for value in known.tolist()):
        return None
    missing = codes < 0
    if not missing.any():
        return codes, known
    values = np.empty(len(known) + 1, object)
    values[:-1], values[-1] = known, held.dtype.na_value
    return np.where(missing, len(known), codes.astype(np.int64)), values


def from_arrow(to_arrow: Callable[[], Any], missing: Any) -> tuple[Array, Array] | None:
    """(codes, values) of a column of strings that `to_arrow` returns; missing values become `missing`. None if there is no pyarrow, or it
    cannot encode the column. Encoding 20,000 strings takes 0.7 ms. Making objects of them takes 0.8 ms, and looking these up 2 ms."""
    try:
        column = to_arrow()
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        column = column.dictionary_encode()
        if str(column.dictionary.type) not in ("string", "large_string") or column.dictionary.null_count:
            return None
        codes, known = column.indices, column.dictionary.to_numpy(zero_copy_only=False)
    except (ImportError, AttributeError, ValueError, TypeError, NotImplementedError):  # no pyarrow, or it cannot encode this
        return None
    values = np.empty(len(known) + 1, object)
    values[:-1], values[-1] = known, missing
    if codes.null_count:
        codes = codes.cast("int64").fill_null(len(known))
        return np.asarray(codes.to_numpy(zero_copy_only=False)), values
    return np.asarray(codes.to_numpy(zero_copy_only=False)), values[:-1]
