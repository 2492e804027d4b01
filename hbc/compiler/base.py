"""The interface of a backend (Compiler, Executable), and the list of backends."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from hbc.cache.shelf import Shelf
from hbc.errors import BackendUnavailableError, meant
from hbc.ir.graph import Graph, Node, Operator
from hbc.ir.rows import Rows
from hbc.ir.signature import InputSpec, Kinds, Limits, ModelInfo
from hbc.ir.types import Array, DType, TensorType
from hbc.lazy import record
from hbc.process import in_subinterpreter

if TYPE_CHECKING:
    from hbc.compiler.costs import OneHotCosts
    from hbc.ops.encoding import Codes


@record
class CompileOptions:
    """The choices of the caller of `hbc.convert`. `target` is a TVM target as a dict. `batch_size`, the rows of a call, is only a hint.
    `block` is the number of rows that are computed together; only `hbc tune` chooses it. elsewhere: the code is for other computers: it is
    kept, and not loaded here."""

    device: str = "cpu"
    threads: int | None = None
    target: Mapping[str, Any] | None = None
    batch_size: int | None = None
    block: int | None = None
    elsewhere: bool = False


class About(NamedTuple):
    """The model that a graph computes, for what an exported file says of it."""

    info: ModelInfo
    """Its source and attributes."""
    spec: InputSpec
    """Its columns and their names."""
    kinds: Kinds
    """The dtype of every column. `input_layout(kinds)` gives the columns of each of the graph's inputs."""
    limits: Callable[[str], Limits] | None = None
    """Method → what the source accepts as its input. `Compiler.export` gets it."""
    asked: bool = False
    """Whether the caller has named the methods."""


Direct = Callable[..., Array | None]
"""(array, its rows, out=None) -> result, or None; see Executable.direct."""


ReadPart = Callable[[int, int], Sequence[Array]]
"""(first row, end row) → these rows of the arrays of a graph's inputs, for `run_in_parts`."""


class Quick(Protocol):
    """A way into a direct function that needs no test of its arguments before: it takes anything, and returns None for what it does not
    take."""

    @property
    def function(self) -> Callable[..., Array | None]:
        """(X) or (X, out) → the result, or None."""
        ...

    def and_then(self, other: Quick) -> None:
        """Let the function take what another one of the same backend takes too."""
        ...


def quick_of(direct: Direct | None, least: int, otherwise: Callable[..., Any] | None = None) -> Quick | None:
    """The quick way into a direct function for at least so many rows: of those backends whose direct functions have `make_quick`.

    otherwise: a function that answers for what the quick way does not take, in place of None."""
    make = getattr(direct, "make_quick", None)
    return None if make is None else make(least, otherwise)


def no_quick_way(X: Any, out: Any = None) -> None:
    """None: the function of a Quick where there is none."""


