"""CompiledModel: the methods of the source estimator, computed by compiled graphs."""

from __future__ import annotations

import copy
import functools
import io
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from hbc.arguments import dtype_of, flag, texts
from hbc.cache.memory import MemoryStore
from hbc.compiler.base import EXPORTS, About
from hbc.errors import Culprit, UnsupportedOperatorError, shown
from hbc.ir.graph import Graph
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import InputSpec, Kinds, ModelInfo
from hbc.ir.store import write_atomically
from hbc.ir.types import NUMPY_DTYPES
from hbc.lazy import cached_property
from hbc.runtime import artifact
from hbc.runtime.calls import ArrayCall, Shared, call_of
from hbc.runtime.contents import Contents
from hbc.runtime.estimator import Estimator, score
from hbc.runtime.handle import Handle
from hbc.runtime.input.intake import Intake
from hbc.runtime.methods import doc_of
from hbc.runtime.options import OPTIONS, with_options
from hbc.runtime.origin import Info, Origin, info_of, noted
from hbc.runtime.variant import Builder, Variant

if TYPE_CHECKING:
    from hbc.runtime.across import Across
    from hbc.runtime.arrow import ArrowMethod
    from hbc.runtime.methods import Methods
    from hbc.runtime.records import RecordHandle
    from hbc.runtime.schema import Schema
else:
    Methods = object  # a model has only the methods of its source: `_class_with` makes them

ELSEWHERE = {
    "to": 'Convert the model with device="cuda", or load it so; module.to("cuda") moves the nn.Module of the torch backend.',
    "model": "module is the nn.Module of the torch backend, and graph has the operators.",
}
"""Attributes of the containers of PyTorch and Hummingbird → what to use here."""
CHOSEN = ("threads", "batch_size", "strategy", "target")
"""The options of `hbc.convert` that are no attributes of a model."""


