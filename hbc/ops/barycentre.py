"""A row as a weighted mean of its neighbours."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, TensorType
from hbc.ops import tensor as t


@operator
class Barycentre(Operator):
    """y[N, k] = w / Σ w with (G + R · I) w = 1, where G = d · dᵀ of the differences d[N, k, F], and R = reg · trace G, or reg
    where the trace is 0; all f64 (sklearn.manifold._locally_linear.barycenter_weights).

    No eigenvalue is below reg times the trace, so that different ways to solve differ by about k · 1e-16 / reg.
    """

    reg: float

    def infer(self, d: TensorType) -> TensorType:
        if d.dtype != "f64" or len(d.shape) != 3:
            raise TypeError("the operand must be f64[N, k, F]")
        return TensorType(d.dtype, d.shape[:2])

    def evaluate(self, d: Array) -> Array:
        g = d @ d.transpose(0, 2, 1)
        trace = np.trace(g, axis1=1, axis2=2)
        places = np.arange(d.shape[1])
        g[:, places, places] += np.where(trace > 0, self.reg * trace, self.reg)[:, None]
        w = np.linalg.solve(g, np.ones((*d.shape[:2], 1)))[:, :, 0]
        return np.asarray(w / w.sum(axis=1, keepdims=True))

    def lower(self, d: Node) -> Node:
        """Gauss-Jordan elimination without pivoting, which positive definite matrices do not need. Columns that are done are
        dropped."""
        count = int(d.type.shape[1])
        rows = [t.sum_(t.mul(d, t.take(d, np.array([i]), axis=1)), 2) for i in range(count)]
        eye = np.eye(count)
        trace = t.sum_(t.concat([t.take(row, np.array([i]), axis=1) for i, row in enumerate(rows)]), 1, keepdims=True)
        ridge = t.where(t.less(0.0, trace), t.mul(trace, self.reg), self.reg)
        rows = [t.add(row, t.mul(ridge, eye[i : i + 1])) for i, row in enumerate(rows)]
        m = t.concat([t.reshape(t.concat([row, t.add(t.mul(ridge, 0.0), 1.0)]), "N", 1, count + 1) for row in rows])
        for i in range(count):
            onward = np.arange(1, count + 1 - i)
            pivot_row = t.take(m, np.array([i]), axis=1)
            pivot_row = t.div(t.take(pivot_row, onward, axis=2), t.take(pivot_row, np.array([0]), axis=2))
            others = t.sub(t.take(m, onward, axis=2), t.mul(t.take(m, np.array([0]), axis=2), pivot_row))
            m = t.where(t.constant(eye[i].reshape(1, count, 1) == 1), pivot_row, others)
        w = t.reshape(m, "N", count)
        return t.div(w, t.sum_(w, 1, keepdims=True))
