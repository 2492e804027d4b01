"""Ranks of many rows, searched in registers or in lines (register_ranks.py and line_ranks.py of compiler/tvm/trees): columns of 1 to 20,000
thresholds, of one to hundreds of features, whose ensembles compare all features or a few."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops import tensor
from hbc.ops.tree import TreeEnsemble, join

pytest.importorskip("tvm")


def ensemble(
    rng: np.random.Generator, features: int, leaves: int, trees: int, dtype: str, digits: int, missing: bool, step: int
) -> TreeEnsemble:
    """Trees that compare every `step`-th feature. The values are integers, so that the order of the sums does not show."""
    values = rng.integers(-1000, 1000, (50, 1)).astype(float)
    grown = [random_tree(rng, leaves, -(-features // step), dtype, values, missing, digits) for _ in range(trees)]
    op = join(grown, np.zeros(1), None)
    return replace(op, feature=np.where(op.feature >= 0, op.feature * step, -1).astype(op.feature.dtype), strategy="scan")


CASES = [  # features, leaves, trees, digits of thresholds, NaN both ways, step
    (1, 60, 2, 1, True, 1),  # less than a register of features
    (15, 31, 40, 1, True, 1),
    (16, 60, 30, 2, False, 1),  # squares, and 6 as well as 8 levels
    (33, 100, 60, 2, True, 1),  # the last square overlaps
    (200, 30, 30, 2, False, 1),  # few thresholds a column
    (300, 60, 20, 2, True, 7),  # few of the features are compared: squares on Zen 4, elsewhere numbers one by one
    (400, 60, 20, 2, True, 19),  # fewer: numbers one by one
    (130, 60, 200, 4, True, 1),  # long rows, whose columns have 20 to 100 thresholds
    (500, 60, 60, 4, False, 1),  # and few
    (2, 255, 20, 4, True, 1),  # more thresholds than registers hold, ranks of 16 bits: lines of 16
    (3, 255, 70, 6, False, 1),  # lines of 32
    (1, 255, 40, 6, True, 1),  # lines of 64
    (1, 255, 80, 6, False, 1),  # more thresholds than lines hold
]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_and_leaves_agree(case: tuple[int, int, int, int, bool, int], dtype: str) -> None:
    features, leaves, trees, digits, missing, step = case
    rng = np.random.default_rng([features, leaves, dtype == "f8"])
    op = ensemble(rng, features, leaves, trees, dtype, digits, missing, step)
    X = rows_at_thresholds(rng, op, 333, features)
    agree(op, X, "f32" if dtype == "f4" else "f64")


@pytest.mark.parametrize("target", [{"mcpu": "znver4"}, {"mcpu": "x86-64-v4"}, {"mcpu": "haswell"}], ids=lambda t: t["mcpu"])
@pytest.mark.parametrize("case", [(40, 60, 60, "f4", 2, True), (3, 255, 70, "f8", 6, True)], ids=str)
def test_code_for_other_processors(case: tuple[int, int, int, str, int, bool], target: dict[str, str]) -> None:
    from hbc.compiler.tvm.run.targets import machine

    if (reason := machine("cpu", target).missing) is not None:
        pytest.skip(reason)
    rng = np.random.default_rng(5)
    op = ensemble(rng, *case, 1)
    dtype = "f32" if case[3] == "f4" else "f64"
    agree(op, rows_at_thresholds(rng, op, 300, case[0]), dtype, {"kind": "llvm", **target})


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("thresholds", [119, 120, 127, 128, 135, 136, 255, 256, 263, 264, 1023, 1024, 2047, 2048])
def test_columns_about_as_long_as_levels_of_lines_hold(thresholds: int, dtype: str) -> None:
    """One more threshold, and a column has a level more. Every threshold is a tree of its own."""
    rng = np.random.default_rng(thresholds)
    values = np.array([[0.0], [1.0]])
    grown = [random_tree(rng, 2, 1, dtype, values, False, 1) for _ in range(thresholds)]
    op = replace(join(grown, np.zeros(1), None), strategy="scan")
    inner = op.feature >= 0
    assert inner.sum() == thresholds
    threshold = op.threshold.copy()
    threshold[inner] = rng.permutation(thresholds) / 8
    op = replace(op, threshold=threshold)
    some = threshold[inner][:, None]
    X = np.concatenate([some, np.nextafter(some, -np.inf), np.nextafter(some, np.inf), [[np.nan], [np.inf], [-np.inf]]])
    agree(op, X.astype(dtype), "f32" if dtype == "f4" else "f64")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("features", [3, 70])
@pytest.mark.parametrize("thresholds", [1, 14, 15, 16, 30, 31, 32, 62, 63, 64])
def test_thresholds_that_a_difference_does_not_tell_apart(thresholds: int, features: int, dtype: str) -> None:
    """Zeros of both signs, subnormals and the largest numbers in all columns, and infinities in some: every threshold is a tree of its own,
    and rows are at all thresholds and beside them."""
    rng = np.random.default_rng([thresholds, features])
    kind = np.finfo(dtype)
    odd = [-0.0, 0.0, kind.smallest_subnormal, -kind.smallest_subnormal, kind.max, kind.min, kind.tiny, -kind.tiny, 1.0, -1.0]
    of_columns = []
    for feature in range(features):
        more = [np.inf] if feature % 5 == 1 else [-np.inf] if feature % 5 == 2 else []
        own = np.unique(np.array(more + list(rng.permutation(odd)), dtype))[:thresholds]
        of_columns.append(np.concatenate([own, 2.0 + np.arange(thresholds - len(own), dtype=dtype)]))
    count = features * thresholds
    grown = [random_tree(rng, 2, 1, dtype, np.array([[1.0], [2.0], [4.0]]), True, 1) for _ in range(count)]
    op = replace(join(grown, np.zeros(1), None), strategy="scan")
    inner = np.flatnonzero(op.feature >= 0)
    feature, threshold = op.feature.copy(), op.threshold.copy()
    feature[inner], threshold[inner] = np.repeat(np.arange(features), thresholds), np.concatenate(of_columns)
    op = replace(op, feature=feature, threshold=threshold)
    numbers = np.array([*odd, np.inf, -np.inf, np.nan, *(2.0 + np.arange(thresholds))], dtype)
    with np.errstate(over="ignore"):
        numbers = np.concatenate(
            [numbers, np.nextafter(numbers, dtype_of(dtype, np.inf)), np.nextafter(numbers, dtype_of(dtype, -np.inf))]
        )
    agree(op, rng.choice(numbers, (333, features)), "f32" if dtype == "f4" else "f64")


def dtype_of(dtype: str, number: float) -> Any:
    """The number in a dtype."""
    return np.dtype(dtype).type(number)


@pytest.mark.every_case
@pytest.mark.parametrize("bits", [32, 64])
def test_no_column_has_more_pivots_than_a_search_finds(bits: int) -> None:
    """A binary search of AVX-512 that 2^k pivots would fill finds one too few."""
    from types import SimpleNamespace

    from hbc.compiler.tvm.trees.ranks import line_ranks

    ranked = SimpleNamespace(thresholds=[range(count) for count in range(1, 20_000)])
    block = SimpleNamespace(dialect=SimpleNamespace(byte_masks=True, wide=True, byte_lookup=True))
    found = line_ranks.kinds(block, ranked, f"f{bits}", np.arange(len(ranked.thresholds)))  # type: ignore[arg-type]
    for levels, columns in found:
        assert (columns.max() + 1) // line_ranks.LINE**levels < line_ranks.places_of_pivots(512 // bits)
    np.testing.assert_array_equal(np.concatenate([columns for _, columns in found]), np.arange(len(ranked.thresholds)))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_squares_leave_out_columns_between_those_that_are_compared(dtype: str) -> None:
    """They begin at a feature that is compared. The last one ends with the row, and overlaps the one before."""
    rng = np.random.default_rng(11)
    used = np.array([3, *range(5, 20), *range(200, 240), *range(375, 390), 395, 399])
    op = ensemble(rng, len(used), 60, 30, dtype, 2, True, 1)
    op = replace(op, feature=np.where(op.feature >= 0, used[op.feature], -1).astype(op.feature.dtype))
    agree(op, rows_at_thresholds(rng, op, 333, 400), "f32" if dtype == "f4" else "f64")


def test_numbers_that_an_operator_before_has_computed() -> None:
    """They lie in columns already, and nothing must transpose them."""
    rng = np.random.default_rng(7)
    op = ensemble(rng, 20, 40, 20, "f4", 1, True, 1)
    X = rows_at_thresholds(rng, op, 300, 20)
    x = Input("X", "f32", (N, 20))()
    graph = Graph((x,), {"predict": (op(tensor.Neg()(x)),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1))
    for rows in (300, 65, 31):
        np.testing.assert_array_equal(executable.run("predict", [X[:rows]])[0], op.evaluate(-X[:rows]))


def agree(op: TreeEnsemble, X: Array, dtype: str, target: dict[str, str] | None = None) -> None:
    """The code gives what the reference gives, for sums and for leaf numbers, and for every kind of remainder of rows."""
    x = Input("X", dtype, (N, X.shape[1]))()
    numbers = replace(op, output="leaf")
    graph = Graph((x,), {"predict": (op(x),), "apply": (numbers(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    for rows in (len(X), 256, 65, 64, 33, 32, 31, 17, 16, 8, 1):
        some = np.ascontiguousarray(X[-rows:])
        for method, expected in (("predict", op), ("apply", numbers)):
            np.testing.assert_array_equal(executable.run(method, [some])[0], expected.evaluate(some), f"{method}, {rows} rows")
