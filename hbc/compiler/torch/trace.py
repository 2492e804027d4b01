"""Traces a Program to TorchScript, to run it here, or to TorchScript and torch.export for files that PyTorch loads without hbc."""

from __future__ import annotations

from typing import Any

import torch

from hbc.compiler.torch.exact import quiet_jit, without_autocast
from hbc.compiler.torch.program import Program, entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.ir.graph import Graph

EXAMPLE_ROWS = 3  # more than 1, because a trace through a single row would fix broadcasts


def trace(program: Program, graph: Graph, device: torch.device, *, forward: bool = False) -> Any:
    """The ScriptModule with the methods of `graph`, on `device`. `forward`: it can be called itself too."""
    names = [*map(entry, graph.outputs), *(["forward"] if forward else [])]
    with quiet_jit(), torch.no_grad(), without_autocast(device):
        return torch.jit.trace_module(program, dict.fromkeys(names, example(graph, device)), check_trace=False)


def exported(program: Program, graph: Graph, device: torch.device) -> Any:
    """The ExportedProgram of `forward`, for any number of rows. Raises ValueError if operators are chosen by the values of rows."""
    rows = torch.export.Dim("N")
    try:
        with torch.no_grad(), without_autocast(device):
            # `inputs` is one argument, a tuple of the graph's inputs.
            return torch.export.export(
                program, example(graph, device), dynamic_shapes=(tuple({0: rows} for _ in graph.inputs),)
            )
    except Exception as error:  # it raises errors of many classes, some of them internal
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"torch.export cannot hold this model ({type(error).__name__}: {reason}). Export it to .pt or .onnx."
        ) from error


def example(graph: Graph, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Inputs for a trace."""
    return tuple(
        torch.zeros((EXAMPLE_ROWS, *map(int, node.type.shape[1:])), dtype=OUTSIDE_DTYPES[node.type.dtype], device=device)
        for node in graph.inputs
    )
