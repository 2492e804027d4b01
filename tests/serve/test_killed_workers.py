"""Workers that are killed lose no request: each is answered once, with its own answer."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("keepers are for Linux", allow_module_level=True)

from serving import folder, numbers, post, until
from test_workers import Process, served

PATH = "/v1/models/numbers:predict"
MODEL = (f"numbers={folder()}/numbers.hbc",)


def request(row: int, *headers: str) -> bytes:
    X, _ = numbers()
    return post(PATH, json.dumps({"id": str(row), "rows": [X.iloc[row].tolist()]}).encode(), *headers, close=False)


REQUESTS = [request(row) for row in range(100)]
SLOW = post(PATH, json.dumps({"id": "slow", "rows": [[0, 1, 2, 3, 4]]}).encode(), close=False)
KILL = SLOW.replace(b"slow", b"kill")
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """A connection that takes answers apart."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._rest = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def answer(self) -> dict[str, Any]:
        """The next answer, which must be a good one. Raises EOFError if the connection ends before."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        assert head.startswith(b"HTTP/1.1 200"), (head, body)
        found: dict[str, Any] = json.loads(body)
        return found

    def _more(self) -> None:
        part = self.connection.recv(65536)
        if not part:
            raise EOFError
        self._rest += part


class Load(threading.Thread):
    """A client that sends requests, one or some at once, whole or in pieces, and compares the answers."""

    def __init__(self, port: int, seed: int, expected: list[float]) -> None:
        super().__init__()
        self.answered = 0
        self.bad: list[str] = []
        self.end = False
        self._port, self._chance, self._expected = port, random.Random(seed), expected
        self.start()

    def run(self) -> None:
        try:
            with Client(self._port) as client:
                while not self.end:
                    self._ask(client)
        except Exception as error:
            self.bad.append(repr(error))

    def _ask(self, client: Client) -> None:
        rows = [self._chance.randrange(len(REQUESTS)) for _ in range(self._chance.choice([1, 1, 1, 2, 5]))]
        data = b"".join(REQUESTS[row] + LIVE * (row % 5 == 0) for row in rows)
        cut = self._chance.choice([0, 0, self._chance.randrange(len(data))])
        for piece in (data[:cut], data[cut:]):
            client.send(piece)
        for row in rows:
            found = client.answer()
            assert (found["id"], found["predictions"]["predict"]) == (str(row), [pytest.approx(self._expected[row])])
            if row % 5 == 0:
                assert client.answer() == {"live": True}
            self.answered += 1
        assert client._rest == b""


def expected() -> list[float]:
    X, model = numbers()
    found: list[float] = model.predict(X[: len(REQUESTS)]).tolist()
    return found


def killed(process: Process, worker: int) -> None:
    """Kill a worker, and wait for the new one."""
    ready = len(process.events("ready"))
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(process.events("ready")) > ready, 60)


def test_killed_workers_lose_no_request() -> None:
    known = expected()
    with served(workers=2, models=MODEL) as process:
        loads = [Load(process.port, seed, known) for seed in range(6)]
        until(lambda: sum(load.answered for load in loads) > 300, 60)
        alive = process.workers
        for _ in range(3):
            killed(process, alive.pop(0))
            alive.append(process.workers[-1])
            done = sum(load.answered for load in loads)
            until(lambda done=done: sum(load.answered for load in loads) > done + 100, 60)
            # The new one gets its share of the connections, which stay open.
            until(lambda worker=alive[-1]: connections(worker) > 1, 60)
        for load in loads:
            load.end = True
        for load in loads:
            load.join()
        assert [load.bad for load in loads] == [[]] * 6, process.lines
        kept = process.events("connections kept")
        assert kept
        assert [each["closed"] for each in kept] == [{}] * len(kept)

        # SIGTERM ends all, keepers too.
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0
        for each in kept:
            assert not Path(f"/proc/{each['process']}").exists()


def connections(worker: int) -> int:
    """How many connections of TCP a worker has, and sockets that it listens at."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    known = {f"socket:[{words[9]}]" for words in lines}
    found = 0
    for each in Path(f"/proc/{worker}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(each) in known
    return found


def test_what_waits_when_all_are_killed_is_for_the_new_one(tmp_path: Path, monkeypatch: Any) -> None:
    slow_and_deadly(tmp_path, monkeypatch)
    known = expected()
    with served(workers=2, models=MODEL) as process, contextlib.ExitStack() as stack:
        idle, slow, half = (stack.enter_context(Client(process.port)) for _ in range(3))
        for client in (idle, half):
            client.send(REQUESTS[1])
            assert client.answer()["id"] == "1"
        slow.send(REQUESTS[2] + SLOW + REQUESTS[3])
        half.send(REQUESTS[4][:70])
        assert slow.answer()["id"] == "2"
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none takes what another leaves
            for worker in process.workers:
                os.kill(worker, number)
        half.send(REQUESTS[4][70:] + REQUESTS[5])
        idle.send(REQUESTS[6])
        until(lambda: len(process.events("ready")) == 4, 60)
        assert [slow.answer()["id"] for _ in range(2)] == ["slow", "3"]
        assert [half.answer()["id"] for _ in range(2)] == ["4", "5"]
        assert idle.answer()["predictions"]["predict"] == [pytest.approx(known[6])]
        for client in (idle, slow, half):
            client.send(REQUESTS[7])
            assert client.answer()["id"] == "7"


def test_a_full_worker_takes_what_another_has_let_in() -> None:
    """It wrote a 503 on connections that had asked nothing."""
    with served("--max-connections", "4", workers=2, models=MODEL) as process, contextlib.ExitStack() as stack:
        clients: list[Client] = []

        def all_let_in() -> bool:
            client = stack.enter_context(Client(process.port))
            with contextlib.suppress(AssertionError, EOFError, ConnectionResetError):  # that worker is full
                client.send(REQUESTS[0])
                client.answer()
                clients.append(client)
            return len(clients) == 6

        until(all_let_in, 60)
        os.kill(process.workers[0], signal.SIGKILL)
        for client in clients:
            client.send(REQUESTS[1])
        assert [client.answer()["id"] for client in clients] == ["1"] * 6


def slow_and_deadly(folder: Path, monkeypatch: Any) -> None:
    """Have workers take a second to answer what is called "slow", and end when they answer "kill"."""
    code = """
        import os, signal, sys, time
        if "hbc.serve.worker" in sys.orig_argv:
            import hbc.serve.service as service

            read = service.Service.read

            def changed(self, head, body, *rest):
                if b'"kill"' in body:
                    os.kill(os.getpid(), signal.SIGSEGV)
                if b'"slow"' in body:
                    time.sleep(1)
                return read(self, head, body, *rest)

            service.Service.read = changed
    """
    (folder / "sitecustomize.py").write_text(textwrap.dedent(code))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))


