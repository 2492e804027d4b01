"""Compiled code in a saved model. It is read only for a caller who trusts the file: whoever can change the code can run any other."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from hbc.cache.memory import MemoryStore
from hbc.errors import ArtifactError
from hbc.ir.archive import UNREADABLE, Archive

INDEX = "index.json"
"""The member of a level that says what its code was made by, and has its references: key → document. The other members are objects,
named by their digests."""
_DIGEST = re.compile("[0-9a-f]{64}")


def code_members(stores: Mapping[str, MemoryStore]) -> tuple[dict[str, dict[str, str]], dict[str, bytes]]:
    """(level → member → SHA-256, member → its bytes). Levels share the objects that are the same, such as tables: the object lies with
    the first of these levels, and all of them list it."""
    listed: dict[str, dict[str, str]] = {}
    contents: dict[str, bytes] = {}
    places: dict[str, str] = {}  # digest → member
    for level, store in stores.items():
        document = {"made_by": store.made_by, "references": store.references}
        index = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        contents[f"code/{level}/{INDEX}"] = index
        listed[level] = {f"code/{level}/{INDEX}": hashlib.sha256(index).hexdigest()}
        for digest in sorted(store.objects):
            member = places.setdefault(digest, f"code/{level}/{digest}")
            contents[member] = store.objects[digest]
            listed[level][member] = digest
    return listed, contents


class StoredCode:
    """The compiled code of a saved model. Nothing of it is read before `of` is asked. listed: level → member → SHA-256, as the manifest has
    it. Raises ValueError if it is something else."""

    def __init__(self, archive: Archive, listed: Mapping[str, Mapping[str, str]]) -> None:
        self._archive = archive
        self._listed = {str(level): dict(members) for level, members in listed.items()}
        for member, digest in (item for members in self._listed.values() for item in members.items()):
            if not (member.startswith("code/") and isinstance(digest, str) and _DIGEST.fullmatch(digest)):
                raise ValueError(f"compiled code {member} with the SHA-256 {digest!r:.80}")

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of processors that there is code for."""
        return tuple(self._listed)

    def of(self, level: str) -> FileStore:
        """The code for one of the `levels`. Raises ArtifactError if it is damaged."""
        return FileStore(self._archive, level, self._listed[level])


class FileStore:
    """The code for one level, as a store that takes nothing new. What is read is compared with its digest in the manifest first.

    made_by: the names and versions of what compiled it."""

    place = "the saved model"

    def __init__(self, archive: Archive, level: str, members: Mapping[str, str]) -> None:
        self._archive = archive
        self._members = {digest: member for member, digest in members.items()}
        self.level = level
        text = self.get(members.get(f"code/{level}/{INDEX}", ""))
        if text is None:
            raise self._damaged(f"no code/{level}/{INDEX}")
        try:
            document = json.loads(text)
            self.made_by: dict[str, str] = {name: str(version) for name, version in document["made_by"].items()}
            self._references: dict[str, dict[str, Any]] = dict(document["references"])
        except UNREADABLE as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest, or None. Raises ArtifactError if they are damaged."""
        if digest not in self._members:
            return None
        member = self._members[digest]
        try:
            data = self._archive.data(member)
        except UNREADABLE as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise self._damaged(f"{member} is damaged")
        return data

    view = get

    def find(self, kind: str, key: str) -> dict[str, Any] | None:
        """The document under a key, or None."""
        return self._references.get(f"{kind} {key}")

    def put(self, data: bytes | memoryview) -> str:
        """The digest of some bytes, which are not kept."""
        return hashlib.sha256(data).hexdigest()

    def refer(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Nothing: the file stays as it is."""

    def shrink(self) -> None:
        """Nothing: the file stays as it is."""

    def _damaged(self, reason: str) -> ArtifactError:
        return ArtifactError(
            path=self._archive.path,
            found=f"damaged compiled code ({reason})",
            expected="what CompiledModel.save wrote",
            advice="Save the model again. Without trust_code, hbc.load compiles its graphs, which are compared with digests of their own.",
        )
