"""TVM's compiler. Each method becomes one TIR function, compiled by LLVM or to CUDA. The arrays of the model are its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import hbc.compiler.tvm.tir  # noqa: F401  imports tvm
from hbc.compiler.base import LOWERED_STRATEGIES, About, CompileOptions, Compiler, Signature
from hbc.compiler.costs import WITHOUT_AVX512, OneHotCosts, Work, choose, coefficients, estimates, on
from hbc.compiler.tvm.costs import strategies
from hbc.compiler.tvm.host.descent import compiled_descent
from hbc.compiler.tvm.host.terms import compiled_terms
from hbc.compiler.tvm.host.topics import compiled_topics
from hbc.compiler.tvm.kernels.table_sums import ONE_HOT
from hbc.compiler.tvm.library.export import FileOptions, export
from hbc.compiler.tvm.library.processors import usual_target
from hbc.compiler.tvm.nest.elementwise import RUN_AS_THEY_ARE
from hbc.compiler.tvm.nest.schedule import MANY_SETS
from hbc.compiler.tvm.plan.operators import EMISSIONS
from hbc.compiler.tvm.plan.plan import ROWS_IN_STATEMENT
from hbc.compiler.tvm.plan.tree_kernels import TREE_KERNELS
from hbc.compiler.tvm.run.cuda import CudaExecutable
from hbc.compiler.tvm.run.executable import TvmExecutable
from hbc.compiler.tvm.run.methods import ELSEWHERE, GraphMethods
from hbc.compiler.tvm.run.targets import host_machine, machine
from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.compiler.tvm.trees.categories import in_one_column, join_sets, with_sets
from hbc.compiler.tvm.trees.gpu.choice import choose_for_gpu, cycles
from hbc.compiler.tvm.trees.patches.packed_patches import MOST_IN_REGISTERS, columns_of
from hbc.compiler.tvm.trees.patches.patches import patchable
from hbc.compiler.tvm.trees.pieces.pieces_scan import pairing
from hbc.compiler.tvm.trees.ranges.ranges import rangeable, sorting
from hbc.compiler.tvm.trees.scan.one_tree_scan import scans_one
from hbc.compiler.tvm.trees.scan.scan import scannable
from hbc.errors import BackendUnavailableError
from hbc.ir.graph import Graph, Node, Operator
from hbc.ir.rewrite import rewrite
from hbc.ir.types import DType
from hbc.ops.functions import Function
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

MOST_SELECTED = {False: 192, True: 384}
"""Whether the rows of a call are known → the most splits, times the values of a leaf, for the strategy "select" (nested choices).
The number of a leaf is one value.

It is the fastest for many rows: 189 splits take 0.20 ms for 10,000 rows, scanned 0.50, walked 0.93. But each model compiles code of its
own, 0.2 s for 192 splits and 0.4 for 384, while models share the code of the other strategies.

One tree of so few splits is walked only for calls of very few rows. A walk of 110 splits takes 1.4 ms for 100,000 rows of iris, choices
0.7. scikit-learn takes 1.1, since processors predict its branches there."""
WORTH_A_SCAN = 128
"""The fewest splits for a scan if the rows of a call are not known. With fewer, a scan saves less than it costs to compile the first of its
kind (0.8 s; a walk 0.4)."""
WORTH_A_SCAN_OF_ONE = 32
"""The same for one tree (one_tree_scan.py). Nested choices would take as long to compile (0.7 s for 60 splits), and each model's anew."""
WORTH_PATCHES = 512
"""The fewest splits of a tree, on average, for patches. The walk of a smaller tree finds its nodes in the first cache."""
LEAST_SORTED = 64
"""The fewest rows of a call, if they are known, for which ranges come into question."""


def _costs_of(options: CompileOptions) -> str:
    """The name of the target's times in costs.json."""
    where = machine(options.device, options.target)
    if not (where.cuda or where.dialect.wide):
        return WITHOUT_AVX512
    own = on(TvmCompiler.name, where.processor)
    return own if own in coefficients() else TvmCompiler.name


def _patches_pay(op: TreeEnsemble, dialect: Dialect) -> bool:
    """Whether patches come into question on a processor. With AVX2 they do where there are many columns: 100 extra-trees of 4,000 leaves
    take 1.4 (1 row) to 3 times as long walked with 784, and 0.8 (2,000 rows) to 1.1 with 64 (code for Zen 3 on Zen 5)."""
    return dialect.wide or (dialect.avx2 and op.once(columns_of)[0].size > MOST_IN_REGISTERS)


