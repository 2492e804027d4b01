"""x^y as e^(y ln |x|), by straight-line arithmetic as in mathematics.py. float32 is computed in float64, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import cache

from tvm import tirx
from tvm.tirx.script import builder as T  # noqa: N812

from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.lines import FORMATS, Lines
from hbc.compiler.tvm.tir.logarithms import intervals, looked_up, series, split
from hbc.compiler.tvm.tir.vectors import broadcast, look_up, many, shuffled, store, vector

LONG_LOG = (
    *(0.3999999999999998, 0.2857142857144511, 0.22222222217536666, 0.18181818870292596, 0.15384556872355976),
    *(0.13336317371427542, 0.11674819394136292, 0.11989006343093712),
)
"""Coefficients of (ln((1+s) / (1-s)) - 2s - ⅔ s³) / s⁵ in s², exact to 2^-72."""


def long_log(c: Lines, x: Expr, lift: Expr) -> tuple[Expr, Expr]:
    """ln x for normal x as the sum of two float64: 12 bits more than `Lines.log_parts`. Needs a fused multiply-add.

    `lift` is as in `Lines.binary_parts`.
    """
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


FLOATS = 16  # float32 in a register
LARGEST = 200.0
"""For |x| beyond this, 2^x is 0 or ∞ in float32."""
TWO_TO = (1.0, 0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262, 0.0013398875, 0.00015353361)
"""Coefficients of 2^x for |x| ≤ ½, exact to 2^-28.9."""


class Statements(Lines):
    """A builder of `Lines` among statements, where each named value is stored in a buffer of its own.

    LLVM keeps these buffers in registers. With variables, TVM's passes put each value in place of its name, and took 2 s for the power
    function.
    """

    def name(self, value: Expr) -> Expr:
        memory = T.alloc_buffer((self.lanes,), str(value.ty.dtype).partition("x")[0], scope="global")
        store(memory, value, 0, self.lanes)
        return vector(memory, 0, self.lanes)


def general_power(x: Expr, y: Expr, dtype: str, dialect: Dialect, lanes: int) -> Expr:
    """x^y as C's pow defines it, for vectors of float64 and a result of `dtype`. Needs a fused multiply-add."""
    c = Statements(FORMATS["f64"], dialect, lanes)
    one, zero, infinity = c.real(1), c.real(0), c.real(math.inf)
    size = c.name(tirx.abs(x))
    normal, lift = (size, None) if c.wide else c.lifted(size)
    normal = c.name(normal)
    log, lacking = long_log(c, normal, lift) if dtype == "f64" else (c.log_parts(normal, lift), None)
    # The logarithms of 0, ∞ and NaN: -∞, ∞ and NaN.
    pole = tirx.Select(tirx.EQ(size, zero), c.real(-math.inf), size)
    ordinary = tirx.And(tirx.LT(zero, size), tirx.LT(size, infinity))
    log = c.name(tirx.Select(ordinary, log, pole))
    product = c.call("llvm.arithmetic.fence", tirx.Mul(y, log))
    product = c.name(tirx.Select(tirx.EQ(size, one), tirx.Select(tirx.EQ(y, y), zero, y), product))
    if lacking is not None:
        rest = c.fma(y, lacking, c.fma(y, log, tirx.Mul(product, c.real(-1))))
        # The rounding error of a product that overflows, or of infinities, is NaN or meaningless: 0 instead.
        finite = tirx.And(tirx.LT(tirx.abs(product), c.real(1000.0)), tirx.LT(tirx.abs(y), infinity))
        lacking = c.name(tirx.Select(finite, rest, zero))
    value = c.name(c.exp(product, lacking))
    whole = tirx.EQ(tirx.floor(y), y)
    half = c.name(tirx.Mul(y, c.real(0.5)))
    odd = tirx.And(whole, tirx.Not(tirx.EQ(tirx.floor(half), half)))
    signed = tirx.Select(odd, c.call("llvm.copysign", value, x), value)
    root = tirx.And(tirx.And(tirx.LT(x, zero), tirx.LT(c.real(-math.inf), x)), tirx.Not(whole))
    signed = tirx.Select(tirx.And(root, tirx.EQ(y, y)), c.real(math.nan), signed)
    constant = tirx.Or(tirx.EQ(y, zero), tirx.EQ(x, one))
    return tirx.Cast(many(FORMATS[dtype].dtype, lanes), tirx.Select(constant, one, signed))


