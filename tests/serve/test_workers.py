"""Servers as processes: `hbc serve`, SIGTERM and SIGHUP under load, a worker that is killed, and several workers as one."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from serving import answered, folder, people, post, received, running, settings, until
from test_model_repository import put

RECORD = json.dumps({"record": people()[0][:1].to_dict("records")[0]}).encode()
PATH = "/v1/models/people:predict"


class Process:
    """A running `hbc serve`. Its log is read by a thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": "text", "text": line})

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == name]

    @property
    def port(self) -> int:
        return int(self.events("ready")[0]["url"].rpartition(":")[2])

    @property
    def workers(self) -> list[int]:
        return [line["process"] for line in self.events("ready")]


@contextmanager
def served(
    *arguments: str, workers: int = 1, models: tuple[str, ...] = (), files: int = 0, cache: Path | str = ""
) -> Iterator[Process]:
    """`hbc serve` on a free port, when all workers are ready. It is killed if it runs at the end. files: the most that it may open."""
    names = models or (f"people={folder()}/people.hbc",)
    command = [sys.executable, "-m", "hbc", "serve", *names, "--port", "0", "--workers", str(workers), "--allowed-host", "x"]
    command += arguments
    environment = {**os.environ, "HBC_CACHE": str(cache), "HBC_TOKEN": ""}
    del environment["HBC_TOKEN"]
    if files:
        command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    found = Process(process)
    try:
        until(lambda: len(found.events("ready")) >= workers or process.poll() is not None, 60)
        assert process.poll() is None, found.lines
        yield found
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        found.reader.join(30)  # the workers have the stream too
        assert process.stderr is not None
        process.stderr.close()


class Load:
    """Threads that ask over and over, each with a connection that it opens anew when the server closes it between two requests."""

    def __init__(self, port: int, count: int = 4) -> None:
        self.good = 0
        self.bad: list[str] = []
        self.port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        request = post(PATH, RECORD, close=False)
        while not self._stop.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            except OSError:
                return  # nobody listens any more
            with connection:
                while not self._stop.is_set():
                    sent = False
                    try:
                        connection.sendall(request)
                        sent = True
                        answer = answered(connection)
                    except (OSError, AssertionError) as error:
                        self.bad.append(f"{type(error).__name__} {error} sent={sent}")
                        break
                    if not answer.startswith(b"HTTP/1.1 200"):
                        self.bad.append(answer[:200].decode())
                        break
                    self.good += 1
                    if b"connection: close" in answer:
                        break

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_sigterm_answers_everything_that_was_accepted() -> None:
    with served() as process:
        load = Load(process.port)
        until(lambda: load.good > 200)
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0
        load.stop()
        assert load.bad == []
        assert [len(process.events(name)) for name in ("stopping", "stopped")] == [1, 1]


