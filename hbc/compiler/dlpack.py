"""Arrays on a GPU as tensors of the library that runs a backend, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hbc.errors import InvalidInputError

DEFAULT = 1
"""DLPack's number for CUDA's default stream, whose handle is 0."""


def tensor_of(X: Any, stream: int, from_dlpack: Callable[[Any], Any]) -> Any:
    """An array on a GPU as the tensor that a library's `from_dlpack` makes of a capsule, ready to be used on a stream. Raises
    InvalidInputError for one that DLPack cannot express, or that is not contiguous."""
    try:
        found = from_dlpack(X.__dlpack__(stream=stream or DEFAULT))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            found=f"an array on a GPU that cannot be read ({error})",
            expected="a dense one of a numpy dtype, without a gradient",
            advice="Try X.detach().",
        ) from error
    if not found.is_contiguous():
        raise InvalidInputError(
            found="an array on a GPU whose rows do not lie one after the other",
            expected="a contiguous one",
            advice="Copy it: X.contiguous() of PyTorch, ascontiguousarray(X) of others.",
        )
    return found
