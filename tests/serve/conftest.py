"""The servers that several tests talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Running, running, settings


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with the models `people` and `numbers`."""
    with running(settings()) as found:
        yield found


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server with small limits and a token."""
    limits = {
        "body": 20_000,
        "head": 4_000,
        "rows": 50,
        "columns": 40,
        "head_seconds": 0.5,
        "body_seconds": 0.5,
        "idle_seconds": 1.5,
    }
    with running(settings(limits=limits, token="open-sesame", control=False)) as found:
        yield found
