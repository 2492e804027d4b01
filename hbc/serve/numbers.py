"""Large arrays of numbers in JSON, read into memory without a Python object for each: simdjson takes 33 µs for 100 rows of 20 numbers, and
orjson with numpy 85. Without simdjson, and for all else, the usual way reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.serve.documents import value_of

try:
    import simdjson
except ImportError:  # it has no wheels for the newest Python
    simdjson = None  # type: ignore[assignment]

MANY = 4 << 10
"""The fewest bytes of an array for which this is faster."""
STAND_IN = -918273645546372819
"""Stands in a document for the array that was cut out of it."""


def cut_out(body: bytes, start: int, end: int) -> tuple[dict[str, Any], Array] | None:
    """(the JSON object that a body is, with STAND_IN for what stands at [start, end); the numbers that stand there, which are an array of
    JSON, or an array of arrays of one length). None for anything else: then the usual way reads it, or says what is wrong."""
    if simdjson is None or start < 0 or end - start < MANY or body[start : start + 1] != b"[":
        return None
    number, before, behind = b"%d" % STAND_IN, body[:start], body[end:]
    if number in before or number in behind:
        return None
    numbers = _numbers(body[start:end])
    if numbers is None:
        return None
    try:
        document = value_of(before + number + behind)
    except ValueError:
        return None
    return (document, numbers) if type(document) is dict else None


def _numbers(text: bytes) -> Array | None:
    """The numbers of an array of JSON as float64: a vector, or a matrix. None for what is neither, or has integers only, which have a dtype
    of their own."""
    try:
        found: Any = simdjson.Parser().parse(text)
        values = np.frombuffer(found.as_buffer(of_type="d")).copy()  # compiled code takes no memory that is read-only
        arrays = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("["))  # a third of the time of text.count
        if arrays == 1:
            return values
        widths = set(map(len, found))
        if len(widths) != 1 or arrays != len(found) + 1:
            return None
        return values.reshape(len(found), widths.pop())
    except (ValueError, TypeError, RuntimeError):
        return None


def is_whole(text: bytes) -> bool:
    """Whether an array of numbers has integers only."""
    return b"." not in text and b"e" not in text and b"E" not in text
