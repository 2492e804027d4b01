"""What the converters of LightGBM and XGBoost share."""

from __future__ import annotations

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.tree import CategoryPlanes


def rounded_down(thresholds: Array) -> Array:
    """The largest float32 ≤ each float64 threshold: for a float32 x, `x <= threshold` in float64 is `x <= rounded` in float32."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = thresholds.astype(np.float32)
        return np.where(rounded.astype(np.float64) > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


class PlaneTable:
    """The set tests of an ensemble, each (feature, set, side of missing values) once, as columns behind those of x."""

    def __init__(self, n_features: int, *, sets_go_left: bool) -> None:
        self.n_features = n_features
        self.sets_go_left = sets_go_left
        self._planes: dict[tuple[int, bytes, bool], int] = {}

    def add(self, feature: int, categories: Array, *, missing_left: bool) -> int:
        """The column to compare with 0.5 instead of testing whether `feature` is one of `categories`."""
        key = feature, np.sort(categories.astype(np.int64)).tobytes(), missing_left
        return self.n_features + self._planes.setdefault(key, len(self._planes))

    def behind(self, x: Node) -> Node:
        """x, and behind it the planes."""
        if not self._planes:
            return x
        sets = [np.frombuffer(categories, np.int64) for _, categories, _ in self._planes]
        left = np.full(len(sets), self.sets_go_left)
        planes = CategoryPlanes(
            columns=np.array([feature for feature, _, _ in self._planes], np.int64),
            categories=np.concatenate(sets),
            offsets=np.cumsum([0, *map(len, sets)]).astype(np.int64),
            inside=~left,
            missing=np.array([not missing_left for _, _, missing_left in self._planes]),
            invalid=left,
            truncate_negative=self.sets_go_left,
            limit=2.0**31 if self.sets_go_left else 2.0**24,
        )
        return t.concat([x, planes(x)])
