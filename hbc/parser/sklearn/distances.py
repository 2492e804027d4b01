"""Distances as scikit-learn computes them. It has three ways, with different rounding and different rules for ties:

* trees (KDTree, BallTree): in float64, by direct sums; points are pushed into the heap leaf by leaf, the nearer child first;
* brute force by ArgKmin and RadiusNeighbors, where the query has the dtype (float32 or float64) of the training data and the metric is one
  of theirs: Euclidean distances are x² - 2xy + y² in float64, all others direct sums; points are pushed in order;
* brute force by pairwise_distances otherwise, with numpy's argpartition, whose choice among equal distances depends on the CPU: here
  the heap decides there too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.features import Normalize
from hbc.ops.nearest import INSERTION, Distances, Smallest
from hbc.parser.frame import Refusal
from hbc.parser.registry import sparse_matrices_differ
from hbc.parser.sparsity import may_be_sparse

LARGEST = float(np.finfo(np.float64).max)
SUPPORTED = "euclidean, manhattan, chebyshev, minkowski, seuclidean, canberra, hamming, cosine and nan_euclidean"
ALIASES = {
    "l2": "euclidean",
    "l1": "manhattan",
    "cityblock": "manhattan",
    "infinity": "chebyshev",
    "p": "minkowski",
}
TERMS = {
    "euclidean": "squared",
    "sqeuclidean": "squared",
    "seuclidean": "squared",
    "manhattan": "absolute",
    "chebyshev": "largest",
    "minkowski": "power",
    "canberra": "canberra",
    "hamming": "unequal",
}
REDUCTIONS = {"euclidean", "l2", "sqeuclidean", "manhattan", "l1", "cityblock", "chebyshev", "infinity", "minkowski", "p"} | {
    "seuclidean",
    "canberra",
}
"""Of the metrics here, those that ArgKmin and RadiusNeighbors take."""


def squared_expanded(x: Node, points: Array, norms: Array | None = None) -> Node:
    """f64[N, M]: x² - 2 x·y + y², added in this order (the product with -2y is -2 times the product, to the bit); may be negative.
    `norms`: the y², where the source has them ready."""
    points = np.asarray(points, np.float64)
    norms = np.einsum("ij,ij->i", points, points) if norms is None else norms
    x = t.cast(x, "f64")
    middle = t.matmul(x, -2.0 * points.T)
    return t.add(t.add(middle, t.sum_(t.mul(x, x), 1, keepdims=True)), norms[None])


def common_float(x: Node, points: Array) -> Literal["f32", "f64"]:
    """The dtype that check_pairwise_arrays gives both."""
    return "f32" if x.type.dtype == "f32" and points.dtype == np.float32 else "f64"


def euclidean_distances(x: Node, points: Array, squared: bool = False) -> Node:
    """sklearn.metrics.pairwise.euclidean_distances: f32 where both are, though computed in f64."""
    distances = t.maximum(t.cast(squared_expanded(x, points), common_float(x, points)), 0.0)
    return distances if squared else t.sqrt(distances)


def cosine_distances(x: Node, points: Array) -> Node:
    """sklearn.metrics.pairwise.cosine_distances: 1 - the product of the rows over their lengths, in 0 … 2."""
    kind = common_float(x, points)
    normalize = Normalize("l2")
    with np.errstate(all="ignore"):
        others = normalize.evaluate(np.asarray(points, NUMPY_DTYPES[kind]))
    similarity = t.matmul(normalize(t.cast(x, kind)), others.T)
    return t.minimum(t.maximum(t.add(t.neg(similarity), 1.0), 0.0), 2.0)


def nan_euclidean_distances(x: Node, points: Array, missing: Node | None = None, missing_points: Array | None = None) -> Node:
    """sklearn.metrics.pairwise.nan_euclidean_distances: over the features that both have, scaled up to all; NaN where they share
    none. `missing` says where values are missing (by default, where they are NaN)."""
    kind = common_float(x, points)
    dtype = NUMPY_DTYPES[kind]
    x, points = t.cast(x, kind), np.asarray(points, dtype)
    missing = t.isnan(x) if missing is None else missing
    absent = np.isnan(points) if missing_points is None else missing_points
    x = t.where(missing, t.constant(0.0, kind), x)
    points = np.where(absent, dtype.type(0), points)
    distances = euclidean_distances(x, points, squared=True)
    distances = t.sub(distances, t.matmul(t.mul(x, x), absent.T.astype(dtype)))
    distances = t.sub(distances, t.matmul(t.cast(missing, kind), (points * points).T))
    distances = t.maximum(distances, 0.0)
    shared = t.matmul(t.cast(t.logical_not(missing), kind), (~absent).T.astype(dtype))
    distances = t.where(t.equal(shared, 0.0), t.constant(np.nan, kind), distances)
    return t.sqrt(t.mul(t.div(distances, t.maximum(shared, 1.0)), float(x.type.columns)))


@dataclass(frozen=True)
class Metric:
    """A metric by one name, with its parameters: p and weights of minkowski, the variances of seuclidean."""

    name: str
    p: float = 2.0
    weights: Array | None = None
    alias: str = ""

    def term(self, dtype: np.dtype[Any], points: Array) -> Distances:
        """The direct sum in place of the distance that ranks the same."""
        return Distances(np.asarray(points, dtype), TERMS[self.name], self.p, self.weights)

    def distance(self, reduced: Node, count: int, by_sum: bool = True) -> Node:
        """The distance from what stands for it; `count` features."""
        match self.name:
            case "euclidean" | "seuclidean" if by_sum:
                return t.sqrt(reduced)
            case "minkowski":
                return t.power(reduced, 1.0 / self.p)
            case "hamming":
                return t.div(reduced, float(count))
        return reduced

    def reduced(self, distance: float, count: int, single: bool = False) -> float:
        """What stands for a distance; `single`: computed in float32."""
        kind = np.float32 if single else np.float64
        value = kind(distance)
        match self.name:
            case "euclidean" | "seuclidean":
                value = kind(value * value)
            case "minkowski":
                value = kind(float(value) ** self.p)
            case "hamming":
                value = kind(value * count)
        return float(value)


def metric_of(name: Any, params: dict[str, Any] | None) -> Metric:
    """The metric of a name and its parameters (DistanceMetric.get_metric). Raises Refusal."""
    advice = f"Use one of {SUPPORTED}."
    if not isinstance(name, str):
        raise Refusal(f"its metric is {name!r}, a function.", advice)
    params = {key: value for key, value in (params or {}).items() if value is not None}
    canonical = ALIASES.get(name, name)
    if canonical not in TERMS and canonical not in ("cosine", "nan_euclidean"):
        raise Refusal(f"its metric {name!r} has no converter.", advice)
    p, weights = 2.0, None
    if canonical == "minkowski":
        p, weights = float(params.pop("p", 2)), params.pop("w", None)
        special = {1.0: "manhattan", 2.0: "euclidean", np.inf: "chebyshev"}
        if weights is None and p in special:
            canonical = special[p]
        elif np.isinf(p):
            raise Refusal("its metric is minkowski with p=inf and weights.", advice)
    if canonical == "seuclidean":
        weights = params.pop("V", None)
        if weights is None:
            raise Refusal(
                "its metric is seuclidean without the variances.", "Give them: metric_params={'V': X.var(axis=0, ddof=1)}."
            )
    if params:
        raise Refusal(f"its metric {name!r} has the parameters {sorted(params)}.", advice)
    return Metric(canonical, p, None if weights is None else np.asarray(weights, np.float64), name)


@dataclass(frozen=True)
class Search:
    """The training points as a fitted neighbours estimator looks at them, for one input.

    reduced[N, W] stands for the distance to each of W columns: training points, in the order in which they are pushed, or in
    the leaves of a tree, padded with points that are never near; `points` [W + 1] are their numbers, and last that of an
    empty place, whose distance is `empty`. `order` [N, leaves] are the leaves in the order of the search, of `block` columns each.
    """

    metric: Metric
    features: int
    reduced: Node
    points: Array
    empty: float
    order: Node | None = None
    block: int = 0
    by_sum: bool = True
    single: bool = False
    ties: Literal["column", "heap", "heaps"] = "column"
    """In what order the source lists equally near points; "column" where numpy's partition does it as the CPU has it."""
    keys: Node | None = field(default=None)
    """What decides, where it is not `reduced`: NaN and infinite distances count as the largest."""
    direct: tuple[Node, Array] | None = None
    """x and points in f64, where `reduced` is x² - 2xy + y². That is exact enough to choose by, but of equal points it leaves
    1e-16 x² or 0, as the order of the sums has it, and 1 / distance says 1e8 or infinity. The source's sums (a dot and a product by one
    library) agree for fewer than 32 features. So the distances that are returned are sums of squared differences."""

    def nearest(self, k: int, listed: bool = False) -> Node:
        """The columns of the k nearest points, by distance: i64[N, k]. `listed`: equally near ones in the source's order, if there
        is one; else by column."""
        keys = self.reduced if self.keys is None else self.keys
        ties = self.ties if listed and k <= INSERTION else "column"
        return Smallest(k, ties=ties)(keys) if self.order is None else Smallest(k, self.block, ties)(keys, self.order)

    def look_up(self, table: Array, columns: Node) -> Node:
        """table[training point] for columns of `reduced`."""
        return t.take(np.asarray(table)[self.points], columns, axis=0)

    def distances(self, columns: Node) -> Node:
        """The distances to points by their columns: float[N, k]."""
        width = self.reduced.type.columns
        if self.direct is None:
            found = t.take_along(self.reduced, t.minimum(columns, width - 1))
        else:
            x, points = self.direct
            difference = t.sub(t.reshape(x, N, 1, x.type.columns), self.look_up(points, columns))
            found = t.sum_(t.mul(difference, difference), 2, ordered=True)
        return self.metric.distance(t.where(t.equal(columns, width), self.empty, found), self.features, self.by_sum)

    def within(self, radius: float) -> Node:
        """Whether a point is within a radius, at most: bool[N, W]. Where rounding is as large as the radius, x² - 2xy + y² says of equal
        points that they are apart: within 1e-9 of 300 points of 2 to 8 features the source, whose sums agree, finds all of them, these
        sums lost 19 to 107, and direct ones none (of more features the source loses some)."""
        limit = self.metric.reduced(radius, self.features, self.single) if self.by_sum else radius
        if self.direct is not None:
            largest = float((self.direct[1] ** 2).sum(1).max(initial=0))
            if limit <= 4 * self.features * np.finfo(np.float64).eps * largest:
                return t.less_equal(self._direct_sums(), limit)
        return t.less_equal(self.reduced, limit)

    def all_distances(self) -> Node:
        reduced = self.reduced if self.direct is None else self._direct_sums()
        return self.metric.distance(reduced, self.features, self.by_sum)

    def _direct_sums(self) -> Node:
        assert self.direct is not None
        x, points = self.direct
        return Distances(points, "squared")(x)


