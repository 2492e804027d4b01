"""Calls of code on a GPU. Arrays of the host pass through lanes (lanes.py). Arrays on the GPU are computed where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from hbc.compiler.base import Direct, OnCard, ReadPart
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.run.card import Card
from hbc.compiler.tvm.run.executable import AND, Compiled, Method, TvmExecutable
from hbc.compiler.tvm.run.lanes import Kind, Lane, Lanes
from hbc.compiler.tvm.run.resident import OnThisCard
from hbc.compiler.tvm.run.targets import machine
from hbc.errors import DeviceMemoryError
from hbc.ir.graph import Graph
from hbc.ir.signature import sum_of_squares
from hbc.ir.types import NUMPY_DTYPES, Array, TensorType
from hbc.lazy import cached_property
from hbc.process import run_free

COPIERS = 4
"""Threads that copy rows between the caller's memory and pinned memory. One core copies about 10 GB/s, and the bus of a card 25 to 55."""


class CudaExecutable(TvmExecutable):
    """A compiled graph for an NVIDIA GPU. Its code is not kept in the cache."""

    keeps_code = False
    takes_parts = True

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.Executable. The host tests the sum, before it sends anything."""
        results = self.signature.outputs[method]
        if len(self.signature.inputs) != 1 or len(results) != 1 or accepted or not elements(results[0]):
            return None
        ready = self._ready.get(method) or self._prepare(method)
        if not ready.places:
            return None
        ((shape, dtype),) = ready.results

        def direct(X: Array, n: int, out: Array | None = None) -> Array | None:
            if bound is not None and not sum_of_squares(X) <= bound:  # NaN is not
                return None
            result = np.empty((n, *shape), dtype) if out is None else out
            self._call(ready, (X,), (result,), n)
            return result

        return direct

    def run_in_parts(self, methods: Sequence[str], rows: int, part: ReadPart, most: int) -> list[list[Array]]:
        """See hbc.compiler.base.Executable. A part is read while those before it are copied and computed."""
        name = AND.join(methods)
        ready = self._ready.get(name) or self._prepare(name)
        outputs = [np.empty((rows, *shape), dtype) for shape, dtype in ready.results]

        def inputs(start: int, end: int) -> list[Array]:
            given = part(start, end)
            return [given[place] for place in ready.places]

        if rows and ready.filled:
            run_free(self._on_gpu, self._on_gpu, (ready, inputs, [outputs[i] for i in ready.filled], rows, most))
        return self._by_method(methods, outputs)

    def repeated(self, method: str, arrays: Sequence[Array]) -> Callable[[], Sequence[Array]]:
        """`run` itself: the arrays have to be sent each time."""
        return lambda: self.run(method, arrays)

    def on_card(self, method: str) -> OnCard | None:
        """See hbc.compiler.base.Executable."""
        if len(self.signature.inputs) != 1:
            return None
        if method not in self._on_card:
            self._on_card[method] = OnThisCard(self._card, self._ready.get(method) or self._prepare(method))
        return self._on_card[method]

    def _call(self, ready: Method, inputs: Sequence[Array], outputs: Sequence[Array], n: int) -> None:
        def part(start: int, end: int) -> Sequence[Array]:
            return inputs if end - start == n else [array[start:end] for array in inputs]

        run_free(self._on_gpu, self._on_gpu, (ready, part, outputs, n, n))

    def _on_gpu(self, ready: Method, part: ReadPart, outputs: Sequence[Array], n: int, most: int) -> None:
        """Compute all rows, in pieces of at most `most` rows. Where the card has no memory for a piece, with smaller ones from the
        beginning."""
        lanes = self._lanes[id(ready)]
        while True:
            try:
                return self._in_pieces(ready, lanes, part, outputs, n, min(lanes.most, most))
            except DeviceMemoryError:
                if not lanes.smaller():
                    raise
            # Here the error is gone, and with it the lanes that its traceback held.

    def _in_pieces(self, ready: Method, lanes: Lanes, part: ReadPart, outputs: Sequence[Array], n: int, step: int) -> None:
        if n <= step:  # the usual call
            inputs = part(0, n)
            lane = lanes.take(n)
            lane.begin(ready.code, ready.tables, inputs, outputs)
            lane.finish()
            return lanes.give_back(lane)
        pieces = iter(list(pairwise([*range(0, n, step), n])))  # a list's iterator: threads may share it
        threads = min(COPIERS, self.threads, -(-n // step) // 2)

        def work_off() -> None:
            running: Lane | None = None
            try:
                for start, end in pieces:
                    inputs = part(start, end)
                    lane = lanes.take(end - start)
                    lane.begin(ready.code, ready.tables, inputs, [a[start:end] for a in outputs])
                    running, done = lane, running
                    if done is not None:
                        done.finish()
                        lanes.give_back(done)
            except BaseException:
                for _ in pieces:  # nobody needs them now
                    pass
                raise
            finally:
                if running is not None:  # also after an error: its copies run
                    running.finish()
                    lanes.give_back(running)

        others = []
        if threads > 1:
            with suppress(RuntimeError):  # the interpreter ends, or there are as many threads as may be
                others = [self._workers().submit(work_off) for _ in range(threads - 1)]
        try:
            work_off()
        finally:
            wait([other for other in others if not other.cancel()])
        while others:  # so that an error's traceback, which has this list, does not hold the error and the lanes
            if not (other := others.pop()).cancelled():
                other.result()

    def _bind(self, compiled: Compiled) -> Method:
        ready = super()._bind(compiled)
        kinds = list(self.signature.inputs.values())
        inputs = [_kind(kinds[place]) for place in ready.places]
        results = [ready.results[i] for i in ready.filled]
        self._lanes[id(ready)] = Lanes(self._card, inputs, results, ready.interface.over_bus)
        return ready

    def _sent(self, table: Array) -> Any:
        return self._card.send(table)

    @cached_property
    def _lanes(self) -> dict[int, Lanes]:
        """The lanes of each method, by its id: this object has the methods as long as it lives."""
        return {}

    @cached_property
    def _on_card(self) -> dict[str, OnCard]:
        """The methods that were asked for."""
        return {}

    @cached_property
    def _card(self) -> Card:
        return Card(machine(self.options.device, self.options.target).number)


def _kind(of: TensorType) -> Kind:
    return tuple(int(size) for size in of.shape[1:]), np.dtype(NUMPY_DTYPES[of.dtype])
