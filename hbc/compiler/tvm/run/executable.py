"""A compiled graph: one machine-code function a method, called on the caller's arrays. Needs no TVM but tvm_ffi: code that is found in the
cache is called without the compiler."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import tvm_ffi

from hbc.cache.shelf import Shelf
from hbc.compiler.base import CompileOptions, Direct, Executable, Signature, no_quick_way
from hbc.compiler.memory import as_aligned, writable
from hbc.compiler.tvm.plan.interface import Interface
from hbc.compiler.tvm.plan.sizes import elements
from hbc.compiler.tvm.run.code import WORTH_THE_LOCK, Code
from hbc.compiler.tvm.run.code import code_versions as code_versions
from hbc.compiler.tvm.run.entry import Quick, quick_way, usable
from hbc.compiler.tvm.run.kept import UNTESTED, find_method, keep_method
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import cached_property, record
from hbc.process import PASSES, building, cpus, run_free, show

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

WORTH_A_THREAD = 100_000.0  # nanoseconds of work; handing a piece to a thread of Python's costs about 20,000
WORTH_A_PIECE = 50_000.0  # a call costs about 1,000
PIECES = 4
"""For each thread, of a large input: with one, threads wait for those that the processor is taken from; eight cost 5 % more."""
AND = " + "
"""It stands between the names of methods that one function computes."""
UNBOUNDED = (math.nan,)  # the bound of calls whose input was tested before


class Compiled(NamedTuple):
    """A method's function: its interface, its code, and the tables that calls pass."""

    interface: Interface
    code: Code
    tables: tuple[Array, ...]


class Methods(Protocol):
    """Compiles the methods of a graph (run/methods.py)."""

    def compiled(self, method: str, bounded: bool, missing: bool, accepted: Sequence[Graph]) -> Compiled:
        """The function of a method, or of several, whose names `AND` joins. Raises BackendUnavailableError where this
        computer cannot run it."""
        ...

    def export(self, path: str) -> None: ...


