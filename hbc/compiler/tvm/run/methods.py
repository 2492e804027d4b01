"""Compiles the methods of a graph: plan, TIR, machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.build import Kernel, build, cost
from hbc.compiler.tvm.nest.row_blocks import with_row_blocks
from hbc.compiler.tvm.plan.plan import make_plan
from hbc.compiler.tvm.run.cache import compiled, compiled_for_elsewhere
from hbc.compiler.tvm.run.executable import AND, Compiled
from hbc.compiler.tvm.run.targets import Machine, compile_module, nvcc
from hbc.compiler.tvm.trees.gpu.choice import schedule_for
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Node, topological
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.store import write_atomically
from hbc.ops.tree import TreeEnsemble
from hbc.process import SOURCE, building, shielded, show, temporary_folder

ELSEWHERE = 'Save the model, and load it on a computer with an NVIDIA GPU: hbc.load(path, device="cuda").'
"""What to do where there is no GPU."""


@dataclass
class GraphMethods:
    """The methods of one graph, for one machine."""

    graph: Graph
    options: CompileOptions
    machine: Machine
    _made_once: dict[Any, Any] = field(default_factory=dict)
    _kernels: dict[tuple[str, bool, int], Kernel] = field(default_factory=dict)
    _module: Any = None
    binary: bytes | None = None
    """The CUDA code as a fat binary, where no device was there to load it."""

    @building
    def kernel(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Kernel:
        """The TIR function of a method, or of several that are computed together."""
        if (method, bounded, len(accepted)) not in self._kernels:
            outputs, dialect = (*map(self._on_own_inputs, accepted), *self._outputs(method)), self.machine.dialect
            schedule = self.machine.schedule
            if self.machine.shares:
                schedule = schedule_for(outputs, schedule, [node for nodes in self.graph.outputs.values() for node in nodes])
            if accepted:  # what conditions and outputs are both computed from is computed once
                outputs = rewrite(Graph((), {"": outputs}), lambda node: None).outputs[""]
            flatten = schedule.flattens and not accepted
            bits, in_trees = schedule.register_bits(dialect), schedule.columns_in_trees
            plan = make_plan(outputs, self.options.block, flatten, bits, len(accepted), in_trees)
            schedule = with_row_blocks(schedule, plan, cost(plan))
            tested = bounded and bool(plan.inputs)
            kernel = build(method.replace(AND, "_and_"), plan, dialect, self._made_once, schedule, tested, missing)
            self._kernels[method, bounded, len(accepted)] = kernel
        return self._kernels[method, bounded, len(accepted)]

    def _outputs(self, method: str) -> list[Node]:
        """The outputs of a method, or of several, one after the other."""
        return [node for name in method.split(AND) for node in self.graph.outputs[name]]

    def _on_own_inputs(self, graph: Graph) -> Node:
        """The one output of a graph, of this one's inputs of the same names."""
        own = {node.op.name: node for node in self.graph.inputs}  # type: ignore[attr-defined]
        inputs = {node: own[node.op.name] for node in graph.inputs}  # type: ignore[attr-defined]
        return substitute(graph.outputs["accepted"], inputs)[0]

    @building
    def compiled(self, method: str, bounded: bool = False, missing: bool = False, accepted: Sequence[Graph] = ()) -> Compiled:
        """See `executable.Methods`."""
        if self.machine.missing is not None and not self.options.elsewhere:
            raise BackendUnavailableError(
                backend="tvm",
                reason=self.machine.missing,
                advice=ELSEWHERE if self.machine.cuda else "Use export() to write the compiled code for another computer.",
            )
        kernel = self.kernel(method, bounded, missing, accepted)
        make = compiled_for_elsewhere if self.options.elsewhere else compiled
        code = make(kernel.function, told(self.machine, self._outputs(method), kernel.few_values))
        show(SOURCE, kernel.function.script)
        if self.machine.cuda:
            show(SOURCE, lambda: cuda_source(code.module))
        return Compiled(kernel, code, kernel.tables)

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

    @building
    def export(self, path: str) -> None:
        """Write a shared library with a packed function of TVM for each method: `method(inputs…, tables…, outputs…, first row, end row)`.

        It is what is exported for CUDA. For CPUs see hbc.compiler.tvm.library. Raises BackendUnavailableError without NVIDIA's driver: TVM
        would write CUDA C then, and the computer that loads it would compile that with --use_fast_math.
        """
        if self.machine.cuda and self.machine.missing is not None:
            raise BackendUnavailableError(
                backend="tvm", reason=f"{self.machine.missing}, without which it writes no compiled code", advice=ELSEWHERE
            )
        module = self.compile_all()
        with temporary_folder() as folder:
            library = folder / "model.so"
            module.export_library(str(library))
            code = library.read_bytes()

        def write(file: IO[bytes]) -> None:
            file.write(code)

        write_atomically(path, write)


def told(machine: Machine, outputs: Sequence[Node], few_values: bool) -> Machine:
    """The machine as LLVM is told of it: with the level of optimization and the care for loops that pay for a method, or for several.

    Scans are as fast at level 2, which takes a tenth less (500 trees of 255 leaves: 2.06 and 2.27 s), deep walks are 14 % slower.
    """
    strategies = {node.op.strategy for node in topological(outputs) if isinstance(node.op, TreeEnsemble)}
    leveled = machine.at_level(2 if strategies == {"scan"} else 3)
    if few_values:
        return leveled.plain_loops
    return leveled.rolled_loops if strategies else leveled


def cuda_source(module: Any) -> str:
    return "\n".join(part.inspect_source() for part in module.imports)
