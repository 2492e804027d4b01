"""THE table of estimators for processors with AVX-512, against the source library's own output, on any processor (tests/avx512_on_cpu)."""

from __future__ import annotations

import pytest
from avx512_on_cpu import cannot_run, emulated
from test_estimators import CASES, check_agreement, drawn, fitted, on_tvm, source_methods

import hbc

pytestmark = [
    pytest.mark.skipif(cannot_run() is not None, reason=str(cannot_run())),
    pytest.mark.filterwarnings("ignore:Found unknown categories", "ignore:Maximum number of iterations"),
]


def agrees(name: str, processor: str) -> None:
    case = CASES[name]
    model, X = fitted(name)
    double, single = on_tvm(name, source_methods(case, model))
    with emulated(processor):
        compiled = hbc.convert(model, "tvm", X if case.sample else None)
        check_agreement(case, model, X, compiled, double[:1], single)


@pytest.mark.every_case
@pytest.mark.parametrize("name", drawn(2))
def test_sample_agrees_with_its_source(name: str) -> None:
    agrees(name, "znver4")


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["znver4", "znver5", "x86-64-v4"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_source(name: str, processor: str) -> None:
    agrees(name, processor)
