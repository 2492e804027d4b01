"""The backend "onnx": a graph becomes a ModelProto, which ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hbc.compiler.base import CompileOptions, Compiler
from hbc.compiler.costs import Work, choose, estimates, lowerable
from hbc.compiler.onnx import coupling, linear, nearest, strings, tensor, tree  # noqa: F401 (they register emitters)
from hbc.compiler.onnx.builder import emittable
from hbc.compiler.onnx.costs import STRATEGIES
from hbc.compiler.onnx.session import OnnxExecutable, export
from hbc.ir.graph import Graph, Operator
from hbc.ops.tree import TreeEnsemble


class OnnxCompiler(Compiler):
    """Compiles a graph for ONNX Runtime."""

    name = "onnx"
    strategies = (tree.STRATEGY,)
    writes_strings = True
    exports = (".onnx",)
    work: Mapping[str, Work] = STRATEGIES

    def supports(self, op: Operator) -> bool:
        return emittable(op)

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        if options.device != "cpu":
            return "tree_trav", "the runtime has no kernel for trees on a GPU"
        return choose(self.name, op, self.candidates(op, options), options.batch_size)

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        assert isinstance(op, TreeEnsemble)
        return estimates(self.name, op, self.candidates(op, replace(options, batch_size=rows[0])), rows)

    def candidates(self, op: TreeEnsemble, options: CompileOptions) -> Mapping[str, Work]:
        runs = {tree.STRATEGY: True, **lowerable(op)}
        return {name: work for name, work in self.work.items() if runs[name]}

    def export_graph(self, graph: Graph, path: str) -> None:
        """Writes a .onnx file in which also the operators on strings are part of the graph. Raises ValueError for another suffix, and for
        operators that ONNX does not have."""
        export(graph, path)

    def compile(self, graph: Graph, options: CompileOptions) -> OnnxExecutable:
        return OnnxExecutable(graph, options)


COMPILER = OnnxCompiler()
