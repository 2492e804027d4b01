"""Ranges of tree ensembles (compiler/tvm/trees/ranges) against the operator itself: random trees, rows at the
thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds, stump

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N, dtype_name
from hbc.ops.tree import Tree, TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.costs import Shape
from hbc.compiler.tvm import costs
from hbc.compiler.tvm.compiler import TvmCompiler
from hbc.compiler.tvm.plan.plan import WALK_ROWS
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY
from hbc.compiler.tvm.trees.ranges.packed_ranges import MOST_IN_RANGE, ranges_of
from hbc.compiler.tvm.trees.ranges.ranges import least_rows, rangeable

VBMI = {"kind": "llvm", "mcpu": "sapphirerapids"}


def by_ranges(op: TreeEnsemble, X: Array, batches: tuple[int, ...]) -> list[Array]:
    x = Input("X", dtype_name(op.threshold.dtype), (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="ranges")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


def check(op: TreeEnsemble, features: int, rows: int = 1500, seed: int = 0) -> None:
    """The sums have every bit of a loop over the trees."""
    assert rangeable(op)
    ranges = ranges_of(op)
    assert ranges is not None
    least = least_rows(len(ranges.first_leaf) / op.n_trees)
    batches = (rows, rows - 1, rows - EVERY, least + 1, least, least - 1, 3, 1, 0)
    X = rows_at_thresholds(np.random.default_rng(seed), op, rows, features)
    for count, found in zip(batches, by_ranges(op, X, batches), strict=True):
        np.testing.assert_array_equal(found, op.evaluate(X[:count]), strict=True)


def grown(seed: int, leaves: tuple[int, ...], features: int = 6, dtype: str = "f4", **options: Any) -> list[Tree]:
    rng = np.random.default_rng(seed)
    values = options.pop("values", rng.normal(size=(500, 1)))
    missing = options.pop("missing", True)
    return [random_tree(rng, count, features, dtype, values, missing, **options) for count in leaves]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("missing", [False, True])
def test_sums_are_those_of_the_operator(dtype: str, missing: bool) -> None:
    """Trees of one to eleven ranges, and of one leaf; NaN go both ways or right."""
    trees = grown(1, (257, 1, 2, 256, 700, 2000, 31, 512), dtype=dtype, missing=missing)
    check(join(trees, np.ones(1), None), 6)


@pytest.mark.parametrize("outputs", [2, 3, 9, 900])
def test_leaves_of_several_values(outputs: int) -> None:
    """900 make blocks too small to be sorted."""
    values = np.random.default_rng(2).normal(size=(90, outputs))
    check(join(grown(2, (300, 5, 900), values=values), np.arange(float(outputs)), None), 6)


def test_trees_of_several_outputs() -> None:
    check(join(grown(3, (300, 5, 900, 400, 260)), np.ones(3), np.arange(5) % 3), 6)


def test_values_of_float32() -> None:
    check(join(grown(4, (300, 900), values=np.random.default_rng(4).normal(size=(50, 1)).astype("f4")), np.ones(1), None), 6)


def test_leaf_numbers_are_those_of_the_operator() -> None:
    op = join(grown(5, (300, 1, 900)), np.ones(1), None)
    check(replace(op, output="leaf", leaf_ids=np.arange(len(op.leaf_ids)) * 1_000_003 - 7), 6)


@pytest.mark.parametrize("features", [1, 15, 16, 17, 32, 33, 100])
def test_numbers_of_planes(features: int) -> None:
    """A tile of 16 planes may be full or not."""
    check(join(grown(6, (400, 600), features), np.ones(1), None), features)


def test_columns_of_several_planes() -> None:
    """Two features with more thresholds than a byte tells apart."""
    op = join(grown(7, (900, 1200), 2, digits=6), np.ones(1), None)
    ranges = ranges_of(op)
    assert ranges is not None
    assert ranges.ranked.planes > 4
    check(op, 2)


def test_several_blocks_of_rows() -> None:
    check(join(grown(8, (500, 600)), np.ones(1), None), 6, rows=2 * WALK_ROWS + 300)


def test_all_rows_in_one_range() -> None:
    op = join(grown(9, (500, 1000), missing=False), np.ones(1), None)
    X = np.zeros((1000, 6), "f4")
    (found,) = by_ranges(op, X, (1000,))
    np.testing.assert_array_equal(found, op.evaluate(X), strict=True)


def test_ranges_part_all_leaves() -> None:
    """Every range has at most MOST_IN_RANGE leaves, its splits are one fewer, and no split is in two."""
    op = join(grown(10, (257, 1, 3000, 256)), np.ones(1), None)
    ranges = ranges_of(op)
    assert ranges is not None
    sizes = np.diff(np.append(ranges.first_leaf, len(ranges.leaves)))
    assert sizes.max() <= MOST_IN_RANGE
    np.testing.assert_array_equal(ranges.parts.leaf_counts, sizes)
    np.testing.assert_array_equal(np.sort(ranges.leaves), np.sort(ranges.ranked.leaves))
    assert len(ranges.parts.split_lo) == (sizes - 1).sum() == len(ranges.ranked.split_lo) - (len(sizes) - op.n_trees)
    assert ranges.starts.tolist() == [0, 2, 3, *(ranges.starts[3:4].tolist()), len(sizes)]
    for tree in range(op.n_trees):
        count = ranges.starts[tree + 1] - ranges.starts[tree]
        assert ranges.range_of[tree].max() == count - 1
        assert ranges.tops.leaf_counts[tree] >= count


def test_ensembles_that_do_not_fit() -> None:
    """Trees of few leaves, a chain, whose tops have too many splits, and rows of too many ranks."""
    assert not rangeable(stump())
    assert not rangeable(join(grown(11, (256, 200)), np.ones(1), None))
    nodes = np.arange(1201)
    inner = (nodes % 2 == 0) & (nodes < 1200)
    chain = Tree(
        feature=np.where(inner, 0, -1),
        threshold=nodes.astype("f4"),
        left=np.where(inner, nodes + 1, 0),
        right=np.where(inner, nodes + 2, 0),
        missing_left=np.zeros(1201, bool),
        values=np.arange(1201.0)[:, None],
    )
    assert not rangeable(join([chain], np.ones(1), None))
    assert not rangeable(join(grown(12, (600,), 200), np.ones(1), None))


def test_what_does_not_fit_is_walked() -> None:
    op = join(grown(13, (31, 31)), np.ones(1), None)
    X = rows_at_thresholds(np.random.default_rng(0), op, 300, 6)
    (found,) = by_ranges(op, X, (300,))
    np.testing.assert_array_equal(found, op.evaluate(X), strict=True)


def test_candidates() -> None:
    """Ranges come into question with AVX-512 VBMI, for many rows."""
    op = join(grown(14, (600, 700)), np.ones(1), None)
    compiler = TvmCompiler()
    for target, rows, wanted in ((VBMI, None, True), (VBMI, 1, False), ({"kind": "llvm", "mcpu": "haswell"}, None, False)):
        assert ("ranges" in compiler.candidates(op, CompileOptions(target=target, batch_size=rows))) == wanted


def test_work() -> None:
    """That of patches for few rows, and of walks where patches do not fit."""
    shape = Shape(100, 102_200, 30, 2900, 12.0, 1023, 1, 1, 4, 28, 28)
    least = least_rows(1023 / costs.MEAN_RANGE)
    assert costs.ranges(shape, least - 1) == {
        f"patches: {name}": count for name, count in costs.patches(shape, least - 1).items()
    }
    assert "walk: row and step" in costs.ranges(replace(shape, bytes=8), 16)
    many = costs.ranges(shape, 10_000)
    assert many["row and value of a leaf"] == 1_000_000
    assert 10_000 / 64 * 200 < many["64 sorted rows and split"] / 100 < 10_000 / 64 * 230
