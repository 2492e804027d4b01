"""What a compiler is, and where the compilers are found."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Operator
from hbc.ir.types import Array


@dataclass(frozen=True)
class CompileOptions:
    """What the caller of `hbc.convert` chose. `target` is a TVM target as a dict; `batch_size` only a hint. `block`, rows that are computed
    together, is chosen by `hbc tune` alone."""

    device: str = "cpu"
    threads: int | None = None
    target: Mapping[str, Any] | None = None
    batch_size: int | None = None
    block: int | None = None


@runtime_checkable
class Executable(Protocol):
    """A compiled graph. Safe to call from several threads at once."""

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        """The values of one method for arrays in the order of the graph's inputs, with exactly the inputs' dtypes, C-contiguous.
        The result is new memory, or the input itself where the graph returns it."""
        ...

    def export(self, path: str) -> None:
        """Write the compiled code for use without hbc. Raises ValueError for a suffix that this backend does not write."""
        ...


Direct = Callable[..., Array | None]
"""(array, its rows, out=None) -> result, or None; see DirectExecutable."""


@runtime_checkable
class DirectExecutable(Protocol):
    """An executable with a shorter way than `run` for methods of one input and one output."""

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """A function for a C-contiguous, aligned, writeable array of the input's dtype and shape, and the number of its rows
        (at least one). It returns the result, in new memory or in `out`: an array with that property, of the result's dtype and shape.
        With a bound it returns None, having computed nothing of use, if the sum of the squares of the array, or of some of its rows,
        is not at most that (`missing`: of its numbers, NaN being none), or if one of the bools is false that the graphs `accepted`
        (of supported operators, on the same input) compute. None where there is no such way."""
        ...

    def prepared(self, array: Array) -> Any:
        """An array as that function takes it with the least delay, for arrays that it gets again and again."""
        ...


@runtime_checkable
class Compiler(Protocol):
    """A backend: it must run every tensor operator, and says which model operators it runs as they are."""

    name: str
    strategies: tuple[str, ...]
    """The tree strategies that it brings itself, beside the three that lower to tensor operators."""
    one_launch: bool
    """Whether a method is one compiled function; otherwise each operator is at least one."""
    handles_strings: bool
    """Whether string inputs and outputs may stay in its graphs; otherwise the host computes what touches strings."""

    def supports(self, op: Operator) -> bool:
        """Whether this operator runs as it is; a model operator that does not is lowered."""
        ...

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        """The strategy for a tree ensemble under `strategy="auto"`, and the reason in a few words."""
        ...

    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        """Compile a graph of supported operators. Raises BackendUnavailableError for a device that is not there."""
        ...


@runtime_checkable
class Estimates(Protocol):
    """A compiler that knows about how long the strategies take. `blocks`: rows of a block that `hbc tune` tries."""

    blocks: tuple[int, ...]

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        """Nanoseconds a call on a CPU, for each number of rows, of the strategies for a tree ensemble that are worth a trial."""
        ...


@runtime_checkable
class GraphExporter(Protocol):
    """A compiler that leaves strings to the host when it runs a graph, but can write all of it to a file."""

    def export_graph(self, graph: Graph, path: str) -> None:
        """Write a whole graph, strings included. Raises ValueError."""
        ...


@runtime_checkable
class HostCompiler(Protocol):
    """A compiler that also has code for the host's part of a graph."""

    def on_host(self, graph: Graph, options: CompileOptions) -> Graph:
        """The same graph, of operators whose `evaluate` is that code where there is some."""
        ...


@dataclass(frozen=True)
class Backend:
    """Where a compiler lives: the module that has `COMPILER`, the packages it needs, and the extra that installs them."""

    module: str
    packages: tuple[str, ...] = ()
    extra: str | None = None


BACKENDS: dict[str, Backend] = {
    "tvm": Backend("hbc.compiler.tvm", ("tvm",), "tvm"),
    "torch": Backend("hbc.compiler.torch.eager", ("torch",), "torch"),
    "torchscript": Backend("hbc.compiler.torch.script", ("torch",), "torch"),
    "onnx": Backend("hbc.compiler.onnx", ("onnx", "onnxruntime"), "onnx"),
    "numpy": Backend("hbc.compiler.numpy"),
}
ALIASES = {"pytorch": "torch", "torch.jit": "torchscript"}


def known_backends() -> dict[str, Backend]:
    """hbc's own backends and those of the entry-point group `hbc.backends` (a module with `COMPILER`), by their names in lower case."""
    plugins = {point.name.lower(): Backend(point.value) for point in importlib.metadata.entry_points(group="hbc.backends")}
    return {**plugins, **BACKENDS}


def _backend(name: str) -> Backend:
    # Entry points are looked for only where hbc has no such backend: that takes 2 to 6 ms.
    return BACKENDS[name] if name in BACKENDS else known_backends()[name]


def backend_name(name: str) -> str:
    """The canonical name. Raises ValueError that lists the known ones."""
    lowered = name.lower() if isinstance(name, str) else ""
    canonical = ALIASES.get(lowered, lowered)
    if canonical not in BACKENDS and canonical not in (known := known_backends()):
        raise ValueError(f"unknown backend {name!r}; known are {', '.join([*known, *ALIASES])}")
    return canonical


def is_available(name: str) -> bool:
    """Whether the packages of a backend are installed (they are not imported)."""
    return all(importlib.util.find_spec(package) is not None for package in _backend(name).packages)


def load_compiler(name: str) -> Compiler:
    """The compiler of a backend, given its canonical name. Raises BackendUnavailableError."""
    backend = _backend(name)
    missing = [package for package in backend.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise BackendUnavailableError(backend=name, reason=f"{' and '.join(missing)} not installed", extra=backend.extra)
    try:
        module = importlib.import_module(backend.module)
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(backend=name, reason=str(error), extra=backend.extra) from error
    compiler: Compiler = module.COMPILER
    return compiler
