"""Finds where a function of one number, computed in floating point, crosses a threshold. It bisects over the floats themselves and
looks only at the results of the function, never at its algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hbc.ir.ranges import Range
from hbc.ir.types import Array
from hbc.lazy import record

Decide = Callable[[Array], Array]
"""A function of one number for each of P tests. It says for each whether the number goes left: bool[P]."""
WINDOWS = (0, *(1 << i for i in range(3, 21)))
"""The widths of the windows beside a cut whose floats are tried one by one. ln x needs about 200 floats near x = 1e-3, and 30,000
near 1e300. It needs 100,000 where the numbers of a column are some 1000 times as large as the cut and are added to something."""
MOST_TRIED = 1 << 21
"""The most floats of all windows together; beyond it the widest windows are given up. These many take about two seconds where the
source calls the C library number by number, as for the normal quantile."""
MOST_ODD = 8
"""The most floats on the wrong side of a cut, or of all cuts of a column. Each costs one comparison a row. (One of 20 columns of
quantiles has 5.)"""
AT_ONCE = 1 << 16
"""Floats of windows that are tried in one call of the function."""


@record
class Cuts:
    """P tests as tests of the number itself: `number <= cut` goes left, or right where `swapped`. NaN goes with the numbers at or
    below the cut where `missing`. found: whether the test has this form at all."""

    cut: Array
    swapped: Array
    missing: Array
    found: Array


def find_cuts(decide: Decide, tests: int, dtype: np.dtype[np.floating]) -> Cuts:
    """The cuts, in the numbers' dtype, of P tests. A test must hold for all finite numbers up to some number, or from some number on
    (or for all, or none). Infinities and NaN are tried on their own. The function is called as often as the dtype has bits."""
    largest = np.finfo(dtype).max
    ends = (np.nan, -np.inf, -largest, largest, np.inf)
    missing, lowest, first, last, highest = (decide(np.full(tests, end, dtype)) for end in ends)
    low, high = (np.full(tests, ordinal(np.array(end, dtype))) for end in (-largest, largest))
    # `low` decides as the first number does; `high` does not, or is the last one.
    while (low + 1 < high).any():
        middle = (low & high) + ((low ^ high) >> 1)  # without overflow
        same = decide(of_ordinal(middle, dtype)) == first
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    inside = first != last
    cut = np.where(inside, of_ordinal(low, dtype), np.where(last == highest, np.inf, largest)).astype(dtype)
    cut = np.where(lowest != first, -np.inf, cut).astype(dtype)
    changes = (lowest != first).astype(int) + inside + (last != highest)
    between_zeros = (cut == 0) & np.signbit(cut)  # no comparison tells -0.0 from 0.0
    return Cuts(cut + dtype.type(0), ~lowest, missing == lowest, (changes <= 1) & ~between_zeros)


@record
class Curves:
    """P functions of one number. `compute(functions, numbers)` gives their values, with the bits of the source;
    `enclose(functions, low, high)` gives ranges that hold the values of all numbers from low to high. `functions` are indices, which may
    repeat."""

    compute: Callable[[Array, Array], Array]
    enclose: Callable[[Array, Array, Array], Range]


def find_curve_cuts(
    curves: Curves, start: Array, threshold: Array, missing_left: Array
) -> tuple[Cuts, Mapping[int, dict[float, float]]]:
    """(the cuts of P tests, their odd floats), in start's dtype. A test is `value <= threshold`, with NaN to the left where
    missing_left. Numbers below `start` are taken for it.

    The function rises, but its computed values may fall from one float to the next (numpy 2.4 with AVX-512 in float32: ln x at
    1 of 100,000 floats, e^x at 1 of 25,000). So a cut has to be proven. The cut that bisection finds is right if the values of
    all numbers below it are at most the threshold, and the values of all numbers above it are larger. Ranges prove this except
    for floats so near to the cut that errors matter. These are computed one by one.

    A test is `found` if there are not too many such floats, and at most MOST_ODD of them are on the wrong side. The wrong ones
    are returned by test, each with the float nearest to the cut on the side where it goes. (Of the normal quantile's tests in
    float64, 1 of 800 has such floats.)
    """
    dtype = start.dtype
    smallest, largest = (int(ordinal(np.array(end, dtype))) for end in (np.finfo(dtype).min, np.finfo(dtype).max))
    bottom = np.maximum(ordinal(start), smallest)

    def goes_left(tests: Array, numbers: Array) -> Array:
        y = curves.compute(tests, numbers)
        return np.asarray((y <= threshold[tests]) | (np.isnan(y) & missing_left[tests]))

    def all_go(left: Array, tests: Array, first: Array, last: Array) -> Array:
        """Whether all numbers with the ordinals `first` to `last` go to that side. Numbers below 0, zeros and numbers above 0 are
        looked at apart, because curves bend there."""
        proven = np.ones(len(tests), bool)
        for lowest, highest in ((smallest, -2), (-1, 0), (1, largest)):  # -0.0 has the ordinal -1
            low, high = np.maximum(first, lowest), np.minimum(last, highest)
            some = np.flatnonzero(low <= high)
            here = tests[some]
            y = curves.enclose(here, of_ordinal(low[some], dtype), of_ordinal(high[some], dtype))
            to_left = (y.high <= threshold[here]) & (missing_left[here] | ~y.missing)
            to_right = (y.low > threshold[here]) & ~(missing_left[here] & y.missing)
            proven[some] &= np.where(left[some], to_left, to_right)
        return proven

    every = np.arange(len(threshold))
    cuts = find_cuts(lambda numbers: goes_left(every, np.maximum(numbers, start)), len(threshold), dtype)
    last_below = np.clip(ordinal(cuts.cut), bottom - 1, largest)
    low, high = last_below.copy(), last_below.copy()  # the floats between them are tried
    sound = cuts.found.copy()
    for below in (True, False):
        open_ = np.flatnonzero(sound)
        for window in WINDOWS:
            middle, left = last_below[open_], cuts.swapped[open_] != below
            if below:
                edge = low[open_] = np.maximum(middle - window, bottom[open_] - 1)
                proven = all_go(left, open_, bottom[open_], edge)
            else:
                edge = high[open_] = np.minimum(middle + window, largest)
                proven = all_go(left, open_, edge + 1, np.full(len(open_), largest))
            open_ = open_[~proven]
        sound[open_] = False
    widest_last = np.argsort(high - low, kind="stable")
    sound[widest_last[np.cumsum(np.where(sound, high - low, 0)[widest_last]) > MOST_TRIED]] = False
    tried = np.random.default_rng(0).permutation(np.flatnonzero(sound))  # columns are computed side by side, in any case
    ends = np.cumsum((high - low)[tried])
    odd: dict[int, dict[float, float]] = {}
    for tests in np.split(tried, np.flatnonzero(np.diff(ends // AT_ONCE)) + 1):
        count = (high - low)[tests]
        test = np.repeat(tests, count)
        ordinals = low[test] + 1 + np.arange(len(test)) - np.repeat(np.cumsum(count) - count, count)
        is_below = ordinals <= last_below[test]
        wrong = np.flatnonzero(goes_left(test, of_ordinal(ordinals, dtype)) != (is_below != cuts.swapped[test]))
        found = of_ordinal(ordinals[wrong], dtype), of_ordinal(last_below[test[wrong]] + is_below[wrong], dtype)
        for i, x, other in zip(test[wrong].tolist(), *(numbers.tolist() for numbers in found), strict=True):
            odd.setdefault(i, {})[x] = other
    sound[[i for i, found in odd.items() if len(found) > MOST_ODD]] = False
    return Cuts(cuts.cut, cuts.swapped, cuts.missing, sound), {i: found for i, found in odd.items() if sound[i]}


def ordinal(x: Array) -> Array:
    """The ordinals of floats: signed integers in the same order, with -0.0 just below 0.0."""
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.iinfo(f"i{x.itemsize}").min - bits - 1, bits)


def of_ordinal(ordinals: Array, dtype: np.dtype[np.floating]) -> Array:
    """The floats with these ordinals."""
    bits = np.where(ordinals < 0, np.iinfo(f"i{dtype.itemsize}").min - ordinals - 1, ordinals)
    return bits.astype(f"i{dtype.itemsize}").view(dtype)
