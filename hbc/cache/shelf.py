"""The part of the store that belongs to one variant of a model."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from hbc.cache.store import Store


class Shelf(NamedTuple):
    """The references under one `key`, and the store that has them and their objects."""

    store: Store
    key: str

    @classmethod
    def of(cls, store: Store, *facts: Any) -> Shelf:
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
