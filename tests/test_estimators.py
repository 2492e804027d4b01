"""THE table of estimators × data kinds × backends against the source library's own output.

The tests of one case run one after the other (`BY_CASE`), so that its model is fitted, and converted to numpy, once.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import kinds as kinds_of_output
import numpy as np
import pytest
from backends import BACKENDS
from estimators import all_cases
from estimators.case import METHODS, Case
from installed import OLD_LIBRARIES

import hbc
from hbc.ir.printer import print_graph, read_graph
from hbc.runtime.input.intake import Intake

CASES = {case.name: case for case in all_cases()}
pytestmark = pytest.mark.filterwarnings("ignore:Found unknown categories")
BY_CASE = pytest.mark.parametrize("name", CASES, scope="module")  # of that scope: pytest then runs case by case
OF_EACH_KIND = kinds_of_output.known()
"""Cases that together have all kinds of output, and always run."""


def drawn(count: int) -> list[str]:
    """So many cases, others with each commit (HBC_SAMPLE): for tests that take long for a case."""
    return sorted(CASES, key=lambda name: crc32(f"{os.environ.get('HBC_SAMPLE', '')}{name}".encode()))[:count]


@functools.lru_cache(maxsize=4)
def fitted(name: str) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fitting is not tested
        try:
            return CASES[name].make()
        except (TypeError, ValueError) as error:
            if OLD_LIBRARIES:
                pytest.skip(f"the installed release does not have it: {error}")
            raise


def converted(case: Case, backend: str, **options: Any) -> tuple[Any, Any, Any]:
    model, X = fitted(case.name)
    return model, X, hbc.convert(model, backend, X if case.sample else None, **options)


@functools.lru_cache(maxsize=4)
def on_numpy(name: str) -> tuple[Any, Any, Any]:
    return converted(CASES[name], "numpy")


def source_methods(case: Case, model: Any) -> list[str]:
    return [method for method in case.methods or METHODS if hasattr(model, method) or method in case.options]


def results(case: Case, model: Any, X: Any) -> dict[str, Any]:
    """What the source's methods return."""
    return {method: call(case, model, method, X) for method in source_methods(case, model)}


def call(case: Case, model: Any, method: str, X: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the source's warnings about names and dtypes are its own
        X = X if case.convert_input is None else case.convert_input(X)
        result = case.options[method](model, X) if method in case.options else getattr(model, method)(X)
        # GradientBoostingClassifier.staged_predict squeezes one row of two classes to a number, as none of its other methods does.
        return [np.atleast_1d(stage) for stage in result] if isinstance(result, Iterator) else result


def assert_same(expected: Any, found: Any, case: Case, method: str, ends: bool = True) -> None:
    """ends: compare zeros and ones exactly, see `assert_same_ends`."""
    if isinstance(expected, (list, tuple)):
        found = list(found)
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other, case, method, ends)
        return
    if hasattr(expected, "toarray"):
        assert type(found) is type(expected)
        assert found.shape == expected.shape
        if not case.stored_zeros:
            expected.eliminate_zeros()
        for part in ("indptr", "indices", "data"):
            assert getattr(found, part).dtype == getattr(expected, part).dtype
            assert_same(getattr(expected, part), getattr(found, part), case, method, ends)
        return
    expected = np.asarray(expected)
    assert isinstance(found, np.ndarray)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if expected.dtype.kind == "f":
        single = expected.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5 if single else case.rtol, atol=1e-6 if single else case.atol)
        if ends:
            assert_same_ends(expected, found, case, method)
    else:
        np.testing.assert_array_equal(found, expected)


def assert_same_ends(expected: Any, found: Any, case: Case, method: str) -> None:
    """No tolerance for what a user tests exactly: 0, and 1 of probabilities. (allclose compares infinities exactly.)"""
    if not case.rounded_ends:
        np.testing.assert_array_equal(found == 0, expected == 0)
        if method.endswith("predict_proba"):
            np.testing.assert_array_equal(found == 1, expected == 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.every_case] * (name in OF_EACH_KIND)) for name in CASES], scope="module"
)
def test_agrees_with_its_source(name: str, backend: str) -> None:
    """Every method, float32 and float64, many rows and one; on tvm a sample of them."""
    case = CASES[name]
    model, X, compiled = on_numpy(name) if backend == "numpy" else converted(case, backend)
    methods = source_methods(case, model)
    check_agreement(case, model, X, compiled, *(on_tvm(name, methods) if backend == "tvm" else (methods, methods)))


