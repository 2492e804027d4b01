"""Reads the dump of a model (such as LightGBM's text) once for all walks through the model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
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


def read_once(read: Callable[..., Made], model: Any, *options: Hashable) -> Made:
    """read(model, *options), from memory if this walk or an earlier one has computed it. `read` parses the library's dump of a model, which
    takes 0.4 s for 500 trees of LightGBM. The result is shared, so do not change it."""
    known, key = _read.get({}), (read, id(model), options)
    if key not in known:
        known[key] = read(model, *options), model  # the model too: while it lives, no other object gets its id
    made: Made = known[key][0]
    return made
