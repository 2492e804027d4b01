"""THE table: every estimator that hbc converts, with its options, on every kind of data it accepts. It drives the tests, the
table of docs/what-converts.md and the benchmarks. One module a family; each has `CASES`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from installed import missing

from estimators.case import Case


def all_cases() -> list[Case]:
    """Every case of every family whose libraries are installed, by module name and order of definition. Names are unique."""
    cases: list[Case] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if missing(Path(__path__[0], f"{module.name}.py")):
            continue
        cases += getattr(importlib.import_module(f"estimators.{module.name}"), "CASES", [])
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"two cases have one name: {sorted(n for n in names if names.count(n) > 1)}"
    return cases


def covered_classes() -> set[str]:
    """The supported operators that the table has a case for: a case's name begins with, or names, the class it is about."""
    import hbc

    words = {word for case in all_cases() for word in re.findall(r"\w+", case.name)}
    return {name for name in hbc.supported_operators() if name.rpartition(".")[2] in words}