@pytest.mark.slow
@BY_CASE
def test_all_methods_agree_on_tvm(name: str) -> None:
    check_agreement(CASES[name], *converted(CASES[name], "tvm"))


@functools.cache
def turns() -> dict[str, int]:
    """The name of every case → its number among the cases of its class. The class is the first word of a name ("log1p before a forest"
    has none)."""
    known: Counter[str] = Counter()
    found = {}
    for name in CASES:
        first = name.split()[0]
        cls = first if first[0].isupper() else ""
        found[name] = known[cls]
        known[cls] += 1
    return found


def on_tvm(name: str, methods: list[str]) -> tuple[list[str], list[str]]:
    """The methods to compile of float64 and of float32. LLVM takes 0.1 to 1 s for each: for all of them it would be two thirds of
    the suite's time. The first case of a class takes all of float64; those after it one in turn, or those of the kinds of output for which
    it always runs; and all cases another of float32."""
    turn = turns()[name]
    double, single = (methods[at % len(methods)] for at in (turn, turn + 1))
    kinds = [method for method in kinds_of_output.methods(name) if method in methods]
    return (kinds or [double]) if turn else methods, [single]


@BY_CASE
def test_its_kinds_of_output_are_in_the_sample(name: str) -> None:
    """`python tests/kinds.py` chooses the cases that always run."""
    model, X, compiled = on_numpy(name)
    sampled = {kind for found in OF_EACH_KIND.values() for kind in found}
    assert kinds_of_output.kinds(compiled.graph, results(CASES[name], model, X)) <= sampled


def check_agreement(
    case: Case, model: Any, X: Any, compiled: Any, double: Sequence[str] | None = None, single: Sequence[str] | None = None
) -> None:
    """A compiled model has the methods of its source, and they return the same. `double`: the methods to compare on X; `single`: on X as
    float32. Default: all."""
    methods = source_methods(case, model)
    assert methods
    assert [method for method in dict.fromkeys((*METHODS, *methods)) if hasattr(compiled, method)] == methods
    calls = [(X, method) for method in (methods if double is None else double)]
    if isinstance(X, np.ndarray) and X.dtype == np.float64 and case.float32:
        calls += [(X.astype(np.float32), method) for method in (methods if single is None else single)]
    for data, method in calls:
        # Products of matrices add in another order elsewhere, and logarithms round otherwise: 1e-17 in one place is 0 in another.
        rounded = compiled.backend != "numpy" or (case.rounded_logs and method == "predict_log_proba")
        ends = not rounded or method.endswith("predict_proba")
        assert_same(call(case, model, method, data), getattr(compiled, method)(data), case, method, ends)
        if case.one_row:
            assert_same(call(case, model, method, data[:1]), getattr(compiled, method)(data[:1]), case, method, ends)


@pytest.mark.filterwarnings("ignore:Maximum number of iterations")  # the source warns too
@BY_CASE
def test_extreme_values_and_zero_rows(name: str) -> None:
    """NaN, ±inf and no rows at all: what the source accepts agrees, what it rejects is InvalidInputError."""
    case = CASES[name]
    model, X, compiled = on_numpy(name)
    variants = [X[:0]]
    if isinstance(X, np.ndarray) and X.dtype.kind == "f":
        for value in (np.nan, np.inf, -np.inf, 1e300 if X.dtype == np.float64 else 1e38):
            changed = X[:20].copy()
            rows = np.arange(len(changed))
            changed[rows, rows % X.shape[1]] = value
            variants.append(changed)
    for data in variants:
        for method in source_methods(case, model):
            try:
                expected = call(case, model, method, data)
            except (ValueError, StopIteration):  # HashingVectorizer raises StopIteration for no documents
                with pytest.raises(hbc.InvalidInputError):
                    getattr(compiled, method)(data)
            else:
                assert_same(expected, getattr(compiled, method)(data), case, method)


@BY_CASE
def test_graph_prints_and_reads_back(name: str) -> None:
    """Text round trip: an equal graph that evaluates equal."""
    _, X, compiled = on_numpy(name)
    read = {}
    for kinds, variant in compiled.variants.items():
        text, arrays = print_graph(variant.graph)
        read[kinds] = read_graph(text, arrays)
        assert read[kinds] == variant.graph
        assert print_graph(read[kinds])[0] == text
    intake = Intake(compiled.spec, tuple(compiled.variants))
    kinds, inputs = intake(intake.frame_of(X[:3]))
    expected = compiled.variants[kinds].graph.evaluate(*inputs)
    for method, values in read[kinds].evaluate(*inputs).items():
        for found, value in zip(values, expected[method], strict=True):
            np.testing.assert_array_equal(found, value)
