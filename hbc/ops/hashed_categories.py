"""Categories by their hashes, as CatBoost's models hold them: hashes of
strings, which the host computes, and of combinations of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, TensorType
from hbc.lazy import cached_property
from hbc.ops.city_hash import city_hashes
from hbc.ops.hash_tables import PerfectHash

REMEMBERED = 1 << 16
"""The most strings whose hashes an operator keeps. Hashing one takes 100 µs, and 1,000 of one length together 300 µs. Looking one up
takes 0.1 µs."""


@operator
class HashText(Operator):
    """y[N, F] = the lower 32 bits of CityHash64 (version 1.0) of the UTF-8 of the string x[N, F], read as an int32; i64. Raises
    InvalidInputError for items that are no strings (catboost/libs/cat_feature/cat_feature.cpp, util/digest/city.cpp)."""

    removes_missing = True
    columnwise = True
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != "str" or len(x.shape) != 2:
            raise TypeError("the operand must be a matrix of strings")
        return x.with_dtype("i64")

    def evaluate(self, x: Array) -> Array:
        return self._hashes(x.ravel().tolist()).reshape(x.shape)

    def of_coded_strings(self, x: CodedStrings) -> Array:
        y = np.empty(x.shape, np.int64)
        for j, (codes, values) in enumerate(zip(x.codes, x.values, strict=True)):
            used = np.zeros(len(values), bool)
            used[codes] = True
            y[:, j] = self._hashes(np.where(used, values, "").tolist())[codes]
        return y

    def _hashes(self, items: list[str]) -> Array:
        known: dict[str, int] = self.__dict__.get("_known", {})
        new = list(set(items).difference(known))
        if new:
            known = {**known, **dict(zip(new, as_int32(city_hashes(new)).tolist(), strict=True))}
            if len(known) <= REMEMBERED:  # another thread's may be lost, and nothing but time with it
                object.__setattr__(self, "_known", known)
        return np.fromiter(map(known.__getitem__, items), np.int64, len(items))


def as_int32(hashes: Array) -> Array:
    return (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)


MULTIPLIER = np.uint64(0x4906BA494954CB65)

ROWS_AT_ONCE = 1 << 18
"""Hashes in memory together, 2 MiB of them."""


@operator
class HashedValues(Operator):
    """y[n, q] = v_q[i] with known_p[i] = h_p(x[n]) for the combination p = of[q], or the last number of v_q if the hash is not
    known; f32[N, Q].

    h_p of integers x[N, E] is a hash of its elements e = elements[p] that are not negative: h = 0, then for each element h = M
    · (h + M · x[n, e]) mod 2^64. known_p = known[starts[p] : starts[p + 1] - 1] holds the bits of different hashes. values is
    v_0, v_1, … one after the other; each has one number more than known_p has hashes. elements i64[P, L] have their
    non-negative numbers first, and combinations of more elements come first; known, starts i64; starts[P + 1].
    (catboost/libs/model/hash.h: CalcHash; ctr_provider.h: CalcHashes; static_ctr_provider.cpp: CalcCtrs; M =
    0x4906ba494954cb65.)

    `on_host`: it stays in numpy, for backends without arithmetic of 64 bits or tables of such numbers.
    """

    elements: Array
    known: Array
    starts: Array
    of: Array
    values: Array
    on_host: bool = False

    removes_missing = True
    jumps = True

    @property
    def in_numpy(self) -> bool:
        return self.on_host

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != "i64" or len(x.shape) != 2 or self.known.dtype != np.int64 or self.values.dtype != np.float32:
            raise TypeError("the operand must be a matrix of i64, as the known hashes are, and values must be f32")
        present = self.elements >= 0
        counts = present.sum(1)
        if not len(counts) or counts.min() < 1 or (np.diff(counts) > 0).any() or self.elements.max() >= x.columns:
            raise TypeError(f"elements must be of {x.columns} columns, and combinations of more elements first")
        if (present[:, 1:] > present[:, :-1]).any():
            raise TypeError("of a combination, those elements that are not negative must be first")
        if (np.diff(self.starts) < 1).any() or self.starts[0] != 0 or self.starts[-1] != len(self.known):
            raise TypeError("starts must ascend to the end of what is known")
        if len(self.starts) != len(counts) + 1:
            raise TypeError("every combination must have its known hashes")
        if not 0 <= self.of.min() <= self.of.max() < len(counts) or self._ends[-1] != len(self.values):
            raise TypeError("there must be values for every known hash")
        return TensorType("f32", (x.shape[0], len(self.of)))

    @property
    def _ends(self) -> Array:
        return np.cumsum(np.append(0, np.diff(self.starts)[self.of]))

    def evaluate(self, x: Array) -> Array:
        step = max(ROWS_AT_ONCE // len(self.elements), 1)
        shift = (self._ends[:-1] - self.starts[self.of])[:, None]
        y = np.empty((len(x), len(self.of)), np.float32)
        for start in range(0, len(x), step):
            y[start : start + step] = self.values.take(self._indices(x[start : start + step])[self.of] + shift).T
        return y

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        sets = len(self.elements)
        return {
            "elements": range(-1, inputs[0].type.columns),
            "starts": range(len(self.known) + 1),
            "of": range(sets),
        }

    def _indices(self, x: Array) -> Array:
        """i64[P, n]: the index of each hash in `known`, or the end of its combination if the hash is not known."""
        hashes = chained(x, self.elements)
        indices = self.hash_at.take(self.table.slots(hashes, np.arange(len(hashes))[:, None]))
        other = self.known.view(np.uint64).take(indices) != hashes
        result: Array = np.where(other, self.starts[1:, None] - 1, indices)
        return result

    @cached_property
    def table(self) -> PerfectHash:
        """The hash table of the known hashes, a set for each combination."""
        return PerfectHash.of(self.known[self._is_hash].view(np.uint64), np.diff(self.starts) - 1)

    @cached_property
    def hash_at(self) -> Array:
        """For each slot of the table: the index of its hash in `known`; for empty slots the end of their combination."""
        index, ends = np.flatnonzero(self._is_hash), np.repeat(self.starts[1:] - 1, self.table.sizes)
        return np.where(self.table.key_at < 0, ends, np.append(index, 0)[self.table.key_at])

    @property
    def _is_hash(self) -> Array:
        is_hash = np.ones(len(self.known), bool)
        is_hash[self.starts[1:] - 1] = False
        return is_hash


def chained(x: Array, elements: Array) -> Array:
    """h_p(x) of HashedValues for each combination p and row, u64[P, N]."""
    factors = MULTIPLIER * np.ascontiguousarray(x.T).view(np.uint64)
    hashes = MULTIPLIER * factors[elements[:, 0]]
    for step in elements.T[1:]:
        count = int((step >= 0).sum())
        hashes[:count] += factors[step[:count]]
        hashes[:count] *= MULTIPLIER
    return hashes
