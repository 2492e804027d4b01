"""Converters for Isomap and LocallyLinearEmbedding, the embeddings of sklearn.manifold that can transform new points."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.barycentre import Barycentre
from hbc.parser.frame import Refusal
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.kernel_methods import projected
from hbc.parser.sklearn.neighbors import nearest_of
from hbc.parser.sklearn.shared.common import as_float, checked


def _near(m: Any, x: Node) -> Node:
    """x. A call is rejected for numbers so large that the square of a distance could overflow."""
    kind = np.float32 if x.type.dtype == "f32" else np.float64
    return checked(m, x, limit=float(np.sqrt(np.finfo(kind).max / m.n_features_in_)) / 4)


FARTHEST, FARTHEST_F32 = 1e7, 1e3
"""The largest distance of a row from the training points that Isomap accepts, for float64 and float32; in units of the largest distance
between training points. Reason: the kernel is centred by subtracting about the square of this distance. That cancels 1e7 times the size
of the result (1e3 for float32), so that rounding errors are 1e-9 of the result (1e-4). At 1e18 only rounding errors would be left."""


@converts("sklearn.manifold.Isomap")
def isomap(m: Any, x: Node) -> Result:
    """`transform` gives kernel_pca_ applied to -g² / 2. g[n, j] is the length of the shortest way from row n to training point j: to one of
    the row's nearest training points, and from there along the graph of neighbours. Raises Refusal for neighbours within a radius."""
    if m.n_neighbors is None:
        raise Refusal("its neighbours are those within a radius.", "Use n_neighbors.")
    x = _near(m, x)
    single = x.type.dtype == "f32"
    distances, neighbours = nearest_of(m.nbrs_, x, m.nbrs_.n_neighbors)
    known = np.asarray(m.dist_matrix_)
    common = dtype_name(np.result_type(known.dtype, NUMPY_DTYPES[distances.type.dtype]))
    ways = []
    for rank in range(m.nbrs_.n_neighbors):
        neighbour, distance = (t.take(values, np.array([rank]), axis=1) for values in (neighbours, distances))
        onward = t.take(known.astype(NUMPY_DTYPES[common]), t.reshape(neighbour, N), axis=0)
        ways.append(t.add(onward, t.cast(distance, common)))
    geodesic = t.cast(reduce(t.minimum, ways), "f32" if single else "f64")
    # Of training points that are all equal every row gets 0, however far it is.
    farthest = (FARTHEST_F32 if single else FARTHEST) * (float(np.max(known, initial=0)) or np.inf)
    return projected(m.kernel_pca_, checked(m.kernel_pca_, t.mul(t.mul(geodesic, geodesic), -0.5), limit=farthest**2 / 2))


LEAST_RIDGE = 1e-6
"""The least `reg` of LocallyLinearEmbedding that converts. Two ways to solve for
the weights differ by 1e-16 / reg; at the default reg of 1e-3 that is 1e-13."""


@converts("sklearn.manifold.LocallyLinearEmbedding")
def locally_linear_embedding(m: Any, x: Node) -> Result:
    """`transform` gives a weighted mean of the embedded positions of the nearest training points. Their weights are those with which these
    points best reproduce the row. Raises Refusal if `reg` is below LEAST_RIDGE."""
    if m.reg < LEAST_RIDGE:
        raise Refusal(
            f"its reg is {m.reg:g}. The weights of a row then solve equations that are almost singular, so that they depend on rounding.",
            f"Fit it with a reg of at least {LEAST_RIDGE:g} (1e-3 is the default).",
        )
    x = _near(m, x)  # the source cannot solve for weights with infinite distances
    _, neighbours = nearest_of(m.nbrs_, x, m.n_neighbors)
    points, embedding = np.asarray(m.nbrs_._fit_X, np.float64), np.asarray(m.embedding_)
    x = as_float(x)
    kind = x.type.dtype  # the source stores the weights in x's dtype
    differences = t.sub(t.take(points, neighbours, axis=0), t.reshape(t.cast(x, "f64"), N, 1, points.shape[1]))
    weights = t.cast(t.cast(Barycentre(float(m.reg))(differences), kind), "f64")
    moved = t.mul(t.take(embedding, neighbours, axis=0), t.reshape(weights, N, m.n_neighbors, 1))
    return t.sum_(moved, 1)
