"""Connections: uvicorn's protocol of HTTP/1.1, with a short way for small inference requests, stricter rules, and limits of time.

The short way leaves out uvicorn's scope, task and cycle of ASGI, 25 µs a request. It uses the same functions of Service as the long way,
so the checks and answers are the same. What it does not answer at once goes the long way."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hbc.lazy import record
from hbc.serve.engine import clock
from hbc.serve.failures import Failure
from hbc.serve.messages import JSON_ONLY, Head, Reply, Route, decoded_path, head_of, route_of

if TYPE_CHECKING:
    from hbc.serve.service import Service

SMALL = 64 << 10
"""The most bytes of a body that is answered the short way."""

HALF_CLOSED_SECONDS = 1.0

MOST_KNOWN = 1024
LONGEST_KNOWN = 2048

UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@record
class Known:
    """A head that httptools has read, of a request for the short way. The same bytes at the start of a message mean the same again, so
    that they need not be read again: clients send the same head over and over."""

    head: Head
    route: Route
    length: int
    """The bytes of the body."""


class Connection(HttpToolsProtocol):
    """A connection. `service` is set on the subclass that `connection_class` makes."""

    service: Service
    known: dict[bytes, Known]
    usual: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")
    """The headers that every answer has, and the start of an answer of JSON with them."""

    admitted = False
    """Whether it comes from another worker, which has let it in: it is not one too many."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = clock()
        """When the connection came to wait for what it waits for."""
        self._reading = ""
        """"head" or "body" while a request is coming in, "" otherwise."""
        self._short: Known | None = None
        """The request that is read for the short way."""
        self._parts: list[bytes] = []
        self._came = 0.0
        self._bytes = 0
        self._ending = False
        self._raw: bytes | None = None
        self._refused = False
        self._half_closed = False
        if len(self.connections) > self.service.limits.connections and not self.admitted:
            self._end(Failure("unavailable", "the server has too many connections.", retry_after=1))

    # --- reading -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._came = clock()
        self._raw = None
        if not self._reading and self._free():
            end = data.find(b"\r\n\r\n", 0, LONGEST_KNOWN) + 4
            if end > 3:
                raw = data[:end]
                known = self.known.get(raw)
                if known is not None and len(data) == end + known.length:
                    reply = self._answer(known, data[end:])
                    if reply is not None:
                        self._send(reply)
                        return
                self._raw = raw
                if b"pgrade:" in raw:
                    # httptools leaves out the body of a request that would change the protocol: Java's client asks so at every first one.
                    data = UPGRADE.sub(b"\r\nx-upgrade:", raw) + data[end:]
            self._reading, self._since, self._bytes = "head", self._came, 0
        if self._reading == "head" and self._short is None:
            self._bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refused = True  # it was answered as HTTP/1.1; what comes behind it is of another protocol
        except httptools.HttpParserError as error:
            refused = error.__context__
            failure = refused if isinstance(refused, Failure) else Failure("invalid", "the request is no HTTP/1.1.")
            self._end(failure, 431 if failure.kind == "too_large" else None)
        else:
            if self._reading == "head" and self._bytes > self.service.limits.head:
                self._end(self._long_head(), 431)

    def _free(self) -> bool:
        """Whether the next request may be answered at once: nothing before it is being answered, and the client reads its answers."""
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused and not self.pipeline

    def on_message_begin(self) -> None:
        if not self._reading:  # it begins behind another: what the next read begins with is not its head
            self._reading, self._since, self._raw = "head", clock(), None
        self._short = None
        self._parts = []
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reading, self._since = "body", clock()
        version = self.parser.get_http_version()
        names = [name for name, _ in self.headers]
        self._require_sound(version, names)
        if self._bytes > self.service.limits.head < sum(len(name) + len(value) for name, value in self.headers) + len(self.url):
            raise self._long_head()
        if self.parser.should_upgrade():
            self._ending = True
        if self.parser.get_method() == b"POST" and self._free() and version == "1.1" and not self.expect_100_continue:
            known = self._known(names)
            if known is not None:
                self._short = known
                return
        super().on_headers_complete()

    def _require_sound(self, version: str, names: list[bytes]) -> None:
        """Raise Failure for heads that servers and proxies could read in two ways."""
        if version not in ("1.0", "1.1"):
            raise Failure("invalid", f"found HTTP/{version}, expected HTTP/1.1.")
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise Failure("invalid", f"host: found {hosts} headers, expected one.")
        if names.count(b"content-length") > 1:
            raise Failure("invalid", "content-length: found twice, expected once.")
        if b"transfer-encoding" in names:
            values = [value for name, value in self.headers if name == b"transfer-encoding"]
            if version == "1.0" or b"content-length" in names or [value.strip().lower() for value in values] != [b"chunked"]:
                raise Failure(
                    "invalid", "transfer-encoding: expected chunked, in HTTP/1.1, once, and no content-length beside it."
                )
        if names.count(b"authorization") > 1:
            raise Failure("invalid", "authorization: found twice, expected once.")

    def _known(self, names: list[bytes]) -> Known | None:
        """The request as one for the short way; None if it is none."""
        if b"transfer-encoding" in names:
            return None
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if not length.isdigit() or len(length) > 6 or int(length) > SMALL:
            return None
        raw, _, query = self.url.partition(b"?")
        if not raw.startswith(b"/"):
            return None
        path = decoded_path(raw)
        route = route_of(path)
        if route is None or query:
            return None
        return Known(head_of("POST", path, "", self.headers), route, int(length))

    def on_body(self, body: bytes) -> None:
        if self._short is not None:
            self._parts.append(body)
        elif self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading, self._since = "", clock()
        self._bytes = 0
        known = self._short
        if known is None:
            if self.cycle is not None:
                super().on_message_complete()
            return
        self._short = None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self._free():
            reply = self._answer(known, body)
            if reply is not None:
                self._remember(known)
                keep = self.parser.should_keep_alive()
                self._send(reply, keep)
                return
        super().on_headers_complete()
        if body:
            super().on_body(body)
        super().on_message_complete()

    def _remember(self, known: Known) -> None:
        """Keep a head for the next request, if it came at once and is like those to come."""
        raw, self._raw = self._raw, None
        if raw is None or known.head.request_id or known.head.traceparent or not self.parser.should_keep_alive():
            return
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[raw] = known

    def _answer(self, known: Known, body: bytes) -> Reply | None:
        """The reply to a small request if it can be computed at once, otherwise None."""
        service = self.service
        call = service.begin(known.head, body, self._came, known.route)
        return call if type(call) is Reply else service.now(call)  # type: ignore[arg-type]

    # --- writing -------------------------------------------------------------------------------------------------------

    def _send(self, reply: Reply, keep: bool = True) -> None:
        self._since = self._came
        self.server_state.total_requests += 1
        keep = keep and not self._ending
        self.transport.write(self._bytes_of(reply, keep))
        if not keep or self._half_closed:
            self.transport.close()

    def _bytes_of(self, reply: Reply, keep: bool) -> bytes:
        length = str(len(reply.body)).encode()
        if keep and reply.status == 200 and reply.headers is JSON_ONLY:
            usual = self.server_state.default_headers  # a new list every second, with the date
            if usual is not self.usual[0]:
                type(self).usual = (usual, _start(200, (*usual, *JSON_ONLY)) + b"content-length: ")
            return b"".join((self.usual[1], length, b"\r\n\r\n", reply.body))
        start = _start(reply.status, (*self.server_state.default_headers, *reply.headers))
        return b"".join(
            (start, b"" if keep else b"connection: close\r\n", b"content-length: ", length, b"\r\n\r\n", reply.body)
        )

    def _long_head(self) -> Failure:
        return Failure("too_large", f"head: found more than {self.service.limits.head} bytes, which is the most.")

    def _end(self, error: Failure, status: int | None = None) -> None:
        """Say why the connection is closed, and close it. Requests before the bad one are answered first, and then nothing is said."""
        self._refused = self._ending = True
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self.pipeline and self._reading == "body":
            self.pipeline.popleft()  # the bad one, which would wait for its body for ever
            return
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self._reading != "body":
                cycle.keep_alive = False
                return
            cycle.disconnected = True  # its application hears that nobody wants the answer
            cycle.message_event.set()
        reply = self.service.refuse(Head("", ""), error)
        self.transport.write(self._bytes_of(Reply(status or reply.status, reply.body, reply.headers), keep=False))
        self.transport.close()

    def on_response_complete(self) -> None:
        self._since = clock()
        last = not self.pipeline
        super().on_response_complete()  # which begins with the next one
        self._unset_keepalive_if_required()  # `look` closes idle connections: a timer for each request would take 2 µs
        if (self._half_closed or self._ending) and last:
            self.transport.close()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more: it waits for its answer, or it has left, which looks the same. So it gets what is answered within
        HALF_CLOSED_SECONDS; then the connection is closed, and its request leaves the queue."""
        waits = self.cycle is not None and not self.cycle.response_complete and self._reading != "body"
        self._half_closed = True
        if not waits or self.scheme != "http":
            return None
        self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.close)
        return True

    # --- limits of time, and the end -----------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Close the connection if it has waited for too long. The server calls this every second."""
        limits = self.service.limits
        waited = now - self._since
        if self.flow.write_paused:
            if waited > limits.body_seconds:  # the client does not read
                self.transport.abort()
        elif self._reading == "head":
            if waited > limits.head_seconds:
                self._late("the head of the request took too long.")
        elif self._reading == "body":
            if waited > limits.body_seconds:
                self._late("the body of the request took too long.")
        elif waited > limits.idle_seconds and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _late(self, message: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._end(Failure("invalid", message), 408)
        else:
            self.transport.abort()

    def drain(self) -> None:
        """Close the connection after the next answer."""
        self._ending = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        if self._reading:
            self._ending = True
        else:
            super().shutdown()


def _start(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return LINES[status] + b"".join(b"%b: %b\r\n" % header for header in headers)


def connection_class(service: Service) -> type[Connection]:
    """The class of the connections of a service."""
    return type("Connection", (Connection,), {"service": service, "known": {}})
