"""First nodes of trees in constant memory (trees/gpu/constants.py)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("tvm")
from cuda_on_cpu import sanitized, without_races
from random_trees import rows_at_thresholds
from test_tvm_gpu_trees import bounded, emulates, input_of, run

from hbc.compiler.tvm.nest.schedule import GpuRows, GpuTiles
from hbc.compiler.tvm.trees.gpu import choice, levels
from hbc.compiler.tvm.trees.gpu.choice import FORMS, schedule_for
from hbc.compiler.tvm.trees.gpu.constants import CONSTANT_BYTES
from hbc.compiler.tvm.trees.gpu.levels import Levels
from hbc.ops.tree import TreeEnsemble, join


def trees(depth: int, features: int, width: int = 1, count: int = 12) -> TreeEnsemble:
    rng = np.random.default_rng(depth + features)
    op = join([bounded(rng, depth, features, 0.1, width) for _ in range(count)], np.zeros(width))
    return replace(op, target=np.zeros(op.n_trees, np.int64))


def form_of(strategy: str) -> type[Levels]:
    form = FORMS[strategy]
    assert issubclass(form, Levels)
    return form


@emulates
@pytest.mark.parametrize("room", [CONSTANT_BYTES, 0])
@pytest.mark.parametrize(("features", "width"), [(5, 1), (60, 2)])
@pytest.mark.parametrize(
    ("strategy", "depth"),
    [("levels", 1), ("levels", 2), ("levels", 4), ("levels", 6), ("levels", 7), *[("wide_levels", n) for n in (1, 2, 3, 4, 8)]],
)
def test_sums_have_all_bits(strategy: str, depth: int, features: int, width: int, room: int) -> None:
    """With constants, and where there is no room for them: of eight rows a thread and of four, for NaN to both sides."""
    op = trees(depth, features, width)
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 400, features)
    with mock.patch.object(choice, "CONSTANT_BYTES", room):
        (found,), (expected,), launches = run(op.run_as(strategy)(input_of(data)), data=data, seed=3)
    np.testing.assert_array_equal(found, expected)
    assert len(re.findall("__constant__", launches[-1].source)) == (room > 0 and depth > 1)
    for again in (sanitized, without_races):
        again(launches[-1])


@emulates
def test_rows_of_eight_pick_from_constants_and_from_tiles() -> None:
    """Where reads are the limit, which is not so in each ensemble that fits."""
    op = trees(8, 5)
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 300, 5)
    assert Levels.picks(op)
    for room in (CONSTANT_BYTES, 0):
        with mock.patch.object(choice, "CONSTANT_BYTES", room), mock.patch.object(levels, "CONSTANT_BYTES", room):
            assert Levels.picks(op)
            assert Levels.in_constants(op, True) == (room > 0)
            (found,), (expected,), _ = run(op.run_as("levels")(input_of(data)), data=data)
        np.testing.assert_array_equal(found, expected)


@emulates
def test_ensembles_of_one_module_share_the_memory() -> None:
    """Those of other methods too."""
    op, other = trees(4, 5).run_as("levels"), trees(5, 5).run_as("levels")
    data: Any = rows_at_thresholds(np.random.default_rng(1), op, 300, 5)
    x = input_of(data)
    nodes = op(x), other(x)
    found, expected, launches = run(*nodes, data=data)
    np.testing.assert_array_equal(found, expected)
    assert len(re.findall("__constant__", launches[-1].source)) == 2
    for others, share in ((nodes[:1], CONSTANT_BYTES), (nodes, CONSTANT_BYTES // 2)):
        schedule = schedule_for(nodes[:1], GpuRows(), others)
        assert isinstance(schedule, GpuTiles)
        assert schedule.constant_bytes == share


@pytest.mark.parametrize(("strategy", "most"), [("levels", 614), ("wide_levels", 1536)])
def test_ensembles_that_have_room(strategy: str, most: int) -> None:
    """As many trees as there is room for; the others are read from tiles, which costs wavefronts."""
    form, op = form_of(strategy), trees(6, 5)
    many, more = (replace(op, roots=np.zeros(count, np.int64)) for count in (most, most + 1))
    assert (form.in_constants(many, True), form.in_constants(more, True)) == (True, False)
    assert form.reads_of_top(many, True) < form.reads_of_top(more, True)
