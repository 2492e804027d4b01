"""A builder of straight-line arithmetic (`Lines`), and the binary formats that it computes in (`Format`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx

from hbc.compiler.tvm.tir.dialect import Dialect, Expr
from hbc.compiler.tvm.tir.vectors import broadcast, many
from hbc.lazy import record


@record
class Format:
    """A binary format of IEEE 754, and the constants of the functions that depend on it.

    ln2: ln 2 in two parts. The first has so few digits that its product with an exponent is exact.
    range: e^x is 0 below the first number and ∞ above the second.
    flat: for x > flat, 1 + e^-x is 1.
    exp: coefficients of (e^r - 1 - r) / r² on |r| ≤ ½ ln 2, for the least error of e^r.
    expm1: coefficients of the same, for the least relative error of e^r - 1.
    log: coefficients of (ln((1+s) / (1-s)) - 2s) / s³ in s², for |s| ≤ (√2 - 1) / (√2 + 1).
    """

    dtype: str
    integer: str
    digits: int  # stored bits of the mantissa
    bias: int
    root_half: int  # √½, as its bits
    ln2: tuple[float, float]
    range: tuple[float, float]
    flat: float
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    log: tuple[float, ...]

    @property
    def least_normal(self) -> float:
        """The least positive normal number."""
        return math.ldexp(1, 1 - self.bias)

    @property
    def bits(self) -> int:
        return 32 if self.dtype == "float32" else 64

    @property
    def shift(self) -> float:
        """1.5 · 2^digits. Adding it to x rounds x to an integer, which then stands in the lowest bits of the sum."""
        return math.ldexp(1.5, self.digits)

    @property
    def shift_bits(self) -> int:
        """The bits of `shift`."""
        return (self.bias + self.digits) << self.digits | 1 << (self.digits - 1)


FORMATS = {
    "f32": Format(
        dtype="float32",
        integer="uint32",
        digits=23,
        bias=127,
        root_half=0x3F3504F3,
        ln2=(0.693145751953125, 1.428606820309417e-06),
        range=(-105.0, 89.0),
        flat=30.0,
        exp=(0.49999994, 0.16666521, 0.04166839, 0.0083687175, 0.0013814594),
        expm1=(0.5, 0.16666666, 0.041666362, 0.00833339, 0.001394063, 0.00019845941),
        log=(0.6666666, 0.40000334, 0.2853729, 0.23582469),
    ),
    "f64": Format(
        dtype="float64",
        integer="uint64",
        digits=52,
        bias=1023,
        root_half=0x3FE6A09E667F3BCD,
        ln2=(0.6931471805598903, 5.497923018708371e-14),
        range=(-746.0, 710.0),
        flat=60.0,
        exp=(
            *(0.5000000000000011, 0.16666666666666413, 0.04166666666653013, 0.008333333333494461, 0.0013888888943636942),
            *(0.00019841269506606495, 2.4801493092296505e-05, 2.755758633194723e-06, 2.763025059068884e-07),
            2.5000078738887103e-08,
        ),
        expm1=(
            *(0.5, 0.16666666666666677, 0.04166666666666651, 0.008333333333321685, 0.0013888888888962498),
            *(0.00019841269885980013, 2.480158717230005e-05, 2.7557244361311853e-06, 2.7557402838156e-07),
            *(2.510898302548454e-08, 2.0875271645190125e-09),
        ),
        log=(
            *(0.6666666666666734, 0.39999999999413943, 0.2857142874256585, 0.22222198553454708, 0.18183565422584044),
            *(0.1531402076232448, 0.14796264450409816),
        ),
    ),
}


class Lines:
    """A builder of straight-line code: expressions in which values that are read several times get names."""

    def __init__(self, form: Format, dialect: Dialect, lanes: int = 1) -> None:
        self.form, self.dialect, self.lanes = form, dialect, lanes
        self.named: list[tuple[Expr, Expr]] = []

    def name(self, value: Expr) -> Expr:
        """A variable that stands for a value, so that the value is computed once."""
        variable = tirx.Var("v", value.ty)
        self.named.append((variable, value))
        return variable

    def block(self, result: Expr) -> Expr:
        """The expression that computes all named values, in order, and then the result."""
        for variable, value in reversed(self.named):
            result = tirx.Let(variable, value, result)
        return result

    @property
    def wide(self) -> bool:
        """Whether a value fills a register of AVX-512, which has instructions for parts of these functions."""
        return self.dialect.wide and self.lanes * self.form.bits == 512

    def real(self, value: float) -> Expr:
        """A constant of the format, in all lanes."""
        return broadcast(tirx.const(value, self.form.dtype), self.lanes)

    def whole(self, value: int) -> Expr:
        """A constant of the unsigned integers as wide as the format, in all lanes."""
        return broadcast(tirx.const(value, self.form.integer), self.lanes)

    def bits(self, x: Expr) -> Expr:
        return tirx.reinterpret(many(self.form.integer, self.lanes), x)

    def of_bits(self, bits: Expr) -> Expr:
        """The number of the format that has these bits."""
        return tirx.reinterpret(many(self.form.dtype, self.lanes), bits)

    def call(self, name: str, *args: Expr) -> Expr:
        """An LLVM intrinsic on values of the format."""
        return tirx.call_llvm_pure_intrin(many(self.form.dtype, self.lanes), name, *args)

    def avx512(self, name: str, *args: Expr) -> Expr:
        """An AVX-512 instruction on all lanes, rounded to nearest. Where `args` end with a value for lanes left out, it has no effect."""
        every, rounding = tirx.const(-1, f"int{self.lanes}"), tirx.const(4, "int32")
        kind = "ps" if self.form.bits == 32 else "pd"
        return self.call(f"llvm.x86.avx512.mask.{name}.{kind}.512", *args, every, rounding)

    def fma(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """a · b + c, fused if the target can. The caller doesn't mind how the product is rounded."""
        return self.call("llvm.fma", a, b, c) if self.dialect.fused else tirx.Add(tirx.Mul(a, b), c)

    def polynomial(self, x: Expr, square: Expr, coefficients: Sequence[float]) -> Expr:
        """Σ coefficients[i] x^i, where `square` is x². Even and odd powers are summed apart: half the latency of Horner's rule."""

        def horner(coefficients: Sequence[float]) -> Expr:
            total = self.real(coefficients[-1])
            for coefficient in reversed(coefficients[:-1]):
                total = self.fma(total, square, self.real(coefficient))
            return total

        return self.fma(horner(coefficients[1::2]), x, horner(coefficients[::2]))

    def between(self, low: float, high: float, x: Expr) -> Expr:
        """x limited to low … high. NaN stays NaN."""
        x = self.name(tirx.Select(tirx.LT(x, self.real(low)), self.real(low), x))
        return self.name(tirx.Select(tirx.LT(self.real(high), x), self.real(high), x))

    def at_least(self, low: float, x: Expr) -> Expr:
        """max(low, x). NaN stays NaN."""
        return self.name(tirx.Select(tirx.LT(x, self.real(low)), self.real(low), x))

    def power_of_two(self, biased: Expr) -> Expr:
        """2^(biased - bias)"""
        return self.of_bits(tirx.shift_left(biased, self.whole(self.form.digits)))

    def over_ln2(self, x: Expr, lacking: Expr = None) -> tuple[Expr, Expr, Expr, Expr, Expr]:
        """Divide x by ln 2: x = n ln 2 + r with an integer n and |r| ≤ ½ ln 2.

        Returns the bits of n + `shift`; n; the two parts of r = high - low, which are x - n ln2[0] and n ln2[1]; and r.
        `lacking`: the exact argument is x + lacking. It is then subtracted from `low`.
        """
        shift = self.real(self.form.shift)
        shifted = self.name(self.fma(x, self.real(1 / math.log(2)), shift))
        n = self.name(tirx.Sub(shifted, shift))
        high = self.name(self.fma(n, self.real(-self.form.ln2[0]), x))
        low = self.name(tirx.Mul(n, self.real(self.form.ln2[1])))
        low = low if lacking is None else self.name(tirx.Sub(low, lacking))
        return self.bits(shifted), n, high, low, self.name(tirx.Sub(high, low))

    def exp_parts(self, x: Expr, lacking: Expr = None) -> tuple[Expr, Expr, Expr]:
        """(p, p', n) with e^x = 2^n (p + p'), for x in `range`. p' is the rounding error of p."""
        _, n, _, _, r = self.over_ln2(x, lacking)
        square = self.name(tirx.Mul(r, r))
        q = self.name(self.fma(square, self.polynomial(r, square, self.form.exp), r))
        p = self.name(tirx.Add(self.real(1), q))
        return p, tirx.Sub(q, tirx.Sub(p, self.real(1))), n

    def scaled(self, value: Expr, n: Expr) -> Expr:
        """2^n · value, for an integer n within twice the range of the exponents of normal numbers."""
        form = self.form
        if self.wide:
            return self.avx512("scalef", value, n, value)
        # In two steps, n = n₁ + n₂: 2^n alone may be out of range though the result is not.
        shifted = self.bits(tirx.Add(n, self.real(form.shift)))
        biased = self.name(tirx.Sub(shifted, self.whole(form.shift_bits - 2 * form.bias)))
        first = self.name(tirx.shift_right(biased, self.whole(1)))
        scales = [self.name(self.power_of_two(part)) for part in (first, tirx.Sub(biased, first))]
        return tirx.Mul(tirx.Mul(value, scales[0]), scales[1])

    def exp(self, x: Expr, lacking: Expr = None) -> Expr:
        """e^x, or e^(x + lacking).

        A result that is 0 is chosen, not computed. Intel's processors take 150 cycles for a result below the least normal number, and
        probabilities are full of them (e^-1000 in float32: 4.3 instead of 0.45 ns).
        """
        (low, high), zero = self.form.range, self.real(0)
        nothing = tirx.LT(x, self.real(low))
        x = self.name(tirx.Select(nothing, zero, x))
        p, _, n = self.exp_parts(self.name(tirx.Select(tirx.LT(self.real(high), x), self.real(high), x)), lacking)
        return tirx.Select(nothing, zero, self.name(self.scaled(p, n)))

    def half_expm1(self, x: Expr) -> tuple[Expr, Expr]:
        """½ (e^x - 1) for -flat ≤ x ≤ range[1], as the sum of a large part and a small one. The half keeps 2^n in range."""
        form = self.form
        shifted, _, high, low, r = self.over_ln2(x)
        lost = tirx.Sub(tirx.Sub(high, r), low)
        square = self.name(tirx.Mul(r, r))
        tail = self.fma(square, self.polynomial(r, square, form.expm1), lost)
        scale = self.name(self.power_of_two(tirx.Sub(shifted, self.whole(form.shift_bits - form.bias + 1))))
        constant = self.name(tirx.Sub(scale, self.real(0.5)))
        linear = self.name(tirx.Mul(scale, r))
        large = self.name(tirx.Add(constant, linear))
        # The rounding errors of the two sums. That of `constant` is exact where 2^n ≤ 1.
        lost = tirx.Add(tirx.Sub(linear, tirx.Sub(large, constant)), tirx.Sub(scale, tirx.Add(constant, self.real(0.5))))
        return large, self.name(self.fma(scale, tail, lost))

    def quotient(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """(a₀ + a₁) / (b₀ + b₁), where a₁ and b₁ are small beside a₀ and b₀."""
        if not self.dialect.fused:
            first = self.name(tirx.Div(a[0], b[0]))
            return tirx.Add(first, tirx.Div(tirx.Sub(a[1], tirx.Mul(first, b[1])), b[0]))
        inverse = self.name(tirx.Div(self.real(1), b[0]))
        first = self.name(tirx.Mul(a[0], inverse))
        rounding = self.fma(tirx.Mul(first, self.real(-1)), b[0], a[0])
        return self.fma(tirx.Add(rounding, tirx.Sub(a[1], tirx.Mul(first, b[1]))), inverse, first)

    def exact_product(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """a · b as rounded, and its rounding error. Needs a fused multiply-add."""
        product = self.name(self.call("llvm.arithmetic.fence", tirx.Mul(a, b)))
        return product, self.name(self.fma(a, b, tirx.Mul(product, self.real(-1))))

    def binary_parts(self, x: Expr, lift: Expr) -> tuple[Expr, Expr]:
        """k and f with x = 2^k (1 + f) and √½ ≤ 1 + f < √2, for normal x.

        With AVX-512 x may be subnormal, and `lift` is not read. Elsewhere k is 2^digits + (the exponent field of x) - lift: see `lifted`.
        """
        form = self.form
        if self.wide:  # these instructions take subnormal numbers too
            code = tirx.const(0, "int32")  # 1 ≤ mantissa < 2
            k, m = self.name(self.avx512("getexp", x, x)), self.name(self.avx512("getmant", x, code, x))
            high, half = tirx.LT(self.real(math.sqrt(2)), m), tirx.Mul(m, self.real(0.5))
            k = self.name(tirx.Select(high, tirx.Add(k, self.real(1)), k))
            return k, self.name(tirx.Sub(tirx.Select(high, half, m), self.real(1)))
        one = form.bias << form.digits
        bits = self.name(tirx.Add(self.bits(x), self.whole(one - form.root_half)))
        # The exponent becomes a float without a conversion: as the lowest digits of 2^digits. Every processor can do that.
        exponent = tirx.bitwise_or(
            tirx.shift_right(bits, self.whole(form.digits)), self.whole((form.bias + form.digits) << form.digits)
        )
        k = self.name(tirx.Sub(self.of_bits(exponent), lift))
        mantissa = tirx.bitwise_and(bits, self.whole((1 << form.digits) - 1))
        return k, self.name(tirx.Sub(self.of_bits(tirx.Add(mantissa, self.whole(form.root_half))), self.real(1)))

    def log_parts(self, x: Expr, lift: Expr = 0, lacking: Expr = None) -> Expr:
        """ln x for normal x, or ln x + lacking / x. `lift` is as in `binary_parts`."""
        form = self.form
        k, f = self.binary_parts(x, lift)
        below, correction = self.name(tirx.Add(self.real(2), f)), self.real(0)
        if lacking is not None and self.wide and form.bits == 64:  # one division: each takes 16 cycles, as long as all else
            m = self.name(tirx.Add(self.real(1), f))
            inverse = self.name(tirx.Div(self.real(1), tirx.Mul(below, m)))
            s = self.name(tirx.Mul(tirx.Mul(f, m), inverse))
            lacking = self.avx512("scalef", lacking, tirx.Mul(k, self.real(-1)), lacking)
            correction = tirx.Mul(lacking, tirx.Mul(below, inverse))
        else:
            s = self.name(tirx.Div(f, below))
            if lacking is not None:
                correction = tirx.Div(lacking, x)
        z = self.name(tirx.Mul(s, s))
        series = tirx.Mul(z, self.polynomial(z, self.name(tirx.Mul(z, z)), form.log))
        half_square = self.name(tirx.Mul(tirx.Mul(f, self.real(0.5)), f))
        small = self.fma(s, tirx.Add(half_square, series), self.fma(k, self.real(form.ln2[1]), correction))
        return self.fma(k, self.real(form.ln2[0]), tirx.Sub(f, tirx.Sub(half_square, small)))

    def lifted(self, x: Expr) -> tuple[Expr, Expr]:
        """(normal, lift): x, multiplied by 2^(digits + 2) if it is subnormal, and the number for `binary_parts` that undoes it.

        `lift` is 2^digits + bias, to make a number of the exponent field, and digits + 2 more where x was multiplied.
        """
        form = self.form
        subnormal = tirx.LT(x, self.real(form.least_normal))
        normal = tirx.Select(subnormal, tirx.Mul(x, self.real(math.ldexp(1, form.digits + 2))), x)
        zero = math.ldexp(1, form.digits) + form.bias
        return normal, tirx.Select(subnormal, self.real(zero + form.digits + 2), self.real(zero))

    def logarithm(self, x: Expr, value: Expr) -> Expr:
        """`value`, the logarithm of x, with the special cases put in: -∞ for 0, NaN for negative x, and x itself for ∞ and NaN."""
        if self.wide:
            answers = broadcast(tirx.const(LOGARITHM, f"int{self.form.bits}"), self.lanes)
            return self.avx512("fixupimm", value, x, answers, tirx.const(0, "int32"))
        infinity = self.real(math.inf)
        outside = tirx.Select(tirx.EQ(x, self.real(0)), self.real(-math.inf), self.real(math.nan))
        inside = tirx.Select(tirx.LT(x, infinity), value, x)  # ∞ and NaN as they are
        return tirx.Select(tirx.LE(x, self.real(0)), outside, inside)


LOGARITHM = 0x03530422
"""The answers of AVX-512's `fixupimm` for a logarithm, one hexadecimal digit for each class of x, from the lowest digit on: quiet
and signaling NaN → NaN, 0 → -∞, 1 → the value, -∞ → NaN, ∞ → ∞, negative numbers → NaN, others → the value."""
