"""Workers that are killed at one certain moment, with what must not be lost or given twice then."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("keepers are for Linux", allow_module_level=True)

from serving import settings, until
from test_killed_workers import MODEL, REQUESTS, Client
from test_workers import Process, served

from hbc.serve.parent import Parent
from hbc.serve.workers import Lines

DIES = """
    import ctypes, os, pathlib, signal, sys, threading, time

    def die_once():
        try:
            os.unlink({flag!r})
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Flag:
    """A file. While it is there, the next worker that comes to the moment ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self) -> None:
        self._path.touch()

    def is_used(self) -> bool:
        return not self._path.exists()


@pytest.fixture
def dies(tmp_path: Path, monkeypatch: Any) -> Any:
    """A function: code for all processes of a server, which may call `die_once` → its Flag."""

    def prepare(code: str) -> Flag:
        flag = tmp_path / "flag"
        text = textwrap.dedent(DIES.format(flag=str(flag))) + textwrap.dedent(code)
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
        return Flag(flag)

    return prepare


def inode_of(client: Client) -> int:
    """The kernel's number of the server's end of a connection."""
    port = client.connection.getsockname()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[2].rpartition(":")[2], 16) == port:
            return int(words[9])
    raise AssertionError("the server has not accepted")


def holders(process: Process, client: Client) -> int:
    """How many living workers have a connection."""
    name = f"socket:[{inode_of(client)}]"
    found = 0
    for worker in process.workers:
        with contextlib.suppress(FileNotFoundError):
            names = []
            for each in Path(f"/proc/{worker}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    names.append(os.readlink(each))
            found += name in names
    return found


def replaced(process: Process, worker: int, count: int = 1) -> None:
    """Kill a worker, and wait until so many new ones are ready."""
    ready = len(process.events("ready"))
    os.kill(worker, signal.SIGKILL)
    until(lambda: len(process.events("ready")) >= ready + count, 60)


def test_a_connection_is_not_given_twice(dies: Any) -> None:
    """The giver ends when it has given a connection and has not closed its own file yet."""
    flag = dies("""
        if "hbc.serve.worker" in sys.orig_argv:
            import hbc.serve.kept as kept

            lost = kept.Kept.connection_lost

            def changed(self, error):
                given = self._words[self._at + kept.CLOSE] == kept.GONE
                lost(self, error)
                if given:
                    die_once()

            kept.Kept.connection_lost = changed
    """)
    with served(workers=2, models=MODEL) as process, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(process.port)) for _ in range(6)]
        until(lambda: [holders(process, each) for each in clients] == [1] * 6)
        flag.put()
        first = process.workers[0]
        replaced(process, first, 2)  # the new one's share: its giver ends
        assert flag.is_used()
        until(lambda: len(process.events("connections kept")) == 2)
        until(lambda: [holders(process, each) for each in clients] == [1] * 6)
        for client in clients:
            client.send(REQUESTS[1] + REQUESTS[2])
        assert [[client.answer()["id"] for _ in range(2)] for client in clients] == [["1", "2"]] * 6


def test_what_a_worker_has_just_taken_is_not_lost(dies: Any) -> None:
    """It ends when it has the connection of another worker that was killed, and has not begun with it."""
    flag = dies("""
        if "hbc.serve.worker" in sys.orig_argv:
            import hbc.serve.kept as kept

            begin = kept.Slots.begin

            def changed(self, *rest, **named):
                if len(rest) > 2:
                    die_once()
                begin(self, *rest, **named)

            kept.Slots.begin = changed
    """)
    with served(workers=2, models=MODEL) as process, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(process.port)) for _ in range(6)]
        for client in clients:
            client.send(REQUESTS[1] + REQUESTS[2][:90])
            assert client.answer()["id"] == "1"
        flag.put()
        replaced(process, process.workers[0], 2)
        assert flag.is_used()
        for client in clients:
            client.send(REQUESTS[2][90:] + REQUESTS[3])
        assert [[client.answer()["id"] for _ in range(2)] for client in clients] == [["2", "3"]] * 6


def zombies(parent: int) -> Iterator[int]:
    """The children of a process that have ended and were not waited for."""
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, owner = each.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(owner) == parent:
                yield int(each.parent.name)


def test_a_keeper_whose_worker_ends_at_once_is_buried(dies: Any) -> None:
    flag = dies("""
        if "hbc.serve.worker" in sys.orig_argv:
            class Library:
                def __init__(self, found):
                    self._found = found

                def __getattr__(self, name):
                    return getattr(self._found, name)

                def syscall(self, *arguments):
                    made = self._found.syscall(*arguments)
                    if made > 0:
                        die_once()
                    return made

            real = ctypes.PyDLL
            ctypes.PyDLL = lambda name: Library(real(name))
    """)
    with served(workers=2, models=MODEL) as process:
        flag.put()
        replaced(process, process.workers[0])
        assert flag.is_used()
        assert len(process.events("worker ended")) == 2
        until(lambda: not list(zombies(process.process.pid)))
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0


def test_a_worker_that_ends_as_it_is_ready_is_replaced_once(monkeypatch: Any) -> None:
    """The parent hears its last word when it knows already that it has ended."""
    parent = Parent(settings(workers=2), [])
    monkeypatch.setattr(parent, "_start", lambda: parent._workers.update({-1 - len(parent._workers): living}))
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["sleep", "60"]) as living, subprocess.Popen(["true"]) as ended, ours, theirs:
        ended.wait()
        parent._ready = 1
        parent._workers = {living.pid: living, ended.pid: ended}
        parent._controls = {ended.pid: (ours, Lines(lambda message: parent._hear(ended.pid, message)))}
        theirs.sendall(b'{"what": "ready"}\n')
        parent._watch()
        assert ended.pid not in parent._workers
        assert len(parent._workers) == 2
        living.kill()
    parent._folder.cleanup()
    parent._selector.close()
    for end in parent._inbox:
        end.close()


def ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/models/numbers/ready")
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 404)
        return answer.status == 200


def test_what_a_killed_worker_has_told_reaches_the_others(dies: Any) -> None:
    """The parent is busy when the worker says something and ends."""
    flag = dies("""
        if "hbc.serve.worker" in sys.orig_argv:
            import hbc.serve.workers as workers

            send = workers.Family.send

            def changed(self, message):
                if message["what"] == "unload":
                    send(self, {"what": "load", "name": "other"})
                    time.sleep(0.3)
                    send(self, message)
                    threading.Timer(0.2, die_once).start()
                else:
                    send(self, message)

            workers.Family.send = changed
        elif "serve" in sys.orig_argv:
            import hbc.serve.parent as parent

            hear = parent.Parent._hear

            def slow(self, pid, message):
                hear(self, pid, message)
                if message["what"] == "load":
                    time.sleep(1.5)

            parent.Parent._hear = slow
    """)
    with served(workers=2, models=MODEL) as process:
        flag.put()
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/v2/repository/models/numbers/unload")
            assert json.loads(connection.getresponse().read()) == {}
        until(lambda: len(process.events("ready")) == 3, 60)
        assert flag.is_used()
        until(lambda: len(process.events("model unloaded")) >= 2)
        for _ in range(30):
            assert not ready(process.port)
