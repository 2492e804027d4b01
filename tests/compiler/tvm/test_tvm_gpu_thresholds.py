"""The search for ranks on a GPU (trees/gpu/planes.py): columns of many thresholds, in pairs of levels and through shared memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import sanitized, without_races
from random_trees import rows_at_thresholds
from test_tvm_gpu_trees import bounded, emulates, input_of, perfect_tree, run

from hbc.compiler.tvm.trees.gpu.choice import FORMS
from hbc.compiler.tvm.trees.gpu.planes import levels_of, pairs_of
from hbc.compiler.tvm.trees.gpu.tiles import staged_levels
from hbc.compiler.tvm.trees.gpu.wide_levels import MOST_RANK
from hbc.ops.tree import join


@emulates
@pytest.mark.parametrize("strategy", FORMS)
@pytest.mark.parametrize("missing", [False, True])
def test_levels_of_thresholds_in_pairs(missing: bool, strategy: str) -> None:
    """Columns of more than 512 thresholds of float32, whose last levels are read two at a time: one pair, two, and none."""
    rng = np.random.default_rng(missing)
    op = join([bounded(rng, 8, 3, 0.05) for _ in range(40)], np.zeros(1))
    op = replace(
        op,
        threshold=np.where(
            op.feature == 2, np.round(rng.normal(size=len(op.feature)), 1), rng.normal(size=len(op.feature))
        ).astype("f4"),
        missing_left=op.missing_left & missing,
    )
    found = pairs_of(levels_of(FORMS[strategy].ranked(op)), "f32")
    assert (found > 0).sum() >= 2
    assert found.min() == 0
    data = rows_at_thresholds(rng, op, 300, 8)
    (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=5)
    np.testing.assert_array_equal(found, expected)
    assert all(bool(launch.dynamic) == FORMS[strategy].fits(op) for launch in launches)


@emulates
@pytest.mark.parametrize(("dtype", "trees", "width", "levels"), [("f4", 40, 8, 11), ("f4", 12, 5, 10), ("f8", 12, 3, 10)])
def test_thresholds_pass_through_shared_memory(dtype: str, trees: int, width: int, levels: int) -> None:
    """Those of a column while those of the next one arrive. Columns are read in fours or alone, and one has few thresholds. Of the first
    ensemble some levels are read in pairs. What lies there is no more read when tiles come to the same place."""
    rng = np.random.default_rng(trees + width)
    op = join([bounded(rng, 8, 3, 0.05) for _ in range(trees)], np.zeros(1))
    thresholds = rng.normal(size=len(op.feature))
    op = replace(op, threshold=np.where(op.feature == 1, np.round(thresholds, 1), thresholds).astype(dtype))
    wide = FORMS["wide_levels"]
    assert staged_levels(op, wide) == levels
    assert [staged_levels(op, form) for form in FORMS.values() if form is not wide] == [0] * (len(FORMS) - 1)
    found = levels_of(wide.ranked(op))
    assert found.min() < levels
    assert pairs_of(found, "f32", levels - 1).any() == (trees == 40)
    data = rows_at_thresholds(rng, op, 400, width)
    data[rng.random(data.shape) < 0.1] = np.nan
    (found,), (expected,), launches = run(op.run_as("wide_levels")(input_of(data)), data=data, seed=trees)
    np.testing.assert_array_equal(found, expected)
    for again in (sanitized, without_races):
        again(launches[-1])


@emulates
@pytest.mark.parametrize("both_ways", [False, True])
def test_the_most_thresholds_of_15_bits(both_ways: bool) -> None:
    """The greatest ranks of rows and nodes, and NaN beside them."""
    rng = np.random.default_rng(0)
    count = MOST_RANK - 1
    grown = [perfect_tree(rng, 8, np.arange(255.0) + 255 * tree) for tree in range(-(-count // 255))]
    op = join(grown, np.zeros(1))
    inner = op.feature >= 0
    op = replace(
        op,
        feature=np.where(inner, 0, -1).astype(op.feature.dtype),
        threshold=np.where(inner, np.minimum(op.threshold, count - 1), 0).astype("f4"),
        missing_left=both_ways & (rng.random(len(inner)) < 0.5),
    )
    assert FORMS["wide_levels"].ranked(op).most_thresholds == count
    assert FORMS["wide_levels"].fits(op)
    repeated = op.threshold == count - 1
    one_more = replace(op, threshold=np.where(repeated & (np.cumsum(repeated) == 1), np.float32(-1), op.threshold))
    assert FORMS["wide_levels"].fits(one_more) == both_ways  # a column for each direction
    op = one_more if both_ways else op
    data = rows_at_thresholds(rng, op, 400, 1)
    (found,), (expected,), _ = run(op.run_as("wide_levels")(input_of(data)), data=data)
    np.testing.assert_array_equal(found, expected)
