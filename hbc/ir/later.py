"""Inputs of a graph that are read a few rows at a time, so that a large one need not be in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hbc.ir.coded_strings import CodedStrings
from hbc.ir.types import Array
from hbc.lazy import record


@record(eq=False)
class Later:
    """A matrix x[N, F] whose rows are read when they are asked for. read: (first, end) → x[first:end], an array, or CodedStrings of a
    matrix of strings. It raises InvalidInputError for values that have no place there, and counts rows from `first`."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    read: Callable[[int, int], CodedStrings | Array]

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def select(self, columns: Sequence[int]) -> Later:
        """x[:, columns]"""

        def read(first: int, end: int) -> CodedStrings | Array:
            found = self.read(first, end)
            return found.select(columns) if isinstance(found, CodedStrings) else np.ascontiguousarray(found[:, columns])

        return Later((len(self), len(columns)), self.dtype, read)


def part_of(value: Any, first: int, end: int) -> Any:
    """value[first:end], for an input of a graph. CodedStrings have no more values than rows then: of the values of a large matrix, a part
    may need few. Raises InvalidInputError."""
    if isinstance(value, Later):
        return value.read(first, end)
    found = value[first:end]
    return found.with_few_values() if isinstance(found, CodedStrings) else found


def read(value: Any) -> Any:
    """The whole matrix of a Later; any other value is returned as it is. Raises InvalidInputError."""
    return value.read(0, len(value)) if isinstance(value, Later) else value
