"""Ranges of tree ensembles (compiler/tvm/trees/ranges) against the operator itself: random trees, rows at the
thresholds."""

from __future__ import annotations

from collections.abc import Callable
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
from hbc.compiler.tvm.run.targets import host_machine
from hbc.compiler.tvm.trees.pieces.pieces_scan import EVERY
from hbc.compiler.tvm.trees.ranges.packed_ranges import MOST_IN_RANGE, NO_EXIT, SHORT, Ranges, ranges_of, short_ranges_of
from hbc.compiler.tvm.trees.ranges.ranges import least_rows, numbers_of_bits, rangeable, ranges_for
from hbc.compiler.tvm.trees.ranges.scanned_rows import rows_for_chunk


def by_ranges(op: TreeEnsemble, X: Array, batches: tuple[int, ...]) -> list[Array]:
    x = Input("X", dtype_name(op.threshold.dtype), (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="ranges")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    return [executable.run("predict", [X[:rows]])[0] for rows in batches]


def check(op: TreeEnsemble, features: int, rows: int = 1500, seed: int = 0) -> None:
    """The sums have every bit of a loop over the trees."""
    assert rangeable(op)
    dialect = host_machine().dialect
    least = least_rows(len(ranges_for(op, dialect).first_leaf) / op.n_trees, dialect.wide)
    batches = (rows, rows - 1, rows - EVERY, least + 1, least, least - 1, 67, 40, 32, 27, 3, 1, 0)
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


def test_rows_of_a_range() -> None:
    """Every number of rows in one range that is scanned by other code: with AVX2 these are 32, 64, 128, 192 and 256."""
    op = join(grown(15, (300,), 1, missing=False), np.ones(1), None)
    # In order, so the first rows are in the first range.
    order = np.sort(rows_at_thresholds(np.random.default_rng(0), op, 600, 1), axis=0)
    batches = (600, 257, 256, 255, 193, 192, 191, 129, 128, 127, 97, 96, 65, 64, 63, 39, 38, 37)
    for count, found in zip(batches, by_ranges(op, order, batches), strict=True):
        np.testing.assert_array_equal(found, op.evaluate(order[:count]), strict=True)


def test_few_rows() -> None:
    """Every number of rows that is not sorted, in the first block and behind others. With AVX2 they are scanned in chunks of 64 and 32
    rows, and walked."""
    op = join(grown(16, (300, 40, 700, 280)), np.ones(1), None)
    assert rows_for_chunk(float(op.leaf_counts.mean())) == 20
    X = rows_at_thresholds(np.random.default_rng(0), op, WALK_ROWS + 120, 6)
    batches = (*range(1, 120), *range(WALK_ROWS + 1, WALK_ROWS + 120, 7))
    for count, found in zip(batches, by_ranges(op, X, batches), strict=True):
        np.testing.assert_array_equal(found, op.evaluate(X[:count]), strict=True)


def test_few_rows_in_one_range() -> None:
    """Ranges that no row reaches are left out."""
    op = join(grown(17, (300, 500), 1, missing=False), np.ones(1), None)
    order = np.sort(rows_at_thresholds(np.random.default_rng(0), op, 600, 1), axis=0)
    for first in range(0, 520, 40):
        X = np.ascontiguousarray(order[first : first + 64])
        for count, found in zip((64, 32), by_ranges(op, X, (64, 32)), strict=True):
            np.testing.assert_array_equal(found, op.evaluate(X[:count]), strict=True)


@pytest.mark.parametrize(("cut", "most", "wanted"), [(ranges_of, MOST_IN_RANGE, (2, 1)), (short_ranges_of, SHORT, (3, 1))])
def test_ranges_part_all_leaves(cut: Callable[[TreeEnsemble], Ranges | None], most: int, wanted: tuple[int, int]) -> None:
    """Every range has at most `most` leaves, its splits are one fewer, and no split is in two."""
    op = join(grown(10, (257, 1, 3000, 256)), np.ones(1), None)
    ranges = cut(op)
    assert ranges is not None
    sizes = np.diff(np.append(ranges.first_leaf, len(ranges.leaves)))
    assert sizes.max() <= most
    np.testing.assert_array_equal(ranges.parts.leaf_counts, sizes)
    np.testing.assert_array_equal(np.sort(ranges.leaves), np.sort(ranges.ranked.leaves))
    assert len(ranges.parts.split_lo) == (sizes - 1).sum() == len(ranges.ranked.split_lo) - (len(sizes) - op.n_trees)
    assert np.diff(ranges.starts)[:2].tolist() == [*wanted]
    assert ranges.starts[-1] == len(sizes)
    for tree in range(op.n_trees):
        count = ranges.starts[tree + 1] - ranges.starts[tree]
        own = slice(ranges.starts[tree], ranges.starts[tree + 1])
        first, further = (array[own].astype(int) for array in (ranges.first_exit, ranges.further_exits))
        exits = ranges.tops.leaf_counts[tree]
        assert count <= exits <= NO_EXIT
        np.testing.assert_array_equal(np.append(first, exits), np.append(0, first + further + 1))


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
    """Ranges come into question for many rows: with AVX-512 VBMI, and with AVX2 alone."""
    op = join(grown(14, (600, 700)), np.ones(1), None)
    compiler = TvmCompiler()
    for processor, rows, wanted in (
        ("sapphirerapids", None, True),
        ("sapphirerapids", 1, False),
        ("haswell", None, True),
        ("haswell", 1, False),
        ("skylake-avx512", None, False),
        ("nehalem", None, False),
    ):
        options = CompileOptions(target={"kind": "llvm", "mcpu": processor}, batch_size=rows)
        assert ("ranges" in compiler.candidates(op, options)) == wanted, processor


def test_numbers_of_bits() -> None:
    for byte, numbers in enumerate(numbers_of_bits()):
        found = [i for i in range(8) if byte >> i & 1]
        assert numbers.tolist() == found + [0] * (8 - len(found))


def test_work() -> None:
    """That of patches for few rows, and of walks where patches do not fit."""
    shape = Shape(100, 102_200, 30, 2900, 12.0, 1023, 1, 1, 4, 28, 28)
    least = least_rows(1023 / costs.MEAN_RANGE, wide=True)
    assert costs.ranges(shape, least - 1) == {
        f"patches: {name}": count for name, count in costs.patches(shape, least - 1).items()
    }
    assert "walk: row and step" in costs.ranges(replace(shape, bytes=8), 16)
    many = costs.ranges(shape, 10_000)
    assert many["row and value of a leaf"] == 1_000_000
    assert 10_000 / 64 * 200 < many["64 sorted rows and split"] / 100 < 10_000 / 64 * 230


def test_work_with_avx2() -> None:
    """Few rows are scanned as they stand, fewer are walked. Ranges are short."""
    shape = Shape(100, 102_200, 30, 2900, 12.0, 1023, 1, 1, 4, 28, 28)
    least = least_rows(1023 / costs.MEAN_SHORT_RANGE, wide=False)
    assert costs.ranges(shape, 30, wide=False) == {f"walk: {name}": count for name, count in costs.walk(shape, 30).items()}
    few = costs.ranges(shape, least - 1, wide=False)  # a chunk of 64, and others that are walked
    assert few["scan: 64 rows and split"] == 102_200
    assert few["row and value of a leaf"] == 6400
    assert few["walk: row and column"] == (least - 1 - 64) * 28
    deep = replace(shape, splits=204_600)
    assert costs.ranges(deep, 70, wide=False) == {f"walk: {name}": count for name, count in costs.walk(deep, 70).items()}
    many = costs.ranges(shape, 10_000, wide=False)
    assert 10_000 / 64 * 100 < many["64 sorted rows and split"] / 100 < 10_000 / 64 * 115


def test_rows_for_chunk() -> None:
    assert rows_for_chunk(300) == 19
    assert rows_for_chunk(1000) == 31
    assert rows_for_chunk(1200) is None
