"""The TorchScript backend: the module of the PyTorch backend, traced. What it exports is loaded by PyTorch alone, without hbc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hbc.compiler.base import CompileOptions
from hbc.compiler.torch import TorchCompiler, checked_device
from hbc.compiler.torch.exact import quiet_jit
from hbc.compiler.torch.program import Program, entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.compiler.torch.run import TorchExecutable
from hbc.ir.graph import Graph

EXAMPLE_ROWS = 3  # not 1: a trace through a single row would fix what broadcasts


def trace(program: Program, graph: Graph, device: torch.device) -> Any:
    """The ScriptModule with the methods of `graph`, on `device`."""
    example = tuple(
        torch.zeros((EXAMPLE_ROWS, *map(int, node.type.shape[1:])), dtype=OUTSIDE_DTYPES[node.type.dtype], device=device)
        for node in graph.inputs
    )
    with quiet_jit(), torch.no_grad():
        return torch.jit.trace_module(program, dict.fromkeys(map(entry, graph.outputs), example), check_trace=False)


def export(graph: Graph, device: torch.device, path: str) -> None:
    """Write TorchScript: `torch.jit.load(path).predict(x)` with one tensor for each of the graph's inputs; `apply` is `apply_`."""
    if not str(path).endswith(".pt"):
        raise ValueError(f"{path}: PyTorch exports TorchScript, to a path that ends in .pt")
    with quiet_jit():
        torch.jit.save(trace(Program(graph).to(device).eval(), graph, device), path)


@dataclass(frozen=True)
class TorchScriptExecutable(TorchExecutable):
    def _compute(self, method: str, tensors: Sequence[Tensor]) -> Any:
        # The optimizing executor compiles anew in its first two calls and on a GPU fuses Mul and Add into one rounding.
        # This switch is the calling thread's own.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return super()._compute(method, tensors)


class TorchScriptCompiler(TorchCompiler):
    name = "torchscript"

    def compile(self, graph: Graph, options: CompileOptions) -> TorchScriptExecutable:
        device = checked_device(self.name, options)
        program = Program(graph).to(device).eval()
        widths = {name: program.row_bytes(name) for name in graph.outputs}
        return TorchScriptExecutable(trace(program, graph, device), graph, device, options.threads, widths)


COMPILER = TorchScriptCompiler()
