"""JSON: reading and writing bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from hbc.serve.failures import Failure

NUMPY = orjson.OPT_SERIALIZE_NUMPY

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


def failure(error: Failure) -> bytes:
    """The body of an answer that is an error, in the form of v2."""
    return orjson.dumps({"error": error.message.encode("utf-8", "replace").decode()})


def kind_of(dtype: str) -> str:
    """What values of a dtype of numpy are, in plain words: "text" for strings."""
    return {"b": "true or false", "i": "whole number", "u": "whole number", "f": "number"}.get(np.dtype(dtype).kind, "text")
