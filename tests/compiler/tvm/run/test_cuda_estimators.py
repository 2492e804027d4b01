"""THE table of estimators for CUDA, against the source library's own output. The kernels run on the processor (tests/cuda_on_cpu)."""

from __future__ import annotations

from zlib import crc32

import pytest
from cuda_on_cpu import cannot_run, emulated
from test_estimators import CASES, check_agreement, drawn, fitted, on_tvm, source_methods

import hbc
from hbc.compiler.base import StrategyName
from hbc.compiler.tvm.trees.gpu.choice import FORMS
from hbc.ops.tree import TreeEnsemble

pytestmark = [
    pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run())),
    pytest.mark.filterwarnings("ignore:Found unknown categories", "ignore:Maximum number of iterations"),
]


def agrees(name: str, every: bool, strategy: StrategyName = "auto") -> None:
    """A case on CUDA agrees with its source, whatever the order of threads and blocks. every: by all methods, else by a sample.
    strategy: of its trees; one that is not "auto" is tried only if there are some."""
    case = CASES[name]
    model, X = fitted(name)
    methods = source_methods(case, model)
    double, single = (methods, methods) if every else on_tvm(name, methods)
    sample = X if case.sample else None
    if strategy != "auto" and not any(
        isinstance(node.op, TreeEnsemble) for node in hbc.convert(model, "numpy", sample).graph.nodes
    ):
        pytest.skip("it has no trees")
    with emulated(seed=crc32(name.encode())):
        compiled = hbc.convert(model, "tvm", sample, device="cuda", strategy=strategy)
        check_agreement(case, model, X, compiled, double if every else double[:1], single)


@pytest.mark.every_case
@pytest.mark.parametrize("name", drawn(8))  # few: a case takes 0.3 s of g++ for each method
def test_sample_agrees_with_its_source_on_cuda(name: str) -> None:
    agrees(name, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_methods_agree_on_cuda(name: str) -> None:
    agrees(name, every=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["walk", *FORMS])
@pytest.mark.parametrize("name", CASES)
def test_all_trees_agree_by_every_strategy_on_cuda(name: str, strategy: StrategyName) -> None:
    """By a sample of methods. Trees that do not fit a strategy are walked."""
    agrees(name, every=False, strategy=strategy)
