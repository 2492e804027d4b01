"""The weighted median over an ensemble's predictions."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, N, TensorType
from hbc.ops import tensor as t


@operator
class WeightedMedian(Operator):
    """y[N] = the smallest x[n, i] for which the weights of all x[n, j] ≤ x[n, i] sum to half of all weights or more.

    weights f64[T]; x f32|f64[N, T]. Weights are added in the order of the sorted row, as
    sklearn.ensemble.AdaBoostRegressor does (equal values in any order, NaN last).
    """

    weights: Array

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or x.columns != len(self.weights) or not len(self.weights):
            raise TypeError(f"x must be floats with {len(self.weights)} columns, one a weight")
        return TensorType(x.dtype, (N,))

    def evaluate(self, x: Array) -> Array:
        order = np.argsort(x, axis=1)
        reached = np.cumsum(self.weights[order], axis=1)
        place = (reached >= 0.5 * reached[:, -1:]).argmax(axis=1)
        rows = np.arange(len(x))
        return np.asarray(x[rows, order[rows, place]])

    def lower(self, x: Node) -> Node:
        """Without a sort: the rank of every column by comparing all pairs, [N, T, T]."""
        size = len(self.weights)
        one, other = t.reshape(x, N, size, 1), t.reshape(x, N, 1, size)
        earlier = t.constant(np.tri(size, k=-1, dtype=bool)[None])
        missing, other_missing = t.isnan(one), t.isnan(other)
        smaller = t.logical_or(t.less(other, one), t.logical_and(missing, t.logical_not(other_missing)))
        same = t.logical_or(t.equal(other, one), t.logical_and(missing, other_missing))
        before = t.logical_or(smaller, t.logical_and(same, earlier))
        rank = t.sum_(t.cast(before, "i32"), axis=2)
        place = t.constant(np.arange(size, dtype=np.int32)[None, :, None])
        here = t.equal(t.reshape(rank, N, 1, size), place)
        weights = t.sum_(t.where(here, t.constant(self.weights[None, None].astype(np.float64)), 0.0), axis=2)
        reached = [t.take(weights, np.array([0]), axis=1)]
        for column in range(1, size):
            reached.append(t.add(reached[-1], t.take(weights, np.array([column]), axis=1)))
        enough = t.less_equal(t.mul(reached[-1], 0.5), t.concat(reached))
        median = t.argmax(t.cast(enough, "i32"), 1)
        chosen = t.equal(t.cast(rank, "i64"), t.reshape(median, N, 1))
        return t.sum_(t.where(chosen, x, 0.0), axis=1)
