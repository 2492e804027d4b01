"""The ONNX backend: the graph as a ModelProto, run by ONNX Runtime."""

from __future__ import annotations

from hbc.compiler.base import CompileOptions
from hbc.compiler.onnx import coupling, linear, nearest, strings, tensor, tree  # noqa: F401 (they register emitters)
from hbc.compiler.onnx.builder import emittable
from hbc.compiler.onnx.session import OnnxExecutable, export
from hbc.ir.graph import Graph, Operator


class OnnxCompiler:
    name = "onnx"
    strategies = (tree.STRATEGY,)
    one_launch = False
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        return emittable(op)

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        # Every strategy is exact; measured, see tree.py.
        if options.device != "cpu":
            return "tree_trav", "the runtime has no kernel for trees on a GPU"
        return tree.STRATEGY, "the runtime's own kernel for trees"

    def export_graph(self, graph: Graph, path: str) -> None:
        """Write a model that computes with strings itself. Raises ValueError."""
        export(graph, path)

    def compile(self, graph: Graph, options: CompileOptions) -> OnnxExecutable:
        return OnnxExecutable(graph, options)


COMPILER = OnnxCompiler()
