"""`Rows`: matrices that are mostly zeros, in the form in which the host computes with them (the three arrays of scipy's CSR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.lazy import cached_property, record


@record(eq=False)
class Rows:
    """A matrix x[N, width]. Row i has data[k] in column indices[k] for indptr[i] <= k < indptr[i + 1], and 0 elsewhere.

    The columns of a row ascend. An entry may be 0. `unique`: no column comes twice in a row. Otherwise x[i, j] is the sum of the entries of
    row i in column j.
    """

    indptr: Array
    indices: Array
    data: Array
    width: int
    unique: bool = True

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    @cached_property
    def row(self) -> Array:
        """The row of each entry, int64[entries]."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def dense(self, start: int = 0, stop: int | None = None) -> Array:
        """x[start:stop] as an array [stop - start, width]."""
        stop = len(self) if stop is None else min(stop, len(self))
        y = np.zeros((stop - start, self.width), self.dtype)
        part = slice(self.indptr[start], self.indptr[stop])
        row = np.repeat(np.arange(stop - start), np.diff(self.indptr[start : stop + 1]))
        if self.unique:
            y[row, self.indices[part]] = self.data[part]
        else:
            np.add.at(y, (row, self.indices[part]), self.data[part])
        return y

    def values(self) -> Array:
        """A vector with all numbers that the matrix contains: its entries, and one 0 if it has fewer entries than elements."""
        return np.append(self.data, np.zeros(1, self.dtype)) if len(self.data) < len(self) * self.width else self.data

    def with_data(self, data: Array) -> Rows:
        return Rows(self.indptr, self.indices, data, self.width, self.unique)

    def select(self, columns: Array) -> Rows:
        """x[:, columns]. A column may be selected several times."""
        order = np.argsort(columns, kind="stable")
        first = np.searchsorted(columns, np.arange(self.width + 1), sorter=order)
        times = np.diff(first)[self.indices]  # how often each entry is selected: hardly ever more than once
        entry = np.repeat(np.arange(len(self.indices)), times)
        nth = np.arange(len(entry)) - np.repeat(np.cumsum(times) - times, times)
        chosen = order[first[self.indices[entry]] + nth]
        return sorted_rows(self.row[entry], chosen, self.data[entry], len(self), len(columns), self.unique)

    def matmul(self, w: Array) -> Array:
        """x @ w, [N, K] for w[width, K], in their common dtype. A row is summed in float64, from its first entry to its last."""
        dtype = np.result_type(self.dtype, w.dtype)
        y = np.empty((len(self), w.shape[1]), dtype)
        for k in range(w.shape[1]):
            y[:, k] = np.bincount(self.row, self.data * w[self.indices, k], len(self))
        return y

    @staticmethod
    def from_dense(x: Array) -> Rows:
        return Rows.chosen(x != 0, x, x.shape[1])

    @staticmethod
    def chosen(where: Array, data: Array, width: int, column: Array | None = None) -> Rows:
        """The Rows with the entry data[n, j] for each true where[n, j]. It goes to column j, or to column[n, j] (i32) if `column` is given.

        Indexing by a mask takes 2 ns an element, np.nonzero of a matrix 14 ns. If all elements are true, neither is needed.
        """
        count = where.shape[1]
        if column is None:
            # Made from tiles of 256 rows: for 100,000 rows of four columns this takes 0.1 ms, with tiles of one row 2 ms.
            together = min(len(where), 256)
            some = np.tile(np.arange(count, dtype=np.int32), together)
            column = np.tile(some, len(where) // max(together, 1) + 1)[: where.size].reshape(where.shape)
        if where.all():
            pointers = np.arange(0, where.size + 1, max(count, 1)) if count else np.zeros(len(where) + 1, np.int64)
            return Rows(narrow(pointers), column.reshape(-1), data.reshape(-1), width)
        ends = np.cumsum(np.count_nonzero(where, axis=1))
        kept = where.reshape(-1)
        return Rows(narrow(np.concatenate([np.zeros(1, np.int64), ends])), column[where], data.reshape(-1)[kept], width)

    @staticmethod
    def stack(parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, one below the other (numpy.vstack)."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.data) for part in parts)])
        pointers = [part.indptr[1:].astype(np.int64) + start for part, start in zip(parts, starts[:-1], strict=True)]
        return Rows(
            narrow(np.concatenate([np.zeros(1, np.int64), *pointers])),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.data for part in parts]),
            parts[0].width,
            all(part.unique for part in parts),
        )

    @staticmethod
    def beside(parts: Sequence[Rows]) -> Rows:
        """The columns of all parts, side by side (numpy.hstack)."""
        starts = np.cumsum([0, *(part.width for part in parts)])
        row = np.concatenate([part.row for part in parts])
        column = np.concatenate([part.indices + start for part, start in zip(parts, starts[:-1], strict=True)])
        data = np.concatenate([part.data for part in parts])
        return sorted_rows(row, column, data, len(parts[0]), int(starts[-1]), all(part.unique for part in parts))


def sorted_rows(row: Array, column: Array, data: Array, rows: int, width: int, unique: bool) -> Rows:
    """The Rows with the entries data[i] at (row[i], column[i]), which may come in any order. Entries of one row and column all stay."""
    order = np.argsort(row * np.int64(width) + column, kind="stable")
    return Rows(_pointers(row, rows), column[order].astype(np.int32), data[order], width, unique)


def summed_rows(row: Array, column: Array, data: Array | None, rows: int, width: int, dtype: np.dtype[Any]) -> Rows:
    """The Rows with the entries data[i] at (row[i], column[i]), which may come in any order; data None
    means 1 for each entry. Entries of one row and column are added up to one entry, perhaps to 0."""
    if data is None:
        key, totals = np.unique(row * np.int64(width) + column, return_counts=True)
    else:
        key, inverse = np.unique(row * np.int64(width) + column, return_inverse=True)
        totals = np.bincount(inverse, data, len(key))
    row, column = np.divmod(key, max(width, 1))
    return Rows(_pointers(row, rows), column.astype(np.int32), totals.astype(dtype), width)


def _pointers(row: Array, rows: int) -> Array:
    return narrow(np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row, minlength=rows))]))


def narrow(pointers: Array) -> Array:
    """The pointers (`indptr`) as int32 if they fit, otherwise unchanged."""
    return pointers.astype(np.int32) if pointers[-1] <= np.iinfo(np.int32).max else pointers
