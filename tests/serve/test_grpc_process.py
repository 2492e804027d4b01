"""`hbc serve --grpc-port` as a process: workers share the port, and SIGTERM loses no call of either protocol."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ports import free_port
from test_grpc import FRAME, columns, models, stub

from hbc.serve.grpc.messages import Messages

__all__ = ["models"]


def started(models: dict[str, Any], *words: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A server, and what its log says when it is ready."""
    command = [sys.executable, "-m", "hbc", "serve", str(models["folder"] / "mixed.hbc"), "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("{") and (found := json.loads(line))["event"] == "ready":
            return process, found
    raise AssertionError(process.wait())


@pytest.fixture
def server(models: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process, ready = started(models, "--grpc-port", "0", "--drift")
    reader = threading.Thread(target=lambda: process.stderr.read())  # type: ignore[union-attr]
    reader.start()
    yield process, ready
    process.terminate()
    assert process.wait(30) == 0
    reader.join()
    process.stderr.close()  # type: ignore[union-attr]


def test_both_protocols_until_sigterm(server: tuple[subprocess.Popen[str], dict[str, Any]], models: dict[str, Any]) -> None:
    """Four clients call without a pause; the server is told to end. Every call that it took is answered, and then nobody listens."""
    process, ready = server
    port = int(ready["url"].rpartition(":")[2])
    body = json.dumps({"record": json.loads(FRAME[:1].to_json(orient="records"))[0]})
    expected = models["mixed"].predict(FRAME[:1])[0]
    answered, lost = [0, 0, 0, 0], list[str]()

    def by_http(place: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        while True:
            try:
                connection.request("POST", "/v1/models/mixed:predict", body)
                answer = connection.getresponse()
                found = json.loads(answer.read())["predictions"]["predict"]
            except (ConnectionRefusedError, ConnectionResetError, http.client.RemoteDisconnected):
                return
            answered[place] += found == expected
            if answer.getheader("connection", "") == "close":
                return

    def by_grpc(place: int) -> None:
        with grpc.insecure_channel(ready["grpc"]) as channel:
            client = stub(channel)
            while True:
                try:
                    found = client.ModelInfer(columns(FRAME[:1], True), timeout=20)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        lost.append(str(error))
                    return
                answered[place] += found.raw_output_contents[0][4:].decode() == expected

    clients = [threading.Thread(target=(by_http, by_grpc)[place % 2], args=(place,)) for place in range(4)]
    for client in clients:
        client.start()
    while min(answered) < 20:
        assert any(client.is_alive() for client in clients), (answered, lost)
        threading.Event().wait(0.01)
    process.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(30)
    assert not lost
    assert process.wait(30) == 0


def test_workers_share_the_port(models: dict[str, Any]) -> None:
    port = free_port()
    process, ready = started(models, "--grpc-port", str(port), "--workers", "2")
    reader = threading.Thread(target=lambda: process.stderr.read())  # type: ignore[union-attr]
    reader.start()
    try:
        assert ready["grpc"] == f"127.0.0.1:{port}"
        with grpc.insecure_channel(ready["grpc"]) as channel:
            for _ in range(5):
                assert stub(channel).ModelInfer(columns(FRAME[:2], True)).outputs
            (found,) = stub(channel).ModelStatistics(Messages.ModelStatisticsRequest(name="mixed")).model_stats
            assert found.inference_stats.success.count >= 5
    finally:
        process.terminate()
        assert process.wait(60) == 0
        reader.join()
        process.stderr.close()  # type: ignore[union-attr]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--workers", "2", "--grpc-port", "0"], "expected one that all workers"),
        (["--grpc-port", "PORT"], "cannot be listened at"),
    ],
)
def test_ports_that_cannot_be_had(models: dict[str, Any], words: list[str], says: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = [str(taken.getsockname()[1]) if word == "PORT" else word for word in words]
        command = [sys.executable, "-m", "hbc", "serve", str(models["folder"] / "mixed.hbc"), "--port", "0", *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr


def test_the_extra_is_named(models: dict[str, Any], tmp_path: Path) -> None:
    """Without grpcio the command says what to install."""
    hide = "import sys; sys.modules['grpc'] = None; from hbc.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", hide, "serve", str(models["folder"] / "mixed.hbc"), "--grpc-port", "0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "hbc[grpc]" in done.stderr
