"""Running a Program: numpy arrays without copies, rows in blocks, threads.

PyTorch's number of threads is a setting of the process (`torch.set_num_threads`), which hbc never touches. Without `threads` a
model runs under it, whatever it is. With `threads=k` the OpenMP and MKL limits of the calling thread alone are k while the call
lasts; where PyTorch was built without either, `threads` is refused.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hbc.compiler.torch.program import entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.ir.graph import Graph
from hbc.ir.types import Array

BLOCK_BYTES = 1 << 20
"""Of the widest value of a block of rows, for each thread: intermediates of a block stay in the second-level cache."""
CUDA_BLOCK_BYTES = 1 << 29
"""On a GPU blocks only bound the memory."""


class _Writable:
    """A read-only array's memory as if it could be written to: PyTorch knows no read-only tensors and warns. Nothing in a
    Program writes to its inputs."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def tensor_of(array: Array) -> Tensor:
    """A tensor on the array's own memory."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


@functools.cache
def thread_limits() -> tuple[Callable[[int], Any], Callable[[int], int] | None] | None:
    """OpenMP's and MKL's calls that limit the calling thread alone; None where this PyTorch has no OpenMP that can be found."""
    folder = Path(torch.__file__).parent / "lib"
    libraries = [path for pattern in ("libgomp*", "libomp*", "libiomp5*") for path in sorted(folder.glob(pattern))]
    if not libraries:
        return None
    try:
        set_openmp = ctypes.CDLL(str(libraries[0])).omp_set_num_threads
        torch_cpu = next(iter(sorted(folder.glob("*torch_cpu.*"))), None)
        set_mkl = getattr(ctypes.CDLL(str(torch_cpu)), "MKL_Set_Num_Threads_Local", None) if torch_cpu else None
    except (OSError, AttributeError):
        return None
    set_openmp.argtypes = [ctypes.c_int]
    set_openmp.restype = None
    if set_mkl is not None:
        set_mkl.argtypes = [ctypes.c_int]
        set_mkl.restype = ctypes.c_int
    return set_openmp, set_mkl


@contextmanager
def limited_threads(count: int) -> Iterator[int]:
    """At most `count` threads for what the calling thread computes inside; other threads are not affected."""
    limits = thread_limits()
    assert limits is not None  # compile() has checked it
    set_openmp, set_mkl = limits
    before = torch.get_num_threads()  # also lets PyTorch set this thread up, which would undo the limit if it came later
    set_openmp(count)
    mkl_before = set_mkl(count) if set_mkl else 0
    try:
        yield count
    finally:
        set_openmp(before)
        if set_mkl:
            set_mkl(mkl_before)


_PROCESS = os.getpid()


@dataclass(frozen=True)
class TorchExecutable:
    """`program` is a Program, or the same traced."""

    program: Any
    graph: Graph
    device: torch.device
    threads: int | None
    widths: dict[str, int] = field(default_factory=dict)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        tensors = [tensor_of(array) for array in arrays]
        return [result.numpy() for result in self.run_tensors(method, tensors, torch.device("cpu"))]

    def run_tensors(self, method: str, tensors: Sequence[Tensor], to: torch.device | None = None) -> list[Tensor]:
        """As `run`, for tensors on any device; results are new memory on the device `to` (this model's, if not given)."""
        to = self.device if to is None else to
        kinds = [node.type for node in self.graph.outputs[method]]
        rows = len(tensors[0])
        with torch.inference_mode(), self._threads() as threads:
            block = self.block_rows(method, threads)
            if rows <= block:
                return _owned(self._call(method, tensors), tensors, to)
            results = [
                torch.empty((rows, *map(int, kind.shape[1:])), dtype=OUTSIDE_DTYPES[kind.dtype], device=to) for kind in kinds
            ]
            for start in range(0, rows, block):
                values = self._call(method, [tensor[start : start + block] for tensor in tensors])
                for result, value in zip(results, values, strict=True):
                    result[start : start + block] = value
        return results

    def block_rows(self, method: str, threads: int) -> int:
        """Rows at a time, such that the intermediate values stay in cache."""
        size = CUDA_BLOCK_BYTES if self.device.type == "cuda" else BLOCK_BYTES * threads
        return max(64, size // max(self.widths[method], 1))

    def _call(self, method: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results = getattr(self.program, entry(method))(*[tensor.to(self.device) for tensor in tensors])
        return results if isinstance(results, tuple) else (results,)

    def _threads(self) -> AbstractContextManager[int]:
        """Yields how many threads there are."""
        if self.device.type != "cpu":
            return nullcontext(1)
        # The threads of OpenMP's pool do not survive a fork: the child would wait for them forever.
        count = self.threads if os.getpid() == _PROCESS else 1
        if count is None or thread_limits() is None:
            return nullcontext(torch.get_num_threads())
        return limited_threads(count)

    def export(self, path: str) -> None:
        from hbc.compiler.torchscript import export

        export(self.graph, self.device, path)


def _owned(values: Sequence[Tensor], inputs: Sequence[Tensor], to: torch.device) -> list[Tensor]:
    """Contiguous tensors on a device, each with memory of its own and no more than it needs."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    results = []
    for value in values:
        result = value.to(to).contiguous()
        storage = result.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() > result.nbytes:
            result = result.clone()
        taken.add(result.untyped_storage().data_ptr())
        results.append(result)
    return results
