"""The TVM backend: a method becomes one TIR function, compiled by LLVM (or to CUDA), with the model's arrays as its data."""

from __future__ import annotations

from hbc.compiler.base import CompileOptions
from hbc.compiler.tvm.categories import join_sets
from hbc.compiler.tvm.executable import TvmExecutable
from hbc.compiler.tvm.kernels import KERNELS
from hbc.compiler.tvm.scan import scannable
from hbc.compiler.tvm.targets import machine
from hbc.ir.graph import Graph, Operator
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

WORTH_A_SCAN = 500
"""Splits of an ensemble from which on scanning it saves more than its longer compilation costs (1.2 s against 0.4)."""


class TvmCompiler:
    name = "tvm"
    strategies = ("walk", "scan")
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy in self.strategies
        if isinstance(op, CategoryPlanes):
            return True  # until `join_sets`
        return op.level == "tensor" or type(op) in KERNELS

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        splits = int((op.feature >= 0).sum())
        if options.device != "cpu":
            return "walk", "each row of a GPU's thread walks from node to node"
        if splits < WORTH_A_SCAN:
            return "walk", f"{splits} splits are soon walked, and a scan takes a second to compile"
        if not scannable(op):
            return "walk", "interleaved walks from node to node, for trees of every shape"
        return "scan", "all splits tested for 64 rows at once, faster than walking up to about 1,000 leaves a tree"

    def compile(self, graph: Graph, options: CompileOptions) -> TvmExecutable:
        executable = TvmExecutable(join_sets(graph), options, machine(options.device, options.target))
        if executable.machine.cuda:
            executable.compile_all()
        return executable


COMPILER = TvmCompiler()
