"""Leaves in fixed point (compiler/tvm/trees/leaves/fixed_point.py): how precise the integers are, that their sums fit, and what
the scan makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from random_trees import random_tree, rows_at_thresholds

import hbc
from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, N
from hbc.ops.tree import TreeEnsemble, join

pytest.importorskip("tvm")
from hbc.compiler.tvm.run.targets import machine
from hbc.compiler.tvm.trees.leaves.fixed_point import DIGIT, FEWEST_DIGITS, MOST_DIGITS, FixedPoint, fixed_point
from hbc.compiler.tvm.trees.leaves.fixed_point import _exponent as exponent_of
from hbc.compiler.tvm.trees.ranks.planes import ROWS_IN_VECTOR
from hbc.compiler.tvm.trees.scan.scan import scannable

ROWS = 333


def diverged(trees: int, outputs: int, huge: float, leaves: int = 31) -> TreeEnsemble:
    """Trees whose leaves are between 1 and 2, of both signs, but for some that are `huge`; the trees of each output alternate."""
    rng = np.random.default_rng(trees)
    values = rng.uniform(1, 2, size=(500, 1)) * rng.choice([-1, 1], size=(500, 1))
    values[:25] = huge * np.sign(values[:25])
    grown = [random_tree(rng, leaves, 5, "f4", values, missing=True) for _ in range(trees)]
    return join(grown, np.zeros(outputs), np.arange(trees) % outputs)


def small_sums(op: TreeEnsemble) -> list[tuple[int, float]]:
    """For each output of trees with one value a leaf: how many trees it has, and the typical sum of their small leaves."""
    ends = np.append(op.roots[1:], len(op.feature))
    found = []
    for output in range(op.n_outputs):
        trees = np.flatnonzero(op.target == output)
        small = []
        for tree in trees:
            nodes = np.arange(op.roots[tree], ends[tree])
            sizes = np.sort(np.abs(op.values[op.left[nodes[op.feature[nodes] < 0]], 0]))
            small.append(sizes[(len(sizes) - 1) // 10])
        found.append((len(trees), float(np.sqrt(np.sum(np.square(small))))))
    return found


def precise(op: TreeEnsemble, exponent: int) -> bool:
    """Whether six standard deviations of the rounding errors are below 1e-10 of the typical sum, for each output."""
    return all(6 * np.sqrt(trees / 12) * 2.0**-exponent <= 1e-10 * total for trees, total in small_sums(op))


def integer_sums(op: TreeEnsemble, fixed: FixedPoint, X: Array) -> list[list[int]]:
    """Rows → outputs → the sums of the integers, of any size."""
    leaves = op.leaves(X)
    sums = [fixed.start.tolist() for _ in X]
    for row, total in zip(leaves, sums, strict=True):
        for leaf, output in zip(row.tolist(), op.target.tolist(), strict=True):
            total[output] += int(fixed.integers[leaf, 0])
    return sums


@pytest.mark.parametrize(("huge", "digits"), [(100.0, 7), (3e3, 8), (1e5, 9), (2e5, 9)])
@pytest.mark.parametrize("outputs", [1, 40])
def test_the_fewest_digits_that_are_precise_for_each_output(huge: float, digits: int, outputs: int) -> None:
    op = diverged(120, outputs, huge)
    fixed = fixed_point(op)
    assert fixed is not None
    assert fixed.digits == digits
    assert precise(op, fixed.exponent)
    assert not precise(op, fixed.exponent - DIGIT)
    assert 0 <= fixed.integers.min() <= fixed.integers.max() < 1 << DIGIT * digits
    X = rows_at_thresholds(np.random.default_rng(1), op, 50, 5)
    exact = [[Fraction(0)] * outputs for _ in X]
    for row, total in zip(op.leaves(X).tolist(), exact, strict=True):
        for leaf, output in zip(row, op.target.tolist(), strict=True):
            total[output] += Fraction(float(op.values[leaf, 0]))
    for total, sums in zip(exact, integer_sums(op, fixed, X), strict=True):
        for one, integer in zip(total, sums, strict=True):
            assert abs(Fraction(integer, 1 << fixed.exponent) - one) <= fixed.error


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("trees", [1, 2, 9, 700])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_sources_sums_are_within_the_error(dtype: str, trees: int, outputs: int) -> None:
    """Its rounding errors have the same sign here: 700 times 0.1 in float32 are 70.0004."""
    rng = np.random.default_rng(trees)
    values = np.where(rng.random((500, 1)) < 0.9, 0.1, rng.uniform(-1, 1, size=(500, 1))).astype(dtype)
    grown = [random_tree(rng, 31, 5, dtype, values, missing=False) for _ in range(trees)]
    op = join(grown, np.full(outputs, 0.3), np.arange(trees) % outputs)
    fixed = fixed_point(op)
    assert fixed is not None
    X = rows_at_thresholds(rng, op, 50, 5)
    source = op.evaluate(X)
    assert source.dtype == dtype
    sums = np.array(integer_sums(op, fixed, X)).astype(np.float64)
    found = np.ldexp(sums, -fixed.exponent) + fixed.base
    error = np.abs(found - source).max()
    assert error <= fixed.error < fixed.close
    if trees == 700 and dtype == "f4":
        assert error > fixed.error / 20  # the bound is not far above


def test_no_fixed_point_where_nine_digits_are_not_precise() -> None:
    op = diverged(120, 40, 1e7)
    assert fixed_point(op) is None
    assert not precise(op, exponent_of(2e7, DIGIT * MOST_DIGITS, 4))
    assert not scannable(op)


@pytest.mark.parametrize(("outputs", "fits"), [(1, False), (2, False), (4, True)])
def test_sums_of_an_output_fit_in_62_bits(outputs: int, fits: bool) -> None:
    """At nine digits a leaf is up to 2^53 units here: 2^62 are 512 trees. Those of other outputs don't count."""
    op = diverged(1600, outputs, 1e5, leaves=60)
    fixed = fixed_point(op)
    assert (fixed is not None) == fits
    assert scannable(op) == fits
    if fixed is not None:
        assert fixed.digits == MOST_DIGITS
        highest = 1 << 62
        least, most = fixed.start.tolist(), fixed.start.tolist()
        ends = np.append(op.roots[1:], len(op.feature))
        for root, end, output in zip(op.roots, ends, op.target.tolist(), strict=True):
            nodes = np.arange(root, end)
            most[output] += int(fixed.integers[op.left[nodes[op.feature[nodes] < 0]], 0].max())
        assert all(-highest < low <= high < highest for low, high in zip(least, most, strict=True))


