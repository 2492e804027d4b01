"""`jsonable`: what becomes of results in JSON, which has no NaN and no infinity. It needs no library, so that adapters and the command
line run without the extra `serve`."""

from __future__ import annotations

from typing import Any

import numpy as np

FEW = 16
"""The most numbers for which Python's own loop is faster than numpy's start."""


def jsonable(values: Any) -> Any:
    """A result as JSON can hold it: numbers as they are, NaN as null, infinities as "Infinity" and "-Infinity", other objects as text.
    Arrays of finite numbers stay arrays, which `written` takes."""
    if isinstance(values, np.ndarray):
        kind = values.dtype.kind
        if kind in "biu":
            return np.ascontiguousarray(values)
        if values.dtype == np.float64 and values.size <= FEW:
            found = values.tolist()
            # The sum is infinite or NaN if one of them is. This takes 1 µs less than numpy.
            total = sum(found if values.ndim == 1 else values.ravel().tolist())
            return found if total - total == 0 else _each(found)
        if kind == "f":
            finite = np.isfinite(values).all()
            return (
                np.ascontiguousarray(values, values.dtype if values.dtype.itemsize <= 8 else "f8")
                if finite
                else _each(values.tolist())
            )
        return _each(values.tolist())
    return _each(values)


def _each(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is float:
        return value if value - value == 0 else None if value != value else "Infinity" if value > 0 else "-Infinity"
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, list):
        return [_each(item) for item in value]
    return str(value)
