"""Carries the checks inside a model back to its input: NaN in column 3
is an error exactly where it would reach a `Check` that forbids it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hbc.compiler.base import Compiler
from hbc.ir.graph import Constant, Graph, Input, Node, never_negative, topological
from hbc.ir.signature import Guard, InputLimits, Limits
from hbc.ir.types import NUMPY_DTYPES
from hbc.lazy import record
from hbc.ops.checks import Check, CheckAgreed, CheckLeast, CheckValues, CheckWhole
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.tensor import Cast, Concat
from hbc.optimizer.limits.bounds import safe_magnitude
from hbc.optimizer.lower import Lower

Origin = frozenset[tuple[Node, int]]


@record
class _Trace:
    """Where the columns of a value come from.

    - missing: for each column, the input columns whose NaN can show in it.
    - values: for each column, the input columns whose numbers are in it unchanged.
    - creates: whether an operator on the way makes NaN from numbers.
    - reach: how large the numbers computed from the input can be (0.0: no number is computed).
    """

    missing: list[Origin]
    values: list[Origin]
    creates: bool = False
    reach: float = 0.0


def input_limits(graph: Graph, computed: bool = False) -> Limits:
    """The requirements on each input column under which no Check inside the model rejects the call. Missing values of each column are
    followed through the graph. Per-column operators keep columns apart; other operators mix all of them.

    A requirement that is not about single input columns becomes a Guard. Examples are sets of known categories, and checks of
    computed numbers: these may be infinite or too large where the input is not, and the other way round.

    computed: `Guard.accepted` also tests numbers that are computed by a few operators, for code that has no numpy. They are computed with
    other last bits there, so that a number may be rejected or not where it is within a few units of the limit.
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
        largest = _largest_passed(check, node)
        # Where infinities pass, the numbers computed from them can be NaN (∞ - ∞), too.
        creates = not check.allow_nan and (trace.creates or (check.allow_inf and trace.reach > 0.0))
        of_values = isinstance(check, (CheckAgreed, CheckLeast, CheckValues, CheckWhole)) and not _is_met(check, node.inputs[0])
        if of_values or creates or trace.reach > largest:
            value = Graph(graph.inputs, {"value": node.inputs})
            only_large = not (of_values or trace.creates or creates)
            safe = safe_magnitude(value, check.limit) if only_large else 0.0
            guards.append(
                Guard(value, check.require, safe, check.whole, _accepted(check, node.inputs[0], graph.inputs, computed))
            )
            traces[node] = replace(trace, creates=trace.creates and not creates, reach=min(trace.reach, largest))
        for source, column in frozenset[tuple[Node, int]]().union(*trace.missing):
            nan, _, _, owner = state[source]
            if nan[column] and not check.allow_nan:
                nan[column], owner[column] = False, check.owner
        for source, column in frozenset[tuple[Node, int]]().union(*trace.values):
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
    """The string columns that only encoders read. An encoder treats pandas.NA as an unknown category; anything else that
    scikit-learn computes with strings (imputers) fails on it."""
    columns = {(node, i) for node in graph.inputs if node.type.dtype == "str" for i in range(len(traces[node].missing))}
    readers = [(node.op, source) for node in graph.nodes for source in node.inputs]
    returned = [(None, node) for group in graph.outputs.values() for node in group]
    for op, source in (*readers, *returned):
        encodes = isinstance(op, (SelectColumns, Concat, Check, Categorize)) or (op is not None and op.rows == "makes")
        if source.type.dtype == "str" and not encodes:
            columns -= set(frozenset[tuple[Node, int]]().union(*traces[source].missing))
    return frozenset(columns)


def looser_limits(graph: Graph) -> dict[str, Limits]:
    """method → its limits, for the methods that pass fewer checks than all methods together."""

    def checks(part: Graph) -> set[Node]:
        return {node for node in part.nodes if isinstance(node.op, Check)}

    every = checks(graph)
    parts = {method: graph.select(method) for method in graph.outputs} if every else {}
    return {method: input_limits(part) for method, part in parts.items() if checks(part) != every}


def _is_met(check: Check, x: Node) -> bool:
    """Whether a check asks only for numbers ≥ 0, and x can have no others. Without this, the words of a text were counted twice,
    which took as long as all the rest."""
    if not isinstance(check, CheckLeast) or check.exclusive or check.least > 0:
        return False
    return never_negative(x)


def _creates(node: Node) -> bool:
    """Whether ordinary numbers can give NaN in this value."""
    op = node.op
    return op.creates_missing and not (op.of_negative_only and never_negative(node.inputs[0]))


def _accepted(check: Check, x: Node, inputs: tuple[Node, ...], computed: bool) -> Graph | None:
    """The graph that says whether the check accepts a number (see Guard), or None. Unless `computed`, only where the checked value consists
    of the caller's own numbers: no two backends compute the same bits of computed ones."""
    between = [node.op for node in topological([x]) if not node.op.keeps(node.inputs)]
    if not all(isinstance(op, (Input, Constant, Cast)) for op in between) and not (computed and type(check) is Check):
        return None
    accepted = check.accepts(x)
    return None if accepted is None else Graph(inputs, {"accepted": (accepted,)})


def lower_accepted(limits: Limits, compiler: Compiler) -> Limits:
    """The limits, with `accepted` of each guard lowered to operators of the
    compiler, if the compiler can put it into the function of a method."""
    if not compiler.one_launch:
        return limits
    lower = Lower(compiler)
    return replace(
        limits,
        guards=tuple(
            guard if guard.accepted is None else replace(guard, accepted=lower(guard.accepted)) for guard in limits.guards
        ),
    )


def _largest_passed(check: Check, node: Node) -> float:
    """The largest magnitude that a check lets pass."""
    if not node.type.is_float:
        return np.inf
    return min(check.limit, np.inf if check.allow_inf else float(np.finfo(NUMPY_DTYPES[node.type.dtype]).max))


def _trace(node: Node, sources: list[_Trace]) -> _Trace:
    op = node.op
    numbers = node.type.is_float or node.type.dtype == "str"  # missing strings are followed too
    passes = numbers and not op.removes_missing and not _creates(node)  # the guard after `creates_missing` sees NaN too
    missing = _origins(node, [source.missing for source in sources], passes)
    keeps, numeric = op.keeps(node.inputs), node.type.dtype not in ("bool", "str")
    values = _origins(node, [source.values for source in sources], numeric and keeps)
    creates = _creates(node) or (not op.removes_missing and any(source.creates for source in sources))
    # `t.where(rejected, inf, x)` marks what a Check is to reject, also where x itself is looked up and not computed.
    reach = np.inf if isinstance(op, Constant) and numeric and np.isinf(op.value).any() else 0.0
    if numeric and keeps and sources:
        reach = max((source.reach for source in sources), default=0.0)
    elif numeric and not op.removes_missing and any(source.reach or any(source.values) for source in sources):
        reach = np.inf
    return _Trace(missing, values, creates, reach)


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
