"""A variant of a model: one graph, for one combination of input dtypes, from its plan to the compiled code."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hbc.compiler.base import About, Direct, Executable
from hbc.ir.graph import Graph
from hbc.ir.signature import InputSpec, Kinds, Limits
from hbc.process import building
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


@dataclass(frozen=True)
class Plan:
    """A variant after the optimizer: the graph to compile, the passes that made it, and the limits on its input."""

    graph: Graph
    records: Sequence[Record]
    limits: Limits
    """The limits of all methods together."""
    looser: Mapping[str, Limits]
    """The methods that accept more than `limits` say (GradientBoosting's apply takes NaN), with limits of their own."""
    launches: Mapping[str, Launches]


class Builder(Protocol):
    """Optimizer and compiler behind one door (hbc/builder.py), with the options of `hbc.convert`. It is pickled with the model."""

    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str: ...

    def settings(self) -> dict[str, Any]:
        """The options as JSON."""
        ...

    def plan(self, graph: Graph) -> Plan: ...

    def compile(self, plan: Plan) -> Executable: ...

    def export(self, graph: Graph, path: str, about: About, methods: Sequence[str] | None, chosen: Mapping[str, Any]) -> None:
        """Write some methods of a graph (None: all) to a file, with the options that the caller has `chosen`."""
        ...

    def restore(self, data: bytes) -> Any:
        """The CompiledModel of an artefact's bytes, with these options."""
        ...


class Variant:
    """One graph of a model. It is optimized when something first asks for its plan, and compiled at the first call that needs it."""

    def __init__(self, kinds: Kinds, graph: Graph, spec: InputSpec, builder: Builder) -> None:
        self.kinds = kinds
        self.graph = graph
        self.seconds: float | None = None
        """The time that compiling took; None before."""
        self._spec = spec
        self._builder = builder
        self._plan: Plan | None = None
        self._ready: Ready | None = None

    @property
    def plan(self) -> Plan:
        return self._plan or self._optimize()

    @building
    def _optimize(self) -> Plan:
        if self._plan is None:
            self._plan = self._builder.plan(self.graph)
        return self._plan

    @property
    def ready(self) -> Ready:
        return self._ready or self._compile()

    @building
    def _compile(self) -> Ready:
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
