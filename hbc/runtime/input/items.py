"""Reads input that is a sequence of objects: documents, dicts, lists of names, or sets of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.types import Array
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame

EXPECTED = {
    "documents": "a sequence of documents: a list, an array or a series of strings",
    "dicts": "a sequence of dicts",
    "lists": "a sequence of lists",
    "sets": "a sequence of sets of labels",
}


def read_items(X: Any, kind: str) -> Array:
    """The objects as an array of Python objects [N]. `kind` is a key of EXPECTED. Raises InvalidInputError if X is no such sequence.
    Documents have still to be tested by `strings` of values.py."""
    if isinstance(X, Mapping) and kind == "dicts":
        return _objects([X])
    if isinstance(X, (str, bytes, Mapping)) or X is None or (hasattr(X, "ndim") and np.ndim(X) == 0):
        raise _rejected(X, kind)
    if isinstance(X, np.ndarray):
        return _of_array(X, kind)
    if not isinstance(X, (list, tuple)):
        frame = read_frame(X)
        if isinstance(frame, FrameView):
            raise _rejected(X, kind, "Pass one of its columns: X['text'].")
        if frame is not None:
            return _of_array(frame, kind)
    if hasattr(X, "toarray") or not isinstance(X, Iterable):
        raise _rejected(X, kind)
    return _objects(list(X))


def _of_array(X: Array, kind: str) -> Array:
    if X.ndim == 1 and (kind != "documents" or X.dtype.kind in "OUT"):
        return X if X.dtype.kind == "O" else X.astype(object)
    if X.ndim == 2 and kind in ("lists", "sets"):
        return _objects(X.tolist() if kind == "lists" else list(X))
    raise _rejected(X, kind, "Pass X.ravel() if each of its strings is a document." if kind == "documents" else "")


def _objects(items: list[Any]) -> Array:
    return np.fromiter(items, object, len(items))  # np.array would make a matrix of lists of equal length


def _rejected(X: Any, kind: str, advice: str = "") -> InvalidInputError:
    what = f"an array of shape {X.shape}" if isinstance(X, np.ndarray) else "None" if X is None else f"a {type(X).__name__}"
    return InvalidInputError(found=what, expected=EXPECTED[kind], where="X", advice=advice)
