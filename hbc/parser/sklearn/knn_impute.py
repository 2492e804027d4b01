"""The converter for sklearn.impute.KNNImputer."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, Array
from hbc.ops import tensor as t
from hbc.ops.missing import Impute
from hbc.ops.nearest import Smallest
from hbc.parser.frame import Refusal, select_columns
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.impute import Missing
from hbc.parser.sklearn.shared.common import checked, own_float
from hbc.parser.sklearn.shared.distances import nan_euclidean_distances


@converts("sklearn.impute.KNNImputer")
def knn_imputer(m: Any, x: Node) -> Result:
    """A missing value becomes the (weighted) mean over the k nearest training rows that have this column. If the row shares no column with
    any of them, it becomes the mean of the column."""
    if m.metric != "nan_euclidean":
        raise Refusal(f"its metric is {m.metric!r}, a function.", "Use metric='nan_euclidean'.")
    if m.weights not in ("uniform", "distance"):
        raise Refusal("its weights are a function.", "Use weights='uniform' or 'distance'.")
    missing = Missing(m.missing_values)
    x = checked(m, own_float(x), allow_nan=missing.nan)
    mask = missing.mask(x)
    if missing.nan:
        x = _without_nan(x, 0.0)  # later operators can then see that the result has no NaN
    data, absent = np.asarray(m._fit_X), np.asarray(m._mask_fit_X)
    valid = np.asarray(m._valid_mask)
    # Columns that were empty in fitting have no values in `data`, and take no part in the distances.
    distances = nan_euclidean_distances(x, data, mask, absent)
    top = float(np.finfo(NUMPY_DTYPES[distances.type.dtype]).max)
    # A distance of NaN means nothing in common: never near. An infinite distance counts as the largest finite one.
    keys = _without_nan(t.minimum(distances, top), np.inf)
    distances = _without_nan(distances, np.inf)
    columns = []
    for column in np.flatnonzero(valid) if not m.keep_empty_features else range(len(valid)):
        own = t.take(x, np.array([column]), axis=1)
        if valid[column]:
            # Absent values get weight 0, so that any number can stand for them.
            values = np.where(absent[:, column], data.dtype.type(0), data[:, column])
            value = _imputed(m, keys, distances, values, absent[:, column])
            own = t.where(t.take(mask, np.array([column]), axis=1), t.cast(value, x.type.dtype), own)
        else:
            own = t.where(t.equal(own, own), t.constant(np.zeros((1, 1)), x.type.dtype), 0.0)
        columns.append(own)
    y = t.concat(columns) if columns else select_columns(x, [])
    if m.add_indicator and len(m.indicator_.features_):
        y = t.concat([y, t.cast(select_columns(mask, list(m.indicator_.features_)), x.type.dtype)])
    return y


def _without_nan(x: Node, fill: float) -> Node:
    """x with `fill` in place of NaN."""
    return Impute(np.full(x.type.columns, fill, NUMPY_DTYPES[x.type.dtype]))(x)


def _imputed(m: Any, keys: Node, distances: Node, values: Array, absent: Array) -> Node:
    """The (weighted) mean of one column over the nearest training rows that have it, f64[N, 1]. `values` and `absent` are the column's
    training values and whether each is missing."""
    donors = int((~absent).sum())
    k = min(m.n_neighbors, donors)
    kind = distances.type.dtype
    near = keys if not absent.any() else t.where(t.constant(absent[None]), t.constant(np.inf, kind), keys)
    columns = Smallest(k)(near)
    taken = t.less(columns, len(values))
    place = t.minimum(columns, len(values) - 1)
    given = t.cast(t.take(np.asarray(values), place, axis=0), "f64")
    if m.weights == "uniform":
        weights = t.cast(taken, "f64")
    else:
        inverse = t.div(1.0, t.cast(t.take_along(distances, place), "f64"))
        inverse = t.where(taken, inverse, 0.0)
        infinite = t.cast(t.equal(inverse, np.inf), "f64")
        weights = t.where(t.less(0.0, t.max_(infinite, 1, keepdims=True)), infinite, inverse)
    share = t.sum_(weights, 1, keepdims=True)
    total = t.sum_(t.mul(given, weights), 1, keepdims=True)
    mean = t.where(t.equal(share, 0.0), total, t.div(total, share))
    nobody = t.equal(t.max_(t.cast(taken, "i8"), 1, keepdims=True), 0)
    return t.where(nobody, float(np.ma.array(values, mask=absent).mean()), mean)
