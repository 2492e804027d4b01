"""The columns of a row's k smallest numbers in order (`Smallest`, `Ascending`).

A number is only looked at more closely if it is below the k-th best of its row so far, or below a bound of the k-th best. What goes row by
row goes through rows that exist: whatever lies behind them may have thousands of equal numbers, or ever smaller ones. 5 neighbours among
3,000 points of 30 features took 74 to 177 µs for one row then, and 71 for 16 (Zen 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import number
from hbc.compiler.tvm.tir.vectors import any_of, broadcast, count_of, once_if, store, vector
from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES
from hbc.ops.nearest import Ascending, Smallest

MOST_INSERTED = 10
"""Up to so many numbers are kept in order together with their columns (`_sorted`). For more, the columns are found afterwards (`_ranked`):
20 of 150 take 0.32 instead of 0.76 µs a row, 15 of 1,000 1.9 instead of 2.3 (but 10 of 1,000 would take 1.7 instead of 1.4)."""
MOST_INSERTED_OF_MANY = 3
"""The same where `_ranked` sorts `_candidates` only: 10 of 2,000 take 1.0 instead of 1.65 µs a row with their distances, 3 the same."""
MOST_SORTED = 32  # up to so many numbers are kept in order; more are kept in a heap
RUN = 64
"""Up to so many numbers are sorted by counting, for each, those that come before it. Longer runs are merged from two."""
COMPARED = 8  # numbers that are compared at once
ZERO, ONE = (tirx.const(value, "int64") for value in (0, 1))


class Heaps:
    """A max-heap of numbers and their columns for each lane. Its array is a complete tree; missing children are -inf."""

    def __init__(self, f: Chunk, capacity: int, dtype: str, nothing: int, lanes: int) -> None:
        self.f, self.dtype, self.nothing = f, dtype, nothing
        self.stride = (1 << capacity.bit_length()) - 1
        self.numbers = T.alloc_buffer((lanes * self.stride,), DTYPES[dtype], scope=f.schedule.scope)
        self.places = T.alloc_buffer((lanes * self.stride,), "int64", scope=f.schedule.scope)
        self.roots = f.scratch(lanes, dtype)

    def put(self, at: Expr, value: Expr, place: Expr) -> None:
        T.buffer_store(self.numbers, value, [at])
        T.buffer_store(self.places, place, [at])

    def clear(self, lane: Expr, capacity: int) -> None:
        """Empty the heap of a lane: `capacity` places of inf, behind them -inf."""
        with self.f.repeat(self.stride) as i:
            empty = tirx.Select(
                tirx.LT(i, tirx.const(capacity, "int64")), number(np.inf, self.dtype), number(-np.inf, self.dtype)
            )
            self.put(lane * self.stride + i, empty, tirx.const(self.nothing, "int64"))
        T.buffer_store(self.roots, number(np.inf, self.dtype), [lane])

    def push(self, lane: Expr, value: Expr, place: Expr, capacity: int) -> None:
        """Put a number that is less than the root in the place of the root."""
        base = T.Bind(lane * self.stride)
        at = self.f.scratch(1, "i64")
        T.buffer_store(at, ZERO, [0])
        with self.f.repeat(capacity.bit_length() - 1):
            left = T.Bind(base + at[0] * 2 + 1)
            child = T.Bind(left + tirx.Cast("int64", tirx.LT(self.numbers[left], self.numbers[left + 1])))
            with T.If(tirx.LT(value, self.numbers[child])), T.Then():
                self.put(base + at[0], self.numbers[child], self.places[child])
                T.buffer_store(at, child - base, [0])
        self.put(base + at[0], value, place)
        T.buffer_store(self.roots, self.numbers[base], [lane])

    def sort(self, lane: Expr, count: int, stable: bool = False) -> None:
        """Sort the first `count` places by number. Equal numbers are sorted by column, or (`stable`) keep their order.

        It is insertion sort, since there are few.
        """
        base = T.Bind(lane * self.stride)
        at, value, place = self.f.scratch(1, "i64"), self.f.scratch(1, self.dtype), self.f.scratch(1, "i64")
        with self.f.repeat(count - 1) as i:
            T.buffer_store(at, base + i + 1, [0])
            T.buffer_store(value, self.numbers[at[0]], [0])
            T.buffer_store(place, self.places[at[0]], [0])
            with self.f.repeat(i + 1):
                before = tirx.Max(at[0] - 1, base)
                equal = tirx.And(tirx.EQ(self.numbers[before], value[0]), tirx.LT(place[0], self.places[before]))
                less = tirx.LT(value[0], self.numbers[before])
                earlier = less if stable else tirx.Or(less, equal)
                with T.If(tirx.And(tirx.LT(base, at[0]), earlier)), T.Then():
                    self.put(at[0], self.numbers[before], self.places[before])
                    T.buffer_store(at, at[0] - 1, [0])
            self.put(at[0], value[0], place[0])

    def again(self, lane: Expr, capacity: int) -> None:
        """Empty the heap and push its numbers again, in the order of its array."""
        numbers, places = self.f.scratch(capacity, self.dtype), self.f.scratch(capacity, "i64")
        with self.f.repeat(capacity) as i:
            T.buffer_store(numbers, self.numbers[lane * self.stride + i], [i])
            T.buffer_store(places, self.places[lane * self.stride + i], [i])
        self.clear(lane, capacity)
        with self.f.repeat(capacity) as i, T.If(tirx.LT(numbers[i], self.roots[lane])), T.Then():
            self.push(lane, numbers[i], places[i], capacity)


@emits(Smallest, skipped=True)
def smallest(f: Chunk, node: Node) -> None:
    """Emit `Smallest`: the columns of the k smallest numbers of each row, in order."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Smallest)
    width, dtype = x.type.columns, x.type.dtype
    # If the source doesn't choose or order equal numbers by column, one more number is kept. Rows in which two of those kept are equal
    # are done again as the source does it, in a heap.
    again = op.k > 1 or op.block > 0
    held = min(op.k + again, width)
    if held > MOST_SORTED:
        return _by_heaps(f, node)
    few = f.lanes == 1 or held <= (MOST_INSERTED_OF_MANY if group_size(width, held) else MOST_INSERTED)
    best = _sorted(f, node, held) if few else _ranked(f, node, held)
    for i in range(op.k):
        with f.lane() as lane:
            f.store(node, tirx.const(i, "int64"), f.row(lane), best.places[lane + i * f.lanes])
    first = op.k - 1 if op.ties == "column" else 0
    if not again or first >= held - 1:
        return
    tied = f.scratch(f.lanes, "i32")
    with f.lane() as lane:
        one, *others = (best.numbers[lane + i * f.lanes] for i in range(first, held))
        equal = tirx.const(0, "int32")
        for other in others:
            same = tirx.And(tirx.EQ(one, other), tirx.LT(one, number(np.inf, dtype)))
            equal, one = tirx.bitwise_or(equal, tirx.Cast("int32", same)), other
        T.buffer_store(tied, equal, [lane])
    heaps = Heaps(f, op.k, dtype, width, 1)
    with f.each_row() as row, T.If(tirx.LT(tirx.const(0, "int32"), tied[row.lane])), T.Then():
        _in_order(f, node, heaps, row)
        if op.ties == "heaps":
            heaps.again(ZERO, op.k)
        heaps.sort(ZERO, op.k, op.ties != "column")
        with f.repeat(op.k) as i:
            f.store(node, i, row, heaps.places[i])