@pytest.mark.parametrize("span", [1.0, 2.0**-40, np.nextafter(1.0, 0), np.nextafter(1.0, 2), 1 - 2.0**-50, 3.7e-5, 1e300])
@pytest.mark.parametrize("digits", range(FEWEST_DIGITS, MOST_DIGITS + 1))
def test_exponent_is_the_largest_that_leaves_room(span: float, digits: int) -> None:
    """Also where a logarithm in float64 would round up: 2^54 - 4 has the logarithm 54."""
    for room in (4, 10):
        exponent, limit = exponent_of(float(span), DIGIT * digits, room), (1 << DIGIT * digits) - room
        assert Fraction(float(span)) * Fraction(2) ** exponent <= limit
        assert Fraction(float(span)) * Fraction(2) ** (exponent + 1) > limit


@pytest.mark.parametrize("mcpu", [None, "x86-64-v4", "znver4", "haswell"])
@pytest.mark.parametrize(
    ("trees", "outputs", "leaves"), [(250, 1, 31), (130, 1, 200), (300, 100, 31), (120, 40, 60), (9, 3, 400)]
)
def test_a_scan_of_nine_digits_gives_the_sums_of_the_integers(mcpu: str | None, trees: int, outputs: int, leaves: int) -> None:
    """Bit by bit, in all ways of the scan. Rows whose largest sums nearly tie, and last rows that are walked, have the source's sums."""
    target = {"kind": "llvm", "mcpu": mcpu} if mcpu else None
    if (reason := machine("cpu", target).missing) is not None:
        pytest.skip(reason)
    op = diverged(trees, outputs, 1e5, leaves)
    fixed = fixed_point(op)
    assert fixed is not None
    assert fixed.digits == MOST_DIGITS
    X = rows_at_thresholds(np.random.default_rng(2), op, ROWS, 5)
    sums = np.array(integer_sums(op, fixed, X))
    expected = np.ldexp(sums.astype(np.float64), -fixed.exponent)
    x = Input("X", "f32", (N, X.shape[1]))()
    graph = Graph((x,), {"predict": (replace(op, strategy="scan")(x),)})
    executable = load_compiler("tvm").compile(graph, CompileOptions(threads=1, target=target))
    for rows in (ROWS, 264, 257, 128, 64, 31, 17, 5, 2, 1):
        (found,) = executable.run("predict", [X[:rows]])
        source = op.evaluate(X[:rows])
        np.testing.assert_allclose(found, source, rtol=1e-12, atol=1e-8)
        ordered = np.sort(np.hstack([found, np.zeros((rows, 1))]) if outputs == 1 else found, axis=1)
        apart = ordered[:, -1] - ordered[:, -2] > fixed.close
        assert apart.sum() > 0.9 * rows
        integer = (found == expected[:rows]).all(axis=1)
        assert (integer | (found == source).all(axis=1)).all()
        whole = np.arange(rows) < rows // ROWS_IN_VECTOR * ROWS_IN_VECTOR
        assert integer[whole & apart].all()


def model_of_classes(library: str, classes: int) -> tuple[Any, Array]:
    """LightGBM diverges: its largest leaves are above 10,000, its sums of small leaves are about 1."""
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(20 * classes, 8)).astype(np.float32)
    y = np.tile(np.arange(classes), 20)
    X[:, 0] += y % 10
    X[:, 1] += y // 10
    if library == "lightgbm":
        model: Any = lgb.LGBMClassifier(n_estimators=4, learning_rate=1.0, min_child_samples=2, num_threads=1, verbose=-1)
    else:
        model = xgb.XGBClassifier(n_estimators=3, max_depth=5, min_child_weight=0, n_jobs=1, tree_method="hist")
    return model.fit(X, y), X


@pytest.mark.parametrize(("library", "classes"), [("lightgbm", 100), ("lightgbm", 300), ("xgboost", 100)])
def test_boosted_models_of_many_classes_are_scanned(library: str, classes: int) -> None:
    model, X = model_of_classes(library, classes)
    compiled = hbc.convert(model, "tvm", threads=1)
    tolerance = 1e-10 if library == "lightgbm" else 1e-6
    for rows in (len(X), 70, 1):
        np.testing.assert_allclose(compiled.predict_proba(X[:rows]), model.predict_proba(X[:rows]), rtol=1e-5, atol=tolerance)
        np.testing.assert_array_equal(compiled.predict(X[:rows]), model.predict(X[:rows]))
    if library == "lightgbm":
        raw = model.predict(X, raw_score=True)
        np.testing.assert_allclose(compiled.raw_score(X), raw, rtol=1e-10, atol=1e-10)
        assert np.abs(raw).max() > 1e4
    assert set(re.findall(r"TreeEnsemble of .* leaves at most: (\w+)", compiled.explain())) == {"scan"}