class Signature(NamedTuple):
    """The inputs of a graph by their names, and the results of its methods."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, tuple[TensorType, ...]]

    @classmethod
    def of(cls, graph: Graph) -> Signature:
        inputs = {node.op.name: node.type for node in graph.inputs}  # type: ignore[attr-defined]
        return cls(inputs, {method: tuple(node.type for node in group) for method, group in graph.outputs.items()})


class OnCard(ABC):
    """A method for one array that lies on a GPU. number: that of the GPU."""

    number: int

    @abstractmethod
    def __call__(self, X: Any, stream: int, room: Callable[[tuple[int, ...], np.dtype[Any]], Any] | None) -> list[Any]:
        """The results on the GPU, for an array of the input's dtype and shape. X: an object of DLPack. stream: the handle of the caller's
        stream, on which everything is done. room: makes memory for a result, an object of DLPack; nothing waits for the results then. With
        None, the results are new tensors, complete when this returns. Raises InvalidInputError for an array that is not contiguous."""

    @abstractmethod
    def to_host(self, X: Any, stream: int) -> Array:
        """A copy of an array of the GPU, when all that was put on the stream before is done."""


class Executable(ABC):
    """A compiled graph. Several threads may call it at once.

    A backend must provide `run`. The other members have defaults that work for every backend.
    """

    takes_coded_strings: bool = False
    """Whether `run` takes columns of strings as CodedStrings. Otherwise it gets arrays of strings."""

    takes_parts: bool = False
    """Whether it has `run_in_parts`."""

    keeps_code: bool = False
    """Whether its compiled methods are found again in the cache on disk: then it has a `signature`, `keep_in` does something, and its
    backend has a function `recalled`."""
    signature: Signature
    steps: Sequence[str] = ()
    """What was compiled so far, or found in the cache, and the times, for `explain()`."""

    @abstractmethod
    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        """The values of one method. `arrays` are in the order of the graph's inputs, of exactly their dtypes, and C-contiguous.
        The result is new memory, or the input itself where the graph returns it."""

    def export(self, path: str) -> None:
        """Write the compiled code to a file with one of the compiler's suffixes, for use without hbc. Needed only where
        `Compiler.export` is the default, which calls it."""
        raise NotImplementedError

    def run_together(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array]]:
        """The values of several methods, for each what `run` gives, to the bit. What they share may be computed once. By default one method
        is run after the other."""
        return [self.run(method, arrays) for method in methods]

    def run_in_parts(self, methods: Sequence[str], rows: int, part: ReadPart, most: int) -> list[list[Array]]:
        """The values of several methods for so many rows, as `run_together` gives them. part: reads and encodes some rows, up to `most` at
        once. Several threads may call it, and it may be asked for rows again. What it raises comes through. Only for backends that
        compute parts while it encodes others (`takes_parts`)."""
        raise NotImplementedError

    def rows_of_part(self, methods: Sequence[str]) -> int:
        """The most rows of a part, if `run_in_parts` is the better way for these methods and more rows than that. Otherwise 0, as by
        default."""
        return 0

    def run_rows(self, method: str, arrays: Sequence[Array]) -> Sequence[Array | Rows]:
        """The values of one method as `run` gives them, but a value that is mostly zeros may be Rows. By default what `run` returns."""
        return self.run(method, arrays)

    def row_of(self, method: str) -> Callable[[Any], Rows | None] | None:
        """The function that makes the value of one row, an object, where one operator of the host makes it (`Operator.row_of`). By default
        None."""
        return None

    def direct(self, method: str, bound: float | None, missing: bool = False, accepted: Sequence[Graph] = ()) -> Direct | None:
        """A faster function than `run` for a method of one input and one output, or None where there is none (the default).

        The function takes a C-contiguous, aligned, writeable array of the input's dtype and shape, and the number of its rows (at least
        one). It returns the result in new memory or in `out`, which is such an array of the result's dtype and shape. It also tests the
        input: it returns None, and leaves `out` undefined, if

        * `bound` is not None, and the sum of squares of the array, or of some of its rows, is not at most `bound`. With `missing`, the
          sum leaves out NaN.
        * one of the graphs `accepted` gives False for some row. They are graphs of supported operators on the same input.

        The caller then takes the slow path, which says what is wrong with the input.
        """
        return None

    def on_card(self, method: str) -> OnCard | None:
        """A method of one input for arrays that lie on a GPU, or None where there is none (the default)."""
        return None

    def keep_in(self, shelf: Shelf) -> None:
        """From now on, look for compiled methods on this shelf of the cache, and put there those that are compiled. By default nothing."""
        return

    def named(self, variant: str) -> None:
        """Take the name of the variant that it computes, for what HBC_DEBUG prints. By default nothing."""
        return

    def warm_up(self, method: str) -> None:
        """Do now what the first call of a method would do. By default nothing: most backends compile a graph as a whole."""
        return

    def repeated(self, method: str, arrays: Sequence[Array]) -> Callable[[], Sequence[Array]]:
        """A function that returns the values of `run(method, arrays)` for what stands in these arrays when it is called, in memory of their
        own. It is for few rows that are written into the same memory again and again. One thread at a time may call it."""
        return lambda: [np.array(value) for value in self.run(method, arrays)]

    def prepared(self, array: Array) -> Any:
        """The array in the form that the function of `direct` takes with the least delay. For arrays that come again and again. By
        default the array itself."""
        return array


class Compiler(ABC):
    """A backend. It must run every tensor operator, and it says which model operators it runs without lowering.

    A backend must provide `name`, `supports`, `choose_strategy` and `compile`. The other members have defaults.
    """

    name: str
    strategies: tuple[str, ...] = ()
    """The backend's own tree strategies, beside the three that lower to tensor operators."""
    one_launch: bool = False
    """Whether a method becomes one compiled function. Otherwise each operator is at least one."""
    same_in_every_batch: bool = False
    """Whether a row's results have the same bits, whatever other rows are in the call."""
    handles_strings: bool = False
    """Whether graphs for `compile` may have inputs and outputs of strings. Otherwise the host computes every operator on strings."""
    writes_strings: bool = False
    """Whether `export` takes graphs with strings, although `compile` does not."""
    exports: Collection[str] = ()
    """The suffixes of the files that it exports, such as (".onnx",). As a mapping, suffix → the names of the options that
    `CompiledModel.export` takes for such a file, beside `methods` and `dtype`."""
    makes_module: bool = False
    """Whether it has `module`."""
    takes_target: bool = False
    """Whether it compiles for the `target` of the options. Otherwise `hbc.convert` rejects a target."""
    blocks: tuple[int, ...] = ()
    """The numbers of rows in a block that `hbc tune` tries."""

    @abstractmethod
    def supports(self, op: Operator) -> bool:
        """Whether this operator runs without lowering."""

    @abstractmethod
    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        """The strategy for a tree ensemble under `strategy="auto"`, and the reason in a few words. It must be one that can run the
        ensemble: for most variants, `hbc.convert` does not try it."""

    @abstractmethod
    def compile(self, graph: Graph, options: CompileOptions) -> Executable:
        """Compile a graph of supported operators. Raises BackendUnavailableError for a device that is not there."""

    def looks_up(self, codes: int, made_of: Codes, columns: int, outputs: int, dtype: DType, options: CompileOptions) -> bool:
        """Whether the product of one-hot columns and weights for so many outputs is faster as a `TableSum`, which adds a row of weights for
        each of `codes` columns of codes: by the backend's costs; without these, from 6 one-hot columns for each of them on."""
        costs = self.one_hot_costs(outputs, dtype) if options.device == "cpu" else None
        return columns >= 6 * codes if costs is None else costs.looks_up(codes, made_of, columns, outputs, options.batch_size)

    def one_hot_costs(self, outputs: int, dtype: DType) -> OneHotCosts | None:
        """The costs on a CPU of products with one-hot codes for so many outputs. None: not measured, as by default."""
        return None

    def calls_c_library(self, options: CompileOptions) -> bool:
        """Whether its code calls the C library's logarithm (`CLogarithm`), and so has the bits of scipy's compiled code. By default not."""
        return False

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        """Strategy → estimated nanoseconds of a call on a CPU, for each number of rows, for the strategies of a tree ensemble that are
        worth a trial. By default empty: `hbc tune` then tries all strategies."""
        return {}

    def seen(self, node: Node, options: CompileOptions) -> Operator:
        """The tree ensemble of a node as the compiler will run it. `choose_strategy`, `estimates` and `gpu_strategies` are asked about this
        one. By default the node's own operator."""
        return node.op

    def gpu_strategies(self, op: Operator, options: CompileOptions) -> Collection[str] | None:
        """The strategies of a tree ensemble that are worth a trial on a GPU. By default None: `hbc tune` then tries all."""
        return None

    def for_file(self, chosen: Mapping[str, Any], options: CompileOptions) -> tuple[Compiler, CompileOptions]:
        """The compiler and the options for a file, given the caller's options of `CompiledModel.export` (only names that `exports`
        declares; the values are checked here). The optimizer asks this compiler, and its `export` writes the file. By default the
        compiler itself, with the options that it was given. Raises ValueError for a bad value."""
        return self, options

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        """Write a graph of supported operators to a file, for use without hbc. By default the executable of `compile` writes it. Raises
        ValueError for what such a file cannot hold."""
        completed(self.compile(graph, options), Executable).export(path)  # type: ignore[type-abstract]

    def module(self, graph: Graph, options: CompileOptions) -> Any:
        """A graph of supported operators as an `nn.Module` of PyTorch; called only if `makes_module`."""
        raise NotImplementedError

    def on_host(self, graph: Graph, options: CompileOptions) -> Graph:
        """The host's part of a graph, with some operators replaced by ones with a compiled `evaluate`. By default the graph itself."""
        return graph


