"""Spans of integers: the least and the largest value that an integer of the graph can have, so that nothing is read outside of a
table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.types import NUMPY_DTYPES, Array

Span = tuple[int, int] | None
"""The least and the largest of some integers; (0, -1) where there are none. None: not known (integers made of floats)."""

EMPTY = (0, -1)


def span_of(*arrays: Array) -> Span:
    """The span of all integers of some arrays."""
    found = [(int(array.min()), int(array.max())) for array in arrays if array.size]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else EMPTY


def wrapped(span: Span, dtype: str) -> Span:
    """The span of the same integers in a dtype: all of its numbers where one of these does not fit in, since integers wrap around."""
    if span is None:
        return None
    limits = np.iinfo(NUMPY_DTYPES[dtype])
    return span if limits.min <= span[0] and span[1] <= limits.max else (int(limits.min), int(limits.max))


def union(spans: Sequence[Span]) -> Span:
    """The smallest span that holds all of these; None where one is not known."""
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return None
    some = [span for span in known if span[0] <= span[1]]
    return (min(low for low, _ in some), max(high for _, high in some)) if some else EMPTY
