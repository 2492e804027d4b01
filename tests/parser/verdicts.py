"""What a compiled model does with an input that its source answers or rejects."""

from __future__ import annotations

from typing import Any

import numpy as np

import hbc


def verdict(compiled: Any, method: str, given: Any, expected: Any) -> str:
    """ "rejected" if the compiled model rejects the input, which it may. Otherwise "answered" if the source does not (expected is None),
    "different" if it gives something else, or "same"."""
    try:
        found = getattr(compiled, method)(given)
    except hbc.InvalidInputError:
        return "rejected"
    if expected is None:
        return "answered"
    alike = found.shape == expected.shape and np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    return "same" if alike else "different"
