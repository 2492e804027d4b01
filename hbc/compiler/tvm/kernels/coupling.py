"""The kernels of `PairSums` and of `PairwiseCoupling`: sums for pairs of classes, and class probabilities from those of pairs. The second
takes one row after the other, each with as many sweeps as it needs to converge."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import DTYPES, Expr
from hbc.compiler.tvm.tir.expressions import number, product
from hbc.ir.graph import Node
from hbc.ops.coupling import PairSums, PairwiseCoupling


def _nanoseconds(node: Node) -> float:
    op = node.op
    assert isinstance(op, PairSums)
    return 0.3 * (len(op.counts) - 1) * sum(op.counts)


@emits(PairSums, rereads=True, spreads=True, nanoseconds=_nanoseconds)
def pair_sums(f: Chunk, node: Node) -> None:
    """Emit `PairSums`."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, PairSums)
    first, second = op.pairs
    sides = [(f.own(of, "i64"), f.own(row, "i64")) for of, row in ((first, second - 1), (second, first))]
    starts, counts, weights = f.own(op.starts, "i64"), f.own(np.array(op.counts), "i64"), f.own(op.weights, "f32")
    with f.grid([len(first)]) as (pair,):
        total = f.scratch(f.lanes, "f64")
        with f.lane() as lane:
            T.buffer_store(total, number(0, "f64"), [lane])
        for of, row in sides:
            side = T.Bind(f.constant(of, "i64", pair))
            start = T.Bind(f.constant(starts, "i64", side))
            weight = T.Bind(f.constant(row, "i64", pair) * op.weights.shape[1] + start)
            with f.repeat(T.Bind(f.constant(counts, "i64", side))) as v, f.lane() as lane:
                value = f.read(x, [start + v], f.row(lane))
                added = product(value, f.constant(weights, "f32", weight + v), "f32", f.dialect)
                T.buffer_store(total, tirx.Add(total[lane], tirx.Cast("float64", added)), [lane])
        with f.lane() as lane:
            f.store(node, pair, f.row(lane), total[lane])


@emits(PairwiseCoupling, rereads=True)
def coupling(f: Chunk, node: Node) -> None:
    """Emit `PairwiseCoupling`."""
    op, (r,) = node.op, node.inputs
    assert isinstance(op, PairwiseCoupling)
    size, dtype = op.classes, op.dtype
    places = f.own(op.places, "i64")

    def array(count: int) -> tirx.Buffer:
        return T.alloc_buffer((count,), DTYPES[dtype], scope=f.schedule.scope)

    def times(a: Expr, b: Expr) -> Expr:
        return product(a, b, dtype, f.dialect)

    def set_to(buffer: tirx.Buffer, value: Expr, at: Expr = 0) -> None:
        T.buffer_store(buffer, value, [at])

    against, Q, Qp, p, pQp, step = array(size * size), array(size * size), array(size), array(size), array(1), array(2)
    on = f.scratch(1, "i64")
    zero, one, two = (number(value, dtype) for value in (0, 1, 2))

    with f.each_row() as row:
        with f.repeat(size) as i, f.repeat(size) as j:
            share = f.read(r, [f.constant(places, "i64", i * size + j)], row)
            set_to(against, tirx.Select(tirx.LT(i, j), share, tirx.Sub(one, share)), i * size + j)
        with f.repeat(size) as i:
            set_to(step, zero)
            with f.repeat(size) as j:
                other = against[j * size + i]
                set_to(step, tirx.Select(tirx.EQ(i, j), step[0], tirx.Add(step[0], times(other, other))))
                set_to(Q, times(number(-1, dtype), times(other, against[i * size + j])), i * size + j)
            set_to(Q, step[0], i * size + i)
        with f.repeat(size) as i:
            set_to(p, number(1.0 / size, dtype), i)
        T.buffer_store(on, tirx.const(1, "int64"), [0])
        with f.repeat(op.sweeps), T.If(tirx.EQ(on[0], tirx.const(1, "int64"))), T.Then():
            set_to(pQp, zero)
            with f.repeat(size) as i:
                set_to(Qp, zero, i)
                with f.repeat(size) as j:
                    set_to(Qp, tirx.Add(Qp[i], times(Q[i * size + j], p[j])), i)
                set_to(pQp, tirx.Add(pQp[0], times(p[i], Qp[i])))
            T.buffer_store(on, tirx.const(0, "int64"), [0])
            with f.repeat(size) as i:
                far = tirx.LE(number(op.tolerance, dtype), tirx.abs(tirx.Sub(Qp[i], pQp[0])))
                T.buffer_store(on, tirx.Max(on[0], tirx.Cast("int64", far)), [0])
            with T.If(tirx.EQ(on[0], tirx.const(1, "int64"))), T.Then(), f.repeat(size) as i:
                least = Q[i * size + i]
                set_to(step, tirx.Div(tirx.Sub(pQp[0], Qp[i]), least), 0)
                set_to(step, tirx.Add(one, step[0]), 1)
                set_to(p, tirx.Add(p[i], step[0]), i)
                inner = tirx.Add(times(step[0], least), times(two, Qp[i]))
                total = tirx.Add(pQp[0], times(step[0], inner))
                set_to(pQp, tirx.Div(tirx.Div(total, step[1]), step[1]))
                with f.repeat(size) as j:
                    set_to(Qp, tirx.Div(tirx.Add(Qp[j], times(step[0], Q[i * size + j])), step[1]), j)
                    set_to(p, tirx.Div(p[j], step[1]), j)
        with f.repeat(size) as i:
            f.store(node, i, row, p[i])
