"""Which numbers are among a column's known ones, by a table without collisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hbc.ir.types import Array

MOST_BITS = 14  # of a place in a column's table, which should stay in the L1 cache
TRIES = 16  # multipliers for every size


@dataclass(frozen=True)
class Known:
    """table[F, 2^bits] holds every known number of column f at the place that the top bits of factor · (its bits) say, and any one
    of them elsewhere, whose place is another. A binary search takes 3 times as long, and more the more numbers there are."""

    table: Array
    starts: Array
    factor: np.unsignedinteger
    shift: np.unsignedinteger

    def among(self, x: Array) -> Array:
        """bool[N, F]: whether x[N, F] is a known number of its column; NaN never is."""
        places = _bits(x)
        places *= self.factor
        places >>= self.shift
        result: Array = self.table.take(places.astype(np.intp) + self.starts) == x
        return result


def known(values: Array, counts: Array) -> Known | None:
    """The table of values[f, :counts[f]], different numbers of 4 or 8 bytes; None where a column has none, or there are too many."""
    if values.dtype.kind not in "fi" or values.dtype.itemsize < 4 or not len(counts) or not counts.all():
        return None
    columns = [_bits(row[:count]) for row, count in zip(values, counts, strict=True)]
    kind, width = columns[0].dtype.type, values.dtype.itemsize * 8
    rng = np.random.default_rng(0)
    for bits in range(int(counts.max()).bit_length() + 1, MOST_BITS + 1):
        for _ in range(TRIES):
            factor = kind(int(rng.integers(1 << (width - 1), dtype=np.uint64)) * 2 + 1)
            shift = kind(width - bits)
            places = [(column * factor) >> shift for column in columns]
            if all(len(np.unique(place)) == len(place) for place in places):
                table = np.repeat(values[:, :1], 1 << bits, axis=1)
                for j, place in enumerate(places):
                    table[j, place.astype(np.intp)] = values[j, : counts[j]]
                starts = np.arange(len(columns)) << bits
                return Known(table.reshape(-1), starts, factor, shift)
    return None


def _bits(x: Array) -> Array:
    """The bits of every number, as an unsigned integer; equal numbers have equal ones."""
    same = x + x.dtype.type(0)  # a copy, in which -0 is 0
    bits: Array = np.ascontiguousarray(same).view(f"u{x.dtype.itemsize}")
    return bits
