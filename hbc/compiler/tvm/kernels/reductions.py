"""The kernels of reductions along an axis: sums, maxima, minima, running sums, places of maxima."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, flatten
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import convert, larger, number, smaller
from hbc.ir.graph import Node
from hbc.ir.types import DType
from hbc.ops import tensor

PARTIAL_SUMS = 4  # for a sum in any order: they hide the latency of an addition, and halve the rounding error


def _element(f: Chunk, source: Node, index: list[Expr], lane: Expr) -> Expr:
    """An element of a row of a chunk; bools as int8, which can be compared."""
    value = f.read(source, index, f.row(lane))
    return tirx.Cast("int8", value) if source.type.dtype == "bool" else value


def _reduce(f: Chunk, node: Node, combine: Callable[[Expr, Expr], Expr], start: float | None, partial: int = 1) -> None:
    """Emit total = combine(total, element) for the elements along an axis, beginning with `start`, or with element 0 if it is None.

    With `partial` > 1 the elements are dealt out to so many totals, which are combined at the end.
    """
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    size = int(shape[axis])
    dtype = "i8" if source.type.dtype == "bool" else source.type.dtype
    keepdims = len(node.type.shape) == len(source.type.shape)
    partial = partial if size >= 4 * partial else 1

    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        totals = [f.scratch(f.lanes, dtype) for _ in range(partial)]

        def term(k: Expr, lane: Expr) -> Expr:
            return _element(f, source, [k if i == axis else at for i, at in enumerate(outer)], lane)

        def add(total: tirx.Buffer, k: Expr) -> None:
            with f.lane() as lane:
                T.buffer_store(total, combine(total[lane], term(k, lane)), [lane])

        for total in totals:
            with f.lane() as lane:
                T.buffer_store(total, number(start, dtype) if start is not None else term(0, lane), [lane])
        first = 0 if start is not None else 1
        rounds = (size - first) // partial
        if rounds:
            with f.repeat(rounds) as step:
                for i, total in enumerate(totals):
                    add(total, step * partial + (first + i))
        for k in range(first + rounds * partial, size):
            add(totals[0], k)
        while len(totals) > 1:
            for left, right in zip(totals[::2], totals[1::2], strict=True):
                with f.lane() as lane:
                    T.buffer_store(left, combine(left[lane], right[lane]), [lane])
            totals = totals[::2]
        index = outer if keepdims else [at for i, at in enumerate(outer) if i != axis]
        with f.lane() as lane:
            value = convert(totals[0][lane], dtype, "bool") if node.type.dtype == "bool" else totals[0][lane]
            f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), value)


@emits(tensor.Sum, spreads=True)
def sum_(f: Chunk, node: Node) -> None:
    """Emit `Sum`, in order or by partial sums."""
    op = node.op
    assert isinstance(op, tensor.Sum)
    if node.type.dtype == "bool":
        return _reduce(f, node, tirx.Max, 0)  # numpy's sum of bools as a bool is "any"
    return _reduce(f, node, tirx.Add, 0, 1 if op.ordered else PARTIAL_SUMS)


@emits(tensor.Max, spreads=True)
def max_(f: Chunk, node: Node) -> None:
    """Emit `Max`."""
    _reduce(f, node, lambda a, b: larger(a, b, node.type.dtype, f.dialect), None)


@emits(tensor.Min, spreads=True)
def min_(f: Chunk, node: Node) -> None:
    """Emit `Min`."""
    _reduce(f, node, lambda a, b: smaller(a, b, node.type.dtype, f.dialect), None)


@emits(tensor.CumSum, spreads=True)
def cumsum(f: Chunk, node: Node) -> None:
    """Emit `CumSum`."""
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        total = f.scratch(f.lanes, node.type.dtype)
        with f.lane() as lane:
            T.buffer_store(total, number(0, node.type.dtype), [lane])
        with f.repeat(int(shape[axis])) as k:
            index = [k if i == axis else at for i, at in enumerate(outer)]
            with f.lane() as lane:
                T.buffer_store(total, total[lane] + f.read(source, index, f.row(lane)), [lane])
            with f.lane() as lane:
                f.store(node, flatten(index, shape), f.row(lane), total[lane])


@emits(tensor.ArgMax, rereads=True, spreads=True)
def argmax(f: Chunk, node: Node) -> None:
    """Emit `ArgMax`: the place of the first maximum, or of the first NaN if there is one."""
    (source,) = node.inputs
    axis, shape = node.op.axis - 1, source.type.shape[1:]  # type: ignore[attr-defined]
    dtype = "i8" if source.type.dtype == "bool" else source.type.dtype
    # As wide as the numbers, so that a mask of the one need not become a mask of the other.
    counter: DType = "i32" if dtype in ("f32", "i32") else "i64"

    with f.grid([1 if i == axis else n for i, n in enumerate(shape)]) as outer:
        best, place = f.scratch(f.lanes, dtype), f.scratch(f.lanes, counter)

        def term(k: Expr, lane: Expr) -> Expr:
            return _element(f, source, [k if i == axis else at for i, at in enumerate(outer)], lane)

        def after(x: Expr, best: Expr, new: Expr, old: Expr) -> Expr:
            """`new` if x is larger than `best`, or if x alone is NaN, else `old`. LLVM would do an `or` of compares bit by bit for
            AVX2: the argmax of eight columns of float32 took 60 ns a row, and takes 4 (Zen 3)."""
            larger_ = tirx.Select(tirx.LE(x, best), old, new)
            return tirx.Select(tirx.EQ(best, best), larger_, old) if source.type.is_float else larger_

        with f.lane() as lane:
            T.buffer_store(best, term(0, lane), [lane])
        with f.lane() as lane:
            T.buffer_store(place, number(0, counter), [lane])
        with T.serial(tirx.const(1, "int64"), tirx.const(int(shape[axis]), "int64")) as k:
            count = T.Bind(convert(k, "i64", counter))
            # The candidate is stored, since two statements read it.
            candidate = f.scratch(f.lanes, dtype)
            with f.lane() as lane:
                T.buffer_store(candidate, term(k, lane), [lane])
            with f.lane() as lane:
                T.buffer_store(place, after(candidate[lane], best[lane], count, place[lane]), [lane])
            with f.lane() as lane:
                T.buffer_store(best, after(candidate[lane], best[lane], candidate[lane], best[lane]), [lane])
        index = [at for i, at in enumerate(outer) if i != axis]
        with f.lane() as lane:
            f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), convert(place[lane], counter, "i64"))
