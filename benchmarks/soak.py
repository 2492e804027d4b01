"""`hbc serve` under load for minutes: errors and memory over time, while its model is replaced and its processes end.

Every five seconds the model's file is written anew. First the server is left alone: its memory must not grow. Then, once a minute, it gets
SIGTERM and another takes its place at the same port. At last a server with two workers runs, of which one is killed every few seconds.
No request that was accepted may stay without an answer. The command fails if one was lost or if the memory has grown."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.servers import SERVERS, Request, Server, Task, load
from benchmarks.servers.process import Running, processes_of, second_class
from benchmarks.serving import START_LIMIT, cores, tasks
from benchmarks.session import Run

OPTIONS: dict[str, dict[str, Any]] = {
    "--soak": {
        "type": float,
        "help": "minutes of full load on each workload; a quarter of it more for SIGTERM, and one for kills",
    },
    "--connections": {"type": int, "help": "connections of the load"},
}
SAMPLE_SECONDS = 5.0
TERM_SECONDS = 60.0
KILLS = 10
WORKERS = 2
GROWTH_MIB = 3.0
"""The growth of memory from which on the run has failed, in MiB. Each of the reloads of ten minutes kept 1.2 before they were mended."""
FEW_SAMPLES = 10
"""With fewer samples, growth is not told from the start."""
LEGEND = (
    "Minutes of load over connections that stay open, each with one request at a time. h2load gives full load in the first part; the "
    "answers of the other clients are compared with the source's. Memory: of the server, in MiB, in the first and in the last fifth of "
    "that part, in which nobody stops it. *grown*: from the second fifth to the last. *lost*: requests that got no answer, or a wrong one; "
    "a connection that the server has closed is opened anew. *reloads*: the file of the model was written anew. *SIGTERM*: the server was "
    "told to end, and another one started. *kills*: one of two workers was killed (SIGKILL); here a connection "
    "that is closed counts as a lost request."
)


class Client(threading.Thread):
    """One connection that sends a request again and again. strict: the server has no reason to close it."""

    def __init__(self, port: int, request: Request, task: Task, core: int, end: float, strict: bool = False) -> None:
        super().__init__(daemon=True)
        self._strict = strict
        self._port, self._request, self._task, self._core, self._end = port, request, task, core, end
        self.answered = 0
        self.lost: list[str] = []
        self.longest = 0.0

    def run(self) -> None:
        os.sched_setaffinity(0, {self._core})
        headers = dict(self._request.headers)
        connection: http.client.HTTPConnection | None = None
        while time.monotonic() < self._end:
            if connection is None:
                connection = self._connected()
                if connection is None:
                    continue
            begin = time.monotonic()
            try:
                connection.request("POST", self._request.path, self._request.body, headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                # A server that stops closes idle connections. It has not taken a request that it has not begun to answer when this happens
                # at the very moment of sending: the client may send it again, as every client of HTTP does.
                connection.close()
                connection = None
                if self._strict or not isinstance(
                    error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
                ):
                    self.lost.append(repr(error))
                continue
            self.longest = max(self.longest, time.monotonic() - begin)
            self._judge(answer.status, body)
            if answer.getheader("connection", "").lower() == "close":
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        self._end = 0.0

    def _connected(self) -> http.client.HTTPConnection | None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.connect()
        except OSError:  # between two servers
            time.sleep(0.01)
            return None
        return connection

    def _judge(self, status: int, body: bytes) -> None:
        if status != 200:
            self.lost.append(f"{status} {body[:200]!r}")
            return
        found = second_class(self._request.read(body), len(self._task.rows))
        if np.allclose(found, self._task.expected, rtol=1e-5, atol=1e-6):
            self.answered += 1
        else:
            self.lost.append(f"answer {found[:3]}, expected {self._task.expected[:3]}")


def soak(task: Task, minutes: float, connections: int, say: Any) -> dict[str, Any]:
    """The counts of one workload, and the memory over time."""
    server = next(each for each in SERVERS if each.name == ("hbc serve, records" if task.mixed else "hbc serve, rows"))
    request = server.request(task)
    assert request is not None
    core, other = cores()
    found: dict[str, Any] = {"memory": [], "reloads": 0, "terms": 0}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(Running(server, task, core))
        running.wait(request, START_LIMIT)
        while _compiles(running):
            time.sleep(SAMPLE_SECONDS / 10)
        begin = time.monotonic()
        # At first h2load gives it all that it can take, and the server is left alone, so that growth of memory would show; then it is told
        # to end once a minute.
        calm = begin + 60 * minutes
        end = calm + max(15 * minutes, 4 * SAMPLE_SECONDS)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        full = pool.submit(load.apply, request, running.port, max(60 * minutes - 2, 1), other) if load.installed() else None
        clients = [Client(running.port, request, task, other, end) for _ in range(connections)]
        for client in clients:
            client.start()
        next_term = 0.0
        while time.monotonic() < end:
            time.sleep(min(SAMPLE_SECONDS, max(end - time.monotonic(), 0)))
            now = time.monotonic()
            if now < calm:
                found["memory"].append((round(now - begin, 1), round(running.memory_mib(), 2)))
            write_anew(task.folder / "model.hbc")
            found["reloads"] += 1
            if now >= max(calm, next_term) and end - now > SAMPLE_SECONDS and (full is None or full.done()):
                next_term = now + min(TERM_SECONDS, 5 * minutes)
                os.kill(running.process.pid, signal.SIGTERM)
                running.process.wait(60)
                found["terms"] += 1
                running = stack.enter_context(Running(server, task, core, port=running.port))
                running.wait(request, START_LIMIT)
            say(f"{sum(client.answered for client in clients):,} answered, {sum(len(client.lost) for client in clients)} lost")
        if full is not None:
            found["full_load"] = asdict(full.result())
        for client in clients:
            client.join(60)
    lost = [reason for client in clients for reason in client.lost]
    failed = found.get("full_load", {}).get("failed", 0)
    if failed:
        lost.append(f"h2load: {failed} requests without a good answer")
    killed = kills(server, task, minutes, connections, say)
    lost += [f"kills: {reason}" for client in killed for reason in client.lost]
    clients += killed
    found["kills"] = KILLS
    found |= {"answered": sum(client.answered for client in clients), "lost": len(lost), "reasons": lost[:10]}
    found["longest_s"] = max(client.longest for client in clients)
    found["growth"] = growth([mib for _, mib in found["memory"]])
    return found


def kills(server: Server, task: Task, minutes: float, connections: int, say: Any) -> list[Client]:
    """The clients of a server with workers, which are killed one after another."""
    request = server.request(task)
    assert request is not None
    core, other = cores()

    def command(*given: Any) -> list[str]:
        return [*server.command(*given), "--workers", str(WORKERS)]

    with Running(replace(server, command=command), task, core) as running:
        running.wait(request, START_LIMIT)
        pause = max(15 * minutes / KILLS, 1.0)
        clients = [Client(running.port, request, task, other, float("inf"), strict=True) for _ in range(connections)]
        for client in clients:
            client.start()
        for number in range(KILLS):
            time.sleep(pause)
            while len(victims := _workers(running)) < WORKERS:  # the new one is being started
                time.sleep(0.1)
            os.kill(victims[number % WORKERS], signal.SIGKILL)
            say(f"{number + 1} killed, {sum(len(client.lost) for client in clients)} lost")
        time.sleep(pause)
        for client in clients:
            client.stop()
        for client in clients:
            client.join(60)
    return clients


def _compiles(running: Running) -> bool:
    """Whether methods that were not needed to be ready are being compiled: that process has a lot of memory, and is no part of a server
    that has started."""
    for each in processes_of(running.process.pid):
        with contextlib.suppress(OSError):  # it has ended
            if b"hbc.serve.compiling" in Path(f"/proc/{each}/cmdline").read_bytes():
                return True
    return False


def _workers(running: Running) -> list[int]:
    """The workers of a server: its children that are no keepers."""
    found = []
    for each in sorted(processes_of(running.process.pid) - {running.process.pid}):
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{each}/stat").read_text().rpartition(")")
            if int(rest.split()[1]) == running.process.pid and rest.split()[0] != "Z" and not name.endswith("(hbc-keeper"):
                found.append(each)
    return found


def growth(memory: Sequence[float]) -> float | None:
    """The MiB by which memory has grown from the second fifth of the samples, after the first calls of everything, to the last. None for
    too few samples."""
    if len(memory) < FEW_SAMPLES:
        return None
    fifth = len(memory) // 5
    return round(float(np.median(memory[-fifth:]) - np.median(memory[fifth : 2 * fifth])), 2)


def write_anew(path: Path) -> None:
    """Replace a file by a copy of itself, as a deployment does."""
    copy = path.with_suffix(".new")
    shutil.copyfile(path, copy)
    copy.replace(path)


def run(run: Run) -> None:
    minutes = run.given("soak", 10.0, 0.25)
    connections = run.given("connections", 8, 4)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = tasks(Path(name), run.quick)
        for each in run.steps(run.asked(("row", "mixed"))):
            run.results["workloads"][each] = soak(known[each], minutes, connections, run.say)


def status(results: dict[str, Any]) -> int:
    """1 if a request was lost, or if the memory has grown."""
    found = results["workloads"].values()
    return int(any(each["lost"] or (each["growth"] or 0.0) > GROWTH_MIB for each in found))


def markdown(results: dict[str, Any]) -> str:
    """A table with a line for each workload."""
    heads = [
        "workload",
        "full load, answered",
        "requests/s",
        "compared",
        "lost",
        "reloads",
        "SIGTERM",
        "kills",
        "memory at first",
        "at last",
        "grown",
    ]
    lines = ["| " + " | ".join([*heads, "longest answer, ms"]) + " |", "|" + "---|" * (len(heads) + 1)]
    for name, found in results["workloads"].items():
        memory = [mib for _, mib in found["memory"]]
        fifth = max(len(memory) // 5, 1)
        ends = [f"{np.median(part):.1f}" if part else "–" for part in (memory[:fifth], memory[-fifth:])]
        full = found.get("full_load", {"answered": 0, "requests_per_second": 0})
        counts = [f"{full['answered']:,}", report.figure(full["requests_per_second"]), f"{found['answered']:,}"]
        counts += [str(found[key]) for key in ("lost", "reloads", "terms", "kills")]
        grown = "–" if found["growth"] is None else f"{found['growth']:+.1f}"
        lines.append("| " + " | ".join([name, *counts, *ends, grown, f"{1e3 * found['longest_s']:.0f}"]) + " |")
    reasons = [f"- {name}: {reason}" for name, found in results["workloads"].items() for reason in found["reasons"]]
    return "\n".join([report.heading(results, "Load for minutes", LEGEND), "", *lines, "", *reasons]) + "\n"
