"""`Gate` tests whether the model accepts the values of a call, before anything is computed. One pass over all values decides it for nearly
every call. Only if that pass does not, columns and rows are looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.signature import NA, InputLimits, InputSpec, Kinds, Limits, input_layout, sum_of_squares
from hbc.ir.types import NUMPY_DTYPES, Array

ROWS_PER_BLOCK = 4096
"""Rows that `_inspect` tests at a time, so that its temporaries stay in cache."""
CELLS_PER_BLOCK = 1 << 14
"""Values that `_within` tests at a time: 128 KiB of float64."""
FIRST_ROWS = 64
"""Rows that are tested first. A matrix with missing values nearly always
has some in these, and then the sum of all rows is not computed."""


class Gate:
    """The test of one variant's inputs. A call takes the arrays of its graph inputs, and raises InvalidInputError or returns None."""

    def __init__(self, limits: Limits, kinds: Kinds, spec: InputSpec) -> None:
        self.spec = spec
        self.min_rows = limits.min_rows
        layout = list(input_layout(kinds).values())
        self.inputs = list(zip(limits.inputs, layout, strict=True))
        self.bounds = [_bound(entry, kinds[columns[0]]) for entry, columns in self.inputs]
        self.guards = limits.guards
        self.tests, self.strictest, self.safe = limits.tests, limits.strictest, limits.safe
        self.harmless = [_bound(entry, kinds[columns[0]], self.safe) for entry, columns in self.inputs]
        """As `bounds`, for sums at which no guard need look at a number either."""
        self.accepted = tuple(guard.accepted for guard in self.tests if guard.accepted is not None)
        self.simple = len(self.inputs) == 1 and self.inputs[0][0].limit.size > 0 and len(self.accepted) == len(self.tests)
        """Whether compiled code can do the whole test: enough rows, a sum
        of squares up to `fast`, and all that `accepted` computes true."""
        if self.simple and kinds[layout[0][0]] not in ("f32", "f64"):
            self.simple = self.safe >= 2.0**63  # no integer is larger
        self.accepts_all = all(bound is None for bound in self.bounds) and not self.guards
        """Whether no value is rejected."""
        self.fast = self.inputs[0][0].sum_of_squares(NUMPY_DTYPES[kinds[layout[0][0]]], self.safe) if self.simple else None
        """The largest sum of squares of all values that surely passes; None if every sum does."""
        self.missing = self.simple and bool(self.inputs[0][0].allow_nan.all())
        """Whether NaN may be left out of that sum."""

    def __call__(self, arrays: Sequence[Array]) -> None:
        if len(arrays[0]) < self.min_rows:
            self._too_few(len(arrays[0]))
        unknown = arrays  # the arrays that may hold values that a guard rejects
        for (limits, columns), bound, harmless, array in zip(self.inputs, self.bounds, self.harmless, arrays, strict=True):
            if bound is None:
                continue
            # NaN, ±inf and numbers beyond the limit all fail the comparison with this sum; BLAS makes it the fastest single pass (0.5 µs
            # for a row of 30, half of isfinite().all() for 200 000), and unlike np.sum it never warns.
            size = sum_of_squares(array) if array.dtype != object and _begins_within(array, bound) else np.nan
            passes = bool(size <= bound)
            if array.dtype.kind == "f" and (size <= harmless if passes else self._within(array, limits)):
                unknown = [other for other in unknown if other is not array]
                continue
            if passes:
                continue
            if isinstance(array, CodedStrings):
                if not _missing_strings(array.distinct(), limits).any():
                    continue
                array = array.dense()
            self._inspect(array if array.ndim == 2 else array[:, None], limits, columns)
        # If the input is harmless to the strictest guard, it is harmless to all. So one look at it is enough for any number of guards.
        all_harmless = self.strictest is not None and self.strictest.harmless(unknown)
        for guard in self.tests if all_harmless else self.guards:
            guard.test(arrays)

    def _within(self, array: Array, limits: InputLimits) -> bool:
        """Whether all values surely pass, those of a guard included: numbers of ordinary size, and NaN in columns that may have NaN.

        This is one pass, a block at a time. 34,000 rows of 118 columns take 6 ms, and `_inspect` with the test of a guard 38 ms."""
        most = limits.largest(array.dtype, self.safe)
        most = most[0] if (most == most[0]).all() else most
        filled = np.flatnonzero(~limits.allow_nan)
        rows = max(CELLS_PER_BLOCK // len(limits.limit), 1)
        size = np.empty((min(rows, len(array)), *array.shape[1:]), array.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is NaN too
            for start in range(0, len(array), rows):
                block = array[start : start + rows]
                found = np.abs(block, out=size[: len(block)])
                # The sum of a column's magnitudes is NaN if one of them is NaN. Gathering the columns without NaN takes 4 times as long.
                if (found > most).any() or (len(filled) and np.isnan(np.atleast_1d(found.sum(axis=0))[filled]).any()):
                    return False
        return True

    def _inspect(self, array: Array, limits: InputLimits, columns: Sequence[int]) -> None:
        test = _missing_strings if array.dtype == object else _beyond
        for start in range(0, len(array), ROWS_PER_BLOCK):
            bad = test(array[start : start + ROWS_PER_BLOCK], limits)
            if bad.any():
                row, place = (int(i) for i in np.argwhere(bad)[0])
                count = int(bad[:, place].sum())
                self._reject(array[start + row, place], start + row, place, columns[place], limits, count)

    def _reject(self, value: Any, row: int, place: int, column: int, limits: InputLimits, count: int) -> NoReturn:
        owner = limits.owners[place] or "The model"
        if isinstance(value, str):
            found, expected = "pandas.NA", "a string, None or NaN"
            advice = "The source library stops at it: pass X.astype(object).where(X.notna(), None)."
        elif value != value:
            found, expected = "NaN", "a value"
            advice = f"{owner} rejects missing values: impute them (sklearn.impute.SimpleImputer) or leave out the rows."
        elif np.isinf(value):
            found, expected, advice = f"{value}", "a finite number", f"{owner} rejects infinite values."
        else:
            found, expected = f"{value}", f"at most {float(limits.limit[place]):.6g} in absolute value"
            advice = f"{owner} computes in float32 and rejects numbers that do not fit: scale the column."
        more = f", and {count - 1} more below" if count > 1 else ""
        at = "X" if self.spec.ndim == 1 else f"X, {self.spec.describe_column(column)}"
        raise InvalidInputError(found=f"{found} in row {row}{more}", expected=expected, where=at, advice=advice)

    def _too_few(self, rows: int) -> NoReturn:
        owner = next((owner for limits, _ in self.inputs for owner in limits.owners if owner), "The model")
        advice = f"{owner} rejects an input without them."
        if rows:
            advice = (
                "For fewer rows the source library returns an array of another shape (a vector, for one row): pass them twice, and take "
                "the first rows of the result."
            )
        raise InvalidInputError(found=f"{rows} row{'s' * (rows != 1)}", expected=f"at least {self.min_rows}", advice=advice)


def _begins_within(array: Array, bound: Any) -> bool:
    """Whether adding up the squares of all rows is worth the time: there are few rows, or the first ones stay within the bound."""
    return len(array) <= ROWS_PER_BLOCK or bool(np.vdot(array[:FIRST_ROWS], array[:FIRST_ROWS]) <= bound)


def _bound(limits: InputLimits, kind: str, safe: float = np.inf) -> Any:
    """The largest sum of squares for which every value surely passes, and is at most `safe`. None if every value passes anyway."""
    if kind == "str":
        return None if limits.allow_nan.all() and limits.allow_na.all() else 0.0
    return limits.sum_of_squares(NUMPY_DTYPES[kind], safe)


def _beyond(block: Array, limits: InputLimits) -> Array:
    with np.errstate(all="ignore"):
        size = np.abs(block)
        largest = np.finfo(block.dtype).max if block.dtype.kind == "f" else np.inf
        bad: Array = size > np.where(limits.allow_inf, limits.limit, np.minimum(limits.limit, largest))
        if not limits.allow_nan.all() and block.dtype.kind == "f":
            bad |= np.isnan(block) & ~limits.allow_nan
    return bad


def _missing_strings(block: Array, limits: InputLimits) -> Array:
    missing: Array = (block != block).astype(bool) & ~limits.allow_nan
    return missing if limits.allow_na.all() else missing | ((block == NA).astype(bool) & ~limits.allow_na)
