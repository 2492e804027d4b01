"""Leaves of two classes as one number each (trees/gpu/halves.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import sanitized, without_races
from random_trees import rows_at_thresholds
from test_tvm_gpu_trees import bounded, emulates, input_of, run

from hbc.compiler.tvm.trees.gpu.choice import FORMS
from hbc.compiler.tvm.trees.gpu.halves import NEXT_BIT, ORDER_BIT, halves
from hbc.compiler.tvm.trees.gpu.levels import values_of
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble, join


def of_values(values: Array) -> TreeEnsemble:
    """Trees of depth 6 whose leaves have some values, two each."""
    rng = np.random.default_rng(len(values))
    op = join([bounded(rng, 6, 5, 0.1) for _ in range(12)], np.zeros(1))
    chosen = values[rng.integers(0, len(values), len(op.values))]
    chosen[-1] = values[-1]
    return replace(op, values=chosen, base=np.zeros(values.shape[1]), target=np.zeros(op.n_trees, np.int64))


def shares(most: int) -> Array:
    """f64[N, 2]: counts of two classes by their sum, for all sums up to one."""
    total = np.repeat(np.arange(1, most + 1), np.arange(2, most + 2))
    first = np.concatenate([np.arange(count + 1) for count in range(1, most + 1)])
    return np.stack([first / total, (total - first) / total], axis=1)


def halved(values: Array) -> Array | None:
    """`halves` of an ensemble with just these values."""
    return halves(replace(of_values(values), values=values))


def test_all_bits_come_back() -> None:
    """Both shares of up to 500 rows, and of many rows."""
    rng = np.random.default_rng(0)
    total = rng.integers(1, 1 << 22, 100_000)
    first = rng.integers(0, total + 1)
    values = np.concatenate([shares(500), np.stack([first / total, (total - first) / total], axis=1)])
    found = halved(values)
    assert found is not None
    bits = found[:, 0].view(np.uint64)
    small = (bits & (1 << ORDER_BIT) - 1).view(np.float64)
    nearest = 1 - small
    down = np.where(1 - nearest < small, np.nextafter(nearest, 0), nearest)
    large = (down.view(np.uint64) + (bits >> NEXT_BIT)).view(np.float64)
    order = bits >> ORDER_BIT & 1 == 1
    np.testing.assert_array_equal(np.where(order, large, small), values[:, 0])
    np.testing.assert_array_equal(np.where(order, small, large), values[:, 1])
    assert (bits >> NEXT_BIT).any()
    assert not (bits >> NEXT_BIT).all()


@pytest.mark.parametrize(
    "values",
    [
        [0.25, 0.5],  # they do not add up to one
        [0.25, np.nextafter(np.nextafter(0.75, 1), 1)],
        [1.25, -0.25],
        [-0.0, 1.0],
        [np.nan, 1.0],
        [2.0**-60, 1.0],  # the next number would have another upper word
        [3.0, 5.0],
    ],
)
def test_other_leaves_keep_two_numbers(values: list[float]) -> None:
    assert halved(np.array([[0.25, 0.75], values])) is None
    assert halved(np.array([[0.25, 0.75], values], np.float32)) is None
    assert halved(np.array([[0.25, 0.75, 0.0]])) is None


@emulates
@pytest.mark.parametrize("strategy", FORMS)
@pytest.mark.parametrize("whole", [False, True])
def test_sums_of_two_classes(whole: bool, strategy: str) -> None:
    """They have the bits of the reference, in each kernel. whole: each leaf has its two values, since one adds up to more."""
    op = of_values(np.concatenate([shares(60), np.full((int(whole), 2), 0.75)]))
    assert (values_of(op) is op.values) == whole
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 400, 5)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=3)
    np.testing.assert_array_equal(found, expected)
    assert all(launch.dynamic for launch in launches)
    for again in (sanitized, without_races):
        again(launches[-1])
