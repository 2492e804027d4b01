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