@record
class Method:
    """A method ready to be called.

    places: the graph's inputs that it reads, by number. tables: its tables on the device. results: the shape (without rows) and dtype of
    each output. filled: the numbers of the outputs that the function fills; the others have no elements. few: a call of fewer rows holds
    Python's lock. many: from so many rows on, threads share the work.
    """

    interface: Interface
    code: Code
    places: tuple[int, ...]
    tables: tuple[Any, ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    filled: tuple[int, ...]
    few: float
    many: float


class TvmExecutable(Executable):
    """A graph compiled by TVM. Each method is found in the cache on disk or compiled at its first call, since most callers use one or two
    of a classifier's three."""

    keeps_code = True

    def __init__(self, signature: Signature, options: CompileOptions, compile_methods: Callable[[], Methods]) -> None:
        self.signature = signature
        self.options = options
        self._compile_methods = compile_methods
        self.steps: list[str] = []
        self._shelf: Shelf | None = None
        self._variant = ""
        self._ready: dict[str, Method] = {}
        self._apart: set[str] = set()  # methods that no function computes together
        self._tensors: dict[int, Any] = {}
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    @cached_property
    def methods(self) -> Any:
        """The compiler of this graph's methods (run/methods.py)."""
        return self._compile_methods()

    @cached_property
    def threads(self) -> int:
        return self.options.threads or cpus()

    def keep_in(self, shelf: Shelf) -> None:
        """See hbc.compiler.base.Executable."""
        self._shelf = shelf

    def named(self, variant: str) -> None:
        """See hbc.compiler.base.Executable."""
        self._variant = variant

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        ready = self._ready.get(method) or self._prepare(method)
        n = len(arrays[0])
        outputs = [np.empty((n, *shape), dtype) for shape, dtype in ready.results]
        if not n or not ready.filled:
            return outputs
        inputs = [arrays[place] for place in ready.places]
        for place, array in enumerate(inputs):
            if not array.flags.behaved:
                inputs[place] = writable(array)
        filled = outputs if len(ready.filled) == len(outputs) else [outputs[i] for i in ready.filled]
        self._call(ready, inputs, filled, n)
        return outputs

    def run_together(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array]]:
        """See hbc.compiler.base.Executable. One function computes all methods, unless only their own were kept and nothing compiles
        another. Labels, probabilities and scores of 100 trees behind encoders take 54 ms for 20,000 rows; one after the other they took 156
        (Intel Sapphire Rapids, a core that others used too)."""
        whole = AND.join(methods)
        if len(methods) == 1 or whole in self._apart:
            return super().run_together(methods, arrays)
        try:
            return self._by_method(methods, self.run(whole, arrays))
        except BackendUnavailableError:
            self._apart.add(whole)
            return super().run_together(methods, arrays)

    def _by_method(self, methods: Sequence[str], values: Sequence[Array]) -> list[list[Array]]:
        """The values of the function of several methods, for each method its own."""
        following = iter(values)
        return [[next(following) for _ in self.signature.outputs[method]] for method in methods]

    def _call(self, ready: Method, inputs: Sequence[Array], outputs: Sequence[Array], n: int) -> None:
        last = UNBOUNDED if ready.interface.tests else ()
        self._on_threads(ready, (*inputs, *ready.tables, *outputs), last, n)

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """See hbc.compiler.base.Executable."""
        results = self.signature.outputs[method]
        shape = results[0].shape[1:]
        if len(self.signature.inputs) != 1 or len(results) != 1 or len(shape) > 1 or not elements(results[0]):
            return None
        (kind,) = self.signature.inputs.values()
        if bound is not None and not kind.is_float:
            return None
        ready = self._ready.get(method) or self._prepare(method, bound is not None, missing, accepted)
        if not ready.places or (bound is not None and not ready.interface.bounded):
            return None
        if ready.interface.conditions != len(accepted):
            return None
        width = int(shape[0]) if shape else None
        last = (float(bound),) if bound is not None else (math.inf,) if accepted else UNBOUNDED if ready.interface.tests else ()
        held, free, few, many = ready.code.held, ready.code.free, ready.few, ready.many
        tables, dtype, empty = ready.tables, ready.results[0][1], np.empty

        def make_quick(least: int, otherwise: Callable[..., Any] | None = None) -> Quick | None:
            if ready.code.addresses is None:
                return None
            kinds, widths = (NUMPY_DTYPES[kind.dtype], dtype), (int(kind.shape[1]) if len(kind.shape) == 2 else 1, width)
            rows = least, math.ceil(min(few, 1 << 62)), math.ceil(min(many, 1 << 62))
            return quick_way(ready.code.addresses, kinds, widths, rows, tables, last, ready.code, otherwise)

        found = make_quick(1)
        quick = found.function if found else no_quick_way

        # Every line counts here: this is the path of single rows.
        def direct(X: Array, n: int, out: Array | None = None) -> Array | None:
            good = quick(X) if out is None else quick(X, out)
            if good is not None:
                return good
            result = empty(n if width is None else (n, width), dtype) if out is None else out
            if n < few:
                good = held(X, *tables, result, 0, n, *last)
            elif n < many:
                good = run_free(free, held, (X, *tables, result, 0, n, *last))
            else:
                good = self._on_threads(ready, (X, *tables, result), last, n)
            return None if good == 0 else result

        direct.make_quick = make_quick  # type: ignore[attr-defined]
        return direct

    def warm_up(self, method: str) -> None:
        """See hbc.compiler.base.Executable."""
        if method not in self._ready:
            self._prepare(method)

    def repeated(self, method: str, arrays: Sequence[Array]) -> Callable[[], Sequence[Array]]:
        """See hbc.compiler.base.Executable. With 11 inputs of one row, a call takes 4 µs less than by `run`."""
        ready, n = self._ready.get(method) or self._prepare(method), len(arrays[0])
        if n >= ready.few or not ready.filled:
            return super().repeated(method, arrays)
        outputs = [np.empty((n, *shape), dtype) for shape, dtype in ready.results]
        last = UNBOUNDED if ready.interface.tests else ()
        inputs, filled = [as_tensor(arrays[place]) for place in ready.places], [as_tensor(outputs[i]) for i in ready.filled]
        arguments, call = (*inputs, *ready.tables, *filled, 0, n, *last), ready.code.held

        def repeat() -> list[Array]:
            call(*arguments)
            return [output.copy() for output in outputs]

        return repeat

    def prepared(self, array: Array) -> Any:
        """See hbc.compiler.base.Executable."""
        quick = any(ready.code.addresses for ready in self._ready.values()) and usable() is not None
        return array if quick else as_tensor(array)  # 0.2 µs less a call

    def _on_threads(self, ready: Method, arguments: tuple[Any, ...], last: tuple[float, ...], n: int) -> Any:
        """Call the function for all rows. Returns 0 if it tests its input and some rows do not pass.

        Threads share many rows. Each takes the next piece when it has done one, since nobody knows what else keeps the processors busy.
        """
        if n < ready.many:
            return ready.code(*arguments, 0, n, *last)
        from queue import SimpleQueue

        rows = ready.interface.rows
        blocks = -(-n // rows)
        work = n * ready.interface.cost
        threads = min(self.threads, blocks, int(work / WORTH_A_THREAD))
        # Each piece reads deep trees anew: pieces of 1,000 rows take 6.8 µs a row, of 4,096 rows 4.3. So there are no more pieces than
        # blocks of rows, except to give every thread one.
        pieces = min(blocks, max(threads, min(threads * PIECES, int(work / WORTH_A_PIECE), n // ready.interface.block)))
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
            from concurrent.futures import ThreadPoolExecutor  # 5 ms, which few rows do not need

            self._pool = pool = os.getpid(), ThreadPoolExecutor(self.threads - 1, thread_name_prefix="hbc")
        return pool[1]

    @building
    def _prepare(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Method:
        """A method, found or compiled unless it was before. Raises BackendUnavailableError if this computer cannot run the code."""
        if method not in self._ready:
            start, test = time.perf_counter(), (bounded, missing, len(accepted))
            found = self._shelf and find_method(self._shelf, method, test)
            if found:
                compiled = Compiled(*found)
            else:
                methods = self._compiler(method)
                start = time.perf_counter()  # imports and passes that came before have times of their own
                compiled = methods.compiled(method, bounded, missing, accepted)
            if self._shelf and not found:
                keep_method(self._shelf, method, test, *compiled)
                if self.options.elsewhere:  # there it may be asked for without the test first, and must be found
                    keep_method(self._shelf, method, UNTESTED, *compiled)
            kept = "code found in the cache" if compiled.code.found else "compiled"
            how = f"found in {self._shelf.store.place}" if self._shelf and found else kept
            self.steps.append(f"{method} {how} in {(time.perf_counter() - start) * 1e3:.0f} ms")
            show(PASSES, lambda: f"hbc: variant {self._variant}: {self.steps[-1]}")
            self._ready[method] = self._bind(compiled)
        return self._ready[method]

    def _compiler(self, method: str) -> Methods:
        """The compiler of methods, for one that was not found. Raises BackendUnavailableError, also where TVM is not installed."""
        try:
            methods: Methods = self.methods
        except BackendUnavailableError as error:
            advice = f"No compiled code of {method} for this input was found, in the saved model or in the cache."
            raise BackendUnavailableError(**{**error.facts, "advice": advice}) from error
        return methods

    def _bind(self, compiled: Compiled) -> Method:
        """The method of a compiled function, with its tables on the device."""
        interface = compiled.interface
        tables = tuple(self._on_device(table) for table in compiled.tables)
        names = list(self.signature.inputs)
        places = tuple(names.index(name) for name in interface.inputs)
        results = tuple((tuple(int(d) for d in kind.shape[1:]), NUMPY_DTYPES[kind.dtype]) for kind in interface.outputs)
        filled = tuple(i for i, kind in enumerate(interface.outputs) if elements(kind))
        many = math.inf if self.threads == 1 else 2 * WORTH_A_THREAD / interface.cost
        few = WORTH_THE_LOCK / interface.cost
        return Method(interface, compiled.code, places, tables, results, filled, few, many)

    def _on_device(self, table: Array) -> Any:
        """A table as a tensor on the device. All methods that read a table share its tensor."""
        place = table.ctypes.data
        if place not in self._tensors:
            self._tensors[place] = self._sent(table), table  # which is kept, so that no other array takes the place
        return self._tensors[place][0]

    def _sent(self, table: Array) -> Any:
        """A table in the device's memory."""
        return tvm_ffi.from_dlpack(writable(as_aligned(table)))

    def export(self, path: str) -> None:
        self.methods.export(path)


def recalled(signature: Signature, options: CompileOptions, methods: Callable[[], Methods]) -> TvmExecutable:
    """See hbc.compiler.base.recalled."""
    return TvmExecutable(signature, options, methods)


def as_tensor(array: Any) -> Any:
    """The same memory as TVM takes it; it is asked for no alignment."""
    return tvm_ffi.from_dlpack(array, require_alignment=0)
