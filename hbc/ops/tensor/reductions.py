"""Tensor operators that compute one number from all those along an axis, or running sums of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.graph import Node, operator
from hbc.ir.spans import Span
from hbc.ir.types import Array, TensorType, require
from hbc.ops.tensor.base import TensorOperator


class Reduction(TensorOperator):
    """Along one axis (never the rows'), which goes away or stays with length 1."""

    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TensorType:
        require(0 <= self.axis < len(x.shape), f"there is no axis {self.axis}")
        require(not (x.batched and self.axis == 0), "rows cannot be reduced")
        return TensorType(x.dtype, (*x.shape[: self.axis], *(1,) * self.keepdims, *x.shape[self.axis + 1 :]))


@operator
class Sum(Reduction):
    """y = Σ x along axis; dtype kept. `ordered`: terms are added strictly in index order, so that the bits are those of a
    plain loop (the sum over trees, where an exact tie decides a class label)."""

    axis: int
    keepdims: bool = False
    ordered: bool = False

    keeps_sign = True

    def evaluate(self, x: Array) -> Array:
        if not self.ordered:
            return x.sum(axis=self.axis, keepdims=self.keepdims, dtype=x.dtype)
        total = np.zeros_like(x.take(0, self.axis)) if x.shape[self.axis] else x.sum(axis=self.axis, dtype=x.dtype)
        for index in range(x.shape[self.axis]):
            total = total + x.take(index, self.axis)
        return np.expand_dims(total, self.axis) if self.keepdims else total

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        shape = node.inputs[0].type.shape
        if self.axis == len(shape) - 1:
            return np.full(node.type.width, bounds[0].sum())
        return bounds[0] * int(shape[self.axis])


class ExtremeOf(Reduction):
    """The largest or the smallest number along an axis."""

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0] if node.type.width == len(bounds[0]) else np.full(node.type.width, bounds[0].max(initial=0.0))


@operator
class Max(ExtremeOf):
    """y = the largest along axis; NaN if any is NaN"""

    axis: int
    keepdims: bool = False

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.max(axis=self.axis, keepdims=self.keepdims))


@operator
class Min(ExtremeOf):
    """y = the smallest along axis; NaN if any is NaN"""

    axis: int
    keepdims: bool = False

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.min(axis=self.axis, keepdims=self.keepdims))


@operator
class CumSum(TensorOperator):
    """y = the sums of x's first 1, 2, … elements along axis, added strictly in index order; f64 (PyTorch adds f32 in f64)"""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "f64" and 0 <= self.axis < len(x.shape), f"the operand must be f64 with an axis {self.axis}")
        require(not (x.batched and self.axis == 0), "rows cannot be added up")
        return x

    def evaluate(self, x: Array) -> Array:
        return np.cumsum(x, axis=self.axis)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.width, bounds[0].max() * int(node.type.shape[self.axis]))


@operator
class ArgMax(TensorOperator):
    """y = the index of the largest along axis, i64; the first of equals, and the first NaN if there is one"""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        require(0 <= self.axis < len(x.shape) and not (x.batched and self.axis == 0), "rows cannot be reduced")
        return TensorType("i64", (*x.shape[: self.axis], *x.shape[self.axis + 1 :]))

    def evaluate(self, x: Array) -> Array:
        return np.asarray(x.argmax(axis=self.axis))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.width, float(node.inputs[0].type.shape[self.axis]))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return 0, int(node.inputs[0].type.shape[self.axis]) - 1
