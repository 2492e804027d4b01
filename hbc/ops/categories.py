"""Categories by their hashes, as CatBoost's models hold them: those of strings, which the host computes, and of combinations of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Operator, operator
from hbc.ir.texts import Texts
from hbc.ir.types import Array, TensorType
from hbc.ops.hashed import PerfectHash

REMEMBERED = 1 << 16
"""Strings whose hashes an operator keeps: to hash one takes 100 µs, and 1,000 of one length together 300; to look one up 0.1."""


@operator
class HashText(Operator):
    """y[N, F] = the lower 32 bits of CityHash64 (version 1.0) of the UTF-8 of the string x[N, F], as those of an int32; i64. What is
    no string is an InvalidInputError (catboost/libs/cat_feature/cat_feature.cpp, util/digest/city.cpp)."""

    removes_missing = True
    columnwise = True
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != "str" or len(x.shape) != 2:
            raise TypeError("the operand must be a matrix of strings")
        return x.with_dtype("i64")

    def evaluate(self, x: Array) -> Array:
        return self._hashes(x.ravel().tolist()).reshape(x.shape)

    def of_texts(self, x: Texts) -> Array:
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
    """y[N, Q], f32: y[n, q] = v_q[i] with known_p[i] = h_p(x[n]) for the combination p = of[q], or v_q's last where there is none.

    h_p of integers x[N, E] is that of its elements e = elements[p], as far as these are not negative: h = 0, then for each in turn
    h = M · (h + M · x[n, e]) mod 2^64. known_p = known[starts[p] : starts[p + 1] - 1] holds the bits of such hashes, different ones;
    values is v_0, v_1, …, each one longer than its known hashes. elements i64[P, L], those that are not negative first, and with them the
    combinations of more elements; known, starts i64; starts[P + 1].
    (catboost/libs/model/hash.h: CalcHash; ctr_provider.h: CalcHashes; static_ctr_provider.cpp: CalcCtrs; M = 0x4906ba494954cb65.)

    `on_host`: it stays in numpy, where a backend has no arithmetic of 64 bits, or no tables of such numbers.
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
            y[start : start + step] = self.values.take(self._places(x[start : start + step])[self.of] + shift).T
        return y

    def _places(self, x: Array) -> Array:
        """i64[P, n]: where in `known` the hashes stand, or their combination's end."""
        hashes = chained(x, self.elements)
        places = self.slots.take(self.table.slots(hashes, np.arange(len(hashes))[:, None]))
        other = self.known.view(np.uint64).take(places) != hashes
        result: Array = np.where(other, self.starts[1:, None] - 1, places)
        return result

    @cached_property
    def table(self) -> PerfectHash:
        """Of every combination, the known hashes."""
        return PerfectHash.of(self.known[self._is_hash].view(np.uint64), np.diff(self.starts) - 1)

    @cached_property
    def slots(self) -> Array:
        """The places in `known` of what the table's slots hold; of those that hold nothing, the end of their combination."""
        place, ends = np.flatnonzero(self._is_hash), np.repeat(self.starts[1:] - 1, self.table.sizes)
        return np.where(self.table.places < 0, ends, np.append(place, 0)[self.table.places])

    @property
    def _is_hash(self) -> Array:
        is_hash = np.ones(len(self.known), bool)
        is_hash[self.starts[1:] - 1] = False
        return is_hash


def chained(x: Array, elements: Array) -> Array:
    """h_p(x) of HashedValues, u64[P, N]."""
    factors = MULTIPLIER * np.ascontiguousarray(x.T).view(np.uint64)
    hashes = MULTIPLIER * factors[elements[:, 0]]
    for step in elements.T[1:]:
        count = int((step >= 0).sum())
        hashes[:count] += factors[step[:count]]
        hashes[:count] *= MULTIPLIER
    return hashes


# --- CityHash64, version 1.0, of many strings of one length at once --------------------------------------------------------

K0, K1, K2, K3, MIX = (
    np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557, 0x9DDFEA08EB382D69)
)


def city_hashes(texts: Sequence[str]) -> Array:
    """CityHash64 of the UTF-8 of every string, u64[M]."""
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInputError(found=f"{text!r:.60} (of type {type(text).__name__})", expected="strings", where="X")
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            found="a string with a lone surrogate", expected="text that UTF-8 can hold", where="X"
        ) from error
    hashes = np.zeros(len(encoded), np.uint64)
    by_length: dict[int, list[int]] = {}
    for i, item in enumerate(encoded):
        by_length.setdefault(len(item), []).append(i)
    for length, items in by_length.items():
        data = np.frombuffer(b"".join([encoded[i] for i in items]), np.uint8).reshape(len(items), length)
        hashes[items] = city_hash(data)
    return hashes


