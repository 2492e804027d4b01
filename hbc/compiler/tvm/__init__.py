"""The TVM backend: a method becomes one TIR function, compiled by LLVM (or to CUDA), with the model's arrays as its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hbc.compiler.base import CompileOptions, Compiler
from hbc.compiler.costs import Work, choose, estimates
from hbc.compiler.tvm.costs import STRATEGIES
from hbc.compiler.tvm.host.descent import compiled_descent
from hbc.compiler.tvm.host.terms import compiled_terms
from hbc.compiler.tvm.host.topics import compiled_topics
from hbc.compiler.tvm.nest.elementwise import RUN_AS_THEY_ARE
from hbc.compiler.tvm.plan.operators import EMISSIONS
from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT
from hbc.compiler.tvm.plan.tree_kernels import TREE_KERNELS
from hbc.compiler.tvm.run.executable import TvmExecutable
from hbc.compiler.tvm.run.targets import host_machine, machine
from hbc.compiler.tvm.trees.categories import join_sets
from hbc.compiler.tvm.trees.scan import scannable
from hbc.ir.graph import Graph, Operator
from hbc.ir.rewrite import rewrite
from hbc.ops.functions import Function
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

MOST_SELECTED = {False: 192, True: 384}
"""Splits, times the values of a leaf, up to which nested choices may be chosen, by whether the rows of a call are known. They are the
fastest for many rows (189 splits: 10,000 rows in 0.20 ms, scanned 0.50, walked 0.93), but every model compiles its own, 0.2 s for 192
splits and 0.4 for 384, where the code of the others is shared. One tree of so few is never walked, unless for a few rows: a walk of 110
splits takes 1.4 ms for 100,000 rows of iris, where processors foresee scikit-learn's branches (1.1 ms), and choices 0.7."""
WORTH_A_SCAN = 128
"""Splits from which on a scan saves more than it costs to compile the first of its kind (0.8 s against 0.4), if the rows are not known."""


class TvmCompiler(Compiler):
    """Compiles each method of a graph to one TIR function, and that to machine code or CUDA."""

    name = "tvm"
    strategies = (*TREE_KERNELS, "select")
    one_launch = True
    exports: Mapping[str, tuple[str, ...]] = {".so": ()}
    takes_target = True
    work: Mapping[str, Work] = STRATEGIES
    blocks: tuple[int, ...] = (128, 1024)

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy in TREE_KERNELS
        if isinstance(op, CategoryPlanes):
            return True  # until `join_sets`
        if isinstance(op, Function):
            return op.function in RUN_AS_THEY_ARE
        return op.level == "tensor" or type(op) in EMISSIONS

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        assert isinstance(op, TreeEnsemble)
        return estimates(self.name, op, self.candidates(op, replace(options, batch_size=rows[0])), rows)

    def candidates(self, op: TreeEnsemble, options: CompileOptions) -> Mapping[str, Work]:
        rows, splits = options.batch_size, int((op.leaf_counts - 1).sum())
        known = rows is not None
        choices = splits * op.values.shape[1] if op.output == "sum" else math.inf
        runs = {
            "walk": op.n_trees > 1 or choices > MOST_SELECTED[False] or (rows or ROWS_IN_STATEMENT) < ROWS_IN_STATEMENT,
            "scan": (known or splits >= WORTH_A_SCAN) and scannable(op),
            "select": choices <= MOST_SELECTED[known],
        }
        kernels = (*machine(options.device, options.target).schedule.tree_kernels, "select")
        return {name: self.work[name] for name, can in runs.items() if can and name in kernels}

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        usual = machine(options.device, options.target).schedule.usual_strategy
        return usual or choose(self.name, op, self.candidates(op, options), options.batch_size)

    def compile(self, graph: Graph, options: CompileOptions) -> TvmExecutable:
        executable = TvmExecutable(join_sets(graph), options, machine(options.device, options.target))
        if executable.machine.cuda:
            executable.compile_all()
        return executable

    def on_host(self, graph: Graph, options: CompileOptions) -> Graph:
        where = machine(options.device, options.target)
        where = host_machine() if where.cuda else where
        for compiled in () if where.missing else (compiled_descent, compiled_terms, compiled_topics):
            graph = rewrite(graph, compiled(where))
        return graph


COMPILER = TvmCompiler()