Part = TypeVar("Part", Executable, Compiler)


def completed(found: Any, kind: type[Part]) -> Part:
    """`found` itself if it derives from `kind`. Otherwise an object that has the members of `found`, and the defaults of `kind` for those
    that `found` lacks: a backend of another package need not import hbc. Raises TypeError for one without the members that it must have."""
    if isinstance(found, kind):
        return found
    names = [name for name in {*vars(kind), *kind.__annotations__} if not name.startswith("_") and hasattr(found, name)]
    if lacking := sorted(kind.__abstractmethods__.difference(names)):
        raise TypeError(
            f"{type(found).__module__}.{type(found).__qualname__} has no {', '.join(lacking)}: not {kind.__name__} of hbc's"
        )
    whole = type(type(found).__name__, (kind,), dict.fromkeys(kind.__abstractmethods__))()
    for name in names:
        setattr(whole, name, getattr(found, name))
    return whole


@record
class Backend:
    """Where a compiler is found: the module that has `COMPILER`, the packages it needs, the extra that installs them; and the files that
    it exports and its strategies (as in `Compiler`), which can be looked up here without importing the packages."""

    module: str
    packages: tuple[str, ...] = ()
    extra: str | None = None
    exports: Collection[str] = ()
    numbers_only: Collection[str] = ()
    """Those of the suffixes whose files cannot take strings."""
    strategies: tuple[str, ...] = ()
    calls: str = ""
    """The module whose function `recalled` makes an executable of compiled methods in the cache, without importing the packages, and whose
    function `code_versions` tells the versions of the libraries that run them. Empty where no code is kept."""


