"""The reference backend, which computes each operator by its own `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

from hbc.compiler.base import CompileOptions, Compiler, Executable
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Operator
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.process import SOURCE, show


@record
class NumpyExecutable(Executable):
    """Evaluates a graph in numpy."""

    graph: Graph
    takes_coded_strings = True

    def run(self, method: str, arrays: Sequence[Array]) -> list[Array]:
        return self.graph.evaluate(*arrays, methods=[method])[method]

    def run_together(self, methods: Sequence[str], arrays: Sequence[Array]) -> list[list[Array]]:
        """See hbc.compiler.base.Executable."""
        found = self.graph.evaluate(*arrays, methods=methods)
        return [found[method] for method in methods]


class NumpyCompiler(Compiler):
    """The compiler of the backend "numpy", which has nothing to compile."""

    name = "numpy"
    strategies = ("reference",)
    handles_strings = True

    def supports(self, op: Operator) -> bool:
        # A tree ensemble with one of the paper's strategies is lowered to tensor operators, so that this backend can check the strategies.
        return getattr(op, "strategy", "reference") == "reference"

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        return "reference", "numpy evaluates the operator itself"

    def compile(self, graph: Graph, options: CompileOptions) -> NumpyExecutable:
        if options.device != "cpu":
            raise BackendUnavailableError(backend=self.name, reason=f"it has no device {options.device!r}, only 'cpu'")
        show(SOURCE, lambda: f"# run by numpy, operator by operator\n{graph}")
        return NumpyExecutable(graph)


COMPILER = NumpyCompiler()
