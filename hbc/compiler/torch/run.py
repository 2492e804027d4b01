"""Runs a Program: passes numpy arrays without copies, cuts rows into blocks, and shares these between threads.

PyTorch's number of threads (`torch.set_num_threads`) is a setting of the process, which hbc never changes. A model that was not given
`threads` uses this number. Threads share the blocks of rows. Each computes its block alone, under limits for OpenMP and MKL that apply
to this thread only. If operators ran in parallel themselves, they would wait for each other after each operator: 40 to 300 µs a row
instead of 8 when other processes keep the cores busy (500 trees, 2 cores), and forever in a forked child, which does not inherit the
threads of OpenMP. If PyTorch was built without OpenMP, `threads` is refused. On a GPU it has no meaning.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hbc.compiler.base import Direct, Executable, OnCard
from hbc.compiler.memory import writable
from hbc.compiler.torch.exact import require_whole_products, without_autocast
from hbc.compiler.torch.program import Width, entry
from hbc.compiler.torch.resident import MemoryOf, OnThisCard
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.errors import DeviceMemoryError
from hbc.ir.graph import Graph, topological
from hbc.ir.signature import sum_of_squares
from hbc.ir.types import Array
from hbc.lazy import cached_property, record
from hbc.ops.linear import Linear
from hbc.ops.tensor import BlockMatMul, MatMul

BLOCK_BYTES = 1 << 20
"""The size of the widest value of a block of rows that the second-level cache should keep (`Width.kept`)."""
LEAST_BYTES = 1 << 17
"""The least size of the widest value of a block for another thread. For less, starting the thread costs more than the computation."""
MOST_DIRECT = 256
"""The largest number of rows for which the function of `direct` looks for missing numbers itself."""
LEAST_BLOCK = 64
"""The least number of rows of a block."""
CUDA_BLOCK_BYTES = 1 << 29
"""As BLOCK_BYTES, on a GPU, where blocks only limit the memory."""


@functools.cache
def thread_limits() -> tuple[Callable[[int], Any], Callable[[int], int] | None] | None:
    """(OpenMP's function, MKL's function) that set the number of threads for the calling thread only. The second is None if there is no
    MKL. None if the OpenMP of this PyTorch cannot be found."""
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


class OneThread:
    """Inside, operators run without threads of their own in the calling thread. Other threads are not affected."""

    __slots__ = ("_before", "_limits", "_mkl_before")

    def __enter__(self) -> None:
        self._limits = limits = thread_limits()
        if limits is not None:
            set_openmp, set_mkl = limits
            # This call also initializes the thread in PyTorch, which later would undo the limit.
            self._before = torch.get_num_threads()
            set_openmp(1)
            self._mkl_before = set_mkl(1) if set_mkl else 0

    def __exit__(self, *_: object) -> None:
        if self._limits is not None:
            set_openmp, set_mkl = self._limits
            set_openmp(self._before)
            if set_mkl:
                set_mkl(self._mkl_before)


def _tensor(array: Array) -> Tensor:
    """The tensor in an array's memory, or in a copy where PyTorch refuses its strides: to numpy, one row read backwards is contiguous."""
    try:
        return torch.from_numpy(array)
    except ValueError:
        return torch.from_numpy(array.copy())


