"""Converters for PowerTransformer, QuantileTransformer, SplineTransformer and IsotonicRegression: a curve for each column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Column, Sparse
from hbc.ir.types import FLOAT32_LIMIT, NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import CheckLeast
from hbc.ops.columns import Rank
from hbc.ops.curves import BSplines, Interpolate, InterpolateBothWays, NormalQuantile
from hbc.ops.functions import Function
from hbc.ops.missing import Impute
from hbc.parser.frame import Refusal
from hbc.parser.front_door import note, note_input
from hbc.parser.registry import ONE_DIMENSIONAL, Described, Result, converts, describes, public_name
from hbc.parser.release import since
from hbc.parser.sklearn.preprocessing import standard_scaler
from hbc.parser.sklearn.shared.common import as_float, checked, own_float
from hbc.parser.sparsity import is_sparse, may_be_sparse


def _rejected_where(m: Any, condition: Node, x: Node) -> Node:
    """x. A call is rejected if `condition` holds for any value, as the source raises an error there."""
    mark = t.where(condition, np.inf, x)
    return t.where(condition, x, checked(m, mark))


# --- powers ----------------------------------------------------------------------------------------------------------


@converts("sklearn.preprocessing.PowerTransformer")
def power_transformer(m: Any, x: Node) -> Result:
    x = own_float(checked(m, x, allow_nan=True))
    lambdas = np.asarray(m.lambdas_)
    y = _box_cox(m, x, lambdas) if m.method == "box-cox" else _yeo_johnson(x, lambdas)
    y = t.cast(y, x.type.dtype)
    return standard_scaler(m._scaler, y) if m.standardize else y


def _yeo_johnson(x: Node, lambdas: Array) -> Node:
    """((x + 1)^λ - 1) / λ if x ≥ 0, else -((1 - x)^(2-λ) - 1) / (2 - λ). Both branches are computed from ln(1 + |x|), so there is one
    logarithm: it is in x's dtype, the rest in the common dtype of x and λ (scipy.stats.yeojohnson)."""
    dtype = np.result_type(NUMPY_DTYPES[x.type.dtype], lambdas.dtype)
    common = dtype_name(dtype)
    eps = np.finfo(dtype if since(1, 9) else np.float64).eps
    positive = t.less_equal(0.0, x)
    logs = t.cast(Function("log1p_abs")(x), common)
    straight = np.stack([np.abs(lambdas) < eps, ~(np.abs(lambdas - 2) > eps)])  # there the logarithm itself is the result
    powers = np.stack([lambdas, 2 - lambdas]).astype(dtype)
    divisors = np.where(straight, 1, powers) * np.array([[1], [-1]], dtype)
    power = t.where(positive, powers[0], t.constant(powers[1]))
    if since(1, 9):
        above = Function("expm1")(t.mul(power, logs))
    else:  # before, 1 + |x| and its power are rounded
        base = Function("log")(t.cast(t.add(t.absolute(x), 1.0), "f64"))
        above = t.sub(t.cast(Function("exp")(t.mul(t.cast(power, "f64"), base)), common), 1.0)
    curved = t.div(above, t.where(positive, divisors[0], t.constant(divisors[1])))
    if not straight.any():
        return curved
    signed = t.where(positive, logs, t.neg(logs))
    return t.where(t.where(positive, t.constant(straight[0]), t.constant(straight[1])), signed, curved)


def _box_cox(m: Any, x: Node, lambdas: Array) -> Node:
    """(x^λ - 1) / λ, or ln x if λ = 0, in float64 (scipy.special.boxcox). Numbers ≤ 0 are rejected."""
    x = t.cast(CheckLeast(public_name(type(m)), allow_nan=True, exclusive=True)(x), "f64")
    logs = Function("log", by_c_library=True)(x)
    lambdas = lambdas.astype(np.float64)
    straight = np.abs(lambdas) < 1e-19
    divisors = np.where(straight, 1.0, lambdas)
    powers = t.mul(logs, lambdas)
    y = t.div(Function("expm1", by_c_library=True)(powers), divisors)
    if (lambdas > 1).any():  # x^λ may overflow although x^λ / λ does not: then compute e^(λ ln x - ln |λ|)
        sizes = [math.log(size) for size in np.abs(divisors).tolist()]  # math.log is the C library's logarithm, as in scipy
        large = Function("exp", by_c_library=True)(t.sub(powers, np.array(sizes)))
        y = t.where(t.less_equal(709.78, powers), t.mul(large, np.sign(divisors)), y)
    return t.where(t.constant(straight), logs, y) if straight.any() else y


# --- quantiles -------------------------------------------------------------------------------------------------------

_BOUND = 1e-7
"""The distance from the outer quantiles within which a value counts as one of them (sklearn.preprocessing._data.BOUNDS_THRESHOLD)."""


