"""Graphs as SVG pictures. layers.py places the boxes; style.py has the colours."""

from __future__ import annotations

from collections.abc import Callable, Collection
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hbc.errors import counted
from hbc.ir.graph import Constant, Graph, Input, Node, array_key
from hbc.runtime.layers import Bend, Box, Layout, layout

MOST_NODES = 150
"""The most nodes of a picture. A large graph, as lowering makes it, is better read as text."""
LETTER, MARGIN, LINE, GAP = 6.7, 14.0, 13.0, 24.0
"""In pixels: the width of a letter of 11 px, the margin beside a label, the height of a line of text, and the gap between layers."""
LETTERS = 26  # the most letters of a line; longer ones are cut
SHOWN = 4  # the most numbers of an array in a label


class Label(NamedTuple):
    """The text of a box, its look (a class of style.py), and what a pointer on it shows."""

    lines: tuple[str, ...]
    look: str
    title: str

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * LETTER + MARGIN

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + 10


def svg(graph: Graph, other: Graph, hosted: Collection[Node] | None = None) -> str:
    """An SVG element with the graph's operators, from its inputs down to its methods. Constants are left out: they are parameters.
    Everything from outside is escaped.

    other: a graph to compare with. Operators that it does not have are marked. hosted: the nodes that the host computes; None if that is
    not decided yet.
    """
    nodes = [node for node in graph.nodes if not isinstance(node.op, Constant)]
    if len(nodes) > MOST_NODES:
        return f"<p>{len(nodes)} operators: too many for a picture.</p>"
    left = _counted(other)
    labels: dict[Box, Label] = {}
    for node in nodes:
        words = _words(node)
        kept = left.get(words, 0) > 0
        left[words] = left.get(words, 0) - 1
        look = "input" if isinstance(node.op, Input) or hosted is None else "host" if node in hosted else "device"
        labels[node] = Label(_lines(node), look if kept else f"{look} changed", _title(node))
    for method, group in graph.outputs.items():
        types = ", ".join(str(node.type) for node in group)
        labels[method] = Label((method, types), "method", f"{method}: {types}")
    sources = {box: _sources(box, graph) for box in labels}
    return _drawn(labels, sources, layout(sources, {box: label.width for box, label in labels.items()}))


def _drawn(labels: dict[Box, Label], sources: dict[Box, list[Box]], found: Layout) -> str:
    heights = [0.0] * (1 + max(found.layers.values(), default=-1))
    for box, label in labels.items():
        heights[found.layers[box]] = max(heights[found.layers[box]], label.height)
    tops = [2.0]
    for height in heights:
        tops.append(tops[-1] + height + GAP)

    def ends(box: Box) -> tuple[float, float, float]:
        """(x, the upper end, the lower end) of a box, or of a bend, which lines pass straight."""
        layer = found.layers[box]
        height = heights[layer] if isinstance(box, Bend) else labels[box].height
        top = tops[layer] + (heights[layer] - height) / 2
        return found.middles[box] + 2, top, top + height

    lines = []
    for target, boxes in sources.items():
        for source in boxes:
            path = ""
            for upper, lower in pairwise(found.line(source, target)):
                (x, start, y), (to_x, to_y, _) = ends(upper), ends(lower)
                path += f"M{x:.1f} {y:.1f}" if not path else f"L{x:.1f} {y:.1f}" if y > start else ""
                bend = (y + to_y) / 2
                path += f"C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {to_y:.1f}"
            lines.append(f"<path d='{path}'/>")
    shapes = [_shape(label, *ends(box)[:2]) for box, label in labels.items()]
    width, height = found.width + 4, tops[-1] - GAP + 4
    size = f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' height='{height:.0f}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>" + "".join(lines + shapes) + "</svg>"


def _shape(label: Label, x: float, y: float) -> str:
    texts = "".join(
        f"<text x='{x:.1f}' y='{y + 14 + LINE * i:.1f}' class='{'small' if i else ''}'>{escape(line)}</text>"
        for i, line in enumerate(label.lines)
    )
    radius = label.height / 2 if label.look == "method" else 4
    place = f"x='{x - label.width / 2:.1f}' y='{y:.1f}' width='{label.width:.1f}' height='{label.height:.1f}' rx='{radius:.0f}'"
    return f"<g class='{label.look}'><title>{escape(label.title)}</title><rect {place}/>{texts}</g>"


def _sources(box: Box, graph: Graph) -> list[Box]:
    nodes = box.inputs if isinstance(box, Node) else graph.outputs[str(box)]
    return [node for node in dict.fromkeys(nodes) if not isinstance(node.op, Constant)]


def _counted(graph: Graph) -> dict[str, int]:
    """How many operators of the graph there are with the same words."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[_words(node)] = counts.get(_words(node), 0) + 1
    return counts


def _words(node: Node) -> str:
    """An operator with all its parameters, as text. A digest stands for the numbers of an array."""
    return f"{_name(node)} {node.type} {[_exact(name, getattr(node.op, name)) for name in node.op.parameters]} {_constants(node, _exact)}"


def _exact(name: str, value: object) -> str:
    return f"{name} {array_key(value)}" if isinstance(value, np.ndarray) else f"{name} {value}"


def _constants(node: Node, show: Callable[[str, object], str]) -> list[str]:
    """The operands of an operator that are constants, each as `show` writes it."""
    return [show("constant", source.op.value) for source in node.inputs if isinstance(source.op, Constant)]


def _name(node: Node) -> str:
    return str(getattr(node.op, "name", type(node.op).__name__))


def _lines(node: Node) -> tuple[str, ...]:
    """The lines in the box of an operator: its name, what is special about it, and its type."""
    name = _name(node)
    if isinstance(node.op, Input):
        return name, str(node.type)
    trees = getattr(node.op, "n_trees", None)
    if trees is None:
        facts = [_short(name, getattr(node.op, name)) for name in node.op.parameters] + _constants(node, _short)
    else:
        facts = [counted(trees, "tree")]
    fact = ", ".join(filter(None, facts))
    return tuple(line if len(line) <= LETTERS else line[: LETTERS - 1] + "…" for line in (name, fact, str(node.type)) if line)


def _short(name: str, value: object) -> str:
    """A parameter in a few letters; "" for one that says little."""
    if isinstance(value, np.ndarray) and (value.dtype == object or value.size > SHOWN or value.ndim > 1):
        return f"{name}[{value.size}]"
    if isinstance(value, np.ndarray):
        numbers = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in value.ravel().tolist()]
        return f"{name}={', '.join(numbers)}"
    if isinstance(value, (bool, type(None))):
        return ""
    if isinstance(value, (float, np.floating)):
        return f"{name}={value:.4g}"
    return f"{name}={str(value).rpartition('.')[2]}" if isinstance(value, (int, str)) else ""


def _title(node: Node) -> str:
    """What a pointer on an operator shows: its equation, then its parameters, a line each."""
    lines = [f"{_name(node)}: {node.type}"]
    summary = (type(node.op).__doc__ or "").strip().partition("\n")[0]
    lines += [summary] if summary and not isinstance(node.op, Input) else []
    for key in node.op.parameters:
        value = getattr(node.op, key)
        text = np.array2string(value, threshold=24, edgeitems=8, precision=6) if isinstance(value, np.ndarray) else str(value)
        lines.append(f"{key} = {text[:600]}")
    return "\n".join(lines)
