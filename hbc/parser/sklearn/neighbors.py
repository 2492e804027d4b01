"""Converters for sklearn.neighbors: predictions from the nearest training points, or from all within a radius."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.ops.checks import CheckValues
from hbc.ops.nearest import Present, Scatter
from hbc.parser.frame import Refusal
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.release import since
from hbc.parser.sklearn.shared.common import checked, promote
from hbc.parser.sklearn.shared.distances import REDUCTIONS, Search, search

ADVICE = "Use weights='uniform' or 'distance'."


def _searched(m: Any, x: Node, ordered: bool = True, distances: bool = False) -> Search:
    """The search of m for the checked input. `distances`: the points are weighted by distance. Then numbers that make Euclidean distances
    overflow are rejected: infinite distances have no weight, and the source raises an error if all are infinite."""
    limit = np.inf
    if distances and m._fit_method != "brute" and m.effective_metric_ in ("euclidean", "l2"):
        limit = float(np.sqrt(np.finfo(np.float64).max))
    return search(m, checked(m, x, allow_nan=m.metric == "nan_euclidean", limit=limit), ordered)


def _nearest(m: Any, found: Search, k: int, listed: bool = False) -> Node:
    """The columns of the k nearest points (see Search.nearest). Raises Refusal if there are fewer than k points."""
    if k > m.n_samples_fit_:
        raise Refusal(
            f"it asks for {k} neighbours of {m.n_samples_fit_} samples: the source raises an error.", "Fit it on more samples."
        )
    return found.nearest(k, listed)


def _kneighbors(m: Any, found: Search, k: int) -> tuple[Node, ...]:
    """(distances [N, k] to the k nearest training points, their numbers i64[N, k]). For k > 15, equally near points stand in the order of
    the training data or of the tree; the source leaves them in the order of its quicksort."""
    columns = _nearest(m, found, k, listed=True)
    return found.distances(columns), found.look_up(np.arange(m.n_samples_fit_), columns)


def nearest_of(m: Any, x: Node, k: int) -> tuple[Node, Node]:
    """`kneighbors` for the checked input: (distances [N, k], numbers of the training points i64[N, k])."""
    distances, numbers = _kneighbors(m, _searched(m, x), k)
    return distances, numbers


def _weights(m: Any, found: Search, columns: Node) -> Node | None:
    """The weights of the points in `columns`, [N, k]: 1 / distance. If some are at distance 0, these get 1 and the others 0
    (_get_weights). None for uniform weights. Raises Refusal for weights that are a function."""
    if m.weights in (None, "uniform"):
        return None
    if m.weights != "distance":
        raise Refusal("its weights are a function.", ADVICE)
    _require_zeros(m)
    weights = t.div(1.0, found.distances(columns))
    infinite = t.cast(t.equal(t.absolute(weights), np.inf), weights.type.dtype)
    return t.where(t.less(0.0, t.max_(infinite, 1, keepdims=True)), infinite, weights)


def _require_zeros(m: Any) -> None:
    """Raises Refusal for the cosine metric, under which the distance 0 depends on rounding."""
    if m.effective_metric_ == "cosine":
        raise Refusal(
            "its weights are 1 / cosine distance. For an equal or parallel row this distance is 0 or 1e-16, so that rounding decides "
            "whether the weight is infinite.",
            "Use weights='uniform', or Normalizer() before metric='euclidean'.",
        )


def _outputs(m: Any) -> list[tuple[Array, Array]]:
    """For every output of a classifier (its classes, the number of the class of each training point)."""
    if not m.outputs_2d_:
        return [(np.asarray(m.classes_), np.asarray(m._y).reshape(-1))]
    return [(np.asarray(classes), np.asarray(m._y)[:, i]) for i, classes in enumerate(m.classes_)]


def _labelled(m: Any, outputs: list[tuple[Array, Array]], indices: list[Node], others: list[Any] | None = None) -> Node:
    """Class labels from the class numbers of each output: [N], or [N, outputs] in the dtype of the first output's classes. `others`: for
    each output one more label, behind its classes."""
    columns = []
    for i, ((classes, _), index) in enumerate(zip(outputs, indices, strict=True)):
        known = np.empty(len(classes) + (others is not None), outputs[0][0].dtype)
        known[: len(classes)] = classes
        if others is not None:
            known[-1] = others[i]
        columns.append(labels(known, index))
    if not m.outputs_2d_:
        return columns[0]
    return t.concat([t.reshape(column, "N", 1) for column in columns])


# --- the k nearest ---------------------------------------------------------------------------------------------------


def _params_agree(m: Any) -> None:
    """Raises Refusal if metric_params hold another p than the estimator itself."""
    given = (m.metric_params or {}).get("p", m.p)
    if m.metric == "minkowski" and given != m.p:
        raise Refusal("its metric_params hold another p than its parameter p, and the source uses both.", f"Set p={given}.")


@converts("sklearn.neighbors.KNeighborsClassifier")
def k_neighbors_classifier(m: Any, x: Node) -> Result:
    """proba[n, c] is the share of class c in the weights of the k nearest
    points. `predict` gives the first class with the largest share."""
    _params_agree(m)
    found = _searched(m, x, distances=m.weights == "distance")
    columns = _nearest(m, found, m.n_neighbors)
    weights = _weights(m, found, columns)
    outputs = _outputs(m)
    probabilities, indices = [], []
    for classes, codes in outputs:
        near = found.look_up(codes.astype(np.int32), columns)
        votes = t.equal(t.reshape(near, "N", m.n_neighbors, 1), np.arange(len(classes), dtype=np.int32)[None, None])
        if weights is None:
            counts = t.sum_(t.cast(votes, "f64"), 1)
        else:
            counts = t.sum_(t.where(votes, t.reshape(t.cast(weights, "f64"), "N", m.n_neighbors, 1), 0.0), 1, ordered=True)
        indices.append(t.argmax(counts, 1))
        probabilities.append(t.div(counts, t.sum_(counts, 1, keepdims=True)))
    return {
        "predict": _labelled(m, outputs, indices),
        "predict_proba": tuple(probabilities) if m.outputs_2d_ else probabilities[0],
        "kneighbors": _kneighbors(m, found, m.n_neighbors),
    }


@converts("sklearn.neighbors.KNeighborsRegressor")
def k_neighbors_regressor(m: Any, x: Node) -> Result:
    """`predict` gives the (weighted) mean of the targets of the k nearest points."""
    found = _searched(m, x)
    columns = _nearest(m, found, m.n_neighbors)
    weights = _weights(m, found, columns)
    targets = np.asarray(m._y)
    if targets.dtype.kind != "f":
        targets = targets.astype(np.float64)
    table = targets.reshape(len(targets), -1)
    near = found.look_up(table, columns)
    if weights is None:
        y = t.div(t.sum_(near, 1, ordered=True), float(m.n_neighbors))
    else:
        common = dtype_name(np.result_type(NUMPY_DTYPES[weights.type.dtype], table.dtype))
        product = t.mul(t.cast(near, common), t.reshape(t.cast(weights, common), "N", m.n_neighbors, 1))
        total = t.cast(t.sum_(weights, 1, keepdims=True), "f64")
        y = t.div(t.cast(t.sum_(product, 1, ordered=True), "f64"), total)
    return {"predict": t.reshape(y, "N") if targets.ndim == 1 else y, "kneighbors": _kneighbors(m, found, m.n_neighbors)}


@converts("sklearn.neighbors.NearestNeighbors")
def nearest_neighbors(m: Any, x: Node) -> Result:
    found = _searched(m, x)
    return {"kneighbors": _kneighbors(m, found, m.n_neighbors)}


@converts("sklearn.neighbors.KNeighborsTransformer")
def k_neighbors_transformer(m: Any, x: Node) -> Result:
    """`transform` gives the graph of neighbours, f64[N, M]: the distance to each of the k nearest training points (mode="distance", which
    takes one more point), or 1 (mode="connectivity"); 0 for the other points."""
    found = _searched(m, x)
    columns = _nearest(m, found, m.n_neighbors + (m.mode == "distance"), listed=True)
    numbers = found.look_up(np.arange(m.n_samples_fit_), columns)
    values = t.cast(found.distances(columns) if m.mode == "distance" else t.equal(numbers, numbers), "f64")
    return {"transform": Scatter(m.n_samples_fit_)(numbers, values), "kneighbors": _kneighbors(m, found, m.n_neighbors)}


@converts("sklearn.neighbors.LocalOutlierFactor")
def local_outlier_factor(m: Any, x: Node) -> Result:
    """`score_samples` gives the negative mean of d / d_own, where d are the local reachability densities of the neighbours and d_own is
    that of the row. Raises Refusal for novelty=False, which has no methods for new data."""
    if not m.novelty:
        raise Refusal("it was fitted with novelty=False, and has no methods for new data.", "Fit it with novelty=True.")
    x = checked(m, x)
    k = m.n_neighbors_
    found = search(m, x)
    columns = _nearest(m, found, k)
    distances = found.distances(columns)
    if x.type.dtype == "f32":
        distances = t.cast(distances, "f32")
    furthest = np.asarray(m._distances_fit_X_)[:, k - 1]
    common = dtype_name(np.result_type(NUMPY_DTYPES[distances.type.dtype], furthest.dtype))
    reach = t.maximum(t.cast(distances, common), t.cast(found.look_up(furthest, columns), common))
    density = t.div(1.0, t.add(t.div(t.sum_(reach, 1, keepdims=True), float(k)), 1e-10))
    densities = found.look_up(np.asarray(m._lrd), columns)
    wider = dtype_name(np.result_type(NUMPY_DTYPES[density.type.dtype], NUMPY_DTYPES[densities.type.dtype]))
    ratios = t.div(t.cast(densities, wider), t.cast(density, wider))
    score = t.neg(t.div(t.sum_(ratios, 1), float(k)))
    offset = np.asarray(m.offset_)
    decision = _minus(score, m.offset_, offset)
    inlier = t.less_equal(0.0, decision)
    # The source starts from ones and sets `is_inlier[X < 0] = -1`, so NaN counts as an inlier.
    predicted = t.where(t.less(decision, 0.0), t.constant(-1), t.cast(t.logical_or(inlier, t.logical_not(inlier)), "i64"))
    outputs: dict[str, Node | tuple[Node, ...]] = {"predict": predicted, "decision_function": decision, "score_samples": score}
    if m.n_neighbors <= m.n_samples_fit_:  # otherwise the source's own raises an error
        outputs["kneighbors"] = _kneighbors(m, found, m.n_neighbors)
    return outputs


def _minus(x: Node, number: Any, array: Array) -> Node:
    """x - number in numpy's dtype: a Python float takes x's dtype, a numpy scalar may widen it. `array` is the number as an array."""
    if isinstance(number, float) and not isinstance(number, np.generic):
        return t.sub(x, number)
    common = dtype_name(np.result_type(NUMPY_DTYPES[x.type.dtype], array.dtype))
    return t.sub(t.cast(x, common), array.astype(NUMPY_DTYPES[common]))


# --- all within a radius ---------------------------------------------------------------------------------------------


def _near_weights(m: Any, found: Search, near: Node) -> Node:
    """The weight of every training point, f64[N, M]; 0 beyond the radius. `near` (bool[N, M]): the points within the radius."""
    if m.weights in (None, "uniform"):
        return t.cast(near, "f64")
    if m.weights != "distance":
        raise Refusal("its weights are a function.", ADVICE)
    _require_zeros(m)
    distances = t.cast(found.all_distances(), "f64")
    zero = t.cast(t.logical_and(near, t.equal(distances, 0.0)), "f64")
    return t.where(t.less(0.0, t.max_(zero, 1, keepdims=True)), zero, t.where(near, t.div(1.0, distances), 0.0))


def _never_alone(m: Any, count: Node) -> Node:
    """count[N, 1], the number of neighbours. Rows that have none are rejected, as the source does."""
    none = np.zeros(1, bool)
    return CheckValues(
        public_name(type(m)),
        allow_nan=True,
        allow_inf=True,
        values=np.zeros((1, 1)),
        counts=np.ones(1, np.int64),
        nan=none,
        none=none,
        columns=("the number of neighbours within the radius",),
        allowed=False,
    )(count)


@converts("sklearn.neighbors.RadiusNeighborsClassifier")
def radius_neighbors_classifier(m: Any, x: Node) -> Result:
    """proba[n, c] is the share of class c in the weights of all points within the radius. A row with no such points gets the outlier label,
    or is rejected if there is none."""
    _params_agree(m)
    found = _searched(m, x, ordered=False)
    near = found.within(m.radius)
    count = t.sum_(t.cast(near, "f64"), 1, keepdims=True)
    if m.outlier_label_ is None:
        count = _never_alone(m, count)
    alone = t.equal(count, 0.0)
    weights = _near_weights(m, found, near)
    outputs = _outputs(m)
    outliers = [None] * len(outputs) if m.outlier_label_ is None else list(m.outlier_label_)
    by_number = (
        m.weights == "uniform" and m._fit_method == "brute" and not m.outputs_2d_ and found.metric.alias in REDUCTIONS
    ) and found.metric.alias not in ("euclidean", "sqeuclidean")
    by_number = by_number and np.asarray(m._fit_X).dtype == NUMPY_DTYPES[x.type.dtype]
    probabilities, indices = [], []
    for (classes, codes), outlier in zip(outputs, outliers, strict=True):
        votes = t.matmul(weights, np.eye(len(classes))[codes])
        # One of the source's ways to compute this looks for what was given as the label, from 1.9 on among the numbers of the classes.
        names = np.arange(len(classes)) if by_number and since(1, 9) else classes
        match = names == (m.outlier_label if by_number else outlier)
        own = np.asarray(match, bool).astype(np.float64) if np.ndim(match) else np.zeros(len(classes))
        if outlier is None or own.sum() != 1:
            own = np.zeros(len(classes))
        votes = t.where(alone, own[None], votes)
        total = t.sum_(votes, 1, keepdims=True)
        proba = t.div(votes, t.where(t.equal(total, 0.0), 1.0, total))
        probabilities.append(proba)
        best = t.argmax(proba, 1)
        if outlier is not None:
            best = t.where(t.equal(t.reshape(total, "N"), 0.0), t.constant(len(classes)), best)
        indices.append(best)
    others = None if m.outlier_label_ is None else outliers
    return {
        "predict": _labelled(m, outputs, indices, others),
        "predict_proba": tuple(probabilities) if m.outputs_2d_ else probabilities[0],
    }


@converts("sklearn.neighbors.RadiusNeighborsRegressor")
def radius_neighbors_regressor(m: Any, x: Node) -> Result:
    """`predict` gives the (weighted) mean of the targets of all points within the radius. A row with no such points gives NaN, or is
    rejected if targets are integers."""
    found = _searched(m, x, ordered=False)
    near = found.within(m.radius)
    weights = _near_weights(m, found, near)
    targets = np.asarray(m._y)
    total = t.matmul(weights, targets.reshape(len(targets), -1).astype(np.float64))
    share = t.sum_(weights, 1, keepdims=True)
    count = t.sum_(t.cast(near, "f64"), 1, keepdims=True)
    if targets.dtype.kind != "f":
        count = _never_alone(m, count)  # the source casts NaN to an integer, which gives different numbers on different CPUs
    y = t.where(t.equal(count, 0.0), np.nan, t.div(total, share))
    if m.weights in (None, "uniform") and targets.dtype == np.float32:
        y = t.cast(y, "f32")
    return {"predict": t.reshape(y, "N") if targets.ndim == 1 else y}


@converts("sklearn.neighbors.RadiusNeighborsTransformer")
def radius_neighbors_transformer(m: Any, x: Node) -> Result:
    """`transform` gives the graph of neighbours, f64[N, M]: the distance to every training point within the radius, or 1
    (mode="connectivity"); 0 for the other points."""
    found = _searched(m, x, ordered=False)
    values = t.constant(1.0) if m.mode == "connectivity" else t.cast(found.all_distances(), "f64")
    return Present()(t.where(found.within(m.radius), values, -1.0))


# --- others ----------------------------------------------------------------------------------------------------------


@converts("sklearn.neighbors.NeighborhoodComponentsAnalysis")
def neighborhood_components_analysis(m: Any, x: Node) -> Result:
    """`transform` gives x · componentsᵀ, in the common dtype."""
    x, (components,) = promote(checked(m, x), m.components_)
    return t.matmul(x, components.T)
