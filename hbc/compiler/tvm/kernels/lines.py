"""The kernel of `OnLines`: the mean of the two ends' sums on the line between two points.

A row's two points lie side by side, in one or two cache lines. With a table for each of the six numbers they lay in six, and with a search
and tables for each direction in 20: 300 columns of 1,000 quantiles read 19 MB of them.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk
from hbc.compiler.tvm.plan.operators import emits, per_element
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import number, product
from hbc.ir.graph import Node
from hbc.ops.curves import OnLines


@emits(OnLines, rereads=True, spreads=True, nanoseconds=per_element(3.0))
def on_lines(f: Chunk, node: Node) -> None:
    """Emit `OnLines`, a column after the other, so that its rows find the table in a cache."""
    op, (x, place) = node.op, node.inputs
    assert isinstance(op, OnLines)
    width, count, fields = op.points.shape
    with f.grid([width]) as (column,), f.each_row() as row:
        value = T.Bind(f.read(x, [column], row))
        at = T.Bind((tirx.Cast("int64", f.read(place, [column], row)) + column * count) * fields)

        def field(index: int, at: Expr = at) -> Expr:
            return f.constant(op.points, "f64", at + index)

        slope, end = T.Bind(field(2)), T.Bind(field(fields))
        first = tirx.Add(product(slope, tirx.Sub(value, field(0)), "f64", f.dialect), field(1))
        second = tirx.Add(product(slope, tirx.Sub(value, end), "f64", f.dialect), field(fields + 1))
        mean = tirx.Mul(tirx.Add(first, second), number(0.5, "f64"))
        f.store(node, column, row, tirx.Select(tirx.EQ(value, end), field(fields + 3), mean))
