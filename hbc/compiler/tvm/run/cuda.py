"""Calls of code on a GPU: arrays are sent to the device, and results fetched from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm

from hbc.compiler.base import Direct
from hbc.compiler.tvm.run.executable import Method, TvmExecutable
from hbc.compiler.tvm.run.targets import machine
from hbc.ir.graph import Graph
from hbc.ir.types import Array
from hbc.process import run_free


class CudaExecutable(TvmExecutable):
    """A compiled graph for an NVIDIA GPU. Its code is not kept in the cache."""

    keeps_code = False

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """None: its arrays have to be sent to the device first."""
        return None

    def repeated(self, method: str, arrays: Sequence[Array]) -> Callable[[], Sequence[Array]]:
        """`run` itself: the arrays have to be sent each time."""
        return lambda: self.run(method, arrays)

    def _call(self, ready: Method, inputs: Sequence[Array], outputs: Sequence[Array], n: int) -> None:
        run_free(self._on_gpu, self._on_gpu, (ready, inputs, outputs, n))

    def _on_gpu(self, ready: Method, inputs: Sequence[Array], outputs: Sequence[Array], n: int) -> None:
        sent = [self._sent(array) for array in inputs]
        received = [self._room(array) for array in outputs]
        ready.code(*sent, *ready.tables, *received, 0, n)
        for array, result in zip(outputs, received, strict=True):
            array[...] = self._fetched(result)

    def _sent(self, array: Array) -> Any:
        """A copy of an array on the device."""
        return tvm.runtime.tensor(array, self._device)

    def _room(self, array: Array) -> Any:
        """Memory on the device for an array like this one."""
        return tvm.runtime.empty(array.shape, str(array.dtype), self._device)

    def _fetched(self, result: Any) -> Array:
        """A copy of an array of the device."""
        return result.numpy()

    @property
    def _device(self) -> Any:
        return tvm.runtime.cuda(machine(self.options.device, self.options.target).number)
