"""Distances of rows to points (`Distances`): the sums of a few points and a vector of rows are in registers while the loop passes over the
features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import convert, larger, library, number, product
from hbc.compiler.tvm.tir.vectors import broadcast, store
from hbc.ir.graph import Node
from hbc.ops.nearest import Distances

POINTS = 4  # the most points of a tile
POINTS_IN_WIDE = 8  # the same with AVX-512: a register holds one number of each
FEW_ROWS = 6
"""Up to so many rows take the points of a tile at once, row by row. More rows go at once, a point after the other: 16 rows take 1.35 ms for
2,000 points of 617 features, one row 0.24."""
ZERO, ONE = (tirx.const(value, "int64") for value in (0, 1))


def _nanoseconds(node: Node) -> float:
    op = node.op
    assert isinstance(op, Distances)
    return (10.0 if op.metric == "power" else 0.1) * op.points.size


@emits(Distances, rereads=True, skipped=True, spreads=True, nanoseconds=_nanoseconds)
def distances(f: Chunk, node: Node) -> None:
    """Emit `Distances`: the distance of each row to each point, summed in float64, a tile of points at a time. Few rows have code of their
    own, with the same order of additions: a vector of 16 rows would take as long for one of them."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Distances)
    count, width = op.points.shape
    dtype = x.type.dtype
    together = min(POINTS_IN_WIDE if f.dialect.wide else POINTS, count)
    tiles = -(-count // together)
    padded = np.zeros((tiles * together, width), op.points.dtype)
    padded[:count] = op.points
    tiled = f.own(padded.reshape(tiles, together, width).transpose(0, 2, 1), dtype)
    weights = None if op.weights is None else f.own(op.weights.astype(np.float64), "f64")
    calls = op.metric == "power"  # calls C's pow, which takes one row at a time

    def term(feature: Expr, at: Expr, row: Row) -> Expr:
        a, b = f.read(x, [feature], row), f.constant(tiled, dtype, at)
        weight = None if weights is None else f.constant(weights, "f64", feature)
        difference = convert(tirx.Sub(a, b), dtype, "f64")
        match op.metric:
            case "squared":
                square = product(difference, difference, "f64", f.dialect)
                return square if weight is None else tirx.Div(square, weight)
            case "unequal":
                return tirx.Select(tirx.EQ(a, b), number(0, "f64"), number(1, "f64"))
            case "power":
                power = library("pow", "f64", tirx.abs(difference), number(op.p, "f64"))
                return power if weight is None else product(weight, power, "f64", f.dialect)
            case "canberra":
                size = convert(tirx.Add(tirx.abs(a), tirx.abs(b)), dtype, "f64")
                share = tirx.Div(tirx.abs(difference), size)
                return tirx.Select(tirx.LT(number(0, "f64"), size), share, number(0, "f64"))
            case "chi2":
                size = convert(tirx.Add(a, b), dtype, "f64")
                share = tirx.Div(product(difference, difference, "f64", f.dialect), size)
                return tirx.Select(tirx.EQ(size, number(0, "f64")), number(0, "f64"), share)
        return tirx.abs(difference)

    def join(total: Expr, value: Expr) -> Expr:
        return larger(total, value, "f64", f.dialect) if op.metric == "largest" else tirx.Add(total, value)

    def put(point: Expr, write: Callable[[], None]) -> None:
        """Write the distances to a point, if it is one."""
        if count % together:
            with T.If(tirx.LT(point, tirx.const(count, "int64"))), T.Then():
                write()
        else:
            write()

    def rounded(value: Expr) -> Expr:
        return convert(convert(value, "f64", dtype), dtype, "f64")

    def row_by_row() -> None:
        with f.each_row() as row, f.grid([tiles]) as (tile,):
            sums = f.scratch(together, "f64")
            store(sums, broadcast(number(0, "f64"), together), 0, together)
            with f.repeat(width) as feature, T.vectorized(tirx.const(together, "int64")) as i:
                at = (tile * width + feature) * together + i
                T.buffer_store(sums, join(sums[i], term(feature, at, row)), [i])
            for i in range(together):
                point = tile * together + i
                put(point, lambda i=i, point=point: f.store(node, point, row, rounded(sums[i])))  # type: ignore[misc]

    def all_at_once() -> None:
        with f.grid([tiles]) as (tile,):
            sums = f.scratch(together * f.lanes, "f64")
            for i in range(together):
                with f.lane() as lane:
                    T.buffer_store(sums, number(0, "f64"), [lane + i * f.lanes])
            with f.repeat(width) as feature:
                for i in range(together):
                    at = (tile * width + feature) * together + i
                    with f.each_row() if calls else f.lane() as lane:
                        row = lane if calls else f.row(lane)
                        place = row.lane + i * f.lanes
                        T.buffer_store(sums, join(sums[place], term(feature, at, row)), [place])
            for i in range(together):
                point = tile * together + i

                def write(i: int = i, point: Expr = point) -> None:
                    with f.lane() as lane:
                        f.store(node, point, f.row(lane), rounded(sums[lane + i * f.lanes]))

                put(point, write)

    if calls or f.lanes == 1 or together == 1 or together & (together - 1):
        all_at_once()
        return
    few = T.Bind(tirx.Cast("int64", tirx.LE(f.count, tirx.const(FEW_ROWS, "int64"))))
    # Loops of one or no round in place of an `if`, under which TVM's lowering spoils vectors of indices.
    with T.serial(ZERO, few):
        row_by_row()
    with T.serial(few, ONE):
        all_at_once()
