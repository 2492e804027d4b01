"""Logarithms of float32 with AVX-512: no division, and the numbers of 32 intervals looked up in pairs of registers.

x = 2^k m with 1 ≤ m < 2, and log2 x = (k + log2 c) + log2(1 + r) with r = m / c - 1, where c is near m and 1/c is a float32, so that r
is rounded once. c is 1 in the first interval and 2 in the last: nothing is lost on either side of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.tir.dialect import Expr
from hbc.compiler.tvm.tir.lines import Lines
from hbc.ir.types import Array

INTERVALS = 32
"""Of the mantissa, by its first five digits: as many numbers as two registers hold."""
TRIED = 1 << 14  # floats on either side of 1 / the middle of an interval
STEP = 2.0**-18
"""k + log2 c is exact where log2 c is a multiple of it. Among those tried there is a 1/c whose logarithm lacks less than 2^-29."""
BASES = {"log": Decimal(1).exp(), "log2": Decimal(2), "log10": Decimal(10)}


@cache
def intervals(step: float) -> tuple[list[float], list[float]]:
    """1/c, and log2 c as a multiple of `step` (0: as a float32), to all the digits that these have."""
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
    """The coefficients of (ln(1 + r) - r) / r², for all r that occur."""
    low, high = -1 / 64 - TRIED * 2.0**-23, 1 / INTERVALS
    r = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    fitted: Array = np.polynomial.polynomial.polyfit(r, (np.log1p(r) - r) / r**2, degree)
    return [float(coefficient) for coefficient in fitted]


def looked_up(values: Sequence[float], index: Expr, c: Lines) -> Expr:
    """values[index mod 32] of float32, for a register of indices."""
    constants = [tirx.const(value, "float32") for value in values]
    halves = [tirx.Shuffle(half, [tirx.const(i, "int32") for i in range(16)]) for half in (constants[:16], constants[16:])]
    return c.call("llvm.x86.avx512.vpermi2var.ps.512", halves[0], tirx.reinterpret("int32x16", index), halves[1])


def split(c: Lines, x: Expr) -> tuple[Expr, Expr, Expr]:
    """The exponent k and the mantissa m of x, subnormal numbers too, and what to look the interval up with. Of 0, k is -∞; of ∞, ∞; m of
    negative numbers is NaN."""
    k, m = c.avx512("getexp", x, x), c.name(c.avx512("getmant", x, tirx.const(8, "int32"), x))
    return k, m, c.name(tirx.shift_right(c.bits(m), c.whole(18)))


def table_log(c: Lines, x: Expr, base: str) -> Expr:
    """The logarithm of x, a register of float32."""
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
    """A positive factor as two numbers of a dtype, both positive: they multiply infinities."""
    kind = np.dtype(dtype).type
    high = kind(float(factor))
    if Decimal(float(high)) > factor:
        high = np.nextafter(high, kind(0))
    return float(high), float(factor - Decimal(float(high)))