def city_hash(data: Array) -> Array:
    """CityHash64 of every row of data u8[M, length], as u64[M]."""
    length = data.shape[1]
    if length <= 16:
        return _up_to_16(data)
    if length <= 32:
        return _up_to_32(data)
    return _up_to_64(data) if length <= 64 else _longer(data)


def _up_to_16(s: Array) -> Array:
    length = s.shape[1]
    if length > 8:
        a, b = _word(s, 0), _word(s, length - 8)
        return _mixed(a, _rotated(b + np.uint64(length), length)) ^ b
    if length >= 4:
        return _mixed(np.uint64(length) + (_word(s, 0, 4) << np.uint64(3)), _word(s, length - 4, 4))
    if not length:
        return np.full(len(s), K2)
    a, b, c = (s[:, i].astype(np.uint64) for i in (0, length // 2, length - 1))
    y, z = a + (b << np.uint64(8)), np.uint64(length) + (c << np.uint64(2))
    return _shifted(y * K2 ^ z * K3) * K2


def _up_to_32(s: Array) -> Array:
    length = s.shape[1]
    a, b, c, d = _word(s, 0) * K1, _word(s, 8), _word(s, length - 8) * K2, _word(s, length - 16) * K0
    return _mixed(_rotated(a - b, 43) + _rotated(c, 30) + d, a + _rotated(b ^ K3, 20) - c + np.uint64(length))


def _up_to_64(s: Array) -> Array:
    length = s.shape[1]
    z = _word(s, 24)
    a = _word(s, 0) + (np.uint64(length) + _word(s, length - 16)) * K0
    v, v_sum = _half(a, z, _word(s, 8), _word(s, 16))
    z = _word(s, length - 8)
    a = _word(s, 16) + _word(s, length - 32)
    w, w_sum = _half(a, z, _word(s, length - 24), _word(s, length - 16))
    r = _shifted((v + w_sum) * K2 + (w + v_sum) * K0)
    return _shifted(r * K0 + v_sum) * K2


def _half(a: Array, z: Array, first: Array, second: Array) -> tuple[Array, Array]:
    b, c = _rotated(a + z, 52), _rotated(a, 37)
    a = a + first
    c = c + _rotated(a, 7)
    a = a + second
    return a + z, b + _rotated(a, 31) + c


def _longer(s: Array) -> Array:
    length = s.shape[1]
    x, y = _word(s, 0), _word(s, length - 16) ^ K1
    z: Array = _word(s, length - 56) ^ K0
    size = np.full(len(s), length, np.uint64)
    v = _weak(s, length - 64, size, y)
    w = _weak(s, length - 32, size * K1, np.full(len(s), K0))
    z = z + _shifted(v[1]) * K1
    x = _rotated(z + x, 39) * K1
    y = _rotated(y, 33) * K1
    for at in range(0, (length - 1) // 64 * 64, 64):
        x = _rotated(x + y + v[0] + _word(s, at + 16), 37) * K1 ^ w[1]
        y = _rotated(y + v[1] + _word(s, at + 48), 42) * K1 ^ v[0]
        z = _rotated(z ^ w[0], 33)
        v = _weak(s, at, v[1] * K1, x + w[0])
        w = _weak(s, at + 32, z + w[1], y)
        x, z = z, x
    return _mixed(_mixed(v[0], w[0]) + _shifted(y) * K1 + z, _mixed(v[1], w[1]) + x)


def _weak(s: Array, at: int, a: Array, b: Array) -> tuple[Array, Array]:
    w, x, y, z = (_word(s, at + 8 * k) for k in range(4))
    a = a + w
    b = _rotated(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _rotated(a, 44) + c


def _word(s: Array, at: int, size: int = 8) -> Array:
    """The little-endian number of `size` bytes at a place of every row."""
    return np.ascontiguousarray(s[:, at : at + size]).view(f"<u{size}")[:, 0].astype(np.uint64)


def _mixed(u: Array, v: Array) -> Array:
    a = _shifted((u ^ v) * MIX)
    return _shifted((v ^ a) * MIX) * MIX


def _shifted(x: Array) -> Array:
    result: Array = x ^ (x >> np.uint64(47))
    return result


def _rotated(x: Array, bits: int) -> Array:
    """Rotated to the right."""
    result: Array = (x >> np.uint64(bits)) | (x << np.uint64(64 - bits))
    return result
