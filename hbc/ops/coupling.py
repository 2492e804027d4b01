"""Probabilities of classes from probabilities of pairs of classes."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import operator
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.ops import tensor as t


@operator
class PairwiseCoupling(t.TensorOperator):
    """p[N, K] = the probabilities of K classes, from r[N, K(K - 1)/2] = the probabilities of class i against class j for i < j, in
    the order (0, 1), (0, 2), …; both f64, 0 < r < 1. With `single` both are f32, and each step is rounded to f32.

    With r_ji = 1 - r_ij, Q_tt = Σ_{j≠t} r_jt² and Q_tj = -r_jt · r_tj, p minimizes p · Q · p with Σp = 1. Sweeps over the
    classes start from p = 1/K. They end when no |(Qp)_t - p · Q · p| reaches 0.005/K, or after max(100, K) sweeps; 100
    sweeps with `single`. The number of sweeps shows in the result (`multiclass_probability` of libsvm and, `single`, of ONNX
    Runtime; Wu, Lin, Weng: Probability estimates for multi-class classification, 2004).
    """

    classes: int
    single: bool = False

    @property
    def dtype(self) -> DType:
        """That of the operand and the result."""
        return "f32" if self.single else "f64"

    @property
    def sweeps(self) -> int:
        """The most sweeps."""
        return 100 if self.single else max(100, self.classes)

    @property
    def tolerance(self) -> float:
        kind = NUMPY_DTYPES[self.dtype].type
        return float(kind(0.005) / kind(self.classes))

    @property
    def places(self) -> Array:
        """The column of r for each pair of classes in either order, i64[K, K]; 0 on the diagonal."""
        places = np.zeros((self.classes, self.classes), np.int64)
        first, second = np.triu_indices(self.classes, 1)
        places[first, second] = places[second, first] = np.arange(len(first))
        return places

    def infer(self, r: TensorType) -> TensorType:
        if r.dtype != self.dtype or self.classes < 2 or r.columns != self.classes * (self.classes - 1) // 2:
            raise TypeError(f"the operand must be {self.dtype} with a column for each pair of {self.classes} classes")
        return TensorType(self.dtype, (r.shape[0], self.classes))

    def evaluate(self, r: Array) -> Array:
        classes = self.classes
        found = np.full((len(r), classes), 1.0 / classes, r.dtype)
        against = r[:, self.places]  # [N, i, j]
        against = np.where(np.tri(classes, k=-1, dtype=bool), 1 - against, against)
        rows = np.arange(len(r))
        transposed = against.transpose(0, 2, 1)
        Q = -transposed * against
        every = np.arange(classes)
        transposed = np.where(np.eye(classes, dtype=bool), r.dtype.type(0), transposed)
        Q[:, every, every] = sum((transposed[:, :, j] ** 2 for j in range(classes)), np.zeros_like(found))
        p = found.copy()
        for _ in range(self.sweeps):
            Qp = sum((Q[:, :, j] * p[:, j, None] for j in range(classes)), np.zeros_like(p))
            pQp = sum((p[:, t] * Qp[:, t] for t in range(classes)), np.zeros(len(p), p.dtype))
            on = (np.abs(Qp - pQp[:, None]) >= self.tolerance).any(axis=1)
            if not on.all():
                found[rows[~on]] = p[~on]
                rows, Q, Qp, pQp, p = rows[on], Q[on], Qp[on], pQp[on], p[on]
            if not len(rows):
                break
            for i in range(classes):
                diff = (-Qp[:, i] + pQp) / Q[:, i, i]
                p[:, i] += diff
                whole = 1 + diff
                pQp = (pQp + diff * (diff * Q[:, i, i] + 2 * Qp[:, i])) / whole / whole
                Qp = (Qp + diff[:, None] * Q[:, i]) / whole[:, None]
                p /= whole[:, None]
        found[rows] = p
        return found
