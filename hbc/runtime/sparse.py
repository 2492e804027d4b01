"""scipy.sparse: large sparse input is cut into blocks of rows, and results that are sparse in the source library become its classes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hbc.errors import BackendUnavailableError
from hbc.ir.rows import Rows

BLOCK_BYTES = 1 << 25
"""The size of a block of rows as an array: 32 MiB."""


def is_sparse(X: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")  # nobody has a sparse matrix before it is imported
    return sparse is not None and bool(sparse.issparse(X))


def is_matrix(X: Any) -> bool:
    """Whether a sparse matrix is of scipy's older classes (csr_matrix), not an array (csr_array)."""
    return bool(sys.modules["scipy.sparse"].isspmatrix(X))


def without_rows(X: Any) -> Any:
    """A sparse matrix of the class, the dtype and the width of X."""
    return type(X)((0, X.shape[1]), dtype=X.dtype)


def is_large(X: Any) -> bool:
    """Whether a sparse matrix has to be cut into blocks, since as one array it would take more than BLOCK_BYTES."""
    return len(X.shape) == 2 and X.shape[0] * X.shape[1] * 8 > BLOCK_BYTES


def blocks(X: Any) -> Iterator[tuple[int, Any]]:
    """Yields the number of a block's first row, and the block of rows as a sparse matrix."""
    rows = X.tocsr()
    step = max(BLOCK_BYTES // (8 * max(X.shape[1], 1)), 1)
    for start in range(0, X.shape[0], step):
        yield start, rows[start : start + step]


def as_scipy(rows: Rows, name: str) -> Any:
    """The matrix as the class of scipy.sparse with this name. " i64" behind the name stands for indices of int64. Raises
    BackendUnavailableError without scipy."""
    name, _, wide = name.partition(" ")
    narrow = not wide and rows.indices.dtype == rows.indptr.dtype == np.int32
    matrix = _empty(f"csr{name[3:]}", (len(rows), rows.width))
    matrix.data = rows.data
    matrix.indices, matrix.indptr = (array if narrow else array.astype(np.int64) for array in (rows.indices, rows.indptr))
    if name.startswith("csc"):
        matrix = matrix.tocsc()
        if not narrow:  # scipy may have made them narrower
            matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    return matrix


def _empty(name: str, shape: tuple[int, int]) -> Any:
    """A new matrix of that class, without entries and pointers to its rows: the caller gives it both. This takes 1 µs. scipy's
    constructor takes 10, and its classes that are no arrays make indices of i64 narrower."""
    template = _template(name, shape)
    matrix = object.__new__(type(template))
    vars(matrix).update(vars(template))
    return matrix


@lru_cache(maxsize=64)
def _template(name: str, shape: tuple[int, int]) -> Any:
    """A matrix without entries, and without pointers to its rows: those of a million rows would take 8 MB."""
    if importlib.util.find_spec("scipy") is None:
        raise BackendUnavailableError(
            backend="scipy", reason="scipy not installed, and the result is sparse", extra="frames", kind="library"
        )
    import scipy.sparse

    matrix = getattr(scipy.sparse, name)(shape)
    matrix.indptr = matrix.indices
    return matrix
