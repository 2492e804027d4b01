"""The kernel of `Input`: copies the caller's rows to the columns of a block."""

from __future__ import annotations

from hbc.compiler.tvm.nest import transpose
from hbc.compiler.tvm.nest.function import Chunk
from hbc.compiler.tvm.nest.rows import row_by_row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.plan.sizes import elements
from hbc.ir.graph import Input, Node


@emits(Input, spreads=True)
def read_input(f: Chunk, node: Node) -> None:
    """Copy the current vector of rows of an input, or only the columns that are read.

    Full vectors go through registers if transpose.py can copy them. All others go element by element.
    """
    if node in f.plan.columns:
        size = transpose.narrow(f, node.type)
        if size:
            with f.whole_vector():
                transpose.deal(f, node, size, f.plan.columns[node].tolist())
        read = f.own(f.plan.columns[node], "i64")
        with f.each_row(partial=size > 0) as row, f.grid([len(read)]) as (column,):
            f.store(node, column, row, f.value(node, [f.constant(read, "i64", column)], row))
    elif size := transpose.narrow(f, node.type):
        with f.whole_vector():
            transpose.deal(f, node, size, list(range(elements(node.type))))
        row_by_row(f, node, partial=True)
    elif size := transpose.side(f, node.type):
        with f.whole_vector():
            transpose.take_in(f, node, size)
        row_by_row(f, node, partial=True)
    else:  # row after row, in the order of the caller's memory
        row_by_row(f, node)
