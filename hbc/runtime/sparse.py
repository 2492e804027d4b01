"""scipy.sparse: large sparse input is cut into blocks of rows, and results that are sparse in the source library become its classes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
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
    if importlib.util.find_spec("scipy") is None:
        raise BackendUnavailableError(backend="scipy", reason="scipy not installed, and the result is sparse", extra="frames")
    import scipy.sparse

    name, _, wide = name.partition(" ")
    indices = (rows.indices.astype(np.int64), rows.indptr.astype(np.int64)) if wide else (rows.indices, rows.indptr)
    # From numpy's arrays, a class that is no array of scipy's makes indices of i64 narrower.
    keeps = all(array.dtype == np.int32 for array in indices)
    first = f"csr{name[3:]}" if keeps else "csr_array"
    matrix = getattr(scipy.sparse, first)((rows.data, *indices), shape=(len(rows), rows.width))
    matrix = matrix.tocsc() if name.startswith("csc") else matrix
    return matrix if keeps else getattr(scipy.sparse, name)(matrix)
