"""Failure: why a request is not answered. Every protocol writes it in its own way."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "invalid",
    "unauthorized",
    "forbidden",
    "missing",
    "not_allowed",
    "too_large",
    "unsupported",
    "busy",
    "unavailable",
    "late",
    "internal",
]

STATUS: dict[Kind, int] = {
    "invalid": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "missing": 404,
    "not_allowed": 405,
    "too_large": 413,
    "unsupported": 415,
    "busy": 429,
    "internal": 500,
    "unavailable": 503,
    "late": 504,
}
"""Kind of failure → status of HTTP."""


class Failure(Exception):
    """A request is not answered. `kind`: one of STATUS. `retry_after`: seconds after which to try again, or None. The message is shown to
    the caller."""

    def __init__(self, kind: Kind, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return STATUS[self.kind]
