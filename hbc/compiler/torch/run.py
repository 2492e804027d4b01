"""Running a Program: numpy arrays without copies, rows in blocks, threads.

PyTorch's number of threads is a setting of the process (`torch.set_num_threads`), which hbc never touches: it is how many threads
a model has that was not given `threads`. They share the blocks of rows, and each computes its block alone, under OpenMP and MKL
limits that are the thread's own. Operators that are parallel one by one would meet at a barrier after each: 40 to 300 µs a row
instead of 8 when other processes keep the cores busy (500 trees, 2 cores), and forever in a forked child, which has not inherited
the threads of OpenMP. Where PyTorch was built without either library, `threads` is refused. On a GPU it means nothing.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hbc.compiler.base import Direct
from hbc.compiler.memory import writable
from hbc.compiler.torch.program import entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.compiler.torch.trace import export
from hbc.ir.graph import Graph
from hbc.ir.types import Array

BLOCK_BYTES = 1 << 20
"""Of the widest value of a block of rows: the intermediate values of a block stay in the second-level cache."""
LEAST_BYTES = 1 << 17
"""A block for another thread: below it, starting the thread costs more than it computes."""
MOST_DIRECT = 256
"""Rows of a call that is tested by the shorter way."""
CUDA_BLOCK_BYTES = 1 << 29
"""On a GPU blocks only bound the memory."""


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
def one_thread() -> Iterator[None]:
    """No parallel operators in the calling thread; other threads are not affected."""
    limits = thread_limits()
    if limits is None:
        yield
        return
    set_openmp, set_mkl = limits
    before = torch.get_num_threads()  # also lets PyTorch set this thread up, which would undo the limit if it came later
    set_openmp(1)
    mkl_before = set_mkl(1) if set_mkl else 0
    try:
        yield
    finally:
        set_openmp(before)
        if set_mkl:
            set_mkl(mkl_before)


@dataclass(frozen=True)
class TorchExecutable:
    """`program` is a Program, or the same traced."""

    program: Any
    graph: Graph
    device: torch.device
    threads: int | None
    widths: dict[str, int] = field(default_factory=dict)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        tensors = [torch.from_numpy(writable(array)) for array in arrays]  # a Program never writes to its inputs
        return [result.numpy() for result in self.run_tensors(method, tensors, torch.device("cpu"))]

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.DirectExecutable. (A row of 118 columns took 105 µs by `run`, and takes 65.) Large arrays are left to the
        longer way, whose test for missing numbers is faster than PyTorch's."""
        inputs, results = self.graph.inputs, self.graph.outputs[method]
        if self.device.type != "cpu" or len(inputs) != 1 or len(results) != 1 or accepted:
            return None
        if bound is not None and not inputs[0].type.is_float:
            return None

        def direct(X: Array, n: int, out: Array | None = None) -> Array | None:
            x = torch.from_numpy(X)
            if bound is not None and (n > MOST_DIRECT or not _within(x, bound, missing)):
                return None
            result: Array = self.run_tensors(method, [x])[0].numpy()
            if out is None:
                return result
            out[...] = result
            return out

        return direct

    def prepared(self, array: Array) -> Array:
        """See hbc.compiler.base.DirectExecutable: no other form is faster."""
        return array

    def run_tensors(self, method: str, tensors: Sequence[Tensor], to: torch.device | None = None) -> list[Tensor]:
        """As `run`, for tensors on any device; results are new memory on the device `to` (this model's, if not given)."""
        to = self.device if to is None else to
        kinds = [node.type for node in self.graph.outputs[method]]
        rows = len(tensors[0])
        threads = self._thread_count()
        block = self._block_rows(method, rows, threads)
        if rows <= block:
            return _owned(self._call(method, tensors), tensors, to)
        results = [
            torch.empty((rows, *map(int, kind.shape[1:])), dtype=OUTSIDE_DTYPES[kind.dtype], device=to) for kind in kinds
        ]

        def compute(start: int) -> None:
            values = self._call(method, [tensor[start : start + block] for tensor in tensors])
            for result, value in zip(results, values, strict=True):
                result[start : start + block] = value

        starts = range(0, rows, block)
        if threads == 1:
            for start in starts:
                compute(start)
        else:
            with ThreadPoolExecutor(min(threads, len(starts))) as pool:
                list(pool.map(compute, starts))
        return results

    def _thread_count(self) -> int:
        if self.device.type != "cpu" or thread_limits() is None:
            return 1
        return self.threads or torch.get_num_threads()

    def _block_rows(self, method: str, rows: int, threads: int) -> int:
        """Rows at a time, such that the intermediate values stay in cache and every thread has some."""
        width = max(self.widths[method], 1)
        if self.device.type != "cpu":
            return max(64, CUDA_BLOCK_BYTES // width)
        share = max(-(-rows // threads), LEAST_BYTES // width)
        return max(64, min(share, BLOCK_BYTES // width))

    def _call(self, method: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.inference_mode(), one_thread() if self.device.type == "cpu" else nullcontext():
            results = self._compute(method, [tensor.to(self.device) for tensor in tensors])
        return results if isinstance(results, tuple) else (results,)

    def _compute(self, method: str, tensors: Sequence[Tensor]) -> Any:
        return getattr(self.program, entry(method))(*tensors)

    def export(self, path: str) -> None:
        export(self.graph, self.device, path)


def _within(x: Tensor, bound: float, missing: bool) -> bool:
    """Whether the sum of the squares is at most that; `missing`: of the numbers that are there."""
    numbers = x.reshape(-1)
    if missing:
        numbers = torch.nan_to_num(numbers, 0.0, math.inf, -math.inf)
    return bool(torch.dot(numbers, numbers).item() <= bound)


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
