"""THE table of estimators for CUDA, against the source library's own output. The kernels run on the processor (emulator.py)."""

from __future__ import annotations

from zlib import crc32

import pytest
from cuda_on_cpu import emulated
from test_estimators import CASES, check_agreement, fitted, on_tvm, source_methods

import hbc

pytest.importorskip("tvm")
pytestmark = pytest.mark.filterwarnings("ignore:Found unknown categories", "ignore:Maximum number of iterations")


def agrees(name: str, every: bool) -> None:
    """A case on CUDA agrees with its source, whatever the order of threads and blocks. every: by all methods, else by a sample."""
    case = CASES[name]
    model, X = fitted(name)
    methods = source_methods(case, model)
    double, single = (methods, methods) if every else on_tvm(name, methods)
    with emulated(seed=crc32(name.encode())):
        compiled = hbc.convert(model, "tvm", X if case.sample else None, device="cuda")
        check_agreement(case, model, X, compiled, double if every else double[:1], single)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_source_on_cuda(name: str) -> None:
    agrees(name, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_methods_agree_on_cuda(name: str) -> None:
    agrees(name, every=True)
