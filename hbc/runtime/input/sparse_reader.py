"""Converts sparse matrices to arrays."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import InputSpec
from hbc.ir.types import Array
from hbc.runtime.input.values import reject_dtype
from hbc.runtime.sparse import is_matrix


def to_dense(X: Any, spec: InputSpec) -> Array:
    """The sparse matrix as a dense array: with 0 for the values that it leaves out, or NaN if the source takes them as missing. Raises
    InvalidInputError if the source rejects the matrix."""
    sparse = spec.sparse
    if not sparse.accepted:
        reject_sparse(X)
    if spec.frames.by_column and X.format in ("coo", "dia", "bsr"):
        advice = "scikit-learn cannot pick its columns: X.tocsr()."
        raise InvalidInputError(found=f"a sparse matrix in the format {X.format}", expected="CSR or CSC", advice=advice)
    if not sparse.csc and X.format == "csc":
        advice = "The source library mixes up the entries of others: X.tocsr()."
        raise InvalidInputError(found=f"a sparse matrix ({type(X).__name__})", expected="CSR", advice=advice)
    if sparse.csr_if_named and spec.feature_names and not (X.format == "csr" and is_matrix(X)):
        advice = "The source library misses the names of the columns in others: scipy.sparse.csr_matrix(X)."
        raise InvalidInputError(found=f"a sparse matrix ({type(X).__name__})", expected="csr_matrix", advice=advice)
    if sparse.matrices_only and not is_matrix(X):
        advice = "The source library takes scipy's older classes only: scipy.sparse.csr_matrix(X)."
        raise InvalidInputError(found=f"a {type(X).__name__}", expected="a sparse matrix", advice=advice)
    if sparse.matrices_only and (X.format == "dia" or not _is_canonical(X)):
        found = "a sparse matrix in the format dia" if X.format == "dia" else "a cell that stands twice in a sparse matrix"
        raise InvalidInputError(
            found=found, expected="CSR without duplicates", advice="Pass X.tocsr() after X.sum_duplicates()."
        )
    if sparse.floats_only and X.dtype not in (np.float32, np.float64):
        advice = "The source library rejects other sparse matrices: X.astype(numpy.float64)."
        raise InvalidInputError(found=f"a sparse matrix of {X.dtype}", expected="float32 or float64", advice=advice)
    if not sparse.absent_is_missing or X.ndim != 2:
        dense = np.asarray(X.toarray())
        if not sparse.nan and dense.dtype.kind == "f" and np.isnan(dense).any():
            advice = "scikit-learn's trees take missing values in dense matrices only: pass X.toarray()."
            raise InvalidInputError(found="NaN in a sparse matrix", expected="values", advice=advice)
        return dense
    if X.dtype.kind == "c":
        reject_dtype(X.dtype, "X")
    entries = X.tocsr().tocoo()  # tocsr adds up the entries of one cell
    # XGBoost makes float32 of integers at once.
    dense = np.full(X.shape, np.nan, X.dtype if X.dtype.kind == "f" else np.float32)
    dense[entries.row, entries.col] = entries.data
    return dense


def _is_canonical(X: Any) -> bool:
    """Whether no cell of a sparse matrix stands in it twice."""
    if X.format in ("csr", "csc") and X.has_canonical_format:
        return True
    entries = X.tocoo()
    return len(np.unique(entries.row.astype(np.int64) * X.shape[1] + entries.col)) == entries.nnz


def reject_sparse(X: Any) -> NoReturn:
    """Raise InvalidInputError for a sparse matrix that the source rejects, or computes differently from a dense one."""
    advice = (
        "The source library rejects sparse matrices here, reads the values that they leave out as missing (XGBoost behind another "
        "estimator), or rounds them differently from dense ones before a decision (x · (1/scale) for x / scale before a "
        "tree), which hbc does not follow: pass X.toarray() if the values left out are zeros."
    )
    raise InvalidInputError(found=f"a sparse matrix ({type(X).__name__})", expected="a dense one", advice=advice)
