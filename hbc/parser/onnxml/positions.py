"""Operators that find, sort and take by computed positions."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.nearest import Smallest
from hbc.parser.frame import Refusal
from hbc.parser.onnxml.values import Call, Series, implements, inner_axis

MOST_SUMS = 1024
"""The most columns of a CumSum: it becomes as many operators."""


def largest_position(index: Node) -> float:
    """The largest number of an index that comes from an ArgMax or a TopK, whose numbers are not negative; infinity for any other."""
    source = index
    while True:
        match source.op:
            case Check() | t.Cast() | t.Reshape():
                source = source.inputs[0]
            case t.Where():
                source = source.inputs[-1]
            case t.TakeAlong() | t.Take(axis=1):
                source = source.inputs[0]
            case t.ArgMax(axis=axis):
                return int(source.inputs[0].type.shape[axis]) - 1
            case Smallest():
                return source.inputs[0].type.columns - 1
            case _:
                return float("inf")


@implements("TopK", attributes=("axis", "k", "largest", "sorted"))
def top_k(call: Call) -> tuple[Node, Node]:
    """The k largest or smallest numbers of each row, f[N, k], and their columns, i64[N, k]. Equal numbers stand by column. A call is
    rejected for NaN and infinities."""
    x, k = call.matrix(0), int(call.array(1).item()) if call.has(1) else int(call.get("k", 0))
    if not x.type.is_float or inner_axis(int(call.get("axis", -1)), x) != 1 or not int(call.get("sorted", 1)):
        raise Refusal("it sorts integers, or does not sort.")
    if not 1 <= k <= x.type.columns:
        raise Refusal(f"it takes {k} of {x.type.columns} numbers.")
    x = Check("onnx.ModelProto", allow_nan=False, allow_inf=False, min_rows=0)(x)
    rising = t.neg(x) if int(call.get("largest", 1)) else x
    # Of equal numbers at the end, Smallest(k) keeps others than ONNX Runtime.
    places = Smallest(x.type.columns)(rising)
    places = t.take(places, np.arange(k), axis=1) if k < x.type.columns else places
    return t.take_along(x, places), places


@implements("GatherElements", attributes=("axis",))
def gather_elements(call: Call) -> Node:
    x, index = call.matrix(0), call.matrix(1)
    inner_axis(int(call.get("axis", 0)), x)
    if largest_position(index) >= x.type.columns:
        raise Refusal("it takes positions that come neither from an ArgMax nor from a TopK, and might not be there.")
    return t.take_along(x, index)


@implements("CumSum", attributes=("exclusive", "reverse"))
def cumulative_sums(call: Call) -> Node:
    x = call.matrix(0)
    inner_axis(int(call.array(1).item()), x)
    if int(call.get("exclusive", 0)) or int(call.get("reverse", 0)) or not 1 <= x.type.columns <= MOST_SUMS:
        raise Refusal(f"it leaves numbers out, starts at the end, or adds more than {MOST_SUMS} columns.")
    sums = [t.take(x, np.array([0]), axis=1)]
    for i in range(1, x.type.columns):
        sums.append(t.add(sums[-1], t.take(x, np.array([i]), axis=1)))
    return t.concat(sums)


@implements("SequenceConstruct")
def sequence(call: Call) -> Series:
    nodes = tuple(call.rows_of(i) for i in range(len(call.inputs)))
    if len(nodes) < 2:
        raise Refusal("it makes a sequence of one tensor.", "Export it with the tensor itself.")
    return Series(nodes)
