"""A head that begins behind another request and ends in the next read is one head, and what it ends with is none."""

from __future__ import annotations

import json
import socket

from serving import Running, answered, numbers, people, post

PEOPLE = json.dumps({"record": people()[0][:1].to_dict("records")[0]}).encode()
NUMBERS = json.dumps({"rows": [numbers()[0].iloc[0].tolist()]}).encode()


def asked(connection: socket.socket, piece: bytes) -> bytes:
    """The answer to what was sent and this."""
    connection.sendall(piece)
    return answered(connection)


def test_the_end_of_a_head_is_not_taken_for_a_head(server: Running) -> None:
    """It would change what the requests of others mean that begin so."""
    usual = post("/v1/models/numbers:predict", NUMBERS, close=False)
    first = post("/v1/models/people:predict", PEOPLE, close=False)
    for known in (False, True):
        end = usual.replace(b"Host: x\r\n", b"Host: x\r\nX-Known: %d\r\n" % known)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            for _ in range(3):
                assert b'"model":"people"' in asked(connection, first)  # at once from now on
                if known:
                    assert b'"model":"numbers"' in asked(connection, end)
            asked(connection, first + b"POST /v1/models/people:predict HTTP/1.1\r\nX-Other: ")
            assert asked(connection, end).startswith(b"HTTP/1.1 400")  # people has other columns
            assert b'"model":"numbers"' in asked(connection, end)
            assert b'"model":"people"' in asked(connection, first)


def test_a_pipeline_cut_anywhere(server: Running) -> None:
    one = post("/v1/models/numbers:predict", NUMBERS, close=False)
    two = post("/v1/models/people:predict", PEOPLE, close=False)
    for cut in range(len(one) + 1, len(one + two), 5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            assert b'"model":"numbers"' in asked(connection, (one + two)[:cut])
            assert b'"model":"people"' in asked(connection, (one + two)[cut:])
            for again, model in ((one, b"numbers"), (two, b"people")):
                assert b'"model":"%b"' % model in asked(connection, again), cut


def test_what_is_sent_before_the_last_request_is_answered(server: Running) -> None:
    """The last one closes the connection: it is none, or says so. Others before it take a longer way."""
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    for last in (b"no request\r\n\r\n", live.replace(b"x\r\n", b"x\r\nConnection: close\r\n")):
        for count in range(1, 5):
            found = server.raw(live * count + last)
            assert found.count(b'{"live":true}') == count + last.startswith(b"GET")
