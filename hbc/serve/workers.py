"""Family: what a worker knows of the other processes of its server. Each writes its statistics to a file, and hears what becomes of
models."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hbc.serve.compiling import has_cache
from hbc.serve.repository import Repository
from hbc.serve.statistics import Statistics

Key = tuple[str, str]

RATES = 60
"""The seconds for which the rate of requests is known."""
MOST_POINTS = RATES + 10


class Family:
    """The processes of a server, as one of them sees them. folder: where each writes its statistics; None: there is only this one.
    control: the way to the process that started them."""

    def __init__(self, repository: Repository, folder: Path | None = None, control: socket.socket | None = None) -> None:
        self._repository = repository
        self._folder = folder
        self._control = control
        self._written = b""
        self._history: deque[tuple[float, int]] = deque(maxlen=MOST_POINTS)
        """(a time, the requests that this process had answered then), about once a second while there are some."""

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
        for document in [{"models": _models(mine)}, *self._of_others()]:
            for name, version, found in document["models"]:
                total.setdefault((name, version), Statistics()).add(found)
        return total

    def rates(self) -> list[float]:
        """The requests a second that all processes together have answered or refused, in each of the last RATES seconds. The last of them
        is over for one to two seconds, so that all have written what they did."""
        ends = np.arange(-RATES, 1) + math.floor(time.time()) - 1.0
        total = np.zeros(len(ends))
        for history in [list(self._history), *(document["history"] for document in self._of_others())]:
            if history:
                times, counts = zip(*history, strict=True)
                total += np.interp(ends, times, counts)
        return [round(rate, 1) for rate in np.diff(total).tolist()]

    def _of_others(self) -> list[dict[str, Any]]:
        """What the other processes have written."""
        documents = []
        for path in () if self._folder is None else self._folder.glob("*.json"):
            if path.stem != str(os.getpid()):
                with contextlib.suppress(OSError, ValueError):
                    documents.append(json.loads(path.read_bytes()))
        return documents

    def write(self) -> None:
        """Take down how many requests this process has answered, and write its statistics for the others, if they have changed. Called
        every second."""
        statistics = self._repository.statistics()
        self._take_down(time.time(), sum(each.success + each.failure for each in statistics.values()))
        if self._folder is None:
            return
        data = json.dumps({"models": _models(statistics), "history": list(self._history)}).encode()
        if data != self._written:
            self._written = data
            path = self._folder / f"{os.getpid()}.new"
            path.write_bytes(data)
            path.replace(path.with_suffix(".json"))

    def _take_down(self, now: float, count: int) -> None:
        """Add a point to the history. Where nothing happens it gets none, and one when it begins to."""
        known = self._history
        if known and known[-1][1] == count and (len(known) == 1 or known[-2][1] == count):
            return
        if known and now - known[-1][0] > 2.0:
            known.append((now - 1.0, known[-1][1]))
        known.append((now, count))

    @contextlib.contextmanager
    def _turn(self, what: str = "turn") -> Iterator[None]:
        """A context that one process at a time is in, if there is a cache: what is compiled for it, the others find. what: a name of the
        context; there is one to a name."""
        if self._folder is None or not has_cache():
            yield
            return
        with open(self._folder / what, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # goes with the file, also if the process is killed
            yield

    def refresh(self) -> None:
        """Look at the files. Every process does so by itself."""
        with self._turn():
            self._repository.refresh()

    def finish(self) -> None:
        """Compile what was put off, so that models could be ready earlier."""
        with self._turn("later"):
            self._repository.finish()

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


def _models(statistics: dict[Key, Statistics]) -> list[Any]:
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

    def read(self, control: socket.socket) -> bool:
        """Read what a socket that does not block has now. Returns False when the other side is gone."""
        try:
            data = control.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.feed(data)
        return bool(data)
