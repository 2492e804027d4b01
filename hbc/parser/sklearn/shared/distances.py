"""Distances to training points as scikit-learn computes them. It has three ways, with different rounding and different rules for ties:

* Trees (KDTree, BallTree): direct sums in float64. Points are pushed into a heap leaf by leaf, the nearer child first.
* Brute force by ArgKmin and RadiusNeighbors, if the query has the dtype (float32 or float64) of the training data and they know the
  metric: Euclidean distances are x² - 2xy + y² in float64, all others direct sums. Points are pushed in their order.
* Brute force by pairwise_distances otherwise, with numpy's argpartition. Its choice among equal distances depends on the CPU; hbc
  takes the choice of a heap there.

A direct sum is Σ_f term(x_f, y_f), for example Σ_f (x_f - y_f)². A reduced distance is a number that ranks points as the distance does
and is cheaper: the squared Euclidean distance, for example (DistanceMetric.rdist).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Sparse
from hbc.ir.types import NUMPY_DTYPES, Array, N, dtype_name
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.functions import CPower
from hbc.ops.nearest import INSERTION, Distances, Smallest
from hbc.ops.scaling import Normalize
from hbc.parser.frame import Refusal
from hbc.parser.front_door import note_input
from hbc.parser.release import since
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
"""The metrics, among those supported here, that ArgKmin and RadiusNeighbors know."""


def squared_expanded(x: Node, points: Array, norms: Array | None = None) -> Node:
    """x² - 2 x·y + y² for every row x and point y, f64[N, M], added in this order. It may be negative through rounding. The product is
    x · (-2y), which has the bits of -2 (x · y). `norms`: the y², if the source has them ready."""
    points = np.asarray(points, np.float64)
    norms = np.einsum("ij,ij->i", points, points) if norms is None else norms
    x = t.cast(x, "f64")
    middle = t.matmul(x, -2.0 * points.T)
    return t.add(t.add(middle, t.sum_(t.mul(x, x), 1, keepdims=True)), norms[None])


def common_float(x: Node, points: Array) -> Literal["f32", "f64"]:
    """The dtype to which check_pairwise_arrays converts both: f32 if both are float32, else f64."""
    return "f32" if x.type.dtype == "f32" and points.dtype == np.float32 else "f64"


def euclidean_distances(x: Node, points: Array, squared: bool = False) -> Node:
    """sklearn.metrics.pairwise.euclidean_distances, [N, M]: computed in f64, then f32 if x and points are float32."""
    distances = t.maximum(t.cast(squared_expanded(x, points), common_float(x, points)), 0.0)
    return distances if squared else t.sqrt(distances)


def cosine_distances(x: Node, points: Array) -> Node:
    """sklearn.metrics.pairwise.cosine_distances, [N, M]: 1 - x·y / (|x| |y|), clipped to 0 … 2."""
    kind = common_float(x, points)
    normalize = Normalize("l2")
    with np.errstate(all="ignore"):
        others = normalize.evaluate(np.asarray(points, NUMPY_DTYPES[kind]))
    similarity = t.matmul(normalize(t.cast(x, kind)), others.T)
    return t.minimum(t.maximum(t.add(t.neg(similarity), 1.0), 0.0), 2.0)


def nan_euclidean_distances(x: Node, points: Array, missing: Node | None = None, missing_points: Array | None = None) -> Node:
    """sklearn.metrics.pairwise.nan_euclidean_distances, [N, M]: over the features that both rows have, scaled up to all features; NaN if
    they share none. `missing` (bool[N, F]) and `missing_points` (bool[M, F]) mark missing values; by default, NaN is missing."""
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


@record
class Metric:
    """A metric under its one name here, with its parameters: `p` and `weights` of minkowski, the variances of seuclidean (as `weights`).
    `alias` is the name that the estimator has for it."""

    name: str
    p: float = 2.0
    weights: Array | None = None
    alias: str = ""

    def term(self, dtype: np.dtype[Any], points: Array) -> Distances:
        """The operator that computes the reduced distances to `points` by direct sums."""
        return Distances(np.asarray(points, dtype), TERMS[self.name], self.p, self.weights)

    def distance(self, reduced: Node, count: int, by_sum: bool = True) -> Node:
        """The distance, computed from a reduced distance over `count` features. `by_sum` False: Euclidean distances are not reduced."""
        match self.name:
            case "euclidean" | "seuclidean" if by_sum:
                return t.sqrt(reduced)
            case "minkowski":
                return CPower(1.0 / self.p)(reduced)
            case "hamming":
                return t.div(reduced, float(count))
        return reduced

    def reduced(self, distance: float, count: int, single: bool = False) -> float:
        """The reduced distance of a distance, over `count` features. `single`: computed in float32."""
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
    """The metric with a name and parameters, as in DistanceMetric.get_metric. Raises Refusal for functions, for unknown names and for
    parameters that it has no meaning for."""
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
        raise Refusal(f"its metric {name!r} has parameters that hbc does not know: {', '.join(sorted(params))}.", advice)
    return Metric(canonical, p, None if weights is None else np.asarray(weights, np.float64), name)


@record
class Search:
    """The search of a fitted neighbours estimator over its training points, for one input x[N, F].

    It has W columns. A column is a training point, in the order in which the source pushes them into its heap. For a tree, the columns
    are its leaves, `block` columns each; shorter leaves are padded with points that are never near.
    """

    metric: Metric
    features: int
    """The number of features, F."""
    reduced: Node
    """The reduced distance of each row to each column, [N, W]."""
    points: Array
    """The number of the training point of each column, i64[W + 1]; the last one is for an empty place (see `empty`)."""
    empty: float
    """The reduced distance that an empty place stands for. Places are empty if fewer than k points have a finite distance."""
    order: Node | None = None
    """The leaves of a tree in the order in which the source searches them, i64[N, leaves]. None: columns are searched in order."""
    block: int = 0
    """How many columns a leaf has; 0 without `order`."""
    by_sum: bool = True
    """Whether `reduced` holds reduced distances; otherwise it holds distances."""
    single: bool = False
    """Whether the source computes in float32."""
    ties: Literal["column", "heap", "heaps"] = "column"
    """The order in which the source lists equally near points (see ops.nearest.Smallest). "column": by column, used where the source
    calls numpy's partition, whose order depends on the CPU."""
    keys: Node | None = field(default=None)
    """The numbers that decide which points are nearest, [N, W], if they are not
    `reduced`: NaN and infinite distances count as the largest finite number."""
    expanded: tuple[Node, Array] | None = None
    """(x, points) in f64, if `reduced` is x² - 2xy + y². The nearest points are chosen by that, but returned
    distances are direct sums of squared differences. Reason: for equal points x² - 2xy + y² gives 1e-16 x² or
    0, depending on the order of its sums, and 1 / distance then gives 1e8 or infinity. The source finds 0 for
    fewer than 32 features where one library computes all its sums alike; on some processors it does not."""

    def nearest(self, k: int, listed: bool = False) -> Node:
        """The columns of the k nearest points, i64[N, k], the nearest first. `listed`: equally near points stand in the source's order,
        if it has a fixed one; otherwise they stand by column."""
        keys = self.reduced if self.keys is None else self.keys
        ordered = INSERTION if since(1, 9) else 3  # the most places whose equal numbers its sort leaves in their order
        ties = self.ties if listed and k <= ordered else "column"
        return Smallest(k, ties=ties)(keys) if self.order is None else Smallest(k, self.block, ties)(keys, self.order)

    def look_up(self, table: Array, columns: Node) -> Node:
        """table[p] for the training point p of each of `columns` (i64[N, k])."""
        return t.take(np.asarray(table)[self.points], columns, axis=0)

    def distances(self, columns: Node) -> Node:
        """The distances to the points of `columns` (i64[N, k]), float[N, k]."""
        width = self.reduced.type.columns
        if self.expanded is None:
            found = t.take_along(self.reduced, t.minimum(columns, width - 1))
        else:
            x, points = self.expanded
            difference = t.sub(t.reshape(x, N, 1, x.type.columns), self.look_up(points, columns))
            found = t.sum_(t.mul(difference, difference), 2, ordered=True)
        return self.metric.distance(t.where(t.equal(columns, width), self.empty, found), self.features, self.by_sum)

    def within(self, radius: float) -> Node:
        """Whether each point is at a distance ≤ radius, bool[N, W].

        If the radius is as small as rounding errors, direct sums decide instead of x² - 2xy + y², which finds equal points apart. Measured:
        300 points of 2 to 8 features, each searched within 1e-9. The source finds all of them, x² - 2xy + y² lost 19 to 107, and direct
        sums lost none. (For more features the source loses some too, and on another processor it lost 8 of 60 points of 2 features.)"""
        limit = self.metric.reduced(radius, self.features, self.single) if self.by_sum else radius
        if self.expanded is not None:
            largest = float((self.expanded[1] ** 2).sum(1).max(initial=0))
            if limit <= 4 * self.features * np.finfo(np.float64).eps * largest:
                return t.less_equal(self._direct_sums(), limit)
        return t.less_equal(self.reduced, limit)

    def all_distances(self) -> Node:
        """The distances to the points of all columns, float[N, W]."""
        reduced = self.reduced if self.expanded is None else self._direct_sums()
        return self.metric.distance(reduced, self.features, self.by_sum)

    def _direct_sums(self) -> Node:
        assert self.expanded is not None
        x, points = self.expanded
        return Distances(points, "squared")(x)


