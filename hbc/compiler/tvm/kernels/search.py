"""`Rank`: how many of a column's sorted edges are below a value. `TakeByColumn`: a look-up in a table for each column.

With AVX-512 the search tree is looked up in registers, for all rows of a register at once. 43 edges of float32 take 0.5 ns an element
instead of 1.6, and 1,000 edges 2.4 ns instead of 8.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.function import Chunk
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.register_search import edges_below, padded, search_tree
from hbc.compiler.tvm.tir.vectors import REGISTER_TABLES, count_of, look_up, once_if, store, vector
from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops.columns import Rank, TakeByColumn

LINEAR_RANK = 256
"""Without AVX-512: up to so many bytes of edges a column, counting all edges is faster than a binary search (4 columns of 43 edges: 1.9
instead of 3.8 ns)."""
FEW = 8
"""Up to so many edges, counting them is faster than any search (4 edges of float32: 0.2 ns an element, by a search 0.26)."""
REGISTERS = 4
"""The most registers that hold a level of the search tree."""
TABLE = 8
"""The most registers that hold a column's table."""
NODE = 16
"""The number of edges that one compare counts at the bottom of a search, below the levels that registers hold."""


@emits(Rank, rereads=True, spreads=True)
def rank(f: Chunk, node: Node) -> None:
    """Emit `Rank`: by registers with AVX-512, by counting if there are few edges, otherwise by a binary search."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Rank)
    if f.dialect.wide and x.type.dtype in REGISTER_TABLES and op.edges.shape[1] > FEW:
        _by_registers(f, node, op.edges)
    elif op.edges[:1].nbytes <= LINEAR_RANK:
        _counted(f, node, op.edges)
    else:
        _one_by_one(f, node, op.edges)


def _by_registers(f: Chunk, node: Node, edges: Array) -> None:
    """Emit the search for all rows of a register at once.

    If there are more levels than REGISTERS registers hold, `_descended` searches the rest row by row.
    """
    (x,), (width, count) = node.inputs, edges.shape
    dtype, bits = x.type.dtype, 8 * edges.itemsize
    lanes = 512 // bits
    levels, most = count.bit_length(), (lanes * REGISTERS).bit_length()
    below = 0 if levels <= most else max(levels - most, NODE.bit_length() - 1)
    top = levels - below
    sorted_edges = padded(edges, 1 << levels)
    tree = f.own(search_tree(sorted_edges, top, lanes), dtype)
    stride = tree.shape[1]
    sorted_edges = f.own(sorted_edges, dtype) if below else sorted_edges

    registers = range(0, f.lanes, lanes)
    """The first row of each."""

    def search(searched: int) -> None:
        """Emit the search for the rows of the first registers, so many."""
        with f.grid([width]) as (column,):
            values, places, nodes = f.scratch(f.lanes, dtype), f.scratch(f.lanes, "i32"), f.scratch(lanes, f"i{bits}")
            with f.lane() as lane:
                T.buffer_store(values, f.read(x, [column], f.row(lane)), [lane])
            for first in registers[:searched]:
                value = T.Bind(vector(values, first, lanes))
                read = lambda at: f.constants(tree, dtype, column * stride + at, lanes)  # noqa: E731
                place = edges_below(value, top, read, dtype, nodes, lanes)
                found = T.Bind(tirx.Cast(f"int32x{lanes}", place))
                # Rows that do not exist have the places of others: what is looked up by them later must be there.
                for same in range(first, f.lanes, lanes * searched):
                    store(places, found, same, lanes)
            if below:
                with f.each_row() as row:
                    place = _descended(f, sorted_edges, dtype, column << levels, below, values[row.lane], places[row.lane])
                    f.store(node, column, row, place)
            else:
                with f.lane() as lane:
                    f.store(node, column, f.row(lane), places[lane])

    if len(registers) == 1 or f.part == "full":
        search(len(registers))
        return
    # The rows of one register cost half: one row of 300 columns and 50 edges of float64 takes 3.7 µs instead of 5.5.
    one = T.Bind(tirx.Cast("int64", tirx.LE(f.count, tirx.const(lanes, "int64"))))
    with once_if(one):
        search(1)
    with T.serial(one, tirx.const(1, "int64")):  # the reverse of `once_if`
        search(len(registers))


def _descended(f: Chunk, edges: Array, dtype: str, start: Expr, levels: int, value: Expr, place: Expr) -> Expr:
    """The rank of one value. The levels above have led to `place`, and `levels` levels are left.

    The edges of the last levels, NODE of them, are counted at once.
    """
    value, at = T.Bind(value), T.Bind(tirx.Cast("int64", place))
    for level in reversed(range(NODE.bit_length() - 1, levels)):
        edge = f.constant(edges, dtype, start + (at * 2 + 1) * (1 << level) - 1)
        at = T.Bind(at * 2 + tirx.Cast("int64", tirx.LT(edge, value)))
    at = T.Bind(at * NODE)
    node = f.constants(edges, dtype, start + at, NODE)
    return tirx.Add(tirx.Cast("int32", at), count_of(tirx.LT(node, tirx.Broadcast(value, NODE)), NODE))


def _counted(f: Chunk, node: Node, edges: Array) -> None:
    """Emit ranks by counting all edges below a value."""
    (x,), (width, count) = node.inputs, edges.shape
    with f.grid([width]) as (column,):
        total = f.scratch(f.lanes, "i32")
        with f.lane() as lane:
            T.buffer_store(total, tirx.const(0, "int32"), [lane])
        with f.repeat(count) as k, f.lane() as lane:
            edge = f.constant(edges, x.type.dtype, column * count + k)
            below = tirx.Cast("int32", tirx.LT(edge, f.read(x, [column], f.row(lane))))
            T.buffer_store(total, total[lane] + below, [lane])
        with f.lane() as lane:
            f.store(node, column, f.row(lane), total[lane])


def _one_by_one(f: Chunk, node: Node, edges: Array) -> None:
    """Emit ranks by a binary search, a column after the other, so that its rows find the upper edges in a cache. Row by row, 300 columns of
    255 edges took 1.35 times as long (code for Zen 3 on Zen 4)."""
    (x,), (width, count) = node.inputs, edges.shape
    dtype, levels = x.type.dtype, count.bit_length()
    sorted_edges = f.own(padded(edges, 1 << levels), dtype)
    with f.grid([width]) as (column,), f.each_row() as row:
        value, place = f.scratch(1, dtype), f.scratch(1, "i64")
        T.buffer_store(value, f.read(x, [column], row), [0])
        T.buffer_store(place, tirx.const(0, "int64"), [0])
        for level in reversed(range(levels)):
            half = 1 << level
            edge = f.constant(sorted_edges, dtype, (column << levels) + place[0] + (half - 1))
            T.buffer_store(place, place[0] + tirx.Cast("int64", tirx.LT(edge, value[0])) * half, [0])
        f.store(node, column, row, tirx.Cast("int32", place[0]))


@emits(TakeByColumn, spreads=True)
def take_by_column(f: Chunk, node: Node) -> None:
    """Emit `TakeByColumn`: y[n, f] = table[f, x[n, f]]. With AVX-512, tables of up to TABLE registers are looked up in registers."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, TakeByColumn)
    table, dtype = op.table, node.type.dtype
    (width, count), lanes = table.shape, 64 // table.itemsize
    size = max(1 << (count - 1).bit_length(), lanes)
    if not (f.dialect.wide and dtype in REGISTER_TABLES and size <= TABLE * lanes):
        with f.each_row() as row, f.grid([width]) as (column,):
            place = tirx.Cast("int64", f.read(x, [column], row))
            f.store(node, column, row, f.constant(table, dtype, column * count + place))
        return
    padded = np.zeros((width, size), table.dtype)
    padded[:, :count] = table
    padded = f.own(padded, dtype)
    with f.grid([width]) as (column,):
        places, found = f.scratch(f.lanes, f"i{8 * table.itemsize}"), f.scratch(f.lanes, dtype)
        with f.lane() as lane:
            place = f.read(x, [column], f.row(lane))
            T.buffer_store(places, tirx.Cast(f"int{8 * table.itemsize}", place), [lane])
        for first in range(0, f.lanes, lanes):
            registers = [f.constants(padded, dtype, column * size + at, lanes) for at in range(0, size, lanes)]
            store(found, look_up(registers, vector(places, first, lanes), dtype, lanes), first, lanes)
        with f.lane() as lane:
            f.store(node, column, f.row(lane), found[lane])
