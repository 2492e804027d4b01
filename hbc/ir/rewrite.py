"""The one rewrite driver: rebuild a graph bottom-up, replacing nodes by rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from hbc.ir.graph import Graph, Node

Rule = Callable[[Node], Node | None]
"""A function of a node, whose inputs are already rewritten. It returns the node's replacement, or None to keep the node."""

NotingRule = Callable[[Node], tuple[Node, str] | None]
"""A Rule that gives, with the replacement, a sentence about it."""

MAX_REWRITES_PER_NODE = 1000


class Noted(NamedTuple):
    """A rewritten graph, and sentences about what was rewritten."""

    graph: Graph
    notes: tuple[str, ...] = ()


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Apply `rule` to every node, inputs first, and again to what it returns until it returns None.

    The replacement must have the type of what it replaces; anything else is a TypeError that names both. Nodes that
    become equal (same operator, same inputs) become one, so every rewrite also removes common subexpressions. Where nothing
    changes, the result is the graph itself, which knows its nodes already.
    """
    replaced: dict[Node, Node] = {}
    known: dict[tuple[object, ...], Node] = {}

    def unify(node: Node) -> Node:
        return known.setdefault((node.op.key, *map(id, node.inputs)), node)

    def visit(root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in replaced:
                stack.pop()
                continue
            waiting = [source for source in node.inputs if source not in replaced]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            sources = tuple(replaced[source] for source in node.inputs)
            current = unify(node if sources == node.inputs else node.op(*sources))
            after = rule(current)
            if after is None or after is current:
                replaced[node] = replaced[current] = current
                continue
            if after.type != node.type:
                raise TypeError(f"{rule!r} replaced {node!r} by {after!r} of another type")
            steps[0] += 1
            if steps[0] > limit:
                raise RuntimeError(f"{rule!r} does not come to an end (last at {node!r})")
            # The replacement is new territory: rewrite it too, then let the old node stand for its result.
            replaced[node] = visit(after)
            replaced.setdefault(current, replaced[node])
        return replaced[root]

    steps = [0]
    limit = MAX_REWRITES_PER_NODE * (len(graph.nodes) + 1)
    inputs = tuple(visit(node) for node in graph.inputs)
    outputs = {method: tuple(map(visit, group)) for method, group in graph.outputs.items()}
    return graph if inputs == graph.inputs and outputs == graph.outputs else Graph(inputs, outputs)


def rewrite_noting(graph: Graph, rule: NotingRule) -> Noted:
    """`rewrite`, with the sentence of every rewrite in the order in which they were made."""
    notes: list[str] = []

    def replacement(node: Node) -> Node | None:
        found = rule(node)
        if found is None:
            return None
        notes.append(found[1])
        return found[0]

    return Noted(rewrite(graph, replacement), tuple(notes))


def without_facts(graph: Graph) -> Graph:
    """The graph whose operators have no `facts` (hbc.ir.graph.beside); itself if none has."""
    if not any(node.op.facts for node in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        op = node.op.without_facts() if node.op.facts else node.op
        inputs = tuple(new[source] for source in node.inputs)
        new[node] = node if op is node.op and inputs == node.inputs else Node(op, inputs)
    outputs = {method: tuple(new[node] for node in group) for method, group in graph.outputs.items()}
    return Graph(tuple(new[node] for node in graph.inputs), outputs)


def substitute(roots: Iterable[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """The roots, rebuilt with some nodes replaced by others. Nodes that depend on no replaced node are the same objects as before."""
    roots = list(roots)
    new = dict(replacements)

    def reach(root: Node) -> Iterator[Node]:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [] if node in new else [source for source in node.inputs if source not in new]
            stack.extend(reversed(waiting))
            if not waiting:
                yield stack.pop()

    for root in roots:
        for node in reach(root):
            if node not in new:
                sources = tuple(new[source] for source in node.inputs)
                new[node] = node if sources == node.inputs else node.op(*sources)
    return [new[root] for root in roots]