def search(m: Any, x: Node, ordered: bool = True) -> Search:
    """The search of a fitted NeighborsBase estimator. `ordered`: in the order of its tree, on which the choice among equally near points
    depends; a search by radius does not need it. Raises Refusal for metrics and data that do not convert."""
    if m.metric == "precomputed":
        raise Refusal("its metric is precomputed: it takes distances in place of features.", f"Use one of {SUPPORTED}.")
    data = m._fit_X
    if hasattr(data, "toarray"):
        raise Refusal("it was fitted on a sparse matrix.", "Fit it on a dense array: X.toarray().")
    if may_be_sparse(x):
        note_input(Sparse(accepted=False))  # trees and some metrics reject sparse matrices
    data = np.asarray(data)
    metric = metric_of(m.effective_metric_, m.effective_metric_params_)
    if m._fit_method in ("kd_tree", "ball_tree"):
        return tree_search(m._tree, m._fit_method == "kd_tree", metric, x, ordered)
    count = np.append(np.arange(len(data)), 0)
    kind = dtype_name(data.dtype) if data.dtype in (np.float32, np.float64) else None
    if kind == x.type.dtype and metric.alias in REDUCTIONS:
        if metric.alias in ("euclidean", "sqeuclidean"):
            squares = squared_expanded(x, data)
            squares = t.where(t.less(0.0, squares), squares, 0.0)  # the source's max(·, 0) turns NaN into 0 too
            return Search(metric, data.shape[1], squares, count, LARGEST, ties="heaps", expanded=_wide(x, data))
        reduced = metric.term(data.dtype, data)(x)
        return Search(metric, data.shape[1], reduced, count, LARGEST, single=kind == "f32", ties="heaps")
    if ordered and metric.name == "hamming":
        raise Refusal(
            "it searches by brute force with the metric hamming. Many points are then equally near, and numpy's partition chooses "
            "among them differently on different processors.",
            "Use algorithm='ball_tree', whose choice hbc repeats.",
        )
    return _pairwise(metric, x, data, count)


