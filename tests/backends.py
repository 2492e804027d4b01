"""The backends of all tables of tests: hbc's own, as far as they are installed."""

from __future__ import annotations

from hbc.compiler.base import About, is_available
from hbc.ir.graph import Graph
from hbc.ir.signature import Column, InputSpec, ModelInfo

ALL = ("numpy", "torch", "torchscript", "onnx", "tvm")
BACKENDS = [name for name in ALL if is_available(name)]
"""numpy, which is always there and the others' reference, comes first."""
COMPILED = BACKENDS[1:]
"""Those that compile."""


def installed(*names: str) -> list[str]:
    """Those of the named backends that are installed."""
    assert set(names) <= set(ALL), names
    return [name for name in names if name in BACKENDS]


def about(graph: Graph) -> About:
    """What `Compiler.export` is told of a graph that no estimator stands behind: a model whose columns are those of the inputs in order."""
    kinds = tuple(node.type.dtype for node in graph.inputs for _ in range(node.type.columns))
    return About(ModelInfo("tests.Graph", {}, {}), InputSpec(tuple(Column(strings=kind == "str") for kind in kinds)), kinds)
