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
    "LightGBM, depth 3": {"levels": 2559, "int8_gemm": 4000},
    "LightGBM, depth 4": {"levels": 3324, "int8_gemm": 7000, "links": 7574, "far_links": 6812, "wide_links": 6814},
    "LightGBM, depth 5": {"levels": 4185, "int8_gemm": 16000},
    "LightGBM, depth 6": {"levels": 5113, "links": 10304, "far_links": 9338, "wide_links": 9340},
    "LightGBM, depth 8": {"levels": 7697, "links": 13096},
    "LightGBM, 31 leaves": {"links": 15756, "far_links": 15341, "wide_links": 15343},
    "XGBoost, depth 6": {"levels": 4911, "links": 10351, "far_links": 9341, "wide_links": 9343},
    "XGBoost, depth 8": {"levels": 7065, "links": 13301},
    "forest, depth 8": {"levels": 8542, "links": 14157},
    "XGBoost, exact": {"wide_levels": 8484},
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
