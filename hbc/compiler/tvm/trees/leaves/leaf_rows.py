"""The table of an ensemble's leaves: their values, which are rounded to integers as they are read.

The code computes, for the leaf that a row reaches in a tree:

    row = first[tree] + number of the leaf                                    # RankedTrees numbers the leaves of a tree
    integer = bits(values[row] + addend) - bits(addend)                       # addend = 1.5 · 2^(52 - exponent)

The addition rounds a value to a multiple of 2^-exponent, whose number stands in the lowest bits of the sum. Code for many rows and for few
rows adds these integers; code for rows that nearly tie adds the values, in the order of the source. One table serves all three. A table of
integers would be as large again, and the addition takes no time beside the load of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.nest.function import Block
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import broadcast, many, side_by_side
from hbc.compiler.tvm.trees.leaves.fixed_point import FixedPoint, bits_of
from hbc.ir.types import Array, DType, dtype_name
from hbc.ops.tree import TreeEnsemble
from hbc.ops.tree_ranks import RankedTrees


def first_rows(ranked: RankedTrees, place: Array, places: int) -> Array:
    """i32[places]: for the tree at each place, the row of its leaf 0 in the tables of `LeafRows`; 0 for places without a tree.

    place i64[T]: that of each tree."""
    first = np.zeros(places, np.int32)
    first[place] = ranked.leaf_starts[:-1] + 1
    return first


class LeafRows:
    """Emits reads of the leaves' integers and of their values. Leaves are rows of a table. Row 0 has zeros, for places without a tree."""

    def __init__(
        self,
        f: Block,
        op: TreeEnsemble,
        ranked: RankedTrees,
        fixed: FixedPoint,
        by_column: bool,
        places: tuple[Array, int] | None = None,
    ) -> None:
        """by_column: integers that are not made from the values lie column after column. That is faster for many rows, because a column of
        four trees stays in L1: 256 leaves of 7 classes, 6.0 instead of 7.7 µs a row. For few rows it is slower.

        places: (the rows of the leaves, the size of the table). None: the leaves lie one behind the other, after row 0."""
        self.f, self.columns, self.start = f, op.values.shape[1], fixed.start
        self.dtype: DType = dtype_name(op.values.dtype)
        if places is None:
            self.values = f.own(f.once(_values_by_number, op, ranked), self.dtype)
        else:
            self.values = f.own(f.once(_values_in_places, op, ranked, *places), self.dtype)
        self.integers_by_number: Array | None = None
        if fixed.addend is None:
            if places is None:
                pack = _integers_by_column if by_column else _integers_by_number
                packed = f.once(pack, op, ranked, fixed.integers)
            else:
                packed = f.once(_integers_in_places, op, ranked, fixed.integers, *places)
            self.integers_by_number = f.own(packed, "i64")
            step = self.integers_by_number.shape[1]
            self.steps = (1, f.size(step)) if by_column else (step, 1)  # from one leaf, and from one column, to the next
        else:
            self.bits, self.addend = int(bits_of(np.array(fixed.addend))), f.number(fixed.addend)

    def start_of(self, outputs: Array) -> Array:
        """i64[K]: what the sum of each output begins with, so that the bits of `addend` cancel. outputs: for each place, with or without a
        tree, the output that it adds to."""
        if self.integers_by_number is not None:
            return self.start
        counts = (
            np.bincount(outputs, minlength=len(self.start)) if self.columns == 1 else np.full(len(self.start), len(outputs))
        )
        # Only the lowest 64 bits count, of these products and of the sums.
        return np.array([-count * self.bits & 2**64 - 1 for count in counts.tolist()], np.uint64).view(np.int64)

    def integers(self, rows: Sequence[Expr], column: Expr) -> Expr:
        """The integers of a column of some leaves, as a vector i64. `start_of` takes away what else is in them."""
        lanes, integers = len(rows), self.integers_by_number
        if integers is not None:
            of_row, of_column = self.steps
            start = column * of_column
            return side_by_side([self.f.constant(integers, "i64", row * of_row + start) for row in rows])
        values = side_by_side([self.value(row, column) for row in rows])
        total = tirx.Add(tirx.Cast(many("float64", lanes), values), broadcast(self.addend, lanes))
        return tirx.reinterpret(many("int64", lanes), total)

    def value(self, row: Expr, column: Expr) -> Expr:
        """A leaf's value in a column, in the dtype of the ensemble."""
        return self.f.constant(self.values, self.dtype, row * self.columns + column)


def _values_by_number(op: TreeEnsemble, ranked: RankedTrees) -> Array:
    """[1 + L, V]: zeros, then the values of the leaves."""
    return _after_zeros(op.values[ranked.leaves])


def _integers_by_number(op: TreeEnsemble, ranked: RankedTrees, integers: Array) -> Array:
    """i64[1 + L, C]: zeros, then the integers of the leaves."""
    return _after_zeros(integers[ranked.leaves])


def _integers_by_column(op: TreeEnsemble, ranked: RankedTrees, integers: Array) -> Array:
    """The same, i64[C, 1 + L]."""
    return np.ascontiguousarray(_integers_by_number(op, ranked, integers).T)


def _values_in_places(op: TreeEnsemble, ranked: RankedTrees, rows: Array, size: int) -> Array:
    """[size, V]: the values of the leaves at their rows, and zeros."""
    return _placed(op.values[ranked.leaves], rows, size)


def _integers_in_places(op: TreeEnsemble, ranked: RankedTrees, integers: Array, rows: Array, size: int) -> Array:
    """i64[size, C]: the same for the leaves' integers."""
    return _placed(integers[ranked.leaves], rows, size)


def _placed(leaves: Array, rows: Array, size: int) -> Array:
    table = np.zeros((size, leaves.shape[1]), leaves.dtype)
    table[rows] = leaves
    return table


def _after_zeros(rows: Array) -> Array:
    return np.concatenate([np.zeros_like(rows[:1]), rows])
