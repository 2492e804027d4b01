"""Evaluates the operators between single columns, for many numbers of each column at once. The results are values, or ranges that
hold all values of an interval."""

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
    """Evaluates, per feature, the operators of a piece of a chain: from a number in its last column to the number in its first
    column.

    The operators compute all their columns side by side, as in any call, with the source's own logarithms. One row holds one
    test number for each of the last columns. Places that no piece reads are NaN.
    """

    def __init__(self, pieces: Mapping[int, Sequence[Column]], operands: Operands) -> None:
        passed: dict[Node, list[int]] = defaultdict(list)
        for node, index in set().union(*(_between(piece, operands) for piece in pieces.values())):
            passed[node].append(index)
        nodes = topological(piece[0][0] for piece in pieces.values())
        self.steps = [(node, _sources(node, passed[node], operands)) for node in nodes if node in passed]
        self.number = np.zeros(max(pieces) + 1, np.int64)  # feature → number of its piece
        self.number[list(pieces)] = np.arange(len(pieces))
        self.heads = [piece[0] for piece in pieces.values()]
        self.last_columns = [piece[-1] for piece in pieces.values()]

    def compute(self, features: Array, numbers: Array) -> Array:
        """For each (feature, number): the value that the feature's piece computes from the number."""
        found = self._run(features, numbers, lambda node, operands: _as_source(node.op).evaluate(*operands))
        return cast("Array", found)

    def enclose(self, features: Array, low: Array, high: Array) -> Range:
        """For each (feature, low, high): a range that holds the values of all numbers from low to high."""
        found = self._run(features, Range.of(low, high), lambda node, operands: enclose(node.op, operands))
        return cast("Range", found)

    def of(self, features: Array) -> Curves:
        return Curves(
            lambda tests, numbers: self.compute(features[tests], numbers),
            lambda tests, low, high: self.enclose(features[tests], low, high),
        )

    def _run(self, features: Array, numbers: Values, step: Callable[[Node, list[Any]], Values]) -> Values:
        piece = self.number[features]
        last = np.array([self.last_columns.index(column) for column in self.last_columns])[piece]
        order = np.argsort(last, kind="stable")
        row = np.empty(len(last), np.int64)
        row[order] = np.arange(len(last)) - np.searchsorted(last[order], last[order])
        rows = int(row.max(initial=-1)) + 1
        values: dict[Node, Values] = {}
        for node, here, index in _by_node(self.last_columns, piece):
            values[node] = _each(numbers, partial(_placed, (rows, node.type.columns), row[here], index, here))
        with np.errstate(all="ignore"):
            for node, sources in self.steps:
                values[node] = step(node, [source(values) for source in sources])
        found = [
            (here, _each(values[node], itemgetter((row[here], index)))) for node, here, index in _by_node(self.heads, piece)
        ]
        return _merged(found, len(piece))


def _between(piece: Sequence[Column], operands: Operands) -> set[Column]:
    """The columns between the ends of a piece: the first column and all that it is computed from, without the last column."""
    found: set[Column] = set()
    open_ = [piece[0]]
    while open_:
        column = open_.pop()
        if column != piece[-1] and column not in found:
            found.add(column)
            open_ += [source for source in operands[column] if source is not None]
    return found


def apart(pieces: dict[int, list[Column]], operands: Operands) -> list[dict[int, list[Column]]]:
    """The groups of pieces that can be computed together: all of them, unless the last column of one lies inside another piece;
    then each alone."""
    passed = set().union(*(_between(piece, operands) for piece in pieces.values())) if pieces else set()
    if passed.isdisjoint(piece[-1] for piece in pieces.values()):
        return [pieces]
    return [{feature: piece} for feature, piece in pieces.items()]


def _by_node(columns: Sequence[Column], piece: Array) -> Iterator[tuple[Node, Array, Array]]:
    """For each different node among the columns: (the node, the places where a piece's column belongs to it, the indices of these
    columns)."""
    nodes = list(dict.fromkeys(node for node, _ in columns))
    node_of = np.array([nodes.index(node) for node, _ in columns])[piece]
    index = np.array([index for _, index in columns])[piece]
    for i, node in enumerate(nodes):
        here = np.flatnonzero(node_of == i)
        yield node, here, index[here]


def _sources(node: Node, indices: Sequence[int], operands: Operands) -> list[Callable[[Mapping[Node, Values]], Any]]:
    """For each operand of a node, a function that takes it from the values computed so far: a constant, a whole value, or columns
    of several values side by side."""

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
    """function(array), or a range with the function applied to each of its three arrays."""
    if isinstance(values, Range):
        return Range(function(values.low), function(values.high), function(values.missing))
    return function(values)


def _together(values: Sequence[Values], function: Callable[[Sequence[Array]], Array]) -> Values:
    """function(arrays), or for ranges a range of function(lows), function(highs), function(missings)."""
    if isinstance(values[0], Range):
        ranges = cast("Sequence[Range]", values)
        return Range(*(function([getattr(x, name) for x in ranges]) for name in ("low", "high", "missing")))
    return function(cast("Sequence[Array]", values))


def _placed(shape: tuple[int, int], row: Array, index: Array, here: Array, numbers: Array) -> Array:
    matrix = _nothing(shape, numbers.dtype)
    matrix[row, index] = numbers[here]
    return matrix


def _nothing(shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """A matrix of NaN (of 0 for dtypes without NaN). The C library's functions are not called for NaN."""
    return np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)


def _side_by_side(columns: Sequence[Values], indices: Sequence[int], width: int) -> Values:
    """A matrix with these columns at their indices, and NaN or 0 elsewhere."""

    def place(columns: Sequence[Array]) -> Array:
        matrix = _nothing((len(columns[0]), width), columns[0].dtype)
        matrix[:, list(indices)] = np.stack(columns, axis=1)
        return matrix

    return _together(columns, place)


def _merged(parts: Sequence[tuple[Array, Values]], count: int) -> Values:
    """One array of `count` numbers, put together from the parts (places, numbers)."""

    def merge(arrays: Sequence[Array]) -> Array:
        found = np.empty(count, np.result_type(*arrays))
        for (here, _), array in zip(parts, arrays, strict=True):
            found[here] = array
        return found

    return _together([values for _, values in parts], merge)


def _as_source(op: Operator) -> Operator:
    """The operator with the bits of the source library: functions compute in numpy (PlaceFunctions)."""
    return replace(op, on_host=True) if isinstance(op, (Function, NormalQuantile)) else op
