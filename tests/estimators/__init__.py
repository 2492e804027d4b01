"""THE table: every estimator that hbc converts, with its options, on every kind of data it accepts. It drives the tests, the
README's support table and the benchmarks. One module a family; each has `CASES`."""

from __future__ import annotations

import importlib
import pkgutil

from estimators.case import Case


def all_cases() -> list[Case]:
    """Every case of every family, by module name and order of definition. Names are unique."""
    cases: list[Case] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        cases += getattr(importlib.import_module(f"estimators.{module.name}"), "CASES", [])
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"two cases have one name: {sorted(n for n in names if names.count(n) > 1)}"
    return cases
