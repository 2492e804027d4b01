"""Converts the values of one column to strings, to numbers or to another
dtype. An InvalidInputError says where and why they do not convert."""

from __future__ import annotations

import numbers
import sys
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError, shown
from hbc.ir.signature import NA, NumberAmongStrings
from hbc.ir.types import Array


def decimals() -> tuple[type, ...]:
    """(decimal.Decimal,), or () where nobody has imported it: then there are no such values. It takes 12 ms to import."""
    found = sys.modules.get("decimal")
    return () if found is None else (found.Decimal,)


def strings(values: Array, where: str, numbers_unknown: bool = False) -> Array:
    """A column of strings as Python objects: str, None, NaN, and NA for pandas.NA; with `numbers_unknown` NumberAmongStrings for numbers.
    Raises InvalidInputError for other values. Floats that are all NaN pass: a column without any value has no better dtype."""
    if values.dtype.kind in "UT":
        return values.astype(object)
    if values.dtype.kind != "O":
        if values.dtype.kind == "f" and np.isnan(values).all():
            return values.astype(object)
        reject_numbers(values.dtype, where)
    items = values.tolist()
    others = {t for t in set(map(type, items)) if not issubclass(t, str) and t is not type(None)}
    if not others:
        return values
    changed = None
    for row, item in enumerate(items):
        if item is None or isinstance(item, str) or (isinstance(item, (float, np.floating)) and item != item):
            continue
        stand_in = NA
        if type(item).__name__ != "NAType":
            if not (numbers_unknown and isinstance(item, (numbers.Number, np.bool_))):
                _reject_among_strings(item, row, where)
            stand_in = NumberAmongStrings(item)
        changed = values.copy() if changed is None else changed
        changed[row] = stand_in
    return values if changed is None else changed


def reject_numbers(dtype: np.dtype[Any], where: str) -> NoReturn:
    advice = "The model was fitted on strings there: convert the column with astype(str)."
    raise InvalidInputError(found=f"numbers ({dtype})", expected="strings", where=where, advice=advice)


def digits(values: Array) -> Array:
    """The column with integers and bool as strings of their decimal digits, also among other values, and None as NaN."""
    coded = coded_digits(values)
    if coded is not None:
        return coded[1][coded[0]]
    if values.dtype.kind != "O" or set(map(type, values.tolist())) <= {str}:
        return values
    changed = values.copy()
    for row, item in enumerate(values.tolist()):
        if isinstance(item, (np.integer, np.bool_)) or (isinstance(item, int) and -(2**63) <= item < 2**63):
            changed[row] = str(int(item))
        elif item is None:
            changed[row] = np.nan
    return changed


def coded_digits(values: Array) -> tuple[Array, Array] | None:
    """(codes, strings) of an array of integers or bool, as CodedStrings takes them; None for other dtypes."""
    if values.dtype.kind not in "iub":
        return None
    distinct, codes = np.unique(values, return_inverse=True)
    return codes, np.array([str(int(value)) for value in distinct.tolist()], object)


def _reject_among_strings(item: Any, row: int, where: str) -> NoReturn:
    raise InvalidInputError(
        found=f"{shown(item)} in row {row}",
        expected="strings, None or NaN",
        where=where,
        advice="The model was fitted on strings there: convert the column with astype(str).",
    )


def floats(values: Array, where: str) -> Array:
    """The column as float64, as scikit-learn converts it (None is NaN). Raises
    InvalidInputError for values that do not convert, strings included."""
    if values.dtype.kind in "fiub":
        return converted(values, np.dtype(np.float64))
    if values.dtype.kind not in "OUT":
        reject_dtype(values.dtype, where)
    if values.dtype.kind == "O":
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            pass
    for row, item in enumerate(values.tolist()):
        try:
            # numpy before 2.4 takes an array of one number for that number.
            other = values.dtype.kind != "O" or isinstance(item, np.ndarray)
            float("no" if other else 0 if item is None else item)
        except (TypeError, ValueError, OverflowError):
            if isinstance(item, str):
                reject_strings(where, item, row)
            raise InvalidInputError(
                found=f"{shown(item)} in row {row}",
                expected="numbers that float64 can hold",
                where=where,
                advice="Convert the column to numbers first.",
            ) from None
    return values.astype(np.float64)


MOST_SINGLE, MOST_EXACT = 2.0**24, 2.0**53
"""Up to these magnitudes float32 and float64 hold every integer."""


def beyond_exact(values: Array) -> bool:
    """Whether some number may be an integer that float64 does not hold."""
    if not values.size:
        return False
    if values.size < 1024 and values.dtype.kind == "f" and np.vdot(values, values) <= MOST_EXACT:
        return False  # 0.5 µs for a row; the other way takes 3. BLAS would take threads for many.
    return bool(np.fmax.reduce(values, axis=None) > MOST_EXACT or np.fmin.reduce(values, axis=None) < -MOST_EXACT)


def rounded_twice(integers: Array) -> Array:
    """Those of the integers that become another float32 if they become float64 before."""
    return integers[integers.astype(np.float32) != integers.astype(np.float64).astype(np.float32)]


def reject_strings(where: str, item: Any, row: int = 0) -> NoReturn:
    raise InvalidInputError(
        found=f"the string {str(item)!r:.60} in row {row}",
        expected="numbers",
        where=where,
        advice="Encode strings before (OneHotEncoder, OrdinalEncoder), or convert the column to numbers.",
    )


def converted(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values in `dtype`. Raises InvalidInputError for uint64 above 2**63 - 1 if that is int64."""
    if values.dtype == dtype:
        return values
    if dtype.kind == "i" and values.dtype.kind == "u" and values.dtype.itemsize == 8 and values.size:
        largest = int(values.max())
        if largest > np.iinfo(np.int64).max:
            advice = "Convert it with astype(float), as scikit-learn would."
            raise InvalidInputError(
                found=f"{largest} in an array of {values.dtype}", expected="at most 2**63 - 1", advice=advice
            )
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def reject_dtype(dtype: np.dtype[Any], where: str) -> NoReturn:
    what = {
        "c": ("complex numbers", "Pass the real and the imaginary parts as columns of their own."),
        "M": ("dates", "Convert them to numbers first (for example days since a fixed date)."),
        "m": ("time spans", "Convert them to numbers first (for example with .dt.total_seconds())."),
        "S": ("bytes", "Decode them to str, or convert them to numbers."),
        "V": ("records", "Pass a frame, or a matrix of numbers."),
    }
    found, advice = what.get(dtype.kind, ("values", ""))
    raise InvalidInputError(found=f"{found} ({dtype})", expected="numbers or strings", where=where, advice=advice)
