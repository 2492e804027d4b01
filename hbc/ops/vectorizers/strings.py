"""The parts that vectorizers and hashes of categories share: lists of strings as arrays of bytes, their hashes, operators that make mostly
zeros, and the errors for bad items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, shown
from hbc.ir.graph import Operator
from hbc.ir.rows import Rows
from hbc.ir.types import Array, TensorType, require

NUMBERS = frozenset({int, float, bool})
"""The types of the numbers of most dicts. Subclasses of them are none of these."""
NUMBERS_AND_STRINGS = NUMBERS | {str}


def pack(strings: Iterable[str]) -> tuple[Array, Array]:
    """(the strings as bytes in UTF-8, the end of each). numpy's own arrays of strings take the longest one's room for each, and
    lose null characters at the end."""
    strings = list(strings)
    whole = "".join(strings)
    encoded: Sequence[str] | Sequence[bytes] = (
        strings if whole.isascii() else [string.encode("utf-8", "surrogatepass") for string in strings]
    )
    data = np.frombuffer(whole.encode("utf-8", "surrogatepass"), np.uint8)
    return data, np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))


def unpack(data: Array, ends: Array) -> list[str]:
    whole = data.tobytes()
    starts = [0, *ends.tolist()]
    if whole.isascii():
        text = whole.decode()
        return [text[a:b] for a, b in pairwise(starts)]
    return [whole[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(starts)]


def require_texts(data: Array, ends: Array) -> None:
    """Raise ValueError (UnicodeDecodeError is one) for bytes and ends that `unpack` cannot read: of a file that somebody has changed."""
    if data.dtype != np.uint8 or ends.dtype != np.int64 or (data.ndim, ends.ndim) != (1, 1):
        raise ValueError("packed strings of other dtypes")
    starts = np.concatenate([[0], ends])
    if starts[-1] != len(data) or (np.diff(starts) < 0).any():
        raise ValueError("packed strings that end elsewhere")
    data.tobytes().decode("utf-8", "surrogatepass")
    if (data[starts[starts < len(data)]] & 0xC0 == 0x80).any():
        raise ValueError("packed strings that end inside a character")


def hashed(strings: Sequence[bytes], function: Callable[[Array], Array], dtype: np.dtype[Any]) -> Array:
    """The hash of each string, [M] of `dtype`. `function` hashes strings of one length, u8[K, length], at once."""
    hashes = np.zeros(len(strings), dtype)
    by_length: dict[int, list[int]] = {}
    for i, string in enumerate(strings):
        by_length.setdefault(len(string), []).append(i)
    for length, places in by_length.items():
        data = np.frombuffer(b"".join([strings[i] for i in places]), np.uint8).reshape(len(places), length)
        hashes[places] = function(data)
    return hashes


def lone_surrogate() -> InvalidInputError:
    """The error for a string that UTF-8 cannot hold."""
    return InvalidInputError(found="a string with a lone surrogate", expected="text that UTF-8 can hold", where="X")


def derived(op: Operator, make: Callable[[], Any]) -> Any:
    """make(), computed at the operator's first call and kept."""
    if "_made" not in op.__dict__:
        object.__setattr__(op, "_made", make())
    return op.__dict__["_made"]


def rejected(item: Any, expected: str) -> InvalidInputError:
    return InvalidInputError(found=shown(item), expected=expected, where="X")


class Maker(Operator):
    """An operator that makes a matrix of mostly zeros from objects (lists, dicts, sets)."""

    rows = "makes"
    removes_missing = True

    def rows_of(self, x: Array) -> Rows:
        """The matrix for the objects x. Raises InvalidInputError for an object that the source library rejects."""
        alone = self.row_of(x.item()) if x.size == 1 else None
        return self.all_rows_of(x) if alone is None else alone

    def all_rows_of(self, x: Array) -> Rows:
        """The matrix for any number of objects, as `rows_of` gives it."""
        raise NotImplementedError

    def evaluate(self, x: Array) -> Array:
        return self.rows_of(x).dense()


def require_objects(x: TensorType) -> None:
    require(x.dtype == "str" and len(x.shape) == 1, "the operand must be lists or dicts, str[N]")


def row_of_each(lists: list[Any]) -> Array:
    return np.repeat(np.arange(len(lists)), np.fromiter(map(len, lists), np.int64, len(lists)))
