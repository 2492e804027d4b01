"""What is told from the operators alone, the optimizer says too: on every backend, for every strategy, for every variant of a model."""

from __future__ import annotations

from typing import Any

import pytest
from backends import BACKENDS
from test_estimators import CASES, converted

import hbc
from hbc.assembly import plan
from hbc.builder import Builder
from hbc.compiler import costs
from hbc.compiler.base import LOWERED_STRATEGIES, CompileOptions
from hbc.ops import tree_strategies
from hbc.ops.tree import TreeEnsemble
from hbc.optimizer.runnable import require_runnable

pytestmark = pytest.mark.filterwarnings("ignore:Found unknown categories")
EVERY = 9  # the fast tier tests one of so many cases


def refuses(function: Any, *arguments: Any) -> bool:
    try:
        function(*arguments)
    except hbc.UnsupportedOperatorError:
        return True
    return False


def check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [variant.graph for variant in converted(CASES[name], "numpy")[2].variants.values()]
    of_trees = any(isinstance(node.op, TreeEnsemble) for node in graphs[0].nodes)
    if of_trees:  # limits that some trees keep and others do not
        for module, of_products, of_padding in (
            (tree_strategies, "GEMM_LIMIT", "PERFECT_LIMIT"),
            (costs, "MOST_PRODUCTS", "MOST_PADDED"),
        ):
            monkeypatch.setattr(module, of_products, 400)
            monkeypatch.setattr(module, of_padding, 40)
    for backend in BACKENDS:
        for strategy in ("auto", *LOWERED_STRATEGIES) if of_trees else ("auto",):
            recipe = Builder(backend, CompileOptions(), strategy).recipe
            for graph in graphs:
                if not refuses(require_runnable, graph, *recipe[:3]):
                    assert not refuses(plan, recipe, graph), f"{backend}, {strategy}"
                else:
                    assert strategy != "auto", f"{backend} has to optimize this graph to know that it runs"


@pytest.mark.parametrize("name", list(CASES)[::EVERY])
def test_a_sample_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, monkeypatch)
