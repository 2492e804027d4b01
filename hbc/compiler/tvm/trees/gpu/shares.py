"""Leaves of two or three classes without the largest number.

The probabilities of the classes add up to one, so all but the largest one say that too, up to some bits: it is 1 - their sum, both rounded
down, and a correction of some units in the last place. Of three classes a leaf then takes 16 bytes and not 24. Its numbers are at most 1/2,
so the two highest bits of each float64 are free:

    two classes       bit 63: the correction, 0 or 1                       bit 62: whether the first class has the largest one
    three classes     bit 63: whether the first class has it               bit 62: whether the third class has it
                      bits 63 and 62 of the second number: the correction, -2 to 1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

HIGH_BIT, LOW_BIT = 63, 62
LOWER_WORD = (1 << 32) - 1
CORRECTIONS = {2: (0, 1), 3: (-2, 1)}
"""The least and the greatest one, by the classes."""


def shares(op: TreeEnsemble) -> Array | None:
    """f64[L, V - 1]: each leaf without its largest number; None if this does not give all bits of all leaves back."""
    values, classes = op.values, op.values.shape[1]
    if values.dtype != np.float64 or classes not in CORRECTIONS or op.n_outputs != classes or not len(values):
        return None
    largest = values.argmax(axis=1)
    is_largest = largest[:, None] == np.arange(classes)
    others, large = values[~is_largest].reshape(-1, classes - 1), values[is_largest]
    if not ((others >= 0) & (others <= 0.5) & ~np.signbit(others)).all():
        return None
    rest = others[:, 0] if classes == 2 else added_down(*others.T)
    down = added_down(np.ones(len(rest)), -rest)
    correction = large.view(np.int64) - down.view(np.int64)
    least, greatest = CORRECTIONS[classes]
    lower = (down.view(np.int64) & LOWER_WORD) + correction  # the code adds to the lower word
    if ((correction < least) | (correction > greatest) | (lower < 0) | (lower > LOWER_WORD)).any():
        return None
    bits = others.view(np.uint64)
    if classes == 2:
        bits[:, 0] |= correction.astype(np.uint64) << HIGH_BIT | is_largest[:, 0].astype(np.uint64) << LOW_BIT
    else:
        bits[:, 0] |= is_largest[:, 0].astype(np.uint64) << HIGH_BIT | is_largest[:, 2].astype(np.uint64) << LOW_BIT
        bits[:, 1] |= correction.astype(np.uint64) << LOW_BIT
    return others


def added_down(a: Array, b: Array) -> Array:
    """a + b, rounded down."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return np.where(error < 0, np.nextafter(total, -np.inf), total)


def value_of_shares(words: Sequence[tuple[Expr, Expr]], column: Expr) -> Expr:
    """The value of a class of a leaf, whose numbers have these higher and lower words, uint32."""
    mask = tirx.const((1 << LOW_BIT - 32) - 1, "uint32")
    numbers = [
        T.Bind(_double(tirx.Cast("int32", tirx.bitwise_and(high, mask)), tirx.Cast("int32", low))) for high, low in words
    ]
    rest = numbers[0] if len(numbers) == 1 else T.Bind(_add_down(*numbers))
    down = T.Bind(_add_down(tirx.const(1.0, "float64"), -rest))
    first, last = words[0][0], words[-1][0]
    if len(numbers) == 1:
        correction = tirx.Cast("int32", tirx.shift_right(last, tirx.const(HIGH_BIT - 32, "uint32")))
    else:
        correction = tirx.shift_right(tirx.reinterpret("int32", last), tirx.const(LOW_BIT - 32, "int32"))
    upper, lower = (tirx.call_pure_extern("int32", name, down) for name in ("__double2hiint", "__double2loint"))
    large = T.Bind(_double(upper, lower + correction))
    low_bit = tirx.bitwise_and(first, tirx.const(1 << LOW_BIT - 32, "uint32"))
    if len(numbers) == 1:
        # In this form the comparison is one instruction: `bit 62 != 62nd bit of the column's number`.
        return tirx.Select(tirx.NE(low_bit, tirx.Cast("uint32", column) << LOW_BIT - 32), large, numbers[0])
    of_first = T.Bind(tirx.LT(tirx.reinterpret("int32", first), tirx.const(0, "int32")))
    of_third = T.Bind(tirx.NE(low_bit, tirx.const(0, "uint32")))
    values = [
        tirx.Select(of_first, large, numbers[0]),
        tirx.Select(of_first, numbers[0], tirx.Select(of_third, numbers[1], large)),
        tirx.Select(of_third, large, numbers[1]),
    ]
    is_first, is_second = (tirx.EQ(tirx.Cast("int32", column), tirx.const(number, "int32")) for number in range(2))
    return tirx.Select(is_first, values[0], tirx.Select(is_second, values[1], values[2]))


def _double(high: Expr, low: Expr) -> Expr:
    return tirx.call_pure_extern("float64", "__hiloint2double", high, low)


def _add_down(a: Expr, b: Expr) -> Expr:
    return tirx.call_pure_extern("float64", "__dadd_rd", a, b)