def search(m: Any, x: Node, ordered: bool = True) -> Search:
    """How a fitted NeighborsBase estimator searches. `ordered`: in the order of its tree, as the nearest need it."""
    if m.metric == "precomputed":
        raise Refusal("its metric is precomputed: it takes distances in place of features.", f"Use one of {SUPPORTED}.")
    data = m._fit_X
    if hasattr(data, "toarray"):
        raise Refusal("it was fitted on a sparse matrix.", "Fit it on a dense array: X.toarray().")
    if may_be_sparse(x):
        sparse_matrices_differ()  # trees reject them, and so do some metrics
    data = np.asarray(data)
    metric = metric_of(m.effective_metric_, m.effective_metric_params_)
    if m._fit_method in ("kd_tree", "ball_tree"):
        return tree_search(m._tree, m._fit_method == "kd_tree", metric, x, ordered)
    count = np.append(np.arange(len(data)), 0)
    kind = dtype_name(data.dtype) if data.dtype in (np.float32, np.float64) else None
    if kind == x.type.dtype and metric.alias in REDUCTIONS:
        if metric.alias in ("euclidean", "sqeuclidean"):
            squares = squared_expanded(x, data)
            squares = t.where(t.less(0.0, squares), squares, 0.0)  # NaN becomes 0 there
            return Search(metric, data.shape[1], squares, count, LARGEST, ties="heaps", direct=_wide(x, data))
        reduced = metric.term(data.dtype, data)(x)
        return Search(metric, data.shape[1], reduced, count, LARGEST, single=kind == "f32", ties="heaps")
    if ordered and metric.name == "hamming":
        raise Refusal(
            "it searches by brute force under the metric hamming, where many points are equally near, and which of them are the "
            "nearest is left to numpy's partition, which differs between processors.",
            "Use algorithm='ball_tree', whose choice is kept.",
        )
    return _pairwise(metric, x, data, count)


