"""The PyTorch backend: a graph as an `nn.Module` (program.py), each operator by its rule (rules.py)."""

from __future__ import annotations

from typing import Any

import torch

from hbc.compiler.base import CompileOptions
from hbc.compiler.torch import coupling, nearest, scan  # noqa: F401 (they register rules)
from hbc.compiler.torch.program import Program
from hbc.compiler.torch.rules import RULES
from hbc.compiler.torch.run import TorchExecutable, thread_limits
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.graph import Constant, Graph, Input, Operator
from hbc.ops.tree import TreeEnsemble


def checked_device(backend: str, options: CompileOptions) -> torch.device:
    """The device asked for. Raises BackendUnavailableError where it is not there, InvalidInputError for options that have no meaning."""
    kind, _, index = options.device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index not in ("", "0")):
        reason = f"it has no device {options.device!r}, only 'cpu', 'cuda' and 'cuda:<number>'"
        raise BackendUnavailableError(backend=backend, reason=reason)
    if kind == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            backend=backend,
            reason=f"device {options.device!r} is not there: PyTorch {torch.__version__} sees no CUDA GPU",
            advice="Install a PyTorch built for CUDA on a machine with a GPU, or choose device='cpu'.",
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            backend=backend, reason=f"device {options.device!r} is not there: PyTorch sees {torch.cuda.device_count()} GPUs"
        )
    if options.threads is not None and kind == "cpu" and thread_limits() is None:
        raise InvalidInputError(
            found=f"threads={options.threads}",
            expected="none",
            where="threads",
            advice="This PyTorch has one number of threads for the whole process only: call torch.set_num_threads yourself.",
        )
    return torch.device(options.device if kind == "cuda" else "cpu")


class TorchCompiler:
    name = "torch"
    strategies: tuple[str, ...] = ("scan",)
    one_launch = False
    handles_strings = False

    def supports(self, op: Operator) -> bool:
        if isinstance(op, TreeEnsemble):
            return op.strategy == "scan" and scan.scannable(op)
        return type(op) in RULES or isinstance(op, (Input, Constant))

    def choose_strategy(self, op: Operator, options: CompileOptions) -> tuple[str, str]:
        return choose_strategy(op, options)

    def compile(self, graph: Graph, options: CompileOptions) -> TorchExecutable:
        device = checked_device(self.name, options)
        program = Program(graph).to(device).eval()
        return TorchExecutable(
            program, graph, device, options.threads, {name: program.row_bytes(name) for name in graph.outputs}
        )


def choose_strategy(op: Any, options: CompileOptions) -> tuple[str, str]:
    """The fastest by what was measured on a CPU (2.13, one thread).

    gemm for up to 4 rows while its matrices are small (100 trees of depth 5, one row: 89 µs against 145; of 500: 180 against 155).
    scan where a row's splits take less time than its steps from node to node (500 trees of 31 leaves: 21 µs a row against
    tree_trav's 159 on a busy machine, and as long for one row). Of the others perf_tree_trav (500 trees of depth 5: 7.5 µs a row
    against tree_trav's 15; depth 8: 13 against 25), until padding leaves the cache (200 trees of depth 16: 36 against 20).
    """
    depth, leaves = int(op.depths.max(initial=0)), int(op.leaf_counts.max(initial=1))
    rows = options.batch_size
    if rows is not None and rows <= 4 and op.n_trees * leaves**2 <= 1 << 18:
        return "gemm", f"{rows} rows a call, and {op.n_trees} trees of at most {leaves} leaves"
    perfect = depth <= 10 or (depth <= 14 and op.n_trees << depth <= 1 << 21)
    walk = op.n_trees * depth * (PERFECT_STEP if perfect else STEP)
    splits = int((op.leaf_counts - 1).sum())
    scanned = splits * SPLIT + (leaves - 1) * SCAN_STEP / min(rows or BLOCK, BLOCK)
    if scan.scannable(op) and 1.5 * scanned < walk:  # with a margin, since the number of rows is often not known
        return "scan", f"{splits} tests of bytes take less time than {op.n_trees} walks of depth {depth}"
    if perfect:
        return "perf_tree_trav", f"depth {depth}: padding to 2^{depth} leaves a tree costs less than looking up children"
    return "tree_trav", f"depth {depth} is too much for padding"


SPLIT, PERFECT_STEP, STEP = 0.25, 3.2, 6.2
"""ns a row: of a split that is scanned, of a step of perf_tree_trav, and one of tree_trav."""
SCAN_STEP, BLOCK = 9_000, 512
"""ns a step of the scan takes for any number of rows (nine calls), and about how many rows share them."""

COMPILER = TorchCompiler()
