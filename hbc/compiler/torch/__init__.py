"""The PyTorch backend: a graph as an `nn.Module` (program.py), each operator by its rule (rules.py)."""

from __future__ import annotations

from typing import Any

import torch

from hbc.compiler.base import CompileOptions
from hbc.compiler.torch import coupling, nearest  # noqa: F401 (they register rules)
from hbc.compiler.torch.program import Program
from hbc.compiler.torch.rules import RULES
from hbc.compiler.torch.run import TorchExecutable, thread_limits
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.ir.graph import Constant, Graph, Input, Operator


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
    strategies: tuple[str, ...] = ()
    handles_strings = False

    def supports(self, op: Operator) -> bool:
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
    """One of the three strategies that lower to tensor operators, by what was measured on a CPU (2.13, one thread).

    gemm is the fastest for up to 4 rows while its matrices are small (100 trees of depth 5, one row: 89 µs against 145; of 500:
    180 against 155). Otherwise perf_tree_trav is (500 trees of depth 5: 7.5 µs a row against tree_trav's 15; depth 8: 13 against
    25), until padding leaves the cache (200 trees of depth 16: 36 against 20).
    """
    depth, leaves = int(op.depths.max(initial=0)), int(op.leaf_counts.max(initial=1))
    if options.batch_size is not None and options.batch_size <= 4 and op.n_trees * leaves**2 <= 1 << 18:
        return "gemm", f"{options.batch_size} rows a call, and {op.n_trees} trees of at most {leaves} leaves"
    if depth <= 10 or (depth <= 14 and op.n_trees << depth <= 1 << 21):
        return "perf_tree_trav", f"depth {depth}: padding to 2^{depth} leaves a tree costs less than looking up children"
    return "tree_trav", f"depth {depth} is too much for padding"


COMPILER = TorchCompiler()
