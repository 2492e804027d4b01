"""JSON: reading bodies, and what becomes of results in it. JSON has no NaN and no infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from hbc.serve.failures import Failure

NUMPY = orjson.OPT_SERIALIZE_NUMPY
FEW = 16
"""The most numbers for which Python's own loop is faster than numpy's start."""

value_of = orjson.loads
"""The JSON value that bytes are. Raises ValueError."""


def parsed(body: bytes | memoryview, what: str = "body") -> dict[str, Any]:
    """The JSON object that a body is. Raises Failure for anything else, with the place."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Failure("invalid", f"{what}: found no JSON ({error}), expected a JSON object in UTF-8.") from error
    if type(found) is not dict:
        raise Failure("invalid", f"{what}: found {described(found)}, expected a JSON object.")
    return found


def described(value: Any) -> str:
    """A JSON value in words, short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"{value!r:.60}" if value is not None else "null"


def written(document: Any) -> bytes:
    return orjson.dumps(document, option=NUMPY)


def jsonable(values: Any) -> Any:
    """A result as JSON can hold it: numbers as they are, NaN as null, infinities as "Infinity" and "-Infinity", other objects as text.
    Arrays of finite numbers stay arrays, which `written` takes."""
    if isinstance(values, np.ndarray):
        kind = values.dtype.kind
        if kind in "biu":
            return np.ascontiguousarray(values)
        if values.dtype == np.float64 and values.size <= FEW:
            found = values.tolist()
            total = sum(
                found if values.ndim == 1 else values.ravel().tolist()
            )  # infinite or NaN if one of them is: 1 µs less than numpy
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


def failure(error: Failure) -> bytes:
    """The body of an answer that is an error, in the form of v2."""
    return orjson.dumps({"error": error.message.encode("utf-8", "replace").decode()})


def kind_of(dtype: str) -> str:
    """What values of a dtype of numpy are, in plain words: "text" for strings."""
    return {"b": "true or false", "i": "whole number", "u": "whole number", "f": "number"}.get(np.dtype(dtype).kind, "text")
