"""Rows as mixtures of non-negative components, by both solvers of NMF. The host iterates as the source does, all rows together."""

from __future__ import annotations

import warnings
from operator import mul
from typing import Any, Protocol

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Operator, operator
from hbc.ir.rows import Rows
from hbc.ir.types import Array, TensorType, type_of

ROWS_AT_ONCE = 8192
"""Rows of a block in coordinate descent: with 8 components a block is 512 KiB. (With 1,024 rows, numpy's calls take most of the
time.)"""
SCALARS = 128
"""Up to this number of rows times (5 + components), Python's numbers take less time than numpy's calls."""
LEAST = np.finfo(np.float32).eps  # EPSILON of sklearn.decomposition._nmf


def _require_matrix(x: TensorType) -> None:
    if not x.is_float or len(x.shape) != 2:
        raise TypeError("the operand must be a float matrix")


def _warn_not_converged(iterations: int) -> None:
    # scikit-learn's ConvergenceWarning is a UserWarning; saved models run without scikit-learn.
    message = f"Maximum number of iterations {iterations} reached. Increase it to improve convergence."
    warnings.warn(message, UserWarning, stacklevel=2)


@operator
class CoordinateDescent(Operator):
    """y[N, K] ≥ 0 that minimizes ½ |y · H - x|² + l1 Σ y + ½ l2 Σ y², from products[N, K] = x · Hᵀ and gram[K, K] = H · Hᵀ + l2 I,
    of one float dtype. It goes coordinate by coordinate from y = 0, until the change that all rows together would make is `tol`
    of the first one (sklearn.decomposition._nmf._fit_coordinate_descent). The coordinates come in random order by `seed`, or by
    number (-1).

    All sums have the source's order, bit for bit. In float32 the sum over all rows, which says when to stop, is itself off by
    1e-5.
    """

    gram: Array
    l1: float
    tol: float
    max_iter: int
    seed: int = -1

    mixes_rows = True
    removes_missing = True

    def infer(self, products: TensorType) -> TensorType:
        _require_matrix(products)
        if type_of(self.gram) != TensorType(products.dtype, (products.columns,) * 2):
            raise TypeError(f"gram is {type_of(self.gram)}")
        return products

    def evaluate(self, products: Array) -> Array:
        count = products.shape[1]
        descent = self.descent(products - products.dtype.type(self.l1))
        rng = np.random.RandomState(self.seed) if self.seed >= 0 else None
        order, iteration, first = np.arange(count), 0, 0.0
        for iteration in range(1, self.max_iter + 1):
            change = descent.descend(order if rng is None else rng.permutation(count))
            first = change if iteration == 1 else first
            if first == 0 or change / first <= self.tol:
                break
        if iteration == self.max_iter and self.tol > 0:
            _warn_not_converged(iteration)
        return descent.result()

    def descent(self, products: Array) -> Descent:
        """The descent of some rows, given products from which l1 is already subtracted. (The compiled form of this operator
        overrides it.)"""
        few = len(products) == 1 or len(products) * (products.shape[1] + 5) <= SCALARS
        return _Scalars(self.gram, products) if few else _Blocks(self.gram, products)


class Descent(Protocol):
    """The coordinates of some rows. They are 0 at first."""

    def descend(self, order: Array) -> float:
        """Change each coordinate once, in the order i64[K]. Returns Σ |gradient|, without coordinates that are 0 and would become
        smaller."""
        ...

    def result(self) -> Array:
        """y[N, K]"""
        ...