@converts("sklearn.preprocessing.QuantileTransformer")
def quantile_transformer(m: Any, x: Node) -> Result:
    """The mean of two interpolations, from below and from above; they differ where quantiles are equal. For the output distribution
    "normal" then Φ⁻¹ of this mean, clipped."""
    if may_be_sparse(x):
        note_input(Sparse(accepted=False))  # the source keeps the zeros that a sparse matrix leaves out
    x = own_float(checked(m, x, allow_nan=True))
    dtype = NUMPY_DTYPES[x.type.dtype]
    quantiles, levels = np.asarray(m.quantiles_).T, np.asarray(m.references_, np.float64)
    wide, wide_x = quantiles.astype(np.float64), t.cast(x, "f64")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.diff(wide[:, [0, -1]], axis=1)).all():
            raise Refusal("its quantiles are further apart than the largest float64.", "Scale the data before.")
    ys = np.broadcast_to(levels, wide.shape)
    y = t.cast(InterpolateBothWays(wide, ys)(wide_x), x.type.dtype)
    common = dtype_name(np.result_type(dtype, quantiles.dtype))
    first, last = (quantiles[:, i].astype(NUMPY_DTYPES[common]) for i in (0, -1))
    if m.output_distribution == "normal":
        lower = t.less(t.cast(t.sub(x, _BOUND), common), first)
        upper = t.less(last, t.cast(t.add(x, _BOUND), common))
    else:
        lower, upper = t.equal(t.cast(x, common), first), t.equal(t.cast(x, common), last)
    y = t.where(lower, 0.0, t.where(upper, 1.0, y))
    if m.output_distribution == "normal":
        z = t.cast(t.cast(NormalQuantile()(t.cast(y, "f64")), x.type.dtype), "f64")
        ends = np.array([_BOUND - np.spacing(1), 1 - (_BOUND - np.spacing(1))])
        low, high = NormalQuantile(on_host=True).evaluate(ends).tolist()
        y = t.cast(t.minimum(t.maximum(z, low), high), x.type.dtype)
    return t.where(t.equal(x, 0.0), x, y) if is_sparse(x) else y


# --- splines ---------------------------------------------------------------------------------------------------------


def _missing_as_zeros(m: Any) -> bool:
    """Whether missing values become zeros. Otherwise they are rejected."""
    return since(1, 8) and m.handle_missing == "zeros"  # 1.8 has the option


@converts("sklearn.preprocessing.SplineTransformer")
def spline_transformer(m: Any, x: Node) -> Result:
    missing = _missing_as_zeros(m)
    if missing and m.sparse_output and m.n_features_in_ > 1 and m.extrapolation not in ("constant", "linear"):
        reason = "with sparse_output=True, the source's result for a missing value depends on the other rows of the call."
        raise Refusal(reason, "Use sparse_output=False, or extrapolation='constant'.")
    x = checked(m, x, allow_nan=missing, allow_inf=missing)
    if missing:
        note(x, Column(none_apart=True))  # in a list, None is no missing value
    held = x.type.dtype
    x = as_float(x)
    source, x = x.type.dtype, t.cast(x, "f64")
    knots = np.array([spline.t for spline in m.bsplines_])
    absent = t.isnan(x)
    if missing:  # so that the estimators behind it see that no NaN is left
        x = Impute(knots[:, int(m.bsplines_[0].k)])(x)
    degree, splines = int(m.bsplines_[0].k), int(m.bsplines_[0].c.shape[1])
    outputs = splines if m.include_bias else splines - 1
    basis = BSplines(knots, degree, splines, outputs, spreads=not m.sparse_output)
    if m.extrapolation == "periodic":
        if m.sparse_output and degree == 0:
            reason = (
                "the source's transform always raises an error for degree=0, extrapolation='periodic' and sparse_output=True."
            )
            raise Refusal(reason, "Use sparse_output=False.")
        y = basis(_wrapped(x, knots[:, degree], knots[:, -degree - 1]))
    elif m.extrapolation == "continue":
        y = basis(x)
    elif m.extrapolation == "error":
        outside = t.logical_or(t.less(x, knots[:, degree]), t.less(knots[:, -degree - 1], x))
        y = basis(_rejected_where(m, outside, x))
    else:
        y = _extrapolated(m, x, basis, held)
    if missing:
        cells = t.reshape(y, "N", len(knots), outputs)
        y = t.reshape(t.where(t.reshape(absent, "N", len(knots), 1), 0.0, cells), *y.type.shape)
    return y if m.sparse_output else t.cast(y, source)


def _wrapped(x: Node, first: Array, last: Array) -> Node:
    """x moved into the period [first, last) by multiples of its length; 0 if the length is 0."""
    length = last - first
    y = t.add(t.mod(t.sub(x, first), np.where(length > 0, length, 1.0)), first)
    return y if (length > 0).all() else t.where(t.constant(length > 0), y, 0.0)


