"""The numbers of a row as keys: unsigned integers in the order of the floats. Kernels that go from node to node compare keys with keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Block, Row
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import is_nan, is_nan_in_vector
from hbc.compiler.tvm.tir.vectors import any_of, broadcast, many, store
from hbc.compiler.tvm.trees.categories import n_features
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble

LEAST_LANES = 4
"""The fewest numbers that become keys at once."""
Compared = tuple[tuple[int, bool], ...]
"""(feature, whether NaN is below all numbers) for each column of keys. Otherwise NaN is above all numbers."""


def compared_columns(op: TreeEnsemble, in_order: bool = False) -> tuple[Compared, Array, Array]:
    """(the columns of keys that splits compare, i64[M]: for each split its column, bool[M]: the splits that send NaN to the left though it
    is above all numbers).

    There is a column for each feature. First come the features whose NaN some splits send to the left, and some to the right. Their columns
    have NaN above all numbers. So a split to the left must know better (patches.py), or compare a second column with NaN below all numbers
    (walk.py). Category sets have no NaN, and come last.

    in_order: the columns of numbers are the features in their order, also those that no split compares.
    """
    splits, width = op.feature >= 0, n_features(op)
    to_left = splits & op.missing_left if width is None else splits & op.missing_left & (op.feature < width)
    count = int(op.feature.max(initial=0)) + 1
    low, high = np.zeros(count, bool), np.zeros(count, bool)
    low[op.feature[to_left]] = True
    high[op.feature[splits & ~to_left]] = True
    features = np.concatenate([np.flatnonzero(low & high), np.flatnonzero(low ^ high)])
    if in_order:
        numbers = features if width is None else features[features < width]
        features = np.append(np.arange(numbers.max(initial=-1) + 1), features[len(numbers) :])
    column = np.zeros(count, np.int64)
    column[features] = np.arange(len(features))
    compared = tuple((int(feature), not high[feature]) for feature in features)
    return compared, np.where(splits, column[op.feature], 0), to_left & high[op.feature]


def key_columns(columns: int) -> int:
    """The number of columns of a row's keys, rounded up to 16: rows begin at cache lines, and models of few different sizes share code."""
    return -(-columns // 16) * 16


def ordered(x: Array) -> Array:
    """Floats as unsigned integers in the same order. -0.0 and 0.0 become the same number."""
    bits = (x + x.dtype.type(0)).view(f"i{x.itemsize}")
    return (bits ^ (bits >> (8 * x.itemsize - 1) | np.iinfo(bits.dtype).min)).view(f"u{x.itemsize}")


class Keys:
    """Emits the keys of rows, in memory of their own.

    If the caller's rows begin with the numbers of all columns, in this order, then a register of them becomes keys at once, or half or a
    quarter of one. A key takes 0.3 ns so, in place of 1 (Zen 5).
    """

    def __init__(self, f: Block, x: Node, compared: Compared, numbers: int, size: int, first: int = 0) -> None:
        """numbers: how many of the columns `compared`, from the first on, are features of x. size: the number of keys in memory. first: the
        columns of a row before those of `compared`."""
        self.f, self.x, self.numbers, self.first = f, x, f.size(numbers), first
        self.bits = 32 if x.type.dtype == "f32" else 64
        self.lanes = min(512 // self.bits, 1 << max(numbers.bit_length() - 1, 0))
        in_order = all(column == feature for column, (feature, _) in enumerate(compared[:numbers]))
        self.in_registers = in_order and self.lanes >= LEAST_LANES and f.lanes > 1 and f.callers_array(x) is not None
        self.buffer = T.alloc_buffer((size,), f"uint{self.bits}", scope=f.schedule.scope)
        self.features = f.own(np.array([feature for feature, _ in compared], np.int64), "i64")
        self.missing = f.own(np.array([0 if low else -1 for _, low in compared]), f"i{self.bits}")

    def fill(self, row: Expr, start: Expr, seen: Any = None) -> None:
        """Compute the keys of a row, which begin at `start`. NaN gets a key below or above all others, as its column says. seen: memory
        for one i32, which becomes 1 if a number is NaN."""
        missing = lambda column, lanes: self.f.constants(self.missing, f"i{self.bits}", column, lanes)  # noqa: E731
        self._fill(row, start, missing, seen, self.numbers)

    def fill_low(self, row: Expr, start: Expr, count: Expr) -> None:
        """The same for the first `count` columns, where NaN is below all others in every column. It may write as many keys as fill whole
        registers, but no more than there are numbers."""
        self._fill(row, start, lambda _, lanes: broadcast(tirx.const(0, f"int{self.bits}"), lanes), None, count)

    def _fill(self, row: Expr, start: Expr, missing: Callable[[Expr, int], Expr], seen: Any, count: Expr) -> None:
        f = self.f
        if not self.in_registers:
            with f.repeat(count) as column:
                value = T.Bind(f.read(self.x, [T.Bind(f.constant(self.features, "i64", column))], Row(row)))
                self._keep(value, is_nan(value), missing(column, 1), start + column + self.first, seen, 1)
            return
        array = f.callers_array(self.x)
        assert array is not None
        numbers = array.runs()
        with f.repeat(T.Bind((count + (self.lanes - 1)) // self.lanes)) as register:
            # The last register overlaps the one before.
            column = T.Bind(tirx.Min(register * self.lanes, self.numbers - self.lanes))
            origin = (f.base + row) * array.width + column
            # TVM keeps a run of elements whole only if it begins at a loop variable.
            with T.serial(origin, origin + 1) as place:
                value = T.Bind(numbers(place, self.lanes))
                at = start + column + self.first
                self._keep(value, is_nan_in_vector(value), missing(column, self.lanes), at, seen, self.lanes)

    def _keep(self, value: Expr, nan: Expr, missing: Expr, at: Expr, seen: Any, lanes: int) -> None:
        """Store the keys of some numbers from `at` on. nan: which of them are NaN. missing: their keys then."""
        bits = self.bits
        signed = many(f"int{bits}", lanes)
        zero = broadcast(tirx.const(0, DTYPES[self.x.type.dtype]), lanes)
        pattern = T.Bind(tirx.reinterpret(signed, tirx.Add(value, zero)))
        sign = tirx.shift_right(pattern, broadcast(tirx.const(bits - 1, f"int{bits}"), lanes))
        lowest = broadcast(tirx.const(-(2 ** (bits - 1)), f"int{bits}"), lanes)
        key = tirx.Select(nan, missing, tirx.bitwise_xor(pattern, tirx.bitwise_or(sign, lowest)))
        store(self.buffer, tirx.reinterpret(many(f"uint{bits}", lanes), key), at, lanes)
        if seen is not None:
            T.buffer_store(seen, tirx.bitwise_or(seen[0], tirx.Cast("int32", any_of(nan, lanes))), [0])
