"""exp, log and similar functions as straight-line arithmetic: no call, no branch, no table in memory. One expression serves both a
row and a vector of rows.

The error is at most 1.5 units in the last place (tests/compiler/tvm/test_tvm_mathematics.py). For sines and cosines of float32 it is 1.6,
for logarithms to base 2 and 10 three. ±0, infinities, NaN, subnormal numbers and both ends of the range are as in IEEE 754.

The designs are the classical ones (Tang 1989; Sun's fdlibm):

    e^x        = 2^n e^r               with r = x - n ln 2
    ln(2^k m)  = k ln 2 + ln m         by a series in s = (m - 1) / (m + 1)

Arguments of sines and cosines are reduced in float64, or with fused multiply-adds. |x| > TURNS would need up to a thousand bits of π
and is left to the C library. The polynomials are minimax, found by Lawson's iteration or Remez's exchange in 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from tvm import tirx

from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.lines import FORMATS, Lines
from hbc.compiler.tvm.tir.logarithms import BASES, looked_up, table_log
from hbc.compiler.tvm.tir.polynomials import interpolated


def _exp(c: Lines, x: Expr) -> Expr:
    return c.exp(x)


def _sigmoid(c: Lines, x: Expr) -> Expr:
    """1 / (1 + e^-x). With e^-|x| = 2^n t it is 1 / (1 + 2^n t), or for x < 0 2^n (t / (1 + 2^n t)).

    No intermediate is smaller than the result, since Intel is slow for subnormal numbers (±100 in float32: 0.5 ns; otherwise 12). So in
    the sum 1 + 2^n t, n is limited to the n of e^-flat: smaller terms don't change the sum.
    """
    one, zero, (low, _) = c.real(1), c.real(0), c.form.range
    t, rest, n = c.exp_parts(c.at_least(low, tirx.Mul(tirx.abs(x), c.real(-1))))
    beside_one = c.at_least(-math.ceil(c.form.flat / math.log(2)), n)
    small, small_rest = c.name(c.scaled(t, beside_one)), c.name(c.scaled(rest, beside_one))
    total = c.name(tirx.Add(one, small))
    lacking = c.name(tirx.Add(tirx.Sub(small, tirx.Sub(total, one)), small_rest))
    negative = tirx.LT(x, zero)
    numerator = c.name(tirx.Select(negative, t, one)), c.name(tirx.Select(negative, rest, zero))
    quotient = c.name(c.quotient(numerator, (total, lacking)))
    quotient = c.name(tirx.Select(tirx.LT(x, c.real(low)), zero, quotient))
    return c.scaled(quotient, c.name(tirx.Select(negative, n, zero)))


def _expm1(c: Lines, x: Expr) -> Expr:
    if c.wide:  # 2^n ((1 - 2^-n) + r + …): the factor of 2^n is neither too large nor subnormal
        _, n, high, _, r = c.over_ln2(c.between(-c.form.flat, c.form.range[1], x))
        square = c.name(tirx.Mul(r, r))
        lost = c.fma(n, c.real(-c.form.ln2[1]), tirx.Sub(high, r))
        tail = c.fma(square, c.polynomial(r, square, c.form.expm1), lost)
        inverse = c.avx512("scalef", c.real(1), c.at_least(-c.form.digits - 2, tirx.Mul(n, c.real(-1))), c.real(1))
        total = c.name(tirx.Add(tirx.Add(tirx.Sub(c.real(1), inverse), r), tail))
        return c.call("llvm.copysign", c.avx512("scalef", total, n, total), x)
    large, small = c.half_expm1(c.between(-c.form.flat, c.form.range[1], x))
    tiny = tirx.LT(tirx.abs(x), c.real(2 * c.form.least_normal))  # the format may not hold its half; also, -0 keeps its sign
    return tirx.Select(tiny, x, tirx.Mul(tirx.Add(large, small), c.real(2)))


def _tanh(c: Lines, x: Expr) -> Expr:
    """With h = ½ (e^-2|x| - 1): tanh |x| = -h / (1 + h)."""
    if c.wide and c.form.bits == 32:
        return _table_tanh(c, x)
    large, small = c.half_expm1(c.at_least(-c.form.flat, tirx.Mul(tirx.abs(x), c.real(-2))))
    h = c.name(tirx.Add(large, small))
    rest = c.name(tirx.Sub(small, tirx.Sub(h, large)))
    one, minus = c.real(1), c.real(-1)
    total = c.name(tirx.Add(one, h))
    lacking = c.name(tirx.Add(tirx.Sub(h, tirx.Sub(total, one)), rest))
    size = c.quotient((c.name(tirx.Mul(h, minus)), tirx.Mul(rest, minus)), (total, lacking))
    return c.call("llvm.copysign", size, x)


FIRST = 0x3D400000
"""0.046875, as bits. The intervals of `_table_tanh` are counted from here; the first one also has all smaller numbers."""

LARGEST = 9.5
"""From here on tanh is 1 in float32."""


@cache
def _tanh_pieces() -> list[list[float]]:
    """For each of 32 intervals of |x|: b, then the coefficients of a polynomial in |x| - b for tanh |x|.

    The list is ordered by the interval's number modulo 32, as the look-up needs it. Each power of two has four intervals. The first
    interval is everything below 0.0547. b is a number near the middle whose tanh is almost a float32, so that only the final sum is
    rounded.
    """
    pieces: list[list[float]] = [[]] * 32
    for i in range(32):
        low, high = (float(np.uint32(FIRST + (j << 21)).view(np.float32)) for j in (i, i + 1))
        if i == 0:
            piece = [0.0, 0.0, 1.0, 0.0, -1 / 3, 0.0, 2 / 15, 0.0]
        else:
            middle = np.float32((low + high) / 2)
            near = middle + np.spacing(middle) * np.arange(-64, 65, dtype=np.float32)
            if low >= 8:  # the last interval: LARGEST itself, so that tanh is 1 from there on
                near = np.array([LARGEST], np.float32)
            exact = np.tanh(near.astype(np.float64))
            b = float(near[np.argmin(np.abs(exact - exact.astype(np.float32)))])
            nodes = (low + high) / 2 - b + (high - low) / 2 * np.cos(np.pi * (np.arange(6) + 0.5) / 6)
            start = math.tanh(b)
            rest = interpolated(nodes.tolist(), [(math.tanh(node + b) - start) / node for node in nodes.tolist()])
            piece = [b, start, *rest]
        pieces[((FIRST >> 21) + i) % 32] = piece
    return pieces


def _table_tanh(c: Lines, x: Expr) -> Expr:
    """tanh x by one polynomial for each of 32 intervals of |x|. The highest bits of |x| look its coefficients up in pairs of registers."""
    size = c.name(tirx.abs(x))
    size = c.name(tirx.Select(tirx.LT(c.real(LARGEST), size), c.real(LARGEST), size))
    bits = tirx.Max(c.bits(size), c.whole(FIRST))
    index = c.name(tirx.shift_right(bits, c.whole(21)))

    offsets, *coefficients = ([piece[place] for piece in _tanh_pieces()] for place in range(8))
    distance = c.name(tirx.Sub(size, looked_up(offsets, index, c)))
    total = looked_up(coefficients[-1], index, c)
    for values in coefficients[-2::-1]:
        total = c.name(c.fma(total, distance, looked_up(values, index, c)))
    return c.call("llvm.copysign", total, x)


def _log(c: Lines, x: Expr) -> Expr:
    if c.wide and c.form.bits == 32:
        return table_log(c, x, "log")
    normal, lift = (x, None) if c.wide else c.lifted(x)
    return c.logarithm(x, c.log_parts(normal, lift))


def _to_base(base: str) -> Callable[[Lines, Expr], Expr]:
    """The logarithm to a base of `BASES`: from a table for float32 on AVX-512, otherwise ln x / ln base."""

    def value(c: Lines, x: Expr) -> Expr:
        if c.wide and c.form.bits == 32:
            return table_log(c, x, base)
        return tirx.Mul(_log(c, x), c.real(float(1 / BASES[base].ln())))

    return value


def _log1p(c: Lines, x: Expr) -> Expr:
    """ln(1 + x) = ln u + lacking / u, where u is 1 + x rounded and `lacking` its rounding error."""
    one = c.real(1)
    u = c.name(tirx.Add(one, x))
    added = c.name(tirx.Sub(u, one))
    lacking = tirx.Add(tirx.Sub(one, tirx.Sub(u, added)), tirx.Sub(x, added))
    zero = c.real(math.ldexp(1, c.form.digits) + c.form.bias)
    return c.logarithm(u, c.call("llvm.copysign", c.log_parts(u, zero, lacking), x))


TURNS = float(1 << 20)
"""The largest |x| whose sine and cosine are computed here."""
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
"""½ π as a sum of float64. All parts but the last have 33 bits, so their products with integers up to `TURNS` are exact."""
SINGLE_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
"""½ π as a sum of float32, for targets with a fused multiply-add. It needs no exact products, so the parts have all 24 bits."""
SINE = {
    "f32": (-0.16666654908639716, 0.00833217584652429, -0.0001951697747239402),
    "f64": (
        *(-0.16666666666666632, 0.00833333333332237, -0.00019841269829771124, 2.7557313678659287e-06),
        *(-2.5050755961220713e-08, 1.5896666531664006e-10),
    ),
}
"""Coefficients of (sin r - r) / r³ in r², for |r| ≤ ¼ π."""
COSINE = {
    "f32": (0.04166664680751199, -0.0013887364496095785, 2.4438091805173397e-05),
    "f64": (
        *(0.0416666666666666, -0.0013888888888874066, 2.4801587289443627e-05, -2.7557314340697227e-07),
        *(2.087572162851806e-09, -1.1359559568065913e-11),
    ),
}
"""Coefficients of (cos r - 1 + ½ r²) / r⁴ in r², for |r| ≤ ¼ π."""


def _quadrant(c: Lines, x: Expr, single: bool) -> tuple[Expr, Expr, Expr]:
    """(bits, r, r') with x ≈ ½ π n + r + r' and |r| ≤ ¼ π. The lowest bits of `bits` are n.

    r' corrects r. In float64 it holds the last part of ½ π n and the rounding errors of r. In float32 it holds the last part alone.
    single: compute in float64 for a result of float32, which needs 87 bits of π, not 150. r' is then 0.
    """
    shift = c.real(c.form.shift)
    shifted = c.name(c.fma(x, c.real(2 / math.pi), shift))
    n = c.name(tirx.Sub(shifted, shift))
    if c.form.bits == 32:  # fma(n, first, x) is exact: the last bit of the product is one that a float32 of r's size has
        first, second, third = (c.real(-part) for part in SINGLE_HALF_PI)
        return c.bits(shifted), c.name(c.fma(n, second, c.fma(n, first, x))), c.name(tirx.Mul(n, third))
    parts = (HALF_PI[0], sum(HALF_PI[1:])) if single else HALF_PI
    products = [c.name(tirx.Mul(n, c.real(part))) for part in parts]
    first = c.name(tirx.Sub(x, products[0]))  # exact
    second = c.name(tirx.Sub(first, products[1]))
    if single:
        return c.bits(shifted), second, c.real(0)
    # The rounding errors of the differences. In `first - products[1]` either operand may be the larger, so both sides are recovered.
    other = c.name(tirx.Sub(first, second))
    lost = tirx.Sub(tirx.Sub(first, tirx.Add(second, other)), tirx.Sub(products[1], other))
    third = c.name(tirx.Sub(second, products[2]))
    lost = tirx.Add(lost, tirx.Sub(tirx.Sub(second, third), products[2]))
    rest = c.name(tirx.Sub(products[3], lost))
    r = c.name(tirx.Sub(third, rest))
    return c.bits(shifted), r, c.name(tirx.Sub(tirx.Sub(third, r), rest))


def turned(name: str, x: Expr, dtype: str, dialect: Dialect) -> Expr:
    """sin x or cos x (`name`) for |x| ≤ TURNS, for LLVM.

    x = ½ π n + r. Both sin r and cos r are computed; n, the quadrant, says which of them is the result, and its sign.
    """
    c, wide, single = Lines(FORMATS[dtype], dialect), Lines(FORMATS["f64"], dialect), dtype == "f32" and not dialect.fused
    wide.named = c.named
    x = c.name(x)
    bits, r, rest = _quadrant(wide, wide.name(tirx.Cast("float64", x)), True) if single else _quadrant(c, x, False)
    bits = c.name(tirx.Cast(c.form.integer, bits))
    r, rest = (c.name(tirx.Cast(c.form.dtype, part)) for part in (r, rest))
    if name == "cos":
        bits = c.name(tirx.Add(bits, c.whole(1)))
    z = c.name(tirx.Mul(r, r))
    square = c.name(tirx.Mul(z, z))
    sine, cosine = (c.polynomial(z, square, table[dtype]) for table in (SINE, COSINE))
    if dtype == "f32":
        # The rounding error of r, half a unit, is left out. That saves 14 of 37 instructions: 0.39 instead of 0.57 ns an element
        # (numpy 0.52).
        sine = tirx.Add(r, c.fma(tirx.Mul(z, r), sine, rest))
        cosine = c.fma(z, c.fma(z, cosine, c.real(-0.5)), c.real(1))
    else:  # to each its derivative, 1 - ½ r² or -r, times `rest` is added
        half = c.name(tirx.Mul(z, c.real(0.5)))
        sine = tirx.Add(r, tirx.Sub(tirx.Mul(tirx.Mul(z, r), sine), tirx.Sub(tirx.Mul(half, rest), rest)))
        most = c.name(tirx.Sub(c.real(1), half))
        lost = tirx.Sub(tirx.Sub(c.real(1), most), half)
        cosine = tirx.Add(most, tirx.Add(lost, tirx.Sub(tirx.Mul(square, cosine), tirx.Mul(r, rest))))
    odd = tirx.EQ(tirx.bitwise_and(bits, c.whole(1)), c.whole(1))
    size = c.name(tirx.Select(odd, cosine, sine))
    sign = tirx.shift_left(tirx.bitwise_and(bits, c.whole(2)), c.whole(c.form.bits - 2))
    value = c.of_bits(tirx.bitwise_xor(c.bits(size), sign))
    if name == "sin":  # sin x is x for tiny x; so -0 keeps its sign
        value = tirx.Select(tirx.LT(tirx.abs(x), c.real(2.0**-27)), x, value)
    return c.block(value)


FUNCTIONS: dict[str, Callable[[Lines, Expr], Expr]] = {
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "log2": _to_base("log2"),
    "log10": _to_base("log10"),
}
"""name → the builder of the function's value."""


def function(name: str, x: Expr, dtype: str, dialect: Dialect, lanes: int = 1) -> Expr:
    """The value of FUNCTIONS[name] at x, for LLVM. x has `lanes` lanes of `dtype`."""
    lines = Lines(FORMATS[dtype], dialect, lanes)
    return lines.block(FUNCTIONS[name](lines, lines.name(x)))
