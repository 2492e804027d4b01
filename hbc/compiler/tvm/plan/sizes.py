"""The number of elements of a value, and the width of an element in memory."""

from __future__ import annotations

import numpy as np

from hbc.ir.types import TensorType

STORAGE: dict[str, str] = {"bool": "i8"}  # bits are kept as bytes


def elements(kind: TensorType) -> int:
    """Elements per row of a batched value; all elements of a constant."""
    return int(np.prod([dim for dim in kind.shape if dim != "N"], dtype=np.int64))


def bytes_of(dtype: str) -> int:
    """Bytes of one element of a dtype in memory."""
    return int(STORAGE.get(dtype, dtype)[1:]) // 8
