"""Trees for tests of the kernels that scan: a tree of one split, random ensembles, and rows at their thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.types import Array
from hbc.ops.tree import Tree, TreeEnsemble, join


def stump(feature: int = 1, threshold: float = 0.5, **options: Any) -> TreeEnsemble:
    """One tree: x[:, feature] <= threshold, NaN to the left, leaves 10 and 20."""
    return TreeEnsemble(
        roots=np.zeros(1, np.int32),
        feature=np.array([feature, -1, -1], np.int32),
        threshold=np.array([threshold, 0, 0]),
        left=np.array([1, 0, 1], np.int32),
        right=np.array([2, 0, 1], np.int32),
        missing_left=np.array([True, False, False]),
        values=np.array([[10.0], [20.0]]),
        target=np.zeros(1, np.int32),
        leaf_ids=np.array([1, 2]),
        base=np.zeros(1),
        **options,
    )


def random_tree(
    rng: np.random.Generator, leaves: int, features: int, dtype: str, values: Array, missing: bool, digits: int = 2
) -> Tree:
    """A tree grown by splitting random leaves; thresholds repeat, so that ranks tie."""
    feature, left, right = [-1], [0], [0]
    open_leaves = [0]
    while len(open_leaves) < leaves:
        node = open_leaves.pop(rng.integers(len(open_leaves)))
        feature[node], left[node], right[node] = int(rng.integers(features)), len(feature), len(feature) + 1
        open_leaves += [len(feature), len(feature) + 1]
        feature += [-1, -1]
        left += [0, 0]
        right += [0, 0]
    size = len(feature)
    return Tree(
        feature=np.array(feature),
        threshold=np.round(rng.normal(size=size), digits).astype(dtype),
        left=np.array(left),
        right=np.array(right),
        missing_left=rng.random(size) < 0.5 if missing else np.zeros(size, bool),
        values=values[rng.integers(len(values), size=size)],
    )


def rows_at_thresholds(rng: np.random.Generator, op: TreeEnsemble, rows: int, features: int) -> Array:
    """Rows of thresholds, numbers one ulp beside them, NaN, infinities, −0.0, subnormals, and other numbers."""
    dtype = op.threshold.dtype
    at = rng.choice(op.threshold, (rows, features))
    special = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).smallest_subnormal], dtype), (rows, features))
    choices = [at, np.nextafter(at, dtype.type(np.inf)), np.nextafter(at, dtype.type(-np.inf)), special]
    choices.append(rng.normal(size=(rows, features)).astype(dtype))
    return np.choose(rng.integers(len(choices), size=(rows, features)), choices).astype(dtype)


RANDOM = {  # trees, most leaves, features, dtype of thresholds and of values, outputs, vector leaves, NaN both ways
    "one leaf table register": (13, 31, 5, "f4", "f8", 1, False, True),
    "float32 sums": (13, 31, 5, "f4", "f4", 1, False, True),
    "two registers, float64 thresholds": (50, 100, 6, "f8", "f8", 1, False, True),
    "four registers, classes by tree": (20, 250, 3, "f4", "f8", 3, False, False),
    "several planes a feature": (60, 250, 2, "f4", "f8", 1, False, True),
    "vector leaves": (20, 64, 3, "f4", "f8", 3, True, True),
    "leaves of 16 bits": (20, 400, 3, "f8", "f4", 2, True, True),
    "single leaf": (1, 1, 1, "f4", "f8", 1, False, False),
    "planes in two registers": (40, 60, 100, "f4", "f8", 1, False, False),
    "planes in four registers, NaN both ways": (70, 60, 100, "f8", "f8", 1, False, True),
    "several groups of lanes": (330, 40, 9, "f4", "f4", 1, False, True),
    "several groups of lanes, classes by tree": (150, 31, 9, "f4", "f8", 3, False, False),
    "several groups of lanes, vector leaves": (150, 31, 9, "f4", "f8", 3, True, True),
}


def random_ensemble(kind: str, rows: int) -> tuple[TreeEnsemble, Array]:
    """One of RANDOM, and rows for it."""
    trees, leaves, features, dtype, values_dtype, outputs, vector, missing = RANDOM[kind]
    rng = np.random.default_rng(trees)
    values = rng.normal(size=(500, outputs if vector else 1)).astype(values_dtype)
    grown = [random_tree(rng, int(rng.integers(1, leaves + 1)), features, dtype, values, missing) for _ in range(trees)]
    op = join(grown, rng.normal(size=outputs), None if vector else np.arange(trees) % outputs)
    return op, rows_at_thresholds(rng, op, rows, features)
