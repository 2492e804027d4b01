"""One element of every elementwise operator, as a TIR expression.

TVM must not simplify what is built here: its rules are for integers and reals (`x - x` becomes 0, `not a < b` becomes `b <= a`),
so targets.py runs the lowering passes without them, and expressions are made by constructors, which fold nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from hbc.compiler.tvm import mathematics
from hbc.ir.graph import Node, Operator
from hbc.ops import tensor
from hbc.ops.functions import Function

Expr = Any  # a TIR expression; TVM has no type annotations

DTYPES = {
    "bool": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
}
LIBRARY_NAMES: dict[type[Operator], str] = {
    tensor.Exp: "exp",
    tensor.Expm1: "expm1",
    tensor.Log: "log",
    tensor.Log1p: "log1p",
    tensor.Tanh: "tanh",
    tensor.Sin: "sin",
    tensor.Cos: "cos",
    tensor.Pow: "pow",
}
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


@dataclass(frozen=True)
class Dialect:
    """What differs between targets. llvm: by LLVM's intrinsics; otherwise CUDA's C. fused: the target has a fused
    multiply-add, for sums whose order is free."""

    llvm: bool
    fused: bool = False
    wide: bool = False  # vector registers of 512 bits, 32 of them
    byte_permute: bool = False  # AVX-512 VBMI: a table of 64 or 128 bytes in registers, looked up by 64 lanes
    byte_lookup: bool = False  # AVX2: a table of 16 bytes, looked up by 32 lanes
    byte_masks: bool = False  # comparing bytes gives bytes of all or no bits, faster than comparing twice as many into a mask

    def tile(self, dtype: str) -> int:
        """Columns of a matrix product whose sums, for one vector of rows, fit the registers."""
        return 8 if self.wide else 4 if dtype == "f32" else 2


def number(value: float, dtype: str) -> Expr:
    return tirx.const(value, DTYPES[dtype])


def let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """`body` of a value that it reads several times. Only where rows come one by one: of vectors TVM fails to bind some."""
    variable = tirx.Var("v", value.ty)
    return tirx.Let(variable, value, body(variable))


def is_nan(x: Expr) -> Expr:
    """Everywhere: in an index TVM simplifies `not x == x` to false. But of a vectorized statement with it TVM makes no vectors, which
    LLVM then finds half as wide: see `is_nan_in_vector`."""
    return tirx.isnan(x)


def is_nan_in_vector(x: Expr) -> Expr:
    """Only in what is stored: never in an index."""
    return tirx.Not(tirx.EQ(x, x))


def larger(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """numpy.maximum: NaN if either is."""
    if dtype not in tensor.FLOATS:
        return tirx.Max(a, b)
    if dialect.llvm:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.maximum", a, b)
    return let(a, lambda a: let(b, lambda b: tirx.Select(tirx.Or(tirx.LE(b, a), is_nan(a)), a, b)))


def smaller(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """numpy.minimum: NaN if either is."""
    if dtype not in tensor.FLOATS:
        return tirx.Min(a, b)
    if dialect.llvm:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.minimum", a, b)
    return let(a, lambda a: let(b, lambda b: tirx.Select(tirx.Or(tirx.LE(a, b), is_nan(a)), a, b)))


def library(name: str, dtype: str, *args: Expr) -> Expr:
    """A call of the C mathematics library (of CUDA's, which has the same names)."""
    return tirx.call_pure_extern(DTYPES[dtype], name + ("f" if dtype == "f32" else ""), *args)


def product(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """a · b, rounded. LLVM's back ends would fuse it with a following sum, whatever
    the flags (23 % of results differ in the last bit), but for the fence; nvcc has a flag."""
    result = tirx.Mul(a, b)
    if dialect.llvm and dtype in tensor.FLOATS:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.arithmetic.fence", result)
    return result


def fused(a: Expr, b: Expr, c: Expr, dtype: str, dialect: Dialect) -> Expr:
    """a · b + c where it does not matter how it is rounded."""
    if dialect.fused:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.fma", a, b, c)
    return tirx.Add(tirx.Mul(a, b), c)


def convert(x: Expr, source: str, dtype: str) -> Expr:
    if source == dtype:
        return x
    if dtype == "bool":
        return tirx.Not(tirx.EQ(x, number(0, source)))  # NE is false for NaN
    return tirx.Cast(DTYPES[dtype], x)


def _sigmoid(x: Expr, dtype: str) -> Expr:
    one = number(1, dtype)

    def halves(x: Expr) -> Expr:
        magnitude = tirx.Select(tirx.LT(x, number(0, dtype)), tirx.Mul(x, number(-1, dtype)), x)
        small = library("exp", dtype, tirx.Mul(magnitude, number(-1, dtype)))
        return let(
            small,
            lambda small: tirx.Div(tirx.Select(tirx.LE(number(0, dtype), x), one, small), tirx.Add(one, small)),
        )

    return let(x, halves)


def _remainder(a: Expr, b: Expr, dtype: str) -> Expr:
    """numpy.remainder by C's fmod, which has the sign of a."""
    zero = number(0, dtype)

    def signed(b: Expr) -> Callable[[Expr], Expr]:
        def other(rest: Expr) -> Expr:
            below, negative = (tirx.Cast("int8", tirx.LT(x, zero)) for x in (rest, b))
            wrong = tirx.And(tirx.Not(tirx.EQ(rest, zero)), tirx.Not(tirx.EQ(below, negative)))
            return tirx.Select(wrong, tirx.Add(rest, b), rest)

        return other

    return let(b, lambda b: let(library("fmod", dtype, a, b), signed(b)))


def element(node: Node, dialect: Dialect, *args: Expr) -> Expr:
    """One element of an elementwise node from the matching elements of its operands."""
    op, dtype = node.op, node.inputs[0].type.dtype
    floats = dtype in tensor.FLOATS
    x, y, z = (*args, None, None)[:3]
    if dialect.llvm and mathematics.kind(op) in mathematics.FUNCTIONS:
        return mathematics.function(op, x, dtype, dialect)
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
            return _sigmoid(x, dtype)
        case tensor.Mod():
            return _remainder(x, y, dtype)
        case Function(name):
            return library(name, dtype, x)
    if type(op) in NODES:
        return NODES[type(op)](*args)
    return library(LIBRARY_NAMES[type(op)], dtype, *args)
