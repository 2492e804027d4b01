"""The backend "onnx": a graph becomes a ModelProto, which ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hbc.compiler.base import About, CompileOptions, Compiler
from hbc.compiler.costs import OneHotCosts, Work, choose, estimates, lowerable
from hbc.compiler.onnx import coupling, linear, nearest, strings, tensor, tree  # noqa: F401 (they register emitters)
from hbc.compiler.onnx.builder import emittable
from hbc.compiler.onnx.costs import STRATEGIES
from hbc.compiler.onnx.file import OPTIONS, FileOptions, checked, write
from hbc.compiler.onnx.session import OnnxExecutable
from hbc.ir.graph import Graph, Operator
from hbc.ir.types import DType
from hbc.ops.tree import TreeEnsemble


class OnnxCompiler(Compiler):
    """Compiles a graph for ONNX Runtime. `file`: the options of the files that it exports."""

    name = "onnx"
    writes_strings = True
    exports: Mapping[str, tuple[str, ...]] = {".onnx": OPTIONS}
    work: Mapping[str, Work] = STRATEGIES

    def __init__(self, file: FileOptions = FileOptions()) -> None:  # noqa: B008 (it never changes)
        self.file = file
        self.strategies = () if file.plain else (tree.STRATEGY,)

    def supports(self, op: Operator) -> bool:
        return emittable(op, self.file.plain)

    def one_hot_costs(self, outputs: int, dtype: DType) -> OneHotCosts | None:
        return linear.one_hot_costs(outputs, dtype)

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        if options.device != "cpu":
            return "tree_trav", "the runtime has no kernel for trees on a GPU"
        return choose(self.name, op, self.candidates(op, options), options.batch_size)

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        assert isinstance(op, TreeEnsemble)
        return estimates(self.name, op, self.candidates(op, replace(options, batch_size=rows[0])), rows)

    def candidates(self, op: TreeEnsemble, options: CompileOptions) -> Mapping[str, Work]:
        runs = {tree.STRATEGY: not self.file.plain, **lowerable(op)}
        return {name: work for name, work in self.work.items() if runs[name]}

    def for_file(self, chosen: Mapping[str, Any], options: CompileOptions) -> tuple[OnnxCompiler, CompileOptions]:
        return OnnxCompiler(checked(chosen)), options

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        write(graph, path, about, self.file)

    def compile(self, graph: Graph, options: CompileOptions) -> OnnxExecutable:
        return OnnxExecutable(graph, options)


COMPILER = OnnxCompiler()
