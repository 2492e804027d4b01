"""The paths of HTTP, as an application of starlette. Inference requests that take the short way (protocol.py) do not come here."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hbc.serve import documents, openapi, overview, page, v2
from hbc.serve.engine import clock
from hbc.serve.failures import STATUS, Failure
from hbc.serve.messages import Head, Reply, decoded_path, head_of, route_of
from hbc.serve.metrics import CONTENT_TYPE, exposition
from hbc.serve.service import Service, too_long
from hbc.serve.workers import Family

Endpoint = Callable[[Request], Awaitable[Response]]

LARGE = 256 << 10
"""Bodies of more bytes are read in a thread, so that others are answered meanwhile: 9 MB took 0.2 s of the event loop."""

BODIES = 16
"""How many of the largest bodies may be in memory at once."""


class Application:
    """The application of ASGI: the rules of all requests first, then starlette's routes. family: the other processes of the server."""

    def __init__(self, service: Service, family: Family) -> None:
        self.service = service
        self.family = family
        self.held = 0
        """The bytes of bodies that are being read or answered."""
        self._starlette = Starlette(routes=self._routes(), exception_handlers={HTTPException: self._not_found})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._starlette(scope, receive, send)
            return
        asked = clock()
        head = Head(scope["method"], "")
        try:
            path = decoded_path(scope["raw_path"])
            head = head_of(scope["method"], path, scope["query_string"].decode("latin-1"), scope["headers"])
            self.service.check(head)
            scope["hbc"] = head
            if route_of(path) is not None:
                if head.method != "POST":
                    raise Failure("not_allowed", f"method: found {head.method}, expected POST.")
                reply = await self._infer(head, Request(scope, receive), receive)
            else:
                await self._starlette(scope, receive, send)
                return
        except Failure as error:
            reply = self.service.refuse(head, error, asked)
            if error.kind == "not_allowed":
                reply = Reply(reply.status, reply.body, (*reply.headers, (b"allow", b"POST")))
        except ClientDisconnect:
            return
        try:
            await _response(reply)(scope, receive, send)
        except RuntimeError as error:
            if "is closed" not in str(error):  # uvloop's words where the client has just left
                raise

    # --- inference -----------------------------------------------------------------------------------------------------

    async def _infer(self, head: Head, request: Request, receive: Any) -> Reply:
        """The reply to an inference request. A request whose client has left leaves the queue."""
        length = request.headers.get("content-length", "0")
        body = await self._body(request, int(length) if length.isdecimal() else 0)
        try:
            return await self._answer(head, body, receive)
        finally:
            self.held -= len(body)

    async def _answer(self, head: Head, body: bytes, receive: Any) -> Reply:
        """The reply to an inference request that has come."""
        asked = clock()
        try:
            read = self.service.read
            found = read(head, body, asked) if len(body) < LARGE else await asyncio.to_thread(read, head, body, asked)
        except Exception as error:
            return self.service.unread(head, error, asked)
        reply = self.service.now(found)
        if reply is not None:
            return reply
        work = asyncio.ensure_future(self.service.finish(found))
        left = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            return work.result()
        finally:
            work.cancel()
            left.cancel()

    async def _body(self, request: Request, announced: int = 0) -> bytes:
        """The body, which counts as held until the caller takes it off. Raises Failure if it is too long, or if too many are held."""
        limits = self.service.limits
        if announced > limits.body:
            raise too_long(limits)
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                self.held += len(part)
                if size > limits.body:
                    raise too_long(limits)
                if self.held > BODIES * limits.body:
                    raise Failure("busy", "the server holds too many large requests: try again.", retry_after=1)
                parts.append(part)
        except BaseException:
            self.held -= size
            raise
        return b"".join(parts)

    async def _asked(self, request: Request) -> dict[str, Any]:
        """The JSON object that is asked with; {} for no body."""
        body = await self._body(request)
        self.held -= len(body)
        return documents.parsed(body) if body else {}

    # --- everything else -----------------------------------------------------------------------------------------------

    def _routes(self) -> list[Route]:
        def path(pattern: str, endpoint: Endpoint, method: str = "GET") -> Route:
            return Route(pattern, self._guarded(endpoint), methods=[method])

        return [
            path("/v2", self._server),
            path("/v2/health/live", self._live),
            path("/v2/health/ready", self._ready),
            path("/v2/models/stats", self._statistics),
            *(
                path(f"/v2/models/{{name}}{version}{what}", endpoint)
                for version in ("", "/versions/{version}")
                for what, endpoint in (("", self._model), ("/ready", self._model_ready), ("/stats", self._statistics))
            ),
            path("/v2/repository/index", self._index, "POST"),
            path("/v2/repository/models/{name}/load", self._load, "POST"),
            path("/v2/repository/models/{name}/unload", self._unload, "POST"),
            path("/v1/models", self._list),
            path("/metrics", self._metrics),
            path("/openapi.json", self._openapi),
            path("/overview", self._overview),
            path("/overview/models", self._described),
            *(path(each, self._page) for each in page.FILES),
        ]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, with Failure written as the others are."""

        @functools.wraps(endpoint)
        async def guarded(request: Request) -> Response:
            head = request.scope["hbc"]
            try:
                return await endpoint(request)
            except Failure as error:
                return _response(self.service.refuse(head, error))
            except ClientDisconnect:
                raise
            except Exception as error:
                self.service.log.failed("request failed", error, path=head.path)
                return _response(self.service.refuse(head, Failure("internal", "the server failed; its log says why.")))

        return guarded

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        kind: Any = next((kind for kind, known in STATUS.items() if known == status), "internal")
        head = request.scope["hbc"]
        message = f"path: found {head.path!r:.200}, which this server does not have."
        if kind == "not_allowed":
            message = f"method: found {head.method}, which {head.path!r:.200} does not take."
        reply = self.service.refuse(head, Failure(kind, message))
        return _response(Reply(reply.status, reply.body, (*reply.headers, *_allowed(error))))

    async def _server(self, request: Request) -> Response:
        return _json(v2.server_metadata())

    async def _live(self, request: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, request: Request) -> Response:
        return _json({"ready": self.service.ready}, 200 if self.service.ready else 503)

    async def _model(self, request: Request) -> Response:
        served = self._get(request)
        return _json(v2.model_metadata(served, self.service.repository.versions(served.name)))

    async def _model_ready(self, request: Request) -> Response:
        served = self._get(request)
        return _json({"name": served.name, "ready": not self.service.draining}, 503 if self.service.draining else 200)

    async def _statistics(self, request: Request) -> Response:
        name, version = request.path_params.get("name"), request.path_params.get("version")
        if name is not None:
            self.service.repository.get(name, version)
        chosen = [s for s in self.service.repository.all() if name in (None, s.name) and version in (None, s.version)]
        known = self.family.statistics()  # after `chosen`: a thread may put a model in place
        return _json({"model_stats": [v2.model_statistics(s.name, s.version, known[s.name, s.version]) for s in chosen]})

    async def _list(self, request: Request) -> Response:
        return _json({"models": [openapi.summary(served) for served in self.service.repository.all()]})

    async def _index(self, request: Request) -> Response:
        asked = await self._asked(request)
        ready = asked.get("ready", False)
        if type(ready) is not bool:
            raise Failure("invalid", f"ready: found {documents.described(ready)}, expected true or false.")
        return _json([each for each in self.service.repository.index() if not ready or each["state"] == "READY"])

    async def _load(self, request: Request) -> Response:
        return await self._change(request, "load")

    async def _unload(self, request: Request) -> Response:
        return await self._change(request, "unload")

    async def _change(self, request: Request, what: str) -> Response:
        """Load or unload a model, here and in the other processes."""
        self.service.require_control()
        asked = await self._asked(request)
        parameters = asked.get("parameters", {})
        if parameters and not (what == "unload" and set(parameters) == {"unload_dependents"}):
            raise Failure("invalid", "parameters: found some, expected none: models come from the server's own files only.")
        name = request.path_params["name"]
        await asyncio.to_thread(self.family.change, what, name)
        return _json({})

    async def _metrics(self, request: Request) -> Response:
        text = exposition(self.service, self.family.statistics())
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def _openapi(self, request: Request) -> Response:
        return _json(openapi.document(self.service.repository.all()))

    async def _overview(self, request: Request) -> Response:
        return _json(overview.live(self.service, self.family))

    async def _described(self, request: Request) -> Response:
        return _json({"models": [overview.described(served) for served in self.service.repository.all()]})

    async def _page(self, request: Request) -> Response:
        return _response(page.reply(request.scope["hbc"].path))

    def _get(self, request: Request) -> Any:
        return self.service.repository.get(request.path_params["name"], request.path_params.get("version"))


async def _left(receive: Any) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _allowed(error: Exception) -> tuple[tuple[bytes, bytes], ...]:
    headers = getattr(error, "headers", None) or {}
    return tuple((name.lower().encode(), value.encode()) for name, value in headers.items())


def _json(document: Any, status: int = 200) -> Response:
    return Response(documents.written(document), status, media_type="application/json")


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.raw_headers = [*reply.headers, (b"content-length", str(len(reply.body)).encode())]
    return response
