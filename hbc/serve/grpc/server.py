"""The gRPC server of a process: it listens, asks for the token, turns failures into gRPC's status codes, and drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hbc.lazy import record
from hbc.serve.engine import clock
from hbc.serve.failures import Failure, Kind
from hbc.serve.grpc.messages import HEALTH, INFERENCE, NOT_SERVING, SERVICE_UNKNOWN, SERVING, Health, methods_of
from hbc.serve.grpc.methods import Methods
from hbc.serve.service import Service
from hbc.serve.workers import Family

CODES: dict[Kind, grpc.StatusCode] = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "missing": grpc.StatusCode.NOT_FOUND,
    "not_allowed": grpc.StatusCode.UNIMPLEMENTED,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unsupported": grpc.StatusCode.UNIMPLEMENTED,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "late": grpc.StatusCode.DEADLINE_EXCEEDED,
    "internal": grpc.StatusCode.INTERNAL,
}
"""Kind of failure → status of gRPC."""

OPEN = ("ServerLive", "ServerReady")
"""The methods that answer without the token, as the health checks of HTTP do."""

QUIET_SECONDS, REFUSING_SECONDS = 0.2, 3.0
"""A server that stops refuses calls until none has come for so long, and at most so long."""

WATCH_SECONDS = 1.0
"""How often a watched health check looks at the models. A server that stops tells it at once."""


@record
class Tls:
    """The files of a server's certificate and of its key, as PEM."""

    certificate: Path
    key: Path


class GrpcServer:
    """Serves over gRPC what a service has, in its event loop. address: such as "127.0.0.1:8001"; port 0 takes a free one, which `address`
    names after `start`."""

    def __init__(self, service: Service, family: Family, address: str, tls: Tls | None = None) -> None:
        self._service = service
        self._methods = Methods(service, family)
        self.address = address
        self._tls = tls
        self._stopping = asyncio.Event()
        self._server: Any = None
        self._refusing = False
        self._last_call = 0.0

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be had, or a file of `tls` cannot be read."""
        limits = self._service.limits
        options = [
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.head),
            ("grpc.max_connection_idle_ms", int(limits.idle_seconds * 1e3)),
            ("grpc.so_reuseport", 1),  # the workers of one server listen at the same port
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
        handlers = {name: self._handler(name, *kinds) for name, kinds in methods_of(INFERENCE).items()}
        health = {name: self._health_handler(name, *kinds) for name, kinds in methods_of(HEALTH).items()}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(INFERENCE, handlers),
                grpc.method_handlers_generic_handler(HEALTH, health),
            )
        )
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(self.address)
            else:
                pair = self._tls.key.read_bytes(), self._tls.certificate.read_bytes()
                port = self._server.add_secure_port(self.address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise OSError(f"gRPC: {self.address} cannot be listened at. --grpc-port names another port") from error
        await self._server.start()
        self.address = f"{self.address.rpartition(':')[0]}:{port}"

    def drain(self) -> None:
        """Tell those that watch the health check that the service is draining. Calls are still answered, until `stop`."""
        self._stopping.set()

    async def stop(self, seconds: float) -> None:
        """Take no more calls, and give those that run so many seconds to end.

        grpcio cancels what comes in at the moment in which it stops: the caller would not know whether its call was answered. So calls are
        refused first, until none comes any more, which clients may send again elsewhere."""
        self.drain()
        if self._server is None:
            return
        end = clock() + min(seconds, REFUSING_SECONDS)
        self._last_call = clock()
        self._refusing = True
        while (now := clock()) < end and now - self._last_call < QUIET_SECONDS:
            await asyncio.sleep(QUIET_SECONDS / 4)
        await self._server.stop(seconds)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def _handler(self, name: str, taken: Any, given: Any, streams_in: bool, streams_out: bool) -> Any:
        method = getattr(self._methods, name)
        serializers = {"request_deserializer": taken.FromString, "response_serializer": given.SerializeToString}
        if streams_in and streams_out:

            async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(name, context)
                async for answer in method(requests, context.time_remaining()):
                    yield answer

            return grpc.stream_stream_rpc_method_handler(stream, **serializers)

        async def unary(request: Any, context: Any) -> Any:
            await self._admit(name, context)
            try:
                return await method(request, context.time_remaining())
            except Failure as failure:
                await self._abort(context, failure)
            except Exception as error:
                self._service.log.failed("call failed", error, path=f"/{INFERENCE}/{name}")
                await self._abort(context, Failure("internal", "the server failed; its log says why."))

        return grpc.unary_unary_rpc_method_handler(unary, **serializers)

    async def _admit(self, name: str, context: Any) -> None:
        """Ends a call that does not have the token, and one that comes when the server stops."""
        self._last_call = clock()
        if self._refusing:
            await self._abort(context, Failure("unavailable", "the server stops.", retry_after=1))
        if name in OPEN:
            return
        sent = next((value for key, value in context.invocation_metadata() if key == "authorization"), "")
        try:
            self._service.require_token(sent)
        except Failure as failure:
            await self._abort(context, failure)

    async def _abort(self, context: Any, failure: Failure) -> None:
        again = failure.retry_after
        trailing = () if again is None else (("grpc-retry-pushback-ms", str(again * 1000)),)
        await context.abort(CODES[failure.kind], failure.message, trailing)

    # --- health --------------------------------------------------------------------------------------------------------

    def _health_handler(self, name: str, taken: Any, given: Any, streams_in: bool, streams_out: bool) -> Any:
        serializers = {"request_deserializer": taken.FromString, "response_serializer": given.SerializeToString}
        if streams_out:
            return grpc.unary_stream_rpc_method_handler(self._watch, **serializers)
        return grpc.unary_unary_rpc_method_handler(self._check, **serializers)

    def _status(self, service: str) -> int:
        """The status of the server ("" or the name of its service), or of one model by its name."""
        if service in ("", INFERENCE):
            return SERVING if self._service.ready else NOT_SERVING
        try:
            self._service.repository.get(service)
        except Failure as failure:
            return SERVICE_UNKNOWN if failure.kind == "missing" else NOT_SERVING
        return NOT_SERVING if self._service.draining else SERVING

    async def _check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service or model {request.service!r}.")
        return Health.HealthCheckResponse(status=status)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                yield Health.HealthCheckResponse(status=status)
                last = status
            if self._stopping.is_set():
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), WATCH_SECONDS)
            except TimeoutError:
                continue
