"""Traces a Program to TorchScript, to run it here, or to write a file that PyTorch loads without hbc."""

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


def export(graph: Graph, device: torch.device, path: str) -> None:
    """Writes TorchScript to a .pt file. It is used as `torch.jit.load(path).predict(x)`, with one tensor for each of the graph's inputs;
    the method `apply` is called `apply_`. Raises ValueError for another suffix."""
    if not str(path).endswith(".pt"):
        raise ValueError(f"{path}: PyTorch exports TorchScript, to a path that ends in .pt")
    with quiet_jit():
        torch.jit.save(trace(Program(graph).to(device).eval(), graph, device), path)
