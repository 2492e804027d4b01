"""Logarithms of float32 with AVX-512, without a division. A table of 32 intervals of the mantissa is held in pairs of registers.

    x      = 2^k m                            with 1 ≤ m < 2
    1/c    = table[first five bits of m]      c is near m
    r      = m · (1/c) - 1
    log2 x = (k + log2 c) + log2(1 + r)       log2 c from a second table, log2(1 + r) by a short series

1/c is a float32, so r is rounded once. c is 1 in the first interval and 2 in the last, so nothing is lost on either side of x = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.lines import Lines
from hbc.compiler.tvm.tir.polynomials import interpolated

INTERVALS = 32
"""The number of intervals of the mantissa, told apart by its first five bits. Two registers hold as many float32."""
TRIED = 1 << 14
"""How many floats are tried as 1/c on either side of 1 / (the middle of the interval)."""
STEP = 2.0**-18
"""log2 c is rounded to a multiple of this, so that k + log2 c is exact. Among the 1/c that are tried there is one for which that rounding
changes log2 c by less than 2^-29."""
BASES = {"log": Decimal(1).exp(), "log2": Decimal(2), "log10": Decimal(10)}


@cache
def intervals(step: float) -> tuple[list[float], list[float]]:
    """(1/c, log2 c) of the 32 intervals. log2 c is a multiple of `step`, or a float32 if `step` is 0.

    Of the 1/c tried in an interval, the one is taken whose log2 c is changed least by that rounding.
    """
    inverses, logs = [], []
    for i in range(INTERVALS):
        middle = np.float32(1 / (1 + (i + 0.5) / INTERVALS))
        tried = middle + np.float32(2.0**-24) * np.arange(-TRIED, TRIED + 1, dtype=np.float32)
        if i in (0, INTERVALS - 1):
            tried = np.array([1.0 if i == 0 else 0.5], np.float32)
        exact = -np.log2(tried.astype(np.float64))
        near = np.round(exact / step) * step if step else exact.astype(np.float32).astype(np.float64)
        best = int(np.argmin(np.abs(near - exact)))
        inverses.append(float(tried[best]))
        logs.append(float(near[best]))
    return inverses, logs


@cache
def series(degree: int) -> list[float]:
    """The coefficients of a polynomial for (ln(1 + r) - r) / r², through points of the range of r that occurs."""
    low, high = -1 / 64 - TRIED * 2.0**-23, 1 / INTERVALS
    r = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    points = [Decimal(each) for each in r.tolist()]
    return interpolated(points, [((1 + each).ln() - each) / each**2 for each in points])


def looked_up(values: Sequence[float], index: Expr, c: Lines) -> Expr:
    """values[index mod 32] for a register of indices; 32 float32 values."""
    constants = [tirx.const(value, "float32") for value in values]
    halves = [tirx.Shuffle(half, [tirx.const(i, "int32") for i in range(16)]) for half in (constants[:16], constants[16:])]
    return c.call("llvm.x86.avx512.vpermi2var.ps.512", halves[0], tirx.reinterpret("int32x16", index), halves[1])


def split(c: Lines, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(k, m, index): the exponent and the mantissa of x, and the number of the mantissa's interval modulo 32, for `looked_up`.

    x may be subnormal. k is -∞ for 0 and ∞ for ∞. m is NaN for negative x.
    """
    k, m = c.avx512("getexp", x, x), c.name(c.avx512("getmant", x, tirx.const(8, "int32"), x))
    return k, m, c.name(tirx.shift_right(c.bits(m), c.whole(18)))


def table_log(c: Lines, x: Expr, base: str) -> Expr:
    """The logarithm of x, a register of float32, to a base of `BASES`."""
    k, m, index = split(c, x)
    inverses, logs = intervals(STEP)
    r = c.name(c.fma(m, looked_up(inverses, index, c), c.real(-1)))
    whole = c.name(tirx.Add(k, looked_up(logs, index, c)))
    factor = 1 / BASES[base].ln()
    *rest, total = (c.real(coefficient * float(factor)) for coefficient in series(2))
    for coefficient in rest[::-1]:
        total = c.fma(total, r, coefficient)
    square, first = tirx.Mul(r, r), c.real(float(factor))
    if base == "log2":
        return tirx.Add(whole, c.fma(r, first, tirx.Mul(square, total)))
    high, low = in_parts(Decimal(2).ln() * factor, "float32")
    small = c.fma(square, total, tirx.Mul(whole, c.real(low)))
    return c.fma(whole, c.real(high), c.fma(r, first, small))


def in_parts(factor: Decimal, dtype: str) -> tuple[float, float]:
    """(high, low) with high + low ≈ factor, as numbers of a dtype. Both are positive for a positive factor, since they multiply
    infinities: with parts of different signs, ∞ · high + ∞ · low would be NaN."""
    kind = np.dtype(dtype).type
    high = kind(float(factor))
    if Decimal(float(high)) > factor:
        high = np.nextafter(high, kind(0))
    return float(high), float(factor - Decimal(float(high)))
