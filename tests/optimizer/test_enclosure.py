"""The range of a result holds every number computed from numbers in the ranges of the operands, also NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hbc.ir.graph import Operator
from hbc.ir.ranges import Range
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.curves import Interpolate, InterpolateBothWays, NormalQuantile
from hbc.ops.functions import Function
from hbc.ops.missing import Impute
from hbc.ops.scaling import Affine, Binarize, Clip, Standardize
from hbc.optimizer.trees.cuts import of_ordinal, ordinal
from hbc.optimizer.trees.enclosure import enclose

F = 3
XS = np.array([[-2.0, -1, 0.5, 0.5, 3], [-1e30, -1, 0, 1e-30, 7], [0, 0, 0, 0, 1]])
YS = np.sort(np.random.default_rng(3).random((F, 5)))

UNARY: dict[str, Operator] = {
    **{
        name: Function(name) for name in ("log", "log1p", "log1p_abs", "log_abs", "exp", "expm1", "tanh", "sqrt", "log2", "cos")
    },
    "neg": t.Neg(),
    "abs": t.Abs(),
    "to float32": t.Cast("f32"),
    "to float64": t.Cast("f64"),
    "is NaN": t.IsNan(),
    "standardize": Standardize(np.array([1.0, -3, 0]), np.array([-2.0, 1e30, 1e-3])),
    "affine": Affine(np.array([1.0, -3, 1e-9]), np.zeros(F)),
    "clip": Clip(-1.0, 2.0),
    "impute": Impute(np.array([1.0, -3, 0])),
    "binarize": Binarize(0.3, "f64"),
    "rank": Rank(np.sort(XS)),
    "interpolate": Interpolate(np.sort(XS), YS),
    "both ways": InterpolateBothWays(np.sort(XS), YS),
    "falling": Interpolate(np.sort(XS), YS[:, ::-1]),
    "normal quantile": NormalQuantile(),
}
BINARY: dict[str, Operator] = {
    type(op).__name__: op
    for op in (t.Add(), t.Sub(), t.Mul(), t.Div(), t.Minimum(), t.Maximum(), t.Less(), t.LessEqual(), t.Equal())
}
LOGICAL: dict[str, Operator] = {"And": t.And(), "Or": t.Or()}


def ranges(rng: np.random.Generator, rows: int, dtype: str) -> Range:
    """Random ranges: intervals, points and empty ones, some of them with NaN, some with special numbers at their ends."""
    kind = np.dtype(dtype)
    limits = np.finfo(kind)
    special = [0.0, -0.0, limits.max, limits.min, np.inf, -np.inf, 1.0, -1.0, limits.tiny, limits.smallest_subnormal]
    ends = (rng.normal(size=(2, rows, F)) * 10.0 ** rng.integers(-20, 20, (2, rows, F))).astype(kind)
    ends = np.where(rng.random(ends.shape) < 0.3, rng.choice(np.array(special, kind), ends.shape), ends)
    ends[1] = np.where(rng.random((rows, F)) < 0.2, ends[0], ends[1])
    low, high = np.minimum(*ends), np.maximum(*ends)
    missing, empty = rng.random((2, rows, F)) < [[[0.3]], [[0.1]]]
    return Range(np.where(empty, kind.type(np.inf), low), np.where(empty, kind.type(-np.inf), high), missing | empty)


def members(rng: np.random.Generator, x: Range) -> Array:
    """A number in each range: at its ends, beside them, between them, or NaN."""
    if x.low.dtype == bool:
        return np.where(rng.random(x.low.shape) < 0.5, x.low, x.high)
    low, high = ordinal(x.low).astype(object), ordinal(x.high).astype(object)
    share = rng.choice([0.0, 1e-18, 1e-9, 0.1, 0.5, 0.9, 1.0], x.low.shape)
    inside = np.array(
        [[lo + int((hi - lo) * s) for lo, hi, s in zip(*row, strict=True)] for row in zip(low, high, share, strict=True)]
    )
    inside = np.clip(inside.astype(np.int64), np.minimum(low, high).astype(np.int64), np.maximum(low, high).astype(np.int64))
    numbers = of_ordinal(inside, x.low.dtype)
    numbers = np.where(rng.random(x.low.shape) < 0.3, x.high, numbers)
    return np.where((x.low > x.high) | (x.missing & (rng.random(x.low.shape) < 0.3)), x.low.dtype.type(np.nan), numbers)


def require_inside(op: Operator, operands: list[Any], draws: Callable[[], list[Array]]) -> None:
    y = enclose(op, operands)
    for _ in range(30):
        with np.errstate(all="ignore"):
            found = op.evaluate(*draws())
        missing = np.isnan(found) if found.dtype.kind == "f" else np.zeros(found.shape, bool)
        assert (~missing | y.missing).all()
        outside = ~missing & ~((y.low <= found) & (found <= y.high))
        assert not outside.any(), [a[outside][:3] for a in (y.low, found, y.high)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", UNARY)
def test_of_one_operand(name: str, dtype: str) -> None:
    op = UNARY[name]
    if dtype == "f4" and name in ("rank", "interpolate", "falling", "normal quantile"):
        pytest.skip("float64 only")
    rng = np.random.default_rng(0)
    x = ranges(rng, 500, dtype)
    require_inside(op, [x], lambda: [members(rng, x)])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", BINARY)
def test_of_two_operands(name: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = ranges(rng, 500, dtype), ranges(rng, 500, dtype)
    require_inside(BINARY[name], [a, b], lambda: [members(rng, a), members(rng, b)])
    constant = np.array([0.0, 3, -np.inf], dtype)
    require_inside(BINARY[name], [a, constant], lambda: [members(rng, a), constant])
    require_inside(BINARY[name], [constant, b], lambda: [constant, members(rng, b)])


def test_of_truth_values() -> None:
    rng = np.random.default_rng(2)
    a, b = (enclose(t.Less(), [ranges(rng, 300, "f8"), np.array([0.0, 1, 2])]) for _ in range(2))
    for op in LOGICAL.values():
        require_inside(op, [a, b], lambda: [members(rng, a), members(rng, b)])
    require_inside(t.Not(), [a], lambda: [members(rng, a)])
    x, y = ranges(rng, 300, "f8"), ranges(rng, 300, "f8")
    require_inside(t.Where(), [a, x, y], lambda: [members(rng, z) for z in (a, x, y)])
    require_inside(t.Where(), [a, x, np.array(np.nan)], lambda: [members(rng, a), members(rng, x), np.array(np.nan)])


def test_ranges_are_narrow() -> None:
    """Ranges are exact for the difference of a rising and a falling function, and within a few ulps for a logarithm."""
    low, high = np.array([[1.0]]), np.array([[2.0]])
    x = Range.of(low, high)
    y = enclose(t.Sub(), [x, enclose(t.Neg(), [x])])
    assert (y.low, y.high) == (2.0, 4.0)
    z = enclose(Function("log1p"), [x])
    assert np.log(2) - 1e-14 < z.low < np.log(2) < np.log(3) < z.high < np.log(3) + 1e-14
    assert not z.missing.any()
    assert enclose(Function("log"), [Range.of(-high, -low)]).empty.all()
