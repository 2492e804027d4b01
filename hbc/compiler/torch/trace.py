"""Traces a Program to TorchScript, to run it here, or for a file that PyTorch loads without hbc."""

from __future__ import annotations

from typing import Any

import torch

from hbc.compiler.torch.exact import quiet_jit
from hbc.compiler.torch.program import Program, entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.ir.graph import Graph

EXAMPLE_ROWS = 3  # more than 1, because a trace through a single row would fix broadcasts


def trace(program: Program, graph: Graph, device: torch.device) -> Any:
    """The ScriptModule with the methods of `graph`, on `device`."""
    example = tuple(
        torch.zeros((EXAMPLE_ROWS, *map(int, node.type.shape[1:])), dtype=OUTSIDE_DTYPES[node.type.dtype], device=device)
        for node in graph.inputs
    )
    with quiet_jit(), torch.no_grad():
        return torch.jit.trace_module(program, dict.fromkeys(map(entry, graph.outputs), example), check_trace=False)
