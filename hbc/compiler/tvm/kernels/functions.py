"""The kernels of elementary functions: exponentials, logarithms, sines, powers, remainders."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.nest.elementwise import NAMES, function_name
from hbc.compiler.tvm.nest.function import Chunk, flatten
from hbc.compiler.tvm.nest.rows import at_once, row_by_row
from hbc.compiler.tvm.plan.operators import emits
from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.expressions import convert, number
from hbc.compiler.tvm.tir.lines import FORMATS
from hbc.compiler.tvm.tir.mathematics import FUNCTIONS, TURNS, function, turned
from hbc.compiler.tvm.tir.powers import MOST, general_power, table_power
from hbc.compiler.tvm.tir.vectors import any_of, broadcast, store, vector
from hbc.ir.graph import Node
from hbc.ops import functions, tensor


@emits(*(op for op, name in NAMES.items() if name in FUNCTIONS), functions.Function, spreads=True)
def elementary(f: Chunk, node: Node) -> None:
    """Emit one of `mathematics.FUNCTIONS`. With AVX-512 it goes register by register, since its instructions take whole registers."""
    (x,), dtype = node.inputs, node.type.dtype
    if not (f.dialect.llvm and f.dialect.wide) or x not in f.plan.slots:  # a view has no memory of its own
        return at_once(f, node)
    lanes = 512 // FORMATS[dtype].bits
    _register_by_register(f, node, lambda x: function(function_name(node.op), x, dtype, f.dialect, lanes))


def _register_by_register(f: Chunk, node: Node, value: Callable[[Expr], Expr]) -> None:
    """Emit y = value(x), one register of rows at a time. x must have memory of its own."""
    x, shape, lanes = node.inputs[0], node.type.shape[1:], 512 // FORMATS[node.type.dtype].bits
    with f.grid(shape) as index:
        for first in range(0, f.lanes, lanes):
            row, position = f.row(tirx.const(first, "int64")), flatten(index, shape)
            pool, at = f.place(x, position, row)
            result = value(vector(pool, at, lanes))
            pool, at = f.place(node, position, row)
            store(pool, result, at, lanes)


@emits(tensor.Sin, tensor.Cos, spreads=True)
def sine(f: Chunk, node: Node) -> None:
    """Emit sines and cosines, a vector of rows at a time. If an argument is too large for that, the C library computes its row again."""
    (x,), dtype, shape = node.inputs, node.type.dtype, node.type.shape[1:]
    if not f.dialect.llvm:
        return row_by_row(f, node)
    limit, large = number(TURNS, dtype), f.scratch(f.lanes, "i32")
    store(large, broadcast(tirx.const(0, "int32"), f.lanes), 0, f.lanes)
    with f.grid(shape) as index:
        with f.lane() as lane:
            f.store(
                node,
                flatten(index, shape),
                f.row(lane),
                turned(function_name(node.op), f.read(x, index, f.row(lane)), dtype, f.dialect),
            )
        with f.lane() as lane:
            beyond = tirx.LT(limit, tirx.abs(f.read(x, index, f.row(lane))))
            T.buffer_store(large, tirx.bitwise_or(large[lane], tirx.Cast("int32", beyond)), [lane])
    some = any_of(tirx.LT(broadcast(tirx.const(0, "int32"), f.lanes), vector(large, 0, f.lanes)), f.lanes)
    with T.If(some), T.Then(), f.each_row() as row, f.grid(shape) as index:
        beyond = tirx.LT(limit, tirx.abs(f.read(x, index, row)))
        f.store(node, flatten(index, shape), row, tirx.Select(beyond, f.value(node, index, row), f.read(node, index, row)))


@emits(tensor.Pow, spreads=True)
def power(f: Chunk, node: Node) -> None:
    """Emit x^y: with a fused multiply-add, a vector of rows at a time; otherwise by the C library, row by row.

    With AVX-512, a small constant exponent takes `table_power`.
    """
    dtype, shape = node.type.dtype, node.type.shape[1:]
    if not (f.dialect.llvm and f.dialect.fused):
        return row_by_row(f, node)
    x, y = node.inputs
    constant = f.plan.constants.get(y)
    same = f.dialect.wide and x in f.plan.slots and x.type.shape == node.type.shape
    if same and constant is not None and constant.size == 1 and 0 < abs(constant.item()) < MOST[dtype]:
        return _register_by_register(f, node, lambda x: table_power(x, float(constant.item()), dtype, f.dialect))
    lanes = 8 if f.dialect.wide else f.lanes
    operands = [f.scratch(f.lanes, "f64") for _ in node.inputs]
    with f.grid(shape) as index:
        for source, operand in zip(node.inputs, operands, strict=True):
            with f.lane() as lane:
                value = f.operand(source, node.type, index, f.row(lane))
                T.buffer_store(operand, convert(value, dtype, "f64"), [lane])
        for first in range(0, f.lanes, lanes):
            base, exponent = (vector(operand, first, lanes) for operand in operands)
            if constant is not None and constant.size == 1:
                exponent = broadcast(number(float(constant.item()), "f64"), lanes)
            pool, at = f.place(node, flatten(index, shape), f.row(tirx.const(first, "int64")))
            store(pool, general_power(base, exponent, dtype, f.dialect, lanes), at, lanes)


@emits(tensor.Mod, functions.CPower, functions.CLogarithm, functions.CExponential, spreads=True)
def by_library(f: Chunk, node: Node) -> None:
    """Emit calls of the C library, row by row, since it must not see rows that don't exist."""
    row_by_row(f, node)
