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

MOST_SELECTED = 96
"""Splits, times the values of a leaf, up to which nested choices are fastest: of 100,000 rows 70 splits take 0.7 ms, the walk 5.1, the scan
1.5; 140 splits 1.2, 5.8 and 1.6. Above, their code takes longer to compile than the others', which models share."""
WORTH_A_SCAN = 128
"""Splits from which on a scan saves more than it costs to compile the first of its kind (0.8 s against 0.4)."""


class TvmCompiler:
    name = "tvm"
    strategies = ("walk", "scan", "select")
    one_launch = True
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy in ("walk", "scan")
        if isinstance(op, CategoryPlanes):
            return True  # until `join_sets`
        return op.level == "tensor" or type(op) in KERNELS

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        splits = int((op.feature >= 0).sum())
        if options.device != "cpu":
            return "walk", "each row of a GPU's thread walks from node to node"
        if splits * op.values.shape[1] <= MOST_SELECTED:
            return "select", f"{splits} splits are tested by vectors of rows sooner than walked"
        if splits < WORTH_A_SCAN:
            return "walk", f"{splits} splits are soon walked, and a scan takes longer to compile"
        if not scannable(op):
            return "walk", "interleaved walks from node to node, for trees of every shape"
        return "scan", "all splits tested for 64 rows at once, faster than walking up to about 1,000 leaves a tree"

    def compile(self, graph: Graph, options: CompileOptions) -> TvmExecutable:
        executable = TvmExecutable(join_sets(graph), options, machine(options.device, options.target))
        if executable.machine.cuda:
            executable.compile_all()
        return executable


COMPILER = TvmCompiler()