BACKENDS: dict[str, Backend] = {
    "tvm": Backend(
        "hbc.compiler.tvm.compiler",
        ("tvm",),
        "tvm",
        dict.fromkeys((".so", ".o", ".a"), ("target", "name", "header")),
        (".so", ".o", ".a"),
        (
            "walk",
            "patches",
            "ranges",
            "scan",
            "far_links",
            "int8_gemm",
            "levels",
            "links",
            "wide_levels",
            "wide_links",
            "select",
        ),
        "hbc.compiler.tvm.run.executable",
    ),
    "torch": Backend("hbc.compiler.torch.eager", ("torch",), "torch", {".pt2": ()}, (".pt2",), ("scan", "walk")),
    "torchscript": Backend("hbc.compiler.torch.script", ("torch",), "torch", {".pt": ()}, (".pt",), ("scan", "walk")),
    "onnx": Backend(
        "hbc.compiler.onnx",
        ("onnx", "onnxruntime"),
        "onnx",
        {".onnx": ("opset", "plain", "columns")},
        strategies=("onnxml",),
    ),
    "numpy": Backend("hbc.compiler.numpy", strategies=("reference",)),
}
ALIASES = {"pytorch": "torch", "torch.jit": "torchscript"}
EXPORTS = {suffix: name for name, backend in BACKENDS.items() for suffix in backend.exports}
"""Suffix of an exported file → the backend of hbc's that writes it."""
FORWARD = ("predict_proba", "transform", "predict")
"""The methods that a module of PyTorch may be called for, the first that it has."""


def main_method(methods: Iterable[str]) -> str:
    """The method that `forward` of a module computes, and that a .pt2 file holds: the first of FORWARD that there is, or else the first
    of all."""
    names = list(methods)
    return next((name for name in FORWARD if name in names), names[0])


def require_numbers(place: str, suffix: str, spec: InputSpec, kinds: Kinds) -> None:
    """Raise ValueError, which begins with `place`, if files with this suffix take numbers only and the model takes strings. It needs no
    compiler, so it can be asked before one is imported."""
    if any(suffix in backend.numbers_only for backend in BACKENDS.values()):
        refuse_strings(place, f"{suffix} files", spec, kinds)


def refuse_strings(place: str, holder: str, spec: InputSpec, kinds: Kinds) -> None:
    """Raise ValueError, which begins with `place`, if the model takes strings, which the `holder` cannot hold. It names the columns."""
    if spec.items:
        raise ValueError(f"{place}: the model takes {spec.items}, which {holder} cannot hold. save() it instead.")
    if columns := [spec.describe_column(i) for i, kind in enumerate(kinds) if kind == "str"]:
        raise ValueError(
            f"{place}: the model takes strings ({', '.join(columns)}), which {holder} cannot hold. Export it to .onnx, or save() it; or "
            "encode the strings before the model (sklearn.preprocessing.OrdinalEncoder)."
        )


LOWERED_STRATEGIES = ("gemm", "tree_trav", "perf_tree_trav")
"""The paper's strategies. They lower to tensor operators, and so run on every backend."""


BackendName = Literal["tvm", "torch", "torchscript", "onnx", "numpy", "pytorch", "torch.jit"]
"""For type checkers: the backends of hbc, and their aliases. One of another package is named by `cast(Any, "name")`."""
DeviceName = Literal["cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"]
StrategyName = Literal[
    "auto",
    "gemm",
    "tree_trav",
    "perf_tree_trav",
    "walk",
    "patches",
    "ranges",
    "scan",
    "levels",
    "links",
    "far_links",
    "wide_levels",
    "wide_links",
    "int8_gemm",
    "select",
    "onnxml",
    "reference",
]