class CompiledModel(Estimator, Methods):
    """A compiled model. It has the methods of the source estimator, and its `classes_`, `n_features_in_`, `feature_names_in_`.

    `hbc.convert` and `hbc.load` make it. A method takes the X that the source's method takes, [rows, n_features_in_]:
    an array, list, frame, sparse matrix or tensor. It returns a result of the source's shape and dtype. It raises
    InvalidInputError for input that the source rejects, or computes in a way that hbc does not follow (another dtype, for
    example). The model never changes, and may be called from several threads at once.

    scikit-learn's tools take it as a fitted estimator: docs/scikit-learn.md.
    """

    if not TYPE_CHECKING:  # with this function in sight, a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            message = f"'CompiledModel' object has no attribute {name!r}"
            if not name.startswith("_"):
                message += f"; the model has the methods {', '.join(self._calls)}"
            if name in ELSEWHERE:
                message += f". {ELSEWHERE[name]}"
            raise AttributeError(message, name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CHOSEN:
            message = f"{name}: a compiled model never changes. Convert its source again: hbc.convert(model, {name}={value!r})"
            raise AttributeError(message, name=name, obj=self)
        super().__setattr__(name, value)

    def __init__(
        self,
        estimator: ModelInfo,
        spec: InputSpec,
        graphs: Mapping[Kinds, LazyGraph],
        builder: Builder,
        main: Kinds,
        origin: Origin,
    ) -> None:
        self._estimator = estimator
        self._origin = origin
        self.spec = spec
        self.variants = {kinds: Variant(kinds, graph, spec, builder) for kinds, graph in graphs.items()}
        self._main = main
        self._builder = builder
        shared = Shared(estimator, spec, Intake(spec, tuple(graphs)), self.variants, _record_handle)
        self._calls = {method: call_of(method, shared) for method in graphs[main].methods}
        # The generated methods look at these first (see `_method`): the short way of each method by dtype, and the usual number of columns.
        self._short = {method: call.short for method, call in self._calls.items()}
        self._width = spec.n_features
        self._plain = shared.plain
        self._module: Any = None
        for name, value in estimator.attributes.items():
            setattr(self, name, copy.deepcopy(value))
        taken = [method for method in (*self.methods, *estimator.failing) if hasattr(CompiledModel, method)]
        if taken:
            raise ValueError(
                f"{estimator.source}: found the methods {', '.join(taken)}, expected names that CompiledModel does not have."
            )
        library = estimator.options or estimator.source.partition(".")[0]
        self.__class__ = _class_with(CompiledModel, library, self.methods, tuple(estimator.failing), bool(estimator.score))

    @property
    def backend(self) -> str:
        """The name of the backend, such as "tvm"."""
        return self._builder.backend

    @property
    def device(self) -> str:
        """The device that it runs on: "cpu", "cuda" or "cuda:N"."""
        return self._builder.device

    @property
    def graph(self) -> Graph:
        """The graph as parsed, before optimization. It is the graph of the variant that is compiled first: the one for the dtypes of the
        sample given to `hbc.convert`, or for float32."""
        return self.variants[self._main].graph

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the source estimator's methods that can be called."""
        return self.variants[self._main].source.methods

    @cached_property
    def schema(self) -> Schema:
        """The columns that the model takes (names, dtypes, categories) and the results of its methods, as an `hbc.runtime.schema.Schema`.
        It comes from the model itself, also after `hbc.load`."""
        from hbc.runtime.schema import schema_of  # most models are never asked

        return schema_of(self._estimator, self.spec, self.variants, self.variants[self._main])

    @property
    def info(self) -> Info:
        """Where the model comes from: the source class, versions, the time of its conversion, and your own notes."""
        return info_of(self._estimator.source, self.methods, self._origin)

    def _prepare_main(self) -> CompiledModel:
        """The model itself, after compiling the main variant, unless the cache on disk has it. The other variants are only read: they are
        optimized when they are needed, 0.08 s each for 500 trees. Raises ArtifactError for a damaged file, and UnsupportedOperatorError."""
        main = self.variants[self._main]
        main.ready  # noqa: B018
        if main.recalled is None:
            for variant in self.variants.values():
                variant.graph  # noqa: B018
        return self

    def _prepare(self) -> CompiledModel:
        """The model itself, after compiling the main variant, unless the cache on disk has it. The others are optimized and compiled when
        they are needed. Raises UnsupportedOperatorError for an operator that the backend cannot run, in any of them: now, not at a call."""
        self.variants[self._main].ready  # noqa: B018
        for variant in self.variants.values():
            variant.require_runnable()
        return self

    def warm_up(self, methods: str | Sequence[str] | None = None, dtypes: Any = None) -> CompiledModel:
        """The model itself, after compiling methods that would otherwise be compiled at their first call, or finding them in the cache on
        disk.

        methods: the names of the methods, by default all. dtypes: the dtypes of the input's numbers (float32, float64, int64), one or
        several. By default that of the sample given to `hbc.convert`, or float32 without one.

        Raises ValueError for a method or dtype that the model does not have."""
        asked = self.methods if methods is None else self._asked(methods)
        each = dtypes if isinstance(dtypes, (list, tuple, set)) else [dtypes]
        kinds = [self._main] if dtypes is None else [self._kinds_of(dtype) for dtype in each]
        for variant in (self.variants[kind] for kind in kinds):
            for method in asked:
                self._calls[method].warm_up(variant)
        return self

    def _warmed(self, asked: bool | str | Sequence[str]) -> CompiledModel:
        """The model itself, after `warm_up` as `hbc.convert` and `hbc.load` are asked for it: True for all methods, or names of methods."""
        if asked is False:
            return self
        return self.warm_up(None if asked is True else asked)

    def bind(self, method: str, dtype: Any = None) -> Handle:
        """The method as a Handle: a function for arrays of one dtype, which converts nothing and can write into the caller's memory. It is
        meant for servers: `hbc.runtime.handle.Handle`.

        method: one of `methods`. dtype: float32, float64 or int64. By default the dtype of the sample given to `hbc.convert`, or float32
        without one.

        Raises ValueError for a method or dtype that the model does not have, for a method that returns no array (but a frame or a sparse
        matrix, for example), and for a model whose input is no matrix of numbers."""
        call, plain = self._calls[self._method(method)], self._plain
        if call.returns:
            raise ValueError(f"{method} returns {call.returns}, which no memory can be bound to: call the method")
        if not plain:
            raise ValueError(
                "bind: the model takes strings or frames, and no plain matrices of one dtype. Call its methods, or bind_record for records."
            )
        if dtype is None:
            main = self.variants[self._main]
            return Handle(call, next((d for d, variant in plain.items() if variant is main), next(iter(plain))))
        wanted = dtype_of("dtype", dtype, plain)
        if wanted not in plain:
            raise ValueError(f"dtype {wanted} is converted by the model; a handle takes {', '.join(map(str, plain))}")
        return Handle(call, wanted)

    def bind_record(self, method: str) -> RecordHandle:
        """The method as a RecordHandle: a function for single records (dicts or tuples of Python values), many records, or dicts of
        columns, without a frame. It is meant for servers: `hbc.runtime.records.RecordHandle`.

        Raises ValueError for a method that the model does not have."""
        return _record_handle(self._calls[self._method(method)])

    def arrow(self, methods: str | Sequence[str] | None = None, *, class_names: Sequence[str] | None = None) -> ArrowMethod:
        """The method as an ArrowMethod: a function for batches, tables and streams of Arrow, and frames of polars and pandas, which
        returns Arrow: `hbc.runtime.arrow.ArrowMethod`. It needs pyarrow.

        methods: one method or several, whose columns then stand side by side. The input is read once.
        The backends tvm (on a CPU) and numpy also compute once what the methods share. By default "predict", or else
        "transform", or else the first one. class_names: names of the classes for the columns of probabilities, in the order of `classes_`,
        instead of these themselves.

        Columns are called after the method: `predict`; `predict_proba_<class>`; `transform_0`, `transform_1` … where the source gives no
        names; `predict_proba_0_<class>` for the first of several targets. Raises ValueError for a method that the model does not have,
        and for a result that columns cannot hold."""
        from hbc.runtime.arrow import DEFAULT, ArrowMethod  # most models are given no Arrow

        if methods is None:
            methods = next((method for method in DEFAULT if method in self.methods), self.methods[0])
        asked = self._asked(methods)
        return ArrowMethod(self, [self._calls[method] for method in asked], class_names)

    def across(self, devices: Sequence[str]) -> Across:
        """The model on several GPUs, which share the rows of a call: `hbc.runtime.across.Across`. It is meant for batches of 100,000 rows
        and more.

        devices: the GPUs, such as ["cuda:0", "cuda:1"]. The model itself may be on the CPU, or on one of them.

        Raises ValueError for devices that are no different GPUs, and for a backend that does not compute a row to the same bits in every
        batch (only tvm does). Raises BackendUnavailableError for a GPU that is not there."""
        from hbc.runtime.across import Across  # most computers have fewer

        names = [devices] if isinstance(devices, str) else devices
        return Across([self._with(builder)._prepare_main() for builder in self._builder.for_cards(names)])

    # --- saving, copying -----------------------------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        metadata: Mapping[str, Any] | None = None,
        compress: bool = False,
        code: str | Sequence[str] = (),
    ) -> None:
        """Write the model to one file, for `hbc.load`. Reading it needs neither scikit-learn nor the library that trained the
        model. It holds no pickle. The file appears whole or not at all.

        metadata: notes of your own, a dict of strings, numbers, lists and dicts, which `info` shows. None: those that the model has.
        compress: the file is smaller (a third for trees) and takes longer to load. docs/artefacts.md describes the format.
        code: levels of processors to put compiled code for into the file: "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", one or several.
        It has all methods for all dtypes. `hbc.load` uses it only if it is told to trust the file.

        Raises ArtifactError for notes that are not JSON, or if the file cannot be written; ValueError for a suffix of files that `export`
        writes, for an unknown level, and for a model whose compiled code cannot be saved (of another backend than tvm, or for GPUs)."""
        name, suffix = os.fspath(path), os.path.splitext(path)[1].lower()
        if suffix in EXPORTS:
            raise ValueError(
                f"found {name!r}, expected a name such as 'model.hbc'. To write a {suffix} file, use export({name!r})."
            )
        notes = None if metadata is None else noted(metadata)
        levels = texts("code", code, "the name of a level of processors, or several")
        data = self._bytes(notes, flag("compress", compress), self._code(levels))
        write_atomically(path, lambda file: file.write(data))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        methods: str | Sequence[str] | None = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        """Write the compiled code to a file for use without hbc: `.onnx`, `.pt` (TorchScript), `.pt2` (torch.export), or a C
        library `.so`, `.o` or `.a`.

        methods: the methods that the file holds, in this order. By default all that such a file can hold.
        dtype: the dtype of the numbers in its input: float32, float64 or int64. By default that of the sample given to `hbc.convert`, or
        float32 without one.
        options: what the suffix takes besides.

        Raises ValueError for another suffix or option, and for what such a file cannot hold."""
        asked = None if methods is None else self._asked(methods)
        given_back = [method for method, output in self._estimator.frames.items() if max(output.origins, default=-1) >= 0]
        cut = [method for method in given_back if method in (asked or self.methods)]
        if cut:
            raise ValueError(
                f"{', '.join(cut)} returns a frame with unchanged columns of the input, which a file of tensors cannot express. Convert "
                'the model after set_output(transform="default"), or save() it.'
            )
        kinds = self._main if dtype is None else self._kinds_of(dtype)
        self._builder.export(
            self.variants[kinds].graph, os.fspath(path), About(self._estimator, self.spec, kinds), asked, options
        )

    @property
    def module(self) -> Any:
        """The model as an `nn.Module` of PyTorch, for the backends "torch" and "torchscript". It is made at the first use, and is the
        caller's own: to move it (`.to("cuda")`) or to train it changes nothing of this model.

        Called, it is the first of `predict_proba`, `transform` and `predict` that the model has; all methods are attributes (`apply` is
        `apply_`). It takes a tensor of the dtype of the sample given to `hbc.convert` (float32 without one), and raises InvalidInputError
        for another dtype or width. It tests nothing else of it, and has gradients where the model is made of smooth functions. Raises
        ValueError for another backend, and for a model of strings."""
        if self._module is None:
            self._module = self._builder.module(self.graph, About(self._estimator, self.spec, self._main))
        return self._module

    def _asked(self, methods: str | Sequence[str]) -> Sequence[str]:
        """The method or methods, as a list. Raises ValueError if there are none, for one that the model does not have, and for what are no
        names."""
        expected = f"some of {', '.join(self.methods)}"
        names = texts("methods", methods, expected)
        unknown = [name for name in names if name not in self.methods]
        if unknown or not names:
            raise ValueError(f"methods: found {', '.join(map(repr, unknown)) or 'nothing'}, expected {expected}")
        return names

    def _method(self, method: str) -> str:
        """The name of a method. Raises ValueError for one that the model does not have, and for what is no name."""
        if not isinstance(method, str) or method not in self._calls:
            found = repr(method) if isinstance(method, str) else shown(method)
            raise ValueError(f"method: found {found}, expected one of {', '.join(self.methods)}")
        return method

    def _kinds_of(self, asked: Any) -> Kinds:
        """The variant whose numbers all have this dtype. Raises ValueError if there is none, and for what is no dtype."""
        dtype = dtype_of("dtype", asked, ("float32", "float64", "int64"))
        numbers = {kinds: set(kinds) - {"str", "unread"} for kinds in self.variants}
        for kinds, found in numbers.items():
            if {NUMPY_DTYPES[kind] for kind in found} == {dtype}:  # type: ignore[index]
                return kinds
        known = dict.fromkeys(str(NUMPY_DTYPES[kind]) for found in numbers.values() if len(found) == 1 for kind in found)  # type: ignore[index]
        raise ValueError(f"dtype {dtype}: the model is compiled for {', '.join(known) or 'columns of several dtypes'}")

    def _with(self, builder: Builder) -> CompiledModel:
        """The same model with the options of another builder."""
        graphs = {kinds: variant.source for kinds, variant in self.variants.items()}
        return CompiledModel(self._estimator, self.spec, graphs, builder, self._main, self._origin)

    def _code(self, levels: Sequence[str]) -> dict[str, MemoryStore]:
        """Level → the compiled code of all variants and methods for such processors. Raises ValueError."""
        builders = {level: self._builder.for_level(level) for level in levels}
        for builder, _ in builders.values():
            model = self._with(builder)
            for variant in model.variants.values():
                variant.ready  # noqa: B018
                for call in model._calls.values():
                    call.warm_up(variant)
        return {level: store for level, (_, store) in builders.items()}

    def _bytes(
        self,
        metadata: dict[str, Any] | None = None,
        compress: bool = False,
        code: Mapping[str, MemoryStore] = types.MappingProxyType({}),
    ) -> bytes:
        buffer = io.BytesIO()
        graphs = {kinds: variant.source for kinds, variant in self.variants.items()}
        origin = self._origin if metadata is None else replace(self._origin, metadata=metadata)
        contents = Contents(self._estimator, self.spec, graphs, self._main, self._builder.settings(), origin)
        artifact.write(buffer, contents, compress, code)
        return buffer.getvalue()

    def __reduce__(self) -> tuple[Any, ...]:
        # Executables hold compiled code, which cannot be pickled. The copy compiles each variant at its first call.
        return self._builder.restore, (self._bytes(),)

    def __copy__(self) -> CompiledModel:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        # Graphs and executables never change: the copies share them.
        other = self.__copy__()
        other._module = None
        for name in self._estimator.attributes:
            setattr(other, name, copy.deepcopy(getattr(self, name), memo))
        memo[id(self)] = other
        return other

    # --- looking -------------------------------------------------------------------------------------------------------

    def explain(self, html: bool = False) -> str:
        """A report on the model, as text or as an HTML document: the input, the variants by dtype, the
        passes that changed something and their times, the functions that a call starts, the strategy
        of every tree ensemble with its reason, and the operators before and after the passes."""
        from hbc.runtime import report  # 20 ms

        return report.page(self._facts()) if flag("html", html) else report.explain(self._facts())

    def __repr__(self) -> str:
        return f"<CompiledModel of {self._estimator.source} for {self.backend} on {self.device}: {', '.join(self.methods)}>"

    def _repr_html_(self) -> str:
        from hbc.runtime import report

        return report.html(self._facts())

    def _facts(self) -> Any:
        from hbc.runtime import report

        variants, settings = tuple(self.variants.values()), self._builder.settings()
        return report.Facts(
            self._estimator,
            self.spec,
            variants,
            self.variants[self._main],
            self.backend,
            self.device,
            settings,
            self._builder.code_note,
        )


