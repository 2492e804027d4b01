"""Sets one thread for the engines that tests import, because the machine has two cores and xdist uses both. (numpy is imported already, so
its BLAS has more.) Marks most cases as slow, so that the usual run is short."""

import gc
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from installed import ABSENT, missing, older

from hbc.compiler.base import BACKENDS
from hbc.errors import BackendUnavailableError
from hbc.tuning import race

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# What `hbc.tune` and `hbc bench` measure is short. No test is about times, and the examples of the pages tune often.
race.SECONDS, race.ROUND = 0.002, 0.0005
# Nothing is kept from one process to the next: what somebody tuned on this computer changes nothing here, and all code is compiled.
os.environ["HBC_CACHE"] = ""
# A test that imports TVM without hbc builds nothing in C++ for an older torch.
os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")

FEWEST, SEVERAL = 3, 8
"""The fewest cases of a test that always run, one less of a test with SEVERAL cases or more. Of a large table one in ONE_IN runs. The
others are left to the slow tier."""
ONE_IN = 48

SEED = os.environ.get("HBC_SAMPLE", "")
"""Chooses a second sample, a third of one in ONE_IN. CI sets it to the commit's hash: over time every case runs. Where that is less than
one case, the seed also says whether it runs."""

PROCESSOR = os.environ.get("HBC_PROCESSOR", "")
"""A processor with AVX-512, by LLVM's name: all tests run the code for it (tests/avx512_on_cpu)."""


def pytest_configure(config: pytest.Config) -> None:
    """Puts the emulated processor in place before tests are imported, which may ask for the processor."""
    if "lightgbm" not in ABSENT and older("lightgbm", 4, 7):  # it warns of every array
        config.addinivalue_line("filterwarnings", "ignore:X does not have valid feature names:UserWarning")
    if PROCESSOR:
        from avx512_on_cpu import cannot_run, emulated

        if reason := cannot_run():
            raise pytest.UsageError(f"HBC_PROCESSOR: {reason}")
        context = emulated(PROCESSOR)
        context.__enter__()
        config.add_cleanup(lambda: context.__exit__(None, None, None))


def pytest_report_header() -> list[str]:
    lines = [f"second sample: HBC_SAMPLE={SEED} runs the same cases again"] if SEED else []
    lines += [f"processor: {PROCESSOR}"] if PROCESSOR else []
    return [*lines, f"not installed: {', '.join(sorted(ABSENT))}"] if ABSENT else lines


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out the files that need a library that is not installed (tests/installed.py)."""
    return (
        True
        if collection_path.name.startswith("test_") and collection_path.suffix == ".py" and missing(collection_path)
        else None
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """While the cases are collected, Python looks for no garbage, and later not among what is there now: libraries and 50,000 cases, most
    of them of the slow tier. One look at all of that takes 0.7 s, and tests made Python look again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def skipped_if_absent() -> Iterator[None]:
    """Inside, a test that asks for a backend or a library that is not installed is skipped."""
    try:
        yield
    except (ImportError, BackendUnavailableError) as error:
        wanted = {(error.name or "").partition(".")[0]}
        if isinstance(error, BackendUnavailableError) and (backend := BACKENDS.get(str(error.facts.get("backend")))):
            wanted = set(backend.packages)
        if not wanted & ABSENT:
            raise
        pytest.skip(f"{', '.join(sorted(wanted & ABSENT))} not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Every test draws the same numbers from the generators of its file, whichever tests ran before it. The sample changes with each
    commit: a test that fails for some numbers only would be red on one commit and green on the next."""
    for generator, state in FIRST_STATES[item.path]:
        generator.bit_generator.state = state
    with skipped_if_absent():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with skipped_if_absent():
        return (yield)


FIRST_STATES: dict[Path, list[tuple[np.random.Generator, Any]]] = {}
"""A file of tests → its generators, and the state of each before the first test."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path not in FIRST_STATES:
        values = vars(getattr(item, "module", item)).values()
        generators = [value for value in values if isinstance(value, np.random.Generator)]
        FIRST_STATES[item.path] = [(generator, generator.bit_generator.state) for generator in generators]


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks as slow all cases of a test except for a sample. All of them take more than an hour on two cores.

    If tests are selected by name (`-k`, or one by one) or marked `every_case`, all their cases run. `one_in(n)`: a smaller
    sample."""
    if config.option.keyword:
        return
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    left_out: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("every_case") is None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for test, cases in tests.items():
        marked = cases[0].get_closest_marker("one_in")
        one_in = marked.args[0] if marked else ONE_IN
        count = max(FEWEST - (len(cases) >= SEVERAL), len(cases) // one_in)
        run = {*in_turn(cases)[:count], *(in_turn(cases, SEED)[: second(test, len(cases) / (3 * one_in))] if SEED else ())}
        for item in cases:
            if item not in run:
                item.add_marker(pytest.mark.slow)
                left_out.append(item)
    if config.option.markexpr == "not slow":  # what pytest does with them later: before, it puts all in order, 37,000 in 1.3 s
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def second(test: str, expected: float) -> int:
    """The number of cases of a test in the second sample: as many as expected, in the mean over seeds."""
    return int(expected + crc32(f"{SEED} {test}".encode()) / 2**32)


def in_turn(cases: list[pytest.Item], seed: str = "") -> list[pytest.Item]:
    """The cases in a random order that depends on the seed only: first one case of every estimator or operator (the first word of a case's
    name), then a second one of each that has several, and so on."""
    drawn = sorted(cases, key=lambda item: crc32(f"{seed}{item.nodeid}".encode()))
    turns: Counter[str] = Counter()
    order = {}
    for at, item in enumerate(drawn):
        subject = re.split(r"[\s\-\]]", item.nodeid.partition("[")[2], maxsplit=1)[0]
        order[item] = (turns[subject], at)
        turns[subject] += 1
    return sorted(drawn, key=lambda item: order[item])
