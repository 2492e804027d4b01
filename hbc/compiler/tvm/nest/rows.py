"""Computes the values of the current vector of rows, copies them to the caller's arrays, and tests conditions."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest import transpose
from hbc.compiler.tvm.nest.function import Block, Chunk, flatten
from hbc.compiler.tvm.plan.operators import emission
from hbc.compiler.tvm.plan.sizes import bytes_of, elements
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.vectors import as_vector, store
from hbc.ir.graph import Node


def compute(f: Chunk, node: Node) -> None:
    """Fill the memory of a value for a vector of rows, by the kernel of its operator; without a kernel, one element after the other. Some
    outputs have no memory (`given_straight`)."""
    if elements(node.type) and node in f.plan.slots:
        known = emission(node.op)
        with f.schedule.computes(known.kernel is None or known.spreads):
            (known.kernel or at_once)(f, node)


def compute_block(f: Block, node: Node) -> None:
    """Fill the memory of a value for a whole block of rows, by the kernel of its operator."""
    kernel = emission(node.op).kernel
    assert kernel is not None
    if elements(node.type):
        kernel(f, node)


def at_once(f: Chunk, node: Node) -> None:
    """Fill the memory of a value element by element, for all rows of the vector at once."""
    with f.grid(node.type.shape[1:]) as index, f.lane() as lane:
        f.store(node, flatten(index, node.type.shape[1:]), f.row(lane), f.value(node, index, f.row(lane)))


def row_by_row(f: Chunk, node: Node, partial: bool = False) -> None:
    """Fill the memory of a value one row after the other. partial: only if the vector is not full."""
    with f.each_row(partial) as row, f.grid(node.type.shape[1:]) as index:
        f.store(node, flatten(index, node.type.shape[1:]), row, f.value(node, index, row))


def give_back(f: Chunk, node: Node, output: Any) -> None:
    """Copy the current vector of rows of a value to the caller's array."""
    if node not in f.plan.slots:
        (emission(node.op).gives or _copy_rows)(f, node, output)
        return
    size = transpose.narrow(f, node.type)
    if size:
        with f.whole_vector():
            transpose.gather(f, node, output, size)
    elif size := transpose.side(f, node.type):
        with f.whole_vector():
            transpose.give_out(f, node, output, size)
    with f.each_row(partial=size > 0) as row, f.grid(node.type.shape[1:]) as index:
        T.buffer_store(output, f.read(node, index, row), [f.base + row.block, *index])


def _copy_rows(f: Chunk, node: Node, output: Any) -> None:
    """Copy rows of a table to the caller's array, a register at a time. If elements are left over, the last register overlaps the one
    before it."""
    table, place = node.inputs
    array, width, dtype = f.plan.constants[table], elements(node.type), node.type.dtype
    lanes = 1
    if f.dialect.llvm and dtype != "bool":
        most = f.schedule.register_bits(f.dialect) // (8 * bytes_of(dtype))
        lanes = min(most, 1 << (width.bit_length() - 1))
    flat, whole = as_vector(output), width // lanes
    with f.each_row() as row:
        start = T.Bind(tirx.Cast("int64", f.read(place, [], row)) * width)
        end = T.Bind((f.base + row.block) * width)

        def copy(at: Expr) -> None:
            with T.serial(end + at, end + at + 1) as origin:  # one round, as in `transpose`: the run begins at a loop variable
                store(flat, f.constants(array, dtype, start + at, lanes), origin, lanes)

        with f.grid([whole]) as (i,):
            copy(i * lanes)
        if width % lanes:
            copy(tirx.const(width - lanes, "int64"))


def require(f: Chunk, node: Node, failed: Any) -> None:
    """Set `failed` for each row of the current vector whose condition is false: its lane, or lane 0 if the vector is not full."""
    shape = node.type.shape[1:]
    with f.whole_vector(), f.grid(shape) as index, f.lane() as lane:
        missed = tirx.Cast("int32", tirx.Not(f.read(node, index, f.row(lane))))
        T.buffer_store(failed, tirx.bitwise_or(failed[lane], missed), [lane])
    with f.each_row(partial=True) as row, f.grid(shape) as index:
        missed = tirx.Cast("int32", tirx.Not(f.read(node, index, row)))
        T.buffer_store(failed, tirx.bitwise_or(failed[0], missed), [0])
