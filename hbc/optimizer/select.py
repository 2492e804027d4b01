"""Feature-selection push-down and injection: columns that nobody reads are not computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from hbc.ir.graph import Graph, Node
from hbc.ir.rewrite import substitute
from hbc.ir.types import Array
from hbc.ops.columns import SelectColumns
from hbc.ops.features import OneHot
from hbc.ops.tensor import Cast, Concat
from hbc.ops.tree import TreeEnsemble

WORTH_IT = 4
"""A selection moves if it saves at least one column in so many: to gather those that are left costs about as much as to scale them."""


@dataclass(frozen=True)
class PushSelection:
    """What trees do not read, and selections leave out, is not computed:

    `TreeEnsemble(Concat(Standardize(x), OneHot(c)))` → `TreeEnsemble'(Concat(Standardize'(SelectColumns(x)), OneHot'(c)))`;
    `SelectColumns(Standardize(x))` → `Standardize'(SelectColumns(x))`, through operators that keep columns apart, with the parameters
    of the columns that are left. It stops where a row is consumed whole, and where somebody else needs all columns.
    """

    def __call__(self, graph: Graph) -> Graph:
        while (replaced := _first(graph)) is not None:
            outputs = {method: tuple(substitute(group, replaced)) for method, group in graph.outputs.items()}
            graph = Graph(graph.inputs, outputs)
        return graph


def _first(graph: Graph) -> dict[Node, Node] | None:
    """The first value of which not all columns are read, as a replacement of its readers."""
    readers: dict[Node, list[Node | None]] = defaultdict(list)
    for node in graph.nodes:
        for source in node.inputs:
            readers[source].append(node)
    for group in graph.outputs.values():
        for node in group:
            readers[node].append(None)
    for x in reversed(graph.nodes):
        nodes = [node for node in readers[x] if node is not None and isinstance(node.op, (TreeEnsemble, SelectColumns))]
        if not nodes or len(nodes) < len(readers[x]):
            continue
        read = np.unique(np.concatenate([_read(node) for node in nodes]))
        narrow, saved = _narrowed(x, read, readers)
        if saved and saved * WORTH_IT >= x.type.columns:
            return {node: _renumbered(node, read, narrow) for node in nodes}
    return None


def _read(node: Node) -> Array:
    if isinstance(node.op, SelectColumns):
        return node.op.indices
    assert isinstance(node.op, TreeEnsemble)
    return node.op.feature[node.op.feature >= 0].astype(np.int64)


def _renumbered(node: Node, read: Array, x: Node) -> Node:
    """The node, reading the columns of x that stand for `read`."""
    op = node.op
    if isinstance(op, SelectColumns):
        indices = np.searchsorted(read, op.indices)
        return x if np.array_equal(indices, np.arange(x.type.columns)) else SelectColumns(indices)(x)
    assert isinstance(op, TreeEnsemble)
    feature = np.where(op.feature < 0, -1, np.searchsorted(read, op.feature)).astype(op.feature.dtype)
    return replace(op, feature=feature)(x)


def _narrowed(x: Node, kept: Array, readers: Mapping[Node, Sequence[Any]]) -> tuple[Node, int]:
    """x[:, kept], the columns ascending, and how many columns that saves from being computed."""
    size, op = x.type.columns, x.op
    if len(kept) == size:
        return x, 0
    chosen = SelectColumns(kept)(x), 0
    if not len(kept) or (len(readers[x]) > 1 and not _reads_trees(readers[x])):
        return chosen
    match op:
        case Concat(axis=1):
            parts, saved, start = [], 0, 0
            for part in x.inputs:
                width = part.type.columns
                inside = kept[(kept >= start) & (kept < start + width)] - start
                start += width
                if len(inside):
                    narrow, less = _narrowed(part, inside, readers)
                    parts.append(narrow)
                    saved += less
                else:
                    saved += width
            return (parts[0] if len(parts) == 1 else Concat(1)(*parts)), saved
        case SelectColumns(indices):
            return SelectColumns(indices[kept])(x.inputs[0]), 0
        case Cast():
            narrow, saved = _narrowed(x.inputs[0], kept, readers)
            return op(narrow), saved
        case OneHot() if type(op) is OneHot:
            used = np.unique(op.source[kept])
            narrow, saved = _narrowed(x.inputs[0], used, readers)
            return OneHot(np.searchsorted(used, op.source[kept]), op.value[kept], op.dtype)(narrow), saved + size - len(kept)
    if not op.columnwise or op.rows or len(x.inputs) != 1 or size == 1 or x.inputs[0].type.columns != size:
        return chosen
    parameters = {field.name: getattr(op, field.name) for field in fields(op)}  # type: ignore[arg-type]
    arrays = {name: value for name, value in parameters.items() if isinstance(value, np.ndarray)}
    if any(value.ndim == 0 or len(value) != size for value in arrays.values()):
        return chosen
    narrow, saved = _narrowed(x.inputs[0], kept, readers)
    smaller = replace(op, **{name: value[kept] for name, value in arrays.items()})  # type: ignore[type-var]
    return smaller(narrow), saved + size - len(kept)


def _reads_trees(nodes: Sequence[Node | None]) -> bool:
    """Whether all readers take columns by number: the value is narrowed for all of them at once."""
    return all(node is not None and isinstance(node.op, (TreeEnsemble, SelectColumns)) for node in nodes)
