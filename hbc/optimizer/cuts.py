"""Where a function of one number, computed in floating point, crosses a threshold: found by bisection over the floats themselves, by
what the function gives, never by algebra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hbc.ir.types import Array

Decide = Callable[[Array], Array]
"""One number for each of P tests → whether it goes left: bool[P]."""
ULPS = 4
"""How far numpy's logarithms and exponentials are from the exact ones at most: its own tests, and those of the vector library in it,
hold them to that (numpy/_core/tests/test_umath_accuracy.py)."""
WIDEST_WINDOW = 4096
"""Floats around a cut that are tried one by one: of ln x about 200 near x = 1e-3, and 30,000 near 1e300."""
AT_ONCE = 1 << 20
"""Floats of windows in one call of the function."""


@dataclass(frozen=True)
class Cuts:
    """The P tests as tests of the number itself: `number <= cut` goes left, or where `swapped` right; a NaN goes with those at or
    below the cut where `missing`. found: whether the test is of this form at all."""

    cut: Array
    swapped: Array
    missing: Array
    found: Array


def find_cuts(decide: Decide, tests: int, dtype: np.dtype[np.floating]) -> Cuts:
    """The cuts, in the numbers' dtype, of tests that finite numbers, in ascending order, pass up to one place or from one on (or
    all, or none). Infinities and NaN are tried on their own. As many calls as the dtype has bits."""
    largest = np.finfo(dtype).max
    ends = (np.nan, -np.inf, -largest, largest, np.inf)
    missing, lowest, first, last, highest = (decide(np.full(tests, end, dtype)) for end in ends)
    low, high = (np.full(tests, place(np.array(end, dtype))) for end in (-largest, largest))
    # `low` decides as the first number does; `high` does not, or is the last one.
    while (low + 1 < high).any():
        middle = (low & high) + ((low ^ high) >> 1)  # without overflow
        same = decide(number(middle, dtype)) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    inside = first != last
    cut = np.where(inside, number(low, dtype), np.where(last == highest, np.inf, largest)).astype(dtype)
    cut = np.where(lowest != first, -np.inf, cut).astype(dtype)
    changes = (lowest != first).astype(int) + inside + (last != highest)
    between_zeros = (cut == 0) & np.signbit(cut)  # no comparison tells -0.0 from 0.0
    return Cuts(cut + dtype.type(0), ~lowest, missing == lowest, (changes <= 1) & ~between_zeros)


def find_rising_cuts(function: Callable[[Array], Array], start: float, threshold: Array, missing_left: Array) -> Cuts:
    """The cuts of `function(number) <= threshold` (NaN to the left where missing_left), in the threshold's dtype, where the exact
    function rises strictly from `start` on and is NaN below, and the computed one is at most ULPS from it.

    As computed it may fall from one float to the next (numpy 2.4 with AVX-512 of float32: ln x at 1 of 100,000, e^x at 1 of 25,000).
    But where it is more than ULPS below the threshold the exact one is below, hence so for all smaller numbers, hence what is
    computed of them is at most the threshold; likewise above. So only the floats in between can be on a wrong side, and all of these
    are computed. found: they are not too many and on the right sides. Numbers below `start` are taken for it.
    """
    dtype = threshold.dtype

    def decide(numbers: Array, limit: Array, missing: Array) -> Array:
        with np.errstate(all="ignore"):
            y = function(numbers)
        return np.asarray((y <= limit) | (np.isnan(y) & missing))

    def last_left(limit: Array) -> tuple[Array, Cuts]:
        cuts = find_cuts(lambda x: decide(np.maximum(x, dtype.type(start)), limit, missing_left), len(limit), dtype)
        return np.where(cuts.swapped, -np.inf, cuts.cut).astype(dtype), cuts

    # Subnormal results may be flushed to 0, of which the ulp says nothing.
    normal = (np.abs(threshold) >= np.finfo(dtype).tiny) | np.isinf(threshold)
    with np.errstate(all="ignore"):
        # Each of two values may be off by ULPS, and an ulp is twice as large above a power of two.
        slack = np.where(np.isfinite(threshold), 4 * ULPS * np.spacing(np.abs(threshold)), 0).astype(dtype)
        cut, cuts = last_left(threshold)
        low, high = place(last_left(threshold - slack)[0]), place(last_left(threshold + slack)[0])
    size = high.astype(np.float64) - low
    sound = cuts.found & normal & (size >= 0) & (size <= WIDEST_WINDOW)
    tried = np.flatnonzero(sound)
    ends = np.cumsum(size[tried]).astype(np.int64)
    for tests in np.split(tried, np.flatnonzero(np.diff(ends // AT_ONCE)) + 1):
        count = (high - low)[tests]
        test = np.repeat(tests, count)
        numbers = number(low[test] + 1 + np.arange(len(test)) - np.repeat(np.cumsum(count) - count, count), dtype)
        wrong = decide(numbers, threshold[test], missing_left[test]) != (numbers <= cut[test])
        sound[test[wrong]] = False
    return Cuts(cuts.cut, cuts.swapped, cuts.missing, sound)


def place(x: Array) -> Array:
    """Floats as signed integers in the same order, -0.0 just below 0.0."""
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.iinfo(f"i{x.itemsize}").min - bits - 1, bits)


def number(places: Array, dtype: np.dtype[np.floating]) -> Array:
    """The floats at such places."""
    bits = np.where(places < 0, np.iinfo(f"i{dtype.itemsize}").min - places - 1, places)
    return bits.astype(f"i{dtype.itemsize}").view(dtype)
