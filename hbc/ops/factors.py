"""A row as a mixture of fixed parts: of the components of a factorisation, of topics, of neighbours. All but the last are found by
iterating, in numpy on the host, as the source does: how often decides the result, and the rows of a batch may decide it together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import reduce
from itertools import groupby, pairwise
from math import exp, log
from operator import add, mul
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.graph import Node, Operator, operator
from hbc.ir.rows import Rows
from hbc.ir.types import Array, TensorType, type_of
from hbc.ops import tensor as t

ROWS_AT_ONCE = 8192
"""Of coordinate descent: a block of 8 components is 512 KiB. (With 1,024 rows numpy's calls take most of the time.)"""
SCALARS = 128
"""Rows times (5 + components) up to which Python's numbers take less time than numpy's calls."""
DOCUMENTS = 1024
"""A block of them, whose words are looked up together."""
TOGETHER = 128
"""Documents that are iterated together: 100 words of 10 topics in each are 1 MiB."""
DENSE = 4
"""Words to one that occurs, up to which documents are multiplied as arrays."""
STACKED = 4096
"""Words times topics of a document up to which it is multiplied together with others of as many words, for which these are copied."""
FEW = 64
"""Numbers of which numpy's calls take longer than Python's, for digammas."""
LEAST = np.finfo(np.float32).eps  # EPSILON of sklearn.decomposition._nmf


def _require_matrix(x: TensorType) -> None:
    if not x.is_float or len(x.shape) != 2:
        raise TypeError("the operand must be a float matrix")


def _warn_not_converged(iterations: int) -> None:
    # scikit-learn's ConvergenceWarning is a UserWarning; saved models run without scikit-learn.
    message = f"Maximum number of iterations {iterations} reached. Increase it to improve convergence."
    warnings.warn(message, UserWarning, stacklevel=2)


# --- non-negative factors --------------------------------------------------------------------------------------------


@operator
class CoordinateDescent(Operator):
    """y[N, K] ≥ 0 with the least ½ |y · H - x|² + l1 Σ y + ½ l2 Σ y², from products[N, K] = x · Hᵀ and gram[K, K] = H · Hᵀ + l2 I, of
    one float dtype: coordinate by coordinate from y = 0, until what all rows together would change is `tol` of what it was at first
    (sklearn.decomposition._nmf._fit_coordinate_descent). The coordinates come in the order of `seed`, or by number (-1).

    Everything is added up in the source's order, and is bit for bit its own: in float32 the sum over all rows, which says when to
    stop, is off by 1e-5.
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
        products = products - products.dtype.type(self.l1)
        count = products.shape[1]
        few = len(products) == 1 or len(products) * (count + 5) <= SCALARS
        state = _Scalars(self.gram, products) if few else _Blocks(self.gram, products)
        rng = np.random.RandomState(self.seed) if self.seed >= 0 else None
        iteration, first = 0, 0.0
        for iteration in range(1, self.max_iter + 1):
            order = np.arange(count) if rng is None else rng.permutation(count)
            change = state.descend(order.tolist())
            first = change if iteration == 1 else first
            if first == 0 or change / first <= self.tol:
                break
        if iteration == self.max_iter and self.tol > 0:
            _warn_not_converged(iteration)
        return state.result()


class _Scalars:
    """The coordinates of a few rows, as Python's (float64) or numpy's (float32) numbers: one row of 10 components takes 7 µs an
    iteration, arrays 60."""

    def __init__(self, gram: Array, products: Array) -> None:
        self.dtype, self.shape = products.dtype, products.shape
        self.gram, self.products, ((self.zero,),) = map(_numbers, (gram, products, np.zeros((1, 1), self.dtype)))
        self.y = [[self.zero] * len(gram) for _ in products]

    def descend(self, order: list[int]) -> float:
        change = zero = self.zero
        for i in order:
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
    """The coordinates of many rows, a block of them at a time: y[1 + components, rows of the block]. y[0] is for the products, with the
    factor -1 the first term of a gradient: einsum adds up in that order where there is more than one row, bit for bit as a loop
    does, in 1.5 times BLAS' time (a call for every term: 4 times)."""

    def __init__(self, gram: Array, products: Array) -> None:
        self.factors = np.concatenate([np.full_like(gram[:, :1], -1), gram], axis=1)
        parts = np.array_split(products, -(-len(products) // ROWS_AT_ONCE))
        self.products = [np.ascontiguousarray(part.T) for part in parts]
        self.y = [np.zeros((1 + len(gram), len(part)), gram.dtype) for part in parts]
        self.change = np.empty(products.shape[::-1], products.dtype)
        # Arrays: of numbers, each of numpy's calls takes 0.3 µs more, of its 1.
        self.zero, self.infinite = np.zeros((), gram.dtype), np.full((), np.inf, gram.dtype)

    def descend(self, order: list[int]) -> float:
        start = 0
        with np.errstate(invalid="ignore"):
            for y, products in zip(self.y, self.products, strict=True):
                stop = start + y.shape[1]
                for place, i in enumerate(order):
                    y[0] = products[i]
                    self._coordinate(i, y, self.change[place, start:stop])
                start = stop
        changes = self.change.reshape(-1)
        np.abs(changes, out=changes)
        return float(np.add.accumulate(changes, out=changes)[-1])

    def _coordinate(self, i: int, y: Array, change: Array) -> None:
        own, mine = self.factors[i, 1 + i, ...], y[1 + i]
        gradient = np.einsum("k,kn->n", self.factors[i], y, out=change)
        # What is 0 cannot become less: its gradient is at most 0 · inf, which fmax makes 0. (With a mask, whose bits are random, an
        # iteration of 20,000 rows and 10 components takes 2.8 ms instead of 1.9.)
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
    """y[N, K] ≥ 0 with a small beta-divergence of x[N, F] and y · H[K, F], beside l1 Σ y + ½ l2 Σ y²: from √(mean of x / K) on, y is
    multiplied by the ratio of the gradient's parts, until the divergence of all rows has become less by no more than `tol` of the
    first one within ten steps (sklearn.decomposition._nmf._fit_multiplicative_update); if `online`, until |y - last y| ≤ tol |y|
    (MiniBatchNMF._solve_W). x of Rows are computed as the source does it with sparse matrices. y has x's dtype.
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
        last = y.copy()
        for _ in range(self.max_iter):
            self._step(x, y, {})
            if not np.isfinite(y).all():
                advice = "The source library stops at it: leave out rows of negative numbers."
                found = f"rows of which it computes the weight {y[~np.isfinite(y)][0]}"
                raise InvalidInputError(found=found, expected="rows that the components can make up", advice=advice)
            if self.tol > 0 and np.linalg.norm(y - last) / np.linalg.norm(y) <= self.tol:  # of zeros it is never
                break
            last[:] = y
        return y

    def _until_no_better(self, x: Array | Rows, y: Array) -> Array:
        first = last = self._error(x, y)
        kept: dict[str, Array] = {}
        iteration = 0
        for iteration in range(1, self.max_iter + 1):
            self._step(x, y, kept)
            if self.beta < 1:
                y[y < np.finfo(np.float64).eps] = 0.0
            if self.tol > 0 and iteration % 10 == 0:
                error = self._error(x, y)
                if (last - error) / first < self.tol:
                    break
                last = error
        if iteration == self.max_iter and self.tol > 0:
            _warn_not_converged(iteration)
        return y

    @property
    def _gamma(self) -> float:
        """The exponent of a step that never overshoots [Fevotte 2011]."""
        return 1.0 / (2.0 - self.beta) if self.beta < 1 else 1.0 / (self.beta - 1.0) if self.beta > 2 else 1.0

    def _step(self, x: Array | Rows, y: Array, kept: dict[str, Array]) -> None:
        """One update of y in place (_multiplicative_update_w). `kept`: what does not change from step to step."""
        h, beta = self.components, self.beta
        if beta == 2:
            if not kept:
                kept["products"], kept["gram"] = _matmul(x, h.T), h @ h.T
            numerator, denominator = kept["products"].copy(), y @ kept["gram"]
        else:
            fitted = _fitted(x, y, h)
            # The source adds l1 to the sums themselves, which NMF (not MiniBatchNMF) keeps: so they grow from step to step.
            sums = kept.setdefault("sums", h.sum(axis=1))[np.newaxis] if beta == 1 else None
            denominator = self._denominator(x, y, fitted) if sums is None else sums
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
            numerator = _matmul(x.with_data(fitted) if isinstance(x, Rows) else fitted, h.T)
        if self.l1 > 0:
            denominator += self.l1
        if self.l2 > 0:
            denominator = denominator + self.l2 * y
        denominator[denominator == 0] = LEAST
        numerator /= denominator
        if self._gamma != 1:
            numerator **= self._gamma
        y *= numerator

    def _denominator(self, x: Array | Rows, y: Array, fitted: Array) -> Array:
        """(y · H)^(β - 1) · Hᵀ; of Rows, whose `fitted` are at the entries only, a few rows at a time."""
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
    """y · H; of Rows at their entries, in float64 (_special_sparse_dot)."""
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


# --- topics ----------------------------------------------------------------------------------------------------------


@operator
class Topics(Operator):
    """y[N, K] = gamma / Σ_k gamma, of documents x[N, V], how often each word occurs, and words[K, V] = exp E[log β]: gamma = prior +
    θ · ((x / (θ · words + ε)) · wordsᵀ) with θ = exp(ψ(gamma) - ψ(Σ gamma)), from gamma = 1 on, until the mean change of a row's is below
    `tol` (sklearn.decomposition._lda._update_doc_distribution). All of one float dtype; every row is iterated for itself.

    Products are those of the source, row by row (numpy's dot of the words that occur), which float32 needs to stop where it stops;
    documents of float64 in which many words occur are multiplied together. Digammas are taken of many rows at once.
    """

    words: Array
    prior: float
    tol: float
    max_iter: int

    removes_missing = True
    rows = "takes"

    @property
    def in_numpy(self) -> bool:
        return True

    def infer(self, x: TensorType) -> TensorType:
        _require_matrix(x)
        if type_of(self.words).dtype != x.dtype or self.words.shape[1:] != (x.columns,):
            raise TypeError(f"words are {type_of(self.words)}")
        return TensorType(x.dtype, (x.shape[0], len(self.words)))

    def evaluate(self, x: Array) -> Array:
        def block(rows: Array) -> Array:
            if self._together(int(np.count_nonzero(rows)), rows.size):
                return self._gamma(len(rows), self._whole(rows))
            occurring = [np.flatnonzero(row) for row in rows]
            return self._of_each([(self._columns(found), row[found]) for found, row in zip(occurring, rows, strict=True)])

        return self._shares([block(rows) for rows in _blocks(x)])

    def of_rows(self, x: Rows) -> Array:
        x = x if x.unique else Rows.from_dense(x.dense())
        starts = x.indptr.tolist()
        found = []
        for documents in _blocks(np.arange(len(x))):
            start, stop = int(documents[0]), int(documents[-1]) + 1
            if self._together(starts[stop] - starts[start], len(documents) * x.width):
                found.append(self._gamma(len(documents), self._whole(x.dense(start, stop))))
            else:
                spans = [slice(*ends) for ends in pairwise(starts[start : stop + 1])]
                found.append(self._of_each([(self._columns(x.indices[span]), x.data[span]) for span in spans]))
        return self._shares(found)

    def _together(self, entries: int, size: int) -> bool:
        """Whether whole rows are multiplied: where every other of 50 words occurs it takes a fifth of the source's time."""
        return bool(self.words.dtype == np.float64 and entries * DENSE >= size)

    def _columns(self, found: Array) -> Array:
        """words[:, found], of float32 in the source's layout, by which numpy's dot adds up; row after row both products of a document of
        2,000 words and 50 topics take 38 µs instead of 54, and the copy 0.21 ms instead of 0.28."""
        return self.words.take(found, axis=1) if self.words.dtype == np.float64 else self.words[:, found]

    def _shares(self, found: list[Array]) -> Array:
        gamma = np.concatenate([np.empty((0, len(self.words)), self.words.dtype), *found])
        gamma /= gamma.sum(axis=1)[:, np.newaxis]
        return gamma

    def _whole(self, rows: Array) -> _Products:
        words, eps = self.words, np.finfo(self.words.dtype).eps
        return lambda theta, left: theta * ((rows[left] / (theta @ words + eps)) @ words.T)

    def _of_each(self, documents: list[tuple[Array, Array]]) -> Array:
        """Of each document the columns of `words` that occur, and how often."""
        order = np.argsort([len(counts) for _, counts in documents], kind="stable")
        gamma = self._gamma(len(documents), self._each([documents[i] for i in order]))
        result = np.empty_like(gamma)
        result[order] = gamma
        return result

    def _each(self, documents: list[tuple[Array, Array]]) -> _Products:
        """Documents by their length. Those of one length are multiplied by one call of numpy's, whose products are those of `dot` bit for
        bit: of 4 words and 10 topics each takes 0.15 µs instead of 1.9, of 100 words 0.66 instead of 2.3."""
        eps, topics = np.finfo(self.words.dtype).eps, len(self.words)
        lengths = [len(counts) for _, counts in documents]
        stacks = {}  # by length: the number of its first document, their words [n, length, topics] and counts [n, 1, length]
        for length, group in groupby(range(len(documents)), key=lengths.__getitem__):
            some = [documents[i] for i in group]
            if len(some) > 1 and min(length, topics) > 1 and length * topics <= STACKED:
                words, counts = np.stack([words.T for words, _ in some]), np.stack([counts for _, counts in some])
                stacks[length] = lengths.index(length), words, counts[:, np.newaxis]

        def products(theta: Array, left: Array) -> Array:
            result = np.empty_like(theta)
            numbers = left.tolist()
            by_length: dict[int, list[int]] = {}
            for place, number in enumerate(numbers):
                by_length.setdefault(lengths[number], []).append(place)
            for length, places in by_length.items():
                if length in stacks:
                    first, words, counts = stacks[length]
                    chosen = left[places] - first
                    some = words[chosen]
                    norm = np.matmul(theta[places, np.newaxis], some.transpose(0, 2, 1))
                    norm += eps
                    np.divide(counts[chosen], norm, out=norm)
                    result[places] = theta[places] * np.matmul(norm, some)[:, 0]
                    continue
                for place in places:
                    share, (words, counts) = theta[place], documents[numbers[place]]
                    norm = share.dot(words)
                    norm += eps
                    np.divide(counts, norm, out=norm)
                    np.multiply(share, norm.dot(words.T), out=result[place])
            return result

        return products

    def _gamma(self, documents: int, products: _Products) -> Array:
        """[documents, K]. Some are iterated together; where one is done, the next one enters."""
        dtype, count = self.words.dtype, len(self.words)
        prior, result = dtype.type(self.prior), np.ones((documents, count), dtype)
        first = np.exp(digamma(result[:1]) - digamma(np.full((1, 1), count, dtype)))
        left = np.arange(min(documents, TOGETHER) if self.max_iter else 0)
        gamma, theta, steps, entered = result[left], np.repeat(first, len(left), axis=0), np.zeros_like(left), len(left)
        while len(left):
            last, gamma = gamma, products(theta, left)
            gamma += prior
            steps += 1
            change = np.add.accumulate(np.abs(last - gamma), axis=1, dtype=np.float64)[:, -1] / count
            theta = _theta(gamma)
            done = (change < self.tol) | (steps == self.max_iter)
            if done.any():
                entering = np.arange(entered, min(entered + int(done.sum()), documents))
                entered += len(entering)
                result[left[done]] = gamma[done]
                going = ~done
                left, steps = np.append(left[going], entering), np.append(steps[going], np.zeros_like(entering))
                gamma, theta = (
                    np.append(gamma[going], result[entering], 0),
                    np.append(theta[going], first.repeat(len(entering), 0), 0),
                )
        return result


_Products = Callable[[Array, Array], Array]
"""(θ of some rows of a block, their numbers) -> θ · ((x / (θ · words + ε)) · wordsᵀ)"""


def _blocks(x: Array) -> list[Array]:
    return [x[i : i + DOCUMENTS] for i in range(0, len(x), DOCUMENTS)]


def _theta(gamma: Array) -> Array:
    """exp(ψ(gamma) - ψ(Σ gamma)) of each row."""
    if gamma.dtype == np.float64 and gamma.size <= FEW:
        rows = [(row, _digamma(reduce(add, row))) for row in gamma.tolist()]
        return np.array([[exp(_digamma(number) - total) for number in row] for row, total in rows])
    total = np.add.accumulate(gamma, axis=1)[:, -1:]
    found = digamma(np.append(gamma, total, axis=1))
    return np.exp((found[:, :-1] - found[:, -1:]).astype(np.float64, copy=False)).astype(gamma.dtype, copy=False)


EULER = 0.577215664901532860606512090082402431


def digamma(x: Array) -> Array:
    """ψ(x) of positive numbers to about 1e-8, by the terms of sklearn.decomposition._online_lda_fast.psi; every step is computed in
    float64 and rounded to x's dtype."""
    dtype, least = x.dtype, float(x.min(initial=6.0))
    given, small = x, x <= 1e-6
    x = np.where(small, dtype.type(6), x)
    result = np.zeros_like(x)
    for _ in range(6 - int(least) if least < 6 else 0):
        below = x < 6
        result -= np.divide(below, x, dtype=np.float64)  # 1 / x or 0
        x += below
    wide = x.astype(np.float64, copy=False)
    r = (1.0 / wide).astype(dtype, copy=False)
    result = (result + (np.log(wide) - 0.5 * r.astype(np.float64, copy=False))).astype(dtype, copy=False)
    square = (r * r).astype(np.float64, copy=False)
    result = (result - square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0)))).astype(dtype, copy=False)
    if least > 1e-6:
        return result
    return np.where(small, (-EULER - 1.0 / given.astype(np.float64)).astype(dtype), result)


def _digamma(x: float) -> float:
    """`digamma` of one number."""
    if x <= 1e-6:
        return -EULER - 1.0 / x
    result = 0.0
    while x < 6:
        result -= 1.0 / x
        x += 1.0
    r = 1.0 / x
    result += log(x) - 0.5 * r
    r *= r
    return result - r * (1.0 / 12.0 - r * (1.0 / 120.0 - r * (1.0 / 252.0)))


# --- neighbours ------------------------------------------------------------------------------------------------------


@operator
class Barycentre(Operator):
    """y[N, k] = w / Σ w with (G + R · I) w = 1, G = d · dᵀ of differences d[N, k, F] and R = reg · trace G, or reg where that is 0;
    all f64 (sklearn.manifold._locally_linear.barycenter_weights).

    No eigenvalue is below reg times the trace, so that different ways to solve differ by some k · 1e-16 / reg.
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
        """Gauss and Jordan's elimination without a choice of pivots, which positive definite matrices do not need; the columns that
        are done fall away."""
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
