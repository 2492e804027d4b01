"""The backend "onnx": a graph becomes a ModelProto, which ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hbc.compiler.base import About, CompileOptions, Compiler
from hbc.compiler.costs import Work, choose, estimates, lowerable
from hbc.compiler.onnx import coupling, linear, nearest, strings, tensor, tree  # noqa: F401 (they register emitters)
from hbc.compiler.onnx.builder import build, emittable
from hbc.compiler.onnx.costs import STRATEGIES
from hbc.compiler.onnx.session import OnnxExecutable, versions
from hbc.ir.graph import Graph, Operator
from hbc.ir.store import write_atomically
from hbc.ops.tree import TreeEnsemble


class OnnxCompiler(Compiler):
    """Compiles a graph for ONNX Runtime."""

    name = "onnx"
    strategies = (tree.STRATEGY,)
    writes_strings = True
    exports: Mapping[str, tuple[str, ...]] = {".onnx": ()}
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

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        """Writes a .onnx file with the outputs of all methods. The operators on strings are part of its graph. Raises ValueError for
        operators that ONNX does not have."""
        foreign = sorted({type(node.op).__name__ for node in graph.nodes if not emittable(node.op)})
        if foreign:
            raise ValueError(
                f"{path}: this model cannot be exported, because ONNX has no operator for {', '.join(foreign)}; save() it instead"
            )
        content = build(graph, graph.inputs, versions()).SerializeToString()
        write_atomically(path, lambda file: file.write(content))

    def compile(self, graph: Graph, options: CompileOptions) -> OnnxExecutable:
        return OnnxExecutable(graph, options)


COMPILER = OnnxCompiler()
