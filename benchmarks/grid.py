"""The grid of ensembles whose strategies are measured: random trees of given depths and numbers of leaves, with a fixed seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hbc.ops.tree import Tree, TreeEnsemble, join

Array = np.ndarray[Any, Any]
SEED = 5
DEPTHS = (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20)
TREES = (10, 30, 100, 300, 1000)
LEAVES = (31, 255, 4096)
"""The largest numbers of leaves of a tree. 2^depth limits them too, and MOST_LEAVES limits the leaves of a whole model."""
FEW_TREES, DEPTHS_OF_FEW, LEAVES_OF_FEW = (1, 3), (2, 4, 6, 8, 10, 12, 15, 20, 30, 40), (15, 63, 255, 1000, 4096)
"""The grid of a few trees, which libraries grow deeper: one of 255 leaves over 8 columns had depth 18."""
WIDE, DEPTHS_OF_WIDE, TREES_OF_WIDE, LEAVES_OF_WIDE = (300, 1000, 2000), (4, 6, 8), (1, 3, 10, 100, 500), (31, 255)
"""The grid of long rows. Many of them come from memory, and a few trees read few of their columns."""
MOST_LEAVES = 1 << 18
DIFFERENT = 24
"""The number of trees that are grown. Further trees are copies of these with other columns."""


@dataclass(frozen=True)
class Model:
    """A point of the grid, without the number of rows of a call. `cuts`: the number of possible thresholds of a column (255 in
    histograms)."""

    depth: int
    trees: int
    leaves: int
    columns: int
    dtype: str
    outputs: int
    vector: bool
    cuts: int
    seed: int


def grid() -> list[Model]:
    """All models, in a random order with a fixed seed. Most have 28 columns, float32 and one output. Models of few trees come behind the
    others, and those of long rows last."""
    random = np.random.default_rng(SEED)
    models = _models(random, itertools.product(DEPTHS, TREES, LEAVES), {10: 0.2, 28: 0.6, 100: 0.2}, 0)
    few = _models(
        random, itertools.product(DEPTHS_OF_FEW, FEW_TREES, LEAVES_OF_FEW), {4: 0.2, 10: 0.2, 28: 0.4, 100: 0.2}, len(models)
    )
    seeds = len(models) + len(few)
    wide = _models(
        random, itertools.product(DEPTHS_OF_WIDE, TREES_OF_WIDE, LEAVES_OF_WIDE), dict.fromkeys(WIDE, 1 / len(WIDE)), seeds
    )
    return models + few + wide


def _models(
    random: np.random.Generator, sizes: Iterable[tuple[int, int, int]], widths: dict[int, float], first: int
) -> list[Model]:
    """Models of these (depth, trees, most leaves of a tree). Their seeds begin at `first`. Trees with too few leaves for their depth are
    left out. widths: number of columns → its share."""
    possible = {(depth, trees, min(1 << depth, limit, MOST_LEAVES // trees)) for depth, trees, limit in sizes if limit > depth}
    models = []
    for depth, trees, leaves in sorted(possible):
        outputs, vector = [(1, False), (3, False), (4, True)][random.choice(3, p=[0.7, 0.15, 0.15])]
        columns, dtype = int(random.choice([*widths], p=[*widths.values()])), str(random.choice(["f32", "f64"], p=[0.8, 0.2]))
        cuts = int(random.choice([255, 4000]))
        models.append(Model(depth, trees, leaves, columns, dtype, outputs, vector, cuts, first + len(models)))
    return [models[i] for i in random.permutation(len(models))]


def ensemble(model: Model) -> TreeEnsemble:
    """Trees of that depth and number of leaves, for uniform columns."""
    random = np.random.default_rng(model.seed)
    grown = [_tree(model, random) for _ in range(min(model.trees, DIFFERENT))]
    trees = []
    for tree in itertools.islice(itertools.cycle(grown), model.trees):
        columns = np.append(random.permutation(model.columns), -1)
        trees.append(
            Tree(
                columns[tree.feature], tree.threshold, tree.left, tree.right, tree.missing_left, random.permutation(tree.values)
            )
        )
    return join(trees, np.zeros(model.outputs), None if model.vector else np.arange(model.trees) % model.outputs)


def _tree(model: Model, random: np.random.Generator) -> Tree:
    """A random tree, grown level by level. Within a level, nodes that more rows reach are more likely to be split, as in libraries. A split
    sends at least a fifth of the rows to each side."""
    size = 2 * model.leaves - 1
    feature, threshold = np.full(size, -1), np.zeros(size)
    left, right = np.zeros(size, int), np.zeros(size, int)
    low, high, log_rows = np.zeros((size, model.columns)), np.ones((size, model.columns)), np.zeros(size)
    level, end = np.zeros(1, int), 1
    for count in _splits(model):
        node = level[np.argsort(-(log_rows[level] + random.gumbel(size=len(level))))[:count]]
        level = np.arange(end, end + 2 * count)
        end += 2 * count
        column, share = random.integers(model.columns, size=count), random.uniform(0.2, 0.8, count)
        cut = low[node, column] + share * (high - low)[node, column]
        cut = np.round(cut * model.cuts) / model.cuts
        feature[node], threshold[node], left[node], right[node] = column, cut, level[::2], level[1::2]
        for child, part in ((level[::2], share), (level[1::2], 1 - share)):
            low[child], high[child], log_rows[child] = low[node], high[node], log_rows[node] + np.log(part)
        high[level[::2], column] = cut
        low[level[1::2], column] = cut
    values = random.normal(size=(size, model.outputs if model.vector else 1))
    kind = np.float32 if model.dtype == "f32" else np.float64
    return Tree(feature, threshold.astype(kind), left, right, np.zeros(size, bool), values)


def _splits(model: Model) -> list[int]:
    """The number of splits of each level: all nodes of the level, as far as the number of leaves allows."""
    most = next(most for most in itertools.count(1) if sum(min(1 << d, most) for d in range(model.depth)) >= model.leaves - 1)
    splits, rest = [], model.leaves - 1
    for level in range(model.depth):
        below = model.depth - 1 - level  # each level below splits a node at least
        splits.append(min(2 * splits[-1] if splits else 1, most, rest - below))
        rest -= splits[-1]
    return splits
