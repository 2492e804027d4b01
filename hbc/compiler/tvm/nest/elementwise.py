"""One element of every elementwise operator, as a TIR expression."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from hbc.compiler.tvm.tir.dialect import FLOATS, Dialect, Expr
from hbc.compiler.tvm.tir.expressions import convert, is_nan, larger, library, number, product, remainder, sigmoid, smaller
from hbc.compiler.tvm.tir.mathematics import FUNCTIONS, function
from hbc.ir.graph import Node, Operator
from hbc.ops import tensor
from hbc.ops.functions import Function

NAMES: dict[type[Operator], str] = {
    tensor.Exp: "exp",
    tensor.Expm1: "expm1",
    tensor.Log: "log",
    tensor.Log1p: "log1p",
    tensor.Tanh: "tanh",
    tensor.Sigmoid: "sigmoid",
    tensor.Sin: "sin",
    tensor.Cos: "cos",
    tensor.Pow: "pow",
}
"""What the C library and tir/mathematics.py call these."""
RUN_AS_THEY_ARE = ("log2", "log10")
"""The functions of a `Function` that no tensor operator computes."""
NODES: dict[type[Operator], Callable[..., Expr]] = {
    tensor.Add: tirx.Add,
    tensor.Sub: tirx.Sub,
    tensor.Div: tirx.Div,
    tensor.Less: tirx.LT,
    tensor.LessEqual: tirx.LE,
    tensor.Equal: tirx.EQ,
    tensor.And: tirx.And,
    tensor.Or: tirx.Or,
    tensor.Not: tirx.Not,
}


def function_name(op: Operator) -> str:
    """By which `FUNCTIONS` and the C library have an operator, or "" if neither has it."""
    return op.function if isinstance(op, Function) else NAMES.get(type(op), "")


def element(node: Node, dialect: Dialect, *args: Expr) -> Expr:
    """One element of an elementwise node from the matching elements of its operands."""
    op, dtype = node.op, node.inputs[0].type.dtype
    floats = dtype in FLOATS
    x, y, z = (*args, None, None)[:3]
    if dialect.llvm and function_name(op) in FUNCTIONS:
        return function(function_name(op), x, dtype, dialect)
    match op:
        case tensor.Mul():
            return product(x, y, dtype, dialect)
        case tensor.Maximum():
            return larger(x, y, dtype, dialect)
        case tensor.Minimum():
            return smaller(x, y, dtype, dialect)
        case tensor.Equal() if dtype == "bool":
            return tirx.EQ(tirx.Cast("int8", x), tirx.Cast("int8", y))  # vectors of bits have no comparison in TVM
        case tensor.Where():
            return tirx.Select(x, y, z)
        case tensor.Cast():
            return convert(x, dtype, op.dtype)
        case tensor.Neg():
            return tirx.Mul(x, number(-1, dtype)) if floats else tirx.Sub(number(0, dtype), x)
        case tensor.Abs():
            return tirx.abs(x) if floats else tirx.Max(x, tirx.Sub(number(0, dtype), x))
        case tensor.Sqrt():
            return tirx.sqrt(x)
        case tensor.Floor():
            return tirx.floor(x)
        case tensor.IsNan():
            return is_nan(x)
        case tensor.Sigmoid():
            return sigmoid(x, dtype)
        case tensor.Mod():
            return remainder(x, y, dtype)
        case Function(name):
            return library(name, dtype, x)
    if type(op) in NODES:
        return NODES[type(op)](*args)
    return library(NAMES[type(op)], dtype, *args)
