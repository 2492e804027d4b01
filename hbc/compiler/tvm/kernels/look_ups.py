"""The kernels of `Take`, `TakeAlong` and `Concat`."""

from __future__ import annotations

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.nest.function import Chunk, flatten
from hbc.compiler.tvm.nest.rows import at_once
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.sizes import elements
from hbc.ir.graph import Node
from hbc.ops import tensor


@emits(tensor.Take, rereads=True, spreads=True)
def take(f: Chunk, node: Node) -> None:
    """Emit `Take`: the rows of a table that the indices of each row choose, or the same columns of each row."""
    if node.inputs[0].type.batched:
        return at_once(f, node)
    table, indices = node.inputs
    array = f.plan.constants[table]
    count = len(indices.type.shape) - 1
    with f.each_row() as row, f.grid(node.type.shape[1:]) as index:
        place = tirx.Cast("int64", f.read(indices, index[:count], row))
        position = place * int(np.prod(array.shape[1:], dtype=np.int64)) + flatten(index[count:], array.shape[1:])
        value = f.constant(array, node.type.dtype, position)
        f.store(node, flatten(index, node.type.shape[1:]), row, value)


@emits(tensor.TakeAlong, rereads=True, spreads=True)
def take_along(f: Chunk, node: Node) -> None:
    """Emit `TakeAlong`: y[n, j] = x[n, indices[n, j]]."""
    x, indices = node.inputs
    with f.each_row() as row, f.grid(node.type.shape[1:]) as index:
        place = tirx.Cast("int64", f.read(indices, index, row))
        f.store(node, index[0], row, f.read(x, [place], row))


@emits(tensor.Concat, spreads=True)
def concat(f: Chunk, node: Node) -> None:
    """Emit `Concat`: copy one operand after the other."""
    axis = node.op.axis - 1  # type: ignore[attr-defined]
    start = 0
    for source in node.inputs:
        if not elements(source.type):
            continue
        with f.grid(source.type.shape[1:]) as index, f.lane() as lane:
            at = [i + start if place == axis else i for place, i in enumerate(index)]
            f.store(node, flatten(at, node.type.shape[1:]), f.row(lane), f.read(source, index, f.row(lane)))
        start += int(source.type.shape[axis + 1])
