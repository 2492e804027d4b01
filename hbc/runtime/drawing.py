"""Graphs as SVG pictures. The values stand in layers, each below the values that it is computed from."""

from __future__ import annotations

from html import escape

from hbc.ir.graph import Constant, Graph, Node

MOST_NODES = 150
"""The most nodes of a picture. A large graph, as lowering makes it, is better read as text."""
LETTER, MARGIN, HEIGHT, GAP = 6.8, 14, 34, 26
"""In pixels: the width of a letter of 11 px, the margin beside a label, the height of a box, and the gap between boxes."""


def svg(graph: Graph) -> str:
    """An SVG element with the graph's operators, from its inputs down to its methods. Constants are left out: they are parameters.
    Everything from outside is escaped."""
    nodes = [node for node in graph.nodes if not isinstance(node.op, Constant)]
    if len(nodes) > MOST_NODES:
        return f"<p>{len(nodes)} operators: too many for a picture.</p>"
    layers = _layers(nodes, graph)
    width = max((sum(_width(label) + GAP for label in layer.values()) for layer in layers), default=0) + GAP
    place: dict[Node | str, tuple[float, float]] = {}
    boxes: list[str] = []
    lines: list[str] = []
    for depth, layer in enumerate(layers):
        # Left to right as what they are computed from, so that few lines cross.
        order = sorted(layer, key=lambda item: _middle([place[source] for source in _sources(item, graph)]))
        x = (width - sum(_width(layer[item]) + GAP for item in order) + GAP) / 2
        y = GAP / 2 + depth * (HEIGHT + GAP)
        for item in order:
            size = _width(layer[item])
            place[item] = x + size / 2, y
            boxes.append(_box(layer[item], x, y, size, isinstance(item, str)))
            lines += [_line(place[source], place[item]) for source in _sources(item, graph)]
            x += size + GAP
    height = len(layers) * (HEIGHT + GAP)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        "style='font:11px monospace' fill='currentColor'>" + "".join(lines + boxes) + "</svg>"
    )


def _layers(nodes: list[Node], graph: Graph) -> list[dict[Node | str, tuple[str, str]]]:
    """One dict for each layer, from the values and (at the end) the methods to the two lines of text in the box of each."""
    depth: dict[Node, int] = {}
    layers: list[dict[Node | str, tuple[str, str]]] = []
    for node in nodes:
        depth[node] = 1 + max((depth[source] for source in node.inputs if source in depth), default=-1)
        while len(layers) <= depth[node]:
            layers.append({})
        layers[depth[node]][node] = getattr(node.op, "name", type(node.op).__name__), str(node.type)
    return [*layers, {method: (method, ", ".join(str(node.type) for node in group)) for method, group in graph.outputs.items()}]


def _sources(item: Node | str, graph: Graph) -> list[Node]:
    nodes = graph.outputs[item] if isinstance(item, str) else item.inputs
    return [node for node in dict.fromkeys(nodes) if not isinstance(node.op, Constant)]


def _middle(places: list[tuple[float, float]]) -> float:
    return sum(x for x, _ in places) / len(places) if places else 0.0


def _width(label: tuple[str, str]) -> float:
    return max(map(len, label)) * LETTER + MARGIN


def _box(label: tuple[str, str], x: float, y: float, width: float, method: bool) -> str:
    texts = "".join(
        f"<text x='{x + width / 2:.0f}' y='{y + 14 + 13 * i:.0f}' text-anchor='middle' opacity='{1 - 0.4 * i}'>{escape(text)}</text>"
        for i, text in enumerate(label)
    )
    radius = HEIGHT / 2 if method else 4
    shape = f"x='{x:.0f}' y='{y:.0f}' width='{width:.0f}' height='{HEIGHT}' rx='{radius:.0f}'"
    return f"<rect {shape} fill='#888' fill-opacity='.13' stroke='#888'/>{texts}"


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = start, end
    y += HEIGHT
    bend = (y + to_y) / 2
    path = f"M{x:.0f} {y:.0f} C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {to_y:.0f}"
    return f"<path d='{path}' fill='none' stroke='#888'/>"
