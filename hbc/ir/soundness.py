"""Checks that the indices in a graph stay inside their tables. In the graphs of converters they always
do, but a file can have been made by hand, and compiled code does not check an index. Each operator
declares its indices (`Operator.looks_up`) and the integers of its result (`Operator.span`)."""

from __future__ import annotations

from hbc.ir.graph import Graph, Node
from hbc.ir.spans import Span, span_of
from hbc.ir.types import Array


def require_sound(graph: Graph) -> None:
    """Raise ValueError for indices that lead out of their tables, and for
    parameters that contradict one another, such as trees that go round."""
    spans: dict[Node, Span] = {}
    for node in graph.nodes:
        operands = [spans[source] for source in node.inputs]
        node.op.require_sound()
        for name, places in node.op.looks_up(node.inputs).items():
            found = operands[name] if isinstance(name, int) else _span_of_parameter(node, name)
            if found is not None and found[0] <= found[1] and not (found[0] >= places.start and found[1] < places.stop):
                what = f"operand {name}" if isinstance(name, int) else name
                raise ValueError(
                    f"{type(node.op).__name__}: {what} is {found[0]} to {found[1]}, expected {places.start} to {places.stop - 1}"
                )
        unknown = node.type.is_float or node.type.dtype == "str"
        spans[node] = None if unknown else node.op.span(node, operands)


def _span_of_parameter(node: Node, name: str) -> Span:
    array: Array = getattr(node.op, name)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{type(node.op).__name__}: {name} holds {array.dtype}, expected integers")
    return span_of(array)