def _record_handle(call: ArrayCall) -> RecordHandle:
    from hbc.runtime.records import RecordHandle  # most models are given no records

    return RecordHandle(call)


@functools.cache
def _class_with(
    base: type[CompiledModel], library: str, methods: tuple[str, ...], failing: tuple[str, ...], scored: bool
) -> type[CompiledModel]:
    """A subclass of CompiledModel with exactly these methods, with the options of the source's library, and perhaps `score`. They are real
    methods, so that Python finds them fast, and `dir` and `help` show them. The methods in `failing` raise UnsupportedOperatorError."""
    namespace: dict[str, Any] = {"__doc__": base.__doc__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    for method in methods:
        namespace[method] = _staged_method(method) if method.startswith("staged_") else _method(method, library)
    for method in failing:
        namespace[method] = _failing_method(method)
    if scored:
        namespace["score"] = score
    return types.new_class(base.__name__, (base,), exec_body=lambda body: body.update(namespace))


def _failing_method(name: str) -> Callable[[CompiledModel, Any], Any]:
    def method(self: CompiledModel, X: Any) -> Any:
        reason = f"it fails in the source library too, for every input: {self._estimator.failing[name]}."
        advice = "The model's other methods work; for this one, fit the model on other data."
        raise UnsupportedOperatorError(culprits=[Culprit(self._estimator.source, name, reason, advice)])

    method.__name__ = name
    method.__qualname__ = f"CompiledModel.{name}"
    method.__doc__ = f"Raises UnsupportedOperatorError: the source estimator's `{name}` fails for every input."
    return method


def _method(name: str, library: str) -> Callable[..., Any]:
    method, asked = _plain_method(name), OPTIONS.get((library, name))
    if asked is not None:
        method = with_options(name, method, asked)
    method.__name__ = name
    method.__qualname__ = f"CompiledModel.{name}"
    method.__doc__ = doc_of(name)
    return method


def _plain_method(name: str) -> Callable[[CompiledModel, Any], Any]:
    # This is the path of single rows, about 0.3 µs of Python. For one row, every look at the array costs as much as a level of a tree. So
    # the usual matrix goes straight to the compiled code, which also tests its values.
    def method(self: CompiledModel, X: Any) -> Any:
        quick = self._calls[name].quick  # to call it in the same expression takes 0.03 µs more
        result = quick(X)
        if result is not None:
            return result
        if type(X) is ndarray:
            short = self._short[name].get(X.dtype)
            if short is not None:
                shape = X.shape
                if len(shape) == 2 and shape[1] == self._width and shape[0] >= short[1] and X.flags.carray:
                    result = short[0](X, shape[0])
                    if result is not None:
                        return result
        return self._calls[name](X)

    return method


def _staged_method(name: str) -> Callable[[CompiledModel, Any], Iterator[Any]]:
    def method(self: CompiledModel, X: Any) -> Iterator[Any]:
        stages = self._calls[name](X)
        copied = "clone" if hasattr(stages, "clone") else "copy"  # PyTorch's word, for results on a GPU
        return (getattr(stages[:, stage], copied)() for stage in range(stages.shape[1]))

    method.__name__ = name
    method.__qualname__ = f"CompiledModel.{name}"
    method.__doc__ = f"""Yields the results of the source estimator's `{name}` for X: the output after each stage. All stages are computed
    at once, as an array [rows, stages, …] (a Handle of `bind` returns it). X is checked at the call, before the first stage is taken."""
    return method
