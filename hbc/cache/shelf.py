"""The part of a store that belongs to one variant of a model."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple, Protocol


class AnyStore(Protocol):
    """What keeps compiled code: a folder (cache/store.py), memory (cache/memory.py), or a saved model (runtime/stored_code.py)."""

    @property
    def place(self) -> str:
        """What it is, in words for `explain()`: "the cache"."""
        ...

    def put(self, data: bytes | memoryview) -> str:
        """Keep some bytes and return their digest, which is returned also if they cannot be kept."""
        ...

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest, or None."""
        ...

    def view(self, digest: str) -> bytes | memoryview | None:
        """The bytes with this digest, or None. They may lie in memory that other processes share, and cannot be written to."""
        ...

    def refer(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Keep a document (JSON) under a key. One that is there is replaced."""
        ...

    def find(self, kind: str, key: str) -> dict[str, Any] | None:
        """The document under a key, or None."""
        ...

    def shrink(self) -> None:
        """Delete what was used longest ago, if there is a limit to what is kept."""
        ...


class Shelf(NamedTuple):
    """The references under one `key`, and the store that has them and their objects."""

    store: AnyStore
    key: str

    @classmethod
    def of(cls, store: AnyStore, *facts: Any) -> Shelf:
        """The shelf for what depends on these facts (JSON)."""
        text = json.dumps(facts, sort_keys=True)
        return cls(store, hashlib.sha256(text.encode()).hexdigest())

    def find(self, name: str) -> dict[str, Any] | None:
        """The document of this name, or None."""
        return self.store.find("model", self._key(name))

    def refer(self, name: str, document: dict[str, Any]) -> None:
        """Keep a document (JSON) under this name."""
        self.store.refer("model", self._key(name), document)

    def _key(self, name: str) -> str:
        return hashlib.sha256(f"{self.key} {name}".encode()).hexdigest()
