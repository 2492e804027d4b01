"""How large a value inside the graph can be, given how large the inputs are: interval arithmetic on magnitudes."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Graph, Input, Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.features import Affine, Clip, Impute, OneHot, Polynomial, Standardize
from hbc.ops.tensor import Cast, Concat

CANDIDATES = (1e100, 1e50, 1e30, 1e18, 1e12, 1e9, 1e6, 1e4, 1e2)
MARGIN = 1e-3  # for the rounding of intermediate steps, far more than it takes


def safe_magnitude(graph: Graph, limit: float = np.inf) -> float:
    """A magnitude such that inputs up to it give values of the graph's only output, and of every step, that are finite and at most
    `limit`; 0.0 where that is not known."""
    ((value,),) = graph.outputs.values()
    for candidate in CANDIDATES:
        largest = _largest(graph, value, candidate)
        if largest is None:
            return 0.0
        if np.isfinite(largest) and largest <= limit * MARGIN:
            return candidate
    return 0.0


def _largest(graph: Graph, value: Node, inputs: float) -> float | None:
    """The largest magnitude of the value; inf where a step can overflow, None where an operator is not known here."""
    bounds: dict[Node, Array] = {}
    for node in graph.nodes:
        if isinstance(node.op, Input):
            bound: Array | None = np.full(node.type.columns if len(node.type.shape) == 2 else 1, inputs)
        else:
            bound = _bound(node, [bounds[source] for source in node.inputs])
        if bound is None:
            return None
        if node.type.is_float and (bound > MARGIN * float(np.finfo(NUMPY_DTYPES[node.type.dtype]).max)).any():
            return np.inf
        bounds[node] = bound
    return float(bounds[value].max(initial=0.0))


def _bound(node: Node, sources: list[Array]) -> Array | None:
    op = node.op
    with np.errstate(all="ignore"):
        match op:
            case Check() | Cast():
                return sources[0]
            case SelectColumns():
                return sources[0][op.indices]
            case Concat(axis=1):
                return np.concatenate(sources)
            case Standardize():
                bound = sources[0] + np.abs(0.0 if op.offset is None else op.offset.astype(np.float64))
                return bound if op.scale is None else bound / np.abs(op.scale.astype(np.float64))
            case Affine():
                return sources[0] * np.abs(op.scale.astype(np.float64)) + np.abs(op.offset.astype(np.float64))
            case Clip():
                return np.minimum(sources[0], max(abs(op.low), abs(op.high)))
            case Impute():
                return np.maximum(sources[0], np.abs(op.fill.astype(np.float64)))
            case OneHot():
                return np.ones(len(op.source))
            case Polynomial():
                factors = np.append(np.maximum(sources[0], 1.0), 1.0)  # at least 1, so that no product on the way is larger
                return factors[op.terms].prod(axis=1)
    return None
