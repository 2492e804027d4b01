"""Linear maps, and the functions that make probabilities of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hbc.ir.graph import Node, Operator, at_least_one, has_nan, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.rows import Rows
from hbc.ir.types import Array, TensorType, require, type_of
from hbc.ops import tensor as t
from hbc.ops.functions import CExponential, by_c_library


@operator
class Linear(Operator):
    """y[N, K] = x[N, F] · coef[F, K] + intercept[K]; all of one float dtype."""

    coef: Array
    intercept: Array

    rows = "takes"

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

    def of_rows(self, x: Rows) -> Array:
        return x.matmul(self.coef) + self.intercept

    def reads(self, kept: Array, inputs: Sequence[Node], finite: bool = False) -> tuple[Array, ...]:
        if not finite:  # 0 · ∞ is NaN
            return (np.arange(len(self.coef)),)
        return (at_least_one(np.flatnonzero(self.coef[:, kept].any(axis=1))),)

    def narrowed(self, kept: Array, columns: Sequence[Array], inputs: Sequence[Node]) -> tuple[Operator, Array]:
        return Linear(self.coef[np.ix_(columns[0], kept)], self.intercept[kept]), kept

    def lower(self, x: Node) -> Node:
        return t.add(t.matmul(x, self.coef), self.intercept)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return bounds[0] @ magnitudes(self.coef) + magnitudes(self.intercept)


@operator
class TableSum(Operator):
    """y[N, K] = Σ_c table[places[N, c], K]: the product of one-hot codes and weights. Places are i32 or i64, in range, at least one a row;
    the table is float. The order of the sum is the compiler's."""

    table: Array

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.table)

    def infer(self, places: TensorType) -> TensorType:
        table = type_of(self.table)
        require(places.dtype in ("i32", "i64") and len(places.shape) == 2 and places.columns > 0, f"places are {places}")
        require(table.is_float and len(table.shape) == 2, f"table is {table}")
        return TensorType(table.dtype, (places.shape[0], table.columns))

    def evaluate(self, places: Array) -> Array:
        total = self.table.take(places[:, 0], axis=0)
        for column in range(1, places.shape[1]):
            total += self.table.take(places[:, column], axis=0)
        return total

    def lower(self, places: Node) -> Node:
        if self.table.shape[1] == 1:
            return t.sum_(t.take(self.table[:, 0], places, axis=0), axis=1, keepdims=True)
        return t.sum_(t.take(self.table, places, axis=0), axis=1)

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {0: range(len(self.table))}

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return node.inputs[0].type.columns * magnitudes(self.table).max(axis=0, initial=0.0)


@operator
class Softmax(Operator):
    """y[N, …, K] = e^(x - max x) / Σ e^(x - max x) along K; dtype kept (sklearn.utils.extmath.softmax)."""

    probability = True

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or len(x.shape) < 2:
            raise TypeError("the operand must be floats of two axes or more")
        return x

    def evaluate(self, x: Array) -> Array:
        shifted = np.exp(x - x.max(axis=-1, keepdims=True))
        return shifted / shifted.sum(axis=-1, keepdims=True)

    def lower(self, x: Node) -> Node:
        axis = len(x.type.shape) - 1
        shifted = t.exp(t.sub(x, t.max_(x, axis=axis, keepdims=True)))
        return t.div(shifted, t.sum_(shifted, axis=axis, keepdims=True))


@operator
class Logistic(Operator):
    """y = 1 / (1 + e^-x); float dtype kept. It is 0 where e^-x overflows, so that its logarithm is -inf (scipy.special.expit).

    `exact`: in compiled code that calls the C library, the exponential is this library's, as it is in the source."""

    exact: bool = False

    columnwise = True
    probability = True

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float:
            raise TypeError("the operand must be float")
        return x

    def evaluate(self, x: Array) -> Array:
        one = x.dtype.type(1)
        return one / (one + (by_c_library("exp", -x) if self.exact else np.exp(-x)))

    def lower(self, x: Node) -> Node:
        exp = CExponential() if self.exact else t.exp
        return t.div(1.0, t.add(exp(t.neg(x)), 1.0))


@operator
class LogSoftmax(Operator):
    """y[N, K] = x - ln Σ e^x along K, computed with the largest x taken out of the sum. NaN (-inf - -inf) where all x are -inf.
    Float dtype kept (sklearn.utils.fixes._logsumexp)."""

    def infer(self, x: TensorType) -> TensorType:
        if not x.is_float or len(x.shape) != 2:
            raise TypeError("the operand must be a float matrix")
        return x

    def evaluate(self, x: Array) -> Array:
        largest = x.max(axis=1, keepdims=True)
        is_largest = x == largest
        count = is_largest.sum(axis=1, keepdims=True, dtype=x.dtype)
        shift = np.where(np.abs(largest) < np.inf, largest, x.dtype.type(0))
        total = np.exp(np.where(is_largest, x.dtype.type(-np.inf), x) - shift).sum(axis=1, keepdims=True)
        total = np.where(total == 0, total, total / count)
        return x - (np.log1p(total) + np.log(count) + largest)

    def lower(self, x: Node) -> Node:
        return t.sub(x, log_sum_exp(x))

    def never_positive(self, inputs: Sequence[Node]) -> bool:
        return True

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.full(node.type.width, 2 * bounds[0].max() + np.log(node.type.width))


def log_sum_exp(x: Node) -> Node:
    """ln Σ e^x along the columns, [N, 1], computed with the largest x taken out of the sum; -inf where all x are -inf."""
    largest = t.max_(x, 1, keepdims=True)
    is_largest = t.equal(x, largest)
    count = t.sum_(t.cast(is_largest, x.type.dtype), 1, keepdims=True)
    shift = t.where(t.less(t.absolute(largest), np.inf), largest, 0.0)
    total = t.sum_(t.exp(t.sub(t.where(is_largest, -np.inf, x), shift)), 1, keepdims=True)
    total = t.where(t.equal(total, 0.0), total, t.div(total, count))
    return t.add(t.add(t.log1p(total), t.log(count)), largest)