class _Scalars:
    """The coordinates of a few rows, as Python's numbers (float64) or numpy's (float32). One row of 10 components takes 7 µs an
    iteration this way, and 60 with arrays."""

    def __init__(self, gram: Array, products: Array) -> None:
        self.dtype, self.shape = products.dtype, products.shape
        self.gram, self.products, ((self.zero,),) = map(_numbers, (gram, products, np.zeros((1, 1), self.dtype)))
        self.y = [[self.zero] * len(gram) for _ in products]

    def descend(self, order: Array) -> float:
        change = zero = self.zero
        for i in order.tolist():
            row, own = self.gram[i], self.gram[i][i]
            for y, products in zip(self.y, self.products, strict=True):
                gradient = sum(map(mul, row, y), -products[i])
                if y[i] != 0 or gradient < 0:
                    change += abs(gradient)
                if own != 0:
                    y[i] = max(y[i] - gradient / own, zero)
        return float(change)

    def result(self) -> Array:
        return np.array(self.y, self.dtype).reshape(self.shape)


def _numbers(x: Array) -> list[list[Any]]:
    return [row.tolist() if row.dtype == np.float64 else list(row) for row in x]


class _Blocks:
    """The coordinates of many rows, a block at a time: y[1 + components, rows of the block]. y[0] holds the products, whose factor
    -1 makes them the first term of a gradient. einsum adds in that order where there is more than one row, bit for bit as a
    loop does, in 1.5 times BLAS' time (one call for each term: 4 times)."""

    def __init__(self, gram: Array, products: Array) -> None:
        self.factors = np.concatenate([np.full_like(gram[:, :1], -1), gram], axis=1)
        parts = np.array_split(products, -(-len(products) // ROWS_AT_ONCE))
        self.products = [np.ascontiguousarray(part.T) for part in parts]
        self.y = [np.zeros((1 + len(gram), len(part)), gram.dtype) for part in parts]
        self.change = np.empty(products.shape[::-1], products.dtype)
        # Arrays, since with plain numbers each call of numpy takes 1.3 instead of 1 µs.
        self.zero, self.infinite = np.zeros((), gram.dtype), np.full((), np.inf, gram.dtype)

    def descend(self, order: Array) -> float:
        start = 0
        with np.errstate(invalid="ignore"):
            for y, products in zip(self.y, self.products, strict=True):
                stop = start + y.shape[1]
                for place, i in enumerate(order.tolist()):
                    y[0] = products[i]
                    self._coordinate(i, y, self.change[place, start:stop])
                start = stop
        changes = self.change.reshape(-1)
        np.abs(changes, out=changes)
        return float(np.add.accumulate(changes, out=changes)[-1])

    def _coordinate(self, i: int, y: Array, change: Array) -> None:
        own, mine = self.factors[i, 1 + i, ...], y[1 + i]
        gradient = np.einsum("k,kn->n", self.factors[i], y, out=change)
        # A coordinate of 0 cannot become smaller: its gradient is at most 0 · inf = NaN, which fmax makes 0. (With a mask, whose bits
        # are random, an iteration of 20,000 rows and 10 components takes 2.8 ms instead of 1.9.)
        step = np.multiply(mine, self.infinite)
        np.fmax(step, self.zero, out=step)
        np.minimum(gradient, step, out=gradient)
        if own != 0:
            np.divide(gradient, own, out=step)
            np.subtract(mine, step, out=step)
            np.maximum(step, self.zero, out=mine)

    def result(self) -> Array:
        return np.ascontiguousarray(np.concatenate([y[1:].T for y in self.y]))


@operator
class MultiplicativeUpdates(Operator):
    """y[N, K] ≥ 0 that makes the beta-divergence of x[N, F] and y · H[K, F] small, together with l1 Σ y + ½ l2 Σ y². y has x's
    dtype.

    It starts from √(mean of x / K) and multiplies y by the ratio of the gradient's parts. It ends when ten steps have reduced
    the divergence of all rows by at most `tol` of the first one (sklearn.decomposition._nmf._fit_multiplicative_update), or, if
    `online`, when |y - last y| ≤ tol |y| (MiniBatchNMF._solve_W). Rows are computed as the source computes sparse matrices.
    """

    components: Array
    beta: float
    l1: float
    l2: float
    tol: float
    max_iter: int
    online: bool = False

    mixes_rows = True
    removes_missing = True
    rows = "takes"

    def infer(self, x: TensorType) -> TensorType:
        _require_matrix(x)
        if self.components.ndim != 2 or self.components.shape[1] != x.columns or self.components.dtype.kind != "f":
            raise TypeError(f"components are {type_of(self.components)}")
        return TensorType(x.dtype, (x.shape[0], len(self.components)))

    def evaluate(self, x: Array) -> Array:
        return self._solved(x)

    def of_rows(self, x: Rows) -> Array:
        return self._solved(x if x.unique else Rows.from_dense(x.dense()))

    def _solved(self, x: Array | Rows) -> Array:
        numbers = x.data if isinstance(x, Rows) else x
        mean = numbers.mean() if isinstance(x, np.ndarray) else numbers.dtype.type(numbers.sum() / max(len(x) * x.width, 1))
        y = np.full((len(x), len(self.components)), np.sqrt(mean / len(self.components)), numbers.dtype)
        return self._until_still(x, y) if self.online else self._until_no_better(x, y)

    def _until_still(self, x: Array | Rows, y: Array) -> Array:
        kept: dict[str, Array] = {}
        other = np.empty_like(y)
        for _ in range(self.max_iter):
            y, other = self._step(x, y, kept, out=other), y
            size, change = np.linalg.norm(y), np.linalg.norm(np.subtract(y, other, out=other))
            if not np.isfinite(size) and not np.isfinite(y).all():
                advice = "The source library stops at it: leave out rows of negative numbers."
                found = f"rows for which it computes the weight {y[~np.isfinite(y)][0]}"
                raise InvalidInputError(found=found, expected="rows that the components can make up", advice=advice)
            if self.tol > 0 and change / size <= self.tol:  # never, if all are zeros
                break
        return y

    def _until_no_better(self, x: Array | Rows, y: Array) -> Array:
        first = last = self._error(x, y)
        kept: dict[str, Array] = {}
        iteration = 0
        for iteration in range(1, self.max_iter + 1):
            self._step(x, y, kept, out=y)
            if self.beta < 1:
                y[y < np.finfo(np.float64).eps] = 0.0
            if self.tol > 0 and iteration % 10 == 0:
                error = self._error(x, y)
                with np.errstate(invalid="ignore", divide="ignore"):  # the first is 0 for rows of zeros
                    reduced = np.divide(last - error, first)
                if reduced < self.tol:
                    break
                last = error
        if iteration == self.max_iter and self.tol > 0:
            _warn_not_converged(iteration)
        return y

    @property
    def _gamma(self) -> float:
        """The exponent of a step that never overshoots [Fevotte 2011]."""
        return 1.0 / (2.0 - self.beta) if self.beta < 1 else 1.0 / (self.beta - 1.0) if self.beta > 2 else 1.0

    def _step(self, x: Array | Rows, y: Array, kept: dict[str, Array], out: Array) -> Array:
        """One update of y (_multiplicative_update_w). `kept` holds terms that stay the same from step to step, and memory to
        reuse."""
        h, beta = self.components, self.beta
        if beta == 2:
            if not kept:
                kept["products"], kept["gram"] = _matmul(x, h.T), h @ h.T
                kept["ratio"] = np.empty_like(kept["products"])
            numerator, ratio = kept["products"], kept["ratio"]
            denominator = np.matmul(y, kept["gram"], out=ratio)
        else:
            fitted = _fitted(x, y, h)
            # The source adds l1 to the sums themselves, which NMF (not MiniBatchNMF) keeps: so they grow from step to step.
            sums = (h.sum(axis=1) if self.online else kept.setdefault("sums", h.sum(axis=1)))[np.newaxis]
            denominator = self._denominator(x, y, fitted) if beta != 1 else sums
            if beta < 2:
                fitted[fitted < LEAST] = LEAST
            numbers = x.data if isinstance(x, Rows) else x
            if beta == 1:
                np.divide(numbers, fitted, out=fitted)
            else:
                if beta == 0:
                    fitted **= -1
                    fitted **= 2
                else:
                    fitted **= beta - 2
                fitted *= numbers
            numerator = ratio = _matmul(x.with_data(fitted) if isinstance(x, Rows) else fitted, h.T)
        if self.l1 > 0:
            denominator += self.l1
        if self.l2 > 0:
            denominator = denominator + self.l2 * y
        denominator[denominator == 0] = LEAST
        np.divide(numerator, denominator, out=ratio)
        if self._gamma != 1:
            ratio **= self._gamma
        return np.multiply(y, ratio, out=out)

    def _denominator(self, x: Array | Rows, y: Array, fitted: Array) -> Array:
        """(y · H)^(β - 1) · Hᵀ. For Rows, whose `fitted` has only their entries, it is computed for a few rows at a time."""
        h, power = self.components, self.beta - 1
        if not isinstance(x, Rows):
            return _raised(fitted.copy(), power) @ h.T
        result = np.empty(y.shape)
        for i in range(0, len(y), 1024):
            result[i : i + 1024] = _raised(y[i : i + 1024] @ h, power) @ h.T
        return result

    def _error(self, x: Array | Rows, y: Array) -> float:
        """√(2 · the divergence of all rows) (_beta_divergence)."""
        h, beta = self.components, self.beta
        if beta == 2 and isinstance(x, Rows):
            norms = np.dot(x.data, x.data) + _dot(np.linalg.multi_dot([y.T, y, h]), h) - 2.0 * _dot(_matmul(x, h.T), y)
            return float(np.sqrt(norms))
        if beta == 2:
            difference = (x - y @ h).ravel()
            return float(np.sqrt(np.dot(difference, difference)))
        whole = None if isinstance(x, Rows) else y @ h
        numbers, fitted = (x.data, _fitted(x, y, h)) if isinstance(x, Rows) else (x.ravel(), _flat(whole))
        some = numbers > LEAST
        numbers, fitted = numbers[some], fitted[some]
        fitted[fitted < LEAST] = LEAST
        if beta == 1:
            total = np.dot(np.sum(y, axis=0), np.sum(h, axis=1))
            result = np.dot(numbers, np.log(numbers / fitted)) + (total - numbers.sum())
        elif beta == 0:
            ratio = numbers / fitted
            result = np.sum(ratio) - len(y) * h.shape[1] - np.sum(np.log(ratio))
        else:
            total = sum(np.sum((y @ part) ** beta) for part in h.T) if whole is None else np.sum(whole**beta)
            result = (numbers**beta).sum() - beta * np.dot(numbers, fitted ** (beta - 1)) + total * (beta - 1)
            result /= beta * (beta - 1)
        return float(np.sqrt(2 * max(result, 0)))


def _matmul(x: Array | Rows, w: Array) -> Array:
    return x.matmul(w) if isinstance(x, Rows) else x @ w


def _flat(x: Array | None) -> Array:
    assert x is not None
    return x.ravel()


def _dot(a: Array, b: Array) -> float:
    return float(np.dot(a.ravel(), b.ravel()))


def _fitted(x: Array | Rows, y: Array, h: Array) -> Array:
    """y · H; for Rows only at their entries, in float64 (_special_sparse_dot)."""
    if not isinstance(x, Rows):
        return y @ h
    found = np.empty(len(x.data))
    step = max(y.shape[1], len(found) // y.shape[1])
    for i in range(0, len(found), step):
        part = slice(i, i + step)
        found[part] = np.multiply(y[x.row[part]], h.T[x.indices[part]]).sum(axis=1)
    return found


def _raised(fitted: Array, power: float) -> Array:
    if power < 0:
        fitted[fitted < LEAST] = LEAST
    fitted **= power
    return fitted
