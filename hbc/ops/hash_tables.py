"""Tables without collisions, which tell whether a number is known: small ones, and large ones in two steps."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import record

MOST_BITS = 14
"""The most bits of a slot: the table of a column should stay in the L1 cache."""
TRIES = 16
"""The factors that are tried for each size of a table."""


@record
class Known:
    """A hash table for each column, table[F, 2^bits]. The slot of a number is the top bits of factor · (its bits). Each known
    number is in its slot. Empty slots hold some known number of another slot, so that a look-up there never matches.

    A binary search takes 3 times as long, and more the more numbers there are.
    """

    table: Array
    starts: Array
    factor: np.unsignedinteger
    shift: np.unsignedinteger

    def among(self, x: Array) -> Array:
        """bool[N, F]: whether x[N, F] is a known number of its column; NaN never is."""
        slots = _bits(x)
        slots *= self.factor
        slots >>= self.shift
        result: Array = self.table.take(slots.astype(np.intp) + self.starts) == x
        return result


def known(values: Array, counts: Array) -> Known | None:
    """The table of values[f, :counts[f]], different numbers of 4 or 8 bytes; None if a column has no numbers, or too many."""
    if values.dtype.kind not in "fi" or values.dtype.itemsize < 4 or not len(counts) or not counts.all():
        return None
    columns = [_bits(row[:count]) for row, count in zip(values, counts, strict=True)]
    kind, width = columns[0].dtype.type, values.dtype.itemsize * 8
    rng = np.random.default_rng(0)
    for bits in range(int(counts.max()).bit_length() + 1, MOST_BITS + 1):
        for _ in range(TRIES):
            factor = kind(int(rng.integers(1 << (width - 1), dtype=np.uint64)) * 2 + 1)
            shift = kind(width - bits)
            slots = [(column * factor) >> shift for column in columns]
            if all(len(np.unique(slot)) == len(slot) for slot in slots):
                table = np.repeat(values[:, :1], 1 << bits, axis=1)
                for j, slot in enumerate(slots):
                    table[j, slot.astype(np.intp)] = values[j, : counts[j]]
                starts = np.arange(len(columns)) << bits
                return Known(table.reshape(-1), starts, factor, shift)
    return None


def _bits(x: Array) -> Array:
    """The bits of each number as an unsigned integer. Equal numbers have equal bits."""
    same = x + x.dtype.type(0)  # a copy, in which -0 is 0
    bits: Array = np.ascontiguousarray(same).view(f"u{x.dtype.itemsize}")
    return bits


MIXER, SPREADER = np.uint64(0x9AE16A3B2F90404F), np.uint64(0xD6E8FEB86659FD93)
HALF = np.uint64(32)
FULL = 0.8
"""How full a table is. Fuller ones take longer to build: a million keys take 0.4 s, and 1.6 s at 0.9."""
BUCKET = 3
"""Keys that share a factor, on average. Four save little memory, and need three times as many rounds."""
MOST_FACTOR = (1 << 16) - 1


@record
class PerfectHash:
    """Several sets of different keys u64, each with a table in which each key has a slot of its own ("hash and displace": Pagh
    1999).

    The keys of one bucket share a factor, an odd number found by trying, so that the slots of all keys differ. With top(x) = ⌊x
    / 2^32⌋ and g = mixed(key), a key of set p has the bucket top(top(g) · buckets[p]), counted from first_bucket[p], and the
    slot top(top(g · SPREADER · factor mod 2^64) · sizes[p]), counted from first_slot[p]. A number that is no key has such a
    slot too.

    factors: u16[all buckets]. key_at: i64[all slots], the number of the key in a slot, or -1 for an empty slot.
    """

    sizes: Array
    first_slot: Array
    buckets: Array
    first_bucket: Array
    factors: Array
    key_at: Array

    def slots(self, keys: Array, sets: Array) -> Array:
        """The slots of the keys, i64, given the set of each."""
        g = mixed(keys)
        factors = self.factors.take(self._bucket(g, sets))
        return self._slot(g, factors.astype(np.uint64), sets)

    def _bucket(self, g: Array, sets: Array) -> Array:
        bucket: Array = (((g >> HALF) * self.buckets.astype(np.uint64)[sets]) >> HALF).view(np.int64)
        bucket += self.first_bucket[sets]
        return bucket

    def _slot(self, g: Array, factors: Array, sets: Array) -> Array:
        slot: Array = (((g * (factors * SPREADER) >> HALF) * self.sizes.astype(np.uint64)[sets]) >> HALF).view(np.int64)
        slot += self.first_slot[sets]
        return slot

    @classmethod
    def of(cls, keys: Array, counts: Array) -> PerfectHash:
        """The tables of `keys`, which hold those of all sets one after the other; counts: the number of keys of each set. Raises
        ValueError if a key is twice in a set."""
        sizes, buckets = (np.maximum(np.ceil(counts / most).astype(np.int64), 1) for most in (FULL, BUCKET))
        first_slot, first_bucket = (np.cumsum(lengths) - lengths for lengths in (sizes, buckets))
        factors, key_at = np.ones(int(buckets.sum()), np.uint16), np.full(int(sizes.sum()), -1)
        table = cls(sizes, first_slot, buckets, first_bucket, factors, key_at)
        sets, g = np.repeat(np.arange(len(counts)), counts), mixed(keys)
        bucket = table._bucket(g, sets)
        order = np.argsort(bucket, kind="stable")
        lengths = np.bincount(bucket, minlength=len(factors))
        ends = np.cumsum(lengths)
        for length in range(int(lengths.max(initial=0)), 0, -1):  # the largest buckets first, while most slots are free
            waiting = np.flatnonzero(lengths == length)
            for factor in np.arange(1, MOST_FACTOR + 1, 2).astype(np.uint64)[:, None]:
                if not len(waiting):
                    break
                found = order[ends[waiting][:, None] - np.arange(1, length + 1)]
                slot = table._slot(g[found], factor, sets[found])
                free = (key_at[slot] < 0).all(1)
                slot, found = slot[free], found[free]
                key_at[slot] = found  # where several write, one of them stays
                settled = (key_at[slot] == found).all(1)
                lost, loser = slot[~settled], found[~settled]
                key_at[lost[key_at[lost] == loser]] = -1
                factors[waiting[free][settled]] = factor
                waiting = np.concatenate([waiting[~free], waiting[free][~settled]])
            if len(waiting):
                raise ValueError("a key is twice in a set")
        return table


def mixed(keys: Array) -> Array:
    """keys · MIXER + SPREADER mod 2^64. The highest digits depend on all
    digits of a key, and the lowest are not 0, which no factor would change."""
    g: Array = keys * MIXER
    g += SPREADER
    return g
