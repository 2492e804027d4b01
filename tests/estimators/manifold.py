"""sklearn.manifold."""

from __future__ import annotations

import numpy as np
from sklearn.manifold import Isomap

from .case import Case

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
TRAIN = RNG.normal(size=(60, 3))

CASES = [
    Case("Isomap", lambda: (Isomap(n_neighbors=6).fit(TRAIN), X), float32=False),
    Case(
        "Isomap manhattan, 3 components",
        lambda: (Isomap(n_neighbors=8, n_components=3, metric="manhattan").fit(TRAIN), X),
        float32=False,
    ),
    Case("Isomap fitted on float32", lambda: (Isomap(neighbors_algorithm="brute").fit(TRAIN.astype("f4")), X), float32=False),
    Case(
        "Isomap of float32",
        lambda: (Isomap(n_neighbors=6).fit(TRAIN), X.astype("f4")),
        rtol=1e-4,
        atol=1e-5,
        reason="the kernel, squares of up to 30, is float32, and so are the sums of its rows; only the result is float64",
    ),
]
