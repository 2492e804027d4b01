"""The weighted median over an ensemble's predictions."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, N, TensorType
from hbc.ops import tensor as t


@operator
class WeightedMedian(Operator):
    """y[N] = the smallest x[n, i] for which the weights of all x[n, j] ≤ x[n, i] sum to at least half of all weights.

    weights f64[T]; x f32|f64[N, T]. Weights are added in the order of the sorted row, as in sklearn.ensemble.AdaBoostRegressor
    (equal values in any order, NaN last). staged: y[N, T] instead, the medians of the first 1, 2, … columns.
    """

    weights: Array
    staged: bool = False

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or x.columns != len(self.weights) or not len(self.weights):
            raise TypeError(f"x must be floats with {len(self.weights)} columns, one a weight")
        return TensorType(x.dtype, x.shape if self.staged else (N,))

    def evaluate(self, x: Array) -> Array:
        if self.staged:
            return np.stack([self._of_first(x[:, :stage]) for stage in range(1, x.shape[1] + 1)], axis=1)
        return self._of_first(x)

    def _of_first(self, x: Array) -> Array:
        order = np.argsort(x, axis=1)
        reached = np.cumsum(self.weights[order], axis=1)
        place = (reached >= 0.5 * reached[:, -1:]).argmax(axis=1)
        rows = np.arange(len(x))
        return np.asarray(x[rows, order[rows, place]])

    def lower(self, x: Node) -> Node:
        """The same without a sort: the rank of each column comes from comparing all pairs, [N, T, T]."""
        size = len(self.weights)
        one, other = t.reshape(x, N, size, 1), t.reshape(x, N, 1, size)
        earlier = t.constant(np.tri(size, k=-1, dtype=bool)[None])
        missing, other_missing = t.isnan(one), t.isnan(other)
        smaller = t.logical_or(t.less(other, one), t.logical_and(missing, t.logical_not(other_missing)))
        same = t.logical_or(t.equal(other, one), t.logical_and(missing, other_missing))
        before = t.logical_or(smaller, t.logical_and(same, earlier))
        rank = t.sum_(t.cast(before, "i32"), axis=2)
        place = t.constant(np.arange(size, dtype=np.int32)[None, :, None])
        order = t.argmax(t.equal(t.reshape(rank, N, 1, size), place), 2)
        # [N, stages, T]: the weights in the order of the row, those of later stages left out.
        weights = t.reshape(t.take(self.weights.astype(np.float64), order, axis=0), N, 1, size)
        columns = np.arange(size)[None, :, None] if self.staged else np.array([[[size - 1]]])
        counts = t.less_equal(t.reshape(order, N, 1, size), columns)
        reached = t.cumsum(t.where(counts, weights, 0.0), 2)
        half = t.mul(t.take(reached, np.array([size - 1]), axis=2), 0.5)
        median = t.argmax(t.logical_and(counts, t.less_equal(half, reached)), 2)
        medians = t.take_along(t.take_along(x, order), median)
        return medians if self.staged else t.reshape(medians, N)
