"""Every pipeline of the table gives the same results if a pass that fires on it is left out. All such passes are left out one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from estimators.case import Case
from test_estimators import CASES, converted, fitted, source_methods

from hbc.compiler.numpy import NumpyCompiler
from hbc.optimizer.pipeline import NEEDED

pytestmark = pytest.mark.filterwarnings("ignore:Found unknown categories")
EVERY = 9  # the fast tier tests one of so many cases


@pytest.fixture(autouse=True)
def scanning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets passes work in numpy as for a backend that runs all operators and scans trees."""
    monkeypatch.setattr(NumpyCompiler, "supports", lambda *_: True)
    monkeypatch.setattr(NumpyCompiler, "choose_strategy", lambda *_: ("scan", "the test says so"))


def fired(compiled: Any) -> list[str]:
    records = [record for variant in compiled.variants.values() for record in variant.plan.records]
    return list(dict.fromkeys(record.name for record in records if record.changed and record.name not in NEEDED))


def check(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, X = fitted(case.name)
    compiled = converted(case, "numpy")[2]
    expected = {method: called(compiled, method, X) for method in source_methods(case, model)}
    for name in fired(compiled):
        with monkeypatch.context() as patch:
            patch.setenv("HBC_WITHOUT", name)
            without = converted(case, "numpy")[2]
            for method, value in expected.items():
                assert_close(value, called(without, method, X), f"{method} without {name}")


def called(compiled: Any, method: str, X: Any) -> Any:
    result = getattr(compiled, method)(X)
    return list(result) if isinstance(result, Iterator) else result


def assert_close(found: Any, expected: Any, message: str) -> None:
    """Asserts that both are equal except for the last bits of sums."""
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, message)
        return
    found, expected = (value.toarray() if hasattr(value, "toarray") else np.asarray(value) for value in (found, expected))
    assert found.dtype == expected.dtype, message
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, message)
        return
    finite = expected[np.isfinite(expected)]
    tolerance = 1e-5 if expected.dtype == np.float32 else 1e-10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(finite).max(initial=0), err_msg=message)


@pytest.mark.parametrize("name", list(CASES)[::EVERY])
def test_a_sample_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(CASES[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(CASES[name], monkeypatch)
