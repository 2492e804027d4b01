"""Curves of one variable, one for each column: piecewise linear interpolation, the normal quantile, B-splines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.ranges import Range, anything, chosen, rising
from hbc.ir.types import Array, TensorType, require
from hbc.ops import tensor as t
from hbc.ops.columns import Rank
from hbc.ops.functions import CLogarithm, by_c_library


@operator
class Interpolate(Operator):
    """y[N, F] = ys[F, k] + slope[F, k] · (x - xs[F, k]) with the last k such that xs[F, k] ≤ x, where slope[F, k] = (ys[F, k+1] -
    ys[F, k]) / (xs[F, k+1] - xs[F, k]). y is ys[F, 0] before the first x, and ys[F, -1] after the last; NaN for NaN; f64.

    xs[F, K] ascend along K and may repeat; all are finite (numpy.interp, whose order of operations this is).
    """

    xs: Array
    ys: Array

    columnwise = True
    jumps = True  # where xs are repeated

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64" and len(x.shape) == 2, "the operand must be an f64 matrix")
        require(self.xs.shape == self.ys.shape and self.xs.dtype == self.ys.dtype == np.float64, "xs and ys must be f64[F, K]")
        require(self.xs.ndim == 2 and self.xs.shape[1] > 0 and len(self.xs) == x.columns, f"there are {x.columns} columns")
        return x

    def evaluate(self, x: Array) -> Array:
        y = np.empty_like(x)
        for j, (xs, ys) in enumerate(zip(self.xs, self.ys, strict=True)):
            y[:, j] = np.interp(x[:, j], xs, ys)
        return np.where(np.isnan(x), x, y)

    def lower(self, x: Node) -> Node:
        width, count = self.xs.shape
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slopes = np.diff(self.ys, axis=1) / np.diff(self.xs, axis=1)
        slopes = np.concatenate([slopes, np.zeros((width, 1))], axis=1)  # the slope between two equal xs is never looked up
        inside = t.maximum(t.minimum(x, self.xs[:, -1]), self.xs[:, 0])
        # `xs ≤ x` is `the number before xs < x`; the first one holds by the line above.
        below = Rank(np.nextafter(self.xs[:, 1:], -np.inf))(inside)
        place = t.add(below, np.arange(0, width * count, count, dtype=np.int32))
        start, value = t.take(self.xs.ravel(), place, 0), t.take(self.ys.ravel(), place, 0)
        y = t.add(t.mul(t.take(slopes.ravel(), place, 0), t.sub(inside, start)), value)
        y = y if np.isfinite(slopes).all() else t.where(t.equal(inside, start), value, y)
        if count > 1 and (self.xs[:, 0] == self.xs[:, 1]).any():
            y = t.where(t.less(x, self.xs[:, 0]), t.constant(self.ys[:, 0]), y)
        return t.where(t.isnan(x), x, y)

    @property
    def non_negative(self) -> bool:
        return bool((self.ys >= 0).all())

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return self.non_negative

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.asarray(np.abs(self.ys).max(axis=1))

    def enclose(self, x: Range) -> Range:
        """Each straight line keeps the order of numbers when it is computed. The computed end of a line may lie above the
        beginning of the next."""
        width, rise = np.diff(self.xs, axis=1), np.diff(self.ys, axis=1)
        ends = np.where(width > 0, rise / width * width + self.ys[:, :-1], self.ys[:, :-1])
        before = np.maximum.accumulate(np.column_stack([np.full((len(ends), 2), -np.inf), ends]), axis=1)
        behind = np.column_stack([self.ys, np.full(len(ends), np.inf)])
        low, high = self.evaluate(x.low), self.evaluate(x.high)
        for j, xs in enumerate(self.xs):
            low[:, j] = np.minimum(low[:, j], behind[j][np.searchsorted(xs, x.low[:, j], side="right")])
            high[:, j] = np.maximum(high[:, j], before[j][np.searchsorted(xs, x.high[:, j], side="right")])
        rises = (rise >= 0).all(axis=1) & np.isfinite(ends).all(axis=1)
        y = Range(low, high, x.missing).without_numbers(x.empty)
        return chosen(np.broadcast_to(rises, y.low.shape), y, anything(y.low))


@operator
class InterpolateBothWays(Operator):
    """y[N, F] = ½ (Interpolate(xs, ys)(x) - Interpolate(-xs reversed, -ys reversed)(-x)): the mean of the interpolations from below and
    from above, which differ where xs are equal (sklearn.preprocessing.QuantileTransformer); f64. ys ascend, too.

    Both lie on the line between the same two points unless x is one of the xs, so that one search finds both.
    """

    xs: Array
    ys: Array

    columnwise = True
    jumps = True  # where xs are repeated

    def infer(self, x: TensorType) -> TensorType:
        return self._upwards.infer(x)

    @property
    def _upwards(self) -> Interpolate:
        return Interpolate(self.xs, self.ys)

    @property
    def _downwards(self) -> Interpolate:
        return Interpolate(-self.xs[:, ::-1], -self.ys[:, ::-1])

    def evaluate(self, x: Array) -> Array:
        return np.asarray((self._upwards.evaluate(x) - self._downwards.evaluate(-x)) * 0.5)

    def lower(self, x: Node) -> Node:
        xs, ys = self.xs, self.ys
        width, count = xs.shape
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slopes = np.diff(ys, axis=1) / np.diff(xs, axis=1)
        slopes[np.diff(xs, axis=1) == 0] = 0.0  # no x lies between these
        if not np.isfinite(slopes).all():
            return t.mul(t.sub(self._upwards(x), self._downwards(t.neg(x))), 0.5)
        points = np.zeros((width, count + 1, 4))
        points[:, 1:, 0], points[:, 1:, 1], points[:, 1:-1, 2] = xs, ys, slopes
        for j in range(width):  # the last point with the same x, from below, and the first one, from above
            last, first = (np.searchsorted(xs[j], xs[j], side) for side in ("right", "left"))
            points[j, 1:, 3] = (ys[j, last - 1] + ys[j, first]) * 0.5
        inside = t.maximum(t.minimum(x, xs[:, -1]), xs[:, 0])
        y = OnLines(points)(inside, Rank(xs[:, :-1])(inside))
        if count > 1 and (xs[:, 0] == xs[:, 1]).any():
            y = t.where(t.less(x, xs[:, 0]), t.constant(ys[:, 0]), y)
        if count > 1 and (xs[:, -2] == xs[:, -1]).any():
            y = t.where(t.less(xs[:, -1], x), t.constant(ys[:, -1]), y)
        return t.where(t.isnan(x), x, y)

    @property
    def non_negative(self) -> bool:
        return self._upwards.non_negative

    def divides_by_sum(self, inputs: Sequence[Node]) -> bool:
        return self.non_negative

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return self._upwards.magnitude(node, bounds)

    def enclose(self, x: Range) -> Range:
        """The halved difference keeps the order of both interpolations when it is computed."""
        up, down = self._upwards.enclose(x), self._downwards.enclose(Range(-x.high, -x.low, x.missing))
        y = Range((up.low - down.high) * 0.5, (up.high - down.low) * 0.5, x.missing).without_numbers(x.empty)
        return chosen(np.isfinite(y.low) & np.isfinite(y.high) | x.empty, y, anything(y.low))


@operator
class OnLines(Operator):
    """y[N, F]: where x is the number of point p = place[N, F] + 1, the value that this point has alone; elsewhere the mean of the two sums
    that the line from the point before gives, reckoned from either end of it (the lowered `InterpolateBothWays`). f64.

    points[F, K + 1, 4]: (number, value, slope of the line to the next point, value where x is this number). place: i32, 0 … K - 1.
    """

    points: Array

    columnwise = True
    jumps = True

    def infer(self, x: TensorType, place: TensorType) -> TensorType:
        require(x.dtype == "f64" and place.dtype == "i32" and x.shape == place.shape, "the operands must be f64 and i32")
        require(self.points.ndim == 3 and self.points.shape[2] == 4 and self.points.shape[1] > 1, "points are f64[F, K + 1, 4]")
        require(self.points.dtype == np.float64 and len(self.points) == x.columns, f"there are {x.columns} columns")
        return x

    def evaluate(self, x: Array, place: Array) -> Array:
        columns = np.arange(len(self.points))
        a, b = self.points[columns, place], self.points[columns, place + 1]
        with np.errstate(all="ignore"):
            ends = [a[..., 2] * (x - end[..., 0]) + end[..., 1] for end in (a, b)]
            return np.where(x == b[..., 0], b[..., 3], (ends[0] + ends[1]) * 0.5)

    def lower(self, x: Node, place: Node) -> Node:
        width, count, _ = self.points.shape
        before = t.add(place, np.arange(0, width * count, count, dtype=np.int32))
        after = t.add(before, np.ones((), np.int32))
        tables = [np.ascontiguousarray(self.points[:, :, part]).ravel() for part in range(4)]
        slope = t.take(tables[2], before, 0)
        number = t.take(tables[0], after, 0)
        first = t.add(t.mul(slope, t.sub(x, t.take(tables[0], before, 0))), t.take(tables[1], before, 0))
        second = t.add(t.mul(slope, t.sub(x, number)), t.take(tables[1], after, 0))
        return t.where(t.equal(x, number), t.take(tables[3], after, 0), t.mul(t.add(first, second), 0.5))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        number, value, slope, alone = np.abs(self.points).max(axis=1).T
        return np.maximum(slope * (bounds[0] + number) + value, alone)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {1: range(self.points.shape[1] - 1)}


# Cephes' ndtri, as in scipy.special: rational approximations of the middle part and of the tails.
_MIDDLE = (
    (-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1, 1.39312609387279679503e1,
     -1.23916583867381258016e0),
    (1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1, -2.25462687854119370527e2,
     2.00260212380060660359e2, -8.20372256168333339912e1, 1.59056225126211695515e1, -1.18331621121330003142e0),
)  # fmt: skip
_TAIL = (
    (4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1, 4.40805073893200834700e1,
     1.46849561928858024014e1, 2.18663306850790267539e0, -1.40256079171354495875e-1, -3.50424626827848203418e-2,
     -8.57456785154685413611e-4),
    (1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1, 1.50425385692907503408e1,
     2.50464946208309415979e0, -1.42182922854787788574e-1, -3.80806407691578277194e-2, -9.33259480895457427372e-4),
)  # fmt: skip
_CENTRE = 0.13533528323661269189  # e⁻²
_LEAST = 1e-13  # the tail's approximation holds down to e⁻³², 1.3e-14
_ROOT = 2.50662827463100050242  # √(2π)
LARGEST_QUANTILE = 8.0
"""Above Φ⁻¹(1 - 1e-13), which is 7.35."""
QUANTILE_ULPS = 16
"""How far the computed quantile is from the exact one at most: 4.1 ulps of 6,100 probabilities, against 60 digits; Cephes documents
7.2e-16, about 3."""


@operator
class NormalQuantile(Operator):
    """y = Φ⁻¹(x) for probabilities x. An x outside of [1e-13, 1 - 1e-13] is replaced by the nearest number in it. NaN for NaN;
    f64.

    Φ is the normal distribution function. The result is right to about 4e-16 relative (Cephes' ndtri, which is
    scipy.stats.norm.ppf). It has the same bits as scipy's where its logarithm is the C library's: on the host (`on_host`), or in
    compiled code that calls this library (`exact`).
    """

    on_host: bool = False
    exact: bool = False

    columnwise = True
    by_c_library = True

    @property
    def in_numpy(self) -> bool:
        return self.on_host

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64", "the operand must be f64")
        return x

    def evaluate(self, x: Array) -> Array:
        log = partial(by_c_library, "log") if self.on_host or self.exact else np.log
        x = np.clip(x, _LEAST, 1 - _LEAST)
        upper = x > 1 - _CENTRE
        p = np.where(upper, 1 - x, x)
        centred = p - 0.5
        square = centred * centred
        y = np.array((centred + centred * (square * np.polyval(_MIDDLE[0], square) / np.polyval(_MIDDLE[1], square))) * _ROOT)
        tails = ~(p > _CENTRE)  # and NaN: a quarter of uniform probabilities need the two logarithms
        r = np.sqrt(-2.0 * log(p[tails]))
        z = 1.0 / r
        tail = (r - log(r) / r) - z * np.polyval(_TAIL[0], z) / np.polyval(_TAIL[1], z)
        y[tails] = np.where(upper[tails], tail, -tail)
        return y

    def lower(self, x: Node) -> Node:
        x = t.minimum(t.maximum(x, _LEAST), 1 - _LEAST)
        upper = t.less(1 - _CENTRE, x)
        p = t.where(upper, t.sub(1.0, x), x)
        centred = t.sub(p, 0.5)
        square = t.mul(centred, centred)
        ratio = t.div(t.mul(square, _polynomial(_MIDDLE[0], square)), _polynomial(_MIDDLE[1], square))
        middle = t.mul(t.add(centred, t.mul(centred, ratio)), _ROOT)
        log = CLogarithm() if self.exact else t.log
        r = t.sqrt(t.mul(log(t.minimum(p, _CENTRE)), -2.0))
        z = t.div(1.0, r)
        ratio = t.div(t.mul(z, _polynomial(_TAIL[0], z)), _polynomial(_TAIL[1], z))
        tail = t.sub(t.sub(r, t.div(log(r), r)), ratio)
        return t.where(t.less(_CENTRE, p), middle, t.where(upper, tail, t.neg(tail)))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.columns, LARGEST_QUANTILE)

    def enclose(self, x: Range) -> Range:
        return rising(self.evaluate, x, QUANTILE_ULPS)


def _polynomial(coefficients: tuple[float, ...], x: Node) -> Node:
    """Horner's rule, the leading coefficient first."""
    y = t.mul(x, coefficients[0]) if coefficients[0] != 1.0 else x
    for coefficient in coefficients[1:-1]:
        y = t.mul(t.add(y, coefficient), x)
    return t.add(y, coefficients[-1])


