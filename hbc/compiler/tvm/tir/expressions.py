"""The expressions that elementwise operators are made of.

TVM must not simplify these expressions. Its rules hold for integers and real numbers, not for floats: `x - x` becomes 0, and
`not a < b` becomes `b <= a`. Therefore run/targets.py leaves out the passes that simplify. Expressions are made by the
constructors of `tirx` (`tirx.Add(a, b)`, not `a + b`), which fold nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from hbc.compiler.tvm.tir.dialect import DTYPES, FLOATS, Dialect, Expr


def number(value: float, dtype: str) -> Expr:
    """A constant of a dtype."""
    return tirx.const(value, DTYPES[dtype])


def let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """body(value), where `value` is computed once though `body` reads it several times. Not for vectors: TVM fails to bind some."""
    variable = tirx.Var("v", value.ty)
    return tirx.Let(variable, value, body(variable))


def is_nan(x: Expr) -> Expr:
    """Whether x is NaN. May stand everywhere, also in an index, where TVM would simplify `not x == x` to false.

    TVM doesn't vectorize a statement that has it. LLVM then does, with vectors of half the width. See `is_nan_in_vector`.
    """
    return tirx.isnan(x)


def is_nan_in_vector(x: Expr) -> Expr:
    """Whether x is NaN, in a form that TVM vectorizes. Only for values that are stored: in an index TVM simplifies it to false."""
    return tirx.Not(tirx.EQ(x, x))


def larger(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """numpy.maximum(a, b): NaN if either is NaN."""
    if dtype not in FLOATS:
        return tirx.Max(a, b)
    if dialect.llvm:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.maximum", a, b)
    return let(a, lambda a: let(b, lambda b: tirx.Select(tirx.Or(tirx.LE(b, a), is_nan(a)), a, b)))


def smaller(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """numpy.minimum(a, b): NaN if either is NaN."""
    if dtype not in FLOATS:
        return tirx.Min(a, b)
    if dialect.llvm:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.minimum", a, b)
    return let(a, lambda a: let(b, lambda b: tirx.Select(tirx.Or(tirx.LE(a, b), is_nan(a)), a, b)))


def library(name: str, dtype: str, *args: Expr) -> Expr:
    """A call of a function of C's mathematics library. CUDA's library has the same names."""
    return tirx.call_pure_extern(DTYPES[dtype], name + ("f" if dtype == "f32" else ""), *args)


def product(a: Expr, b: Expr, dtype: str, dialect: Dialect) -> Expr:
    """a · b, rounded before anything is added to it.

    Without the fence LLVM's back ends would fuse it with a following sum, whatever the flags: 23 % of results then differ in the
    last bit. For CUDA a flag of nvcc forbids it.
    """
    result = tirx.Mul(a, b)
    if dialect.llvm and dtype in FLOATS:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.arithmetic.fence", result)
    return result


def fused(a: Expr, b: Expr, c: Expr, dtype: str, dialect: Dialect) -> Expr:
    """a · b + c, fused if the target can: for sums where it does not matter whether the product is rounded. CUDA's compiler is told to fuse
    nothing by itself (`--fmad=false`), and each GPU can. f64 is exact enough there, and fused, an SVC of many classes spills 32 bytes."""
    if not dialect.llvm and dtype == "f32":
        return library("fma", dtype, a, b, c)
    if dialect.fused:
        return tirx.call_llvm_pure_intrin(DTYPES[dtype], "llvm.fma", a, b, c)
    return tirx.Add(tirx.Mul(a, b), c)


def convert(x: Expr, source: str, dtype: str) -> Expr:
    """x, of dtype `source`, as `dtype`. A number becomes true unless it is 0; NaN is true."""
    if source == dtype:
        return x
    if dtype == "bool":
        return tirx.Not(tirx.EQ(x, number(0, source)))  # TVM's NE is false for NaN
    return tirx.Cast(DTYPES[dtype], x)


def sigmoid(x: Expr, dtype: str) -> Expr:
    """1 / (1 + e^-x), with e^-|x| so that nothing overflows. For targets without the functions of mathematics.py."""
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
    """numpy.remainder(a, b), which has the sign of b. It is made from C's fmod, which has the sign of a."""
    zero = number(0, dtype)

    def signed(b: Expr) -> Callable[[Expr], Expr]:
        def other(rest: Expr) -> Expr:
            below, negative = (tirx.Cast("int8", tirx.LT(x, zero)) for x in (rest, b))
            wrong = tirx.And(tirx.Not(tirx.EQ(rest, zero)), tirx.Not(tirx.EQ(below, negative)))
            return tirx.Select(wrong, tirx.Add(rest, b), rest)

        return other

    return let(b, lambda b: let(library("fmod", dtype, a, b), signed(b)))
