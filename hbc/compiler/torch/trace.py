"""Traces a Program to TorchScript, to run it here, or to TorchScript and torch.export for files that PyTorch loads without hbc."""

from __future__ import annotations

from typing import Any

import torch

from hbc.compiler.torch.exact import quiet_jit, without_autocast
from hbc.compiler.torch.program import Program, entry
from hbc.compiler.torch.rules import OUTSIDE_DTYPES
from hbc.errors import ArtifactError
from hbc.ir.graph import Graph
from hbc.ops.coupling import PairwiseCoupling
from hbc.ops.nearest import Smallest

EXAMPLE_ROWS = 3  # more than 1, because a trace through a single row would fix broadcasts


def trace(program: Program, graph: Graph, device: torch.device, *, forward: bool = False) -> Any:
    """The ScriptModule with the methods of `graph`, on `device`. `forward`: it can be called itself too."""
    names = [*map(entry, graph.outputs), *(["forward"] if forward else [])]
    with quiet_jit(), torch.no_grad(), without_autocast(device):
        return torch.jit.trace_module(program, dict.fromkeys(names, example(graph, device)), check_trace=False)


BY_VALUE = (Smallest, PairwiseCoupling)
"""Operators whose code loops until values of the rows say that it is done."""


def exported(program: Program, graph: Graph, device: torch.device, path: str) -> Any:
    """The ExportedProgram of `forward`, for any number of rows. Raises ArtifactError, which names the file `path`, if operators are chosen
    by the values of rows."""
    rows = torch.export.Dim("N")
    if chosen := sorted({type(node.op).__name__ for node in graph.nodes if isinstance(node.op, BY_VALUE)}):
        raise _refused(path, f"a part whose steps depend on the values of the rows: {', '.join(chosen)}")
    try:
        with torch.no_grad(), without_autocast(device):
            # `inputs` is one argument, a tuple of the graph's inputs.
            return torch.export.export(
                program, example(graph, device), dynamic_shapes=(tuple({0: rows} for _ in graph.inputs),)
            )
    except Exception as error:  # it raises errors of many classes, some of them internal
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise _refused(path, f"a part that it does not take ({type(error).__name__}: {reason})") from error


def _refused(path: str, found: str) -> ArtifactError:
    advice = "Export it to .pt or .onnx, or save() it."
    return ArtifactError(path=path, found=found, expected="operators that torch.export can hold", advice=advice)


def example(graph: Graph, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Inputs for a trace."""
    return tuple(
        torch.zeros((EXAMPLE_ROWS, *map(int, node.type.shape[1:])), dtype=OUTSIDE_DTYPES[node.type.dtype], device=device)
        for node in graph.inputs
    )
