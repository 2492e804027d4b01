"""The servers that several tests talk to. What makes them is imported when a test asks: it needs libraries that may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serving import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with the models `people` and `numbers`."""
    from serving import running, settings

    with running(settings()) as found:
        yield found


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """A server with small limits and a token."""
    from serving import running, settings

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
