"""Ranges: the lower and upper limits of the numbers that an operator can compute from an interval. This is interval arithmetic on
floating-point numbers as they are computed, not on real numbers. An operator that does not know its range says "anything", so that a
proof by ranges proves too little, never too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import record


@record
class Range:
    """For each element: the numbers from `low` to `high` (no number if low > high), and perhaps NaN if `missing`."""

    low: Array
    high: Array
    missing: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> Range:
        """The numbers from `low` to `high`. Where one of them is NaN, the range holds NaN and no number."""
        missing = np.isnan(low) | np.isnan(high) if low.dtype.kind == "f" else np.zeros(low.shape, bool)
        return cls(low, high, missing).without_numbers(missing)

    @property
    def empty(self) -> Array:
        """For each element: whether the range holds no number."""
        return np.asarray(self.low > self.high)

    @property
    def has_zero(self) -> Array:
        return np.asarray((self.low <= 0) & (self.high >= 0))

    @property
    def has_infinity(self) -> Array:
        return np.asarray(np.isinf(self.low) | np.isinf(self.high))

    def without_numbers(self, where: Array) -> Range:
        """The same range, but without numbers for the elements where `where` is true."""
        smallest, largest = limits(self.low.dtype)
        dtype = self.low.dtype
        low, high = np.where(where, largest, self.low), np.where(where, smallest, self.high)
        return Range(low.astype(dtype), high.astype(dtype), np.asarray(self.missing))

    def at_least(self, start: float) -> Range:
        """The range of a function that keeps numbers from `start` on, and gives NaN for numbers below."""
        low = np.maximum(self.low, self.low.dtype.type(start))
        return Range(low, self.high, self.missing | ((self.low < start) & ~self.empty))

    def absolute(self) -> Range:
        """The range of |x|."""
        ends = np.abs(self.low), np.abs(self.high)
        low = np.where(self.has_zero, 0, np.minimum(*ends)).astype(self.low.dtype)
        return Range(low, np.maximum(*ends), self.missing).without_numbers(self.empty)


def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The smallest and the largest value of a dtype."""
    if dtype.kind == "b":
        return np.False_, np.True_
    return (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def anything(like: Array) -> Range:
    """The range that holds every number and NaN, in the shape and dtype of an array."""
    smallest, largest = limits(like.dtype)
    return Range(np.full_like(like, smallest), np.full_like(like, largest), np.ones(like.shape, bool))


def hull(a: Range, b: Range) -> Range:
    """The smallest range that holds both."""
    return Range(np.minimum(a.low, b.low), np.maximum(a.high, b.high), a.missing | b.missing)


def chosen(where: Array, a: Range, b: Range) -> Range:
    """For each element: a if `where` is true, otherwise b."""
    return Range(*(np.where(where, x, y) for x, y in ((a.low, b.low), (a.high, b.high), (a.missing, b.missing))))


def truth(always: Array, sometimes: Array) -> Range:
    """The range of a comparison: `always` where it is true for all numbers, `sometimes` where it is true for some."""
    return Range(always, sometimes, np.zeros(always.shape, bool))


def rising(evaluate: Callable[[Array], Array], x: Range, ulps: int) -> Range:
    """The range of a strictly rising function of real numbers that is computed with an error of up to `ulps`.

    The computed f(x) is at most `ulps` below the exact f(x), which is at least the exact f(low), and this is at most `ulps` below the
    computed f(low). That makes 2 `ulps`; they are doubled, since an ulp is twice as large above a power of two. Subnormal results may be
    flushed to 0.
    """
    low, high = evaluate(x.low), evaluate(x.high)
    number = np.finfo(low.dtype)
    tiny, largest = number.tiny, number.max * (1 - 1e-6)  # within an ulp of overflow

    def slack(y: Array) -> Array:
        return np.where(np.isfinite(y), 4 * ulps * np.spacing(np.abs(y)), 0).astype(y.dtype)

    below, above = np.minimum(low - slack(low), largest), np.maximum(high + slack(high), -largest)
    below = np.where(np.abs(low) <= 2 * tiny, np.minimum(below, 0), below).astype(low.dtype)
    above = np.where(np.abs(high) <= 2 * tiny, np.maximum(above, 0), above).astype(low.dtype)
    return Range(below, above, x.missing).without_numbers(x.empty)
