"""CityHash64, version 1.0, of many strings of one length at once (util/digest/city.cpp of CatBoost)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.types import Array
from hbc.ops.vectorizers.strings import hashed, lone_surrogate, rejected

K0, K1, K2, K3, MIX = (
    np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557, 0x9DDFEA08EB382D69)
)


def city_hashes(texts: Sequence[str]) -> Array:
    """CityHash64 of the UTF-8 of each string, u64[M]. Raises InvalidInputError for items that are no strings, and for lone
    surrogates."""
    for text in texts:
        if not isinstance(text, str):
            raise rejected(text, "strings")
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError as error:
        raise lone_surrogate() from error
    return hashed(encoded, city_hash, np.dtype(np.uint64))


def city_hash(data: Array) -> Array:
    """CityHash64 of each row of data u8[M, length], u64[M]."""
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
    """The little-endian number of `size` bytes at a place of each row."""
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
