"""Checks of arguments of public functions. Without them, an array in the wrong place ends in numpy's words, such as "The truth value of an
array …", which name neither the argument nor what it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hbc.errors import shown


def flag(name: str, value: Any) -> bool:
    """A bool, also one of numpy. Raises ValueError for anything else."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: found {shown(value)}, expected True or False")
    return bool(value)


def texts(name: str, value: Any, expected: str) -> list[str]:
    """The strings of an iterable, or the one string that is no list. Raises ValueError for anything else."""
    try:
        found: list[Any] | None = [value] if isinstance(value, str) else list(value)
    except TypeError:  # no iterable, or an array without axes
        found = None
    if found is None or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name}: found {shown(value)}, expected {expected}")
    return found


def require(name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise ValueError for a value that is not of a kind, and not None."""
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name}: found {shown(value)}, expected {expected}")


def require_function(name: str, value: Any) -> None:
    """Raise ValueError for a value that cannot be called, and is not None."""
    if value is not None and not callable(value):
        raise ValueError(f"{name}: found {shown(value)}, expected a function or None")


def dtype_of(name: str, value: Any, known: Iterable[Any]) -> np.dtype[Any]:
    """A dtype of numpy, by its name or type. Raises ValueError, which lists the known ones, for what is none."""
    try:
        return np.dtype(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: found {shown(value)}, expected one of {', '.join(map(str, known))}") from None
