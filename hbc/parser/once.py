"""Reads the dump of a model (such as LightGBM's text) once for all walks through the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Made = TypeVar("Made")

_read: ContextVar[dict[Any, Any]] = ContextVar("hbc_parser_read")


@contextmanager
def reading() -> Iterator[None]:
    """A context around all walks through one model (one walk for each dtype): `read_once` reads the dump in the first walk, and returns the
    same result in the others."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def read_once(read: Callable[[Any], Made], model: Any) -> Made:
    """read(model), from memory if this walk or an earlier one has computed it. `read` parses the library's dump of a model, which takes 0.4
    s for 500 trees of LightGBM. The result is shared, so do not change it."""
    known = _read.get({})
    if (read, id(model)) not in known:
        known[read, id(model)] = read(model), model  # the model too: while it lives, no other object gets its id
    made: Made = known[read, id(model)][0]
    return made
