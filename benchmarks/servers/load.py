"""The load generator: h2load of nghttp2, a program in C that keeps a rate and writes down each answer's time.

`apt-get install nghttp2-client` brings it. It speaks HTTP/1.1 here, over connections that stay open."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.servers import Request


@dataclass(frozen=True)
class Load:
    """What a load has found. Times are in µs."""

    requests_per_second: float
    answered: int
    failed: int
    """Requests without an answer, or with one that is not 200."""
    p50: float
    p99: float
    p999: float


def installed() -> bool:
    return shutil.which("h2load") is not None


def apply(request: Request, port: int, seconds: float, core: int, connections: int = 16, rate: float | None = None) -> Load:
    """Send a request again and again, on one core. rate: requests a second, evenly among the connections; None: each connection sends the
    next one when it has its answer. Raises RuntimeError if h2load fails.

    A request that has to wait for the one before on its connection is counted from when it is sent, so that times at a rate that the
    server cannot keep would be too good. At half of its most this is rare with 16 connections."""
    with tempfile.TemporaryDirectory() as name:
        body, log = Path(name) / "body", Path(name) / "log"
        body.write_bytes(request.body)
        headers = [word for key, value in request.headers for word in ("-H", f"{key}: {value}")]
        pace = [] if rate is None else [f"--rps={max(rate / connections, 0.1):.3f}"]
        command = [
            "taskset",
            "-c",
            str(core),
            "h2load",
            "--h1",
            "-t",
            "1",
            "-c",
            str(connections),
            "-D",
            f"{seconds * 1000:.0f}ms",
        ]
        warm_up = f"{min(seconds, 1.0) * 1000:.0f}ms"
        command += ["--warm-up-time", warm_up, "-d", str(body), f"--log-file={log}", *headers, *pace]
        done = subprocess.run([*command, f"http://127.0.0.1:{port}{request.path}"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"h2load: {done.stderr or done.stdout}")
        return _found(done.stdout, log, seconds)


def _found(output: str, log: Path, seconds: float) -> Load:
    """Reads the output and the log: a line for each answer, with the time that it was sent, its status and its µs."""
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (succeeded|failed|errored|timeout)", output)}
    rows = np.loadtxt(log, dtype=np.int64, ndmin=2) if log.stat().st_size else np.zeros((0, 3), np.int64)
    # h2load leaves the requests of the warm-up out of its counts, but not out of the log. Those that the end cuts off have no line.
    if len(rows):
        rows = rows[rows[:, 0] >= rows[:, 0].max() - seconds * 1e6]
    good = rows[rows[:, 1] == 200]
    times = good[:, 2] if len(good) else np.array([np.nan])
    rate = float(re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", output)[1])  # type: ignore[index]
    p50, p99, p999 = np.percentile(times, [50, 99, 99.9])
    failed = len(rows) - len(good) + counts.get("failed", 0) + counts.get("timeout", 0)
    return Load(rate, len(good), failed, float(p50), float(p99), float(p999))