@record
class TorchExecutable(Executable):
    """Runs a graph in PyTorch. `program` is its Program, or the trace of it. `widths`: Program.width of each method."""

    program: Any
    graph: Graph
    device: torch.device
    threads: int | None
    widths: dict[str, Width] = field(default_factory=dict)

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        tensors = [_tensor(writable(array)) for array in arrays]  # a Program never writes to its inputs
        return [result.numpy() for result in self.run_tensors(method, tensors, torch.device("cpu"))]

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.Executable. Around its operators one row takes 10 µs in this way, and 50 by `run`. The function leaves
        calls of more than MOST_DIRECT rows to `run` if every column may hold NaN, or if the first rows do not pass: the caller's own test
        is faster then."""
        inputs, results = self.graph.inputs, self.graph.outputs[method]
        if self.device.type != "cpu" or len(inputs) != 1 or len(results) != 1 or accepted:
            return None
        if bound is not None and not inputs[0].type.is_float:
            return None
        compute, multiplies = self._function(method), method in self._multiplying

        def direct(X: Array, n: int, out: Array | None = None) -> Array | None:
            if bound is not None:
                if n > MOST_DIRECT and (missing or not _within(X[:LEAST_BLOCK], bound, False)):
                    return None
                if not _within(X, bound, missing):
                    return None
            x = _tensor(X)
            if n > LEAST_BLOCK:
                result = self.run_tensors(method, [x])[0]
            else:
                if multiplies:
                    require_whole_products(self.device)
                with torch.inference_mode(), without_autocast(self.device), OneThread():
                    result = compute(x).clone(memory_format=torch.contiguous_format)  # it may be x, or a part of something
            found: Array = result.numpy()
            if out is None:
                return found
            out[...] = found
            return out

        return direct

    def on_card(self, method: str) -> OnCard | None:
        """See hbc.compiler.base.Executable."""
        if self.device.type != "cuda" or len(self.graph.inputs) != 1:
            return None
        kinds = [node.type for node in self.graph.outputs[method]]
        return OnThisCard(self.device, kinds, functools.partial(self.fill, method))

    def run_tensors(self, method: str, tensors: Sequence[Tensor], to: torch.device | None = None) -> list[Tensor]:
        """The outputs of a method for tensors on any device. Results are new memory on the device `to`; None: the device of this model."""
        to = self.device if to is None else to
        rows = len(tensors[0])
        if rows <= self._block_rows(method, rows, self._thread_count()):
            try:
                return _owned(self._call(method, tensors), tensors, to)
            except DeviceMemoryError:
                if rows <= LEAST_BLOCK:
                    raise
            # Here the error is gone, and with it the intermediates that its traceback held.
        kinds = [node.type for node in self.graph.outputs[method]]
        results = [
            torch.empty((rows, *map(int, kind.shape[1:])), dtype=OUTSIDE_DTYPES[kind.dtype], device=to) for kind in kinds
        ]
        self.fill(method, tensors, results)
        return results

    def fill(self, method: str, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Write the outputs of a method for tensors on any device to `results`, on any device.

        Where a GPU has no memory for a block, it and the next ones are halved. Raises DeviceMemoryError if there is none for a block of
        LEAST_BLOCK rows either.
        """
        rows = len(tensors[0])
        threads = self._thread_count()
        block = self._block_rows(method, rows, threads)

        def compute(start: int, block: int = block) -> None:
            values = self._call(method, [tensor[start : start + block] for tensor in tensors])
            for result, value in zip(results, values, strict=True):
                result[start : start + block] = value

        if self.device.type != "cpu":
            start = 0
            while start < rows:
                try:
                    compute(start, block)
                    start += block
                except DeviceMemoryError:
                    if block <= LEAST_BLOCK:
                        raise
                    block = max(LEAST_BLOCK, min(block, rows) // 2)
            return
        starts = range(0, rows, block)
        if threads == 1:
            for start in starts:
                compute(start)
        else:
            with ThreadPoolExecutor(min(threads, len(starts))) as pool:
                list(pool.map(compute, starts))

    def _thread_count(self) -> int:
        if self.device.type != "cpu" or thread_limits() is None:
            return 1
        return self.threads or torch.get_num_threads()

    def _block_rows(self, method: str, rows: int, threads: int) -> int:
        """The number of rows of a block, such that its intermediate values stay in the cache and every thread has a block."""
        width, kept = self.widths[method]
        if self.device.type != "cpu":
            return max(LEAST_BLOCK, CUDA_BLOCK_BYTES // width)
        share = max(-(-rows // threads), LEAST_BYTES // width)
        return max(LEAST_BLOCK, min(share, BLOCK_BYTES // kept))

    def _call(self, method: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if method in self._multiplying:
            require_whole_products(self.device)
        with (
            torch.inference_mode(),
            without_autocast(self.device),
            OneThread() if self.device.type == "cpu" else MemoryOf(self.device),
        ):
            results = self._function(method)(*[tensor.to(self.device) for tensor in tensors])
        return results if isinstance(results, tuple) else (results,)

    @cached_property
    def _multiplying(self) -> frozenset[str]:
        """The methods that multiply matrices of float32."""
        return frozenset(
            method
            for method, group in self.graph.outputs.items()
            if any(
                isinstance(node.op, (Linear, MatMul, BlockMatMul)) and node.type.dtype == "f32" for node in topological(group)
            )
        )

    def _function(self, method: str) -> Callable[..., Any]:
        """The function that computes a method from tensors."""
        function: Callable[..., Any] = getattr(self.program, entry(method))
        return function


def _within(X: Array, bound: float, missing: bool) -> bool:
    """Whether the sum of the squares of X is at most `bound`. `missing`: NaN is left out of the sum. numpy's sum takes 1 µs for a row, and
    PyTorch's 5."""
    if sum_of_squares(X) <= bound:
        return True
    if not missing:
        return False
    numbers = torch.nan_to_num(_tensor(X).reshape(-1), 0.0, math.inf, -math.inf)
    return torch.dot(numbers, numbers).item() <= bound


def _owned(values: Sequence[Tensor], inputs: Sequence[Tensor], to: torch.device) -> list[Tensor]:
    """The values as contiguous tensors on the device `to`. Each has its own memory, and no more than it needs."""
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
