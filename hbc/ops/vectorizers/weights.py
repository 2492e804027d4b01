"""Weights and norms of the entries of matrices that are mostly zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.rows import Rows
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType, require
from hbc.ops import tensor as t


@operator
class Entries(Operator):
    """y = x as Rows. Only the numbers that are not 0 are computed with, and they stay entries even if they become 0."""

    rows = "makes"
    columnwise = True
    keeps_values = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype != "str" and len(x.shape) == 2, "the operand must be a matrix of numbers")
        return x

    def rows_of(self, x: Array) -> Rows:
        return Rows.from_dense(x)

    def evaluate(self, x: Array) -> Array:
        return x

    def lower(self, x: Node) -> Node:
        return x

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0]


@operator
class Weigh(Operator):
    """y[N, F] = tf(x[N, F]) · idf[F], where tf(x) = x, or, if `sublinear`, ln x + 1 where x is not 0. Without idf that factor is
    left out. The product is made in the common dtype and rounded to x's (TfidfTransformer.transform)."""

    idf: Array | None
    sublinear: bool

    rows = "keeps"
    columnwise = True
    of_negative_only = True  # `creates_missing`: by the logarithm

    @property
    def creates_missing(self) -> bool:
        return self.sublinear

    @property
    def keeps_sign(self) -> bool:
        """True unless a weight is negative: ln x + 1 of a count is at least 1."""
        return self.idf is None or bool((self.idf >= 0).all())

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be a float matrix")
        require(self.idf is None or self.idf.shape == (x.columns,), "there must be a weight for every column")
        return x

    def of_rows(self, x: Rows) -> Rows:
        data = x.data
        if self.sublinear:
            data = np.log(data) + x.dtype.type(1)
        if self.idf is not None:
            data = (data * self.idf[x.indices]).astype(x.dtype)
        return x.with_data(data)

    def evaluate(self, x: Array) -> Array:
        y = np.where(x == 0, x, np.log(x) + x.dtype.type(1)) if self.sublinear else x
        return y if self.idf is None else (y * self.idf).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        y = t.where(t.equal(x, 0.0), x, t.add(t.log(x), 1.0)) if self.sublinear else x
        if self.idf is None:
            return y
        common: DType = "f32" if x.type.dtype == "f32" and self.idf.dtype == np.float32 else "f64"
        return t.cast(t.mul(t.cast(y, common), self.idf.astype(NUMPY_DTYPES[common])), x.type.dtype)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        return None if self.sublinear else bounds[0] * (1.0 if self.idf is None else magnitudes(self.idf))


@operator
class DivideByNorm(Operator):
    """y[N, F] = x[N, F] / norm(x)[N], where norm is "l1" Σ|x| or "l2" √Σx², summed in float64. A row of norm 0 stays as it is.
    Float dtype kept (sklearn.utils.sparsefuncs_fast.inplace_csr_row_normalize_l2; for dense matrices see Normalize)."""

    norm: str

    rows = "keeps"
    keeps_sign = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        return x

    def of_rows(self, x: Rows) -> Rows:
        sizes = np.abs(x.data) if self.norm == "l1" else x.data * x.data
        norms = np.bincount(x.row, sizes, len(x))
        norms = norms if self.norm == "l1" else np.sqrt(norms)
        norms = np.where(norms == 0, 1.0, norms)
        return x.with_data((x.data / norms[x.row]).astype(x.dtype))

    def evaluate(self, x: Array) -> Array:
        norms = np.abs(x).sum(1, np.float64) if self.norm == "l1" else np.sqrt((x * x).sum(1, np.float64))
        return (x / np.where(norms == 0, 1.0, norms)[:, None]).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        sizes = t.absolute(x) if self.norm == "l1" else t.mul(x, x)
        total = t.sum_(t.cast(sizes, "f64"), 1, keepdims=True)
        norms = total if self.norm == "l1" else t.sqrt(total)
        return t.cast(t.div(t.cast(x, "f64"), t.where(t.equal(norms, 0.0), 1.0, norms)), x.type.dtype)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.ones(node.type.width)
