"""Leaves of two or three classes without the largest number (trees/gpu/shares.py)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import sanitized, without_races
from random_trees import rows_at_thresholds
from test_tvm_gpu_trees import bounded, emulates, input_of, run

from hbc.compiler.tvm.trees.gpu.choice import FORMS
from hbc.compiler.tvm.trees.gpu.levels import values_of
from hbc.compiler.tvm.trees.gpu.shares import added_down, shares
from hbc.ir.types import Array
from hbc.ops.tree import TreeEnsemble, join

FREE = np.uint64(3 << 62)
"""The bits of a number that say something else."""


def of_values(values: Array) -> TreeEnsemble:
    """Trees of depth 6 whose leaves have some values, as many each as there are classes."""
    rng = np.random.default_rng(len(values))
    op = join([bounded(rng, 6, 5, 0.1) for _ in range(12)], np.zeros(1))
    chosen = values[rng.integers(0, len(values), len(op.values))]
    chosen[-1] = values[-1]
    return replace(op, values=chosen, base=np.zeros(values.shape[1]), target=np.zeros(op.n_trees, np.int64))


def parts(classes: int, most: int) -> Array:
    """f64[N, V]: counts of classes by their sum, for all sums up to one."""
    counts = np.stack(np.meshgrid(*[np.arange(most + 1)] * (classes - 1), indexing="ij"), axis=-1).reshape(-1, classes - 1)
    found = []
    for total in range(1, most + 1):
        own = counts[counts.sum(axis=1) <= total]
        found.append(np.column_stack([own, total - own.sum(axis=1)]) / total)
    return np.concatenate(found)


def parts_of_many(classes: int) -> Array:
    """The same of many rows."""
    rng = np.random.default_rng(0)
    total = rng.integers(1, 1 << 22, 100_000)
    ends = np.sort(rng.integers(0, total + 1, (classes - 1, len(total))), axis=0)
    return np.diff(ends, axis=0, prepend=0, append=total[None]).T / total[:, None]


def stored(values: Array) -> Array | None:
    """`shares` of an ensemble with just these values."""
    return shares(replace(of_values(values), values=values))


def test_sums_are_rounded_down() -> None:
    """Those of the packing, against fractions."""
    a, b, _ = parts_of_many(3)[:1000].T
    for left, right in ((a, b), (np.ones(len(a)), -a)):
        for found, *both in zip(added_down(left, right), left, right, strict=True):
            exact = sum(map(Fraction, both))
            assert Fraction(found) <= exact < Fraction(np.nextafter(found, 2))


@pytest.mark.parametrize(("classes", "most"), [(2, 500), (3, 100)])
def test_all_bits_come_back(classes: int, most: int) -> None:
    """All shares of few rows, and some of many rows."""
    values = np.concatenate([parts(classes, most), parts_of_many(classes)])
    found = stored(values)
    assert found is not None
    bits = found.view(np.uint64)
    others, free = (bits & ~FREE).view(float), (bits >> np.uint64(62)).astype(np.int64)
    rest = others[:, 0] if classes == 2 else added_down(*others.T)
    if classes == 2:
        largest, correction = 1 - (free[:, 0] & 1), free[:, 0] >> 1
    else:
        largest = np.select([free[:, 0] == 2, free[:, 0] == 1], [0, 2], 1)
        correction = np.where(free[:, 1] > 1, free[:, 1] - 4, free[:, 1])
    down = added_down(np.ones(len(rest)), -rest)
    large = (down.view(np.int64) + correction).view(float)
    again = np.empty(values.shape)
    is_largest = largest[:, None] == np.arange(classes)
    again[is_largest], again[~is_largest] = large, others.reshape(-1)
    np.testing.assert_array_equal(again, values)
    assert set(correction.tolist()) == ({0, 1} if classes == 2 else {-2, -1, 0, 1})
    assert set(largest.tolist()) == set(range(classes))


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
        [0.25, 0.25, 0.25],
        [0.25, 0.25, 0.5 + 2.0**-52],
        [0.25, 0.25, 0.5 - 3 * 2.0**-54],
        [0.75, 0.5, -0.25],
        [0.0, -0.0, 1.0],
        [np.nan, 0.0, 1.0],
        [0.0, 0.0, 1 - 2.0**-53],
    ],
)
def test_other_leaves_keep_all_numbers(values: list[float]) -> None:
    others = [0.25, 0.75, 0.0][: len(values)]
    assert stored(np.array([others, others])) is not None
    assert stored(np.array([others, values])) is None
    assert stored(np.array([others, others], np.float32)) is None
    assert stored(np.array([[*others, 0.0, 0.0]])) is None


@emulates
@pytest.mark.parametrize("strategy", FORMS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_sums_of_classes(whole: bool, classes: int, strategy: str) -> None:
    """They have the bits of the reference, in each kernel. whole: each leaf has all its values, since one adds up to more."""
    values = np.concatenate([parts(classes, 60 if classes == 2 else 20), parts_of_many(classes)[:1000]])
    op = of_values(np.concatenate([values, np.full((int(whole), classes), 0.75)]))
    assert (values_of(op) is op.values) == whole
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 400, 5)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=3)
    np.testing.assert_array_equal(found, expected)
    assert all(bool(launch.dynamic) == FORMS[strategy].fits(op) for launch in launches)
    for again in (sanitized, without_races):
        again(launches[-1])
