"""The ONNX backend: the graph as a ModelProto, run by ONNX Runtime."""

from __future__ import annotations

from hbc.compiler.base import CompileOptions
from hbc.compiler.onnx import tensor  # noqa: F401 (registers the emitters)
from hbc.compiler.onnx.builder import emittable
from hbc.compiler.onnx.session import OnnxExecutable
from hbc.ir.graph import Graph, Operator


class OnnxCompiler:
    name = "onnx"
    strategies: tuple[str, ...] = ()
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        return emittable(op)

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        return "tree_trav", "the only one so far"

    def compile(self, graph: Graph, options: CompileOptions) -> OnnxExecutable:
        return OnnxExecutable(graph, options)


COMPILER = OnnxCompiler()
