"""Whether the indices in a graph stay inside the tables they lead to. Converters make no others; a file can have been made by hand,
and compiled code reads whatever stands there."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Constant, Graph, Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.checks import Check, CheckValues
from hbc.ops.columns import Categorize, Rank, SelectColumns, TakeByColumn
from hbc.ops.curves import BSplines
from hbc.ops.features import Lookup, Polynomial
from hbc.ops.nearest import Scatter, Smallest
from hbc.ops.text import CountItems, CountTerms, HoldsLabels
from hbc.ops.tree import CategoryPlanes, TreeEnsemble

Span = tuple[int, int] | None
"""The least and the largest of integers; None: not known (integers made of floats), and then they are not looked at."""


def require_sound(graph: Graph) -> None:
    """Raise ValueError for indices that lead out of their tables, or trees that are none."""
    spans: dict[Node, Span] = {}
    for node in graph.nodes:
        operands = [spans[source] for source in node.inputs]
        _require_indices(node, operands)
        spans[node] = _span(node, operands)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_indices(node: Node, operands: list[Span]) -> None:
    match node.op:
        case TreeEnsemble():
            _require_trees(node.op)
        case CategoryPlanes() as op:
            offsets = op.offsets
            _require(
                _within(offsets, 0, len(op.categories)) and bool((np.diff(offsets) >= 0).all()), "offsets beyond categories"
            )
            _require(len(op.inside) == len(op.missing) == len(op.invalid) == len(op.columns), "planes of different numbers")
        case t.Take(axis):
            size = node.inputs[0].type.shape[axis]
            _require_span(operands[1], int(size) - 1)
        case t.TakeAlong():
            _require_span(operands[1], node.inputs[0].type.columns - 1)
        case TakeByColumn(table):
            _require_span(operands[0], table.shape[1] - 1)
        case Scatter(width):
            _require_span(operands[0], width - 1)
        case Polynomial(terms):
            _require(_within(terms, -1, node.inputs[0].type.columns - 1), "terms of columns that are not there")
        case CheckValues() as op:
            _require(_within(op.counts, 0, op.values.shape[1]), "counts beyond the values")
        case BSplines() as op:
            _require(op.degree >= 0, f"splines of degree {op.degree}")
        case CountTerms() | CountItems() as op:
            _require(_within(op.columns, -1, op.width - 1), f"columns beyond {op.width}")
        case HoldsLabels() as op:
            _require(_within(op.columns, 0, len(op.columns) - 1), "columns of labels that are not there")


def _require_trees(op: TreeEnsemble) -> None:
    """Nodes that lead to nodes, leaves to values, and every node reached from one place at most: then no way goes round."""
    nodes, leaves = len(op.feature), len(op.values)
    sizes = {len(array) for array in (op.threshold, op.left, op.right, op.missing_left)}
    _require(sizes <= {nodes} and len(op.leaf_ids) == leaves and op.values.ndim == 2, "nodes and leaves of different numbers")
    kinds = {array.dtype.kind for array in (op.roots, op.feature, op.left, op.right, op.target, op.leaf_ids)}
    _require(kinds == {"i"} and op.missing_left.dtype.kind == "b", "indices that are no integers")
    _require(op.values.dtype == op.base.dtype and op.base.ndim == 1, "leaves and base of different dtypes")
    _require(_within(op.feature, -1, nodes and int(op.feature.max())), "features below -1")
    at_leaf = op.feature < 0
    _require(_within(op.roots, 0, nodes - 1), "roots that are no nodes")
    children = np.concatenate([op.left[~at_leaf], op.right[~at_leaf]])
    _require(_within(children, 0, nodes - 1), "children that are no nodes")
    _require(_within(op.left[at_leaf], 0, leaves - 1), "leaves without values")
    times = np.bincount(np.concatenate([np.unique(op.roots), children]).astype(np.int64), minlength=1)
    _require(int(times.max(initial=0)) <= 1, "nodes that are reached in two ways")
    _require(len(op.target) == len(op.roots), "targets of other trees")
    _require(_within(op.target, 0, len(op.base) - op.values.shape[1]), "targets beyond the outputs")


def _within(array: Array, least: int, largest: int) -> bool:
    return not array.size or bool(least <= array.min() <= array.max() <= largest)


def _require_span(span: Span, largest: int) -> None:
    if span is not None and span[0] <= span[1]:
        _require(span[0] >= 0 and span[1] <= largest, f"indices {span[0]} to {span[1]} of a table of {largest + 1}")


def _of(*arrays: Array) -> Span:
    """The span of integers; (0, -1) for none at all."""
    found = [(int(array.min()), int(array.max())) for array in arrays if array.size]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else (0, -1)


def _union(spans: list[Span]) -> Span:
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return None
    some = [span for span in known if span[0] <= span[1]]
    return (min(low for low, _ in some), max(high for _, high in some)) if some else (0, -1)


def _span(node: Node, operands: list[Span]) -> Span:
    """The integers that a value can be."""
    if node.type.dtype == "bool":
        return (0, 0) if isinstance(node.op, t.Less) and node.inputs[0] is node.inputs[1] else (0, 1)
    if node.type.is_float or node.type.dtype == "str":
        return None
    match node.op:
        case Constant(value):
            return _of(np.asarray(value))
        case t.ArgMax(axis):
            size = node.inputs[0].type.shape[axis]
            return 0, int(size) - 1
        case Smallest():
            return 0, node.inputs[0].type.columns
        case Rank(edges):
            return 0, edges.shape[1]
        case Categorize(categories, nan, none, unknown):
            return _of(np.array([nan, none, unknown]), np.arange(len(categories)))
        case Lookup(_, codes, unknown, missing):
            return _of(codes, unknown, missing)
        case TakeByColumn(table):
            return _of(table)
        case TreeEnsemble() as op:
            return _of(op.leaf_ids)
        case CheckValues() as op if op.allowed and op.values.dtype.kind in "iu":
            return _of(*(row[:count] for row, count in zip(op.values, op.counts, strict=True)))
        case t.Add() | t.Sub() | t.Mul() | t.Minimum() | t.Maximum():
            return _combined(node.op, *operands)
        case t.Where():
            return _union(operands[1:])
        case t.Take() | t.TakeAlong() | t.Cast() | t.Reshape() | SelectColumns() | Check():
            return operands[0]
        case t.Concat():
            return _union(operands)
    return None


def _combined(op: t.Binary, one: Span, other: Span) -> Span:
    if one is None or other is None:
        return None
    corners = [op.evaluate(np.array(a), np.array(b)) for a in one for b in other]
    return _of(np.array(corners))
