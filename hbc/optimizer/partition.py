"""Cuts a graph into three parts: before the device, on it, and after it. Strings, functions that need numpy's own bits and
iterations stay on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Constant, Graph, Input, Node
from hbc.ir.rewrite import rewrite, substitute
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.lazy import record
from hbc.ops.tensor import Concat, Take
from hbc.optimizer.host import in_numpy, on_host

BEFORE = "inputs"
MANY_COLUMNS = 32
"""The fewest columns of codes of strings that the host puts side by side."""


@record
class Partition:
    """The three parts of a graph.

    - before: from the graph's inputs to the device's inputs, as one output named `BEFORE`; None where they are the same.
    - device: the methods of the graph, up to their last numbers. A method that is computed from strings alone is absent.
    - after: for each method that the host finishes, a graph from the device's results (if any) and the graph's inputs.
    - labels: for the methods that only look up the device's single result in a table, that table.
    """

    before: Graph | None
    device: Graph
    after: Mapping[str, Graph]

    @property
    def labels(self) -> dict[str, Array]:
        found = {}
        for method, graph in self.after.items():
            match graph.outputs[method]:
                case (Node(op=Take(), inputs=(Node(op=Constant(table)), place)),) if place is graph.inputs[0]:
                    found[method] = table
        return found

    def with_host(self, rule: Callable[[Graph], Graph]) -> Partition:
        """The same partition, with the rule applied to the graphs of the host."""
        before = None if self.before is None else rule(self.before)
        return Partition(before, self.device, {method: rule(graph) for method, graph in self.after.items()})


def partition(graph: Graph) -> Partition:
    """The partition of a graph. It is cut where strings end (category codes go in) and where they begin (class labels come out).
    Raises UnsupportedOperatorError for a graph that computes with strings which it has computed from predictions."""
    if not any(on_host(node) for node in graph.nodes):
        return Partition(None, graph, {})
    side = sides(graph)
    crossing = dict.fromkeys(node for node in graph.inputs if node.type.dtype != "str")
    for node in graph.nodes:
        if side[node] == "device":
            crossing.update((source, None) for source in node.inputs if side[source] == "before" and not _is_constant(source))
    entries = {
        node: node if isinstance(node.op, Input) else Input(f"host{i}", node.type.dtype, node.type.shape)()
        for i, node in enumerate(crossing)
    }
    results: dict[str, tuple[Node, ...]] = {}
    after: dict[str, Graph] = {}
    for method, group in graph.outputs.items():
        if all(side[node] == "device" for node in group):
            results[method] = group
            continue
        exits = _leaving(group, side)
        if exits:
            results[method] = tuple(exits)
        inputs = {node: Input(f"device{i}", node.type.dtype, node.type.shape)() for i, node in enumerate(exits)}
        after[method] = Graph((*inputs.values(), *graph.inputs), {method: tuple(substitute(group, inputs))})
    device = {method: tuple(substitute(group, entries)) for method, group in results.items()}
    before = None if list(entries) == list(graph.inputs) else Graph(graph.inputs, {BEFORE: tuple(crossing)})
    return Partition(before, Graph(tuple(entries.values()), device).verify(), after)


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Constant)


def sides(graph: Graph) -> dict[Node, str]:
    """Where each value is computed: "before" or "after" the device, or on the "device". Raises UnsupportedOperatorError as `partition`."""
    side: dict[Node, str] = {}
    numpy = in_numpy(graph)
    numpy |= _side_by_side(graph)
    for node in graph.nodes:
        sources = {side[source] for source in node.inputs}
        if isinstance(node.op, (Input, Constant)) or node in numpy:
            side[node] = "before"
        elif not on_host(node):
            side[node] = "device"
            if "after" in sources:
                culprit = Culprit(repr(node), "the graph", "strings computed from predictions are computed with again.", "")
                raise UnsupportedOperatorError(culprits=[culprit])
        else:
            side[node] = "before" if sources <= {"before"} else "after"
    return side


def join_codes(graph: Graph) -> Graph:
    """The graph in which `MANY_COLUMNS` neighbouring columns of codes of strings, or more, are one matrix before anything else is done with
    them: `Concat(code, …, code, numbers)` → `Concat(Concat(code, …, code), numbers)`, and where each is looked up in a table,
    `Concat(Take(table, code), …)` → `Take(tables, Concat(code, …) + starts)`. The matrix enters the device as one input (`_side_by_side`).
    200 target encoded columns beside numbers compiled in 42 s, and in 2.3 s so."""
    columns = _of_strings(graph)
    if len(columns) < MANY_COLUMNS:
        return graph

    def kind(node: Node) -> str:
        """Columns of the same kind can be joined: "" for none."""
        if isinstance(node.op, Take) and node.op.axis == 0 and len(node.inputs[0].type.shape) == 1:
            table, codes = node.inputs
            return f"looked up by {codes.type.dtype}" if codes in columns and _is_constant(table) else ""
        return "codes" if node in columns else ""

    def joined(node: Node) -> Node | None:
        if not isinstance(node.op, Concat) or node.op.axis != 1 or len(node.inputs) < MANY_COLUMNS:
            return None
        parts: list[Node] = []
        for what, run in itertools.groupby(node.inputs, kind):
            group = tuple(run)
            if not what or len(group) < MANY_COLUMNS:
                parts += group
            else:
                parts.append(node.op(*group) if what == "codes" else _looked_up_together(group))
        if len(parts) == 1:
            return parts[0] if isinstance(parts[0].op, Take) else None  # None: they stand side by side already
        return node.op(*parts) if len(parts) < len(node.inputs) else None

    return rewrite(graph, joined)


def _looked_up_together(columns: tuple[Node, ...]) -> Node:
    """One look-up, in the tables of all columns one after the other, for the look-ups of each column in its own table."""
    return columns[0].op.joined(columns, lambda number: Concat(1)(*(node.inputs[number] for node in columns)))


def _side_by_side(graph: Graph) -> set[Node]:
    """The matrices of many columns that the host computes of strings, one by one. On the device each column would be an input with loops of
    its own. LLVM took 10 s for 100 columns, and more than a minute for 300."""
    columns = _of_strings(graph)
    return {
        node
        for node in graph.nodes
        if isinstance(node.op, Concat) and len(node.inputs) >= MANY_COLUMNS and columns.issuperset(node.inputs)
    }


def _of_strings(graph: Graph) -> set[Node]:
    """The numbers that the host computes of strings."""
    return {
        node
        for node in graph.nodes
        if on_host(node) and not isinstance(node.op, (Input, Constant)) and node.type.dtype != "str"
    }


def _leaving(group: tuple[Node, ...], side: Mapping[Node, str]) -> list[Node]:
    """The device's values from which the host computes the outputs of a method, together with the graph's inputs."""
    leaving: dict[Node, None] = {}
    stack = list(reversed(group))
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if side[node] == "device":
            leaving[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(reversed(node.inputs))
    return list(leaving)


def makes_rows_of_much(graph: Graph) -> bool:
    """Whether the rows of the graph should and can be computed in blocks. They should if the host makes Rows from text or
    from arrays of more than 1 KiB a row, or computes with such inputs in numpy. They can if no operator mixes rows."""
    sources = [source for node in graph.nodes if node.op.rows == "makes" for source in node.inputs]
    sources += [node for node in graph.nodes if node.op.in_numpy]
    return not graph.mixes_rows and any(
        source.type.dtype == "str" or source.type.width * NUMPY_DTYPES[source.type.dtype].itemsize > 1024 for source in sources
    )
