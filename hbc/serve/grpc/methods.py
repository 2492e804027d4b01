"""The methods of the Open Inference Protocol over gRPC. Each takes a message and gives a message, or raises Failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from hbc.serve.engine import Request, clock
from hbc.serve.failures import Failure
from hbc.serve.grpc import tensors
from hbc.serve.grpc.messages import DATA_TYPES, Messages
from hbc.serve.served import Served
from hbc.serve.service import Service
from hbc.serve.tensors import asked_outputs, metadata, output_tensors, request_of
from hbc.serve.v2 import model_statistics
from hbc.serve.workers import Family
from hbc.version import VERSION

NAME = "hbc"
EXTENSIONS = ("model_repository", "model_configuration", "statistics", "schedule_policy")


class Methods:
    """The protocol's methods, by their names, for the service that HTTP has too. They run in the event loop of its engine."""

    def __init__(self, service: Service, family: Family) -> None:
        self._service = service
        self._family = family
        self._repository = service.repository

    # --- inference -----------------------------------------------------------------------------------------------------

    async def ModelInfer(self, request: Any, remaining: float | None) -> Any:  # noqa: N802  the protocol's names
        """The answer of a model."""
        started = clock()
        served = self._served(request.model_name, request.model_version)
        try:
            return await self._infer(served, request, remaining, started)
        except Failure:
            served.statistics.failed(clock() - started)
            raise

    async def _infer(self, served: Served, request: Any, remaining: float | None, started: float) -> Any:
        engine = self._service.engine
        limits = [seconds for seconds in (remaining, tensors.timeout_of(request)) if seconds is not None]
        names = tensors.asked(request)
        deadline = started + min(limits) if limits else None
        methods = asked_outputs(served, names)
        row = tensors.row_of(request, served)
        if row is not None and len(row) <= self._service.limits.columns:
            asked = Request(served, methods or (served.usual,), "record", row, 1, deadline, started)
        else:
            asked = request_of(served, tensors.read(request), methods, self._service.limits, deadline, started)
        read = clock()
        answer = engine.now(asked) or await engine.answer(asked)
        done = clock()
        found = tensors.answer(request, served.version, output_tensors(asked, answer.outputs, names))
        served.statistics.answered(asked.rows, read - started, answer.queue_seconds, answer.infer_seconds, clock() - done)
        served.statistics.last = time.time()
        return found

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], remaining: float | None) -> AsyncIterator[Any]:  # noqa: N802
        """An answer for each request of a stream, in their order. A request that fails has its error as its answer: the stream goes on."""
        async for request in requests:
            try:
                yield Messages.ModelStreamInferResponse(infer_response=await self.ModelInfer(request, None))
            except Failure as failure:
                said = Messages.ModelInferResponse(id=request.id, model_name=request.model_name)
                yield Messages.ModelStreamInferResponse(error_message=failure.message, infer_response=said)

    # --- health and metadata -------------------------------------------------------------------------------------------

    async def ServerLive(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        return Messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        return Messages.ServerReadyResponse(ready=self._service.ready)

    async def ModelReady(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """Whether the model is ready. A model that is not known is not ready: clients wait for it so."""
        try:
            self._served(request.name, request.version)
        except Failure:
            return Messages.ModelReadyResponse(ready=False)
        return Messages.ModelReadyResponse(ready=not self._service.draining)

    async def ServerMetadata(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        return Messages.ServerMetadataResponse(name=NAME, version=VERSION, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """The inputs and outputs of a model."""
        served = self._served(request.name, request.version)
        versions = [request.version] if request.version else self._repository.versions(request.name)
        found = Messages.ModelMetadataResponse(name=served.name, versions=versions, platform="hbc")
        for into, described in zip((found.inputs, found.outputs), metadata(served), strict=True):
            for name, datatype, shape in described:
                into.add(name=name, datatype=datatype, shape=shape)
        return found

    async def ModelConfig(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """The same in the words of Triton's config.pbtxt. `max_batch_size` is 0: the dimensions include the rows."""
        served = self._served(request.name, request.version)
        config = Messages.ModelConfig(name=served.name, platform="hbc", backend="hbc")
        for into, described in zip((config.input, config.output), metadata(served), strict=True):
            for name, datatype, shape in described:
                into.add(name=name, data_type=DATA_TYPES[datatype], dims=shape)
        return Messages.ModelConfigResponse(config=config)

    async def ModelStatistics(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """The counts and durations of one model, or of all, in all processes of the server."""
        if request.name:
            self._served(request.name, request.version)
        found = Messages.ModelStatisticsResponse()
        for (name, version), statistics in sorted(self._family.statistics().items()):
            if request.name in ("", name) and request.version in ("", version):
                found.model_stats.add(**model_statistics(name, version, statistics))
        return found

    # --- repository ----------------------------------------------------------------------------------------------------

    async def RepositoryIndex(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """All models that are known, or those that are ready."""
        _one_repository(request)
        found = Messages.RepositoryIndexResponse()
        for entry in self._repository.index():
            if not request.ready or entry["state"] == "READY":
                found.models.add(**entry)
        return found

    async def RepositoryModelLoad(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """Load a model, anew if it is loaded. Files in the request are refused: models come from the server's own files."""
        _one_repository(request)
        self._service.require_control()
        if request.parameters:
            raise Failure("unsupported", f"parameters: found {', '.join(request.parameters)}, expected none.")
        await asyncio.to_thread(self._family.change, "load", request.model_name)
        return Messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, remaining: float | None) -> Any:  # noqa: N802
        """Answer no more requests for a model."""
        _one_repository(request)
        self._service.require_control()
        await asyncio.to_thread(self._family.change, "unload", request.model_name)
        return Messages.RepositoryModelUnloadResponse()

    def _served(self, name: str, version: str) -> Served:
        return self._repository.get(name, version or None)


def _one_repository(request: Any) -> None:
    if request.repository_name:
        raise Failure("missing", f"repository_name: found {request.repository_name!r}, expected none: the server has one.")
