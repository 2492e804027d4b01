"""Magnitudes: the largest |x| of each column, from which operators compute how large their results can be."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import NUMPY_DTYPES, Array

MARGIN = 1e-3
"""The share of a dtype's largest number up to which a magnitude counts as safe: far more room than the rounding of steps takes."""


def fits(magnitudes: Array, dtype: str) -> Array:
    """Whether numbers of these magnitudes are far from overflow in a float dtype."""
    return np.asarray(magnitudes <= MARGIN * float(np.finfo(NUMPY_DTYPES[dtype]).max))


def magnitudes(value: Array | float) -> Array:
    """|value| in float64."""
    return np.abs(np.asarray(value).astype(np.float64))


def by_column(value: Array) -> Array:
    """|value| in float64 as a matrix [rows, columns]."""
    return magnitudes(value).reshape(-1, value.shape[-1] if value.ndim else 1)
