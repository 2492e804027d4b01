"""Rules for numpy's ufuncs: which operators of hbc compute the same. functions.py traces Python functions by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hbc.ir.graph import Constant, Node
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.functions import Function
from hbc.parser.frame import Refusal

Rule = Callable[..., Node]

ADVICE = (
    "Write it with numpy's elementwise functions (np.log1p, np.sqrt, np.clip, np.where, arithmetic …) of the array, or put it into a "
    "class of your own and register a converter with @hbc.converts."
)


def _not_equal(a: Node, b: Node) -> Node:
    return t.logical_not(t.equal(a, b))


def _ceil(x: Node) -> Node:
    return t.neg(t.floor(t.neg(x))) if x.type.is_float else x


def _floor(x: Node) -> Node:
    return t.floor(x) if x.type.is_float else x


def _trunc(x: Node) -> Node:
    return t.where(t.less(x, 0.0), _ceil(x), t.floor(x)) if x.type.is_float else x


def _isinf(x: Node) -> Node:
    return t.equal(t.absolute(x), np.inf) if x.type.is_float else t.logical_not(t.equal(x, x))


def _isnan(x: Node) -> Node:
    return t.isnan(x) if x.type.is_float else t.logical_not(t.equal(x, x))


def _sign(x: Node) -> Node:
    zero, one = (t.constant(value, x.type.dtype) for value in (0, 1))
    signs = t.where(t.less(zero, x), one, t.where(t.less(x, zero), t.sub(zero, one), zero))
    return t.where(t.isnan(x), x, signs) if x.type.is_float else signs


def _skipping(op: Rule) -> Rule:
    """The rule of fmax and fmin: op(a, b), or the other number if one is NaN."""

    def rule(a: Node, b: Node) -> Node:
        if not a.type.is_float:
            return op(a, b)
        return t.where(t.isnan(a), b, t.where(t.isnan(b), a, op(a, b)))

    return rule


def _power(x: Node, exponent: Node) -> Node:
    value = exponent.op.value if isinstance(exponent.op, Constant) else None
    if value is None or value.size != 1:
        raise Refusal("its function raises to a power that is not a single number.", ADVICE)
    number = value.reshape(()).item()
    if x.type.is_float:
        return Function("power", exponent=float(number))(x)
    if not 1 <= number <= 64:
        raise Refusal(f"its function raises integers to the power of {number}.", "Cast to float before.")
    y = x
    for bit in bin(number)[3:]:  # the order of products does not matter: integers overflow to the same number in any order
        y = t.mul(y, y)
        y = t.mul(y, x) if bit == "1" else y
    return y


EXACT_INTEGERS = 2.0**53 - 1
"""The largest integer whose float64 is not the float64 of another integer too."""


def _of_floats(op: Rule) -> Rule:
    """The rule of a remainder: op of floats, and for integers op of them as float64. Such an input is checked to be exact there. Raises
    Refusal for integers divided by anything but constants."""

    def rule(a: Node, b: Node) -> Node:
        if a.type.is_float:
            return op(a, b)
        value = b.op.value if isinstance(b.op, Constant) else np.zeros(1)
        if not (value != 0).all() or np.abs(value).max() > EXACT_INTEGERS:
            raise Refusal(
                "its function takes the remainder of integers divided by something else than constants.",
                "Cast to float before.",
            )
        wide = Check("numpy.remainder", allow_nan=True, allow_inf=True, limit=EXACT_INTEGERS, min_rows=0)(t.cast(a, "f64"))
        return t.cast(op(wide, t.cast(b, "f64")), a.type.dtype)

    return rule


def _fmod(a: Node, b: Node) -> Node:
    """The remainder of a / b with the sign of a, also the sign of -0.0."""
    rest = t.mod(t.absolute(a), t.absolute(b))
    return t.where(t.less(a, 0.0), t.neg(rest), t.where(t.equal(a, 0.0), t.sub(a, rest), rest))


RULES: dict[np.ufunc, Rule] = {
    np.add: t.add,
    np.subtract: t.sub,
    np.multiply: t.mul,
    np.divide: t.div,
    np.remainder: _of_floats(t.mod),
    np.fmod: _of_floats(_fmod),
    np.power: _power,
    np.maximum: t.maximum,
    np.minimum: t.minimum,
    np.fmax: _skipping(t.maximum),
    np.fmin: _skipping(t.minimum),
    np.less: t.less,
    np.less_equal: t.less_equal,
    np.greater: lambda a, b: t.less(b, a),
    np.greater_equal: lambda a, b: t.less_equal(b, a),
    np.equal: t.equal,
    np.not_equal: _not_equal,
    np.logical_and: t.logical_and,
    np.logical_or: t.logical_or,
    np.logical_not: t.logical_not,
    np.bitwise_and: t.logical_and,
    np.bitwise_or: t.logical_or,
    np.invert: t.logical_not,
    np.negative: t.neg,
    np.positive: lambda x: x,
    np.absolute: t.absolute,
    np.fabs: t.absolute,
    np.square: lambda x: t.mul(x, x),
    np.reciprocal: lambda x: t.div(1.0, x),
    np.sign: _sign,
    np.floor: _floor,
    np.ceil: _ceil,
    np.trunc: _trunc,
    np.isnan: _isnan,
    np.isinf: _isinf,
    np.isfinite: lambda x: t.logical_not(t.logical_or(_isnan(x), _isinf(x))),
    np.radians: lambda x: t.mul(x, np.pi / 180.0),
    np.deg2rad: lambda x: t.mul(x, np.pi / 180.0),
    np.degrees: lambda x: t.mul(x, 180.0 / np.pi),
    np.rad2deg: lambda x: t.mul(x, 180.0 / np.pi),
    **{
        getattr(np, name): Function(name)
        for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "tanh", "sin", "cos")
    },
}
"""ufunc → the function that makes its Node. Operands have been cast to the dtype in which numpy computes."""

ONLY_FLOATS = {np.divide, np.reciprocal}
"""The ufuncs that have a rule for floats only."""
ONLY_BOOLS = {np.logical_and, np.logical_or, np.logical_not, np.bitwise_and, np.bitwise_or, np.invert}
"""The ufuncs that have a rule for booleans only."""
EXACT = {
    np.positive,
    np.floor,
    np.ceil,
    np.trunc,
    np.fabs,
    np.remainder,
    np.fmod,
    np.maximum,
    np.minimum,
    np.fmax,
    np.fmin,
    np.sign,
}
"""The ufuncs that give the same numbers in each integer dtype that holds the operands, and also in each float dtype (except for
remainders)."""
