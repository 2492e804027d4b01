"""sklearn.manifold: the embeddings that place new points."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import NUMPY_DTYPES, N, dtype_name
from hbc.ops import tensor as t
from hbc.parser.frame import Refusal
from hbc.parser.registry import Result, converts
from hbc.parser.sklearn.common import checked
from hbc.parser.sklearn.kernel_methods import projected
from hbc.parser.sklearn.neighbors import nearest_of


@converts("sklearn.manifold.Isomap")
def isomap(m: Any, x: Node) -> Result:
    """kernel_pca_ of -g² / 2, where g[n, j] = the least of the distances to row n's nearest training points plus theirs to point j along
    the graph of neighbours."""
    if m.n_neighbors is None:
        raise Refusal("its neighbours are those within a radius.", "Use n_neighbors.")
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
    return projected(m.kernel_pca_, checked(m.kernel_pca_, t.mul(t.mul(geodesic, geodesic), -0.5)))
