"""The TVM backend: a method becomes one TIR function, compiled by LLVM (or to CUDA), with the model's arrays as its data."""

from __future__ import annotations

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.executable import TvmExecutable
from hbc.compiler.tvm.kernels import KERNELS
from hbc.compiler.tvm.targets import machine
from hbc.ir.graph import Graph, Operator
from hbc.ops.tree import TreeEnsemble


class TvmCompiler:
    name = "tvm"
    strategies = ("walk",)
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy in self.strategies
        return op.level == "tensor" or type(op) in KERNELS

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        return "walk", "interleaved walks from node to node, for trees of every shape"

    def compile(self, graph: Graph, options: CompileOptions) -> TvmExecutable:
        executable = TvmExecutable(graph, options, machine(options.device, options.target))
        if executable.machine.cuda:
            executable.compile_all()
        return executable


COMPILER = TvmCompiler()
