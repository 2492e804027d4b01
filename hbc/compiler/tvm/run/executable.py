"""A compiled graph: one machine-code function a method, called on the caller's arrays."""

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
"""Nanoseconds of work from which on Python's lock is freed for other threads (by the estimate; few rows take up to five times as long).
Below it they gain little: two threads that take row after row are no faster than one."""
WORTH_A_THREAD = 100_000.0  # nanoseconds of work; handing a piece to a thread of Python's costs about 20,000
WORTH_A_PIECE = 50_000.0  # a call costs about 1,000
PIECES = 4
"""For each thread, of a large input: with one, threads wait for those that the processor is taken from; eight cost 5 % more."""
UNBOUNDED = (math.nan,)  # the bound of calls whose input was tested before


@dataclass(frozen=True)
class Method:
    """A method ready to be called: which of the graph's inputs it reads, its tables on the device, the shapes and dtypes of
    its results and which of them the function fills, and two numbers of rows: up to the first one a call holds Python's lock, from the
    second one on threads share the work."""

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
    """Methods are compiled at their first call, since most callers use one or two of a classifier's three."""

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
    """The CUDA code as a fat binary, where no device was there to load it."""

    @cached_property
    def threads(self) -> int:
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

        # Every line counts here: this is the path of single rows.
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
        return as_tensor(array)  # 0.2 µs less a call

    def _on_cpu(self, ready: Method, arguments: tuple[Any, ...], last: tuple[float, ...], n: int) -> Any:
        """Call the function for all rows; 0 if it tests its input and some of it did not pass. Threads take ranges of rows as
        they get done with others, since none can know what else the processor is busy with."""
        if n < ready.many:
            return ready.code(*arguments, 0, n, *last)
        rows = ready.kernel.rows
        blocks = -(-n // rows)
        work = n * ready.kernel.cost
        threads = min(self.threads, blocks, int(work / WORTH_A_THREAD))
        # Pieces of less than a block read deep trees once more each (1,000 rows take 6.8 µs a row, 4,096 take 4.3).
        pieces = min(blocks, max(threads, min(threads * PIECES, int(work / WORTH_A_PIECE), n // ready.kernel.block)))
        ends = [n if i == pieces else blocks * i // pieces * rows for i in range(pieces + 1)]
        ranges = iter(list(pairwise(ends)))  # a list's iterator: threads may share it
        found: SimpleQueue[Any] = SimpleQueue()  # one result for each range

        def work_off() -> None:
            for start, end in ranges:
                try:
                    result = ready.code(*arguments, start, end, *last)
                except BaseException as error:
                    found.put(error)
                    raise
                found.put(result)
                if result == 0:
                    for _ in ranges:  # nobody needs them now
                        found.put(0)

        # When the interpreter ends, or there are as many threads as may be, it raises RuntimeError: this thread and those that began do it.
        with suppress(RuntimeError):
            pool = self._workers()
            for _ in range(threads - 1):
                pool.submit(work_off)
        work_off()
        results = [found.get() for _ in range(pieces)]  # a thread that began late has nothing to do, and nobody waits for it
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return 0 if 0 in results else None

    def _workers(self) -> ThreadPoolExecutor:
        """This process's threads: those of the parent do not survive a fork."""
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            self._pool = pool = os.getpid(), ThreadPoolExecutor(self.threads - 1, thread_name_prefix="hbc")
        return pool[1]

    def _on_gpu(self, ready: Method, inputs: list[Array], outputs: list[Array], n: int) -> None:
        device = tvm.runtime.cuda(gpu_number(self.options.device))
        sent = [tvm.runtime.tensor(array, device) for array in inputs]
        received = [tvm.runtime.empty(array.shape, str(array.dtype), device) for array in outputs]
        ready.code(*sent, *ready.tables, *received, 0, n)
        for array, result in zip(outputs, received, strict=True):
            array[...] = result.numpy()

    @building
    def kernel(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Kernel:
        """The TIR function of a method."""
        if (method, bounded, len(accepted)) not in self._kernels:
            schedule, dialect = self.machine.schedule, self.machine.dialect
            outputs = (*map(self._on_own_inputs, accepted), *self.graph.outputs[method])
            if accepted:  # what conditions and outputs are both computed from is computed once
                outputs = rewrite(Graph((), {"": outputs}), lambda node: None).outputs[""]
            flatten = schedule.flattens and not accepted
            plan = make_plan(outputs, self.options.block, flatten, schedule.register_bits(dialect), len(accepted))
            tested = bounded and bool(plan.inputs)
            kernel = build(method, plan, dialect, self._made_once, schedule, tested, missing)
            self._kernels[method, bounded, len(accepted)] = kernel
        return self._kernels[method, bounded, len(accepted)]

    def _on_own_inputs(self, graph: Graph) -> Node:
        """The one output of a graph, of this one's inputs of the same names."""
        own = {node.op.name: node for node in self.graph.inputs}  # type: ignore[attr-defined]
        inputs = {node: own[node.op.name] for node in graph.inputs}  # type: ignore[attr-defined]
        return substitute(graph.outputs["accepted"], inputs)[0]

    @building
    def _prepare(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Method:
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
        tables = tuple(self._on_device(table) for table in kernel.tables)
        names = [node.op.name for node in self.graph.inputs]  # type: ignore[attr-defined]
        places = tuple(names.index(name) for name in kernel.inputs)
        results = tuple((tuple(int(d) for d in kind.shape[1:]), NUMPY_DTYPES[kind.dtype]) for kind in kernel.outputs)
        filled = tuple(i for i, kind in enumerate(kernel.outputs) if elements(kind))
        many = 0.0 if self.machine.cuda else math.inf if self.threads == 1 else 2 * WORTH_A_THREAD / kernel.cost
        few = 0.0 if self.machine.cuda else WORTH_THE_LOCK / kernel.cost
        return Method(kernel, code, places, tables, results, filled, few, many)

    def _on_device(self, table: Array) -> Any:
        """A table as a tensor, the same for all methods that read it."""
        place = table.ctypes.data  # the kernels keep their tables, so that no other array takes the place
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
        """One module of all methods, for export and for looking at; CUDA's code is compiled even where nothing can run it."""
        if self._module is None:
            functions = {method: self.kernel(method).function for method in self.graph.outputs}
            self._module = shielded(lambda: compile_module(functions, self.machine))
            if self.machine.cuda and self.machine.missing is not None:
                self.binary = nvcc(self.source("cuda"), self.machine.arch)
        return self._module

    def source(self, kind: str = "tir") -> str:
        """What was generated: "tir", or of the machine's code "ll", "asm", "cuda"."""
        if kind == "tir":
            return "\n".join(self.kernel(method).function.script() for method in self.graph.outputs)
        module = self.compile_all() if self._module is None else self._module
        return cuda_source(module) if kind == "cuda" else str(module.inspect_source(kind))

    def _show(self, kernel: Kernel, module: Any) -> None:
        show(SOURCE, kernel.function.script)
        if self.machine.cuda:
            show(SOURCE, lambda: cuda_source(module))

    @building
    def export(self, path: str) -> None:
        """A shared library with one function a method, `method(inputs…, tables…, outputs…, first row, end row)`."""
        if not str(path).endswith(".so"):
            raise ValueError(f"{path}: the tvm backend exports compiled code to a file that ends in .so")
        module = self.compile_all()
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "model.so")
            module.export_library(str(library))
            code = library.read_bytes()

        def write(file: IO[bytes]) -> None:
            file.write(code)

        write_atomically(path, write)


def _level(outputs: Sequence[Node]) -> int:
    """LLVM's. Scans are as fast at level 2, which takes a tenth less (500 trees of 255 leaves: 2.06 and 2.27 s), deep walks are 14 %
    slower."""
    strategies = {node.op.strategy for node in topological(outputs) if isinstance(node.op, TreeEnsemble)}
    return 2 if strategies == {"scan"} else 3


def cuda_source(module: Any) -> str:
    return "\n".join(part.inspect_source() for part in module.imports)


def gpu_number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def as_tensor(array: Any) -> Any:
    """The same memory as TVM takes it; it is asked for no alignment."""
    return tvm_ffi.from_dlpack(array, require_alignment=0)