def _wide(x: Node, points: Array) -> tuple[Node, Array]:
    return t.cast(x, "f64"), points.astype(np.float64)


def _pairwise(metric: Metric, x: Node, data: Array, count: Array) -> Search:
    """The search by pairwise_distances and argpartition."""
    squared = metric.name == "euclidean"  # under an alias such as l2 the source ranks the roots: the same ranks
    expanded = _wide(x, data) if squared else None
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
    return Search(metric, data.shape[1], distances, count, top, by_sum=squared, keys=keys, expanded=expanded)


def tree_search(tree: Any, kd: bool, metric: Metric, x: Node, ordered: bool = True) -> Search:
    """The search in a KDTree (`kd`) or BallTree: down to the leaves, the nearer child first (BinaryTree._query_single_depthfirst)."""
    if metric.name not in TERMS:
        raise Refusal(f"its tree has the metric {metric.name}.", f"Use one of {SUPPORTED}.")
    data, numbers, nodes, bounds = (np.asarray(array) for array in tree.get_arrays())
    x = t.cast(x, "f64")
    if not ordered:
        return Search(metric, data.shape[1], metric.term(data.dtype, data)(x), np.append(np.arange(len(data)), 0), np.inf)
    leaves = (len(nodes) + 1) // 2
    first, last = nodes["idx_start"][-leaves:], nodes["idx_end"][-leaves:]
    block = int((last - first).max())
    positions = first[:, None] + np.arange(block)
    inside = positions < last[:, None]
    points = numbers[np.minimum(positions, len(data) - 1)]
    padded = np.where(inside[..., None], data[points], np.inf).reshape(-1, data.shape[1])
    points = np.append(np.where(inside, points, 0).ravel(), 0)
    order = None if leaves == 1 else _leaf_order(x, kd, metric, nodes, bounds)
    reduced = metric.term(data.dtype, padded)(x)
    if metric.name == "hamming" and not inside.all():
        # The padding points are infinite, which the other metrics find infinitely far.
        reduced = t.where(t.constant(inside.reshape(1, -1)), reduced, np.inf)
    return Search(metric, data.shape[1], reduced, points, np.inf, order, 0 if order is None else block, ties="heap")


