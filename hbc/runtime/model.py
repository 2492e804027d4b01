"""CompiledModel: the source estimator's interface over compiled graphs."""

from __future__ import annotations

import copy
import functools
import io
import os
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy import ndarray

from hbc.compiler.base import Direct, DirectExecutable, Executable
from hbc.errors import InvalidInputError
from hbc.ir.coded_strings import dense
from hbc.ir.graph import Graph, gives_rows
from hbc.ir.rows import Rows
from hbc.ir.signature import InputSpec, Kinds, Limits, ModelInfo
from hbc.ir.store import write_atomically
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.runtime import artifact, report, sparse
from hbc.runtime.frames import make_frame
from hbc.runtime.handle import Handle
from hbc.runtime.host import Labels
from hbc.runtime.inputs import Intake, as_given, reject_sparse
from hbc.runtime.limits import Gate


class Record(Protocol):
    """A pass that ran (optimizer/pipeline.py)."""

    @property
    def name(self) -> str: ...
    @property
    def changed(self) -> bool: ...
    @property
    def seconds(self) -> float: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class Launches(NamedTuple):
    """What a call of a method starts: functions on the device, and operators in numpy on the host around them."""

    device: int
    host: int


@dataclass(frozen=True)
class Plan:
    """One variant, optimized: what is compiled, which passes made it, and what its source rejects."""

    graph: Graph
    records: Sequence[Record]
    limits: Limits
    looser: Mapping[str, Limits]
    """Methods that take more than `limits`, which are those of all methods together (GradientBoosting's apply takes NaN)."""
    launches: Mapping[str, Launches]


class Builder(Protocol):
    """Optimizer and compiler behind one door (api.py), with the options of `hbc.convert`. It is pickled with the model."""

    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...

    def settings(self) -> dict[str, Any]:
        """The options as JSON."""
        ...

    def plan(self, graph: Graph) -> Plan: ...

    def compile(self, plan: Plan) -> Executable: ...

    def export(self, graph: Graph, built: Executable, path: str) -> None: ...

    def restore(self, data: bytes) -> CompiledModel:
        """The model of an artefact's bytes, with these options."""
        ...


_alive: weakref.WeakSet[Variant] = weakref.WeakSet()


class Variant:
    """One graph of a model: optimized when it is first asked about, compiled at the first call that needs it."""

    def __init__(self, kinds: Kinds, graph: Graph, spec: InputSpec, builder: Builder) -> None:
        self.kinds = kinds
        self.graph = graph
        self.seconds: float | None = None
        """The time that compiling took; None before."""
        self._spec = spec
        self._builder = builder
        self._plan: Plan | None = None
        self._ready: Ready | None = None
        self._lock = threading.RLock()
        _alive.add(self)

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            with self._lock:
                if self._plan is None:
                    self._plan = self._builder.plan(self.graph)
        return self._plan

    @property
    def ready(self) -> Ready:
        if self._ready is None:
            with self._lock:
                if self._ready is None:
                    plan, start = self.plan, time.perf_counter()
                    executable = self._builder.compile(plan)
                    self.seconds = time.perf_counter() - start
                    gates = {method: Gate(limits, self.kinds, self._spec) for method, limits in plan.looser.items()}
                    self._ready = Ready(executable, Gate(plan.limits, self.kinds, self._spec), gates)
        return self._ready

    @property
    def is_built(self) -> bool:
        return self._ready is not None


class Ready:
    """A variant that can be called."""

    __slots__ = ("_direct", "executable", "gate", "gates", "run", "takes_texts")

    def __init__(self, executable: Executable, gate: Gate, gates: Mapping[str, Gate]) -> None:
        self.executable = executable
        self.run = executable.run
        self.takes_texts = getattr(executable, "takes_texts", False)
        """Whether it computes with CodedStrings; otherwise it is given arrays of strings."""
        self.gate = gate
        self.gates = gates
        self._direct: dict[str, Direct | None] = {}

    def gate_of(self, method: str) -> Gate:
        return self.gates.get(method, self.gate)

    def direct(self, method: str) -> Direct | None:
        """The executable's shorter way, if it can also make the test of this method's inputs."""
        if method not in self._direct:
            gate = self.gate_of(method)
            short = gate.simple and isinstance(self.executable, DirectExecutable)
            self._direct[method] = self.executable.direct(method, gate.fast, gate.missing, gate.accepted) if short else None  # type: ignore[attr-defined]
        return self._direct[method]


