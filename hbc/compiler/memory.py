"""Memory of the caller's arrays, as the libraries of the backends take it."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import Array


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


def aligned(array: Array) -> Array:
    """The same numbers in memory that begins at a multiple of 64 bytes, as compiled code expects its tables. An array that does so is
    returned itself."""
    if array.ctypes.data % 64 == 0:
        return array
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
