"""Columns of strings as codes. An operator computes once for each different string, and looks the result up for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import record


@record(eq=False)
class CodedStrings:
    """A matrix x[N, F] of strings (str, None or NaN): x[n, f] = values[f][codes[f][n]]. The codes of a column are integers [N],
    its values objects [K]. Some values may come in no row."""

    codes: tuple[Array, ...]
    values: tuple[Array, ...]

    dtype = np.dtype(object)
    ndim = 2

    def __len__(self) -> int:
        return len(self.codes[0])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self.codes)

    def __getitem__(self, rows: slice) -> CodedStrings:
        return CodedStrings(tuple(column[rows] for column in self.codes), self.values)

    def select(self, columns: Sequence[int]) -> CodedStrings:
        """x[:, columns]"""
        return CodedStrings(tuple(self.codes[i] for i in columns), tuple(self.values[i] for i in columns))

    def with_few_values(self) -> CodedStrings:
        """The same strings. Of a column with more values than rows, only those that come in some row are left."""
        columns = list(zip(self.codes, self.values, strict=True))
        for i, (codes, values) in enumerate(columns):
            if len(values) > len(codes):
                used, places = np.unique(codes, return_inverse=True)
                columns[i] = places, values[used]
        return CodedStrings(*map(tuple, zip(*columns, strict=True))) if columns else self

    def looked_up(self, table: Array, column: int = 0) -> Array:
        """For each row: table[k], where values[column][k] is the row's string."""
        return np.asarray(table[self.codes[column]])

    def distinct(self) -> Array:
        """A matrix of objects whose rows together hold every value of every column, and no other values."""
        rows = max(map(len, self.values))
        y = np.empty((rows, len(self.values)), object)
        for column, values in zip(y.T, self.values, strict=True):
            column[: len(values)] = values
            column[len(values) :] = values[0] if len(values) else None
        return y

    def dense(self) -> Array:
        y = np.empty(self.shape, object)
        for j in range(len(self.codes)):
            y[:, j] = self.looked_up(self.values[j], j)
        return y


def dense(value: Any) -> Any:
    """The array of strings for CodedStrings; any other value is returned as it is."""
    return value.dense() if isinstance(value, CodedStrings) else value