@operator
class BSplines(Operator):
    """y[N, F · outputs] = the B-splines B_s(x[N, F]) of one degree over knots[F, T] (ascending), s = 0 … outputs - 1 for each
    column; f64.

    Before knots[F, degree] and after knots[F, T - degree - 1], the polynomials of the first and last interval continue. There
    are `period` different splines: B_s is the sum of those of the T - degree - 1 splines whose number modulo `period` is s. De
    Boor's recursion, in the order of operations of scipy.interpolate.BSpline. `spreads`: a spline that overflows makes all
    splines of its column NaN (0 · ∞), as in BSpline.__call__; in BSpline.design_matrix it does not.
    """

    knots: Array
    degree: int
    period: int
    outputs: int
    spreads: bool = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64" and len(x.shape) == 2, "the operand must be an f64 matrix")
        require(self.knots.ndim == 2 and self.knots.dtype == np.float64, "knots must be f64[F, T]")
        require(len(self.knots) == x.columns, f"there are {x.columns} columns")
        require(0 <= self.outputs <= self.period <= self.count <= 2 * self.period, "there are not so many splines")
        return TensorType("f64", (x.shape[0], x.columns * self.outputs))

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        return (np.unique(kept // self.outputs),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        gives = columns[0][:, None] * self.outputs + np.arange(self.outputs)
        return replace(self, knots=self.knots[columns[0]]), gives.ravel()

    def alike(self, node: Node) -> Any:
        return self.knots.shape[1], self.degree, self.period, self.outputs, self.spreads

    @property
    def count(self) -> int:
        return self.knots.shape[1] - self.degree - 1

    @property
    def _inner(self) -> Array:
        """Knots between two intervals, as edges e such that e < x says knot ≤ x."""
        return np.nextafter(self.knots[:, self.degree + 1 : self.count], -np.inf)

    def evaluate(self, x: Array) -> Array:
        below = Rank(self._inner).evaluate(x)
        rows = np.arange(len(self.knots))
        at = {m: self.knots[rows, below + self.degree + m] for m in range(1 - self.degree, self.degree + 1)}
        with np.errstate(all="ignore"):
            h = [np.where(np.isnan(x), np.nan, 1.0)]
            for j in range(1, self.degree + 1):
                old, h = h, [np.zeros_like(x)]
                for n in range(1, j + 1):
                    high, low = at[n], at[n - j]
                    w = np.where(high == low, 0.0, old[n - 1] / np.where(high == low, 1.0, high - low))
                    h[n - 1] = h[n - 1] + w * (high - x)
                    h.append(w * (x - low))
            y = np.zeros((*x.shape, self.outputs))
            for a, value in enumerate(h):
                number = (below + a) % self.period
                hit = number[:, :, None] == np.arange(self.outputs)
                y += value[:, :, None] * hit if self.spreads else np.where(hit, value[:, :, None], 0.0)
        return y.reshape(len(x), x.shape[1] * self.outputs)

    def lower(self, x: Node) -> Node:
        width, size = self.knots.shape
        below = Rank(self._inner)(x)
        place = t.add(below, np.arange(0, width * size, size, dtype=np.int32))
        flat = self.knots.ravel()
        at = {m: t.take(flat, t.add(place, self.degree + m), 0) for m in range(1 - self.degree, self.degree + 1)}
        repeated = bool((np.diff(self.knots, axis=1) == 0).any())
        h = [t.where(t.isnan(x), x, 1.0)]
        for j in range(1, self.degree + 1):
            old, h = h, []
            for n in range(1, j + 1):
                high, low = at[n], at[n - j]
                w = t.div(old[n - 1], t.sub(high, low))
                w = t.where(t.equal(high, low), 0.0, w) if repeated else w
                first = t.mul(w, t.sub(high, x))
                h[n - 1 :] = [t.add(h[n - 1], first) if n > 1 else first, t.mul(w, t.sub(x, low))]
        y = None
        for a, value in enumerate(h):
            number = t.add(below, a)
            if self.count > self.period:
                number = t.where(t.less(number, self.period), number, t.sub(number, self.period))
            hit = t.equal(t.reshape(number, *x.type.shape, 1), np.arange(self.outputs, dtype=np.int32))
            cells = t.reshape(value, *x.type.shape, 1)
            term = t.mul(cells, t.cast(hit, "f64")) if self.spreads else t.where(hit, cells, 0.0)
            y = term if y is None else t.add(y, term)
        assert y is not None
        return t.reshape(y, x.type.shape[0], width * self.outputs)

    def require_sound(self) -> None:
        if self.degree < 0:
            raise ValueError(f"splines of degree {self.degree}")
