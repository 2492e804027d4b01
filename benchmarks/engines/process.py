"""The process of an engine, as the benchmark sees it: requests with time limits. An engine that hangs or dies loses only its own
results."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import Engine, Task
from benchmarks.peers import python_of

ROOT = Path(__file__).parents[2]


class EngineError(Exception):
    """An engine has no result. The message is the reason, in one line."""


class Process:
    """One engine on one workload. `start` must be called first. If a request raises EngineError, the process is dead afterwards.

    `lasting`: the process takes one workload after the other (set `task` before each `start`), and survives errors that it can report."""

    def __init__(self, engine: Engine, task: Task, lasting: bool = False) -> None:
        self.engine, self.task, self.lasting = engine, task, lasting
        try:
            python = python_of(engine.environment)
        except FileNotFoundError as error:
            raise EngineError(str(error)) from error
        self._scratch = tempfile.TemporaryDirectory(prefix="hbc-benchmark-")
        self._log = open(Path(self._scratch.name) / "log", "w+")  # noqa: SIM115
        threads = str(task.threads)
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.engines.worker"],
            cwd=ROOT,
            env={**os.environ, **dict.fromkeys(variables, threads), "TMPDIR": self._scratch.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            start_new_session=True,  # so that compilers that it started end with it
        )

    def start(self, rows: Path, cores: list[int], limit: float) -> dict[str, Any]:
        """Converts the model. The process and all its threads run on these cores only, even if its libraries find more."""
        return self._ask(
            "start",
            limit,
            module=self.engine.module,
            distributions=self.engine.distributions,
            task=asdict(self.task),
            cores=cores,
            rows=str(rows),
        )

    def answer(self, limit: float, rows: int | None = None) -> np.ndarray[Any, Any]:
        """The results for all rows, or for the first ones."""
        file = Path(self._scratch.name) / "answer.npy"
        self._ask("answer", limit, to=str(file), rows=rows)
        return np.load(file)

    def measure(self, rows: int, budget: float, limit: float) -> dict[str, float]:
        """Times in µs of calls with so many rows; see worker.py."""
        return self._ask("measure", limit, rows=rows, budget=budget)

    @property
    def is_dead(self) -> bool:
        return self._log.closed

    def end(self) -> int:
        """Ends the process and its children. Returns its exit status. May be called twice."""
        if not self._log.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with self._process:  # waits, and closes the pipes
                self._log.close()
            self._scratch.cleanup()
        return self._process.returncode

    def _ask(self, what: str, limit: float, **arguments: Any) -> Any:
        try:
            reply = json.loads(self._exchange(json.dumps({"do": what, **arguments}), limit))
        except (EOFError, BrokenPipeError, TimeoutError) as error:
            self._log.seek(0)
            log = self._log.read().strip().splitlines()
            status = self.end()
            died = f"ended with status {status}; {log[-1] if log else ''}"
            reply = {"error": f"not done in {limit:.0f} s" if isinstance(error, TimeoutError) else died}
        if "error" in reply:
            if not self.lasting:
                self.end()
            raise EngineError(_short(f"{what}: {reply['error']}"))
        return reply

    def _exchange(self, request: str, limit: float) -> bytes:
        """Sends a line, and returns the line of the answer. Raises EOFError or BrokenPipeError if the process is gone, and TimeoutError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request.encode() + b"\n")
        stop = time.monotonic() + limit
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, stop - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError
            line += part
        return line


def _short(message: str, limit: int = 300) -> str:
    line = " ".join(message.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
