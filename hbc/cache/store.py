"""Compiled code on disk: objects under the SHA-256 of their bytes, and references, small JSON documents that name objects.

    v1/objects/3f/3fa9…         bytes: machine code, tables, texts and arrays of graphs
    v1/references/function/9c…  JSON: the code of a function, by what it was compiled from
    v1/references/model/a1…     JSON: a document of a variant of a model (hbc.kept), or of one of its methods (hbc.compiler.tvm.run.kept)

A file appears whole or not at all (temporary file, then rename), so that processes need no locks. What is read is compared with its
digest. Whatever is damaged, missing, or writable by other users counts as not there: it is compiled anew, and written again. A folder that
cannot be written to, or a full disk, costs nothing but time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hbc.cache.folder import cache_folder, is_local, is_own, make_private

VERSION = "v1"
LIMIT = 1 << 30
"""The bytes that the folder may take, unless $HBC_CACHE_LIMIT says otherwise: 1 GiB. A model of 500 trees takes about 1 MB a dtype."""
MAPPED = 1 << 20
"""The bytes from which on `view` maps a file: smaller ones are read, since a mapping takes whole pages and a file that stays open."""
KEPT = 0.8
"""The part of the limit that is left after the oldest files were deleted."""
LEFT_BEHIND = 3600.0
"""Seconds after which a temporary file belongs to no process any more."""


Data = TypeVar("Data", bytes, memoryview)


class Usage(NamedTuple):
    """What the cache takes: `folder` (None: there is none), its `files` and `bytes`, and the `limit` in bytes."""

    folder: Path | None
    files: int
    bytes: int
    limit: int


class Store:
    """The store in one folder."""

    place = "the cache"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "code"
        self._root = self.folder / VERSION

    def takes(self) -> bool:
        """Whether something can be kept here. It makes the folder if there is none."""
        with contextlib.suppress(OSError):
            make_private(self.folder)
        return os.access(self.folder, os.W_OK)

    # --- objects -------------------------------------------------------------------------------------------------------

    def put(self, data: bytes | memoryview) -> str:
        """Keep some bytes and return their digest, which is returned also if they cannot be kept."""
        digest = hashlib.sha256(data).hexdigest()
        if self.get(digest) is None:  # which also replaces a damaged file
            self._write(self._object(digest), data)
        return digest

    def get(self, digest: str) -> bytes | None:
        """The bytes with this digest, or None. Damaged files are deleted."""
        return self._compared(digest, _read)

    def view(self, digest: str) -> memoryview | None:
        """The bytes with this digest, or None. Damaged files are deleted. Large files are mapped and cannot be written to: all processes
        that have a file mapped share its memory. It is compared through the mapping, and later files of this name are others."""
        return self._compared(digest, _view)

    def _compared(self, digest: str, read: Callable[[Path], Data | None]) -> Data | None:
        path = self._object(digest)
        data = read(path)
        if data is None:
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            _delete(path)
            return None
        _touch(path)
        return data

    def _object(self, digest: str) -> Path:
        return self._root / "objects" / digest[:2] / digest

    # --- references ----------------------------------------------------------------------------------------------------

    def refer(self, kind: str, key: str, document: dict[str, Any]) -> None:
        """Keep a document (JSON) under a key. One that is there is replaced."""
        body = json.dumps([kind, key, document], sort_keys=True, separators=(",", ":")).encode()
        self._write(self._reference(kind, key), hashlib.sha256(body).hexdigest().encode() + b"\n" + body)

    def find(self, kind: str, key: str) -> dict[str, Any] | None:
        """The document under a key, or None."""
        path = self._reference(kind, key)
        data = _read(path)
        if data is None:
            return None
        digest, _, body = data.partition(b"\n")
        whole = hashlib.sha256(body).hexdigest().encode() == digest
        found: Any = json.loads(body) if whole else ["", "", {}]
        if found[:2] != [kind, key]:  # damaged, or the file of another key
            _delete(path)
            return None
        _touch(path)
        document: dict[str, Any] = found[2]
        return document

    def _reference(self, kind: str, key: str) -> Path:
        return self._root / "references" / kind / key

    # --- size ----------------------------------------------------------------------------------------------------------

    def usage(self) -> Usage:
        """How much is kept."""
        sizes = [status.st_size for _, status in self._files()]
        return Usage(self.folder, len(sizes), sum(sizes), _limit())

    def clear(self) -> Usage:
        """Delete everything, and return what was deleted: on a disk that cannot be written to, nothing."""
        found = self.usage()
        shutil.rmtree(self.folder, ignore_errors=True)
        left = self.usage()
        return found._replace(files=found.files - left.files, bytes=found.bytes - left.bytes)

    def shrink(self) -> None:
        """Delete the files that were used longest ago, if there are more bytes than the limit; and what killed processes left behind."""
        files = sorted(self._files(), key=lambda found: found[1].st_mtime)
        total, limit = sum(status.st_size for _, status in files), _limit()
        least = limit if total <= limit else KEPT * limit
        for path, status in files:
            left_behind = path.name.endswith(".tmp") and time.time() - status.st_mtime > LEFT_BEHIND
            if total > least or left_behind:
                _delete(path)
                total -= status.st_size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # another process deleted it
                    path = Path(folder, name)
                    yield path, path.lstat()

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        if len(data) > _limit():
            return
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            make_private(self.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            _delete(temporary)
        except BaseException:
            _delete(temporary)
            raise


def store() -> Store | None:
    """The user's store. None if nothing is to be kept, or if other users may write to its folder. Raises ValueError for a limit that is no
    number: not later, where it would stop only the processes that have something new to keep."""
    folder = cache_folder()
    if folder is None:
        return None
    _limit()
    found = Store(folder)
    try:
        return found if is_own(found.folder.lstat()) else None
    except OSError:
        return found  # it is not there yet


def _limit() -> int:
    """The bytes that $HBC_CACHE_LIMIT allows. Raises ValueError for what is no number."""
    text = os.environ.get("HBC_CACHE_LIMIT", "")
    if not text:
        return LIMIT
    if not text.isdecimal():
        raise ValueError(f"HBC_CACHE_LIMIT={text!r}: expected a number of bytes")
    return int(text)


def _read(path: Path) -> bytes | None:
    """The bytes of a regular file of this user's that nobody else may write to, else None."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            return file.read() if is_own(os.fstat(file.fileno())) else None
    except OSError:
        return None


def _view(path: Path) -> memoryview | None:
    """The same as `_read`. A large file on a disk of this computer is mapped: its memory begins with a page."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            if not is_own(status):
                return None
            if status.st_size < MAPPED or not is_local(path.parent):
                return memoryview(file.read())
            from mmap import ACCESS_READ, mmap

            return memoryview(mmap(file.fileno(), status.st_size, access=ACCESS_READ))
    except (OSError, ValueError):  # ValueError: it has become shorter
        return None


def _touch(path: Path) -> None:
    """The file's time becomes now: the files that were used longest ago are deleted first."""
    with contextlib.suppress(OSError):  # a folder that cannot be written to
        os.utime(path)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
