"""Starts the servers of others, and asks them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 90
"""How long a server may take to start."""


class Servers:
    """Functions for tests of servers."""

    @staticmethod
    @contextlib.contextmanager
    def running(*command: str, cwd: Path) -> Iterator[Any]:
        """A server; its output goes to the file `log` of the folder. At the end it is gone, with all that it started."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HBC_CACHE": ""}
        with (cwd / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=log, start_new_session=True)
            try:
                yield (process, cwd / "log")
            finally:
                for sign in (signal.SIGTERM, signal.SIGKILL):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, sign)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(15)

    @staticmethod
    def post(port: int, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    @classmethod
    def ask(cls, running: Any, port: int, path: str, body: Any) -> Any:
        """The JSON of the first answer with status 200, once the server is up."""
        process, log = running
        found: Any = None
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            assert process.poll() is None, log.read_text()[-3000:]
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                found = cls.post(port, path, body)
                if found[0] == 200:
                    return found[1]
            time.sleep(0.1)
        raise AssertionError(f"{found}: {log.read_text()[-3000:]}")

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture
def server() -> type[Servers]:
    return Servers
