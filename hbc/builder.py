"""Optimizer and compiler behind one door: Builder takes a model's graphs to executables and files, and reads saved models back."""

from __future__ import annotations

import functools
import io
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hbc.compiler.base import EXPORTS, About, CompileOptions, Compiler, Executable, backend_name, completed, load_compiler
from hbc.errors import ArtifactError
from hbc.ir.graph import Graph, Node, Operator, gives_rows, takes_rows
from hbc.ir.rewrite import rewrite
from hbc.ir.signature import Limits
from hbc.ir.soundness import require_sound
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops import import_all
from hbc.ops.functions import Function
from hbc.optimizer.limits.checks import input_limits, looser_limits, lower_accepted
from hbc.optimizer.partition import Partition, partition
from hbc.optimizer.pipeline import optimize
from hbc.optimizer.strategy import worth_measuring
from hbc.parser import registry
from hbc.runtime import artifact
from hbc.runtime.contents import Contents
from hbc.runtime.host import HostedExecutable
from hbc.runtime.model import CompiledModel
from hbc.runtime.variant import Launches, Plan
from hbc.tuning import choices

LOWERED_STRATEGIES = ("gemm", "tree_trav", "perf_tree_trav")
"""The paper's strategies. They lower to tensor operators, and so run on every backend."""


def known_strategies(backend: str) -> tuple[str, ...]:
    """The strategies for tree ensembles of a backend, given its canonical name. Raises BackendUnavailableError."""
    return tuple(dict.fromkeys(("auto", *LOWERED_STRATEGIES, *load_compiler(backend).strategies)))


@dataclass(frozen=True)
class Builder:
    """Optimizer and compiler, with the options of one model. It is pickled with the model, by its fields."""

    backend: str
    options: CompileOptions
    strategy: str = "auto"
    choice: choices.Choice | None = None
    """The choice of `hbc tune`. It takes the place of the strategy "auto" and of options that the caller left open."""
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
            settings["tuned"] = {**asdict(self.choice), "note": self.note, "machine": choices.this_machine()}
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Builder:
        name = str(settings["backend"])
        target, threads, batch = settings["target"], settings["threads"], settings["batch_size"]
        options = CompileOptions(
            checked_device(settings["device"]),
            positive("threads", threads),
            checked_target(target, name),
            positive("batch_size", batch),
        )
        if not isinstance(settings["strategy"], str):
            raise ValueError(f"strategy {settings['strategy']!r}")
        found = settings.get("tuned")
        if found is None:
            return cls(name, options, settings["strategy"])
        numbers = {field: positive(field, found.get(field)) for field in ("threads", "block", "batch")}
        choice = choices.Choice(settings["strategy"], **numbers)
        if found["machine"] != choices.this_machine():  # a strategy carries over to other machines, a schedule does not
            choice = replace(choice, threads=None, block=None)
        return cls(name, options, "auto", choice, str(found["note"]))

    def chosen(self, found: choices.Tuned) -> Builder:
        """The builder with the choice of `hbc tune` for calls of `batch_size` rows."""
        return replace(self, choice=found.choice(self.options.batch_size), note=found.note)

    def as_tuned(self, graph: Graph) -> Builder:
        """The builder with the choice of `hbc tune`, if the strategy is "auto"
        and such a model was tuned on this machine. Otherwise itself."""
        if self.strategy != "auto" or self.choice is not None:
            return self
        found = choices.find(graph, self.backend, self.options, known_strategies(self.backend))
        return self if found is None else self.chosen(found)

    @property
    def effective(self) -> CompileOptions:
        """The caller's options, and the choice of `hbc tune` for those that the caller left open."""
        return self.options if self.choice is None else self.choice.applied(self.options)

    def candidates(self, graph: Graph, rows: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """(the strategies to measure: "auto", and the strategies that are not hopeless
        by the estimates; strategy → the reason why it is left out, for the others)."""
        return worth_measuring(self.compiler, graph.nodes, self.options, rows, known_strategies(self.backend)[1:])

    def moved(self, backend: str | None, device: str | None) -> Builder:
        """The builder for another backend or device (None: the same). Options that only the old backend understands are dropped."""
        options = self.options if device is None else replace(self.options, device=checked_device(device))
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
        methods, in_blocks = frozenset(parts.device.outputs), _makes_rows_of_much(plan.graph)
        return HostedExecutable(parts.before, device, methods, parts.after, parts.labels, in_blocks)

    def _compiled(self, graph: Graph) -> Executable:
        return completed(self.compiler.compile(graph, self.effective), Executable)  # type: ignore[type-abstract]

    def export(self, graph: Graph, path: str, about: About, methods: Sequence[str] | None, chosen: Mapping[str, Any]) -> None:
        suffix = Path(path).suffix.lower()
        own = suffix in self.compiler.exports
        if not own and suffix not in EXPORTS:
            kinds = ", ".join(sorted({*EXPORTS, *self.compiler.exports}))
            raise ValueError(
                f"{path}: cannot export {suffix or 'a file without a suffix'}; known are {kinds}. save() takes any name."
            )
        if not Path(path).absolute().parent.is_dir():
            raise ArtifactError(path=path, found="no such folder", expected="an existing folder to write to")
        writer = self if own else self.moved(EXPORTS[suffix], "cpu")
        _require_known(chosen, writer.compiler, suffix, path)
        compiler, options = writer.compiler.for_file(chosen, writer.effective)
        graph = rewrite(parsed := graph if methods is None else graph.select(*methods), _as_arrays)
        if not (compiler.handles_strings or compiler.writes_strings):
            graph = _without_strings(graph, path, about, methods is not None)
        strategy = writer.strategy if writer.choice is None else writer.choice.strategy
        if strategy not in ("auto", *LOWERED_STRATEGIES, *compiler.strategies):
            strategy = "auto"
        graph = optimize(graph, compiler, options, strategy, writer.note).graph
        hosted = sorted(
            {_operator_name(node.op) for node in graph.nodes if node.op.in_numpy or gives_rows(node) or takes_rows(node)}
        )
        if hosted:
            raise ValueError(
                f"{path}: a part of this model runs in numpy, outside the compiled code: {', '.join(hosted)}. save() it instead."
            )

        def limits(method: str) -> Limits:
            return lower_accepted(input_limits(parsed.select(method), computed=True), compiler)

        compiler.export(graph, options, path, about._replace(limits=limits))

    def restore(self, data: bytes) -> CompiledModel:
        return model_of(read(io.BytesIO(data), "pickled model"), self)


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
    """Whether the rows of the graph should and can be computed in blocks. They should if the host makes Rows from text or
    from arrays of more than 1 KiB a row, or computes with such inputs in numpy. They can if no operator mixes rows."""
    sources = [source for node in graph.nodes if node.op.rows == "makes" for source in node.inputs]
    sources += [node for node in graph.nodes if node.op.in_numpy]
    return not graph.mixes_rows and any(
        source.type.dtype == "str" or source.type.width * NUMPY_DTYPES[source.type.dtype].itemsize > 1024 for source in sources
    )


def _require_known(chosen: Mapping[str, Any], compiler: Compiler, suffix: str, path: str) -> None:
    """Raise ValueError for options that the compiler does not take for files of this suffix."""
    files = compiler.exports
    known = ("methods", "dtype", *(files[suffix] if isinstance(files, Mapping) else ()))
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"{path}: unknown option {', '.join(unknown)}; {suffix} files take {', '.join(known)}")


