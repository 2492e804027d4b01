"""Where a function of one number, computed in floating point, crosses a threshold: found by bisection over the floats themselves, by
what the function gives, never by algebra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hbc.ir.types import Array

Decide = Callable[[Array], Array]
"""One number for each of P tests → whether it goes left: bool[P]."""


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


def place(x: Array) -> Array:
    """Floats as signed integers in the same order, -0.0 just below 0.0."""
    bits = x.view(f"i{x.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.iinfo(f"i{x.itemsize}").min - bits - 1, bits)


def number(places: Array, dtype: np.dtype[np.floating]) -> Array:
    """The floats at such places."""
    bits = np.where(places < 0, np.iinfo(f"i{dtype.itemsize}").min - places - 1, places)
    return bits.astype(f"i{dtype.itemsize}").view(dtype)
