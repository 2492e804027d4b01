"""Where few rows of deep trees go through patches, and many rows are walked."""

from __future__ import annotations

from hbc.compiler.costs import Shape, beyond
from hbc.compiler.tvm.trees.patches.packed_patches import passed
from hbc.compiler.tvm.trees.patches.scanned_tops import EXITS, LEVELS
from hbc.compiler.tvm.trees.walk.walk import TREES_IN_TILE

MOST_STEPS = 22
"""The most steps of a tree, on average. Forests of unlimited depth have more. By the times below those of 1,250 leaves a tree would be
walked, which takes a tenth longer."""
LEAST_TREES = 16
"""Fewer trees leave a row that goes through patches alone little to do at once: 100 rows of 5 trees take twice as long as
tree by tree."""
CACHE = 32 << 10
"""The bytes of nodes that stay in the first cache."""


def many_rows_walk(s: Shape) -> bool:
    """Whether many rows walk trees sooner than they go through patches, on processors of `Dialect.quick_walks`.

    The nanoseconds were fitted on Zen 5 (hbc/compiler/costs.json). Forests have many thresholds, so that the tops of trees have many planes
    of ranks. If their depth is limited, their walks have few steps. 10,000 rows of 100 trees of depth 16 take 0.69 µs each walked, and 0.84
    through patches; one row 1.53 and 1.38. Those of unlimited depth take 1.29 and 1.06.
    """
    if s.steps > MOST_STEPS * s.trees or s.trees < LEAST_TREES:
        return False
    behind = s.trees * max(passed(s.splits, s.trees) - LEVELS, 0)
    planes = max(s.planes - s.columns, 0) * min((EXITS - 1) * s.trees / max(s.splits, 1), 1)
    patches = 2.2 * behind + 3.9 * planes + 0.65 * s.columns
    tile = 2 * s.bytes * 2 * s.splits / max(s.trees, 1) * TREES_IN_TILE
    walk = 1.2 * s.trees + (0.12 + 0.052 * beyond(tile, CACHE)) * s.steps + 0.2 * s.mean_depth * s.trees
    return walk < patches
