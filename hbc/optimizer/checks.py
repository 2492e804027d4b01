"""What the model rejects, carried back to its input: NaN in column 3 is an error exactly where it would reach a `Check` that forbids it."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Graph, Node
from hbc.ir.signature import InputLimits, Limits
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Concat


def input_limits(graph: Graph) -> Limits:
    """Follow every column's missing values through the graph. Per-column operators keep them apart; anything else mixes all columns."""
    width = {node: node.type.columns if len(node.type.shape) == 2 else 1 for node in graph.inputs}
    state = {node: ([True] * w, [True] * w, [np.inf] * w, [""] * w) for node, w in width.items()}
    origins: dict[Node, list[frozenset[tuple[Node, int]]]] = {
        node: [frozenset([(node, i)]) for i in range(w)] for node, w in width.items()
    }
    min_rows = 0
    for node in graph.nodes:
        if node in origins:
            continue
        origins[node] = _origins(node, [origins[source] for source in node.inputs])
        if isinstance(node.op, Check):
            check = node.op
            min_rows = max(min_rows, check.min_rows)
            for source, column in frozenset().union(*origins[node]):
                nan, inf, limit, owner = state[source]
                stricter = (
                    (nan[column] and not check.allow_nan)
                    or (inf[column] and not check.allow_inf)
                    or limit[column] > check.limit
                )
                nan[column] &= check.allow_nan
                inf[column] &= check.allow_inf
                limit[column] = min(limit[column], check.limit)
                owner[column] = check.owner if stricter else owner[column]
    limits = tuple(
        InputLimits(np.array(nan), np.array(inf), np.array(limit), tuple(owner)) for nan, inf, limit, owner in state.values()
    )
    return Limits(limits, min_rows)


def _origins(node: Node, sources: list[list[frozenset[tuple[Node, int]]]]) -> list[frozenset[tuple[Node, int]]]:
    """For every column of a value, the input columns whose missing values can be seen in it."""
    op = node.op
    width = int(node.type.shape[1]) if len(node.type.shape) >= 2 and node.type.batched else 1
    if op.removes_missing or not sources or node.type.dtype == "bool":
        return [frozenset()] * width
    if isinstance(op, SelectColumns):
        return [sources[0][i] for i in op.indices]
    if isinstance(op, Concat) and op.axis == 1:
        return [origin for source in sources for origin in source]
    if op.columnwise and len(sources) == 1 and len(sources[0]) == width:
        return sources[0]
    everything = frozenset().union(*(origin for source in sources for origin in source))
    return [everything] * width
