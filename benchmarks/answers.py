"""Compares the answers of an engine with those of the library that trained the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

RTOL, ATOL = 1e-5, 1e-6
"""The tolerances of hbc's contract. An engine is exact if all its numbers are within them."""
WRONG, WRONG_ROWS = 1e-3, 0.01
"""An engine is wrong, and not timed, if more than the share WRONG_ROWS of rows is off by more than WRONG (of numbers beyond 1: by that
part of them). Between exact and wrong it is inexact."""

Array = np.ndarray[Any, Any]


def check(found: Any, expected: Any) -> dict[str, Any]:
    """The verdict on the answers `found`, and how far they are off: see `dense`. For sparse matrices with equal positions each entry
    counts as a row. Labels, which are no numbers, are equal or not."""
    if scipy.sparse.issparse(expected):
        found, expected = (scipy.sparse.csr_matrix(matrix).sorted_indices() for matrix in (found, expected))
        if not all(np.array_equal(getattr(found, part), getattr(expected, part)) for part in ("indptr", "indices")):
            return {"verdict": "wrong", "largest_difference": np.inf, "rows_differing": 1.0, "rows_wrong": 1.0}
        return dense(found.data, expected.data)
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind not in "fc" and found.shape == expected.shape:
        found, expected = (found != expected).astype(float), np.zeros(expected.shape)
    return dense(found, expected)


def dense(found: Array, expected: Array) -> dict[str, Any]:
    """Compares numbers. Of the probabilities of two classes, the second one alone is enough. Raises ValueError for another number of
    values."""
    expected = expected.reshape(len(expected), -1)
    two = expected.shape[1] == 2
    wanted = expected[:, 1:] if two and found.size == len(expected) else expected
    if found.size != wanted.size:
        raise ValueError(f"answer: {found.shape} values for {expected.shape} of the source")
    found, wanted = found.reshape(wanted.shape).astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        difference = np.where(same, 0.0, np.abs(found - wanted))
        differing = float((~(difference <= ATOL + RTOL * np.abs(wanted))).any(axis=1).mean())  # a NaN that is none differs
        wrong = float((~(difference <= WRONG * np.maximum(np.abs(wanted), 1))).any(axis=1).mean())
    verdict = "exact" if differing == 0 else "inexact" if wrong <= WRONG_ROWS else "wrong"
    largest = float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))
    return {"verdict": verdict, "largest_difference": largest, "rows_differing": differing, "rows_wrong": wrong}
