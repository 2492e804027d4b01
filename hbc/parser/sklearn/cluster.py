"""Converters for the classes of sklearn.cluster that assign new rows to clusters: `predict`, and `transform` to distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Arrays, Column
from hbc.ir.types import NUMPY_DTYPES, Array, dtype_name
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal
from hbc.parser.front_door import ANY_INTEGER, in_dtype_of, note, note_input
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.shared.common import checked, float_of, rejected
from hbc.parser.sklearn.shared.distances import euclidean_distances, squared_expanded
from hbc.parser.sklearn.shared.kernels import dense


def nearest_centre(x: Node, centres: Array, norms: Array | None = None) -> Node:
    """The number of the nearest centre, i64[N], and the first of equally near ones, as pairwise_distances_argmin finds it: by
    x² - 2xy + y² in float64. `norms`: the y², if the source has them ready."""
    squares = squared_expanded(x, centres, norms)
    return t.argmax(t.neg(t.where(t.less(0.0, squares), squares, 0.0)), 1)


def _own_dtype(m: Any, x: Node, centres: Array) -> Node:
    """x in the dtype of the centres. An x of another float dtype is rejected at every call, because the source's `predict` (Lloyd's
    kernel) takes one dtype for both."""
    if NUMPY_DTYPES[x.type.dtype] == centres.dtype:
        return x
    x = rejected(m, x, f"its centres are {centres.dtype}, and the source's predict takes that dtype only: cast it with astype")
    return t.cast(x, dtype_name(centres.dtype))


def _scores(x: Node, centres: Array) -> Node:
    """2 x·c - c² for every row x and centre c, [N, K], in their dtype. The nearest centre has the largest score."""
    norms = np.einsum("ij,ij->i", centres, centres)
    dtype = NUMPY_DTYPES[x.type.dtype]
    return t.sub(t.matmul(x, (2 * centres.T).astype(dtype)), norms.astype(dtype)[None])


@converts("sklearn.cluster.KMeans", "sklearn.cluster.MiniBatchKMeans")
def k_means(m: Any, x: Node) -> Result:
    centres = np.asarray(m.cluster_centers_)
    x = float_of(checked(m, x))
    wide = _own_dtype(m, x, centres)
    return {
        "predict": t.cast(t.argmax(_scores(wide, centres), 1), "i32"),
        "transform": euclidean_distances(x, centres),
    }


@converts("sklearn.cluster.BisectingKMeans")
def bisecting_k_means(m: Any, x: Node) -> Result:
    """`predict` goes down a tree of pairs of centres, each time to the nearer one, and to the left one if both are as near."""
    centres = np.asarray(m.cluster_centers_)
    x = float_of(checked(m, x))
    inner: list[Any] = []
    stack = [m._bisecting_tree]
    while stack:
        node = stack.pop()
        if node.left is not None:
            inner.append(node)
            stack += [node.left, node.right]
    found: dict[int, Node] = {}
    wide = _own_dtype(m, x, centres)
    if not inner:
        only = t.argmax(t.take(wide, np.array([0]), axis=1), 1)
        return {
            "predict": labels(np.array([m._bisecting_tree.label], np.int32), only),
            "transform": euclidean_distances(x, centres),
        }
    mean = m._X_mean if hasattr(m, "_X_mean") else np.zeros((), centres.dtype)
    left, right = (np.stack([getattr(node, side).center for node in inner]) + mean for side in ("left", "right"))
    go_right = t.less(_scores(wide, left), _scores(wide, right))
    for i in reversed(range(len(inner))):
        branches = []
        for child in (inner[i].left, inner[i].right):
            branches.append(found[id(child)] if child.left is not None else t.constant(np.array([[child.label]], np.int32)))
        found[id(inner[i])] = t.where(t.take(go_right, np.array([i]), axis=1), branches[1], branches[0])
    return {"predict": t.reshape(found[id(m._bisecting_tree)], "N"), "transform": euclidean_distances(x, centres)}


@converts("sklearn.cluster.MeanShift")
def mean_shift(m: Any, x: Node) -> Result:
    return {"predict": nearest_centre(checked(m, x), np.asarray(m.cluster_centers_))}


@converts("sklearn.cluster.AffinityPropagation")
def affinity_propagation(m: Any, x: Node) -> Result:
    """`predict` gives the number of the nearest exemplar, or -1 for all rows if the fit did not converge and found none."""
    if not hasattr(m, "cluster_centers_"):
        raise Refusal("its affinity is precomputed: it has no predict.", "Fit it with affinity='euclidean'.")
    x, centres = checked(m, x), dense(m.cluster_centers_)
    if not len(centres):
        return {"predict": labels(np.array([-1]), t.argmax(t.take(x, np.array([0]), axis=1), 1))}
    return {"predict": nearest_centre(x, centres)}


@converts("sklearn.cluster.Birch")
def birch(m: Any, x: Node) -> Result:
    """`predict` gives the label of the nearest subcluster centre, `transform` the distances to all of them."""
    note(x, Column(integer_bits=ANY_INTEGER))
    x = checked(m, x)
    centres = np.asarray(m.subcluster_centers_)
    nearest = nearest_centre(x, centres, np.asarray(m._subcluster_norms, np.float64))
    return {
        "predict": t.take(np.asarray(m.subcluster_labels_), nearest, axis=0),
        "transform": euclidean_distances(x, centres),
    }


@converts("sklearn.cluster.FeatureAgglomeration")
def feature_agglomeration(m: Any, x: Node) -> Result:
    """y[n, c] = the mean (or another pooling function) of row n over the features of cluster c."""
    x = checked(m, x)
    members = np.asarray(m.labels_)
    clusters = [np.flatnonzero(members == label) for label in np.unique(members)]
    if m.pooling_func is np.mean:
        # numpy's bincount adds in the order of the features, and divides afterwards: means of integers can be 0.
        x = t.cast(x, "f64")
        sums = [t.sum_(t.take(x, cluster, axis=1), 1, keepdims=True, ordered=True) for cluster in clusters]
        return t.div(t.concat(sums), np.array([[float(len(cluster)) for cluster in clusters]]))
    pools = {np.max: t.max_, np.min: t.min_, np.sum: t.sum_}
    if m.pooling_func not in pools:
        name = getattr(m.pooling_func, "__name__", type(m.pooling_func).__name__)
        raise Refusal(f"its pooling function is {name}.", "Use numpy's mean, max, min or sum.")
    # The sum of unsigned integers is unsigned.
    note(x, Column(integer_bits=ANY_INTEGER, signed=m.pooling_func is np.sum))
    pool = pools[m.pooling_func]
    y = t.concat([pool(t.take(x, cluster, axis=1), 1, keepdims=True) for cluster in clusters])
    note_input(Arrays(native_order=True))
    return y if m.pooling_func is np.sum else in_dtype_of(x, y)
