"""The expressions that elementwise operators are made of.

TVM must not simplify what is built here: its rules are for integers and reals (`x - x` becomes 0, `not a < b` becomes `b <= a`),
so run/targets.py runs the lowering passes without them, and expressions are made by constructors, which fold nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from hbc.compiler.tvm.tir.dialect import DTYPES, FLOATS, Dialect, Expr


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
    if dtype not in FLOATS:
        return tirx.Max(a, b)
    if dialect.llvm:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.maximum", a, b)
    return let(a, lambda a: let(b, lambda b: tirx.Select(tirx.Or(tirx.LE(b, a), is_nan(a)), a, b)))


def smaller(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """numpy.minimum: NaN if either is."""
    if dtype not in FLOATS:
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
    if dialect.llvm and dtype in FLOATS:
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


def sigmoid(x: Expr, dtype: str) -> Expr:
    one = number(1, dtype)

    def halves(x: Expr) -> Expr:
        magnitude = tirx.Select(tirx.LT(x, number(0, dtype)), tirx.Mul(x, number(-1, dtype)), x)
        small = library("exp", dtype, tirx.Mul(magnitude, number(-1, dtype)))
        return let(
            small,
            lambda small: tirx.Div(tirx.Select(tirx.LE(number(0, dtype), x), one, small), tirx.Add(one, small)),
        )

    return let(x, halves)


def remainder(a: Expr, b: Expr, dtype: str) -> Expr:
    """numpy.remainder by C's fmod, which has the sign of a."""
    zero = number(0, dtype)

    def signed(b: Expr) -> Callable[[Expr], Expr]:
        def other(rest: Expr) -> Expr:
            below, negative = (tirx.Cast("int8", tirx.LT(x, zero)) for x in (rest, b))
            wrong = tirx.And(tirx.Not(tirx.EQ(rest, zero)), tirx.Not(tirx.EQ(below, negative)))
            return tirx.Select(wrong, tirx.Add(rest, b), rest)

        return other

    return let(b, lambda b: let(library("fmod", dtype, a, b), signed(b)))
