"""Feature-selection push-down and injection: columns that nobody reads are not computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hbc.ir.graph import Constant, Graph, Node, Operator, gives_rows
from hbc.ir.narrow import SideBySide
from hbc.ir.types import Array
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast

WORTH_IT = 4
"""Columns are gathered for an operator if for every so many of them it need not compute another one: to gather a column costs about
as much as to scale it, but most often several operators follow."""


@dataclass(frozen=True)
class PushSelection:
    """What trees do not read, selections leave out, and models weigh with 0 is not computed:

    `TreeEnsemble(Concat(Standardize(x), OneHot(c)))` → `TreeEnsemble'(Concat(Standardize'(SelectColumns(x)), OneHot'(c)))`;
    `SelectColumns(Standardize(x))` → `Standardize'(SelectColumns(x))`; `Linear(Check(OneHot(c)))` → `Linear'(Check'(OneHot'(c)))`.

    Operators say themselves which columns of their inputs they need for some columns of their result, and how they compute those
    alone (`Operator.reads`, `Operator.narrowed`). Backwards from the results every value learns which of its columns anybody reads;
    then each is computed from what is left of its inputs. It stops where a row is consumed whole. A weight of 0 is as good as none
    where a Check has seen to it that there is no NaN and no infinity, which it would make NaN.
    """

    def __call__(self, graph: Graph) -> Graph:
        finite = _finite(graph)
        reads = _kept(graph, finite)
        narrowing = _Narrowing({node: (node, np.arange(node.type.width)) for node in graph.inputs})
        for node in graph.nodes:
            if node in reads and node not in narrowing.made:
                narrowing.made[node] = narrowing.narrowed(node, *reads[node])
        made = {node: value for node, (value, _) in narrowing.made.items()}
        return Graph(graph.inputs, {method: tuple(made[node] for node in group) for method, group in graph.outputs.items()})


def _kept(graph: Graph, finite: set[Node]) -> dict[Node, tuple[Array, Sequence[Array]]]:
    """Of every value that is read: the columns that are, ascending, and those of its inputs that they need."""
    read = {node: np.zeros(node.type.width, bool) for node in graph.nodes}
    for group in graph.outputs.values():
        for node in group:
            read[node][:] = True
    kept: dict[Node, tuple[Array, Sequence[Array]]] = {}
    for node in reversed(graph.nodes):
        columns = np.flatnonzero(read[node])
        if not len(columns) and node.type.width:
            continue
        needed = _reads(node, columns, finite)
        if needed is None:  # not of these columns alone
            columns = np.arange(node.type.width)
            needed = _reads(node, columns, finite)
        if needed is None:
            needed = [np.arange(source.type.width) for source in node.inputs]
        kept[node] = columns, needed
        for source, some in zip(node.inputs, needed, strict=True):
            read[source][some] = True
    return kept


def _reads(node: Node, columns: Array, finite: set[Node]) -> Sequence[Array] | None:
    unfolded = any(not x.type.batched and not isinstance(x.op, Constant) for x in node.inputs)
    empty = not all(x.type.width for x in (node, *node.inputs))
    if len(node.type.shape) > 2 or unfolded or (empty and not isinstance(node.op, SideBySide)):
        return None
    return node.op.reads(columns, node.inputs, finite.issuperset(node.inputs))


def _finite(graph: Graph) -> set[Node]:
    """The values without NaN and infinities: what was checked to have none, and what has no numbers but those."""
    finite: set[Node] = set()
    for node in graph.nodes:
        op, dtype = node.op, node.type.dtype
        kept = bool(node.inputs) and finite.issuperset(node.inputs)
        if isinstance(op, Check):
            kept = kept or not (op.allow_nan or op.allow_inf)
        elif isinstance(op, Cast):
            kept = kept and (node.inputs[0].type.dtype, dtype) != ("f64", "f32")
        elif isinstance(op, Constant) and dtype != "str":
            kept = bool(np.isfinite(op.value).all())
        else:
            kept = kept and op.keeps_values and not op.creates_missing
        if kept or (not node.type.is_float and dtype != "str"):
            finite.add(node)
    return finite


@dataclass
class _Narrowing:
    """What has become of every value, with the columns that it has; and what has been gathered."""

    made: dict[Node, tuple[Node, Array]]
    gathered: dict[tuple[Node, bytes], Node] = field(default_factory=dict)

    def narrowed(self, node: Node, kept: Array, needed: Sequence[Array]) -> tuple[Node, Array]:
        """The value with the columns `kept`, and perhaps more, and the columns that it has; `needed` are those of its inputs."""
        left = [self.made.get(x, (x, np.zeros(0, np.int64))) for x in node.inputs]
        if len(kept) == node.type.width and _are_whole(node, left):
            return _applied(node, node.op, left), kept
        found = node.op.narrowed(kept, [columns for _, columns in left], node.inputs)
        if found is None or len(found[1]) > len(kept):
            works = not isinstance(node.op, Check) and not _is_one_part(node, needed)
            for i, ((x, columns), some) in enumerate(zip(left, needed, strict=True)):
                if found is None or (works and _pays(x, columns, some)):
                    left[i] = self._gather(x, columns, some), some
            found = node.op.narrowed(kept, [columns for _, columns in left], node.inputs)
            assert found is not None, f"{node!r} is not computed from the columns that it names"
        op, gives = found
        if len(gives) == node.type.width and _are_whole(node, left):
            op = node.op
        return _applied(node, op, [(x, columns) for x, columns in left if len(columns)]), gives

    def _gather(self, x: Node, columns: Array, some: Array) -> Node:
        if len(columns) == len(some):
            return x
        place = np.searchsorted(columns, some)
        if isinstance(x.op, Constant):
            return Constant(x.op.value[..., place])()
        return self.gathered.setdefault((x, place.tobytes()), SelectColumns(place)(x))


def _pays(x: Node, columns: Array, some: Array) -> bool:
    """Whether to gather these columns of x costs less than to compute with all that it has. Among the entries of a matrix that is
    mostly zeros they would have to be looked for."""
    return (len(columns) - len(some)) * WORTH_IT >= len(some) and not gives_rows(x)


def _are_whole(node: Node, left: Sequence[tuple[Node, Array]]) -> bool:
    return all(len(columns) == x.type.width for x, (_, columns) in zip(node.inputs, left, strict=True))


def _is_one_part(node: Node, needed: Sequence[Array]) -> bool:
    """Whether nothing is left to be joined."""
    return isinstance(node.op, SideBySide) and sum(len(columns) > 0 for columns in needed) == 1


def _applied(node: Node, op: Operator, operands: Sequence[tuple[Node, Array]]) -> Node:
    inputs = [x for x, _ in operands]
    if op is node.op and inputs == list(node.inputs):
        return node
    if len(inputs) == 1 and isinstance(op, SideBySide):
        return inputs[0]
    if isinstance(op, SelectColumns) and np.array_equal(op.indices, np.arange(inputs[0].type.width)):
        return inputs[0]
    return op(*inputs)
