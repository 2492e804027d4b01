"""The TIR expression of one element, for each elementwise operator."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from hbc.compiler.tvm.plan.operators import element_of, emission, per_element
from hbc.compiler.tvm.tir.dialect import FLOATS, Dialect, Expr
from hbc.compiler.tvm.tir.expressions import convert, is_nan, larger, library, number, product, remainder, sigmoid, smaller
from hbc.compiler.tvm.tir.mathematics import FUNCTIONS, function
from hbc.ir.graph import Node, Operator
from hbc.ops import tensor
from hbc.ops.functions import CExponential, CLogarithm, CPower, Function

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
"""The names of these operators in C's mathematics library and in tir/mathematics.py."""
RUN_AS_THEY_ARE = ("log2", "log10")
"""The functions of the operator `Function` that have an expression here. The others are lowered to tensor operators."""


def function_name(op: Operator) -> str:
    """The name of an operator in `FUNCTIONS` and in the C library; "" if neither has it."""
    return op.function if isinstance(op, Function) else NAMES.get(type(op), "")


def element(node: Node, dialect: Dialect, *operands: Expr) -> Expr:
    """The expression of one element of an elementwise node, from the same elements of its operands."""
    code = emission(node.op).element
    assert code is not None
    return code(node, dialect, *operands)


def _dtype(node: Node) -> str:
    """The dtype of the first operand."""
    return node.inputs[0].type.dtype


@element_of(
    tensor.Exp, tensor.Expm1, tensor.Log, tensor.Log1p, tensor.Tanh, tensor.Sigmoid, costly=True, nanoseconds=per_element(1.5)
)
@element_of(Function, costly=True, nanoseconds=per_element(1.5))
def _function(node: Node, dialect: Dialect, x: Expr) -> Expr:
    name, dtype = function_name(node.op), _dtype(node)
    if dialect.llvm and name in FUNCTIONS:
        return function(name, x, dtype, dialect)
    return sigmoid(x, dtype) if name == "sigmoid" else library(name, dtype, x)


@element_of(tensor.Sin, tensor.Cos, tensor.Pow, costly=True, nanoseconds=per_element(8.0))
def _library(node: Node, dialect: Dialect, *operands: Expr) -> Expr:
    return library(function_name(node.op), _dtype(node), *operands)


@element_of(CPower, costly=True, nanoseconds=per_element(20.0))
def _c_power(node: Node, dialect: Dialect, x: Expr) -> Expr:
    op = node.op
    assert isinstance(op, CPower)
    return library("pow", "f64", x, number(op.exponent, "f64"))


@element_of(CLogarithm, costly=True, nanoseconds=per_element(5.0))
def _c_logarithm(node: Node, dialect: Dialect, x: Expr) -> Expr:
    return library("log", "f64", x)


@element_of(CExponential, costly=True, nanoseconds=per_element(5.0))
def _c_exponential(node: Node, dialect: Dialect, x: Expr) -> Expr:
    return library("exp", _dtype(node), x)


@element_of(tensor.Mod, costly=True, nanoseconds=per_element(8.0))
def _mod(node: Node, dialect: Dialect, x: Expr, y: Expr) -> Expr:
    return remainder(x, y, _dtype(node))


@element_of(tensor.Mul)
def _mul(node: Node, dialect: Dialect, x: Expr, y: Expr) -> Expr:
    return product(x, y, _dtype(node), dialect)


@element_of(tensor.Maximum)
def _maximum(node: Node, dialect: Dialect, x: Expr, y: Expr) -> Expr:
    return larger(x, y, _dtype(node), dialect)


@element_of(tensor.Minimum)
def _minimum(node: Node, dialect: Dialect, x: Expr, y: Expr) -> Expr:
    return smaller(x, y, _dtype(node), dialect)


@element_of(tensor.Equal)
def _equal(node: Node, dialect: Dialect, x: Expr, y: Expr) -> Expr:
    if _dtype(node) == "bool":  # TVM cannot compare vectors of bits
        return tirx.EQ(tirx.Cast("int8", x), tirx.Cast("int8", y))
    return tirx.EQ(x, y)


@element_of(tensor.Cast)
def _cast(node: Node, dialect: Dialect, x: Expr) -> Expr:
    return convert(x, _dtype(node), node.type.dtype)


@element_of(tensor.Neg)
def _neg(node: Node, dialect: Dialect, x: Expr) -> Expr:
    dtype = _dtype(node)
    return tirx.Mul(x, number(-1, dtype)) if dtype in FLOATS else tirx.Sub(number(0, dtype), x)


@element_of(tensor.Abs)
def _abs(node: Node, dialect: Dialect, x: Expr) -> Expr:
    dtype = _dtype(node)
    return tirx.abs(x) if dtype in FLOATS else tirx.Max(x, tirx.Sub(number(0, dtype), x))


def _plain(kind: type[Operator], code: Any) -> None:
    """Register an operator that is one constructor of TIR, for all dtypes and processors."""
    element_of(kind)(lambda node, dialect, *operands: code(*operands))


_plain(tensor.Add, tirx.Add)
_plain(tensor.Sub, tirx.Sub)
_plain(tensor.Div, tirx.Div)
_plain(tensor.Less, tirx.LT)
_plain(tensor.LessEqual, tirx.LE)
_plain(tensor.And, tirx.And)
_plain(tensor.Or, tirx.Or)
_plain(tensor.Not, tirx.Not)
_plain(tensor.Where, tirx.Select)
_plain(tensor.Sqrt, tirx.sqrt)
_plain(tensor.Floor, tirx.floor)
_plain(tensor.IsNan, is_nan)
