"""The one file that sees every room: parser → optimizer → compiler → CompiledModel."""

from __future__ import annotations

import functools
import io
import operator
import os
import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hbc.compiler.base import (
    EXPORTS,
    CompileOptions,
    Compiler,
    Executable,
    backend_name,
    completed,
    is_available,
    known_backends,
    load_compiler,
)
from hbc.errors import (
    ArtifactError,
    BackendUnavailableError,
    Culprit,
    InvalidInputError,
    NotFittedError,
    UnsupportedOperatorError,
)
from hbc.ir.graph import Graph, Node, Operator
from hbc.ir.rewrite import rewrite
from hbc.ir.signature import Kinds, Sample
from hbc.ir.soundness import require_sound
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops import import_all
from hbc.optimizer import tuned
from hbc.optimizer.limits.checks import input_limits, looser_limits, lower_accepted
from hbc.optimizer.partition import Partition, partition
from hbc.optimizer.pipeline import optimize
from hbc.optimizer.strategy import worth_measuring
from hbc.parser import files, registry
from hbc.parser.parse import parse
from hbc.process import cpus
from hbc.runtime import artifact, tuning
from hbc.runtime.host import HostedExecutable
from hbc.runtime.inputs import describe
from hbc.runtime.model import CompiledModel
from hbc.runtime.tuning import Tuning
from hbc.runtime.variant import Launches, Plan

LOWERED_STRATEGIES = ("gemm", "tree_trav", "perf_tree_trav")
"""The paper's, which become tensor operators and so run on every backend."""


