"""The process of a server: started on one core, watched until it answers, and ended with all that it started."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import python_of
from benchmarks.servers import Request, Server, Task

ROOT = Path(__file__).parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")


class ServerError(Exception):
    """A server has no result. The message says why."""


class Running:
    """A server that runs. It is a context manager: at its end the server and all of its processes are gone."""

    def __init__(self, server: Server, task: Task, core: int | None, port: int | None = None) -> None:
        try:
            python = python_of(server.environment)
        except FileNotFoundError as error:
            raise ServerError(str(error)) from error
        self._scratch = tempfile.TemporaryDirectory(prefix="hbc-serving-")
        folder = Path(self._scratch.name)
        self.port = free_port() if port is None else port
        self._log = open(folder / "log", "w+")  # noqa: SIM115
        words = server.command(python, self.port, task, folder)
        path = {"PYTHONPATH": str(ROOT)} if server.environment == "main" else {}
        environment = {**os.environ, **dict.fromkeys(THREADS, "1"), **path, **server.variables(task, folder)}
        self.started = time.monotonic()
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        self.process = subprocess.Popen(
            [*pinned, *words], cwd=folder, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: Any) -> None:
        for sign, wait in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait)
        self._log.close()
        self._scratch.cleanup()

    def wait(self, request: Request, limit: float) -> tuple[float, Any]:
        """The seconds from the start to the first answer, and what it says. Raises ServerError if there is none in time."""
        last = ""
        while time.monotonic() < self.started + limit:
            if self.process.poll() is not None:
                raise ServerError(f"it ended with {self.process.returncode}: {self.tail()}")
            try:
                status, body = ask(self.port, request)
                if status == 200:
                    return time.monotonic() - self.started, request.read(body)
                last = f"{status} {body[:300]!r}"
            except (OSError, http.client.HTTPException) as error:
                last = repr(error)
            time.sleep(0.02)
        raise ServerError(f"no answer in {limit:.0f} s: {last}; {self.tail()}")

    def tail(self) -> str:
        """The end of what the server wrote, in one line."""
        self._log.flush()
        return " ".join(Path(self._log.name).read_text(errors="replace").split())[-400:]

    def memory_mib(self) -> float:
        """The memory of all its processes: what they share is counted once (PSS)."""
        return sum(map(_pss, processes_of(self.process.pid))) / 1024


def free_port() -> int:
    """A port that nobody uses now, with two free ones behind it as a rule."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(port: int, request: Request, timeout: float = 30) -> tuple[int, bytes]:
    """The status and the body of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def second_class(found: Any, rows: int) -> np.ndarray[Any, Any]:
    """The probabilities of the second class: the last column, or the only one. Raises ValueError for another number of values."""
    values = np.asarray(found, np.float64).reshape(rows, -1)
    if values.shape[1] > 2:
        raise ValueError(f"{values.shape} values for {rows} rows")
    return values[:, -1]


def processes_of(pid: int) -> set[int]:
    """A process, those of its session, and all that they have started: some servers give their workers sessions of their own."""
    parents, found = {}, {pid}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[1:4]
                parents[int(entry.name)] = int(parent)
                if int(session) == pid:
                    found.add(int(entry.name))
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
