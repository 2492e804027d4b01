"""The costs by which a strategy for a GPU is chosen, against the counts of whole kernels for sm_90, and rows that get a block each."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("sklearn")
from cuda_on_cpu.counts import TREES, kinds, models, training_data, trees_of
from random_trees import random_tree

from hbc.compiler.tvm.trees.gpu.choice import FORMS, cycles
from hbc.compiler.tvm.trees.gpu.lanes import rows_of_lanes
from hbc.compiler.tvm.trees.gpu.memory import SMS
from hbc.compiler.tvm.trees.gpu.tiles import rank_work
from hbc.compiler.tvm.trees.gpu.work import clocks
from hbc.ops.tree import TreeEnsemble, join

COUNTED = {
    "LightGBM, depth 4": {"levels": 3401, "links": 7752, "far_links": 6940, "wide_links": 6942},
    "LightGBM, depth 6": {"levels": 5207, "links": 10423, "far_links": 9466, "wide_links": 9469},
    "LightGBM, depth 8": {"levels": 7728, "links": 13273},
    "LightGBM, 31 leaves": {"links": 15873, "far_links": 15469, "wide_links": 15472},
    "XGBoost, depth 6": {"levels": 4985, "links": 10476, "far_links": 9499, "wide_links": 9501},
    "XGBoost, depth 8": {"levels": 7169, "links": 13547},
    "forest, depth 8": {"levels": 8677, "links": 14505},
    "XGBoost, exact": {"wide_levels": 8799},
}
"""Model → strategy → the clocks of an SM for a warp of rows and 500 trees, by `python -m cuda_on_cpu.counts`. Without those that wait for
L2: 500 trees do, and fewer do not."""


@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("depth 8" in name or "exact" in name)) for name in COUNTED]
)
def test_costs_are_near_the_counts_of_whole_kernels(name: str) -> None:
    """So near that the cheapest strategy is one of those that take the fewest clocks."""
    op, counted = trees_of((models() | kinds())[name](*training_data(np.random.default_rng(0)))), COUNTED[name]
    found = {form: clocks(rank_work(op, FORMS[form]) + FORMS[form].work(op) * (TREES / op.n_trees)) for form in counted}
    assert found == pytest.approx(counted, rel=0.03)
    assert counted[min(found, key=found.__getitem__)] <= 1.03 * min(counted.values())
    assert min(cycles(op), key=cycles(op).__getitem__) != "walk"


def ensemble(trees: int, leaves: int) -> TreeEnsemble:
    rng = np.random.default_rng(trees)
    return join([random_tree(rng, leaves, 20, "f4", rng.normal(size=(50, 1)), False) for _ in range(trees)], np.zeros(1))


def test_rows_that_get_a_block_each() -> None:
    """The fewer and the smaller trees are, the sooner blocks of 32 rows are as fast: they walk 15 trees at once."""
    few, many = ensemble(5, 4), ensemble(400, 60)
    assert rows_of_lanes(few, FORMS["links"]) < rows_of_lanes(many, FORMS["links"]) < rows_of_lanes(many, FORMS["far_links"])
    for op in (few, many):
        rows = rows_of_lanes(op, FORMS["links"])
        assert rows >= SMS
        assert rows % SMS == 0
