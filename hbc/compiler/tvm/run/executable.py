"""A compiled graph: one machine-code function for each method, which is called on the caller's arrays."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
import tvm
import tvm_ffi

from hbc.compiler.base import CompileOptions, Direct, Executable
from hbc.compiler.memory import writable
from hbc.compiler.tvm.build import Kernel, build
from hbc.compiler.tvm.plan.plan import make_plan
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.run.cache import Code, compiled
from hbc.compiler.tvm.run.targets import Machine, compile_module, nvcc
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Node, topological
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.store import write_atomically
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import cached_property
from hbc.ops.tree import TreeEnsemble
from hbc.process import SOURCE, building, cpus, run_free, shielded, show

WORTH_THE_LOCK = 4_000.0
"""The nanoseconds of work from which on a call releases Python's lock for other threads. They are estimated; few rows take up to five times
as long. With less work other threads gain little: two threads that compute row after row are no faster than one."""
WORTH_A_THREAD = 100_000.0  # the least nanoseconds of work for each thread: handing work to a Python thread takes about 20,000
WORTH_A_PIECE = 50_000.0  # the nanoseconds of work of a piece: each call takes about 1,000
PIECES = 4
"""The pieces of a large input for each thread. With one piece each, all threads wait for one whose processor is taken away for a while.
Eight pieces take 5 % more time."""
UNBOUNDED = (math.nan,)  # the bound of a call whose input has been tested: NaN means no test


@dataclass(frozen=True)
class Method:
    """A method ready to be called.

    places: the graph's inputs that it reads, by number. tables: its tables on the device. results: the shape (without rows) and dtype of
    each output. filled: the numbers of the outputs that the function fills; the others have no elements. few: a call of fewer rows holds
    Python's lock. many: from so many rows on, threads share the work.
    """

    kernel: Kernel
    code: Code
    places: tuple[int, ...]
    tables: tuple[Any, ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    filled: tuple[int, ...]
    few: float
    many: float


@dataclass
class TvmExecutable(Executable):
    """A graph compiled by TVM. Each method is compiled at its first call, since most callers use one or two of a classifier's three."""

    graph: Graph
    options: CompileOptions
    machine: Machine
    _methods: dict[str, Method] = field(default_factory=dict)
    _made_once: dict[Any, Any] = field(default_factory=dict)
    _tensors: dict[int, Any] = field(default_factory=dict)
    _kernels: dict[tuple[str, bool, int], Kernel] = field(default_factory=dict)
    _pool: tuple[int, ThreadPoolExecutor] | None = None
    _module: Any = None
    binary: bytes | None = None
    """The CUDA code as a fat binary, if this computer cannot run it."""

    @cached_property
    def threads(self) -> int:
        """The most threads that share a call."""
        return self.options.threads or cpus()

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        ready = self._methods.get(method) or self._prepare(method)
        n = len(arrays[0])
        outputs = [np.empty((n, *shape), dtype) for shape, dtype in ready.results]
        if not n or not ready.filled:
            return outputs
        inputs = [arrays[place] for place in ready.places]
        for place, array in enumerate(inputs):
            if not array.flags.behaved:
                inputs[place] = writable(array)
        filled = outputs if len(ready.filled) == len(outputs) else [outputs[i] for i in ready.filled]
        if self.machine.cuda:
            run_free(self._on_gpu, self._on_gpu, (ready, inputs, filled, n))
        else:
            last = UNBOUNDED if ready.kernel.tests else ()
            self._on_cpu(ready, (*inputs, *ready.tables, *filled), last, n)
        return outputs

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.Executable."""
        nodes = self.graph.outputs[method]
        shape = nodes[0].type.shape[1:]
        if self.machine.cuda or len(self.graph.inputs) != 1 or len(nodes) != 1 or len(shape) > 1 or not elements(nodes[0].type):
            return None
        if bound is not None and not self.graph.inputs[0].type.is_float:
            return None
        ready = self._methods.get(method) or self._prepare(method, bound is not None, missing, accepted)
        if not ready.places or (bound is not None and not ready.kernel.bounded) or ready.kernel.conditions != len(accepted):
            return None
        width = int(shape[0]) if shape else None
        last = (float(bound),) if bound is not None else (math.inf,) if accepted else UNBOUNDED if ready.kernel.tests else ()
        held, free, few, many = ready.code.held, ready.code.free, ready.few, ready.many
        tables, dtype, empty = ready.tables, ready.results[0][1], np.empty

        # Single rows take this path, so every line counts.
        def direct(X: Array, n: int, out: Array | None = None) -> Array | None:
            result = empty(n if width is None else (n, width), dtype) if out is None else out
            if n < few:
                good = held(X, *tables, result, 0, n, *last)
            elif n < many:
                good = run_free(free, held, (X, *tables, result, 0, n, *last))
            else:
                good = self._on_cpu(ready, (X, *tables, result), last, n)
            return None if good == 0 else result

        return direct

    def prepared(self, array: Array) -> Any:
        """See hbc.compiler.base.Executable."""
        return as_tensor(array)  # a call with it takes 0.2 µs less

    def _on_cpu(self, ready: Method, arguments: tuple[Any, ...], last: tuple[float, ...], n: int) -> Any:
        """Call the function for all rows. Returns 0 if it tests its input and some rows do not pass.

        Threads share many rows. Each takes the next piece when it has done one, since nobody knows what else keeps the processors busy.
        """
        if n < ready.many:
            return ready.code(*arguments, 0, n, *last)
        rows = ready.kernel.rows
        blocks = -(-n // rows)
        work = n * ready.kernel.cost
        threads = min(self.threads, blocks, int(work / WORTH_A_THREAD))
        # Each piece reads deep trees anew: pieces of 1,000 rows take 6.8 µs a row, of 4,096 rows 4.3. So there are no more pieces than
        # blocks of rows, except to give every thread one.
        pieces = min(blocks, max(threads, min(threads * PIECES, int(work / WORTH_A_PIECE), n // ready.kernel.block)))
        ends = [n if i == pieces else blocks * i // pieces * rows for i in range(pieces + 1)]
        ranges = iter(list(pairwise(ends)))  # threads may share the iterator of a list
        found: SimpleQueue[Any] = SimpleQueue()  # a result or an error for each range

        def work_off() -> None:
            for start, end in ranges:
                try:
                    result = ready.code(*arguments, start, end, *last)
                except BaseException as error:
                    found.put(error)
                    raise
                found.put(result)
                if result == 0:
                    for _ in ranges:  # the other results do not matter now
                        found.put(0)

        # Raises RuntimeError if the interpreter ends or no more threads may start. Then this thread and those that have begun do the work.
        with suppress(RuntimeError):
            pool = self._workers()
            for _ in range(threads - 1):
                pool.submit(work_off)
        work_off()
        results = [found.get() for _ in range(pieces)]  # a thread that begins late finds no range, and nobody waits for it
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return 0 if 0 in results else None

    def _workers(self) -> ThreadPoolExecutor:
        """The pool of threads of this process. A forked child makes its own, since threads do not survive a fork."""
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            self._pool = pool = os.getpid(), ThreadPoolExecutor(self.threads - 1, thread_name_prefix="hbc")
        return pool[1]

    def _on_gpu(self, ready: Method, inputs: list[Array], outputs: list[Array], n: int) -> None:
        """Copy the inputs to the GPU, call the function, and copy the results to `outputs`."""
        device = tvm.runtime.cuda(gpu_number(self.options.device))
        sent = [tvm.runtime.tensor(array, device) for array in inputs]
        received = [tvm.runtime.empty(array.shape, str(array.dtype), device) for array in outputs]
        ready.code(*sent, *ready.tables, *received, 0, n)
        for array, result in zip(outputs, received, strict=True):
            array[...] = result.numpy()

    @building
    def kernel(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Kernel:
        """The TIR function of a method. bounded, missing, accepted: the tests of its input, as for `direct`."""
        if (method, bounded, len(accepted)) not in self._kernels:
            schedule, dialect = self.machine.schedule, self.machine.dialect
            outputs = (*map(self._on_own_inputs, accepted), *self.graph.outputs[method])
            if accepted:  # values that conditions and outputs share are computed once
                outputs = rewrite(Graph((), {"": outputs}), lambda node: None).outputs[""]
            flatten = schedule.flattens and not accepted
            plan = make_plan(outputs, self.options.block, flatten, schedule.register_bits(dialect), len(accepted))
            tested = bounded and bool(plan.inputs)
            kernel = build(method, plan, dialect, self._made_once, schedule, tested, missing)
            self._kernels[method, bounded, len(accepted)] = kernel
        return self._kernels[method, bounded, len(accepted)]

    def _on_own_inputs(self, graph: Graph) -> Node:
        """The output "accepted" of a graph, computed from the inputs of this graph that have the same names."""
        own = {node.op.name: node for node in self.graph.inputs}  # type: ignore[attr-defined]
        inputs = {node: own[node.op.name] for node in graph.inputs}  # type: ignore[attr-defined]
        return substitute(graph.outputs["accepted"], inputs)[0]

    @building
    def _prepare(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Method:
        """A method, compiled unless it was before. Raises BackendUnavailableError if this computer cannot run the code."""
        if self.machine.missing is not None:
            raise BackendUnavailableError(
                backend="tvm",
                reason=self.machine.missing,
                advice="Use export() to write the compiled code for another computer.",
            )
        if method not in self._methods:
            kernel = self.kernel(method, bounded, missing, accepted)
            code = compiled(kernel.function, self.machine.at_level(_level(self.graph.outputs[method])))
            self._show(kernel, code.module)
            self._methods[method] = self._bind(kernel, code)
        return self._methods[method]

    def _bind(self, kernel: Kernel, code: Code) -> Method:
        """The method of a compiled function, with its tables on the device."""
        tables = tuple(self._on_device(table) for table in kernel.tables)
        names = [node.op.name for node in self.graph.inputs]  # type: ignore[attr-defined]
        places = tuple(names.index(name) for name in kernel.inputs)
        results = tuple((tuple(int(d) for d in kind.shape[1:]), NUMPY_DTYPES[kind.dtype]) for kind in kernel.outputs)
        filled = tuple(i for i, kind in enumerate(kernel.outputs) if elements(kind))
        many = 0.0 if self.machine.cuda else math.inf if self.threads == 1 else 2 * WORTH_A_THREAD / kernel.cost
        few = 0.0 if self.machine.cuda else WORTH_THE_LOCK / kernel.cost
        return Method(kernel, code, places, tables, results, filled, few, many)

    def _on_device(self, table: Array) -> Any:
        """A table as a tensor on the device. All methods that read a table share its tensor."""
        place = table.ctypes.data  # names the table: the kernels keep their tables, so no other array gets this address
        if place not in self._tensors:
            if self.machine.cuda:
                self._tensors[place] = tvm.runtime.tensor(table, tvm.runtime.cuda(gpu_number(self.options.device)))
            elif place % 64:
                self._tensors[place] = tvm.runtime.tensor(table)
            else:
                self._tensors[place] = tvm.runtime.from_dlpack(writable(table))
        return self._tensors[place]

    @building
    def compile_all(self) -> Any:
        """One module with all methods, for `export` and `source`. CUDA code is compiled by nvcc even if this computer cannot run it."""
        if self._module is None:
            functions = {method: self.kernel(method).function for method in self.graph.outputs}
            self._module = shielded(lambda: compile_module(functions, self.machine))
            if self.machine.cuda and self.machine.missing is not None:
                self.binary = nvcc(self.source("cuda"), self.machine.arch)
        return self._module

    def source(self, kind: str = "tir") -> str:
        """The generated code of all methods. kind: "tir", or how the module shows it: "ll" and "asm" by LLVM, "cuda"."""
        if kind == "tir":
            return "\n".join(self.kernel(method).function.script() for method in self.graph.outputs)
        module = self.compile_all() if self._module is None else self._module
        return cuda_source(module) if kind == "cuda" else str(module.inspect_source(kind))

    def _show(self, kernel: Kernel, module: Any) -> None:
        """Print the generated code if HBC_DEBUG asks for it."""
        show(SOURCE, kernel.function.script)
        if self.machine.cuda:
            show(SOURCE, lambda: cuda_source(module))

    @building
    def export(self, path: str) -> None:
        """Write a shared library with a packed function of TVM for each method: `method(inputs…, tables…, outputs…, first row, end row)`.

        It is what is exported for CUDA. For CPUs see hbc.compiler.tvm.library.
        """
        module = self.compile_all()
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "model.so")
            module.export_library(str(library))
            code = library.read_bytes()

        def write(file: IO[bytes]) -> None:
            file.write(code)

        write_atomically(path, write)


def _level(outputs: Sequence[Node]) -> int:
    """LLVM's level of optimization for these outputs: 2 if they have tree ensembles and all are scanned, otherwise 3.

    Scans are as fast with level 2, and compile in a tenth less time (500 trees of 255 leaves: 2.06 instead of 2.27 s). Deep walks would be
    14 % slower.
    """
    strategies = {node.op.strategy for node in topological(outputs) if isinstance(node.op, TreeEnsemble)}
    return 2 if strategies == {"scan"} else 3


def cuda_source(module: Any) -> str:
    """The CUDA source of a module."""
    return "\n".join(part.inspect_source() for part in module.imports)


def gpu_number(device: str) -> int:
    """The number of a GPU: 1 for "cuda:1", 0 for "cuda"."""
    return int(device.partition(":")[2] or 0)


def as_tensor(array: Any) -> Any:
    """An array as TVM takes it, in the same memory. It need not be aligned."""
    return tvm_ffi.from_dlpack(array, require_alignment=0)