def _wide(x: Node, points: Array) -> tuple[Node, Array]:
    return t.cast(x, "f64"), points.astype(np.float64)


def _pairwise(metric: Metric, x: Node, data: Array, count: Array) -> Search:
    """By pairwise_distances and argpartition."""
    squared = metric.name == "euclidean"  # under another name the source takes roots first, which changes nothing
    direct = _wide(x, data) if squared else None
    if squared:
        distances = euclidean_distances(x, data, squared)
    elif metric.name == "cosine":
        distances = cosine_distances(x, data)
    elif metric.name == "nan_euclidean":
        distances = nan_euclidean_distances(x, data)
    else:
        distances = metric.distance(metric.term(np.dtype(np.float64), data)(t.cast(x, "f64")), data.shape[1])
    top = float(np.finfo(NUMPY_DTYPES[distances.type.dtype]).max)
    keys = t.where(t.less(distances, top), distances, top)
    metric = metric if squared else Metric("other")
    return Search(metric, data.shape[1], distances, count, top, by_sum=squared, keys=keys, direct=direct)


def tree_search(tree: Any, kd: bool, metric: Metric, x: Node, ordered: bool = True) -> Search:
    """By a KDTree or BallTree: down to the leaves, the nearer child first (BinaryTree._query_single_depthfirst)."""
    if metric.name not in TERMS:
        raise Refusal(f"its tree has the metric {metric.name}.", f"Use one of {SUPPORTED}.")
    data, numbers, nodes, bounds = (np.asarray(array) for array in tree.get_arrays())
    x = t.cast(x, "f64")
    if not ordered:
        return Search(metric, data.shape[1], metric.term(data.dtype, data)(x), np.append(np.arange(len(data)), 0), np.inf)
    leaves = (len(nodes) + 1) // 2
    first, last = nodes["idx_start"][-leaves:], nodes["idx_end"][-leaves:]
    block = int((last - first).max())
    places = first[:, None] + np.arange(block)
    inside = places < last[:, None]
    points = numbers[np.minimum(places, len(data) - 1)]
    padded = np.where(inside[..., None], data[points], np.inf).reshape(-1, data.shape[1])
    points = np.append(np.where(inside, points, 0).ravel(), 0)
    order = None if leaves == 1 else _leaf_order(x, kd, metric, nodes, bounds)
    reduced = metric.term(data.dtype, padded)(x)
    if metric.name == "hamming" and not inside.all():
        reduced = t.where(
            t.constant(inside.reshape(1, -1)), reduced, np.inf
        )  # of the others, infinite points are infinitely far
    return Search(metric, data.shape[1], reduced, points, np.inf, order, 0 if order is None else block, ties="heap")