def _extrapolated(m: Any, x: Node, basis: BSplines, source: str) -> Node:
    """The splines f64[N, F · outputs], continued outside of the knots as constants or straight lines. `source`: the dtype of the input.

    For straight lines and degree 0 or 1 the source raises its variable `degree` by 1 at a column, up to 2, and keeps it for later
    columns. The bounds of those columns are therefore counted from a knot further in. This function does the same.
    """
    width, splines, degree = x.type.columns, basis.period, basis.degree
    lower, upper = np.zeros((2, width))
    # The value and the slope of every spline at the two bounds; 0 for splines that the source does not continue there.
    lines = np.zeros((2, 2, width, splines))
    for i, spline in enumerate(m.bsplines_):
        lower[i], upper[i] = spline.t[degree], spline.t[-degree - 1]
        edges = 1 + degree if m.extrapolation == "linear" and degree <= 1 else degree
        for side, bound in enumerate((lower[i], upper[i])):
            kept = np.arange(splines) < edges if side == 0 else np.arange(splines) >= splines - edges
            lines[0, side, i] = np.where(kept, spline(bound), 0.0)
            if m.extrapolation == "linear":
                lines[1, side, i] = np.where(kept, spline(bound, nu=1), 0.0)
        degree = edges if m.extrapolation == "linear" else degree
    if (lower > upper).any():
        raise Refusal("its knots are too few for its degree and extrapolation.", "Use more knots.")
    if m.extrapolation == "constant" and degree == 0 and splines > 1 and not m.sparse_output:
        # The source fails above the upper bound: `f_max[-0:]` has all splines, and numpy cannot broadcast them to no columns.
        x = _rejected_where(m, t.less(upper, x), x)
    if m.sparse_output and source != "f64":
        # The source replaces values outside of the knots by the lower bound, in the dtype of the input. If the rounded bound is outside
        # itself, the source raises an error.
        rounded = lower.astype(NUMPY_DTYPES[source]).astype(np.float64)
        short = t.constant((rounded < basis.knots[:, basis.degree]) | (rounded > basis.knots[:, -basis.degree - 1]))
        inside = t.logical_and(t.less_equal(lower, x), t.less_equal(x, upper))
        x = _rejected_where(m, t.logical_and(short, t.logical_not(inside)), x)
    clamped = t.minimum(t.maximum(x, lower), upper)
    shape = (width, basis.outputs)
    y = t.reshape(basis(clamped), "N", *shape)
    column = t.reshape(x, "N", width, 1)
    for side, bound in enumerate((lower, upper)):
        value, slope = lines[:, side, :, : basis.outputs]
        outside = t.less(column, bound[:, None]) if side == 0 else t.less(bound[:, None], column)
        if m.extrapolation == "linear":
            line = t.add(t.mul(t.sub(column, bound[:, None]), slope), value)
            y = t.where(outside, t.where(t.constant((slope != 0) | (value != 0)), line, t.constant(np.zeros(shape))), y)
        elif basis.degree == 0 and (side == 0 or not m.sparse_output):
            y = t.where(outside, 0.0, y)
    return t.reshape(y, "N", width * basis.outputs)


# --- isotonic regression ---------------------------------------------------------------------------------------------

ISOTONIC = "sklearn.isotonic.IsotonicRegression"
ONE_DIMENSIONAL.add(ISOTONIC)


@describes(ISOTONIC)
def _one_column(m: Any) -> Described:
    return 1, None


@converts(ISOTONIC)
def isotonic_regression(m: Any, x: Node) -> Result:
    """Linear interpolation between the thresholds, [N], in their dtype. The input is [N] or [N, 1]."""
    xs, ys = np.asarray(m.X_thresholds_), np.asarray(m.y_thresholds_)
    dtype = dtype_name(xs.dtype)
    if x.type.dtype == "f64" and dtype == "f32":
        x = checked(m, x, limit=FLOAT32_LIMIT)
    x = t.cast(checked(m, x), dtype)
    x = t.reshape(x, "N", 1)
    if m.out_of_bounds == "clip":
        x = t.minimum(t.maximum(x, xs.dtype.type(m.X_min_)), xs.dtype.type(m.X_max_))
    if len(ys) == 1:
        return _both(t.where(t.equal(x, x), t.constant(ys), t.constant(ys)))
    outside = t.logical_or(t.less(x, xs[0]), t.less(xs[-1], x))
    if m.out_of_bounds == "raise":
        x = _rejected_where(m, outside, x)
    y = Interpolate(xs[None], ys[None])(x) if dtype == "f64" else _interpolated_in_float32(x, xs, ys)
    return _both(t.where(outside, np.nan, y) if m.out_of_bounds == "nan" else y)


def _both(y: Node) -> Result:
    y = t.reshape(y, "N")
    return {"predict": y, "transform": y}


def _interpolated_in_float32(x: Node, xs: Array, ys: Array) -> Node:
    """Linear interpolation as scipy.interpolate.interp1d computes it in float32: from the last threshold < x, or the first one if
    there is none."""
    place = Rank(xs[None, 1:-1])(x)
    slopes = (ys[1:] - ys[:-1]) / (xs[1:] - xs[:-1])
    distance = t.sub(x, t.take(xs[:-1], place, 0))
    return t.add(t.mul(t.take(slopes, place, 0), distance), t.take(ys[:-1], place, 0))
