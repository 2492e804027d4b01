"""x^y as e^(y ln |x|): straight-line arithmetic, in float64 also for float32, as mathematics.py has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from hbc.compiler.tvm.mathematics import FORMATS, Lines

if TYPE_CHECKING:
    from hbc.compiler.tvm.expressions import Dialect

Expr = Any

LONG_LOG = (
    *(0.3999999999999998, 0.2857142857144511, 0.22222222217536666, 0.18181818870292596, 0.15384556872355976),
    *(0.13336317371427542, 0.11674819394136292, 0.11989006343093712),
)
"""Of (ln((1+s) / (1-s)) - 2s - ⅔ s³) / s⁵ in s², to 2^-72."""


def long_log(c: Lines, x: Expr, lift: Expr) -> tuple[Expr, Expr]:
    """ln x for normal numbers, in two parts: 12 bits more than log_parts; where there is a fused multiply-add."""
    form, two_thirds = c.form, (0.6666666666666666, 3.700743415417188e-17)
    k, f = c.binary_parts(x, lift)
    below = c.name(tirx.Add(c.real(2), f))
    lost = c.name(tirx.Sub(f, tirx.Sub(below, c.real(2))))
    inverse = c.name(tirx.Div(c.real(1), below))
    s = c.name(tirx.Mul(f, inverse))
    left = tirx.Sub(c.fma(tirx.Mul(s, c.real(-1)), below, f), tirx.Mul(s, lost))
    s1 = c.name(tirx.Mul(left, inverse))
    z, z1 = c.exact_product(s, s)
    z1 = c.name(c.fma(tirx.Mul(s, c.real(2)), s1, z1))
    # 2 s + s z (⅔ + z (…))
    q = c.name(tirx.Mul(z, c.polynomial(z, c.name(tirx.Mul(z, z)), LONG_LOG)))
    p = c.name(tirx.Add(c.real(two_thirds[0]), q))
    p1 = c.name(tirx.Add(tirx.Add(tirx.Sub(c.real(two_thirds[0]), p), q), c.real(two_thirds[1])))
    u, u1 = c.exact_product(s, z)
    u1 = c.name(tirx.Add(u1, c.fma(s, z1, tirx.Mul(s1, z))))
    v, v1 = c.exact_product(u, p)
    v1 = c.name(tirx.Add(v1, c.fma(u, p1, tirx.Mul(u1, p))))
    double = c.name(tirx.Mul(s, c.real(2)))
    high = c.name(tirx.Add(double, v))
    low = tirx.Add(tirx.Add(tirx.Sub(double, high), v), c.fma(s1, c.real(2), v1))
    whole = c.name(tirx.Mul(k, c.real(form.ln2[0])))  # exact
    total = c.name(tirx.Add(whole, high))
    lost = tirx.Add(tirx.Sub(whole, total), high)
    return total, c.name(tirx.Add(lost, c.fma(k, c.real(form.ln2[1]), low)))


def exponent(x: Expr, y: Expr, dtype: str, dialect: Dialect) -> list[Expr]:
    """y ln |x| in float64, for LLVM and a fused multiply-add: as rounded, and for float64 what that lacks. Two expressions, since TVM
    takes twice as long for every few names in one: with `raised`, x^y took 27 s to compile."""
    parts = []
    for lacks in (False, True) if dtype == "f64" else (False,):
        c = Lines(FORMATS["f64"], dialect)
        px, py = (c.name(tirx.Cast("float64", operand)) for operand in (x, y))
        one, zero, infinity = c.real(1), c.real(0), c.real(math.inf)
        size = c.name(tirx.abs(px))
        normal, lift = c.lifted(size)
        normal = c.name(normal)
        if dtype == "f64":
            log, lacking = long_log(c, normal, lift)
        else:
            log = c.name(c.log_parts(normal, lift))
        # Of 0, ∞ and NaN.
        pole = tirx.Select(tirx.EQ(size, zero), c.real(-math.inf), size)
        ordinary = tirx.And(tirx.LT(zero, size), tirx.LT(size, infinity))
        log = c.name(tirx.Select(ordinary, log, pole))
        product = c.call("llvm.arithmetic.fence", tirx.Mul(py, log))
        product = c.name(tirx.Select(tirx.EQ(size, one), tirx.Select(tirx.EQ(py, py), zero, py), product))
        if lacks:
            rest = c.fma(py, lacking, c.fma(py, log, tirx.Mul(product, c.real(-1))))
            # What has overflowed, or is made of infinities, lacks nothing.
            finite = tirx.And(tirx.LT(tirx.abs(product), c.real(1000.0)), tirx.LT(tirx.abs(py), infinity))
            parts.append(c.block(tirx.Select(finite, rest, zero)))
        else:
            parts.append(c.block(product))
    return parts


def raised(x: Expr, y: Expr, parts: Sequence[Expr], dtype: str, dialect: Dialect) -> Expr:
    """x^y, as in C, from the parts of `exponent`; that of float32 in float64."""
    c = Lines(FORMATS["f64"], dialect)
    x, y = (c.name(tirx.Cast("float64", operand)) for operand in (x, y))
    one, zero = c.real(1), c.real(0)
    product, *lacking = (c.name(part) for part in parts)
    p, _, scale = c.exp_parts(c.between(*c.form.range, product), *lacking)
    value = c.name(scale(p))
    whole = tirx.EQ(tirx.floor(y), y)
    half = c.name(tirx.Mul(y, c.real(0.5)))
    odd = tirx.And(whole, tirx.Not(tirx.EQ(tirx.floor(half), half)))
    signed = tirx.Select(odd, c.call("llvm.copysign", value, x), value)
    root = tirx.And(tirx.And(tirx.LT(x, zero), tirx.LT(c.real(-math.inf), x)), tirx.Not(whole))
    signed = tirx.Select(tirx.And(root, tirx.EQ(y, y)), c.real(math.nan), signed)
    constant = tirx.Or(tirx.EQ(y, zero), tirx.EQ(x, one))
    return tirx.Cast(FORMATS[dtype].dtype, c.block(tirx.Select(constant, one, signed)))
