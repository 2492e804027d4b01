"""Linear maps and what follows them."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node, Operator, has_nan, operator
from hbc.ir.types import Array, TensorType, type_of
from hbc.ops import tensor as t


@operator
class Linear(Operator):
    """y[N, K] = x[N, F] · coef[F, K] + intercept[K]; all of one float dtype."""

    coef: Array
    intercept: Array

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.coef, self.intercept)

    def infer(self, x: TensorType) -> TensorType:
        coef, intercept = type_of(self.coef), type_of(self.intercept)
        if not x.is_float or not x.dtype == coef.dtype == intercept.dtype:
            raise TypeError(f"coef is {coef}, intercept {intercept}")
        if x.columns != coef.shape[0] or intercept.shape != coef.shape[1:]:
            raise TypeError(f"coef is {coef}, intercept {intercept}")
        return TensorType(x.dtype, (x.shape[0], coef.columns))

    def evaluate(self, x: Array) -> Array:
        return x @ self.coef + self.intercept

    def lower(self, x: Node) -> Node:
        return t.add(t.matmul(x, self.coef), self.intercept)


@operator
class Softmax(Operator):
    """y[N, K] = e^(x - max x) / Σ e^(x - max x) along K; dtype kept (sklearn.utils.extmath.softmax)."""

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or len(x.shape) != 2:
            raise TypeError("the operand must be a float matrix")
        return x

    def evaluate(self, x: Array) -> Array:
        shifted = np.exp(x - x.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)

    def lower(self, x: Node) -> Node:
        shifted = t.exp(t.sub(x, t.max_(x, axis=1, keepdims=True)))
        return t.div(shifted, t.sum_(shifted, axis=1, keepdims=True))
