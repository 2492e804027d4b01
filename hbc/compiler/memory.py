"""Memory of arrays, as the libraries of the backends and compiled code take it."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import NUMPY_DTYPES, Array

LINE = 64
"""The bytes of a cache line."""


class _Memory:
    """An array's memory without its read-only flag: numpy reads the array interface and nothing else."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def writable(array: Array) -> Array:
    """The array itself if it can be written to, otherwise the same memory without the read-only flag; a copy of memory that is not
    aligned to its elements. DLPack refuses the flag, and PyTorch, which knows no read-only tensors, warns of it. Only for code that does
    not write to the array."""
    if not array.flags.aligned:
        return np.array(array)
    return array if array.flags.writeable else np.asarray(_Memory(array))


def aligned(size: int, dtype: str) -> Array:
    """An array of zeros that begins at a cache line, as compiled code expects its tables."""
    kind = NUMPY_DTYPES[dtype]
    return _from_line(size * kind.itemsize).view(kind)


def as_aligned(array: Array) -> Array:
    """The same numbers in an array that begins at a cache line: the array itself if it does."""
    if array.ctypes.data % LINE == 0:
        return array
    copy = _from_line(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _from_line(size: int) -> Array:
    """So many bytes, all 0, from the beginning of a cache line on."""
    memory = np.zeros(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]