class Best(NamedTuple):
    """For every lane its smallest numbers in ascending order, and their columns. Equal numbers are in the order of their columns.

    Element i of lane l is at i * lanes + l.
    """

    numbers: Any
    places: Any


def _sorted(f: Chunk, node: Node, held: int) -> Best:
    """Insertion sort of the smallest numbers and their columns, for a vector of rows at once. Numbers above a new one move up.

    A search among 152 points takes 0.5 µs a row. With heaps, one row after the other, it took 2.5.
    """
    x = node.inputs[0]
    width, dtype = x.type.columns, x.type.dtype
    best = Best(f.scratch(held * f.lanes, dtype), f.scratch(held * f.lanes, "i64"))
    candidate = f.scratch(f.lanes, dtype)
    for i in range(held):
        with f.lane() as lane:
            T.buffer_store(best.numbers, number(np.inf, dtype), [lane + i * f.lanes])
            T.buffer_store(best.places, tirx.const(width, "int64"), [lane + i * f.lanes])
    with f.repeat(width) as column:
        with f.lane() as lane:
            T.buffer_store(candidate, f.read(x, [column], f.row(lane)), [lane])
        some = _any_less(candidate, best.numbers, f.lanes, (held - 1) * f.lanes)
        with once_if(some):
            for i in reversed(range(held)):
                for values, new in ((best.places, column), (best.numbers, None)):
                    with f.lane() as lane:
                        at = lane + i * f.lanes
                        value = candidate[lane] if new is None else new
                        moved = tirx.Select(tirx.LT(candidate[lane], best.numbers[at]), value, values[at])
                        if i:
                            below = at - f.lanes
                            moved = tirx.Select(tirx.LT(candidate[lane], best.numbers[below]), values[below], moved)
                        T.buffer_store(values, moved, [at])
    return best


