"""A variant of a model: one graph, for one combination of input dtypes, from its plan to the compiled code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from hbc.cache.memory import MemoryStore
from hbc.compiler.base import About, Direct, Executable, recalls
from hbc.ir.graph import Graph, Node
from hbc.ir.lazy_graph import LazyGraph
from hbc.ir.signature import InputSpec, Kinds, Limits, name_of
from hbc.ir.types import TensorType
from hbc.lazy import record
from hbc.process import PASSES, building, require_compiling_here, show
from hbc.runtime.input.gate import Gate


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
    """How many functions a call of a method starts on the device, and how many operators run in numpy on the host around them."""

    device: int
    host: int


@record
class Facts:
    """What calls must know of a variant besides its compiled code: the limits on its input, and the types of its results."""

    limits: Limits
    """The limits of all methods together."""
    looser: Mapping[str, Limits]
    """The methods that accept more than `limits` say (GradientBoosting's apply takes NaN), with limits of their own."""
    results: Mapping[str, tuple[TensorType, ...]]
    """For each method the types of its results, before the host gives them the source's dtypes."""
    gives_rows: frozenset[str]
    """The methods whose one result is made as Rows."""


@record
class Plan:
    """A variant after the optimizer: the graph to compile, the passes that made it, and what calls must know of it."""

    graph: Graph
    records: Sequence[Record]
    facts: Facts
    launches: Mapping[str, Launches]
    hosted: frozenset[Node]
    """The values of `graph` that the host computes."""


class Recalled(NamedTuple):
    """A variant that was compiled before. place: where it was found, such as "the cache"."""

    facts: Facts
    executable: Executable
    place: str


class Builder(Protocol):
    """Optimizer and compiler behind one door (hbc/builder.py), with the options of `hbc.convert`. It is pickled with the model."""

    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...

    @property
    def code_note(self) -> str:
        """What became of the compiled code in the saved model, in words; "" where there is none."""
        ...

    def settings(self) -> dict[str, Any]:
        """The options as JSON."""
        ...

    def for_cards(self, devices: Sequence[str]) -> Sequence[Builder]:
        """Builders for GPUs that share the rows of a call. Raises ValueError."""
        ...

    def load(self) -> None:
        """Import optimizer and compiler, which the other functions otherwise do at their first use."""
        ...

    def plan(self, graph: Graph) -> Plan: ...

    def runs(self, graph: LazyGraph) -> bool:
        """Whether the backend can run this graph, told without optimizing it. False may mean that only `plan` can tell."""
        ...

    def compile(self, plan: Plan) -> Executable: ...

    def row_test(self, graph: Graph, limits: Limits) -> Executable | None:
        """The test of the values of a variant's input as a method "accepted", a bool for each row: that it surely passes. None where
        no operator can tell."""
        ...

    def recall(self, graph: LazyGraph, compiled: Callable[[], Executable]) -> Recalled | None:
        """The variant of this graph as the saved model or the cache on disk has it, or None. compiled: compiles the variant, for methods
        that are not there."""
        ...

    def keep(self, graph: LazyGraph, plan: Plan, executable: Executable) -> None:
        """Put a variant into the cache on disk, if there is one and if its code can be kept."""
        ...

    def for_level(self, level: str) -> tuple[Builder, MemoryStore]:
        """(the builder of code for a level of processors, where this code goes). Raises ValueError."""
        ...

    def export(self, graph: Graph, path: str, about: About, methods: Sequence[str] | None, chosen: Mapping[str, Any]) -> None:
        """Write some methods of a graph (None: all) to a file, with the options that the caller has `chosen`."""
        ...

    def module(self, graph: Graph, about: About) -> Any:
        """A graph as an `nn.Module` of PyTorch."""
        ...

    def restore(self, data: bytes) -> Any:
        """The CompiledModel of an artefact's bytes, with these options."""
        ...


class Variant:
    """One graph of a model. The cache on disk may have it. Otherwise it is optimized when something first asks for its plan, and
    compiled at the first call that needs it."""

    def __init__(self, kinds: Kinds, source: LazyGraph, spec: InputSpec, builder: Builder) -> None:
        self.kinds = kinds
        self.source = source
        """The graph before the optimizer."""
        self.times = Times()
        self._spec = spec
        self._builder = builder
        self._recalled: Recalled | Literal["not asked"] | None = "not asked"
        self._plan: Plan | None = None
        self._ready: Ready | None = None

    @property
    def graph(self) -> Graph:
        """The graph before the optimizer."""
        return self.source.graph

    @property
    def name(self) -> str:
        """Its name in reports: "f32" where all columns have one dtype, otherwise "f64 × 3 + str × 2"."""
        return name_of(self.kinds)

    @property
    def plan(self) -> Plan:
        return self._plan or self._optimize()

    @building
    def _optimize(self) -> Plan:
        if self._plan is None:
            if recalls(self._builder.backend):
                require_compiling_here()
            start = time.perf_counter()
            self._builder.load()
            self.times.importing = loaded = time.perf_counter() - start
            self._show(f"optimizer and compiler imported in {loaded * 1e3:.1f} ms; passes:")
            self._plan = self._builder.plan(self.graph)
            self.times.optimizing = seconds = time.perf_counter() - start - loaded
            self._show(f"optimized in {seconds * 1e3:.1f} ms")
        return self._plan

    def require_runnable(self) -> None:
        """Raises UnsupportedOperatorError for a graph that the backend cannot run: when the model is converted, not at a call. The graph is
        optimized for it only where nothing less can tell."""
        if self._plan is not None or self.is_built:
            return
        if self._builder.runs(self.source):
            self._show("can run; it is optimized and compiled when it is needed")
        else:
            self._optimize()

    @property
    def device(self) -> str:
        return self._builder.device

    def row_test(self, method: str) -> Executable | None:
        """See Builder.row_test."""
        return self._builder.row_test(self.graph, self.facts.looser.get(method, self.facts.limits))

    def _show(self, text: str) -> None:
        """Print what happens to the variant, if HBC_DEBUG asks for it."""
        show(PASSES, lambda: f"hbc: variant {self.name}: {text}")

    @property
    def recalled(self) -> Recalled | None:
        """The variant as the cache on disk had it when something first asked, or None."""
        return self._recall() if self._recalled == "not asked" else self._recalled  # type: ignore[return-value]

    @building
    def _recall(self) -> Recalled | None:
        if self._recalled == "not asked":
            start = time.perf_counter()
            self._recalled = self._builder.recall(self.source, lambda: self._builder.compile(self.plan))
            self.times.recalling = time.perf_counter() - start
        return self._recalled  # type: ignore[return-value]

    @property
    def facts(self) -> Facts:
        """What calls must know. Raises UnsupportedOperatorError for a graph that the backend cannot run."""
        recalled = self.recalled
        return self.plan.facts if recalled is None else recalled.facts

    @property
    def ready(self) -> Ready:
        return self._ready or self._compile()

    @building
    def _compile(self) -> Ready:
        if self._ready is None:
            recalled = self.recalled
            if recalled is None:
                plan, start = self.plan, time.perf_counter()
                executable = self._builder.compile(plan)
                self._builder.keep(self.source, plan, executable)
                self.times.compiling = time.perf_counter() - start
            else:
                executable = recalled.executable
            executable.named(self.name)
            facts = self.facts
            gates = {method: Gate(limits, self.kinds, self._spec) for method, limits in facts.looser.items()}
            self._ready = Ready(executable, Gate(facts.limits, self.kinds, self._spec), gates)
        return self._ready

    @property
    def is_built(self) -> bool:
        return self._ready is not None


@dataclass
class Times:
    """Seconds that a variant took so far: to be looked for in the cache on disk, to import optimizer and compiler, to be optimized, to be
    compiled."""

    recalling: float | None = None
    importing: float | None = None
    optimizing: float | None = None
    compiling: float | None = None


class Ready:
    """A variant that can be called: its compiled code, and the gates that test the input of its methods."""

    __slots__ = ("_direct", "executable", "gate", "gates", "run", "takes_coded_strings")

    def __init__(self, executable: Executable, gate: Gate, gates: Mapping[str, Gate]) -> None:
        self.executable = executable
        self.run = executable.run
        self.takes_coded_strings = executable.takes_coded_strings
        self.gate = gate
        self.gates = gates
        self._direct: dict[str, Direct | None] = {}

    def gate_of(self, method: str) -> Gate:
        return self.gates.get(method, self.gate)

    def direct(self, method: str) -> Direct | None:
        """The executable's direct function for a method, which also does the whole test of
        its input. None if there is no such function, or if it cannot do the whole test."""
        if method not in self._direct:
            gate = self.gate_of(method)
            self._direct[method] = (
                self.executable.direct(method, gate.fast, gate.missing, gate.accepted) if gate.simple else None
            )
        return self._direct[method]
