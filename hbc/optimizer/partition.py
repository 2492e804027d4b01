"""What stays on the host (strings, functions that need numpy's own bits, iterations): a graph is cut into what comes before the
device, what runs on it, and what comes after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Constant, Graph, Input, Node
from hbc.ir.rewrite import substitute
from hbc.ir.types import Array
from hbc.ops.tensor import Take
from hbc.optimizer.host import ancestors, on_host

BEFORE = "inputs"


@dataclass(frozen=True)
class Partition:
    """The three parts of a graph.

    before: from the graph's inputs to the device's, as its one output `BEFORE`; None where they are the same.
    device: the graph's methods, as far as numbers go; a method that is computed from strings alone is not among them.
    after: for a method that the host finishes, from the device's results (if it has any), followed by the graph's inputs.
    labels: of those methods in which it only looks the device's one result up in a table, the table.
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
        """The same device, between the host's graphs as the rule has them."""
        before = None if self.before is None else rule(self.before)
        return Partition(before, self.device, {method: rule(graph) for method, graph in self.after.items()})


def partition(graph: Graph) -> Partition:
    """Cut where strings end (category codes go in) and begin (class labels come out). Raises UnsupportedOperatorError for a
    graph that computes with strings that it has computed from predictions."""
    if not any(on_host(node) for node in graph.nodes):
        return Partition(None, graph, {})
    side = _sides(graph)
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


def _sides(graph: Graph) -> dict[Node, str]:
    side: dict[Node, str] = {}
    numpy = ancestors(graph, [node for node in graph.nodes if node.op.in_numpy])
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


def _leaving(group: tuple[Node, ...], side: Mapping[Node, str]) -> list[Node]:
    """The device's values from which the host makes a method's output, together with the graph's inputs."""
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
