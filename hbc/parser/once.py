"""What a library dumps of a model is read once for all walks through the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Made = TypeVar("Made")

_read: ContextVar[dict[Any, Any]] = ContextVar("hbc_parser_read")


@contextmanager
def reading() -> Iterator[None]:
    """Around all walks through one model, one for each dtype: `read_once` reads in the first walk, and the others get the same."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def read_once(read: Callable[[Any], Made], model: Any) -> Made:
    """read(model), where `read` parses what the library dumps of a model. The result is shared, so do not change it. (500 trees of
    LightGBM take 0.4 s to read.)"""
    known = _read.get({})
    if (read, id(model)) not in known:
        known[read, id(model)] = read(model), model  # which keeps its id
    made: Made = known[read, id(model)][0]
    return made
