"""What the model rejects, carried back to its input: NaN in column 3 is an error exactly where it would reach a `Check` that forbids it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hbc.ir.graph import Graph, Node
from hbc.ir.signature import Guard, InputLimits, Limits
from hbc.ops.checks import Check, CheckValues
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.features import Polynomial
from hbc.ops.tensor import Concat
from hbc.optimizer.bounds import safe_magnitude

Origin = frozenset[tuple[Node, int]]


@dataclass(frozen=True)
class _Trace:
    """For every column of a value, the input columns whose NaN, and whose ±inf and large numbers, can be seen in it; and whether
    an operator on the way makes NaN or ±inf of ordinary numbers, or of large ones."""

    missing: list[Origin]
    large: list[Origin]
    creates: bool = False
    overflows: bool = False


def input_limits(graph: Graph) -> Limits:
    """Follow every column's missing values through the graph. Per-column operators keep them apart; anything else mixes all columns.

    What cannot be said of an input column becomes a Guard: sets of known categories, and checks behind an operator that is not
    defined everywhere (a logarithm).
    """
    width = {node: node.type.columns if len(node.type.shape) == 2 else 1 for node in graph.inputs}
    state = {node: ([True] * w, [True] * w, [np.inf] * w, [""] * w) for node, w in width.items()}
    traces: dict[Node, _Trace] = {}
    for node, w in width.items():
        columns: list[Origin] = [frozenset([(node, i)]) for i in range(w)]
        traces[node] = _Trace(columns, columns)
    guards: list[Guard] = []
    min_rows = 0
    for node in graph.nodes:
        if node in traces:
            continue
        traces[node] = trace = _trace(node, [traces[source] for source in node.inputs])
        check = node.op
        if not isinstance(check, Check):
            continue
        min_rows = max(min_rows, check.min_rows)
        strict = not (check.allow_nan and check.allow_inf and np.isinf(check.limit))
        if isinstance(check, CheckValues) or (strict and (trace.creates or trace.overflows)):
            value = Graph(graph.inputs, {"value": node.inputs})
            only_large = not isinstance(check, CheckValues) and not trace.creates
            guards.append(Guard(value, check.require, safe_magnitude(value, check.limit) if only_large else 0.0))
            if not (check.allow_nan or check.allow_inf):
                traces[node] = replace(trace, creates=False, overflows=False)  # what passes is finite
        for source, column in frozenset[tuple[Node, int]]().union(*trace.missing):
            nan, _, _, owner = state[source]
            if nan[column] and not check.allow_nan:
                nan[column], owner[column] = False, check.owner
        for source, column in frozenset[tuple[Node, int]]().union(*trace.large):
            _, inf, limit, owner = state[source]
            if (inf[column] and not check.allow_inf) or limit[column] > check.limit:
                owner[column] = check.owner
            inf[column] &= check.allow_inf
            limit[column] = min(limit[column], check.limit)
    plain = _taking_pandas_na(graph, traces)
    limits = tuple(
        InputLimits(
            np.array(nan), np.array(inf), np.array(limit), tuple(owner), np.array([(node, i) in plain for i in range(len(nan))])
        )
        for node, (nan, inf, limit, owner) in state.items()
    )
    return Limits(limits, min_rows, tuple(guards))


def _taking_pandas_na(graph: Graph, traces: dict[Node, _Trace]) -> Origin:
    """The string columns that only encoders read. To them a pandas.NA is an unknown category; whatever else scikit-learn computes
    with strings (imputers) stops at it."""
    columns = {(node, i) for node in graph.inputs if node.type.dtype == "str" for i in range(len(traces[node].missing))}
    readers = [(node.op, source) for node in graph.nodes for source in node.inputs]
    returned = [(None, node) for group in graph.outputs.values() for node in group]
    for op, source in (*readers, *returned):
        if source.type.dtype == "str" and not isinstance(op, (SelectColumns, Concat, Check, Categorize)):
            columns -= set(frozenset[tuple[Node, int]]().union(*traces[source].missing))
    return frozenset(columns)


def looser_limits(graph: Graph) -> dict[str, Limits]:
    """The limits of each method that passes fewer checks than all methods together."""

    def checks(part: Graph) -> set[Node]:
        return {node for node in part.nodes if isinstance(node.op, Check)}

    every = checks(graph)
    parts = {method: graph.select(method) for method in graph.outputs} if len(every) > 1 else {}
    return {method: input_limits(part) for method, part in parts.items() if checks(part) != every}


def _trace(node: Node, sources: list[_Trace]) -> _Trace:
    op = node.op
    numbers = node.type.is_float or node.type.dtype == "str"  # what is missing in strings is followed too
    if op.creates_missing:  # the guard behind it sees what becomes of NaN and ±inf too
        numbers = False
    missing = _origins(node, [source.missing for source in sources], numbers and not op.removes_missing)
    large = _origins(node, [source.large for source in sources], numbers and (op.keeps_large or not op.removes_missing))
    creates = op.creates_missing or (not op.removes_missing and any(source.creates for source in sources))
    overflows = isinstance(op, Polynomial) or (not op.removes_missing and any(source.overflows for source in sources))
    return _Trace(missing, large, creates, overflows)


def _origins(node: Node, sources: list[list[Origin]], passes: bool) -> list[Origin]:
    op = node.op
    width = int(node.type.shape[1]) if len(node.type.shape) >= 2 and node.type.batched else 1
    if not passes or not sources:
        return [frozenset()] * width
    if isinstance(op, SelectColumns):
        return [sources[0][i] for i in op.indices]
    if isinstance(op, Concat) and op.axis == 1:
        return [origin for source in sources for origin in source]
    if op.columnwise and len(sources) == 1 and len(sources[0]) == width:
        return sources[0]
    everything: Origin = frozenset[tuple[Node, int]]().union(*(origin for source in sources for origin in source))
    return [everything] * width
