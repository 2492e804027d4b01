"""Neighbours: distances to fixed points, and the smallest numbers of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hbc.ir.graph import Constant, Node, Operator, has_nan, operator
from hbc.ir.magnitudes import fits, magnitudes
from hbc.ir.rows import Rows, narrow
from hbc.ir.spans import Span
from hbc.ir.types import Array, TensorType, type_of
from hbc.ops import tensor as t
from hbc.ops.checks import Check
from hbc.ops.functions import CPower, by_c_library


@operator
class Smallest(t.TensorOperator):
    """y[N, k] = the columns of the k smallest numbers of x[N, M], i64: by increasing number, equal numbers by increasing column. x
    is a float, nowhere -inf. +inf and NaN never count; places that stay empty hold M.

    If more numbers equal the k-th than there is room for, those stay that would stay in a max-heap of k places. A row is pushed
    into it number by number. A number enters if it is less than the root, which then leaves; on the way down the left child is
    taken where the children are equal (sklearn.utils._heap.heap_push). Columns are pushed in order. With a second operand
    order[N, M / block] (i64, each block once) they are pushed in blocks of that many columns, block order[n, 0] first.

    ties = "heap": equal numbers stand as in that heap's array in the end, not by column. (An insertion sort keeps their order;
    sklearn.utils._sorting.simultaneous_sort uses one for up to INSERTION places.) "heaps": as they stand after the array has
    been pushed into a second heap (ArgKmin where it runs in parallel over the training points).
    """

    k: int
    block: int = 0
    ties: Literal["column", "heap", "heaps"] = "column"

    places_ascend = True

    def infer(self, x: TensorType, order: TensorType | None = None) -> TensorType:
        if not x.is_float or len(x.shape) != 2 or not 1 <= self.k <= x.columns:
            raise TypeError(f"the operand must be a float matrix of at least {self.k} columns")
        if self.ties != "column" and self.k > INSERTION:
            raise TypeError(f"equal ones among more than {INSERTION} can only stand by column")
        if (order is None) != (self.block == 0):
            raise TypeError("an order is given exactly where there are blocks")
        if order is not None and (order.dtype != "i64" or order.shape != (x.shape[0], x.columns // self.block)):
            raise TypeError(f"the order of blocks of {self.block} is {order}")
        return TensorType("i64", (x.shape[0], self.k))

    def evaluate(self, x: Array, order: Array | None = None) -> Array:
        width = x.shape[1]
        x = np.where(x < np.inf, x, np.inf)
        places = np.argsort(x, axis=1, kind="stable")[:, : self.k + 1]
        numbers = np.take_along_axis(x, places, 1)
        places = np.where(numbers < np.inf, places, width)[:, : self.k]
        # The order of pushing matters only where the next number equals the last one that fits, or where the order of equal numbers does.
        first = self.k - 1 if self.ties == "column" else 0
        equal = (numbers[:, first:-1] == numbers[:, first + 1 :]) & (numbers[:, first:-1] < np.inf)
        (tied,) = np.nonzero(equal.any(axis=1))
        if len(tied):
            columns = np.arange(width)[None]
            if order is not None:
                columns = (order[tied, :, None] * self.block + np.arange(self.block)).reshape(len(tied), width)
            columns = np.broadcast_to(columns, (len(tied), width))
            numbers, left = _heaped(np.take_along_axis(x[tied], columns, 1), self.k)
            if self.ties == "heaps":
                numbers, again = _heaped(numbers, self.k)
                left = np.take_along_axis(left, again, 1)
            left = np.take_along_axis(columns, left, 1)
            if self.ties == "column":
                by_column = np.argsort(left, axis=1)
                numbers, left = np.take_along_axis(numbers, by_column, 1), np.take_along_axis(left, by_column, 1)
            left = np.where(numbers < np.inf, left, width)
            places[tied] = np.take_along_axis(left, np.argsort(numbers, axis=1, kind="stable"), 1)
        return places

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        """At most the last column where there are k numbers for certain; else M, for places that stay empty."""
        found = np.isfinite(np.sort(bounds[0])[: self.k]) & _holds_no_nan(node.inputs[0])
        return np.where(found, len(bounds[0]) - 1.0, float(len(bounds[0])))

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return 0, node.inputs[0].type.columns


def _holds_no_nan(x: Node) -> bool:
    """Whether x cannot be NaN: distances of rows that are checked to have no NaN, or `where(0 < d, d, constant)`, which takes the
    constant where d is NaN."""
    if isinstance(x.op, t.Where) and isinstance(x.inputs[0].op, t.Less):
        return x.inputs[0].inputs[1] is x.inputs[1] and isinstance(x.inputs[2].op, Constant)
    if not isinstance(x.op, Distances) or x.op.creates_missing:
        return False
    (x,) = x.inputs
    while isinstance(x.op, t.Cast):
        (x,) = x.inputs
    return isinstance(x.op, Check) and not x.op.allow_nan


INSERTION = 15
"""The most places that the source sorts by insertion. It splits more places around a median, so that equal numbers come in any
order."""


def _heaped(x: Array, k: int) -> tuple[Array, Array]:
    """(the numbers that stay in the heap in the order of its array, their columns). All rows push one number at a time. Empty
    places are inf."""
    rows, width = x.shape
    depth = k.bit_length()
    every, columns = np.arange(rows), np.arange(width)
    heap = np.full((rows, (1 << depth) - 1), -np.inf, x.dtype)  # missing children are never the larger one
    heap[:, :k] = np.inf
    places = np.zeros(heap.shape, np.int64)
    last = np.full(rows, -1)
    while True:
        enters = (x < heap[:, :1]) & (columns > last[:, None])
        some = enters.any(axis=1)
        if not some.any():
            return heap[:, :k], places[:, :k]
        # A row that has nothing left to push pushes its root again, which changes nothing.
        place = np.where(some, enters.argmax(axis=1), places[:, 0])
        number = np.where(some, x[every, place], heap[:, 0])
        last = np.where(some, place, width)
        at = np.zeros(rows, np.int64)
        for _ in range(depth - 1):
            child = 2 * at + 1
            child += heap[every, child] < heap[every, child + 1]
            down = number < heap[every, child]
            heap[every, at] = np.where(down, heap[every, child], number)
            places[every, at] = np.where(down, places[every, child], place)
            at = np.where(down, child, at)
        heap[every, at] = number
        places[every, at] = place


SUMS = ("squared", "rounded", "absolute", "power", "canberra", "chi2", "unequal")
UNROLLED = 32
"""Up to so many features, a lowering computes one matrix [N, M] for each feature, instead of [N, M, F] at once."""


@operator
class Distances(Operator):
    """y[N, M] = Σ_f term(x[N, f], points[M, f]), f64, with the terms added in the order of f.

    - "squared": (a - b)², divided by weights[f] if there are any
    - "rounded": (a - b)², where each square and each partial sum is rounded to the dtype of x
    - "absolute": |a - b|
    - "power": weights[f] · |a - b|^p
    - "canberra": |a - b| / (|a| + |b|), 0 for 0/0
    - "chi2": (a - b)² / (a + b), 0 where a + b is 0
    - "unequal": 1 where a ≠ b, else 0
    - "largest": max_f |a - b| instead of a sum

    x and points have one dtype. Differences in f32 are rounded to f32 before they are widened, and so is the sum at the end
    (sklearn.metrics.DistanceMetric.rdist, scipy.spatial.distance.cdist, sklearn.metrics._pairwise_fast._chi2_kernel_fast).
    """

    points: Array
    metric: str
    p: float = 2.0
    weights: Array | None = None

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.points)

    def infer(self, x: TensorType) -> TensorType:
        points = type_of(self.points)
        if not x.is_float or x.dtype != points.dtype or x.columns != points.columns:
            raise TypeError(f"points are {points}")
        if self.metric not in (*SUMS, "largest"):
            raise TypeError(f"unknown metric {self.metric!r}")
        return TensorType("f64", (x.shape[0], points.shape[0]))

    def evaluate(self, x: Array) -> Array:
        total = np.zeros((len(x), len(self.points)), x.dtype if self.metric == "rounded" else np.float64)
        for f in range(x.shape[1]):
            a, b = x[:, f, None], self.points[None, :, f]
            difference = np.abs(a - b).astype(np.float64)
            weight = None if self.weights is None else float(self.weights[f])
            match self.metric:
                case "squared":
                    square = difference * difference
                    total += square if weight is None else square / weight
                case "rounded":
                    total += (a - b) * (a - b)
                case "absolute":
                    total += difference
                case "power":
                    power = by_c_library("pow", difference, self.p)
                    total += power if weight is None else weight * power
                case "canberra":
                    size = (np.abs(a) + np.abs(b)).astype(np.float64)
                    total += np.where(size > 0, difference / size, 0.0)
                case "chi2":
                    size = (a + b).astype(np.float64)
                    total += np.where(size == 0, 0.0, difference * difference / np.where(size == 0, 1.0, size))
                case "unequal":
                    total += a != b
                case "largest":
                    total = np.maximum(total, difference)
        return total.astype(x.dtype).astype(np.float64)

    def lower(self, x: Node) -> Node:
        width = self.points.shape[1]
        if width <= UNROLLED:
            total = None
            for f in range(width):
                weight = None if self.weights is None else self.weights[f : f + 1]
                term = self._term(t.take(x, np.array([f]), axis=1), self.points[None, :, f], weight)
                join = t.maximum if self.metric == "largest" else t.add
                total = term if total is None else join(total, term)
            assert total is not None
        else:
            terms = self._term(t.reshape(x, "N", 1, width), self.points[None], self.weights)
            total = t.max_(terms, 2) if self.metric == "largest" else t.sum_(terms, 2, ordered=True)
        return t.cast(t.cast(total, x.type.dtype), "f64")

    def _term(self, x: Node, points: Array, weights: Array | None) -> Node:
        if self.metric == "rounded":
            difference = t.sub(x, points)
            return t.mul(difference, difference)
        difference = t.cast(t.sub(x, points), "f64")
        if self.metric == "squared":
            square = t.mul(difference, difference)
            return square if weights is None else t.div(square, weights)
        if self.metric == "chi2":
            size = t.cast(t.add(x, points), "f64")
            return t.where(t.equal(size, 0.0), t.constant(0.0), t.div(t.mul(difference, difference), size))
        if self.metric == "unequal":
            return t.where(t.equal(x, points), t.constant(0.0), t.constant(1.0))
        magnitude = t.absolute(difference)
        if self.metric == "power":
            power = CPower(self.p)(magnitude)
            return power if weights is None else t.mul(power, weights)
        if self.metric == "canberra":
            size = t.cast(t.add(t.absolute(x), np.abs(points)), "f64")
            return t.where(t.less(0.0, size), t.div(magnitude, size), t.constant(0.0))
        return magnitude

    @property
    def non_negative(self) -> bool:
        return self.metric != "chi2" and (self.weights is None or bool((self.weights >= 0).all()))

    @property
    def infinite(self) -> Array:
        return np.asarray(~np.isfinite(self.points).all(axis=1))

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array | None:
        dtype = node.inputs[0].type.dtype
        reach = bounds[0] + magnitudes(self.points)
        weights = 1.0 if self.weights is None else self.weights
        match self.metric:
            case "squared" | "rounded":
                total = (reach * reach / weights).sum(axis=1)
            case "absolute":
                total = reach.sum(axis=1)
            case "largest":
                total = reach.max(axis=1)
            case "power":
                total = (reach**self.p * weights).sum(axis=1)
            case "canberra" | "unequal":
                total = np.full(len(reach), float(reach.shape[1]))
            case _:
                return None
        # Differences and sums of f32 are rounded to it.
        return np.where(fits(reach.max(axis=1), dtype) & fits(total, dtype), total, np.inf)


@operator
class Scatter(Operator):
    """y[N, width] = the sum of values[n, j] over all j with columns[n, j] = c, f64; columns i64[N, k] within 0 … width - 1."""

    width: int

    def infer(self, columns: TensorType, values: TensorType) -> TensorType:
        if columns.dtype != "i64" or values.dtype != "f64" or columns.shape != values.shape or len(columns.shape) != 2:
            raise TypeError(f"columns {columns} and values {values} must be matrices of one shape, i64 and f64")
        return TensorType("f64", (columns.shape[0], self.width))

    def evaluate(self, columns: Array, values: Array) -> Array:
        y = np.zeros((len(columns), self.width))
        np.add.at(y, (np.arange(len(columns))[:, None], columns), values)
        return y

    def lower(self, columns: Node, values: Node) -> Node:
        y = None
        for i in range(columns.type.columns):
            here = t.equal(t.take(columns, np.array([i]), axis=1), np.arange(self.width)[None])
            value = t.where(here, t.take(values, np.array([i]), axis=1), 0.0)
            y = value if y is None else t.add(y, value)
        assert y is not None
        return y

    def looks_up(self, inputs: Sequence[Node]) -> Mapping[str | int, range]:
        return {0: range(self.width)}


@operator
class ScatterEntries(Scatter):
    """Scatter for sparse results: every value is an entry, even a 0, in its place in the row."""

    rows = "makes"

    def rows_of(self, columns: Array, values: Array) -> Rows:
        indptr = np.arange(len(columns) + 1) * columns.shape[1]
        return Rows(narrow(indptr), columns.ravel().astype(np.int32), values.ravel(), self.width, unique=False)

    def lower(self, columns: Node, values: Node) -> Node:
        return Scatter(self.width)(columns, values)


@operator
class Present(Operator):
    """y = x where x >= 0, else 0. Negative numbers and NaN stand for absent values. x is f64[N, M]."""

    removes_missing = True

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != "f64" or len(x.shape) != 2:
            raise TypeError("x must be a matrix of f64")
        return x

    def evaluate(self, x: Array) -> Array:
        return np.where(x >= 0, x, 0.0)

    def lower(self, x: Node) -> Node:
        return t.where(t.less_equal(0.0, x), x, 0.0)


@operator
class Ascending(Operator):
    """y[N, M] = the columns of the present numbers of x[N, M] (x >= 0), i64: by increasing number, equal numbers by column. Then
    M, once for each absent number. Compilers that cannot sort leave it to PresentEntries."""

    def infer(self, x: TensorType) -> TensorType:
        return TensorType("i64", Present().infer(x).shape)

    def evaluate(self, x: Array) -> Array:
        order = np.argsort(np.where(x >= 0, x, np.nan), axis=1, kind="stable")  # NaN comes last; a third of np.lexsort's time
        return np.where(np.arange(x.shape[1]) < np.count_nonzero(x >= 0, axis=1)[:, None], order, x.shape[1])

    def span(self, node: Node, spans: Sequence[Span]) -> Span:
        return 0, node.type.columns

    def lower(self, x: Node) -> Node:
        width = x.type.columns
        finite = Smallest(width)(t.where(t.less_equal(0.0, x), x, np.inf))
        infinite = Smallest(width)(t.where(t.equal(x, np.inf), np.arange(width, dtype=np.float64)[None], np.inf))
        there = t.less(finite, width)
        place = t.sub(np.arange(width)[None], t.sum_(t.cast(there, "i64"), 1, keepdims=True))  # among the infinite numbers
        return t.where(there, finite, t.take_along(infinite, t.maximum(place, 0)))


@operator
class PresentEntries(Present):
    """Present for sparse results: every present number is an entry, even a 0. The entries of a row come by increasing number,
    equal ones by column. A second operand may give this order: Ascending of x."""

    rows = "makes"

    def infer(self, x: TensorType, order: TensorType | None = None) -> TensorType:
        if order is not None and order != Ascending().infer(x):
            raise TypeError(f"the order of x, which is {x}, is {order}")
        return super().infer(x)

    def evaluate(self, x: Array, order: Array | None = None) -> Array:
        return super().evaluate(x)

    def rows_of(self, x: Array, order: Array | None = None) -> Rows:
        width = x.shape[1]
        order = Ascending().evaluate(x) if order is None else order
        there = order < width
        counts, columns = np.count_nonzero(there, axis=1), order[there]
        data = x.reshape(-1)[np.repeat(np.arange(len(x)) * width, counts) + columns]  # a fifth of np.take_along_axis' time
        return Rows(narrow(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])), columns.astype(np.int32), data, width)

    def lower(self, x: Node, order: Node | None = None) -> Node:
        return Present()(x)
