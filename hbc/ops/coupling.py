"""Sums for classes and for pairs of classes, and the probabilities of classes from those of pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType
from hbc.ops import tensor as t


def class_pairs(classes: int) -> tuple[Array, Array]:
    """The two classes i < j of each pair, i64[P] each, in the order (0, 1), (0, 2), …, which is libsvm's."""
    first, second = np.triu_indices(classes, 1)
    return first, second


class OfClasses:
    """What operators have in common whose columns belong to classes: those of a class stand together, counts[c] of them."""

    counts: tuple[int, ...]

    @property
    def starts(self) -> Array:
        """The first column of each class, i64[K]."""
        return np.cumsum(self.counts) - self.counts

    @property
    def columns(self) -> list[Array]:
        """The columns of each class, i64[counts[c]]."""
        return np.split(np.arange(sum(self.counts)), self.starts[1:])


@operator
class PairSums(OfClasses, Operator):
    """y[N, P] f64 = for each pair i < j of K classes, in the order (0, 1), (0, 2), …: the sum over the columns v of class i of x[N, v] ·
    weights[j - 1, v], and then over those of class j of x[N, v] · weights[i, v]. x and weights are f32, and so is each product. The
    products are added in f64, one after the other. The columns of a class stand together, counts[c] of them; each pair has one.

    As sums of its lowering, the pairs of 50 classes took TVM 47 s to compile, and numpy 24 s for 1,797 rows.
    """

    counts: tuple[int, ...]
    weights: Array

    @property
    def pairs(self) -> tuple[Array, Array]:
        """The two classes of each pair, i64[P] each."""
        return class_pairs(len(self.counts))

    def infer(self, x: TensorType) -> TensorType:
        total = sum(self.counts)
        if x.dtype != "f32" or self.weights.dtype != np.float32 or x.columns != total or len(self.counts) < 2:
            raise TypeError(f"the operand must be f32[N, {total}], of two classes or more, and the weights f32")
        if self.weights.shape != (len(self.counts) - 1, total) or min(self.counts) < 0 or sorted(self.counts)[1] == 0:
            raise TypeError(f"the weights are {self.weights.shape}, the counts {self.counts}")
        return TensorType("f64", (x.shape[0], len(self.pairs[0])))

    def evaluate(self, x: Array) -> Array:
        counts, starts, (first, second) = np.array(self.counts), self.starts, self.pairs
        sums = np.zeros((len(first), len(x)))
        columns = np.ascontiguousarray(x.T)
        for of, row in ((first, second - 1), (second, first)):
            for step in range(counts.max()):
                pairs = np.flatnonzero(counts[of] > step)
                column = starts[of[pairs]] + step
                sums[pairs] += columns[column] * self.weights[row[pairs], column][:, None]
        return np.ascontiguousarray(sums.T)

    def lower(self, x: Node) -> Node:
        """All pairs of one class i are one sum: a sum for each pair is slower by far. The sums of pairs with fewer columns than others end
        with zeros."""
        columns = self.columns
        sums = []
        for first, own in enumerate(columns[:-1]):
            others = range(first + 1, len(columns))
            sizes = np.array([len(own) + len(columns[other]) for other in others])
            places = np.zeros((len(sizes), sizes.max()), np.int64)
            weights = np.zeros(places.shape, np.float32)
            for row, other in enumerate(others):
                places[row, : sizes[row]] = np.concatenate([own, columns[other]])
                weights[row, : len(own)] = self.weights[other - 1, own]
                weights[row, len(own) : sizes[row]] = self.weights[first, columns[other]]
            values = t.take(x, places, axis=1)
            if sizes.min() < sizes.max():
                values = t.where(t.constant((np.arange(sizes.max()) < sizes[:, None])[None]), values, 0.0)
            sums.append(t.sum_(t.cast(t.mul(values, weights), "f64"), 2, ordered=True))
        return t.concat(sums)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.width, (bounds[0] * magnitudes(self.weights).max(axis=0)).sum())


@operator
class ClassProducts(OfClasses, Operator):
    """y[N, K · R] f64 = for each of K classes in order, and each r of R: the sum over the columns v of the class of x[N, v] · w[r, v].

    x is f64[N, V], the weights w f64[R, V]. The columns of a class stand together, counts[c] of them. The order of a sum is the compiler's.
    As K products of matrices, an SVC of 50 classes took TVM 94 s to compile.
    """

    counts: tuple[int, ...]
    weights: Array

    def infer(self, x: TensorType) -> TensorType:
        total = sum(self.counts)
        if (
            x.dtype != "f64"
            or self.weights.dtype != np.float64
            or x.columns != total
            or not self.counts
            or min(self.counts) < 0
        ):
            raise TypeError(f"the operand must be f64[N, {total}], of one class or more, and the weights f64")
        if self.weights.ndim != 2 or self.weights.shape[1] != total:
            raise TypeError(f"the weights are {self.weights.shape}, the counts {self.counts}")
        return TensorType("f64", (x.shape[0], len(self.counts) * len(self.weights)))

    def evaluate(self, x: Array) -> Array:
        return np.concatenate([x[:, own] @ self.weights[:, own].T for own in self.columns], axis=1)

    def lower(self, x: Node) -> Node:
        return t.concat([t.matmul(t.take(x, own, axis=1), self.weights[:, own].T) for own in self.columns])

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.concatenate([magnitudes(self.weights[:, own]) @ bounds[0][own] for own in self.columns])


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
        first, second = class_pairs(self.classes)
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