def _leaf_order(x: Node, kd: bool, metric: Metric, nodes: Array, bounds: Array) -> Node:
    """The leaves of a complete binary tree in the order of a search, i64[N,
    leaves]: the nearer child first, the left one if both are as near."""
    if kd:
        # The differences are written out twice, as nodes of their own: a node that is read twice would be kept in memory, [N, nodes, F].
        wide = t.reshape(x, N, 1, x.type.columns)
        below, above = bounds[0][None, 1:], bounds[1][None, 1:]
        one, other = (t.maximum(difference, 0.0) for difference in (t.sub(below, wide), t.sub(wide, above)))
        if metric.name == "euclidean":
            # At most one of `one` and `other` is above 0, so at most one product is not 0.
            outside = t.add(t.mul(t.sub(below, wide), one), t.mul(t.sub(wide, above), other))
        elif metric.name == "minkowski":
            outside = CPower(metric.p)(t.add(one, other))
        else:
            outside = t.add(one, other)
        least = t.max_(outside, 2) if metric.name == "chebyshev" else t.sum_(outside, 2, ordered=True)
    else:
        centres = metric.distance(metric.term(bounds.dtype, bounds[0][1:])(x), bounds.shape[2])
        least = t.maximum(t.sub(centres, nodes["radius"][None, 1:]), 0.0)
        if metric.name in ("euclidean", "seuclidean"):
            least = t.mul(least, least)
        elif metric.name == "minkowski":
            least = CPower(metric.p)(least)
    pairs = len(nodes) // 2
    left, right = (t.take(least, np.arange(side, 2 * pairs, 2), axis=1) for side in (0, 1))
    right_first = t.cast(t.less(right, left), "i64")  # for every inner node, whether the right child is nearer
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
