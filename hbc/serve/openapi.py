"""A description of the models for clients: an OpenAPI document, with examples that work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hbc.serve.served import Served


def summary(served: Served) -> dict[str, Any]:
    return {"name": served.name, "version": served.version, "methods": list(served.methods), "classes": served.classes}


def document(models: Sequence[Served]) -> dict[str, Any]:
    return {}
