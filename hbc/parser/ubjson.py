"""Reads Universal Binary JSON (draft 12), the format in which XGBoost writes its models. Floats keep their bits."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

ARRAYS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
NUMBERS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
CONSTANTS = {"T": True, "F": False, "Z": None}


def loads(data: bytes | bytearray) -> Any:
    """The document in `data`, as dicts, lists, str, int, float, bool and None. An array with one type for all its elements becomes a
    numpy array of that type, in the machine's byte order. Raises ValueError if `data` is not UBJSON, or ends too early."""
    try:
        return _Reader(bytes(data)).value()
    except (IndexError, struct.error) as error:
        raise ValueError("the document ends too early") from error


class _Reader:
    """A position in the bytes of a document. Each method reads the next thing there and moves the position behind it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def marker(self) -> str:
        self.at += 1
        return chr(self.data[self.at - 1])

    def value(self) -> Any:
        return self.typed(self.marker())

    def typed(self, marker: str) -> Any:
        if marker in NUMBERS:
            return self.number(marker)
        if marker == "S":
            return self.text()
        if marker == "{":
            return self.mapping()
        if marker == "[":
            return self.array()
        if marker in CONSTANTS:
            return CONSTANTS[marker]
        raise ValueError(f"unknown type {marker!r} at byte {self.at - 1}")

    def number(self, marker: str) -> Any:
        (value,) = struct.unpack_from(NUMBERS[marker], self.data, self.at)
        self.at += struct.calcsize(NUMBERS[marker])
        return value

    def text(self) -> str:
        length = self.number(self.marker())
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def ahead(self, marker: str) -> bool:
        """Whether `marker` is the next byte. If it is, it is skipped."""
        found = self.data[self.at] == ord(marker)
        self.at += found
        return found

    def mapping(self) -> dict[str, Any]:
        result = {}
        while not self.ahead("}"):
            key = self.text()
            result[key] = self.value()
        return result

    def array(self) -> Any:
        if self.ahead("$"):
            dtype = np.dtype(ARRAYS[self.marker()])
            if not self.ahead("#"):
                raise ValueError(f"an array of one type without a length at byte {self.at}")
            length = self.number(self.marker())
            self.at += length * dtype.itemsize
            return np.frombuffer(self.data, dtype, length, self.at - length * dtype.itemsize).astype(dtype.newbyteorder("="))
        if self.ahead("#"):
            return [self.value() for _ in range(self.number(self.marker()))]
        result = []
        while not self.ahead("]"):
            result.append(self.value())
        return result
