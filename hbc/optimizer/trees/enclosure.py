"""Finds the range of an operator's results from the ranges of its operands: by the operator's own answer (`Operator.enclose`), or, if it is
monotone, from the ends of the range."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Operator
from hbc.ir.ranges import Range, anything, chosen, hull
from hbc.ir.types import Array


def enclose(op: Operator, operands: list[Range | Array]) -> Range:
    """A range that holds all results of the operator for numbers in the operands' ranges. An array is a constant operand."""
    ranges = [x if isinstance(x, Range) else Range.of(x, x) for x in operands]
    with np.errstate(all="ignore"):
        found = op.enclose(*ranges)
        return _monotone(op, operands) if found is None else found


def _monotone(op: Operator, operands: list[Range | Array]) -> Range:
    """Rounding keeps the order, so the ends of the interval give the ends of the result."""
    (place,) = (i for i, x in enumerate(operands) if isinstance(x, Range))
    x = operands[place]
    assert isinstance(x, Range)

    def computed(numbers: Array) -> Array:
        return np.asarray(op.evaluate(*operands[:place], numbers, *operands[place + 1 :]))

    low, high = computed(x.low), computed(x.high)
    y = Range(np.minimum(low, high), np.maximum(low, high), np.zeros(low.shape, bool)).without_numbers(x.empty)
    if x.missing.any():
        nan = computed(np.full_like(x.low, np.nan))
        y = chosen(x.missing, hull(y, Range.of(nan, nan)), y)
    keeps = op.monotone(*(None if isinstance(operand, Range) else operand for operand in operands))
    return chosen(np.broadcast_to(keeps, y.low.shape), y, anything(y.low))
