"""The ranges of numbers that a model tells apart: from the least to the largest number that it compares a column with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hbc.ir.graph import Constant, Input, Node
from hbc.ir.origins import Origins, Place, sources_of
from hbc.ir.signature import input_layout
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.runtime.model import CompiledModel


def ranges_of(model: CompiledModel) -> dict[int, tuple[float, float]]:
    """Column → the least and the largest number that trees and bins of the model compare it with. A row with a number beyond them is
    computed as if it had the outermost one that was seen in training, or nearly so: a sign that the data have changed.

    Where numbers are scaled before they are compared, the range is that of the numbers before: exactly those beyond it are scaled to
    numbers beyond the outermost. Columns that the model computes with otherwise (linear models, neighbours, logarithms) have none."""
    main = model.variants[model._main]
    layout, origins = input_layout(main.kinds), Origins()
    found: dict[int, tuple[float, float]] = {}
    scaled: dict[tuple[Place, ...], tuple[float, float]] = {}

    def add(place: Place, low: float, high: float) -> None:
        source, column = place
        assert isinstance(source.op, Input)
        number = layout[source.op.name][column]
        found[number] = _together(found.get(number), (low, high))

    for node in main.source.glance().nodes:
        outermost = node.op.outermost()
        if outermost is None:
            continue
        operand = node.inputs[0]
        for place, (low, high) in enumerate(zip(*outermost, strict=True)):
            if not low <= high:
                continue
            if origins.unchanged(operand, place):
                for source in origins.of(operand, place):
                    add(source, float(low), float(high))
            elif (way := _way(operand, place)) is not None:
                scaled[way] = _together(scaled.get(way), (float(low), float(high)))
    for _, ways in groupby(sorted(scaled, key=_nodes_of), _nodes_of):
        together = list(ways)
        for way, low, high in zip(together, *_before(together, [scaled[way] for way in together]), strict=True):
            if low > -np.inf or high < np.inf:
                add(way[-1], float(low), float(high))
    return found


def _together(known: tuple[float, float] | None, other: tuple[float, float]) -> tuple[float, float]:
    return other if known is None else (min(known[0], other[0]), max(known[1], other[1]))


def _way(node: Node, column: int) -> tuple[Place, ...] | None:
    """The columns from which this one is computed, one after the other, each by an operator that keeps or reverses the order of numbers:
    (this one, …, an input's). None if it is computed otherwise. Operators that only choose columns are left out."""
    way: list[Place] = []
    while not isinstance(node.op, Input):
        varying = [each for each in node.inputs if not isinstance(each.op, Constant)]
        if node.op.keeps(node.inputs):
            sources = sources_of(node, column)
            if len(sources) != 1:
                return None
            node, column = sources[0]
        elif len(varying) == 1 and varying[0].type.shape == node.type.shape and _is_monotone(node, column):
            if varying[0].type.is_float:  # an integer is the same number as a float, as near as matters here
                way.append((node, column))
            node = varying[0]
        else:
            return None
    return (*way, (node, column)) if way else None


def _is_monotone(node: Node, column: int) -> bool:
    keeps_order = node.op.monotone(*_operands(node, None))
    return bool(np.broadcast_to(keeps_order, node.type.columns)[column])


def _operands(node: Node, varying: Any) -> list[Any]:
    """The values of a node's operands, with `varying` for the one that is no constant."""
    return [each.op.value if isinstance(each.op, Constant) else varying for each in node.inputs]


def _nodes_of(way: Sequence[Place]) -> list[int]:
    return [id(node) for node, _ in way]


def _rows_of(places: Sequence[int]) -> Array:
    """The row in which each way's number stands among those of all ways: 0, but where a way before it has the same column. Several do if a
    column is chosen twice, and each copy is scaled."""
    seen: Counter[int] = Counter()
    rows = np.zeros(len(places), np.int64)
    for way, place in enumerate(places):
        rows[way] = seen[place]
        seen[place] += 1
    return rows


def _before(ways: Sequence[Sequence[Place]], ranges: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    """(the lower ends, the upper ends) of the ranges before the operators of some ways, which are the same for all of them. -inf and +inf
    where no number is scaled to one beyond the range. Found by bisection over the floats of the input, with the operators themselves."""
    nodes = [node for node, _ in ways[0][:-1]]
    columns = np.array([[column for _, column in way[:-1]] for way in ways]).T
    rows = [_rows_of(places.tolist()) for places in columns]
    source = next(each for each in nodes[-1].inputs if not isinstance(each.op, Constant)).type
    dtype = NUMPY_DTYPES[source.dtype]

    def scaled(numbers: Array) -> Array:
        for node, rows_of_ways, places in zip(reversed(nodes), reversed(rows), reversed(columns), strict=True):
            operand = next(each for each in node.inputs if not isinstance(each.op, Constant)).type
            matrix = np.zeros((rows_of_ways.max() + 1, operand.width), NUMPY_DTYPES[operand.dtype])
            matrix[rows_of_ways, places] = numbers
            with np.errstate(all="ignore"):
                numbers = node.op.evaluate(*_operands(node, matrix))[rows_of_ways, places]
        return numbers.astype(np.float64)

    bits = np.int32 if dtype.itemsize == 4 else np.int64
    most = np.full(len(ways), np.array(np.finfo(dtype).max, dtype).view(bits))

    def number(ordinal: Array) -> Array:
        """The floats in their order, counted from zero."""
        return np.copysign(np.abs(ordinal).view(dtype), ordinal).astype(dtype)

    low, high = np.array(ranges).T
    sign = np.where(scaled(number(most)) >= scaled(number(-most)), 1.0, -1.0)  # -1: it reverses the order
    low, high = np.where(sign > 0, low, -high), np.where(sign > 0, high, -low)

    def least(holds: Any) -> Array:
        """For each way the least number for which a condition holds that holds for all larger ones. +inf: it holds for none."""
        below, at = -most - 1, most.copy()
        none = ~holds(number(at))
        while (at - 1 > below).any():
            middle = below // 2 + at // 2 + (below & at & 1)
            good = holds(number(middle))
            below, at = np.where(good, below, middle), np.where(good, middle, at)
        return np.where(none, np.inf, number(at).astype(np.float64))

    lower = least(lambda x: sign * scaled(x) >= low)
    beyond = least(lambda x: sign * scaled(x) > high)
    upper = np.nextafter(beyond.astype(dtype), -np.array(np.inf, dtype)).astype(np.float64)
    is_bound = (lower > -np.finfo(dtype).max) & (lower < np.inf)
    return np.where(is_bound, lower, -np.inf), np.where(beyond < np.inf, upper, np.inf)
