"""Leaves of two classes as one number each.

The probabilities of two classes add up to one, so the smaller one says the other, up to a bit: 1 - smaller, rounded down, or the next
number. A leaf then takes 8 bytes and not 16. Its smaller number is at most 1/2, so the two highest bits of its float64 are free:

    bit 63: whether the other is that next number        bit 62: whether the first class has the other
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

NEXT_BIT, ORDER_BIT = 63, 62
LOWER_WORD = (1 << 32) - 1


def halves(op: TreeEnsemble) -> Array | None:
    """f64[L, 1]: each leaf as one number; None if this does not give all bits of all leaves back."""
    values = op.values
    if values.dtype != np.float64 or values.shape[1] != 2 or op.n_outputs != 2:
        return None
    small, large = values.min(axis=1), values.max(axis=1)
    if not ((small >= 0) & (small <= 0.5) & ~np.signbit(small)).all():
        return None
    nearest = 1 - small
    down = nearest.view(np.uint64) - (1 - nearest < small)  # both subtractions of `1 - nearest < small` are exact
    following = large.view(np.uint64) - down
    carries = (down & LOWER_WORD == LOWER_WORD) & (following == 1)  # the code adds to the lower word
    if (following > 1).any() or carries.any():
        return None
    first = (values[:, 0] > values[:, 1]).astype(np.uint64)
    return (small.view(np.uint64) | following << NEXT_BIT | first << ORDER_BIT).view(np.float64)[:, None]


def value_of_half(high: Expr, low: Expr, column: Expr) -> Expr:
    """The value of a class of a leaf, whose number has these words, uint32."""
    mask = tirx.const((1 << ORDER_BIT - 32) - 1, "uint32")
    small = T.Bind(_double(tirx.Cast("int32", tirx.bitwise_and(high, mask)), tirx.Cast("int32", low)))
    down = T.Bind(tirx.call_pure_extern("float64", "__dadd_rd", tirx.const(1.0, "float64"), -small))
    following = tirx.Cast("int32", tirx.shift_right(high, tirx.const(NEXT_BIT - 32, "uint32")))
    upper, lower = (tirx.call_pure_extern("int32", name, down) for name in ("__double2hiint", "__double2loint"))
    large = T.Bind(_double(upper, lower + following))
    # In this form the comparison is one instruction: `bit 62 != 62nd bit of the column's number`.
    order = tirx.bitwise_and(high, tirx.const(1 << ORDER_BIT - 32, "uint32"))
    has_large = tirx.NE(order, tirx.Cast("uint32", column) << ORDER_BIT - 32)
    return tirx.Select(has_large, large, small)


def _double(high: Expr, low: Expr) -> Expr:
    return tirx.call_pure_extern("float64", "__hiloint2double", high, low)
