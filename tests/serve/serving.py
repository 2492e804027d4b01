"""What the tests of hbc/serve share: saved models, a server in a thread, and ways to talk to it."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.serve.process import Server, Settings, Worker, listening
from hbc.serve.repository import Repository
from hbc.serve.served import Served

RANDOM = np.random.default_rng(0)


@functools.cache
def people() -> tuple[pd.DataFrame, Any]:
    """A frame of numbers and strings, and a pipeline of scikit-learn that was fitted on it."""
    X = pd.DataFrame(
        {
            "age": RANDOM.normal(40, 10, 200),
            "fare": RANDOM.exponential(30, 200),
            "sex": RANDOM.choice(["m", "f"], 200),
            "port": RANDOM.choice(["S", "C", "Q"], 200),
        }
    )
    y = np.where((X.sex == "f") & (X.fare > 10) | (X.age < 30), "lives", "dies")
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((StandardScaler(), ["age", "fare"]), (encoder, ["sex", "port"]))
    return X, make_pipeline(columns, LogisticRegression()).fit(X, y)


@functools.cache
def numbers() -> tuple[pd.DataFrame, Any]:
    """A frame of 5 numbers, and a model of LightGBM, which finds columns by their place."""
    X = pd.DataFrame(RANDOM.normal(size=(300, 5)), columns=list("vwxyz"))
    y = X.v * 2 + X.w * X.x + RANDOM.normal(size=300) * 0.1
    return X, lightgbm.LGBMRegressor(n_estimators=8, num_leaves=7, verbose=-1, n_jobs=1).fit(X, y)


@functools.cache
def folder() -> Path:
    """A folder with `people.hbc` and `numbers.hbc`. They are for numpy, which has nothing to compile."""
    place = Path(tempfile.mkdtemp(prefix="hbc-serve-test-"))
    for name, (_, model) in {"people": people(), "numbers": numbers()}.items():
        hbc.convert(model, backend="numpy").save(place / f"{name}.hbc")
    return place


def all_served() -> dict[str, Served]:
    """The models of `folder` by name, as a server holds them."""
    repository = Repository({}, folder())
    repository.refresh()
    return {each.name: each for each in repository.all()}


def settings(**options: Any) -> Settings:
    files = {name: str(folder() / f"{name}.hbc") for name in ("people", "numbers")}
    return Settings(**{"files": files, "port": 0, "quiet": True, "poll": 0.0, "allowed_hosts": ["x"], **options})


class Running:
    """A server in a thread, and its address."""

    def __init__(self, worker: Worker, server: Server, port: int) -> None:
        self.worker = worker
        self.server = server
        self.port = port
        self.loop: asyncio.AbstractEventLoop | None = None

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers in small letters, body) of a request. A body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def json(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """The JSON of an answer, whose status must be the one given."""
        found, _, data = self.ask(method, path, body)
        assert found == status, data
        return json.loads(data)

    def raw(self, data: bytes, shut: bool = False, timeout: float = 30) -> bytes:
        """What the server sends until it closes the connection. shut: say that no more is sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            if shut:
                connection.shutdown(socket.SHUT_WR)
            return received(connection)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answered(connection: socket.socket) -> bytes:
    """One answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def post(path: str, body: bytes, *headers: str, close: bool = True) -> bytes:
    """A request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, *(["Connection: close"] if close else []), "", ""]).encode() + body


def until(ready: Any, seconds: float = 60) -> None:
    """Wait until a function returns a true value. The time is only for servers that hang."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.01)


@contextmanager
def running(chosen: Settings, gate: threading.Event | None = None) -> Iterator[Running]:
    """A server in a thread of this process. gate: the server loads its models beside its answers, when this is set."""
    sockets = listening(chosen.host, chosen.port)
    worker = Worker(chosen, sockets)
    if gate is None:
        worker.load()
        worker.first = False
    else:
        load = worker.load
        worker.load = lambda: gate.wait() and load()  # type: ignore[method-assign,func-returns-value]
    server = Server(worker)
    found = Running(worker, server, sockets[0].getsockname()[1])

    async def main() -> None:
        found.loop = asyncio.get_running_loop()
        await server._serve(sockets)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the server has not started"
        yield found
    finally:
        server.should_exit = True
        thread.join()
        worker.service.engine.close()
        for each in sockets:
            each.close()