def test_a_request_that_kills_workers_is_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    slow_and_deadly(tmp_path, monkeypatch)
    with served(workers=2, models=MODEL) as process, contextlib.ExitStack() as stack:
        deadly, other = (stack.enter_context(Client(process.port)) for _ in range(2))
        other.send(REQUESTS[10] + SLOW)
        assert other.answer()["id"] == "10"
        deadly.send(REQUESTS[8] + KILL + REQUESTS[9])
        assert deadly.answer()["id"] == "8"
        assert other.answer()["id"] == "slow"
        with pytest.raises((EOFError, ConnectionResetError)):
            deadly.answer()
        until(lambda: len(process.events("worker ended")) == 2 and len(process.events("ready")) == 4, 60)
        other.send(REQUESTS[11])
        assert other.answer()["id"] == "11", process.lines
        (given_up,) = process.events("request given up")
        assert given_up["level"] == "error"
        assert given_up["request"] == f"POST {PATH} HTTP/1.1"
        closed = [each["closed"] for each in process.events("connections kept") if each["closed"]]
        assert closed == [{"two workers have ended with its request": 1}]


@pytest.mark.slow
def test_an_answer_of_which_a_part_was_written() -> None:
    """The client reads nothing, so that the kernel is full in the middle of an answer."""
    rows = [[0, 1, 2, 3, 4]] * 9000
    large = post(PATH, json.dumps({"id": "large", "rows": rows}).encode(), close=False)
    with served(workers=2, models=MODEL) as process, Client(process.port) as client:
        sending = threading.Thread(target=sent, args=(client, large * 60))
        sending.start()
        until(lambda: stuck(process))
        for worker in process.workers:
            os.kill(worker, signal.SIGKILL)
        until(lambda: process.events("connections kept"), 60)
        (kept,) = process.events("connections kept")
        assert kept["closed"] == {"part of an answer was written": 1}
        count = 0
        with contextlib.suppress(EOFError, ConnectionResetError):
            while count < 60:
                assert len(client.answer()["predictions"]["predict"]) == len(rows)
                count += 1
        assert 0 < count < 60
        sending.join()


def sent(client: Client, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.send(data)


def stuck(process: Process) -> bool:
    """Whether the workers have nothing to do any more."""
    used = [ticks(worker) for worker in process.workers]
    threading.Event().wait(0.7)
    return [ticks(worker) for worker in process.workers] == used


def ticks(worker: int) -> int:
    fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
