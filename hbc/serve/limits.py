"""Limits: what a server takes from its clients, and for how long it waits for them."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import fields, replace

from hbc.lazy import record


@record
class Limits:
    """The limits of one server process. Every one must be positive; `delay` may be 0."""

    body: int = 32 << 20
    """The most bytes of a request's body."""
    head: int = 64 << 10
    """The most bytes of a request's head: its first line and its headers."""
    rows: int = 100_000
    """The most rows of a request."""
    columns: int = 10_000
    """The most columns, or tensors, of a request."""
    queue: int = 1_000
    """The most requests that wait. One more is told to come again (429)."""
    batch: int = 1_000
    """The most rows that waiting requests are computed together with."""
    delay: float = 0.0
    """The seconds that a large request waits for others, to be computed together with them. 0: what waits is taken together, nothing waits
    for more."""
    timeout: float = 60.0
    """The seconds after which a request without a deadline of its own is given up."""
    head_seconds: float = 10.0
    """The seconds in which the head of a request has to come, from its first byte, or from the connection."""
    body_seconds: float = 30.0
    """The seconds in which the body has to come; and those in which a client has to read its answer."""
    idle_seconds: float = 75.0
    """The seconds after which a connection without a request is closed."""
    connections: int = 20_000
    """The most connections of a process. One more is told to come again (503)."""
    drain_seconds: float = 30.0
    """The seconds that requests have to end in after SIGTERM."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if not (value > 0 or (field.name == "delay" and value == 0)):
                raise ValueError(f"{field.name}: found {value}, expected a positive number")


FILES = 50
"""The files that a worker opens besides its connections."""


def within_files(limits: Limits) -> Limits:
    """The limits with no more connections than this process may have open files. It is allowed as many as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = limits.connections + FILES if hard == resource.RLIM_INFINITY else hard
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return replace(limits, connections=max(min(limits.connections, soft - FILES), 1))
