"""Feature-selection push-down and injection: columns that nothing reads are not computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hbc.ir.graph import Constant, Graph, Node, Operator, gives_rows
from hbc.ir.narrow import SideBySide
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.ops.checks import Check
from hbc.ops.columns import SelectColumns
from hbc.ops.tensor import Cast

WORTH_IT = 4
"""Columns are gathered before an operator if each gathered column saves at least 1/4 of a column that the operator need not
compute. To gather a column costs about as much as to scale it, but most often several operators follow."""


@record
class PushSelection:
    """Columns that trees do not read, selections leave out or models weigh with 0 are not computed:

    `TreeEnsemble(Concat(Standardize(x), OneHot(c)))` → `TreeEnsemble'(Concat(Standardize'(SelectColumns(x)), OneHot'(c)))`;
    `SelectColumns(Standardize(x))` → `Standardize'(SelectColumns(x))`; `Linear(Check(OneHot(c)))` →
    `Linear'(Check'(OneHot'(c)))`.

    Each operator says which columns of its inputs it needs for some columns of its result (`Operator.reads`), and how it
    computes those alone (`Operator.narrowed`). The pass first goes backwards from the results and finds the columns of each
    value that something reads. Then it goes forwards and computes each value from the remaining columns of its inputs. It stops
    at operators that need whole rows. A weight of 0 counts as "not read" only where a Check has excluded NaN and infinity,
    since 0 times these is NaN.
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
    """node → (its columns that something reads, for each input the columns needed to compute those). All are ascending. Nodes that
    nothing reads are absent."""
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
    """The nodes whose values cannot be NaN or infinite: a Check has excluded these, or no number can be one."""
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
    """The rewritten values. `made`: node → (its replacement, the columns of the node that the replacement holds). `gathered`:
    selections that were made, so that equal ones are shared."""

    made: dict[Node, tuple[Node, Array]]
    gathered: dict[tuple[Node, bytes], Node] = field(default_factory=dict)

    def narrowed(self, node: Node, kept: Array, needed: Sequence[Array]) -> tuple[Node, Array]:
        """(the replacement of a node with at least the columns `kept`, the columns that it holds). `needed`: for each input the
        columns from which `kept` are computed."""
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
    """Whether gathering the columns `some` costs less than computing with all columns of x. Never for matrices that are mostly
    zeros: there, the entries of some columns would have to be searched for."""
    return (len(columns) - len(some)) * WORTH_IT >= len(some) and not gives_rows(x)


def _are_whole(node: Node, left: Sequence[tuple[Node, Array]]) -> bool:
    return all(len(columns) == x.type.width for x, (_, columns) in zip(node.inputs, left, strict=True))


def _is_one_part(node: Node, needed: Sequence[Array]) -> bool:
    """Whether a side-by-side operator has only one part with needed columns, so that nothing is left to be joined."""
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
