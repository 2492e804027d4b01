"""Where the memory of a caller's array lies."""

from __future__ import annotations

from typing import Any

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
