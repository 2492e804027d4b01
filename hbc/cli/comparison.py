"""Comparing the results of a source model with those of the compiled one: `Comparison` is the result for one method."""

from __future__ import annotations

import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

CALLS = 3
"""How often a method is called to measure its time; the least counts."""


class Comparison(NamedTuple):
    """What was found for one method."""

    method: str
    agrees: bool
    values: int
    """The numbers or labels that were compared."""
    beyond: int
    """Those that differ by more than the tolerance; of labels, those that differ."""
    labels: bool
    """Whether they are labels, or other values that are equal or not."""
    absolute: float | None
    """The largest absolute difference of two numbers; None for labels."""
    relative: float | None
    """The largest difference as a part of the source's number; None for labels."""
    first_row: int | None
    """The first row with a value that is beyond."""
    source_seconds: float
    compiled_seconds: float
    note: str = ""


def compare(
    method: str, source: Callable[[Any], Any], compiled: Callable[[Any], Any], X: Any, rtol: float, atol: float, labels: bool
) -> Comparison:
    """Call both with X, and compare. labels: what looks like numbers are labels. Raises ValueError if the source rejects X."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted, source_seconds = _timed(source, X)
        except Exception as error:  # whatever the source library raises
            # All lines of the message: scikit-learn names the columns that are missing after the first one.
            reason = textwrap.shorten(str(error), 300, placeholder=" …") or "no reason given"
            raise ValueError(f"{method}: the source library rejects the data ({type(error).__name__}: {reason})") from error
    found, compiled_seconds = _timed(compiled, X)
    times = (source_seconds, compiled_seconds)
    if wanted.shape != found.shape:
        note = f"the source gives {list(wanted.shape)}, the compiled model {list(found.shape)}"
        return Comparison(method, False, wanted.size, wanted.size, labels, None, None, 0, *times, note)
    if labels or wanted.dtype.kind not in "fc":
        beyond = _differ(wanted, found)
        absolute = relative = None
        labels = True
    else:
        a, b = wanted.astype(float), found.astype(float)
        with np.errstate(all="ignore"):
            difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
            tolerance = np.where(np.isfinite(a), atol + rtol * np.abs(a), 0.0)
            beyond = ~(difference <= tolerance)
            parts = np.where(difference == 0, 0.0, difference / np.abs(a))
        absolute, relative = _largest(difference), _largest(parts)
    rows = np.flatnonzero(beyond.reshape(len(beyond), -1).any(axis=1)) if beyond.size else np.empty(0, int)
    first = int(rows[0]) if len(rows) else None
    return Comparison(method, first is None, wanted.size, int(beyond.sum()), labels, absolute, relative, first, *times)


def _largest(differences: Any) -> float:
    """The largest of them; NaN counts as infinity (a number where the other has none)."""
    return float(np.where(np.isnan(differences), np.inf, differences).max(initial=0.0))


def _differ(a: Any, b: Any) -> Any:
    """Where two arrays of labels differ. NaN equals NaN."""
    a, b = a.astype(object), b.astype(object)
    return np.asarray((a != b) & ~((a != a) & (b != b)), bool)


def _timed(call: Callable[[Any], Any], X: Any) -> tuple[Any, float]:
    """(the result as one array, the least seconds of a call after the first one)."""
    result = as_array(call(X))
    seconds = []
    for _ in range(CALLS):
        started = time.perf_counter()
        made = call(X)
        if isinstance(made, Iterator):
            list(made)
        seconds.append(time.perf_counter() - started)
        if sum(seconds) > 2:
            break
    return result, min(seconds)


def as_array(result: Any) -> Any:
    """The result of a method as one array: frames and sparse matrices become dense, the matrices of a list stand side by side, and the
    stages of a generator along axis 1."""
    if isinstance(result, Iterator):
        return np.stack([np.asarray(each) for each in result], axis=1)
    if isinstance(result, list) and result and isinstance(result[0], np.ndarray):
        return np.hstack([each.reshape(len(each), -1) for each in result])
    if hasattr(result, "toarray"):
        return result.toarray()
    return np.asarray(result.to_numpy() if hasattr(result, "to_numpy") else result)
