"""Scalers: operators that move, stretch, clip or threshold each column, or divide a row by its norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Node, Operator, all_finite, always, has_nan, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.types import NUMPY_DTYPES, Array, DType, TensorType, dtype_name, require, type_of
from hbc.ops import tensor as t


def require_columns(x: TensorType, *parameters: Array | None) -> None:
    for parameter in parameters:
        fits = parameter is None or (parameter.ndim >= 1 and len(parameter) == x.columns)
        require(fits, f"a parameter is {'' if parameter is None else type_of(parameter)}, but there are {x.columns} columns")


def _step(function: np.ufunc, x: Array, parameter: Array) -> Array:
    """numpy's in-place `x op= parameter`: computed in the common dtype of both, and rounded to x's."""
    return function(x, parameter).astype(x.dtype)


def _lower_step(op: type[t.Binary], x: Node, parameter: Array) -> Node:
    common = dtype_name(np.result_type(NUMPY_DTYPES[x.type.dtype], parameter.dtype))
    return t.cast(op()(t.cast(x, common), t.constant(parameter, common)), x.type.dtype)


@operator
class Standardize(Operator):
    """y[N, F] = (x[N, F] - offset[F]) / scale[F]; x and y have one float dtype. A parameter of None is left out.

    Each step is computed in the common dtype of x and its parameter, and rounded to x's dtype (numpy's `x -= offset; x /=
    scale`).
    """

    offset: Array | None
    scale: Array | None

    columnwise = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.offset, self.scale)

    def monotone(self, *constants: Array | None) -> bool | Array:
        return all_finite(self.offset) & all_finite(self.scale, nonzero=True)

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be a float matrix")
        require_columns(x, self.offset, self.scale)
        return x

    def evaluate(self, x: Array) -> Array:
        if self.offset is not None:
            x = _step(np.subtract, x, self.offset)
        return x if self.scale is None else _step(np.divide, x, self.scale)

    def lower(self, x: Node) -> Node:
        if self.offset is not None:
            x = _lower_step(t.Sub, x, self.offset)
        return x if self.scale is None else _lower_step(t.Div, x, self.scale)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        bound = bounds[0] if self.offset is None else bounds[0] + magnitudes(self.offset)
        return bound if self.scale is None else bound / magnitudes(self.scale)


@operator
class Affine(Operator):
    """y[N, F] = x[N, F] · scale[F] + offset[F]; dtypes and rounding as in Standardize (numpy's `x *= scale; x += offset`)."""

    scale: Array
    offset: Array

    columnwise = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.scale, self.offset)

    def monotone(self, *constants: Array | None) -> bool | Array:
        return all_finite(self.offset) & all_finite(self.scale, nonzero=True)

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be a float matrix")
        require_columns(x, self.scale, self.offset)
        return x

    def evaluate(self, x: Array) -> Array:
        return _step(np.add, _step(np.multiply, x, self.scale), self.offset)

    def lower(self, x: Node) -> Node:
        return _lower_step(t.Add, _lower_step(t.Mul, x, self.scale), self.offset)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0] * magnitudes(self.scale) + magnitudes(self.offset)


@operator
class Clip(Operator):
    """y = x, at least `low` and at most `high` (rounded to x's float dtype); NaN stays NaN (numpy.clip)."""

    low: float
    high: float

    columnwise = True

    def monotone(self, *constants: Array | None) -> bool | Array:
        return self.low <= self.high

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float, "the operand must be float")
        return x

    def evaluate(self, x: Array) -> Array:
        return np.clip(x, x.dtype.type(self.low), x.dtype.type(self.high))

    def lower(self, x: Node) -> Node:
        return t.minimum(t.maximum(x, self.low), self.high)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.minimum(bounds[0], max(abs(self.low), abs(self.high)))


@operator
class Normalize(Operator):
    """y[N, F] = x[N, F] / norm(x)[N], where norm is "l1" Σ|x|, "l2" √Σx² or "max" max|x|. A row whose norm is below ten times the
    dtype's epsilon stays as it is (sklearn.preprocessing.normalize). Float dtype kept."""

    norm: str

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float and len(x.shape) == 2, "the operand must be a float matrix")
        return x

    def evaluate(self, x: Array) -> Array:
        if self.norm == "l2":
            norms = np.sqrt(np.einsum("ij,ij->i", x, x))
        else:
            norms = np.abs(x).sum(axis=1) if self.norm == "l1" else np.abs(x).max(axis=1)
        return x / np.where(norms < _least_norm(x.dtype), x.dtype.type(1), norms)[:, None]

    def lower(self, x: Node) -> Node:
        if self.norm == "l2":
            norms = t.sqrt(t.sum_(t.mul(x, x), axis=1, keepdims=True))
        else:
            reduce = t.sum_ if self.norm == "l1" else t.max_
            norms = reduce(t.absolute(x), axis=1, keepdims=True)
        small = t.less(norms, float(_least_norm(NUMPY_DTYPES[x.type.dtype])))
        return t.div(x, t.where(small, t.constant(np.ones((1, 1)), x.type.dtype), norms))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.ones(node.type.width)


def _least_norm(dtype: np.dtype[np.floating]) -> np.floating:
    return 10 * np.finfo(dtype).eps


@operator
class Binarize(Operator):
    """y = 1 where x > threshold, else 0, in x's dtype. The comparison is made in `dtype` (sklearn.preprocessing.binarize)."""

    threshold: float
    dtype: DType

    columnwise = True
    removes_missing = True
    monotone = always
    jumps = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        compared = NUMPY_DTYPES[self.dtype]
        return (x.astype(compared) > compared.type(self.threshold)).astype(x.dtype)

    def lower(self, x: Node) -> Node:
        return t.cast(t.less(t.constant(self.threshold, self.dtype), t.cast(x, self.dtype)), x.type.dtype)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.ones(node.type.width)
