"""Between which numbers lies all that an operator computes of an interval: interval arithmetic on floating point as it is computed, not on
real numbers. What it does not know may be anything, so that whoever proves something by it proves too little, never too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hbc.ir.graph import Operator
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.curves import Interpolate, NormalQuantile
from hbc.ops.features import Function

ULPS = 4
"""How far numpy's logarithms and exponentials are from the exact ones at most: its own tests, and those of the vector library in it,
hold them to that (numpy/_core/tests/test_umath_accuracy.py)."""
QUANTILE_ULPS = 16
"""The same of the normal quantile: 4.1 at most of 6,100 probabilities, against 60 digits; Cephes documents 7.2e-16, about 3."""


@dataclass(frozen=True)
class Range:
    """Element by element: numbers from `low` to `high`, none where low > high; and, where `missing`, perhaps NaN."""

    low: Array
    high: Array
    missing: Array

    @classmethod
    def of(cls, low: Array, high: Array) -> Range:
        """The numbers between two, which may be NaN: then it is that."""
        missing = np.isnan(low) | np.isnan(high) if low.dtype.kind == "f" else np.zeros(low.shape, bool)
        return _without_numbers(cls(low, high, missing), missing)

    @property
    def empty(self) -> Array:
        return np.asarray(self.low > self.high)


def can_enclose(op: Operator) -> bool:
    """Whether anything is known of the operator, beside what `monotone` says of its columns."""
    if isinstance(op, Function):
        return _plain(op).rises_from is not None
    return type(op) in _ENCLOSURES


def enclose(op: Operator, operands: list[Range | Array]) -> Range:
    """What the operator computes of numbers in the operands' ranges; an array is a constant."""
    ranges = [x if isinstance(x, Range) else Range.of(x, x) for x in operands]
    with np.errstate(all="ignore"):
        if type(op) in _ENCLOSURES:
            return _ENCLOSURES[type(op)](op, *ranges)
        return _monotone(op, operands)


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return np.False_, np.True_
    return (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _without_numbers(x: Range, where: Array) -> Range:
    """x with no numbers in some places."""
    smallest, largest = _bounds(x.low.dtype)
    dtype = x.low.dtype
    return Range(
        np.where(where, largest, x.low).astype(dtype), np.where(where, smallest, x.high).astype(dtype), np.asarray(x.missing)
    )


def _anything(low: Array, where: Array | bool = True) -> Range:
    smallest, largest = _bounds(low.dtype)
    return Range(np.full_like(low, smallest), np.full_like(low, largest), np.broadcast_to(where, low.shape))


def _hull(a: Range, b: Range) -> Range:
    return Range(np.minimum(a.low, b.low), np.maximum(a.high, b.high), a.missing | b.missing)


def _chosen(where: Array, a: Range, b: Range) -> Range:
    return Range(*(np.where(where, x, y) for x, y in ((a.low, b.low), (a.high, b.high), (a.missing, b.missing))))


# --- operators -----------------------------------------------------------------------------------------------------------


def _monotone(op: Operator, operands: list[Range | Array]) -> Range:
    """Rounding keeps the order, so the ends of the interval give the ends of the result."""
    (place,) = (i for i, x in enumerate(operands) if isinstance(x, Range))
    x = operands[place]
    assert isinstance(x, Range)

    def computed(numbers: Array) -> Array:
        return np.asarray(op.evaluate(*operands[:place], numbers, *operands[place + 1 :]))

    low, high = computed(x.low), computed(x.high)
    y = _without_numbers(Range(np.minimum(low, high), np.maximum(low, high), np.zeros(low.shape, bool)), x.empty)
    if x.missing.any():
        nan = computed(np.full_like(x.low, np.nan))
        y = _chosen(x.missing, _hull(y, Range.of(nan, nan)), y)
    keeps = op.monotone(*(None if isinstance(operand, Range) else operand for operand in operands))
    return _chosen(np.broadcast_to(keeps, y.low.shape), y, _anything(y.low))


def _binary(op: t.Binary, a: Range, b: Range) -> Range:
    """Sums, products and the like keep or reverse the order of each operand, whatever the other is: the ends give the ends."""
    ends = [op.evaluate(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
    unknown = np.isnan(low)
    if isinstance(op, t.Mul):  # 0 · ∞ may be inside
        unknown |= (_infinite(a) & _has_zero(b)) | (_infinite(b) & _has_zero(a))
    if isinstance(op, t.Div):
        unknown |= _has_zero(b)
    empty = a.empty | b.empty
    y = _without_numbers(Range(low, high, a.missing | b.missing), empty)
    return _chosen(unknown & ~empty, _anything(low), y)


def _infinite(x: Range) -> Array:
    return np.isinf(x.low) | np.isinf(x.high)


def _has_zero(x: Range) -> Array:
    return (x.low <= 0) & (x.high >= 0)


def _neg(op: t.Neg, x: Range) -> Range:
    return Range(-x.high, -x.low, x.missing)


def _abs(op: t.Abs, x: Range) -> Range:
    ends = np.abs(x.low), np.abs(x.high)
    low = np.where(_has_zero(x), 0, np.minimum(*ends)).astype(x.low.dtype)
    return _without_numbers(Range(low, np.maximum(*ends), x.missing), x.empty)


def _cast(op: t.Cast, x: Range) -> Range:
    if op.dtype not in ("f32", "f64"):
        return _anything(op.evaluate(x.low))
    return _without_numbers(Range(op.evaluate(x.low), op.evaluate(x.high), x.missing), x.empty)


def _compare(op: t.Less | t.LessEqual, a: Range, b: Range) -> Range:
    missing = a.missing | b.missing
    always = op.evaluate(a.high, b.low) & ~missing
    sometimes = op.evaluate(a.low, b.high) & ~a.empty & ~b.empty
    return Range(always, sometimes, np.zeros(always.shape, bool))


def _equal(op: t.Equal, a: Range, b: Range) -> Range:
    always = (a.low == a.high) & (b.low == b.high) & (a.low == b.low) & ~a.missing & ~b.missing
    sometimes = (a.low <= b.high) & (b.low <= a.high) & ~a.empty & ~b.empty
    return Range(always, sometimes, np.zeros(always.shape, bool))


def _is_nan(op: t.IsNan, x: Range) -> Range:
    return Range(x.missing & x.empty, x.missing, np.zeros(x.missing.shape, bool))


def _not(op: t.Not, x: Range) -> Range:
    return Range(~x.high, ~x.low, x.missing)


def _logical(op: t.And | t.Or, a: Range, b: Range) -> Range:
    return Range(op.evaluate(a.low, b.low), op.evaluate(a.high, b.high), a.missing | b.missing)


def _where(op: t.Where, condition: Range, a: Range, b: Range) -> Range:
    a, b = (Range(*np.broadcast_arrays(x.low, x.high, x.missing, condition.low)[:3]) for x in (a, b))
    return _chosen(condition.low, a, _chosen(condition.high, _hull(a, b), b))


def _from(start: float, x: Range) -> Range:
    """The numbers from `start` on; NaN instead of those below."""
    low = np.maximum(x.low, x.low.dtype.type(start))
    return Range(low, x.high, x.missing | ((x.low < start) & ~x.empty))


def _rising(op: Operator, x: Range, ulps: int) -> Range:
    """Of a function of real numbers that rises strictly, computed with an error of `ulps`.

    What is computed of a number is at most `ulps` below the exact value, that at least the exact one of `low`, and this at most `ulps`
    below what is computed of `low`; an ulp is twice as large above a power of two. Subnormal results may be flushed to 0.
    """
    low, high = op.evaluate(x.low), op.evaluate(x.high)
    limits = np.finfo(low.dtype)
    tiny, largest = limits.tiny, limits.max * (1 - 1e-6)  # within an ulp of overflow

    def slack(y: Array) -> Array:
        return np.where(np.isfinite(y), 4 * ulps * np.spacing(np.abs(y)), 0).astype(y.dtype)

    below, above = np.minimum(low - slack(low), largest), np.maximum(high + slack(high), -largest)
    below = np.where(np.abs(low) <= 2 * tiny, np.minimum(below, 0), below).astype(low.dtype)
    above = np.where(np.abs(high) <= 2 * tiny, np.maximum(above, 0), above).astype(low.dtype)
    return _without_numbers(Range(below, above, x.missing), x.empty)


def _function(op: Function, x: Range) -> Range:
    plain = _plain(op)
    if plain.rises_from is None:
        return _anything(x.low)
    return _rising(plain, _from(plain.rises_from, x if plain is op else _abs(t.Abs(), x)), ULPS)


def _plain(op: Function) -> Function:
    """The function of |x| itself, for `log_abs` and `log1p_abs`."""
    name = op.function.removesuffix("_abs")
    return op if name == op.function else replace(op, function=name)


def _interpolate(op: Interpolate, x: Range) -> Range:
    """Each straight line keeps the order of numbers when it is computed; where it ends it may lie above the beginning of the next."""
    width, rise = np.diff(op.xs, axis=1), np.diff(op.ys, axis=1)
    ends = np.where(width > 0, rise / width * width + op.ys[:, :-1], op.ys[:, :-1])
    before = np.maximum.accumulate(np.column_stack([np.full((len(ends), 2), -np.inf), ends]), axis=1)
    behind = np.column_stack([op.ys, np.full(len(ends), np.inf)])
    low, high = op.evaluate(x.low), op.evaluate(x.high)
    for j, xs in enumerate(op.xs):
        low[:, j] = np.minimum(low[:, j], behind[j][np.searchsorted(xs, x.low[:, j], side="right")])
        high[:, j] = np.maximum(high[:, j], before[j][np.searchsorted(xs, x.high[:, j], side="right")])
    rises = (rise >= 0).all(axis=1) & np.isfinite(ends).all(axis=1)
    y = _without_numbers(Range(low, high, x.missing), x.empty)
    return _chosen(np.broadcast_to(rises, y.low.shape), y, _anything(y.low))


def _normal_quantile(op: NormalQuantile, x: Range) -> Range:
    return _rising(op, x, QUANTILE_ULPS)


_ENCLOSURES: dict[type[Operator], Callable[..., Range]] = {
    **dict.fromkeys((t.Add, t.Sub, t.Mul, t.Div, t.Minimum, t.Maximum), _binary),
    **dict.fromkeys((t.Less, t.LessEqual), _compare),
    **dict.fromkeys((t.And, t.Or), _logical),
    t.Equal: _equal,
    t.Not: _not,
    t.IsNan: _is_nan,
    t.Neg: _neg,
    t.Abs: _abs,
    t.Cast: _cast,
    t.Where: _where,
    Function: _function,
    Interpolate: _interpolate,
    NormalQuantile: _normal_quantile,
}
