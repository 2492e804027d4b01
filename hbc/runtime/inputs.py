"""From what callers pass (arrays, lists, frames, sparse matrices) to the arrays of a graph's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import InputSpec, Kinds, Sample, input_layout
from hbc.ir.types import NUMPY_DTYPES, Array, DType


def describe(X: Any) -> Sample:
    """Names and dtypes of a sample's columns."""
    array = np.asarray(X)
    kind = variant_dtype(array.dtype)
    return Sample(None, tuple(kind for _ in range(array.shape[1] if array.ndim == 2 else 1)))


def variant_dtype(dtype: np.dtype[Any]) -> DType:
    """The dtype of the variant that takes an array: f32 for float16 and float32, f64, i64 for integers and bool."""
    if dtype.kind == "f":
        return "f32" if dtype.itemsize <= 4 else "f64"
    return "i64" if dtype.kind in "iub" else "str"


def prepare(X: Any, spec: InputSpec, variants: tuple[Kinds, ...]) -> tuple[Kinds, list[Array]]:
    """The variant for X, and its inputs. Raises InvalidInputError."""
    array = np.asarray(X)
    if array.ndim != spec.ndim:
        raise InvalidInputError(found=f"an array of shape {array.shape}", expected=f"{spec.ndim} dimensions")
    if spec.ndim == 2 and array.shape[1] != spec.n_features:
        raise InvalidInputError(found=f"{array.shape[1]} columns", expected=f"{spec.n_features}")
    wanted = variant_dtype(array.dtype)
    if wanted == "str" and len(spec.strings) < spec.n_features:
        wanted = "f64"
    kinds = next(k for k in variants if set(k) - {"str", "unread"} <= {wanted})
    arrays = []
    for columns in input_layout(kinds).values():
        dtype = NUMPY_DTYPES[kinds[columns[0]]]  # type: ignore[index]
        block = array if spec.ndim == 1 or len(columns) == spec.n_features else array[:, list(columns)]
        arrays.append(np.ascontiguousarray(block, dtype))
    return kinds, arrays
