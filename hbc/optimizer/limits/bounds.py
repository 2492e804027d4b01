"""Finds how large a value inside the graph can be, given how large the inputs are, from the answers of its operators
(`Operator.magnitude`)."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Graph, Input, Node
from hbc.ir.magnitudes import MARGIN, fits
from hbc.ir.types import Array

CANDIDATES = (1e100, 1e50, 1e30, 1e18, 1e12, 1e9, 1e6, 1e4, 1e2, 10.0, 1.0)


def safe_magnitude(graph: Graph, limit: float = np.inf) -> float:
    """A magnitude such that for inputs up to it every value of the graph is finite, and its only output is at most `limit`. It is the
    largest of CANDIDATES; 0.0 if none of them is known to be safe."""
    ((value,),) = graph.outputs.values()
    for candidate in CANDIDATES:
        largest = _largest(graph, value, candidate)
        if largest is None:
            return 0.0
        if np.isfinite(largest) and largest <= limit * MARGIN:
            return candidate
    return 0.0


def _largest(graph: Graph, value: Node, inputs: float) -> float | None:
    """The largest magnitude of the value for inputs up to `inputs`; inf if a step can overflow, None if an operator does not know."""
    bounds: dict[Node, Array] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            width = node.type.width
            if isinstance(node.op, Input):
                bound: Array | None = np.full(width, inputs)
            else:
                bound = node.op.magnitude(node, [bounds[source] for source in node.inputs])
            if bound is None:
                return None
            if node.type.is_float and not (fits(bound, node.type.dtype) | node.op.infinite).all():
                return np.inf
            bounds[node] = np.broadcast_to(bound, width)
    return float(bounds[value].max(initial=0.0))
