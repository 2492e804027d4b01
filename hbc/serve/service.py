"""Service: what every protocol shares, and the one function that answers inference requests of HTTP, whichever way they come in."""

from __future__ import annotations

import contextlib
import hmac
import re
import time
from collections.abc import Callable
from typing import Any

from hbc.serve import documents, page, plain, v2
from hbc.serve.engine import Answer, Engine, Request, clock
from hbc.serve.failures import Failure
from hbc.serve.hosts import Hosts
from hbc.serve.limits import Limits
from hbc.serve.logs import Log, trace_of
from hbc.serve.messages import JSON_ONLY, Head, Reply, Route, route_of
from hbc.serve.repository import Repository

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
OPEN = ("/v2/health/live", "/v2/health/ready", *page.FILES)
"""The paths that need no token: what starts and stops servers asks them; and the page, which asks for the token itself."""

INTERNAL = Failure("internal", "the server failed; its log says why.")

Write = Callable[[Request, Answer, Any], Reply]


class Call:
    """An inference request that was read: the request for the engine, and how its answer is written."""

    __slots__ = ("head", "hint", "request", "write")

    def __init__(self, head: Head, request: Request, hint: Any, write: Write) -> None:
        self.head = head
        self.request = request
        self.hint = hint
        self.write = write


class Service:
    """The models, the engine, and the rules of a server. token: what `Authorization: Bearer` must hold, or None for no such rule.
    control: whether clients may load and unload models. access_log: write a line for each request. hosts: the names by which the server may
    be called; None: all."""

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        limits: Limits,
        log: Log,
        *,
        token: str | None = None,
        control: bool = True,
        access_log: bool = False,
        hosts: Hosts | None = None,
    ) -> None:
        self.repository = repository
        self.engine = engine
        self.limits = limits
        self.log = log
        self.control = control
        self.access_log = access_log
        self.draining = False
        """Whether the server is about to stop: it answers, but is not ready any more."""
        self._hosts = hosts
        self._token = None if token is None else f"Bearer {token}".encode()

    # --- rules of all requests -----------------------------------------------------------------------------------------

    def check(self, head: Head) -> None:
        """Raise Failure for a request without the token, from a page of another site, by another name, or with an encoded body."""
        if self._token is not None and head.path not in OPEN:
            self.require_token(head.authorization)
        if self._hosts is not None:
            self._hosts.require(head.host)
        if head.origin and head.origin.partition("://")[2] != head.host:
            raise Failure(
                "forbidden",
                f"origin: found {head.origin!r:.100}, expected {head.host!r:.100}: pages of other sites may not call.",
            )
        if head.content_encoding and head.content_encoding.lower() != "identity":
            raise Failure("unsupported", f"content-encoding: found {head.content_encoding!r:.40}, expected none.")

    def require_token(self, authorization: str) -> None:
        """Raise Failure if a header `Authorization`, or the entry of gRPC's metadata, does not hold the token. It takes as long for a token
        that is nearly right."""
        if self._token is not None and not hmac.compare_digest(authorization.encode("utf-8", "replace"), self._token):
            raise Failure("unauthorized", "a token is needed: Authorization: Bearer TOKEN.")

    def require_control(self) -> None:
        """Raise Failure where clients may not load and unload models."""
        if not self.control:
            raise Failure("forbidden", "this server's clients may not load and unload models.")

    @property
    def ready(self) -> bool:
        return self.repository.ready and not self.draining

    # --- inference -----------------------------------------------------------------------------------------------------

    def begin(self, head: Head, body: bytes, asked: float, route: Route | None = None) -> Call | Reply:
        """The call that a request is, or the reply that refuses it. asked: the time of `clock` when it came."""
        try:
            return self.read(head, body, asked, route)
        except Exception as error:
            return self.unread(head, error, asked, route)

    def read(self, head: Head, body: bytes, asked: float, route: Route | None = None) -> Call:
        """The call that a request is. It changes nothing, so that threads may read large ones. Raises Failure, or what is hbc's fault."""
        self.check(head)
        route = route or route_of(head.path)
        if route is None:
            raise Failure("missing", f"path: found {head.path!r:.100}, which this server does not have: see /openapi.json.")
        served = self.repository.get(route.name, route.version)
        if len(body) > self.limits.body:
            raise too_long(self.limits)
        try:
            if route.protocol == "plain":
                request, request_id = plain.read(served, route.method, body, self.limits, asked)
                return Call(head, request, request_id, _write_plain)
            request, wanted = v2.read(served, head, body, self.limits, asked)
            return Call(head, request, wanted, v2.write)
        except RecursionError as error:
            raise Failure("invalid", "body: it is nested too deeply.") from error

    def unread(self, head: Head, error: Exception, asked: float, route: Route | None = None) -> Reply:
        """The reply to a request for which `read` raised this error. It counts as a failure of its model."""
        route = route or route_of(head.path)
        with contextlib.suppress(Failure):
            if route is not None:
                self.repository.get(route.name, route.version).statistics.failed(clock() - asked)
        if isinstance(error, Failure):
            return self.refuse(head, error, asked)
        self.log.failed("request not read", error, path=head.path)
        return self.refuse(head, INTERNAL, asked)

    def now(self, call: Call) -> Reply | None:
        """The reply to a call that can be computed at once, or None: then `finish` is for it."""
        try:
            answer = self.engine.now(call.request)
            return None if answer is None else self._reply(call, answer)
        except Failure as error:
            return self._refuse(call, error)
        except Exception as error:
            return self._broken(call, error)

    async def finish(self, call: Call) -> Reply:
        """The reply to a call."""
        try:
            return self._reply(call, await self.engine.answer(call.request))
        except Failure as error:
            return self._refuse(call, error)
        except Exception as error:
            return self._broken(call, error)

    def _reply(self, call: Call, answer: Answer) -> Reply:
        begin = clock()
        request = call.request
        reply = call.write(request, answer, call.hint)
        end = clock()
        statistics = request.served.statistics
        statistics.answered(
            request.rows, request.started - request.asked, answer.queue_seconds, answer.infer_seconds, end - begin
        )
        statistics.last = time.time()
        if self.access_log:
            self._log(call.head, reply.status, end - request.asked, served=request.served, rows=request.rows)
        return _named(reply, call.head)

    def _refuse(self, call: Call, error: Failure) -> Reply:
        request = call.request
        request.served.statistics.failed(clock() - request.asked)
        return self.refuse(call.head, error, request.asked)

    def _broken(self, call: Call, error: Exception) -> Reply:
        """The reply where hbc itself is at fault. The log has the error; the caller is not shown it."""
        self.log.failed("request failed", error, path=call.head.path, request_id=call.head.request_id)
        return self._refuse(call, INTERNAL)

    def refuse(self, head: Head, error: Failure, asked: float | None = None) -> Reply:
        """The reply that says why a request is not answered."""
        if self.access_log or error.status >= 500:
            self._log(head, error.status, None if asked is None else clock() - asked, error=error.message)
        headers: tuple[tuple[bytes, bytes], ...] = JSON_ONLY
        if error.retry_after is not None:
            headers = (*headers, (b"retry-after", str(error.retry_after).encode()))
        if error.kind == "unauthorized":
            headers = (*headers, (b"www-authenticate", b"Bearer"))
        return _named(Reply(error.status, documents.failure(error), headers), head)

    def _log(self, head: Head, status: int, seconds: float | None, served: Any = None, **facts: Any) -> None:
        known: dict[str, Any] = {"method": head.method, "path": head.path[:200], "status": status, **facts}
        if seconds is not None:
            known["seconds"] = round(seconds, 6)
        if served is not None:
            known |= {"model": served.name, "version": served.version}
        if REQUEST_ID.fullmatch(head.request_id):
            known["request_id"] = head.request_id
        self.log.tell("request", **known, **trace_of(head.traceparent))


def too_long(limits: Limits) -> Failure:
    return Failure("too_large", f"body: found more than {limits.body} bytes, which is the most.")


def _write_plain(request: Request, answer: Answer, request_id: str | None) -> Reply:
    return Reply(200, plain.write(request, answer, request_id))


def _named(reply: Reply, head: Head) -> Reply:
    """The reply with the caller's own id of the request, if it sent a printable one."""
    if head.request_id and REQUEST_ID.fullmatch(head.request_id):
        return Reply(reply.status, reply.body, (*reply.headers, (b"x-request-id", head.request_id.encode())))
    return reply