def convert(
    model: Any,
    backend: str = "tvm",
    X: Any = None,
    device: str = "cpu",
    *,
    strategy: str = "auto",
    batch_size: int | None = None,
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile a fitted model.

    model: a fitted scikit-learn, LightGBM or XGBoost model (`hbc.supported_operators()` lists the classes); or an ONNX model as a
        ModelProto, its bytes, or the path of an .onnx file. Its methods: a classifier's label and probabilities are `predict` and
        `predict_proba` (a matrix, also of a ZipMap; `classes_` names its columns), a lone output is `predict` (and `transform`, unless
        the graph says that it is a prediction), any other output has a method of its own name. Values are those of ONNX Runtime,
        for X cast to the dtypes that the graph declares.
    backend: "tvm", "torch", "torchscript", "onnx" or "numpy" (`hbc.backends()` says which are installed).
    X: a sample of the input, needed only where the model does not know its own columns' names or dtypes.
    device: "cpu", "cuda" or "cuda:1".
    strategy: how tree ensembles run, one of `hbc.strategies(backend)`. batch_size: rows of a call, a hint for that choice; without it,
        what is good for one row to 100,000. What `hbc.tune` found for such a model on this machine goes before the estimates of "auto".
    threads: of this model's calls. target: a TVM target, for cross-compiling.

    Raises UnsupportedOperatorError (with every culprit), NotFittedError, BackendUnavailableError, InvalidInputError, ValueError.
    """
    name = backend_name(backend)
    options = CompileOptions(
        _device(device), _positive("threads", threads), _target(target, name), _positive("batch_size", batch_size)
    )
    builder = Builder(name, options, _strategy(strategy, name))
    model = _opened(model)
    _require_model(model)
    parsed = parse(model, None if X is None or registry.items_of(model) else describe(X))
    main = _main_variant(list(parsed.variants), parsed.sample)
    builder = builder.as_tuned(parsed.variants[main])
    return CompiledModel(parsed.info, parsed.spec, parsed.variants, builder, main)._prepare(compile=True)


def load(path: str | os.PathLike[str], device: str | None = None, backend: str | None = None) -> CompiledModel:
    """Read what `CompiledModel.save` wrote, and compile it: for the device and backend it was saved with, or for others.

    Needs neither scikit-learn nor the library that trained the model. Raises ArtifactError for a file that is no saved model,
    FileNotFoundError where there is none, BackendUnavailableError.
    """
    if backend is not None:
        backend_name(backend)
    name = os.fspath(path)
    if not isinstance(name, str):
        name = os.fsdecode(name)
    contents = _read(Path(name), name)
    try:
        saved = Builder.from_settings(contents.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(path=name, found=f"settings that cannot be read ({error})", expected="what hbc saved") from error
    builder = saved.moved(backend, device)
    try:
        return _model(contents, builder.as_tuned(contents.graphs[contents.main]))._prepare(compile=True)
    except BackendUnavailableError as error:
        advice = f"It was saved for {saved.backend!r} on {saved.device!r}; choose others with hbc.load(path, device, backend)."
        raise BackendUnavailableError(**{**error.facts, "advice": advice}) from error


def tune(
    model: Any,
    rows: Iterable[int] = (1, 1_000, 100_000),
    X: Any = None,
    *,
    backend: str = "tvm",
    device: str = "cpu",
    threads: int | None = None,
    target: Mapping[str, Any] | None = None,
) -> Tuning:
    """Measure how a model runs fastest on this machine: the strategies of its tree ensembles, then threads and blocks of rows.

    model: what `hbc.convert` takes, with the options that follow, or a CompiledModel, which has its own. rows: of the calls that matter.
    X: some of the data; without it, rows are random, around the thresholds of the trees. A model of strings or frames needs it.

    The answers of all candidates are compared. The winner is faster than "auto" by more than noise, and slower for none of `rows`;
    otherwise "auto" stays. For a known `batch_size` it is what beats "auto" at the nearest of `rows`, told of them. The result has the
    tuned `model`, and `hbc.convert` and `hbc.load` choose the same for models of the same structure (all but the values of leaves): it
    is kept in $HBC_CACHE, or `hbc` in $XDG_CACHE_HOME or ~/.cache. On one thread its processor time counts, else that on the wall:
    then the machine should be idle.

    Raises what `hbc.convert` does; InvalidInputError where random rows will not do.
    """
    counts = _rows(rows)
    usual = model if isinstance(model, CompiledModel) else convert(model, backend, X, device, threads=threads, target=target)
    own, graph = usual._builder, usual.graph
    assert isinstance(own, Builder)
    builder = replace(own, strategy="auto", choice=None, note="")
    data = _data(usual, max(counts)) if X is None else X
    candidates, left_out = builder.candidates(graph, counts)
    schedules: list[dict[str, Any]] = [{"block": block} for block in builder.compiler.blocks]
    if builder.options.threads is None and builder.device == "cpu" and cpus() > 1:
        schedules.append({"threads": 1})
    found = tuning.search(
        lambda choice: _rebuilt(usual, replace(builder, choice=choice)),
        [tuned.Choice(name) for name in candidates],
        [tuned.Choice("auto", batch=count) for count in counts],
        lambda best: [replace(best, **schedule) for schedule in schedules],
        data,
        counts,
        tuning.clock_of(builder.device, builder.options.threads),
    )
    note = f"hbc tune, {time.strftime('%Y-%m-%d')}: {found.summary()}"
    kept = tuned.Tuned(counts, found.overall, found.each, note)
    path = tuned.keep(kept, graph, builder.backend, builder.options)
    chosen = _rebuilt(usual, builder.chosen(kept))._prepare(compile=True)
    return Tuning(chosen, counts, found.seconds, str(found.overall), {**left_out, **found.left_out}, path)


def backends() -> dict[str, bool]:
    """Every backend by name, and whether the libraries it needs are installed (they are not imported)."""
    return {name: is_available(name) for name in known_backends()}


def supported_operators() -> list[str]:
    """The dotted names of every class that converts, sorted."""
    for library in registry.MODULES:
        registry.load_library(library)
    registry.load_plugins()
    return sorted(registry.CONVERTERS)


def strategies(backend: str) -> tuple[str, ...]:
    """The strategies for tree ensembles that a backend knows. Raises ValueError, BackendUnavailableError."""
    compiler = load_compiler(backend_name(backend))
    return tuple(dict.fromkeys(("auto", *LOWERED_STRATEGIES, *compiler.strategies)))


def self_test(backend: str) -> None:
    """Compile and run a small graph. Raises whatever goes wrong (`hbc doctor`)."""
    from hbc.ir.graph import Input
    from hbc.ir.types import N
    from hbc.ops import tensor as t

    x = Input("X", "f32", (N, 2))()
    graph = Graph((x,), {"transform": (t.add(x, np.array([1, 2], np.float32)),)})
    builder = Builder(backend_name(backend), CompileOptions())
    (result,) = builder.compile(builder.plan(graph)).run("transform", [np.ones((3, 2), np.float32)])
    if not np.array_equal(result, np.array([[2, 3]] * 3, np.float32)):
        raise RuntimeError(f"it computes {np.asarray(result).tolist()} for 1 + [1, 2]")


# --- between the rooms -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Builder:
    """Optimizer and compiler with the options of one model. It is pickled with the model, by its fields."""

    backend: str
    options: CompileOptions
    strategy: str = "auto"
    choice: tuned.Choice | None = None
    """Of `hbc tune`: instead of "auto", and of options that the caller left open."""
    note: str = ""

    @property
    def device(self) -> str:
        return self.options.device

    @property
    def compiler(self) -> Compiler:
        return load_compiler(self.backend)

    def settings(self) -> dict[str, Any]:
        options = self.options
        settings = {
            "backend": self.backend,
            "device": options.device,
            "strategy": self.strategy if self.choice is None else self.choice.strategy,
            "threads": options.threads,
            "batch_size": options.batch_size,
            "target": None if options.target is None else dict(options.target),
        }
        if self.choice is not None:
            settings["tuned"] = {**asdict(self.choice), "note": self.note, "machine": tuned.this_machine()}
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Builder:
        name = str(settings["backend"])
        target, threads, batch = settings["target"], settings["threads"], settings["batch_size"]
        options = CompileOptions(
            _device(settings["device"]), _positive("threads", threads), _target(target, name), _positive("batch_size", batch)
        )
        if not isinstance(settings["strategy"], str):
            raise ValueError(f"strategy {settings['strategy']!r}")
        found = settings.get("tuned")
        if found is None:
            return cls(name, options, settings["strategy"])
        numbers = {field: _positive(field, found.get(field)) for field in ("threads", "block", "batch")}
        choice = tuned.Choice(settings["strategy"], **numbers)
        if found["machine"] != tuned.this_machine():  # a strategy carries over to other machines, a schedule does not
            choice = replace(choice, threads=None, block=None)
        return cls(name, options, "auto", choice, str(found["note"]))

    def chosen(self, found: tuned.Tuned) -> Builder:
        """With what `hbc tune` found for the rows of a call that were said."""
        return replace(self, choice=found.choice(self.options.batch_size), note=found.note)

    def as_tuned(self, graph: Graph) -> Builder:
        """If the strategy is "auto", and such a model was tuned on this machine: with that choice."""
        if self.strategy != "auto" or self.choice is not None:
            return self
        found = tuned.find(graph, self.backend, self.options, strategies(self.backend))
        return self if found is None else self.chosen(found)

    @property
    def effective(self) -> CompileOptions:
        """The caller's options, and what `hbc tune` chose where these leave it open."""
        return self.options if self.choice is None else self.choice.applied(self.options)

    def candidates(self, graph: Graph, rows: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """The strategies to be measured: "auto", and those that are not hopeless by the estimates; the others, each with a reason."""
        return worth_measuring(self.compiler, graph.nodes, self.options, rows, strategies(self.backend)[1:])

    def moved(self, backend: str | None, device: str | None) -> Builder:
        """For another backend or device. What only the old backend understands is left behind."""
        options = self.options if device is None else replace(self.options, device=_device(device))
        name = self.backend if backend is None else backend_name(backend)
        if name == self.backend:
            same = options.device == self.options.device
            return replace(self, options=options, choice=self.choice if same else None, note=self.note if same else "")
        strategy = self.strategy if self.strategy in ("auto", *LOWERED_STRATEGIES) else "auto"
        return Builder(name, replace(options, target=None), strategy)

    def plan(self, graph: Graph) -> Plan:
        strategy = self.strategy if self.choice is None else self.choice.strategy
        optimized = optimize(graph, self.compiler, self.effective, strategy, self.note)
        launches = _launches(optimized.graph, self.compiler)
        limits = lower_accepted(input_limits(graph), self.compiler)
        looser = {method: lower_accepted(limits, self.compiler) for method, limits in looser_limits(graph).items()}
        return Plan(optimized.graph, optimized.records, limits, looser, launches)

    def compile(self, plan: Plan) -> Executable:
        compiler = self.compiler
        makes_rows = _makes_rows(plan.graph)
        if compiler.handles_strings and not makes_rows:
            return self._compiled(plan.graph)
        parts = partition(plan.graph)
        device = self._compiled(parts.device) if parts.device.outputs else None
        if device is not None and parts.before is None and not parts.after:
            return device
        parts = parts.with_host(functools.partial(compiler.on_host, options=self.effective))
        whole = None
        if compiler.writes_strings and not makes_rows and not any(node.op.in_numpy for node in plan.graph.nodes):
            whole = functools.partial(compiler.export_graph, plan.graph)
        methods, in_blocks = frozenset(parts.device.outputs), _makes_rows_of_much(plan.graph)
        return HostedExecutable(parts.before, device, methods, parts.after, parts.labels, whole, in_blocks)

    def _compiled(self, graph: Graph) -> Executable:
        return completed(self.compiler.compile(graph, self.effective), Executable)  # type: ignore[type-abstract]

    def export(self, graph: Graph, built: Executable, path: str) -> None:
        suffix = Path(path).suffix.lower()
        own = suffix in self.compiler.exports
        if not own and suffix not in EXPORTS:
            kinds = ", ".join(dict.fromkeys([*EXPORTS, *self.compiler.exports]))
            raise ValueError(
                f"{path}: cannot export {suffix or 'a file without a suffix'}; known are {kinds}. save() takes any name."
            )
        if not Path(path).absolute().parent.is_dir():
            raise ArtifactError(path=path, found="no such folder", expected="an existing folder to write to")
        graph, parsed = rewrite(graph, _as_arrays), graph
        writer = self if own else self.moved(EXPORTS[suffix], "cpu")
        numeric = [method for method, group in graph.outputs.items() if all(node.type.dtype != "str" for node in group)]
        takes_strings = any(node.type.dtype == "str" for node in graph.inputs)
        if len(numeric) < len(graph.outputs) and numeric and not takes_strings and not writer.writes_strings:
            left_out = ", ".join(method for method in graph.outputs if method not in numeric)
            warnings.warn(
                f"{path} has no {left_out}: it returns strings, which {suffix} files cannot hold. Use classes_ with predict_proba.",
                UserWarning,
                stacklevel=3,
            )
            graph = graph.select(*numeric)
        elif writer is self and graph == parsed:
            built.export(path)
            return
        writer.compile(writer.plan(graph)).export(path)

    @property
    def writes_strings(self) -> bool:
        """Whether its files may have strings in them."""
        return self.compiler.handles_strings or self.compiler.writes_strings

    def restore(self, data: bytes) -> CompiledModel:
        return _model(_read(io.BytesIO(data), "pickled model"), self)


def _makes_rows(graph: Graph) -> bool:
    return any(node.op.rows == "makes" for node in graph.nodes)


def _launches(graph: Graph, compiler: Compiler) -> dict[str, Launches]:
    whole = compiler.handles_strings and not _makes_rows(graph)
    parts = Partition(None, graph, {}) if whole else partition(graph)
    found = {}
    for method in graph.outputs:
        device = _n_operators(parts.device.select(method)) if method in parts.device.outputs else 0
        around = [part for part in (parts.before, parts.after.get(method)) if part is not None]
        found[method] = Launches(min(device, 1) if compiler.one_launch else device, sum(map(_n_operators, around)))
    return found


def _n_operators(graph: Graph) -> int:
    return sum(1 for node in graph.nodes if node.inputs)


def _makes_rows_of_much(graph: Graph) -> bool:
    """Whether the host makes Rows of text, or of arrays that are large themselves, or computes such, and may do so for some rows at a
    time."""
    sources = [source for node in graph.nodes if node.op.rows == "makes" for source in node.inputs]
    sources += [node for node in graph.nodes if node.op.in_numpy]
    return not graph.mixes_rows and any(
        source.type.dtype == "str" or source.type.width * NUMPY_DTYPES[source.type.dtype].itemsize > 1024 for source in sources
    )


def _as_arrays(node: Node) -> Node | None:
    """What files hold instead of matrices that are mostly zeros."""
    if node.op.rows != "makes" or type(node.op).lower is Operator.lower:
        return None
    return node.op.lower(*node.inputs)


def _rebuilt(model: CompiledModel, builder: Builder) -> CompiledModel:
    """The same model with other options."""
    graphs = {kinds: variant.graph for kinds, variant in model.variants.items()}
    return CompiledModel(model.info, model.spec, graphs, builder, model._main)


def _data(model: CompiledModel, rows: int) -> np.ndarray[Any, Any]:
    """Rows to measure with."""
    graph, spec = model.graph, model.spec
    kinds = {node.type.dtype for node in graph.inputs}
    if (
        len(graph.inputs) != 1
        or spec.ndim != 2
        or spec.frames_only
        or kinds & {"str"}
        or graph.inputs[0].type.columns != spec.n_features
    ):
        found, advice = "no X", "Rows of strings, frames or columns of several dtypes cannot be made up."
        raise InvalidInputError(found=found, expected="some of the data that the model is for", advice=advice)
    data = tuned.random_rows(graph, rows)
    try:
        getattr(model, model.methods[0])(data[:2])
    except InvalidInputError as error:
        found, advice = f"no X, and random rows are rejected ({error})", "Pass some of the data."
        raise InvalidInputError(found=found, expected="rows that the model accepts", advice=advice) from error
    return data


def _model(contents: artifact.Contents, builder: Builder) -> CompiledModel:
    return CompiledModel(contents.info, contents.spec, contents.graphs, builder, contents.main)


def _read(file: Any, name: str) -> artifact.Contents:
    import_all()  # graphs are read back by the names of operators
    try:
        return _sound(artifact.read(file, name), name)
    except ArtifactError:
        if not registry.load_plugins():  # an operator of a third party, perhaps
            raise
        if hasattr(file, "seek"):
            file.seek(0)
        return _sound(artifact.read(file, name), name)


def _sound(contents: artifact.Contents, name: str) -> artifact.Contents:
    try:
        for graph in contents.graphs.values():
            require_sound(graph)
    except (ValueError, IndexError) as error:
        expected = "what CompiledModel.save wrote"
        raise ArtifactError(path=name, found=f"a damaged model ({error})", expected=expected) from error
    return contents


def _main_variant(variants: list[Kinds], sample: Sample | None) -> Kinds:
    """The variant to compile first: the sample's dtypes, or float32."""
    if sample is not None:
        for kinds in variants:
            if all(kind in (wanted, "unread") for kind, wanted in zip(kinds, sample.kinds, strict=True)):
                return kinds
        numbers = set(sample.kinds) - {"str"}
        wanted = next(iter(numbers)) if len(numbers) == 1 else "f64"
    else:
        wanted = "f32"
    return next((kinds for kinds in variants if set(kinds) - {"str", "unread"} <= {wanted}), variants[0])


# --- arguments ---------------------------------------------------------------------------------------------------------


def _device(device: Any) -> str:
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device.lower()):
        raise ValueError(f"unknown device {device!r}; known are 'cpu', 'cuda' and 'cuda:N'")
    return device.lower()


def _positive(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer or None, found {value!r}")
    return number


def _rows(rows: Any) -> tuple[int, ...]:
    try:
        counts = sorted({operator.index(count) for count in rows})
    except TypeError:
        counts = []
    if not counts or counts[0] < 1:
        raise ValueError(f"rows must be positive integers, such as (1, 1000, 100000), found {rows!r}")
    return tuple(counts)


def _target(target: Any, backend: str) -> dict[str, Any] | None:
    if target is None:
        return None
    if not isinstance(target, Mapping):
        raise ValueError(f"target must be a dict such as {{'kind': 'llvm', 'mtriple': 'aarch64-linux-gnu'}}, found {target!r}")
    if not load_compiler(backend).takes_target:
        raise ValueError(f"backend {backend!r} takes no target: it compiles for this machine only. Backend 'tvm' takes one.")
    return dict(target)


def _strategy(strategy: Any, backend: str) -> str:
    known = strategies(backend)
    if strategy not in known:
        raise ValueError(f"unknown strategy {strategy!r}; backend {backend!r} has {', '.join(known)}")
    return str(strategy)


def _opened(model: Any) -> Any:
    """The model itself, where an ONNX model is given by its bytes or its path."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return files.read_onnx(bytes(model))
    if isinstance(model, (str, os.PathLike)) and os.fspath(model).lower().endswith(".onnx"):
        return files.read_model(Path(model))
    return model


def _require_model(model: Any) -> None:
    """Refuse at once what is no fitted model at all, in words that fit it better than 'no converter is registered'."""
    if isinstance(model, type):
        raise NotFittedError(operator=f"{registry.public_name(model)} (a class, not an instance of it)")
    name = registry.public_name(type(model))
    registry.load_converters(name)
    methods = ("fit", "predict", "transform", "SerializeToString")
    if name in registry.CONVERTERS or name in registry.DESCRIPTIONS or any(hasattr(model, method) for method in methods):
        return
    advice = "Pass the fitted estimator itself."
    if isinstance(model, (str, os.PathLike)):
        advice = "Load it first: hbc.load(path) for a model saved by hbc, its own library for another."
    culprit = Culprit(name, "model", "it is not a model: it has neither predict nor transform.", advice)
    raise UnsupportedOperatorError(culprits=[culprit])
