"""Compiled code in this process's memory, on its way to a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


class MemoryStore:
    """A store that keeps everything. `objects`: digest → bytes. `references`: key → document. made_by: the names and versions of what
    compiles the code."""

    place = "memory"

    def __init__(self, made_by: Mapping[str, str]) -> None:
        self.made_by = dict(made_by)
        self.objects: dict[str, bytes] = {}
        self.references: dict[str, dict[str, Any]] = {}

    def put(self, data: bytes | memoryview) -> str:
        """Keep some bytes and return their digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.objects.setdefault(digest, bytes(data))
        return digest

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest, or None."""
        return self.objects.get(digest)

    view = get

    def refer(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Keep a document (JSON) under a key."""
        self.references[f"{kind} {key}"] = document

    def find(self, kind: str, key: str) -> dict[str, Any] | None:
        """The document under a key, or None."""
        return self.references.get(f"{kind} {key}")

    def shrink(self) -> None:
        """Nothing: all of it is wanted."""
