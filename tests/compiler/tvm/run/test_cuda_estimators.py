"""THE table of estimators for CUDA, against the source library's own output. The kernels run on the processor (tests/cuda_on_cpu)."""

from __future__ import annotations

from zlib import crc32

import pytest
from cuda_on_cpu import cannot_run, emulated
from test_estimators import CASES, check_agreement, drawn, fitted, on_tvm, source_methods

import hbc

pytestmark = [
    pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run())),
    pytest.mark.filterwarnings("ignore:Found unknown categories", "ignore:Maximum number of iterations"),
]


def agrees(name: str, every: bool) -> None:
    """A case on CUDA agrees with its source, whatever the order of threads and blocks. every: by all methods, else by a sample."""
    case = CASES[name]
    model, X = fitted(name)
    methods = source_methods(case, model)
    double, single = (methods, methods) if every else on_tvm(name, methods)
    with emulated(seed=crc32(name.encode())):
        compiled = hbc.convert(model, "tvm", X if case.sample else None, device="cuda")
        check_agreement(case, model, X, compiled, double if every else double[:1], single)


@pytest.mark.every_case
@pytest.mark.parametrize("name", drawn(8))  # few: a case takes 0.3 s of g++ for each method
def test_sample_agrees_with_its_source_on_cuda(name: str) -> None:
    agrees(name, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_methods_agree_on_cuda(name: str) -> None:
    agrees(name, every=True)
