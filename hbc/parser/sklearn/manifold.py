"""sklearn.manifold: the embeddings that place new points."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, N, dtype_name
from hbc.ops import tensor as t
from hbc.ops.factors import Barycentre
from hbc.parser.frame import Refusal
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.kernel_methods import projected
from hbc.parser.sklearn.neighbors import nearest_of
from hbc.parser.sklearn.shared.common import checked, own_number


def _near(m: Any, x: Node) -> Node:
    """x, checked to be no further away than distances can be squared."""
    kind = np.float32 if x.type.dtype == "f32" else np.float64
    return checked(m, x, limit=float(np.sqrt(np.finfo(kind).max / m.n_features_in_)) / 4)


FARTHEST, FARTHEST_F32 = 1e7, 1e3
"""Of Isomap's rows from the training points, in the largest distance between these. The centering takes off the square of how far a
row is, of whose last bits 1e7 times as many are left (1e3 of float32): 1e-9 and 1e-4 of the result. At 1e18 all of it is rounding."""


@converts("sklearn.manifold.Isomap")
def isomap(m: Any, x: Node) -> Result:
    """kernel_pca_ of -g² / 2, where g[n, j] = the least of the distances to row n's nearest training points plus theirs to point j along
    the graph of neighbours."""
    if m.n_neighbors is None:
        raise Refusal("its neighbours are those within a radius.", "Use n_neighbors.")
    x = _near(m, x)
    single = x.type.dtype == "f32"
    distances, places = nearest_of(m.nbrs_, x, m.nbrs_.n_neighbors)
    known = np.asarray(m.dist_matrix_)
    common = dtype_name(np.result_type(known.dtype, NUMPY_DTYPES[distances.type.dtype]))
    ways = []
    for neighbour in range(m.nbrs_.n_neighbors):
        place, distance = (t.take(values, np.array([neighbour]), axis=1) for values in (places, distances))
        onward = t.take(known.astype(NUMPY_DTYPES[common]), t.reshape(place, N), axis=0)
        ways.append(t.add(onward, t.cast(distance, common)))
    geodesic = t.cast(reduce(t.minimum, ways), "f32" if single else "f64")
    farthest = (FARTHEST_F32 if single else FARTHEST) * float(np.max(known, initial=1e-30))
    return projected(m.kernel_pca_, checked(m.kernel_pca_, t.mul(t.mul(geodesic, geodesic), -0.5), limit=farthest**2 / 2))


LEAST_RIDGE = 1e-6
"""Of LocallyLinearEmbedding's reg. The weights of two ways to solve differ by 1e-16 / reg: by 1e-13 at the default of 1e-3."""


@converts("sklearn.manifold.LocallyLinearEmbedding")
def locally_linear_embedding(m: Any, x: Node) -> Result:
    """The mean of the nearest training points' places, by the weights with which these points make up the row."""
    if m.reg < LEAST_RIDGE:
        raise Refusal(
            f"its reg is {m.reg:g}: the weights of a row solve equations so near to singular that they hang on the order of rounding.",
            f"Fit it with a reg of at least {LEAST_RIDGE:g} (1e-3 is the default).",
        )
    x = _near(m, x)  # the source solves for no infinite distances
    _, places = nearest_of(m.nbrs_, x, m.n_neighbors)
    points, embedding = np.asarray(m.nbrs_._fit_X, np.float64), np.asarray(m.embedding_)
    x = own_number(x)
    kind = x.type.dtype  # in which the source stores the weights
    differences = t.sub(t.take(points, places, axis=0), t.reshape(t.cast(x, "f64"), N, 1, points.shape[1]))
    weights = t.cast(t.cast(Barycentre(float(m.reg))(differences), kind), "f64")
    placed = t.mul(t.take(embedding, places, axis=0), t.reshape(weights, N, m.n_neighbors, 1))
    return t.sum_(placed, 1)