def _ranked(f: Chunk, node: Node, held: int) -> Best:
    """The same as `_sorted`, in two passes. The first sorts the smallest numbers, in registers, without their columns (`_insert`).

    The second pass finds the columns whose numbers are among the smallest. The place of a column is the number of smaller numbers, plus
    the number of equal ones in earlier columns. Both passes look only at the `_candidates` of a row, if it has many more columns.
    """
    x = node.inputs[0]
    width, dtype = x.type.columns, x.type.dtype
    best = Best(f.scratch(held * f.lanes, dtype), f.scratch(held * f.lanes, "i64"))
    lanes = min(512 // NUMPY_DTYPES[dtype].itemsize // 8, f.lanes)
    some = _candidates(f, node, held, lanes)

    def number_at(i: Expr, row: Row) -> Expr:
        return f.read(x, [i], row) if some is None else some.numbers[i * f.lanes + row.lane]

    with f.grid([f.lanes // lanes]) as (part,):
        inserted = _insert(
            f,
            held,
            width if some is None else some.most,
            lanes,
            dtype,
            lambda i, lane: number_at(i, f.row(part * lanes + lane)),
        )
        for i, each in enumerate(inserted):
            with T.vectorized(tirx.const(lanes, "int64")) as lane:
                T.buffer_store(best.numbers, each[lane], [i * f.lanes + part * lanes + lane])

    padded = -(-held // COMPARED) * COMPARED
    numbers, taken, count = f.scratch(padded, dtype), f.scratch(held, "i64"), f.scratch(1, "i64")
    chosen, places = f.scratch(width + 1, "i64"), f.scratch(held + width, "i64")
    with f.repeat(f.count) as lane:
        row = f.row(lane)
        for i in range(padded):
            T.buffer_store(numbers, best.numbers[lane + min(i, held - 1) * f.lanes], [i])
        with f.repeat(held) as i:
            T.buffer_store(taken, ZERO, [i])
            T.buffer_store(places, tirx.const(width, "int64"), [i])
        last = T.Bind(_finite(numbers[held - 1], dtype))
        T.buffer_store(count, ZERO, [0])
        with f.repeat(width if some is None else T.Bind(some.counts[lane])) as i:
            T.buffer_store(chosen, i, [count[0]])
            T.buffer_store(count, count[0] + tirx.Cast("int64", tirx.LE(number_at(i, row), last)), [0])
        with f.repeat(T.Bind(count[0])) as i:
            at = T.Bind(chosen[i])
            value = broadcast(T.Bind(number_at(at, row)), COMPARED)
            less = [tirx.LT(vector(numbers, start, COMPARED), value) for start in range(0, padded, COMPARED)]
            rank = T.Bind(tirx.Cast("int64", reduce(tirx.Add, (count_of(each, COMPARED) for each in less))))
            T.buffer_store(places, at if some is None else some.columns[at * f.lanes + lane], [rank + taken[rank]])
            T.buffer_store(taken, taken[rank] + 1, [rank])
        with f.repeat(held) as i:
            T.buffer_store(best.places, places[i], [lane + i * f.lanes])
    return best


def _insert(f: Chunk, held: int, count: Any, lanes: int, dtype: str, number_at: Callable[[Expr, Expr], Expr]) -> list[Any]:
    """The smallest of `count` numbers of some rows, sorted: one register for each place. number_at: (number, lane) → expression.

    It is insertion sort: a new number passes along the sorted ones, the smaller of two stays, and the larger moves on.
    """
    moving, inserted = f.scratch(lanes, dtype), [f.scratch(lanes, dtype) for _ in range(held)]
    for each in inserted:
        store(each, broadcast(number(np.inf, dtype), lanes), 0, lanes)
    with f.repeat(count) as i:
        with T.vectorized(tirx.const(lanes, "int64")) as lane:
            T.buffer_store(moving, number_at(i, lane), [lane])
        carried = vector(moving, 0, lanes)
        for each in inserted:
            value, other = T.Bind(vector(each, 0, lanes)), T.Bind(carried)
            store(each, tirx.Min(other, value), 0, lanes)  # if `other` is NaN, this is `value`
            carried = tirx.Max(value, other)
    return inserted


def _finite(value: Expr, dtype: str) -> Expr:
    """The number, or the largest finite one if it is larger."""
    return tirx.Min(value, number(float(np.finfo(NUMPY_DTYPES[dtype]).max), dtype))


class Candidates(NamedTuple):
    """Some of the numbers of each row, in the order of their columns. The smallest ones are among them.

    Element i of lane l is at i * lanes + l. Lanes that have fewer than `most` are filled up with inf.
    """

    numbers: Any
    columns: Any
    counts: Any
    most: Expr


LEAST_GROUP, LEAST_GROUPS = 6, 2
"""The fewest columns of a group, and the fewest groups for each number that is kept, that are worth it."""


def group_size(width: int, held: int) -> int:
    """The columns of a group, for the `_candidates` among `width`; 0 if there are not many more than the `held` that are kept.

    The least numbers of groups are sorted, and about `held` groups are read again. 20 of 2,000 columns: of 111 groups of 18, 23 are read.
    """
    size = int(math.sqrt(width) / 2.4)
    return size if size >= LEAST_GROUP and width >= LEAST_GROUPS * held * size else 0


def _candidates(f: Chunk, node: Node, held: int, lanes: int) -> Candidates | None:
    """The numbers that may be among the `held` smallest; None if there are not many more columns than that.

    The columns are cut into groups. As many groups as numbers are kept have a number that is no more than the `held`-th smallest of the
    groups' least numbers. So no number above that counts, and no group whose least number is above it is looked at. 20 of 2,000 columns
    take 1.3 instead of 3.0 µs a row (Zen 5, with distances of 5 features); scikit-learn's tree of points takes 2.3 to 7.
    """
    x = node.inputs[0]
    width, dtype = x.type.columns, x.type.dtype
    size = group_size(width, held) if f.lanes > 1 else 0
    if not size:
        return None
    groups, rest = width // size, width % size
    shape = (width * f.lanes,)
    numbers, columns = T.alloc_buffer(shape, DTYPES[dtype]), T.alloc_buffer(shape, "int64")
    counts, found = f.scratch(f.lanes, "i64"), f.scratch(1, "i64")
    least = T.alloc_buffer(((groups + 1) * f.lanes,), DTYPES[dtype])
    bound, lowest = f.scratch(f.lanes, dtype), f.scratch(f.lanes, dtype)
    near = f.scratch(groups + 2, "i64")

    def of_group(group: Expr, count: int) -> None:
        with f.lane() as lane:
            T.buffer_store(lowest, number(np.inf, dtype), [lane])
        with f.repeat(count) as i, f.lane() as lane:
            value = f.read(x, [group * size + i], f.row(lane))
            T.buffer_store(lowest, tirx.Min(value, lowest[lane]), [lane])  # if the value is NaN, this is `lowest`
        with f.lane() as lane:
            T.buffer_store(least, lowest[lane], [group * f.lanes + lane])

    with f.repeat(groups) as group:
        of_group(group, size)
    if rest:
        of_group(tirx.const(groups, "int64"), rest)
    groups += rest > 0
    with f.grid([f.lanes // lanes]) as (part,):
        inserted = _insert(f, held, groups, lanes, dtype, lambda i, lane: least[i * f.lanes + part * lanes + lane])
        with T.vectorized(tirx.const(lanes, "int64")) as lane:
            T.buffer_store(bound, inserted[-1][lane], [part * lanes + lane])
    store(counts, broadcast(ZERO, f.lanes), 0, f.lanes)
    with f.repeat(f.count) as lane:
        row, most = f.row(lane), T.Bind(_finite(bound[lane], dtype))
        T.buffer_store(found, ZERO, [0])
        with f.repeat(groups) as group:
            T.buffer_store(near, group * size, [found[0]])
            T.buffer_store(found, found[0] + tirx.Cast("int64", tirx.LE(least[group * f.lanes + lane], most)), [0])
        some_groups = T.Bind(found[0])
        T.buffer_store(found, ZERO, [0])
        with f.repeat(some_groups) as i:
            first = T.Bind(near[i])
            with T.serial(first, tirx.Min(first + size, tirx.const(width, "int64"))) as column:
                value = T.Bind(f.read(x, [column], row))
                at = T.Bind(found[0] * f.lanes + lane)
                T.buffer_store(numbers, value, [at])
                T.buffer_store(columns, column, [at])
                T.buffer_store(found, found[0] + tirx.Cast("int64", tirx.LE(value, most)), [0])
        T.buffer_store(counts, found[0], [lane])
    longest = T.Bind(reduce(tirx.Max, [counts[i] for i in range(f.lanes)]))
    with f.repeat(f.count) as lane, T.serial(T.Bind(counts[lane]), longest) as i:
        T.buffer_store(numbers, number(np.inf, dtype), [i * f.lanes + lane])
    return Candidates(numbers, columns, counts, longest)


def _by_heaps(f: Chunk, node: Node) -> None:
    """The same as `smallest` if there are many numbers to keep: with a heap for every row."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Smallest)
    width, dtype = x.type.columns, x.type.dtype
    held = min(op.k + (op.block > 0), width)
    heaps = Heaps(f, held, dtype, width, f.lanes)
    candidate = f.scratch(f.lanes, dtype)
    store(heaps.roots, broadcast(number(-np.inf, dtype), f.lanes), 0, f.lanes)
    with f.repeat(f.count) as lane:
        heaps.clear(lane, held)
    with f.repeat(width) as column:
        with f.lane() as lane:
            T.buffer_store(candidate, f.read(x, [column], f.row(lane)), [lane])
        some = T.If(_any_less(candidate, heaps.roots, f.lanes))
        with some, T.Then(), f.repeat(f.count) as lane, T.If(tirx.LT(candidate[lane], heaps.roots[lane])), T.Then():
            heaps.push(lane, candidate[lane], column, held)
    with f.each_row() as row:
        if held > op.k:
            base = T.Bind(row.lane * heaps.stride)
            last = heaps.numbers[base]
            second = tirx.Max(heaps.numbers[base + 1], heaps.numbers[base + 2])
            tied = T.Bind(tirx.Cast("int64", tirx.And(tirx.EQ(last, second), tirx.LT(last, number(np.inf, dtype)))))
            heaps.put(base, number(np.inf, dtype), tirx.const(width, "int64"))
            with T.If(tirx.EQ(tied, tirx.const(1, "int64"))), T.Then():
                _in_order(f, node, heaps, row, row.lane)
        heaps.sort(row.lane, held)
        with f.repeat(op.k) as i:
            f.store(node, i, row, heaps.places[row.lane * heaps.stride + i])


def _in_order(f: Chunk, node: Node, heaps: Heaps, row: Row, lane: Expr = ZERO) -> None:
    """Push the numbers of one row into a heap of exactly k, in the order in which the source visits them: block of columns by block."""
    op, x = node.op, node.inputs[0]
    assert isinstance(op, Smallest)
    block = op.block or x.type.columns
    heaps.clear(lane, op.k)
    value = f.scratch(1, x.type.dtype)
    with f.repeat(x.type.columns // block) as i:
        first = T.Bind(f.read(node.inputs[1], [i], row) * block) if op.block else ZERO
        with f.repeat(block) as j:
            column = T.Bind(first + j)
            T.buffer_store(value, f.read(x, [column], row), [0])
            with T.If(tirx.LT(value[0], heaps.roots[lane])), T.Then():
                heaps.push(lane, value[0], column, op.k)
    if heaps.stride > op.k:
        heaps.put(lane * heaps.stride + op.k, number(np.inf, x.type.dtype), tirx.const(x.type.columns, "int64"))


def _any_less(a: Any, b: Any, lanes: int, start: int = 0) -> Expr:
    """Whether a[i] < b[start + i] for any of the lanes i."""
    return any_of(tirx.LT(vector(a, 0, lanes), vector(b, start, lanes)), lanes)


class Entries(NamedTuple):
    """Some of a row's numbers and their columns."""

    numbers: Any
    places: Any

    def put(self, at: Expr, source: Entries, chosen: Expr) -> None:
        T.buffer_store(self.numbers, source.numbers[chosen], [at])
        T.buffer_store(self.places, source.places[chosen], [at])


@emits(Ascending)
def ascending(f: Chunk, node: Node) -> None:
    """Emit `Ascending`: for each row, collect the numbers ≥ 0, sort them in runs, and merge the runs.

    45 of 150 columns take about 1.2 µs a row. Only for CPUs: `Lower` replaces the operator for a GPU.
    """
    (x,) = node.inputs
    assert isinstance(node.op, Ascending)
    if not f.dialect.llvm:
        culprit = Culprit(
            "Ascending", "a graph for CUDA", "its kernel runs on CPUs only", 'Convert the model with device="cpu".'
        )
        raise UnsupportedOperatorError(culprits=[culprit])
    width, dtype = x.type.columns, x.type.dtype

    def entries() -> Entries:
        shape = (width + COMPARED,)
        return Entries(T.alloc_buffer(shape, DTYPES[dtype]), T.alloc_buffer(shape, "int64"))

    there, merged = entries(), entries()
    count = f.scratch(1, "i64")
    with f.each_row() as row:
        T.buffer_store(count, ZERO, [0])
        with f.repeat(width) as column:
            value = T.Bind(f.read(x, [column], row))
            T.buffer_store(merged.numbers, value, [count[0]])
            T.buffer_store(merged.places, column, [count[0]])
            T.buffer_store(count, count[0] + tirx.Cast("int64", tirx.LE(number(0, dtype), value)), [0])
        found = T.Bind(count[0])
        store(merged.numbers, broadcast(number(np.inf, dtype), COMPARED), found, COMPARED)
        with f.repeat(_rounds(found, RUN)) as i:
            first = T.Bind(i * RUN)
            last = T.Bind(tirx.Min(first + RUN, found))
            with T.serial(first, last) as at:
                there.put(first + _before(f, merged.numbers, first, last, at), merged, at)
        run = RUN
        while run < width:
            with f.repeat(tirx.Select(tirx.LT(tirx.const(run, "int64"), found), _rounds(found, 2 * run), ZERO)) as i:
                first = T.Bind(i * (2 * run))
                middle, last = T.Bind(tirx.Min(first + run, found)), T.Bind(tirx.Min(first + 2 * run, found))
                _merge(f, there, merged, first, middle, last)
            run *= 2
        with f.repeat(width) as i:
            f.store(node, i, row, tirx.Select(tirx.LT(i, found), there.places[i], tirx.const(width, "int64")))


def _rounds(count: Expr, step: int) -> Expr:
    return tirx.truncdiv(count + (step - 1), tirx.const(step, "int64"))


def _before(f: Chunk, numbers: Any, first: Expr, last: Expr, at: Expr) -> Expr:
    """How many of the numbers from `first` to `last` come before the one at `at`: they are less, or equal and stand before it."""
    value, lanes = broadcast(T.Bind(numbers[at]), COMPARED), tirx.Ramp(ZERO, ONE, COMPARED)
    counts = f.scratch(COMPARED, "i64")
    store(counts, broadcast(ZERO, COMPARED), 0, COMPARED)
    with f.repeat(_rounds(last - first, COMPARED)) as part:
        start = T.Bind(first + part * COMPARED)
        others = T.Bind(vector(numbers, start, COMPARED))
        equal = tirx.And(tirx.EQ(others, value), tirx.LT(lanes, broadcast(at - start, COMPARED)))
        before = tirx.Cast(f"int64x{COMPARED}", tirx.Or(tirx.LT(others, value), equal))
        store(counts, tirx.Add(vector(counts, 0, COMPARED), before), 0, COMPARED)
    return tirx.call_llvm_pure_intrin("int64", f"llvm.vector.reduce.add.v{COMPARED}i64", vector(counts, 0, COMPARED))


def _merge(f: Chunk, entries: Entries, merged: Entries, first: Expr, middle: Expr, last: Expr) -> None:
    """Merge two sorted runs, first … middle and middle … last, into one. Of equal numbers, those of the left run come first.

    There are no branches: which run has the next number is random, so a processor would predict half of them wrongly.
    """
    left, right = f.scratch(1, "i64"), f.scratch(1, "i64")
    T.buffer_store(left, first, [0])
    T.buffer_store(right, middle, [0])
    with T.serial(first, last) as at:
        i, j = T.Bind(left[0]), T.Bind(right[0])
        no_later = tirx.Or(tirx.LE(last, j), tirx.LE(entries.numbers[i], entries.numbers[j]))
        taken = T.Bind(tirx.Cast("int64", tirx.And(tirx.LT(i, middle), no_later)))
        merged.put(at, entries, j + (i - j) * taken)
        T.buffer_store(left, i + taken, [0])
        T.buffer_store(right, j + 1 - taken, [0])
    with T.serial(first, last) as at:
        entries.put(at, merged, at)
