"""Family: what a worker knows of the other processes of its server. Each writes its statistics to a file, and hears what becomes of
models."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hbc.serve.compiling import has_cache
from hbc.serve.repository import Repository
from hbc.serve.statistics import Statistics

Key = tuple[str, str]


class Family:
    """The processes of a server, as one of them sees them. folder: where each writes its statistics; None: there is only this one.
    control: the way to the process that started them."""

    def __init__(self, repository: Repository, folder: Path | None = None, control: socket.socket | None = None) -> None:
        self._repository = repository
        self._folder = folder
        self._control = control
        self._written = b""

    @property
    def size(self) -> int:
        """The number of processes that have written statistics, this one included."""
        return 1 if self._folder is None else len({str(os.getpid()), *(path.stem for path in self._folder.glob("*.json"))})

    def statistics(self) -> dict[Key, Statistics]:
        """(name, version) → the statistics of all processes together. Those of the others are up to a second old. A process that was killed
        counts with what it wrote last."""
        mine = self._repository.statistics()
        if self._folder is None:
            return mine
        total: dict[Key, Statistics] = {}
        documents = [_document(mine)]
        for path in self._folder.glob("*.json"):
            if path.stem != str(os.getpid()):
                with contextlib.suppress(OSError, ValueError):
                    documents.append(json.loads(path.read_bytes()))
        for document in documents:
            for name, version, found in document:
                total.setdefault((name, version), Statistics()).add(found)
        return total

    def write(self) -> None:
        """Write the statistics of this process for the others, if they have changed."""
        if self._folder is None:
            return
        data = json.dumps(_document(self._repository.statistics())).encode()
        if data != self._written:
            self._written = data
            path = self._folder / f"{os.getpid()}.new"
            path.write_bytes(data)
            path.replace(path.with_suffix(".json"))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """A context that one process at a time is in, if there is a cache: what is compiled for it, the others find."""
        if self._folder is None or not has_cache():
            yield
            return
        with open(self._folder / "turn", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, also if the process is killed
            yield

    def refresh(self) -> None:
        """Look at the files. Every process does so by itself."""
        with self._turn():
            self._repository.refresh()

    def change(self, what: str, name: str) -> None:
        """Load or unload ("load", "unload") a model here, and then in the other processes. Raises Failure if it cannot be done here."""
        self.follow(what, name)
        self.send({"what": what, "name": name})

    def follow(self, what: str, name: str) -> None:
        """The same, here only. Raises Failure."""
        if what == "unload":
            self._repository.unload(name)
        else:
            with self._turn():
                self._repository.load(name)

    def send(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # the parent is gone: this process ends soon
                self._control.sendall(json.dumps(message).encode() + b"\n")


def _document(statistics: dict[Key, Statistics]) -> list[Any]:
    return [[name, version, found.as_dict()] for (name, version), found in statistics.items()]


class Lines:
    """Puts the bytes of a socket together to JSON, one document a line."""

    def __init__(self, use: Callable[[dict[str, Any]], None]) -> None:
        self._use = use
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._use(json.loads(line))