def test_a_server_answers_while_it_loads_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks whether it lives ends one that says nothing, and compiling may take minutes."""
    monkeypatch.setattr("hbc.serve.process.QUICK_SECONDS", 0.2)
    gate = threading.Event()
    with running(settings(), gate) as server:
        try:
            assert server.json("GET", "/v2/health/live") == {"live": True}
            assert server.json("GET", "/v2/health/ready", status=503) == {"ready": False}
            status, headers, body = server.ask("POST", PATH, RECORD)
            assert (status, headers["retry-after"]) == (503, "1")
            assert b"loads its models" in body
            assert server.json("GET", "/v1/models") == {"models": []}
        finally:
            gate.set()
        until(lambda: server.ask("GET", "/v2/health/ready")[0] == 200)
        assert server.ask("POST", PATH, RECORD)[0] == 200
        assert server.ask("POST", "/v1/models/other:predict", RECORD)[0] == 404


def test_who_connects_waits_for_models_that_are_loaded_soon() -> None:
    """A server that is started anew, with its code in the cache, refuses nobody."""
    gate = threading.Event()
    threading.Timer(1.0, gate.set).start()
    with running(settings(), gate) as server:
        assert server.ask("POST", PATH, RECORD)[0] == 200
        assert gate.is_set()


def test_sigterm_while_models_are_loaded() -> None:
    """The server does not wait for what is compiled in its own process, which nobody can stop."""
    port = free_port()
    code = (
        "import sys, time; from hbc.serve.process import Settings, Worker; from hbc.serve.parent import serve; "
        f"Worker.load = lambda worker: time.sleep(600); serve(Settings({{}}, port={port}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:

        def lives() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return answered(connection).startswith(b"HTTP/1.1 200")
            return False

        until(lives)
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert [json.loads(line)["event"] for line in said.splitlines()] == ["stopping", "stopped"]


def test_the_end_of_workers_is_quiet() -> None:
    """The log has nothing but its own lines: no keeper fails where its worker has closed what it listened at."""
    with served(workers=2) as process, socket.create_connection(("127.0.0.1", process.port), timeout=30) as connection:
        connection.sendall(post(PATH, RECORD, close=False))
        assert answered(connection).startswith(b"HTTP/1.1 200")
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0
    assert [len(process.events(name)) for name in ("stopped", "text", "keeper ended")] == [2, 0, 0], process.lines


def test_sighup_looks_at_the_files_under_load(tmp_path: Path) -> None:
    put("people", tmp_path / "people.hbc")
    with served("--poll", "0", "--dir", str(tmp_path), models=(f"other={folder()}/numbers.hbc",)) as process:
        load = Load(process.port)
        until(lambda: load.good > 50)
        put("people", tmp_path / "people.hbc")
        put("numbers", tmp_path / "more" / "3" / "model.hbc")
        process.process.send_signal(signal.SIGHUP)
        until(lambda: len(process.events("model loaded")) == 4)
        done = load.good
        until(lambda: load.good > done + 50)
        load.stop()
        assert load.bad == []
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(30) == 0


def test_workers_are_one_server() -> None:
    """A killed worker is started anew; unloading and statistics are those of all; SIGTERM ends all."""
    with served(workers=2) as process:
        parent = process.process.pid
        first, second = process.workers
        assert parent not in (first, second)
        assert process.events("compiled") == []  # without a cache no worker leaves for others to find its code
        load = Load(process.port)
        until(lambda: load.good > 200)
        os.kill(first, signal.SIGKILL)
        until(lambda: len(process.events("ready")) == 3)
        assert process.events("worker ended")[0]["worker"] == first
        done = load.good
        until(lambda: load.good > done + 100)
        load.stop()
        assert load.bad == [] or sys.platform != "linux"  # keeper.py
        assert not any("timed out" in each for each in load.bad)  # it is told at once

        def ask(method: str, path: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=30)
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.status, answer.read()
            connection.close()
            return found

        def counted() -> list[int]:
            found = [
                re.search(rb'request_success{model="people",version="1"} (\d+)', ask("GET", "/metrics")[1]) for _ in range(6)
            ]
            return [int(each[1]) for each in found if each]

        # Whichever worker is asked. What the killed one had counted since its last second is lost.
        until(lambda: min(counted()) == max(counted()) >= load.good - done)

        assert ask("POST", "/v2/repository/models/people/unload")[0] == 200
        until(lambda: {ask("GET", "/v2/models/people")[0] for _ in range(8)} == {404})
        os.kill(second, signal.SIGKILL)
        until(lambda: len(process.events("ready")) == 4)
        assert {ask("GET", "/v2/models/people")[0] for _ in range(8)} == {404}  # the new one knows that it was unloaded
        assert ask("POST", "/v2/repository/models/people/load")[0] == 200
        until(lambda: {ask("GET", "/v2/models/people")[0] for _ in range(8)} == {200})
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0
        time.sleep(0)
        for worker in process.workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)


def test_workers_end_when_their_parent_is_killed() -> None:
    with served(workers=2) as process:
        workers = process.workers
        process.process.kill()

        def alive(pid: int) -> bool:
            try:
                return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return False

        until(lambda: not any(map(alive, workers)))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "found no model"),
        (["serve", "nowhere.hbc"], "nowhere.hbc: found no file"),
        (["serve", "--dir", "nowhere"], "nowhere: found no folder"),
        (["serve", "A", "B"], "twice"),
        (["serve", "a b=A"], "NAME=FILE"),
        (["serve", "BAD"], "bad.hbc: found"),
        (["serve", "A", "--token-file", "EMPTY"], "found no token"),
        (["serve", "A", "--certificate", "EMPTY"], "expected both"),
        (["serve", "A", "--timeout", "0"], "timeout: found 0"),
        (["serve", "A", "--port", "TAKEN"], "already in use"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, capsys: Any, arguments: list[str], message: str) -> None:
    from hbc.cli import main

    put("people", tmp_path / "people.hbc")
    put("people", tmp_path / "again" / "people.hbc")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bad.hbc").write_bytes(b"PK\3\4")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"A": tmp_path / "people.hbc", "B": tmp_path / "again" / "people.hbc", "EMPTY": tmp_path / "empty"}
        known |= {"BAD": tmp_path / "bad.hbc", "TAKEN": taken.getsockname()[1]}
        given = [str(known.get(each, each)).replace("=A", f"={known['A']}") for each in arguments]
        free = [] if "--port" in given else ["--port", "0"]  # another program may have the usual one
        with pytest.raises(SystemExit) as ended:
            main([*given, *free, "--quiet"])
    assert ended.value.code == 1
    found = capsys.readouterr().err
    assert message in found.lower() or message in found
    assert found.count("\n") == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_tls(tmp_path: Path) -> None:
    """Requests over TLS, a client that speaks none, and one that never ends its handshake."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(make, check=True, capture_output=True)
    with running(settings(certificate=str(certificate), key=str(key))) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.sendall(b"\x16\x03\x01")
            trusted = ssl.create_default_context(cafile=str(certificate))
            with (
                socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
                trusted.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                for _ in range(3):
                    connection.sendall(post(PATH, RECORD, close=False))
                    assert answered(connection).startswith(b"HTTP/1.1 200")
                connection.sendall(post(PATH, RECORD, "Transfer-Encoding: chunked"))
                assert received(connection).startswith(b"HTTP/1.1 400")
        assert not server.raw(post(PATH, RECORD)).startswith(b"HTTP/1.1 200")


def test_a_bad_file_ends_several_workers_too(tmp_path: Path) -> None:
    (tmp_path / "bad.hbc").write_bytes(b"PK\3\4")
    command = [sys.executable, "-m", "hbc", "serve", str(tmp_path / "bad.hbc"), "--port", "0", "--workers", "2", "--quiet"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    first, second = found.stderr.splitlines()
    assert "bad.hbc: found" in first
    assert second.startswith("hbc: worker: found exit status 1")


@pytest.mark.slow
def test_ten_thousand_idle_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11_000:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 11_000), hard))
    with served() as process:
        idle = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(10_000)]
        for connection in [None, *idle[::100]]:
            with connection or socket.create_connection(("127.0.0.1", process.port)) as asked:
                asked.sendall(post(PATH, RECORD))
                assert received(asked).startswith(b"HTTP/1.1 200")
        for connection in idle:
            connection.close()


def test_more_connections_than_files() -> None:
    """A server that may open few files tells clients to come again, and answers those that it has."""
    with served(files=100) as process:
        connections = [socket.create_connection(("127.0.0.1", process.port), timeout=30) for _ in range(150)]
        connections[0].sendall(post(PATH, RECORD, close=False))
        assert answered(connections[0]).startswith(b"HTTP/1.1 200")
        refused = received(connections[-1])
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in refused
        for connection in connections:
            connection.close()
        until(lambda: http_status(process.port) == 200)


def http_status(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(post(PATH, RECORD))
        return int(received(connection)[9:12])
