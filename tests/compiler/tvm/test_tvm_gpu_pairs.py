"""Last nodes of perfect trees that share pairs of leaves (trees/gpu/pairs.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import sanitized, without_races
from random_trees import rows_at_thresholds
from test_tvm_gpu_trees import bounded, emulates, input_of, run

from hbc.compiler.tvm.trees.gpu.levels import Levels, depth_of
from hbc.compiler.tvm.trees.gpu.perfect import perfect_trees
from hbc.compiler.tvm.trees.gpu.wide_levels import WideLevels
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble, join


def alike(depth: int, different: int, width: int, features: int = 5) -> TreeEnsemble:
    """Trees of a depth whose leaves have so many different values, and that many rows reach more or less."""
    rng = np.random.default_rng(depth + different)
    op = join([bounded(rng, depth, features, cut) for cut in (0.0, 0.0, 0.1, 0.1, 0.4, 0.4)], np.zeros(1))
    values = rng.normal(size=(different, width))
    values[-1] = -0.0  # other bits than those of zero
    values[0] = 0.0
    chosen = values[rng.integers(0, different, len(op.values))]
    cover = rng.choice([0.0, 1.0, 50.0], len(op.feature))
    return replace(op, values=chosen, base=np.zeros(width), target=np.zeros(op.n_trees, np.int64), cover=cover)


def bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint64)


@pytest.mark.parametrize("different", [2, 3, 9, 5000])
@pytest.mark.parametrize(("form", "depth"), [(Levels, 6), (WideLevels, 6), (WideLevels, 7), (WideLevels, 8)])
def test_each_path_ends_at_its_leaf(form: type[Levels], depth: int, different: int) -> None:
    """Along all paths of all trees. Equal pairs are one, so there are no more than different ones."""
    op = alike(depth, different, 2)
    ranked, trees = form.ranked(op), np.arange(op.n_trees)
    plain = perfect_trees(replace(op, cover=np.zeros(len(op.feature))), ranked, trees, depth, depth)
    found = form.perfect(op)
    assert found.pairs is not None
    assert depth_of(op) == depth
    assert found.leaves.shape[1] <= min(1 << depth, different * (different + 1) + 1)
    for tree in trees:
        place, own = np.ones(1, np.int64), np.ones(1, np.int64)
        for _ in range(depth):
            np.testing.assert_array_equal(found.splits[tree][own], plain.splits[tree][place])
            turned = found.swapped[tree][own]
            place = np.stack([2 * place, 2 * place + 1], axis=1).reshape(-1)
            own = np.stack([2 * own + turned, 2 * own + 1 - turned], axis=1).reshape(-1)
        place, own = place - (1 << depth), own - (1 << depth)
        leaves = found.leaves[tree][2 * found.pairs[tree][own // 2] + own % 2]
        reached = plain.reached[tree][place]
        np.testing.assert_array_equal(bits(op.values[leaves])[reached], bits(op.values[plain.leaves[tree][place]])[reached])


def test_leaves_of_many_rows_lie_in_different_banks() -> None:
    """Pairs that many rows reach are not in the same banks."""
    op = alike(8, 5000, 1)
    rng = np.random.default_rng(1)
    leaf = np.flatnonzero(op.feature < 0)
    often = np.zeros(len(op.feature))
    for tree in range(2):  # perfect ones
        own = leaf[(leaf >= op.roots[tree]) & (leaf < op.roots[tree + 1])]
        often[rng.choice(own, 16, replace=False)] = 1.0
    found = WideLevels.perfect(replace(op, cover=often))
    rows = np.bincount(op.left[leaf], often[leaf], len(op.values))
    for tree in range(2):
        most = np.bincount(np.arange(found.leaves.shape[1]) % 32, rows[found.leaves[tree]]).max()
        assert most == 1


@emulates
@pytest.mark.parametrize(("different", "width", "features"), [(3, 3, 5), (9, 1, 5), (5000, 1, 5), (5000, 2, 5), (9, 5, 60)])
@pytest.mark.parametrize(("strategy", "depth"), [("levels", 6), ("wide_levels", 6), ("wide_levels", 8)])
def test_sums_have_all_bits(strategy: str, depth: int, different: int, width: int, features: int) -> None:
    """In each kernel. Blocks of 60 columns have 512 rows, so fewer bits of a node are free."""
    op = alike(depth, different, width, features)
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 300, features)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=3)
    np.testing.assert_array_equal(found, expected)
    for again in (sanitized, without_races):
        again(launches[-1])