def known_backends() -> dict[str, Backend]:
    """hbc's own backends and those of the entry-point group `hbc.backends` (a module with `COMPILER`), by their names in lower case."""
    import importlib.metadata  # 15 ms

    plugins = {point.name.lower(): Backend(point.value) for point in importlib.metadata.entry_points(group="hbc.backends")}
    return {**plugins, **BACKENDS}


def _backend(name: str) -> Backend:
    # Entry points are looked for only where hbc has no such backend: that takes 2 to 6 ms.
    return BACKENDS[name] if name in BACKENDS else known_backends()[name]


def backend_name(name: str) -> str:
    """The canonical name of a backend. Raises ValueError that lists the known ones."""
    if not isinstance(name, str):
        known = ", ".join(known_backends())
        raise ValueError(
            f"backend: found {type(name).__name__}, expected one of {known}. A sample of the input is passed as X=."
        )
    lowered = name.lower()
    canonical = ALIASES.get(lowered, lowered)
    if canonical not in BACKENDS and canonical not in (known := known_backends()):
        raise ValueError(f"unknown backend {name!r}{meant(lowered, [*known, *ALIASES])}; known are {', '.join(known)}")
    return canonical


def is_available(name: str) -> bool:
    """Whether the packages of a backend are installed (they are not imported)."""
    return all(importlib.util.find_spec(package) is not None for package in _backend(name).packages)


def strategies_of(name: str) -> tuple[str, ...]:
    """The strategies for tree ensembles of a backend, given its canonical name: "auto", the paper's, its own. The packages of hbc's own
    backends are not imported for it. Raises BackendUnavailableError."""
    if name in BACKENDS:
        _require_packages(name, BACKENDS[name])
        own = BACKENDS[name].strategies
    else:
        own = load_compiler(name).strategies
    return tuple(dict.fromkeys(("auto", *LOWERED_STRATEGIES, *own)))


def recalls(name: str) -> bool:
    """Whether the compiled code of a backend (given its canonical name) is kept in the cache on disk."""
    return bool(_backend(name).calls)


def recalled(name: str, signature: Signature, options: CompileOptions, methods: Callable[[], Any]) -> Executable:
    """An executable of a backend (given its canonical name) whose methods are found in the cache. methods: returns what compiles those
    that are not there. Raises BackendUnavailableError."""
    executable: Executable = _calls(name).recalled(signature, options, methods)
    return executable


def code_versions(name: str) -> dict[str, str]:
    """Library → version, of the libraries that run compiled code of a backend, given its canonical name. Raises
    BackendUnavailableError."""
    versions: dict[str, str] = _calls(name).code_versions()
    return versions


def _calls(name: str) -> Any:
    """The module that calls compiled code. It needs less than the compiler does."""
    backend = _backend(name)
    _require_main_interpreter(name, backend)
    try:
        return importlib.import_module(backend.calls)
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(backend=name, reason=str(error), extra=backend.extra) from error


def _require_main_interpreter(name: str, backend: Backend) -> None:
    """Raise BackendUnavailableError in a subinterpreter. To import the libraries there (tvm_ffi, PyTorch, ONNX Runtime) never ends."""
    if backend.packages and in_subinterpreter():
        raise BackendUnavailableError(
            backend=name,
            reason="its libraries do not work in a subinterpreter of Python",
            advice='Use the main interpreter (mod_wsgi: WSGIApplicationGroup %{GLOBAL}), or backend="numpy".',
        )


def _require_packages(name: str, backend: Backend) -> None:
    _require_main_interpreter(name, backend)
    missing = [package for package in backend.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise BackendUnavailableError(backend=name, reason=f"{' and '.join(missing)} not installed", extra=backend.extra)


def load_compiler(name: str) -> Compiler:
    """The compiler of a backend, given its canonical name. Raises BackendUnavailableError."""
    backend = _backend(name)
    _require_packages(name, backend)
    try:
        module = importlib.import_module(backend.module)
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(backend=name, reason=str(error), extra=backend.extra) from error
    try:
        return completed(module.COMPILER, Compiler)  # type: ignore[type-abstract]
    except (AttributeError, TypeError) as error:
        raise BackendUnavailableError(backend=name, reason=str(error), extra=backend.extra) from error