class TvmCompiler(Compiler):
    """Compiles each method of a graph to one TIR function, and the function to machine code or CUDA."""

    name = "tvm"
    strategies = (*TREE_KERNELS, "select")
    one_launch = True
    same_in_every_batch = True
    exports: Mapping[str, tuple[str, ...]] = dict.fromkeys((".so", ".o", ".a"), ("target", "name", "header"))
    writes_strings = True  # of class labels only their places
    takes_target = True
    blocks: tuple[int, ...] = (128, 1024)

    def __init__(self, files: FileOptions | None = None) -> None:
        self.files = files
        """The options of the library that `export` writes; None for code of CUDA, which takes none."""

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy in TREE_KERNELS
        if isinstance(op, CategoryPlanes):
            return True  # `compile` replaces it, see `join_sets`
        if isinstance(op, Function):
            return op.function in RUN_AS_THEY_ARE
        return op.level == "tensor" or type(op) in EMISSIONS

    def one_hot_costs(self, outputs: int, dtype: DType) -> OneHotCosts | None:
        return ONE_HOT.get(dtype)

    def calls_c_library(self, options: CompileOptions) -> bool:
        return self.files is None and not options.elsewhere and not machine(options.device, options.target).cuda

    def estimates(self, op: Operator, options: CompileOptions, rows: Sequence[int]) -> Mapping[str, Sequence[float]]:
        assert isinstance(op, TreeEnsemble)
        return estimates(_costs_of(options), op, self.candidates(op, replace(options, batch_size=rows[0])), rows)

    def candidates(self, op: TreeEnsemble, options: CompileOptions) -> Mapping[str, Work]:
        """Strategy → its work, for the strategies that come into question for an ensemble."""
        where = machine(options.device, options.target)
        rows, splits = options.batch_size, int((op.leaf_counts - 1).sum())
        known = rows is not None
        choices = splits * (op.values.shape[1] if op.output == "sum" else 1)
        runs = {
            "walk": op.n_trees > 1 or choices > MOST_SELECTED[False] or (rows or ROWS_IN_STATEMENT) < ROWS_IN_STATEMENT,
            "scan": (known or splits >= (WORTH_A_SCAN_OF_ONE if scans_one(op) else WORTH_A_SCAN)) and scannable(op),
            "patches": splits >= WORTH_PATCHES * op.n_trees and patchable(op) and _patches_pay(op, where.dialect),
            "ranges": (rows or LEAST_SORTED) >= LEAST_SORTED and sorting(where.dialect) and rangeable(op),
            "select": choices <= MOST_SELECTED[known],
        }
        kernels = (*where.schedule.tree_kernels, "select")
        work = strategies(_costs_of(options) != WITHOUT_AVX512, pairing(where.dialect), walks=where.dialect.quick_walks)
        return {name: work[name] for name, can in runs.items() if can and name in kernels}

    def seen(self, node: Node, options: CompileOptions) -> TreeEnsemble:
        """With the category sets that it tests itself. On a GPU, and where they are few, all of these are one column, since planes cost a
        scan nothing. (Counted with a column for each plane, 500 trees that test sets were walked: 31 instead of 0.4 µs a row.)"""
        where = machine(options.device, options.target)
        joined = None if where.cuda else with_sets(node, walked=True)
        return in_one_column(node) if joined is None or joined.count < MANY_SETS else joined

    def gpu_strategies(self, op: Operator, options: CompileOptions) -> Collection[str]:
        assert isinstance(op, TreeEnsemble)
        tiled = cycles(op) if machine(options.device, options.target).shares else {}
        return {"walk", *tiled, *self.candidates(op, options), *LOWERED_STRATEGIES}

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        assert isinstance(op, TreeEnsemble)
        where = machine(options.device, options.target)
        if where.cuda:
            return choose_for_gpu(op, where.shares)
        return choose(_costs_of(options), op, self.candidates(op, options), options.batch_size)

    def compile(self, graph: Graph, options: CompileOptions) -> TvmExecutable:
        where = machine(options.device, options.target)
        methods = GraphMethods(join_sets(graph, where.schedule.joins_sets), options, where)
        if where.cuda and where.missing is not None and options.target is None:
            advice = (
                f'{ELSEWHERE} To compile here, and not run, name the GPU: target={{"kind": "cuda", "arch": "{where.arch}"}}.'
            )
            if where.number and machine("cuda", None).missing is None:
                advice = "The first GPU is device='cuda:0'."
            raise BackendUnavailableError(backend=self.name, reason=where.missing, advice=advice)
        if where.cuda and where.missing is not None:
            methods.compile_all()  # here it can only be compiled; where it runs, each method is compiled at its first call
        kind = CudaExecutable if where.cuda else TvmExecutable
        return kind(Signature.of(methods.graph), options, lambda: methods)

    def for_file(self, chosen: Mapping[str, Any], options: CompileOptions) -> tuple[TvmCompiler, CompileOptions]:
        files = FileOptions.checked(chosen)
        target = files.target or options.target
        if machine(options.device, target).cuda:
            FileOptions.require_none(chosen)
            return self, replace(options, target=target)
        return TvmCompiler(files), replace(options, target=target or usual_target())

    def export(self, graph: Graph, options: CompileOptions, path: str, about: About) -> None:
        """Writes a library of C functions that needs neither hbc nor TVM (docs/exporting.md); for CUDA one of packed functions of TVM."""
        where = machine(options.device, options.target)
        if self.files is None:
            self.compile(graph, options).export(path)
        else:
            export(join_sets(graph, where.schedule.joins_sets), options, where, path, about, self.files)

    def on_host(self, graph: Graph, options: CompileOptions) -> Graph:
        where = machine(options.device, options.target)
        where = host_machine() if where.cuda or options.elsewhere else where
        for compiled in () if where.missing else (compiled_descent, compiled_terms, compiled_topics):
            graph = rewrite(graph, compiled(where))
        return graph


COMPILER = TvmCompiler()