def table_power(x: Expr, exponent: float, dtype: str, dialect: Dialect) -> Expr:
    """x^exponent for a register of AVX-512. The exponent is not 0 and |exponent| < MOST[dtype]."""
    c = Statements(FORMATS[dtype], dialect, 512 // FORMATS[dtype].bits)
    x = c.name(x)
    value = _short_power(c, x, exponent) if dtype == "f32" else _long_power(c, x, exponent)
    of_zero, of_infinity = (POSITIVE_ZERO, INFINITY) if exponent > 0 else (INFINITY, POSITIVE_ZERO)
    negative = KEPT if exponent.is_integer() else NAN
    classes = (KEPT, KEPT, of_zero, KEPT, of_infinity, of_infinity, negative, KEPT)
    answers = broadcast(tirx.const(sum(answer << 4 * i for i, answer in enumerate(classes)), f"int{c.form.bits}"), c.lanes)
    value = c.avx512("fixupimm", value, x, answers, tirx.const(0, "int32"))
    return c.call("llvm.copysign", value, x) if exponent % 2 == 1 else value


MOST = {"f32": math.inf, "f64": 512.0}
"""The exponents of `table_power` are below this: their product with the logarithm is exact enough. With an exponent of 100, x^y is off by
0.6 units in the last place, with 4,000 by 4."""
KEPT, NAN, INFINITY, POSITIVE_ZERO = 0, 3, 5, 8
"""The answers of AVX-512's `fixupimm`: the value itself, NaN, ∞, 0. It has one for each class of x: two of NaN, then 0, 1, -∞, ∞,
negative numbers, others."""


def _short_power(c: Statements, x: Expr, exponent: float) -> Expr:
    """|x|^exponent for float32, as 2^(exponent · log2 |x|). The logarithm and the product are float64, in two halves of the register.

    The product is split into an integer and a rest. 2^rest is computed in float32 and scaled by the integer.
    """
    wide = Statements(FORMATS["f64"], c.dialect, FLOATS // 2)
    k, m, index = split(c, c.name(tirx.abs(x)))
    inverses, logs = intervals(0.0)
    operands = [c.name(operand) for operand in (k, m, looked_up(inverses, index, c), looked_up(logs, index, c))]
    coefficients = [coefficient / math.log(2) for coefficient in (1.0, *series(3))]
    counts, rests = [], []
    for first in (0, FLOATS // 2):
        k, m, inverse, log = (_doubled(operand, first) for operand in operands)
        r = wide.name(wide.fma(m, inverse, wide.real(-1)))
        total = wide.real(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = wide.name(wide.fma(total, r, wide.real(coefficient)))
        log = wide.fma(total, r, tirx.Add(k, log))
        power = wide.between(-LARGEST, LARGEST, wide.name(tirx.Mul(log, wide.real(exponent))))
        count = wide.name(wide.call("llvm.rint", power))
        counts.append(tirx.Cast(f"float32x{FLOATS // 2}", count))
        rests.append(tirx.Cast(f"float32x{FLOATS // 2}", tirx.Sub(power, count)))
    count, rest = (c.name(_joined(halves)) for halves in (counts, rests))
    total = c.real(TWO_TO[-1])
    for coefficient in TWO_TO[-2::-1]:
        total = c.name(c.fma(total, rest, c.real(coefficient)))
    return c.avx512("scalef", total, count, total)


PARTS = 16
"""The number of parts of an octave (a factor of 2) in the tables of float64. Two registers hold as many numbers."""
HIGHEST = 1.40625
"""Larger mantissas are halved, so mantissas are between half of this and this. It is a border between two parts of the octave. One part
has 1 in its middle, so that its logarithm, 0, is exact."""
STEP = 2.0**-40
"""log2 c is rounded to a multiple of this, so that k + log2 c is exact."""
LOG_TERMS, EXP_TERMS = 12, 7
"""The numbers of terms of two Taylor series for |r| ≤ 1/32: of log2(1 + r), with an error of 2^-68, and of 2^r - 1, with an error of
2^-59."""


@cache
def octave() -> tuple[list[float], list[float], list[float]]:
    """(1/c, high, low) of each part of the octave. A mantissa, rounded to four binary digits, selects the part, and c is near it.

    high + low is log2 c; high is a multiple of STEP.
    """
    inverses, highs, lows = [], [], []
    for i in range(PARTS):
        c = 1 + i / PARTS if 1 + i / PARTS < HIGHEST else (1 + i / PARTS) / 2
        inverses.append(1 / c)
        exact = -_log2(Decimal(1 / c))
        highs.append(round(float(exact) / STEP) * STEP)
        lows.append(float(exact - Decimal(highs[-1])))
    return inverses, highs, lows


@cache
def roots() -> tuple[list[float], list[float]]:
    """2^(i/16) for i = 0…15 as float64, and their rounding errors."""
    exact = [(Decimal(i) / PARTS * Decimal(2).ln()).exp() for i in range(PARTS)]
    return [float(root) for root in exact], [float(root - Decimal(float(root))) for root in exact]


def _log2(x: Decimal) -> Decimal:
    return x.ln() / Decimal(2).ln()


def _long_power(c: Statements, x: Expr, exponent: float) -> Expr:
    """|x|^exponent for float64, without a division.

    log2 |x| = k + log2 c + log2(1 + r), as the sum of two float64 with an error of 2^-64. Its product with the exponent is n + i/16 + r',
    and the result is 2^n · 2^(i/16) · 2^r'.
    """
    size = c.name(tirx.abs(x))
    k, m = c.avx512("getexp", size, size), c.name(c.avx512("getmant", size, tirx.const(0, "int32"), size))
    high = tirx.LE(c.real(HIGHEST), m)
    k = c.name(tirx.Select(high, tirx.Add(k, c.real(1)), k))
    m = c.name(tirx.Select(high, tirx.Mul(m, c.real(0.5)), m))
    index = c.name(tirx.shift_right(tirx.Add(c.bits(m), c.whole(1 << 47)), c.whole(48)))
    inverse, log, log1 = (c.name(_of_two(values, index)) for values in octave())
    # m / c = 1 + r + r1
    quotient, r1 = c.exact_product(m, inverse)
    r = c.name(tirx.Sub(quotient, c.real(1)))
    # log2(1 + r) = r (first + rest)
    terms = [Decimal((-1) ** (n + 1)) / n / Decimal(2).ln() for n in range(1, LOG_TERMS + 1)]
    first = float(terms[0])
    second = c.polynomial(r, c.name(tirx.Mul(r, r)), [float(term) for term in terms[1:]])
    rest = c.name(c.fma(second, r, c.real(float(terms[0] - Decimal(first)))))
    slope = c.name(tirx.Add(c.real(first), rest))
    slope1 = tirx.Sub(rest, tirx.Sub(slope, c.real(first)))
    w, w1 = c.exact_product(r, slope)
    w1 = c.name(c.fma(r, slope1, c.fma(r1, tirx.Add(slope, rest), w1)))
    whole = c.name(tirx.Add(k, log))  # exact
    total = c.name(tirx.Add(whole, w))
    total1 = c.name(tirx.Add(tirx.Add(tirx.Sub(whole, total), w), tirx.Add(w1, log1)))
    power, power1 = c.exact_product(total, c.real(exponent))
    power1 = c.name(c.fma(total1, c.real(exponent), power1))
    shift = c.real(FORMATS["f64"].shift / PARTS)
    shifted = c.name(tirx.Add(power, shift))
    count = c.name(tirx.Sub(shifted, shift))  # a multiple of 1/16; `scalef` takes its integer part
    r = c.name(tirx.Add(tirx.Sub(power, count), power1))
    root, root1 = (c.name(_of_two(values, c.bits(shifted))) for values in roots())
    terms = [Decimal(2).ln() ** n / math.factorial(n) for n in range(1, EXP_TERMS + 1)]
    grown = c.name(tirx.Mul(r, c.polynomial(r, c.name(tirx.Mul(r, r)), [float(term) for term in terms])))
    value = c.name(tirx.Add(root, c.fma(root, grown, root1)))
    return c.avx512("scalef", value, count, value)


def _of_two(values: Sequence[float], index: Expr) -> Expr:
    """values[index mod 16] for a register of indices; 16 float64 values."""
    constants = [tirx.const(value, "float64") for value in values]
    halves = [tirx.Shuffle(half, [tirx.const(i, "int32") for i in range(8)]) for half in (constants[:8], constants[8:])]
    return look_up(halves, tirx.reinterpret("int64x8", index), "f64", 8)


def _doubled(x: Expr, first: int) -> Expr:
    """The half of a register of float32 that begins at lane `first`, as float64."""
    half = shuffled([x], list(range(first, first + FLOATS // 2)))
    return tirx.Cast(f"float64x{FLOATS // 2}", half)


def _joined(halves: Sequence[Expr]) -> Expr:
    """One register of float32 from two halves."""
    return shuffled(list(halves), list(range(FLOATS)))
