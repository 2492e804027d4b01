"""Engine: computes requests of any protocol. Small ones at once, in the event loop; large ones in threads, where what waits is computed
together. Its queue is bounded, and a request that nobody waits for any more leaves it.

An adapter makes a `Request` and awaits `Engine.answer`:

    served = repository.get("house-prices")                       # raises Failure: unknown, unloaded, not ready
    request = Request(served, ("predict",), "records", [{"rooms": 4, "age": 31}], rows=1)
    answer = await engine.answer(request)                         # raises Failure: busy, late, invalid, internal
    answer.outputs["predict"]                                     # an array [rows, …]
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from hbc.errors import HbcError
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.served import Outputs, Served

Form = Literal["record", "records", "columns", "matrix"]

INLINE_SECONDS = 1e-3
"""A call that is expected to take at most this long is made in the event loop. The way to a thread and back takes 60 to 150 µs, and
other requests wait for it too where there is one core."""

clock = time.perf_counter


class Request:
    """Rows for some methods of a model. `form`: how the rows come, one of Predictor's forms. `deadline`: the time of `clock` after which
    nobody wants the answer, or None for the engine's own limit."""

    __slots__ = ("asked", "deadline", "form", "methods", "rows", "served", "started", "value")

    def __init__(
        self,
        served: Served,
        methods: tuple[str, ...],
        form: Form,
        value: Any,
        rows: int,
        deadline: float | None = None,
        asked: float | None = None,
    ) -> None:
        self.served = served
        self.methods = methods
        self.form = form
        self.value = value
        self.rows = rows
        self.deadline = deadline
        self.started = clock()
        """When it was read."""
        self.asked = self.started if asked is None else asked
        """When it came, before it was read."""

    def signature(self) -> Any:
        """What two requests must have in common to be computed together, or None if this one has to be computed alone. Columns of one call
        have one dtype, so that a row must not be put beside a row of other types: it could be computed in another precision."""
        if self.served.mixes_rows:
            return None
        if self.form == "matrix":
            kind = type(self.value) is np.ndarray and self.value.ndim == 2 and self.value.dtype != object
            return ("matrix", self.methods, self.value.dtype, self.value.shape[1]) if kind else None
        if self.form == "columns":
            return None
        records = [self.value] if self.form == "record" else self.value
        first = _types(records[0]) if records else None
        return None if first is None or any(_types(row) != first for row in records) else ("records", self.methods, first)


def _types(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*record, *map(type, record.values()))


class Answer:
    """The outputs of a request, and the seconds that it waited and was computed."""

    __slots__ = ("infer_seconds", "outputs", "queue_seconds")

    def __init__(self, outputs: Outputs, queue_seconds: float, infer_seconds: float) -> None:
        self.outputs = outputs
        self.queue_seconds = queue_seconds
        self.infer_seconds = infer_seconds


class _Waiting:
    """A request in the queue."""

    __slots__ = ("future", "request", "signature")

    def __init__(self, request: Request, future: asyncio.Future[Answer]) -> None:
        self.request = request
        self.future = future
        self.signature = request.signature()