def _after_fork() -> None:
    # Another thread of the parent may have been compiling: its lock would stay locked in the child for ever.
    for variant in list(_alive):
        variant._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class CompiledModel:
    """A compiled model. It has the methods of the source estimator, and its `classes_`, `n_features_in_`, `feature_names_in_`.

    Made by `hbc.convert` and `hbc.load`. It never changes, and may be called from several threads at once.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, info: ModelInfo, spec: InputSpec, graphs: Mapping[Kinds, Graph], builder: Builder, main: Kinds) -> None:
        self.info = info
        self.spec = spec
        self.variants = {kinds: Variant(kinds, graph, spec, builder) for kinds, graph in graphs.items()}
        self._main = main
        self._builder = builder
        self._intake = Intake(spec, tuple(graphs))
        self._width = spec.n_features
        self._dtypes = {method: np.dtype(dtype) for method, dtype in info.output_dtypes.items()}
        self._empty = {method: np.empty(shape, dtype) for method, (dtype, shape) in info.without_rows.items()}
        self._sparse = info.sparse
        self._frames = info.frames
        self._mixes_rows = any(graph.mixes_rows for graph in graphs.values())
        self._fast: dict[np.dtype[Any], Variant] = {}
        self._short: dict[str, dict[np.dtype[Any], tuple[Direct, int]]] = {method: {} for method in self.graph.outputs}
        """By method and dtype: the shorter way, and how many rows it takes at least. Found at the first call."""
        bare = not (spec.frames_only or spec.objects_only or self._intake.texts)
        if spec.ndim == 2 and bare and len(self._intake.numbers) == spec.n_features:
            plain = {"f32": np.float32, "f64": np.float64, "i64": np.int64}
            uniform = {
                np.dtype(plain[dtype]): self.variants[kinds] for dtype, kinds in self._intake.uniform.items() if dtype in plain
            }
            self._fast = {dtype: variant for dtype, variant in uniform.items() if len(set(variant.kinds)) == 1}
        for name, value in info.attributes.items():
            setattr(self, name, copy.deepcopy(value))
        taken = [method for method in self.graph.outputs if hasattr(CompiledModel, method)]
        if taken:
            raise ValueError(
                f"{info.source}: found the methods {', '.join(taken)}, expected names that CompiledModel does not have."
            )
        self.__class__ = _class_with(CompiledModel, tuple(self.graph.outputs))

    @property
    def backend(self) -> str:
        return self._builder.backend

    @property
    def device(self) -> str:
        return self._builder.device

    @property
    def graph(self) -> Graph:
        """The parsed graph, before optimization, of the variant that is compiled first."""
        return self.variants[self._main].graph

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the source estimator's methods that can be called."""
        return tuple(self.graph.outputs)

    def _prepare(self, *, compile: bool) -> CompiledModel:
        """Optimize every variant, so that what this backend cannot do is said now; compile the main one if asked."""
        for variant in self.variants.values():
            variant.plan  # noqa: B018
        if compile:
            self.variants[self._main].ready  # noqa: B018
        return self

    def _run(self, method: str, X: Any) -> Any:
        output = self._frames.get(method)
        if output is None:
            if type(X) is ndarray and method in self.info.given_back:
                return self._given_back(method, X)
            found = self._run_arrays(method, X)
            return (
                as_given(found, X, self.spec, self._intake.positions)
                if self.spec.own_dtype and method == "transform"
                else found
            )
        if sparse.is_sparse(X):
            raise InvalidInputError(
                found=f"a sparse matrix ({type(X).__name__})",
                expected="a dense one, since the result is a frame",
                advice="Pass X.toarray().",
            )

        def compute() -> Sequence[Array]:
            found = self._run_arrays(method, X)
            return found if isinstance(found, list) else [found]

        return make_frame(output, X, compute, self._intake.positions)

    def _given_back(self, method: str, X: Array) -> Array:
        """X itself, if the source takes it."""
        kinds, arrays = self._intake(X)
        variant = self.variants[kinds]
        ready = variant.ready
        ready.gate_of(method)([dense(array) for array in arrays])
        self._shorten(method, variant, ready)
        return X

    def _run_arrays(self, method: str, X: Any) -> Any:
        if type(X) is not ndarray and sparse.is_sparse(X):
            if method in self.spec.dense_methods:
                reject_sparse(X)
            if not self._mixes_rows and sparse.is_large(X):
                return self._run_blocks(method, X)
        if self._sparse_class(method, X):
            return self._as_sparse(method, self._rows(method, X), X)
        return self._run_dense(method, X)

    def _run_blocks(self, method: str, X: Any) -> Any:
        """A large sparse matrix, a block of rows at a time."""
        found: list[Any] = []
        run = self._rows if self._sparse_class(method, X) else self._run_dense
        for start, block in sparse.blocks(X):
            try:
                found.append(run(method, block))
            except InvalidInputError as error:
                if not start:
                    raise
                where = f"{error.facts.get('where') or 'X'}, counting rows from row {start}"
                raise InvalidInputError(**{**error.facts, "where": where}) from error
        if isinstance(found[0], Rows):
            return self._as_sparse(method, Rows.stack(found), X)
        if isinstance(found[0], list):
            return [np.concatenate(parts) for parts in zip(*found, strict=True)]
        return np.concatenate(found)

    def _rows(self, method: str, X: Any) -> Rows:
        """A result that is sparse: the rows that the host holds as such, or those of arrays, a block at a time."""
        kinds, arrays = self._intake(X)
        variant = self.variants[kinds]
        ready = variant.ready
        if not ready.takes_texts:
            arrays = [dense(array) for array in arrays]
        ready.gate_of(method)(arrays)
        (node,) = variant.plan.graph.outputs[method]
        run: Any = getattr(ready.executable, "run_rows", ready.run)
        step = max(len(arrays[0]), 1)
        if not gives_rows(node) and not self._mixes_rows:
            step = max(sparse.BLOCK_BYTES // max(node.type.columns * NUMPY_DTYPES[node.type.dtype].itemsize, 1), 1)
        found = []
        for start in range(0, max(len(arrays[0]), 1), step):
            (part,) = run(method, [array[start : start + step] for array in arrays])
            found.append(part if isinstance(part, Rows) else Rows.from_dense(part))
        whole = Rows.stack(found)
        dtype = self._dtypes.get(method)
        return whole if dtype is None else whole.with_data(whole.data.astype(dtype))

    def _sparse_class(self, method: str, X: Any) -> str:
        """What the source returns for this kind of input; "" for an array, which is not made of `Rows`: that took 50 times as long."""
        if method not in self._sparse:
            return ""
        return self._sparse[method][0 if not sparse.is_sparse(X) else 2 if X.format == "csc" else 1]

    def _as_sparse(self, method: str, rows: Rows, X: Any) -> Any:
        name = self._sparse_class(method, X)
        if name.endswith(" *"):
            name = f"{name[:3]}_{'matrix' if sparse.is_matrix(X) else 'array'}"
        return sparse.as_scipy(rows, name)

    def _run_dense(self, method: str, X: Any) -> Any:
        if type(X) is np.ndarray:
            variant = self._fast.get(X.dtype)
            flags = X.flags
            if variant is not None and X.ndim == 2 and X.shape[1] == self._width and flags.c_contiguous and flags.aligned:
                # A plain matrix of the right width, dtype and layout goes through without a copy.
                return self._compute(method, variant, (X,))
        kinds, arrays = self._intake(X)
        return self._compute(method, self.variants[kinds], arrays)

    def _compute(self, method: str, variant: Variant, arrays: Sequence[Array]) -> Any:
        found = self._shortly(method, variant, arrays)
        if found is not None:
            return found
        ready = variant.ready
        if not ready.takes_texts:
            arrays = [dense(array) for array in arrays]
        ready.gate_of(method)(arrays)
        self._shorten(method, variant, ready)
        return self._returned(method, ready.run(method, arrays), arrays)

    def _shortly(self, method: str, variant: Variant, arrays: Sequence[Array]) -> Any:
        """By the shorter way, whose test is part of it, what came by the longer one: a frame's numbers. None where it does not go."""
        array = arrays[0]
        if len(arrays) != 1 or type(array) is not ndarray or self._fast.get(array.dtype) is not variant:
            return None
        if method in self.info.given_back:  # the shorter way is for arrays that are the caller's
            return None
        short = self._short[method].get(array.dtype)
        return short[0](array, len(array)) if short and len(array) >= short[1] and array.flags.carray else None

    def _shorten(self, method: str, variant: Variant, ready: Ready) -> None:
        """Find the shorter way for the next call: before `run` is asked for the method, which could make another one compile twice."""
        dtype = next((dtype for dtype, fast in self._fast.items() if fast is variant), None)
        if dtype is None or dtype in self._short[method] or method in self._frames:
            return
        gate = ready.gate_of(method)
        if method not in self.info.given_back:
            direct = self._direct(method, variant) or _no_way
        else:
            direct = _itself if gate.simple and gate.fast is None else _no_way
        self._short[method][dtype] = (direct, max(gate.min_rows, 1))

    def _direct(self, method: str, variant: Variant) -> Direct | None:
        """The executable's shorter way to what the source returns, if it has one."""
        direct = variant.ready.direct(method)
        own = NUMPY_DTYPES[variant.plan.graph.outputs[method][0].type.dtype]
        wanted = self._dtypes.get(method, own)
        if isinstance(direct, Labels):
            return direct.astype(wanted)
        return direct if own == wanted else None

    def _returned(self, method: str, results: Sequence[Array], arrays: Sequence[Array]) -> Any:
        """The results with the source's dtypes, in memory that nobody else has."""
        if self._empty and method in self._empty and not len(results[0]):
            return self._empty[method].copy()
        dtype = self._dtypes.get(method)
        owned = []
        for result in results:
            if dtype is not None and result.dtype != dtype:
                result = result.astype(dtype)
            elif result.base is None:
                for array in arrays:  # a generator under any() would take 0.3 µs, as long as all the rest of this function
                    if result is array:
                        result = result.copy()
            elif not result.flags.writeable or any(
                isinstance(array, ndarray) and np.may_share_memory(result, array) for array in arrays
            ):
                result = result.copy()
            owned.append(result)
        return owned[0] if len(owned) == 1 else owned

    def bind(self, method: str, dtype: Any = None) -> Handle:
        """A method as a function for arrays of one dtype (float32, float64 or int64; by default that of the sample given to
        `hbc.convert`, or float32), which converts nothing and can write into the caller's memory: for servers. See its docstring.
        Raises ValueError for what the model does not have."""
        if method not in self._short:
            raise ValueError(f"no method {method!r}; the model has {', '.join(self.methods)}")
        if self._sparse.get(method, ("",))[0]:
            raise ValueError(f"{method} returns a sparse matrix, which no memory can be bound to: call the method")
        if method in self._frames:
            raise ValueError(f"{method} returns a frame, which no memory can be bound to: call the method")
        known = {str(known): known for known in self._fast}
        if not known:
            raise ValueError("the model does not take plain matrices of one dtype (but strings or frames): call its methods")
        if dtype is None:
            main = self.variants[self._main]
            return Handle(
                self, method, next((d for d, variant in self._fast.items() if variant is main), next(iter(self._fast)))
            )
        wanted = np.dtype(dtype)
        if wanted not in self._fast:
            raise ValueError(f"dtype {wanted} is converted by the model; a handle takes {', '.join(known)}")
        return Handle(self, method, wanted)

    # --- saving, copying -----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file that `hbc.load` reads without scikit-learn or the library that trained it. There is no
        pickle inside. The file appears whole or not at all."""
        data = self._bytes()
        write_atomically(path, lambda file: file.write(data))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled code for use without hbc: `.onnx`, `.pt` (TorchScript) or `.so` (TVM), for the dtypes of the sample
        given to `hbc.convert` (float32 without one)."""
        cut = [method for method, output in self._frames.items() if max(output.origins, default=-1) >= 0]
        if cut:
            raise ValueError(
                f"{', '.join(cut)} returns a frame with columns of the input as they are, which files of tensors cannot hold. Convert the "
                'model after set_output(transform="default"), or save() it.'
            )
        variant = self.variants[self._main]
        self._builder.export(variant.graph, variant.ready.executable, os.fspath(path))

    def _bytes(self) -> bytes:
        buffer = io.BytesIO()
        graphs = {kinds: variant.graph for kinds, variant in self.variants.items()}
        artifact.write(buffer, artifact.Contents(self.info, self.spec, graphs, self._main, self._builder.settings()))
        return buffer.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        # Executables hold compiled code and cannot travel: the copy compiles what it needs at its first call.
        return self._builder.restore, (self._bytes(),)

    def __copy__(self) -> CompiledModel:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        # Graphs and executables never change: the copies share them.
        other = self.__copy__()
        for name in self.info.attributes:
            setattr(other, name, copy.deepcopy(getattr(self, name), memo))
        memo[id(self)] = other
        return other

    # --- looking -------------------------------------------------------------------------------------------------------

    def explain(self, html: bool = False) -> str:
        """The operators before and after the passes, which passes fired on what and how long they took, the functions that a call
        starts, the strategy of every tree ensemble and why, the input, and the variants by dtype; as text, or as an HTML document."""
        return report.page(self) if html else report.explain(self)

    def __repr__(self) -> str:
        return f"<CompiledModel of {self.info.source} for {self.backend} on {self.device}: {', '.join(self.methods)}>"

    def _repr_html_(self) -> str:
        return report.html(self)


@functools.cache
def _class_with(base: type[CompiledModel], methods: tuple[str, ...]) -> type[CompiledModel]:
    """CompiledModel with exactly these methods: real ones, which are looked up as fast as any and show in `dir` and `help`."""
    namespace: dict[str, Any] = {"__doc__": base.__doc__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    for method in methods:
        namespace[method] = _staged_method(method) if method.startswith("staged_") else _method(method)
    return types.new_class(base.__name__, (base,), exec_body=lambda body: body.update(namespace))


def _method(name: str) -> Callable[[CompiledModel, Any], Any]:
    # Written for one row, for which every look at the array costs as much as a level of a tree: the usual matrix goes straight to
    # the compiled code, which tests its values too.
    def method(self: CompiledModel, X: Any) -> Any:
        if type(X) is ndarray:
            short = self._short[name].get(X.dtype)
            if short is not None:
                shape = X.shape
                if len(shape) == 2 and shape[1] == self._width and shape[0] >= short[1] and X.flags.carray:
                    result = short[0](X, shape[0])
                    if result is not None:
                        return result
        return self._run(name, X)

    method.__name__ = name
    method.__qualname__ = f"CompiledModel.{name}"
    method.__doc__ = f"What the source estimator's `{name}` returns for X."
    return method


def _staged_method(name: str) -> Callable[[CompiledModel, Any], Iterator[Any]]:
    def method(self: CompiledModel, X: Any) -> Iterator[Any]:
        stages = self._run(name, X)
        return (stages[:, stage].copy() for stage in range(stages.shape[1]))

    method.__name__ = name
    method.__qualname__ = f"CompiledModel.{name}"
    method.__doc__ = f"""What the source estimator's `{name}` yields for X, the output after each stage. All stages are computed at
    once, [rows, stages, …] (which `bind` gives as one array), and X is checked before the first is asked for."""
    return method


def _no_way(X: Array, n: int) -> None:
    return None


def _itself(X: Array, n: int) -> Array:
    return X
