"""The code for AVX-512 of each kind, run on any x86-64 processor (tests/avx512_on_cpu). All tests of this folder run it with
`HBC_PROCESSOR=znver4`, `znver5` or `x86-64-v4`; here stand the cheapest that reach it, so that it runs with every commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from random_trees import random_tree, rows_at_thresholds

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph, Input
from hbc.ir.types import Array, DType, N
from hbc.ops import tensor as t
from hbc.ops.functions import Function
from hbc.ops.tree import Tree, TreeEnsemble, join

pytest.importorskip("tvm")
from avx512_on_cpu import cannot_run, emulated

pytestmark = [pytest.mark.every_case, pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run()))]
PROCESSORS = ("znver4", "znver5", "x86-64-v4")
"""Bytes of compares in halves, masks of 64 bits, and masks without look-ups in registers of bytes (VBMI)."""


@pytest.fixture
def processor(request: pytest.FixtureRequest) -> Iterator[str]:
    with emulated(request.param):
        yield request.param


def on(quick: str) -> pytest.MarkDecorator:
    """Runs a test on all processors: always on the one, on the others in the slow tier."""
    every = [pytest.param(name, marks=() if name == quick else pytest.mark.slow) for name in PROCESSORS]
    return pytest.mark.parametrize("processor", every, indirect=True)


def agree(op: TreeEnsemble, X: Array, batches: tuple[int, ...]) -> None:
    """The sums are those of the operator, for calls of so many rows. The leaves are integers, so that the order of sums does not show."""
    x = Input("X", "f32" if X.dtype == np.float32 else "f64", (N, X.shape[1]))()
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": (op(x),)}), CompileOptions(threads=1))
    for rows in batches:
        some = np.ascontiguousarray(X[-rows:])
        (found,) = executable.run("predict", [some])
        np.testing.assert_array_equal(found, op.evaluate(some), f"{rows} rows")


LENGTHS = (*(2**k + more for k in range(3, 9) for more in (-1, 0, 7, 8)), 1, 2, 1023, 2048)
"""How many thresholds columns have: about as many as lines and levels of lines hold."""


@on("znver4")
@pytest.mark.parametrize("dtype", ["f4", pytest.param("f8", marks=pytest.mark.slow)])
def test_ranks_of_columns_of_many_lengths(dtype: str, processor: str) -> None:
    """A feature for each length, whose thresholds are trees of their own: a rank that is wrong by one changes the sum."""
    rng = np.random.default_rng(0)
    feature = rng.permutation(np.repeat(np.arange(len(LENGTHS)), LENGTHS))
    place = np.zeros(len(feature), int)
    for column, length in enumerate(LENGTHS):
        place[feature == column] = rng.permutation(length)
    ends = np.array([-1, -1])
    grown = [
        Tree(
            feature=np.array([column, *ends]),
            threshold=np.array([at / 8, 0, 0], dtype),
            left=np.array([1, 0, 0]),
            right=np.array([2, 0, 0]),
            missing_left=np.array([True, False, False]),
            values=np.array([[0.0], [0.0], [1.0 + column]]),
        )
        for column, at in zip(feature.tolist(), place.tolist(), strict=True)
    ]
    op = replace(join(grown, np.zeros(1)), strategy="scan")
    at = (rng.integers(0, LENGTHS, (330, len(LENGTHS))) / 8).astype(dtype)
    at[:40] = np.minimum(at[:40], rng.integers(0, 3, at[:40].shape) / 8)
    at[40:80] = (np.array(LENGTHS) - 1 - rng.integers(0, np.minimum(LENGTHS, 3), at[:40].shape)) / 8
    beside = [at, np.nextafter(at, np.array(np.inf, dtype)), np.nextafter(at, np.array(-np.inf, dtype))]
    special = np.array([np.nan, np.inf, -np.inf, -0.0], dtype)
    X = np.choose(rng.integers(0, 19, at.shape) // 6, [*beside, rng.choice(special, at.shape)])
    agree(op, X, (330, 65, 7))


@on("znver5")
def test_scans(processor: str) -> None:
    """Of trees whose leaf numbers need one byte and two, for many rows and few, NaN to both sides."""
    rng = np.random.default_rng(1)
    values = rng.integers(-1000, 1000, (50, 2)).astype(float)
    grown = [random_tree(rng, leaves, 17, "f4", values, True) for leaves in (31, 60, 14, 300, 1, 2, 100) for _ in range(3)]
    op = replace(join(grown, np.zeros(2)), strategy="scan")
    agree(op, rows_at_thresholds(rng, op, 333, 17), (333, 128, 65, 33, 32, 17, 5, 1))


@on("znver4")
@pytest.mark.parametrize("strategy", ["patches", pytest.param("walk", marks=pytest.mark.slow)])
def test_trees_that_are_walked(strategy: str, processor: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(-1000, 1000, (50, 1)).astype(float)
    op = join([random_tree(rng, 400, 20, "f4", values, True) for _ in range(3)], np.zeros(1))
    op = replace(op, strategy=strategy)
    agree(op, rows_at_thresholds(rng, op, 200, 20), (200, 9, 1))


@on("znver5")
def test_trees_in_ranges(processor: str) -> None:
    """Rows that are sorted, and too few of them."""
    rng = np.random.default_rng(4)
    grown = [random_tree(rng, leaves, 20, "f8", rng.normal(size=(50, 1)), True) for leaves in (700, 300, 5)]
    op = replace(join(grown, np.zeros(1)), strategy="ranges")
    agree(op, rows_at_thresholds(rng, op, 400, 20), (400, 200, 9))


FUNCTIONS = (t.exp, t.expm1, t.log, t.log1p, t.tanh, t.sigmoid, Function("log2"), Function("log10"))


@on("znver5")
@pytest.mark.parametrize("dtype", ["f32", pytest.param("f64", marks=pytest.mark.slow)])
def test_functions_and_powers(dtype: DType, processor: str) -> None:
    """By the instructions that take numbers apart and put special values in; accuracy is the matter of test_tvm_mathematics.py."""
    rng = np.random.default_rng(3)
    kind = np.float32 if dtype == "f32" else np.float64
    info = np.finfo(kind)
    special = [0.0, 1.0, np.inf, info.tiny, info.smallest_subnormal, 3 * info.smallest_subnormal, info.max, 88.8, 103.9, 709.9]
    X = np.array([*special, *(-value for value in special), np.nan, *rng.normal(size=60), *rng.normal(size=60) * 300], kind)
    x = Input("x", dtype, (N,))()
    outputs = (*(function(x) for function in FUNCTIONS), t.power(x, 2.5), t.power(x, -3.0))
    executable = load_compiler("tvm").compile(Graph((x,), {"predict": outputs}), CompileOptions(threads=1))
    for rows in (len(X), 16, 5):
        some = X[:rows]
        with np.errstate(all="ignore"):
            expected = [np.asarray(getattr(np, name)(some)) for name in ("exp", "expm1", "log", "log1p", "tanh")]
            small = np.exp(-np.abs(some))
            sigmoid = np.where(some < 0, small, 1) / (1 + small)
            expected += [sigmoid, np.log2(some), np.log10(some), some**2.5, some**-3.0]
        for found, right in zip(executable.run("predict", [some]), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=4 * info.eps, atol=4 * info.smallest_subnormal)