class Engine:
    """Computes requests. It belongs to one event loop. limits: of the queue, of batches and of time. threads: how many calls of models are
    made beside the event loop at once."""

    def __init__(
        self, limits: Limits | None = None, threads: int = 1, report: Callable[[Exception], None] = lambda e: None
    ) -> None:
        self.limits = limits or Limits()
        self.waiting = 0
        """The requests in the queue."""
        self._threads = ThreadPoolExecutor(threads, "hbc-serve")
        self._free = threads
        self._queues: dict[Served, deque[_Waiting]] = {}
        self._delayed: dict[Served, asyncio.TimerHandle] = {}
        self._report = report

    def now(self, request: Request) -> Answer | None:
        """The answer, computed at once in this thread, if that takes no longer than INLINE_SECONDS. None for a larger one, or where others
        wait for the same model: `answer` is for these. Raises Failure."""
        served = request.served
        if served in self._queues or served.cost.seconds(request.rows) * len(request.methods) > INLINE_SECONDS:
            return None
        begin = clock()
        if request.deadline is not None and request.deadline <= begin:
            raise _late()
        try:
            outputs = computed(served, request.methods, request.form, request.value)
        except Exception as error:
            raise self._failure(error) from error
        seconds = clock() - begin
        served.cost.learn(request.rows, seconds / len(request.methods))
        served.statistics.executed(request.rows, seconds)
        return Answer(outputs, begin - request.started, seconds)

    async def answer(self, request: Request) -> Answer:
        """The answer. Raises Failure: busy if the queue is full, late after the deadline, invalid for rows that the model rejects. A caller
        that is cancelled, or late, leaves the queue."""
        found = self.now(request)
        if found is not None:
            return found
        served = request.served
        if self.waiting >= self.limits.queue:
            raise Failure("busy", f"{self.waiting} requests are waiting, which is the most: try again.", retry_after=1)
        loop = asyncio.get_running_loop()
        entry = _Waiting(request, loop.create_future())
        queue = self._queues.setdefault(served, deque())
        queue.append(entry)
        self.waiting += 1
        served.pending += 1
        self._wake(served)
        limit = request.started + self.limits.timeout
        deadline = limit if request.deadline is None else min(request.deadline, limit)
        try:
            return await asyncio.wait_for(entry.future, deadline - clock())
        except TimeoutError as error:
            raise _late() from error
        finally:
            served.pending -= 1
            self._leave(served, entry)

    def close(self) -> None:
        """Wait for what is being computed, and take no more."""
        self._threads.shutdown()

    def _leave(self, served: Served, entry: _Waiting) -> None:
        """Take a request out of the queue, if it is still there."""
        queue = self._queues.get(served)
        if queue is not None and entry in queue:
            queue.remove(entry)
            self.waiting -= 1
            if not queue:
                del self._queues[served]

    def _wake(self, served: Served) -> None:
        """Start what waits for a model if a thread is free, after the delay that was asked for."""
        if not self.limits.delay or sum(w.request.rows for w in self._queues[served]) >= self.limits.batch:
            self._start(served)
        elif served not in self._delayed:
            later = asyncio.get_running_loop().call_later(self.limits.delay, self._start, served)
            self._delayed[served] = later

    def _start(self, served: Served) -> None:
        if (timer := self._delayed.pop(served, None)) is not None:
            timer.cancel()
        if self._free and served in self._queues:
            batch = self._take(served)
            if batch:
                self._free -= 1
                asyncio.get_running_loop().create_task(self._run(served, batch))

    def _take(self, served: Served) -> list[_Waiting]:
        """The first request in a model's queue, and those behind it that can be computed with it. They leave the queue."""
        queue = self._queues[served]
        batch: list[_Waiting] = []
        rows = 0
        while queue:
            entry = queue[0]
            if batch and (entry.signature is None or entry.signature != batch[0].signature):
                break
            if batch and rows + entry.request.rows > self.limits.batch:
                break
            queue.popleft()
            self.waiting -= 1
            if not entry.future.done():
                batch.append(entry)
                rows += entry.request.rows
        if not queue:
            del self._queues[served]
        return batch

    async def _run(self, served: Served, batch: list[_Waiting]) -> None:
        """Compute requests in a thread, hand out the answers, and start what has come meanwhile: the model that waits longest."""
        begin = clock()
        try:
            loop = asyncio.get_running_loop()
            results, calls = await loop.run_in_executor(self._threads, _computed_together, served, [e.request for e in batch])
            for rows, seconds in calls:
                served.statistics.executed(rows, seconds)
                served.cost.learn(rows, seconds / len(batch[0].request.methods))
            for entry, result in zip(batch, results, strict=True):
                if entry.future.done():
                    continue
                if isinstance(result, Exception):
                    entry.future.set_exception(self._failure(result))
                else:
                    spent = sum(seconds for _, seconds in calls)
                    entry.future.set_result(Answer(result, begin - entry.request.started, spent))
        except BaseException as error:
            for entry in batch:
                if not entry.future.done():
                    entry.future.set_exception(self._failure(error) if isinstance(error, Exception) else _stopped())
            if not isinstance(error, Exception):
                raise
        finally:
            self._free += 1
            for other in sorted(self._queues, key=lambda each: self._queues[each][0].request.started):
                if other not in self._delayed:
                    self._start(other)

    def _failure(self, error: Exception) -> Failure:
        """The failure that an error of a model is to the caller. What is not the caller's fault is reported, and not shown."""
        known = failure_of(error)
        if known is not None:
            return known
        self._report(error)
        return Failure("internal", "the model failed; the server's log says why.")


def failure_of(error: Exception) -> Failure | None:
    """The failure that an error of a model is to the caller; None for what is not the caller's fault."""
    if isinstance(error, Failure):
        return error
    return Failure("invalid", str(error)) if isinstance(error, HbcError) and isinstance(error, ValueError) else None


def computed(served: Served, methods: tuple[str, ...], form: Form, value: Any) -> Outputs:
    """The outputs of all methods. The rows are counted for drift, where that was asked for."""
    if len(methods) == 1:
        outputs: Outputs = getattr(served.predictors[methods[0]], form)(value)
    else:
        outputs = {}
        for method in methods:
            outputs.update(getattr(served.predictors[method], form)(value))
    if served.drift is not None:
        served.drift.look(form, value)
    return outputs


def _computed_together(
    served: Served, requests: Sequence[Request]
) -> tuple[list[Outputs | Exception], list[tuple[int, float]]]:
    """(for each request its outputs or its error, for each call of the model its rows and seconds). They are computed in one call; where
    that fails, each alone, so that a bad row is the error of its own request."""
    if len(requests) > 1:
        begin = clock()
        try:
            found = _split(requests, computed(served, requests[0].methods, *_joined(requests)))
            return found, [(sum(request.rows for request in requests), clock() - begin)]  # type: ignore[return-value]
        except Exception:  # which request it was is found below
            pass
    results: list[Outputs | Exception] = []
    calls = []
    for request in requests:
        begin = clock()
        try:
            results.append(computed(served, request.methods, request.form, request.value))
            calls.append((request.rows, clock() - begin))
        except Exception as error:
            results.append(error)
    return results, calls


def _joined(requests: Sequence[Request]) -> tuple[Form, Any]:
    """The rows of requests of one signature, as one."""
    if requests[0].form == "matrix":
        return "matrix", np.concatenate([request.value for request in requests])
    rows: list[Any] = []
    for request in requests:
        rows += [request.value] if request.form == "record" else request.value
    return "records", rows


def _split(requests: Sequence[Request], outputs: Outputs) -> list[Outputs]:
    """Each request's rows of the outputs."""
    found = []
    start = 0
    for request in requests:
        end = start + request.rows
        if request.form == "record":
            found.append({name: values[start] for name, values in outputs.items()})
        else:
            found.append({name: values[start:end] for name, values in outputs.items()})
        start = end
    for name, values in outputs.items():
        if len(values) != start:
            raise ValueError(f"{name}: {len(values)} rows for {start}")
    return found


def _late() -> Failure:
    return Failure("late", "the request's time is over.")


def _stopped() -> Failure:
    return Failure("unavailable", "the server stops.", retry_after=1)
