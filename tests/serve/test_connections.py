"""Connections by raw sockets: what HTTP/1.1 allows, what is refused, and what clients that misbehave do to others."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import time

import pytest
from serving import Running, answered, people, post, received, until

RECORD = json.dumps({"record": people()[0][:1].to_dict("records")[0]}).encode()
PATH = "/v1/models/people:predict"


def answers(data: bytes) -> list[int]:
    """The statuses of all answers in what was received."""
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]


def open_to(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def request(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode() + body


SIZE = f"Content-Length: {len(RECORD)}"
POST = f"POST {PATH} HTTP/1.1"
REFUSED = {
    "a length twice": request(POST, "Host: x", SIZE, SIZE, body=RECORD),
    "two lengths": request(POST, "Host: x", SIZE, "Content-Length: 5", body=RECORD),
    "a length and chunks": request(POST, "Host: x", SIZE, "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and a length": request(POST, "Host: x", "Transfer-Encoding: chunked", SIZE, body=b"0\r\n\r\n"),
    "gzip in chunks": request(POST, "Host: x", "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunks twice": request(POST, "Host: x", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "another coding": request(POST, "Host: x", "Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "a sign": request(POST, "Host: x", f"Content-Length: +{len(RECORD)}", body=RECORD),
    "a list": request(POST, "Host: x", f"Content-Length: {len(RECORD)}, {len(RECORD)}", body=RECORD),
    "hex": request(POST, "Host: x", "Content-Length: 0x10", body=RECORD),
    "two hosts": request(POST, "Host: x", "Host: x", SIZE, body=RECORD),
    "no host": request(POST, SIZE, body=RECORD),
    "a space before the colon": request(POST, "Host : x", SIZE, body=RECORD),
    "a folded line": request(POST, "Host: x", "X: 1", " 2", SIZE, body=RECORD),
    "a bare LF": POST.encode() + b"\nHost: x\n" + SIZE.encode() + b"\n\n" + RECORD,
    "a NUL": request(POST, "Host: x", "X: a\0b", SIZE, body=RECORD),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": request(POST.replace("1.1", "1.2"), "Host: x", SIZE, body=RECORD),
    "no version": b"GET /v2\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32,
    "nonsense": b"\0\1\2\3\r\n\r\n",
    "a bad chunk": request(POST, "Host: x", "Transfer-Encoding: chunked", body=b"zz\r\n"),
    "a tunnel": request("CONNECT x:80 HTTP/1.1", "Host: x"),
    "two tokens": request(POST, "Host: x", "Authorization: a", "Authorization: b", SIZE, body=RECORD),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(server: Running, name: str) -> None:
    """One answer, which is an error, and the connection is closed: nothing behind it counts as a request."""
    found = server.raw(REFUSED[name] + post(PATH, RECORD), shut=True)
    assert answers(found) in ([400], [404], [405]), found
    assert b"connection: close" in found.lower()


def test_requests_in_pieces_in_chunks_and_one_after_the_other(server: Running) -> None:
    expected = server.json("POST", PATH, RECORD)["predictions"]
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in (RECORD[:5], RECORD[5:])) + b"0\r\n\r\n"
    whole = post(PATH, RECORD, close=False)
    chunked = request(POST, "Host: x", "Transfer-Encoding: chunked", body=chunks)
    get = request("GET /v2/health/live HTTP/1.1", "Host: x")
    absolute = request(f"POST http://x{PATH} HTTP/1.1", "Host: x", SIZE, body=RECORD)
    with open_to(server) as connection:
        for data in (whole, whole, chunked, get, whole, absolute, whole):
            for byte in range(0, len(data), 7):
                connection.sendall(data[byte : byte + 7])
            found = answered(connection)
            assert found.startswith(b"HTTP/1.1 200 OK\r\n")
            if data is not get:
                assert json.loads(found.partition(b"\r\n\r\n")[2])["predictions"] == expected
    every = [whole, get, chunked, whole, post("/v1/models/people:fly", RECORD, close=False), whole, get]
    found = server.raw(b"".join(every) + post(PATH, RECORD))
    assert answers(found) == [200, 200, 200, 200, 404, 200, 200, 200]


def test_old_clients_expectations_and_ends(server: Running) -> None:
    old = request(POST.replace("1.1", "1.0"), SIZE, body=RECORD)
    assert answers(server.raw(old)) == [200]  # and the connection is closed
    waits = request(POST, "Host: x", SIZE, "Expect: 100-continue", "Connection: close")
    with open_to(server) as connection:
        connection.sendall(waits)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(RECORD)
        assert answers(received(connection)) == [200]
    assert answers(server.raw(post(PATH, RECORD, close=False), shut=True)) == [200]  # half closed
    assert answers(server.raw(post(PATH, RECORD, close=False)[:-5], shut=True)) == []  # the rest never comes
    upgrade = request("GET /v2 HTTP/1.1", "Host: x", "Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    assert answers(server.raw(upgrade + post(PATH, RECORD))) == [200, 200]  # as HTTP/1.1
    with open_to(server) as connection:
        connection.sendall(upgrade[:50])
        time.sleep(0.05)
        connection.sendall(upgrade[50:] + post(PATH, RECORD))
        assert answers(received(connection)) == [200]  # what is behind it is no request
    head = server.raw(request("HEAD /v2/health/live HTTP/1.1", "Host: x", "Connection: close"))
    assert head.endswith(b"\r\n\r\n")
    assert answers(head) == [200]


def test_rules_are_the_same_whichever_way_a_request_comes(server: Running, strict: Running) -> None:
    """The first request of a head is read by httptools, the next ones are known; one in chunks goes the way of ASGI."""

    def ways(target: Running, *headers: str, body: bytes = RECORD, path: str = PATH) -> set[tuple[int, bytes]]:
        whole = post(path, body, *headers, close=False)
        chunked = request(
            f"POST {path} HTTP/1.1",
            "Host: x",
            "Transfer-Encoding: chunked",
            *headers,
            body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        )
        found = set()
        for data in (whole, whole, whole, chunked):
            with open_to(target) as connection:
                connection.sendall(data)
                answer = answered(connection)
                found.add((answers(answer)[0], answer.partition(b"\r\n\r\n")[2]))
        return found

    good = "Authorization: Bearer open-sesame"
    for target, headers, body, status in (
        (server, (), RECORD, 200),
        (server, (), b"{", 400),
        (server, ("Origin: http://evil.example",), RECORD, 403),
        (server, ("Origin: http://x",), RECORD, 200),
        (server, ("Content-Encoding: gzip",), RECORD, 415),
        (strict, (), RECORD, 401),
        (strict, ("Authorization: Bearer open-sesam",), RECORD, 401),
        (strict, ("Authorization: Basic open-sesame",), RECORD, 401),
        (strict, (good,), RECORD, 200),
        (strict, (good,), b"[" + b" " * 20_000, 413),
        (strict, (good,), json.dumps({"records": [{}] * 51}).encode(), 413),
        (strict, (good,), json.dumps({"record": {str(i): 1 for i in range(41)}}).encode(), 413),
    ):
        found = ways(target, *headers, body=body)
        assert {each[0] for each in found} == {status}, found
        assert len(found) == 1
    with open_to(server) as connection:
        connection.sendall(post(PATH, RECORD, "X-Request-Id: abc-7", "traceparent: 00-" + "a" * 32 + "-" + "b" * 16 + "-01"))
        assert b"\r\nx-request-id: abc-7\r\n" in received(connection)


def test_the_token_guards_everything_but_health(strict: Running) -> None:
    for path in ("/metrics", "/v2", "/v2/models/people", "/openapi.json", "/v1/models", "/v2/models/stats"):
        status, headers, _ = strict.ask("GET", path)
        assert status == 401, path
        assert headers["www-authenticate"] == "Bearer"
    assert strict.ask("POST", "/v2/repository/models/people/unload")[0] == 401
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert strict.ask("GET", path)[0] == 200
    token = {"Authorization": "Bearer open-sesame"}
    assert strict.ask("GET", "/metrics", headers=token)[0] == 200
    assert strict.ask("POST", "/v2/repository/models/people/unload", headers=token)[0] == 403  # --fixed


def test_heads_and_bodies_that_are_too_long(strict: Running) -> None:
    head = b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000
    assert answers(strict.raw(head)) == [431]
    many = b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 20_000
    assert answers(strict.raw(many)) == [431]
    token = "Authorization: Bearer open-sesame"
    announced = request(POST, "Host: x", "Content-Length: 99999999999999", token)
    with open_to(strict) as connection:
        connection.sendall(announced)
        assert answers(answered(connection)) == [413]
    endless = request(POST, "Host: x", "Transfer-Encoding: chunked", token, body=b"5000\r\n" + b" " * 0x5000 + b"\r\n")
    with open_to(strict) as connection:
        connection.sendall(endless)
        assert answers(answered(connection)) == [413]


def test_slow_clients_are_cut_off_and_disturb_nobody(strict: Running) -> None:
    """A head or a body that does not come in time, a connection that says nothing, and a client that does not read."""
    token = "Authorization: Bearer open-sesame"
    starts = [
        b"",
        b"POST /v1",
        request(POST, "Host: x", SIZE, token),
        request(POST, "Host: x", "Transfer-Encoding: chunked", token),
    ]
    with_body = request(POST, "Host: x", "Content-Length: 19000", token)
    connections = [open_to(strict) for _ in range(5)]
    for connection, start in zip(connections, [*starts, with_body], strict=True):
        connection.sendall(start)
    begin = time.monotonic()
    while time.monotonic() - begin < 1.0:  # one byte after the other is no reason to wait
        for connection, byte in zip(connections[1:], (b"x", b"{", b"", b"{"), strict=True):
            try:
                connection.sendall(byte)
            except OSError:
                continue
        assert answers(strict.raw(post(PATH, RECORD, token))) == [200]
        time.sleep(0.05)
    found = [answers(received(connection)) for connection in connections]
    assert found[0] == []
    assert all(each in ([], [408]) for each in found), found
    for connection in connections:
        connection.close()
    until(lambda: not strict.server.server_state.connections)


def test_a_client_that_leaves_takes_its_request_out_of_the_queue(server: Running) -> None:
    import threading

    gate = threading.Event()
    served = server.worker.repository.get("people")
    predictor = served.predictors["predict"]
    inner = predictor.record
    predictor.record = lambda row: gate.wait(30) and inner(row)  # type: ignore[method-assign]
    fixed, served.cost.fixed = served.cost.fixed, 10.0
    try:
        connections = [open_to(server) for _ in range(4)]
        for connection in connections:
            connection.sendall(post(PATH, RECORD, close=False))
        until(lambda: server.worker.service.engine.waiting == 3)
        assert server.ask("GET", "/v2/health/live")[0] == 200  # the event loop is free
        assert b"nv_inference_pending_request_count" in server.ask("GET", "/metrics")[2]
        connections[1].close()
        connections[2].close()
        until(lambda: server.worker.service.engine.waiting == 1)
        gate.set()
        assert [answers(answered(connections[i])) for i in (0, 3)] == [[200], [200]]
        connections[0].close()
        connections[3].close()
    finally:
        gate.set()
        predictor.record = inner  # type: ignore[method-assign]
        served.cost.fixed = fixed


def test_an_error_of_our_own_is_an_answer(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way a request comes, a fault of hbc is a 500 that shows nothing, and the connection goes on."""
    from hbc.serve import plain

    def broken(*arguments: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(plain, "read", broken)
    chunked = request(POST, "Host: x", "Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(RECORD), RECORD))
    with open_to(server) as connection:
        for data in (
            post(PATH, RECORD, close=False),
            post(PATH, RECORD, close=False),
            chunked,
            post(PATH, b" " * 300_000, close=False),
        ):
            connection.sendall(data)
            found = answered(connection)
            assert answers(found) == [500]
            assert b"secret" not in found


def test_large_bodies_are_read_beside_the_event_loop(server: Running) -> None:
    """The answers are those of small ones, and what is held is given back."""
    X, model = people()
    rows = X.to_dict("records") * 20
    found = server.json("POST", PATH, {"records": rows})["predictions"]["predict"]
    assert found == list(model.predict(X)) * 20
    assert "records[4000]" in server.json("POST", PATH, {"records": [*rows, 3]}, status=400)["error"]
    assert server.server.config.app.held == 0  # type: ignore[union-attr]


def idle(server: Running, count: int) -> None:
    """Connections that say nothing, while others are answered."""
    connections = [open_to(server) for _ in range(count)]
    until(lambda: len(server.server.server_state.connections) >= count)
    for _ in range(20):
        assert answers(server.raw(post(PATH, RECORD))) == [200]
    for connection in connections[::50]:
        connection.sendall(post(PATH, RECORD))
        assert answers(received(connection)) == [200]
    for connection in connections:
        connection.close()
    until(lambda: len(server.server.server_state.connections) < 10, 60)


def test_a_thousand_idle_connections(server: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_000:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_000), hard))
    idle(server, 1_000)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl(server: Running) -> None:
    """curl sends another content type, asks for HTTP/2, and expects a 100 for large bodies."""
    url = f"http://127.0.0.1:{server.port}{PATH}"
    large = json.dumps({"records": [json.loads(RECORD)["record"]] * 2000})
    for options, data in (
        ([], RECORD.decode()),
        (["--http2"], RECORD.decode()),
        (["-H", "Expect: 100-continue"], large),
        (["--http1.0"], large),
    ):
        command = ["curl", "-sS", "--max-time", "20", "-w", "%{http_code}", *options, url, "-d", "@-"]
        found = subprocess.run(command, input=data, capture_output=True, text=True, check=True).stdout
        assert found.endswith("200"), found[-300:]
        assert '"predictions":{"predict":' in found
