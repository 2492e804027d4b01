"""The loops of `RowDot` (plan/row_dots.py): dot products of rows with few outputs, along the columns of a row.

    for `lanes` rows:
        sums[row][lane] += weight · x[row, window + lane]       # for each window of `lanes` columns; one register a row
        y[row] = Σ sums[row][lane]                              # halves of registers are added, two rows at a time

The last rows of a block go one by one, with the same order of additions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.elementwise import element
from hbc.compiler.tvm.nest.function import Chunk, Row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.row_dots import RowDot, Summand, taken_columns
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import fused, is_nan_in_vector, number
from hbc.compiler.tvm.tir.vectors import as_vector, shuffled, store, vector
from hbc.ir.graph import Constant, Input, Node
from hbc.ops import tensor


@emits(RowDot)
def row_dot(f: Chunk, node: Node) -> None:
    """Emit the dot products of a vector of rows. As many rows go at once as a register has lanes, each with a register of partial sums.

    The lanes of a register are added in halves, in the same order for a single row. So a row's result does not depend on the other rows.
    """
    op = node.op
    assert isinstance(op, RowDot)
    lanes = op.lanes
    summands = [(summand, _added(f, summand, op.dtype)) for summand in op.summands]
    with f.whole_vector(), f.grid([op.width, f.lanes // lanes]) as (k, group):
        row = f.start + group * lanes
        sums = _partial_sums(f, op, summands, k, row, lanes)
        half = lanes // 2
        while half:  # for each pair of registers: the lower halves of each row's lanes plus the upper halves
            lower = [j * 2 * half + i for j in range(lanes // half) for i in range(half)]
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
            sums = [T.Bind(tirx.Add(shuffled(pair, lower), shuffled(pair, [at + half for at in lower]))) for pair in pairs]
            half //= 2
        pool, start = f.place(node, k, Row(row, group * lanes))
        with T.serial(start, start + 1) as at:  # TVM keeps a run of elements whole only if it begins at a loop variable
            store(pool, sums[0], at, lanes)
    with f.each_row(partial=True) as one, f.grid([op.width]) as (k,):
        (total,) = _partial_sums(f, op, summands, k, one.block, 1)
        half = lanes // 2
        while half:
            total = T.Bind(tirx.Add(total, shuffled([total], [(at + half) % lanes for at in range(lanes)])))
            half //= 2
        f.store(node, k, one, shuffled([total], [0]))


Added = Callable[[Expr, Expr, Expr, Expr, bool], Expr]
"""(total, output, place in the windows, the number of x there, masked) → the new total. masked: some places of the window don't count."""


def _partial_sums(f: Chunk, op: RowDot, summands: list[tuple[Summand, Added]], k: Expr, row: Expr, rows: int) -> list[Expr]:
    """The sums of output k for `rows` rows, from row `row` of the block on. The sum of a row is spread over the lanes of a register."""
    lanes = op.lanes
    sums = [f.scratch(lanes, op.dtype) for _ in range(rows)]
    for total in sums:
        store(total, tirx.Broadcast(number(0, op.dtype), lanes), 0, lanes)
    for summand, added in summands:
        starts, width, whole = f.own(summand.starts, "i64"), summand.source.type.columns, summand.whole
        argument = as_vector(f.arguments[summand.source])
        for first, end, masked in ((0, whole, False), (whole, len(starts), True)):
            if first == end:
                continue
            with T.serial(tirx.const(first, "int64"), tirx.const(end, "int64")) as window:
                outside = (f.base + row) * width + f.constant(starts, "i64", window)
                with T.serial(outside, outside + 1) as origin:  # one round, as in `row_dot`: the run begins at a loop variable
                    for r, total in enumerate(sums):
                        with T.vectorized(tirx.const(lanes, "int64")) as lane:
                            x = argument[origin + r * width + lane]
                            T.buffer_store(total, added(total[lane], k, window * lanes + lane, x, masked), [lane])
    return [T.Bind(vector(total, 0, lanes)) for total in sums]


def _added(f: Chunk, summand: Summand, dtype: str) -> Added:
    """The code that adds one element of a summand to a sum, as `Added` says."""
    weights, size = f.own(summand.weights, dtype), summand.positions.size
    kept, value = f.own(summand.kept, "i8"), summand.value
    # If the value is a condition, made a number, the weight is added or not: no product.
    chosen = isinstance(value.op, tensor.Cast) and value.inputs[0].type.dtype == "bool"
    element_of = _along(f, value.inputs[0] if chosen else value, summand.positions)

    def added(total: Expr, k: Expr, place: Expr, x: Expr, masked: bool) -> Expr:
        weight, y = f.constant(weights, dtype, k * size + place), element_of(place, x)
        # Not `kept != 0`: LLVM would swap the two cases, and then find no instruction that adds under a mask.
        here = tirx.LT(tirx.const(0, "int8"), f.constant(kept, "i8", place)) if masked else None
        if chosen:
            return tirx.Select(y if here is None else tirx.And(y, here), tirx.Add(total, weight), total)
        result = fused(y, weight, total, dtype, f.dialect)
        return result if here is None else tirx.Select(here, result, total)

    return added


def _along(f: Chunk, node: Node, positions: np.ndarray) -> Callable[[Expr, Expr], Expr]:
    """A function (place, the number of x there) → the element of `node` in column positions[place]."""
    if isinstance(node.op, Input):
        return lambda place, x: x
    if (taken := taken_columns(node)) is not None:
        return _along(f, node.inputs[0], taken[positions])

    def operand(source: Node) -> Callable[[Expr, Expr], Expr]:
        if not isinstance(source.op, Constant):
            return _along(f, source, positions)
        values, dtype = source.op.value.reshape(-1), source.type.dtype
        own = f.own(values[positions] if values.size > 1 else values, dtype)
        return lambda place, x: f.constant(own, dtype, place if own.size > 1 else tirx.const(0, "int64"))

    operands = [operand(source) for source in node.inputs]
    if isinstance(node.op, tensor.IsNan):
        return lambda place, x: is_nan_in_vector(operands[0](place, x))
    return lambda place, x: element(node, f.dialect, *(each(place, x) for each in operands))
