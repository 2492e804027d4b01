"""Where the memory of a caller's array lies, and whether it holds the array's numbers."""

from __future__ import annotations

import sys
from typing import Any

from hbc.errors import InvalidInputError

CARDS = (2, 13)
"""DLPack's device types of memory that a GPU computes with: its own, and memory that it shares with the host."""


def card_of(X: Any) -> int | None:
    """The number of the GPU that X lies on. None for everything else."""
    if not hasattr(type(X), "__dlpack_device__"):
        return None
    try:
        kind, number = X.__dlpack_device__()
    except (BufferError, RuntimeError, ValueError):  # a device that DLPack has no number for
        return None
    return int(number) if int(kind) in CARDS else None


def is_cudf(X: Any) -> bool:
    """Whether X is a frame of cuDF, whose columns lie on a GPU. Frames have no DLPack."""
    cudf = sys.modules.get("cudf")
    return cudf is not None and isinstance(X, cudf.DataFrame)


def require_own_signs(X: Any) -> None:
    """Raise InvalidInputError for a tensor of PyTorch whose memory holds the numbers with the opposite signs. DLPack says nothing of it."""
    if hasattr(X, "is_neg") and X.is_neg():
        raise InvalidInputError(
            found="a tensor whose memory holds its numbers with the opposite signs (X.is_neg())",
            expected="one that holds them as they are",
            advice="Copy it: X.resolve_neg().",
        )
