"""Where a model comes from: versions, time, and what its user noted about it."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from hbc.errors import ArtifactError
from hbc.lazy import record
from hbc.version import VERSION


@record
class Origin:
    """What is known of a model besides what it computes. It stays with the model through saving, loading and pickling."""

    hbc: str | None = None
    """The version of hbc that converted the model; None if a file does not say."""
    created: str | None = None
    """When the model was converted, in UTC, such as "2026-11-23T18:00:00Z"."""
    libraries: Mapping[str, str] = field(default_factory=dict)
    """The versions of the source libraries, by the names of their packages."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The user's own notes (`CompiledModel.save`)."""
    digest: str | None = None
    """The SHA-256 of the manifest of the file that the model was loaded from, as hexadecimal digits: models with the same digest are the
    same, bit by bit. None for a model that was not loaded."""


@record
class Info(Origin):
    """What `CompiledModel.info` tells: where the model comes from, and what it is. Printed, it is a list of these facts."""

    source: str = ""
    """The class of the source model, by its public dotted name."""
    methods: tuple[str, ...] = ()
    """The names of the methods that can be called."""

    def as_dict(self) -> dict[str, Any]:
        """The same as a dict of JSON values."""
        facts = {"source": self.source, "methods": list(self.methods), **origin_document(self), "digest": self.digest}
        return copy.deepcopy(facts)

    def __str__(self) -> str:
        facts = {**self.as_dict(), "methods": ", ".join(self.methods)}
        facts["libraries"] = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
        notes = facts.pop("metadata")
        lines = [f"{name}: {value}" for name, value in facts.items() if value]
        return "\n".join([*lines, *(f"metadata {key}: {json.dumps(value)}" for key, value in notes.items())])


def info_of(source: str, methods: tuple[str, ...], origin: Origin) -> Info:
    """The facts of a model. They are the caller's own: to change them does not change the model."""
    return Info(**copy.deepcopy(vars(origin)), source=source, methods=methods)


def new_origin(libraries: Mapping[str, str]) -> Origin:
    """The origin of a model that is converted now, or at $SOURCE_DATE_EPOCH (seconds since 1970): equal models then give equal files.
    Raises ValueError if that is no number."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is not None and not epoch.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH={epoch!r}: expected whole seconds since 1970")
    now = time.gmtime(None if epoch is None else int(epoch))
    return Origin(VERSION, time.strftime("%Y-%m-%dT%H:%M:%SZ", now), dict(libraries))


def noted(metadata: Any) -> dict[str, Any]:
    """The user's notes as JSON keeps them. Raises ArtifactError for what is no dict of JSON values by strings."""
    try:
        found = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_notes(f"{metadata!r:.60} ({error})") from error
    if not isinstance(metadata, dict) or found != metadata:
        raise _no_notes(f"{metadata!r:.60}, which JSON changes")
    return found


def _no_notes(found: str) -> ArtifactError:
    expected = "a dict from strings to strings, finite numbers, true or false, None, and lists and dicts of these"
    return ArtifactError(path="metadata", found=found, expected=expected)


def origin_document(origin: Origin) -> dict[str, Any]:
    """The origin as JSON; its digest is that of the file to be written."""
    return {
        "hbc": origin.hbc,
        "created": origin.created,
        "libraries": dict(sorted(origin.libraries.items())),
        "metadata": origin.metadata,
    }


def read_origin(document: Mapping[str, Any], digest: str) -> Origin:
    """The origin of a document. Raises ValueError, KeyError or TypeError for what hbc did not write."""
    version, created, libraries, metadata = (document[name] for name in ("hbc", "created", "libraries", "metadata"))
    texts = (*(version, created), *libraries.values())
    if not all(text is None or isinstance(text, str) for text in texts) or not isinstance(metadata, dict):
        raise ValueError("an origin of other types")
    return Origin(version, created, libraries, metadata, digest)
