"""Distances of rows to points (`Distances`): the sums of a few points and a vector of rows are in registers while the loop passes over the
features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import convert, larger, library, number, product
from hbc.compiler.tvm.tir.vectors import broadcast, once_if, store
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
    tiles = _Tiles(f, node)
    together = tiles.together
    if tiles.calls or f.lanes == 1 or together == 1 or together & (together - 1):
        tiles.all_at_once()
        return
    few = T.Bind(tirx.Cast("int64", tirx.LE(f.count, tirx.const(FEW_ROWS, "int64"))))
    with once_if(few):
        tiles.row_by_row()
    with T.serial(few, ONE):  # the reverse of `once_if`
        tiles.all_at_once()


class _Tiles:
    """Emits the distances of a chunk's rows to points in tiles.

    together: the points of a tile. The last tile is filled up with points of zeros, whose distances are not stored. calls: the metric calls
    C's pow, which takes one row at a time. sum_dtype: that of terms and sums.
    """

    def __init__(self, f: Chunk, node: Node) -> None:
        op, (self.x,) = node.op, node.inputs
        assert isinstance(op, Distances)
        self.f, self.node, self.op, self.dtype = f, node, op, self.x.type.dtype
        self.points, self.width = op.points.shape
        self.together = min(POINTS_IN_WIDE if f.dialect.wide else POINTS, self.points)
        self.tiles = -(-self.points // self.together)
        padded = np.zeros((self.tiles * self.together, self.width), op.points.dtype)
        padded[: self.points] = op.points
        tiled = padded.reshape(self.tiles, self.together, self.width).transpose(0, 2, 1)
        self.numbers = f.own(tiled, self.dtype)
        self.weights = None if op.weights is None else f.own(op.weights.astype(np.float64), "f64")
        self.calls = op.metric == "power"
        self.sum_dtype = self.dtype if op.metric == "rounded" else "f64"

    def row_by_row(self) -> None:
        """Emit the distances of one row after the other, to all points of a tile at once."""
        f, together = self.f, self.together
        with f.each_row() as row, f.grid([self.tiles]) as (tile,):
            sums = f.scratch(together, self.sum_dtype)
            store(sums, broadcast(number(0, self.sum_dtype), together), 0, together)
            with f.repeat(self.width) as feature, T.vectorized(tirx.const(together, "int64")) as i:
                at = (tile * self.width + feature) * together + i
                T.buffer_store(sums, self._join(sums[i], self._term(feature, at, row)), [i])
            for i in range(together):
                with self._if_point(tile * together + i) as point:
                    f.store(self.node, point, row, self._rounded(sums[i]))

    def all_at_once(self) -> None:
        """Emit the distances of all rows of the chunk, to one point of a tile after the other."""
        f, together = self.f, self.together
        with f.grid([self.tiles]) as (tile,):
            sums = f.scratch(together * f.lanes, self.sum_dtype)
            for i in range(together):
                with f.lane() as lane:
                    T.buffer_store(sums, number(0, self.sum_dtype), [lane + i * f.lanes])
            with f.repeat(self.width) as feature:
                for i in range(together):
                    at = (tile * self.width + feature) * together + i
                    with f.each_row() if self.calls else f.lane() as lane:
                        row = lane if self.calls else f.row(lane)
                        place = row.lane + i * f.lanes
                        T.buffer_store(sums, self._join(sums[place], self._term(feature, at, row)), [place])
            for i in range(together):
                with self._if_point(tile * together + i) as point, f.lane() as lane:
                    f.store(self.node, point, f.row(lane), self._rounded(sums[lane + i * f.lanes]))

    @contextmanager
    def _if_point(self, point: Expr) -> Iterator[Expr]:
        """What is emitted inside is run if a number is that of a point, and not of one that fills the last tile up."""
        if self.points % self.together:
            with T.If(tirx.LT(point, tirx.const(self.points, "int64"))), T.Then():
                yield point
        else:
            yield point

    def _term(self, feature: Expr, at: Expr, row: Row) -> Expr:
        """What a feature adds to the distance between a row and a point. at: where the point's number stands in the tiles."""
        f, op, dtype = self.f, self.op, self.dtype
        a, b = f.read(self.x, [feature], row), f.constant(self.numbers, dtype, at)
        weight = None if self.weights is None else f.constant(self.weights, "f64", feature)
        if op.metric == "rounded":
            return product(tirx.Sub(a, b), tirx.Sub(a, b), dtype, f.dialect)
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

    def _join(self, total: Expr, value: Expr) -> Expr:
        """The distance so far with one more term."""
        return larger(total, value, "f64", self.f.dialect) if self.op.metric == "largest" else tirx.Add(total, value)

    def _rounded(self, value: Expr) -> Expr:
        """A distance as the dtype of the rows holds it, f64."""
        return convert(convert(value, self.sum_dtype, self.dtype), self.dtype, "f64")