def _without_strings(graph: Graph, path: str, about: About, asked: bool) -> Graph:
    """The graph for a file that cannot hold strings: without the methods that return them, which warns, or raises ValueError if the caller
    has `asked` for them. Raises ValueError for a graph that takes strings."""
    suffix = Path(path).suffix
    taken = [about.spec.describe_column(i) for i, kind in enumerate(about.kinds) if kind == "str"]
    if any(node.type.dtype == "str" for node in graph.inputs):
        raise ValueError(
            f"{path}: the model takes strings ({', '.join(taken)}), which {suffix} files cannot hold. Export it to .onnx, or save() it."
        )
    texts = [method for method, group in graph.outputs.items() if any(node.type.dtype == "str" for node in group)]
    if not texts:
        return graph
    numeric = [method for method in graph.outputs if method not in texts]
    advice = "Use classes_ with predict_proba." if "predict_proba" in graph.outputs else "Export it to .onnx, or save() it."
    returned = (
        f"{' and '.join(texts)} return{'s' if len(texts) == 1 else ''} strings, which {suffix} files cannot hold. {advice}"
    )
    if asked or not numeric:
        raise ValueError(f"{path}: {returned}")
    warnings.warn(f"{path} leaves out methods: {returned}", UserWarning, stacklevel=4)
    return graph.select(*numeric)


def _operator_name(op: Operator) -> str:
    return f"{type(op).__name__} {op.function!r}" if isinstance(op, Function) else type(op).__name__


def _as_arrays(node: Node) -> Node | None:
    """A rewrite rule for files: the node that gives an array instead of Rows (hbc.ir.rows). None for nodes that stay."""
    if node.op.rows != "makes" or type(node.op).lower is Operator.lower:
        return None
    return node.op.lower(*node.inputs)


# --- saved models ------------------------------------------------------------------------------------------------------


def model_of(contents: Contents, builder: Builder) -> CompiledModel:
    graphs = {kinds: lazy.graph for kinds, lazy in contents.graphs.items()}
    return CompiledModel(contents.info, contents.spec, graphs, builder, contents.main, contents.origin)


def read(file: Any, name: str) -> Contents:
    return artifact.read(file, name, _sound)


def _sound(read: Callable[[], Graph]) -> Graph:
    """The graph that `read` returns, after a check of its indices. The operators that it names are imported first. Raises ArtifactError."""
    import_all()
    try:
        graph = read()
    except ArtifactError:
        if not registry.load_plugins():  # an operator of a third party, perhaps
            raise
        graph = read()
    require_sound(graph)
    return graph


# --- options -----------------------------------------------------------------------------------------------------------


def checked_device(device: Any) -> str:
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device.lower()):
        raise ValueError(f"unknown device {device!r}; known are 'cpu', 'cuda' and 'cuda:N'")
    return device.lower()


def positive(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be a positive integer or None, found {value!r}")
    return number


def checked_target(target: Any, backend: str) -> dict[str, Any] | None:
    if target is None:
        return None
    if not isinstance(target, Mapping):
        raise ValueError(f"target must be a dict such as {{'kind': 'llvm', 'mtriple': 'aarch64-linux-gnu'}}, found {target!r}")
    if not load_compiler(backend).takes_target:
        raise ValueError(f"backend {backend!r} takes no target: it compiles for this machine only. Backend 'tvm' takes one.")
    return dict(target)