def _leaf_order(x: Node, kd: bool, metric: Metric, nodes: Array, bounds: Array) -> Node:
    """i64[N, leaves]: the leaves of a complete binary tree in the order of a search that goes to the nearer child first, the
    left one where both are as near."""
    if kd:
        # Each difference is a node of its own, so that no compiler need keep [N, nodes, F] of them to read them twice.
        wide = t.reshape(x, N, 1, x.type.columns)
        below, above = bounds[0][None, 1:], bounds[1][None, 1:]
        one, other = (t.maximum(difference, 0.0) for difference in (t.sub(below, wide), t.sub(wide, above)))
        if metric.name == "euclidean":
            # One of the two is 0, and so is the other product.
            outside = t.add(t.mul(t.sub(below, wide), one), t.mul(t.sub(wide, above), other))
        elif metric.name == "minkowski":
            outside = t.power(t.add(one, other), metric.p)
        else:
            outside = t.add(one, other)
        least = t.max_(outside, 2) if metric.name == "chebyshev" else t.sum_(outside, 2, ordered=True)
    else:
        centres = metric.distance(metric.term(bounds.dtype, bounds[0][1:])(x), bounds.shape[2])
        least = t.maximum(t.sub(centres, nodes["radius"][None, 1:]), 0.0)
        if metric.name in ("euclidean", "seuclidean"):
            least = t.mul(least, least)
        elif metric.name == "minkowski":
            least = t.power(least, metric.p)
    pairs = len(nodes) // 2
    left, right = (t.take(least, np.arange(side, 2 * pairs, 2), axis=1) for side in (0, 1))
    right_first = t.cast(t.less(right, left), "i64")  # of every inner node
    levels = (pairs + 1).bit_length() - 1
    turn = np.arange(pairs + 1)
    at: Node | Array = np.zeros((1, 1), np.int64)
    for level in range(levels):
        bit = (turn >> (levels - 1 - level)) & 1
        if isinstance(at, Node):
            side = t.take_along(right_first, at)
            flipped = t.where(t.constant(bit[None] == 1), t.sub(1, side), side)
            at = t.add(t.add(t.mul(at, 2), 1), flipped)
        else:
            side = t.take(right_first, np.zeros(pairs + 1, np.int64), axis=1)
            at = t.add(t.where(t.constant(bit[None] == 1), t.sub(1, side), side), 1)
    assert isinstance(at, Node)
    return t.sub(at, pairs)
