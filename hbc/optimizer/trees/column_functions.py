"""What operators compute of single columns, for many numbers of each at once: values, or ranges that hold all values of an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np

from hbc.ir.graph import Constant, Node, Operator, topological
from hbc.ir.ranges import Range
from hbc.ir.types import Array
from hbc.ops.curves import NormalQuantile
from hbc.ops.functions import Function
from hbc.optimizer.columns.column import Column
from hbc.optimizer.trees.cuts import Curves
from hbc.optimizer.trees.enclosure import enclose

Operands = Mapping[Column, tuple[Column | None, ...]]
Values = Array | Range


class ColumnFunctions:
    """What pieces of chains compute, by feature: of numbers in their last columns, those in their first ones.

    Operators compute all their columns side by side, as in any call, with the source's own logarithms; a row has a number for each of the
    last columns, and what no piece passes is NaN.
    """

    def __init__(self, pieces: Mapping[int, Sequence[Column]], operands: Operands) -> None:
        passed: dict[Node, list[int]] = defaultdict(list)
        for node, index in set().union(*(_between(piece, operands) for piece in pieces.values())):
            passed[node].append(index)
        nodes = topological(piece[0][0] for piece in pieces.values())
        self.steps = [(node, _sources(node, passed[node], operands)) for node in nodes if node in passed]
        self.number = np.zeros(max(pieces) + 1, np.int64)  # of the piece, by feature
        self.number[list(pieces)] = np.arange(len(pieces))
        self.heads = [piece[0] for piece in pieces.values()]
        self.bases = [piece[-1] for piece in pieces.values()]

    def compute(self, features: Array, numbers: Array) -> Array:
        """What is computed of a number each."""
        found = self._run(features, numbers, lambda node, operands: _as_source(node.op).evaluate(*operands))
        return cast("Array", found)

    def enclose(self, features: Array, low: Array, high: Array) -> Range:
        """What the numbers computed of all those between two lie in."""
        found = self._run(features, Range.of(low, high), lambda node, operands: enclose(node.op, operands))
        return cast("Range", found)

    def of(self, features: Array) -> Curves:
        return Curves(
            lambda tests, numbers: self.compute(features[tests], numbers),
            lambda tests, low, high: self.enclose(features[tests], low, high),
        )

    def _run(self, features: Array, numbers: Values, step: Callable[[Node, list[Any]], Values]) -> Values:
        piece = self.number[features]
        base = np.array([self.bases.index(column) for column in self.bases])[piece]
        order = np.argsort(base, kind="stable")
        row = np.empty(len(base), np.int64)
        row[order] = np.arange(len(base)) - np.searchsorted(base[order], base[order])
        rows = int(row.max(initial=-1)) + 1
        values: dict[Node, Values] = {}
        for node, here, index in _by_node(self.bases, piece):
            values[node] = _each(numbers, partial(_placed, (rows, node.type.columns), row[here], index, here))
        with np.errstate(all="ignore"):
            for node, sources in self.steps:
                values[node] = step(node, [source(values) for source in sources])
        found = [
            (here, _each(values[node], itemgetter((row[here], index)))) for node, here, index in _by_node(self.heads, piece)
        ]
        return _merged(found, len(piece))


def _between(piece: Sequence[Column], operands: Operands) -> set[Column]:
    """The columns that the first one of a piece is computed from, itself among them, before the last one."""
    found: set[Column] = set()
    open_ = [piece[0]]
    while open_:
        column = open_.pop()
        if column != piece[-1] and column not in found:
            found.add(column)
            open_ += [source for source in operands[column] if source is not None]
    return found


def apart(pieces: dict[int, list[Column]], operands: Operands) -> list[dict[int, list[Column]]]:
    """Pieces to compute together: all, unless one begins with what another passes through."""
    passed = set().union(*(_between(piece, operands) for piece in pieces.values())) if pieces else set()
    if passed.isdisjoint(piece[-1] for piece in pieces.values()):
        return [pieces]
    return [{feature: piece} for feature, piece in pieces.items()]


def _by_node(columns: Sequence[Column], piece: Array) -> Iterator[tuple[Node, Array, Array]]:
    """Each node that has a piece's column, the places where it is that one's, and the indices of these columns."""
    nodes = list(dict.fromkeys(node for node, _ in columns))
    node_of = np.array([nodes.index(node) for node, _ in columns])[piece]
    index = np.array([index for _, index in columns])[piece]
    for i, node in enumerate(nodes):
        here = np.flatnonzero(node_of == i)
        yield node, here, index[here]


def _sources(node: Node, indices: Sequence[int], operands: Operands) -> list[Callable[[Mapping[Node, Values]], Any]]:
    """Where the operands of a node are found among values: constants, whole values, or columns of several."""

    def constant(value: Array, _: Mapping[Node, Values]) -> Array:
        return value

    def columns_of(source: Node, columns: Sequence[Column], values: Mapping[Node, Values]) -> Values:
        if all(column == (source, index) for column, index in zip(columns, indices, strict=True)):
            return values[source]
        found = [_each(values[above], itemgetter((slice(None), index))) for above, index in columns]
        return _side_by_side(found, indices, source.type.columns)

    found: list[Callable[[Mapping[Node, Values]], Any]] = []
    for i, source in enumerate(node.inputs):
        if isinstance(source.op, Constant):
            found.append(partial(constant, source.op.value))
        else:
            columns = [cast("Column", operands[node, index][i]) for index in indices]
            found.append(partial(columns_of, source, columns))
    return found


def _each(values: Values, function: Callable[[Array], Array]) -> Values:
    """The function of an array, or of all three of a range."""
    if isinstance(values, Range):
        return Range(function(values.low), function(values.high), function(values.missing))
    return function(values)


def _together(values: Sequence[Values], function: Callable[[Sequence[Array]], Array]) -> Values:
    """The function of several arrays, or of each of the three of ranges."""
    if isinstance(values[0], Range):
        ranges = cast("Sequence[Range]", values)
        return Range(*(function([getattr(x, name) for x in ranges]) for name in ("low", "high", "missing")))
    return function(cast("Sequence[Array]", values))


def _placed(shape: tuple[int, int], row: Array, index: Array, here: Array, numbers: Array) -> Array:
    matrix = _nothing(shape, numbers.dtype)
    matrix[row, index] = numbers[here]
    return matrix


def _nothing(shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """NaN where there is one: the C library's functions are not called for it."""
    return np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)


def _side_by_side(columns: Sequence[Values], indices: Sequence[int], width: int) -> Values:
    """Columns at their indices, and nothing elsewhere."""

    def place(columns: Sequence[Array]) -> Array:
        matrix = _nothing((len(columns[0]), width), columns[0].dtype)
        matrix[:, list(indices)] = np.stack(columns, axis=1)
        return matrix

    return _together(columns, place)


def _merged(parts: Sequence[tuple[Array, Values]], count: int) -> Values:
    """Numbers from where they stand in each part."""

    def merge(arrays: Sequence[Array]) -> Array:
        found = np.empty(count, np.result_type(*arrays))
        for (here, _), array in zip(parts, arrays, strict=True):
            found[here] = array
        return found

    return _together([values for _, values in parts], merge)


def _as_source(op: Operator) -> Operator:
    """The operator with the bits of the library that the model is of (PlaceFunctions)."""
    return replace(op, on_host=True) if isinstance(op, (Function, NormalQuantile)) else op
