"""Kinds of output, and the cases of THE table that have one of each. `python tests/kinds.py` chooses them, and writes kinds.json.

A kind is what a method returns (one array or several, of one column or many, numbers or strings, sparse or not), and what computes it (one
tree, more, none). The fixed sample of a usual run has a case of every kind on every backend: wrong answers of one tree with several outputs
once passed for a day, because the sample had no such model."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hbc.ir.graph import Graph
from hbc.ops.tree import TreeEnsemble

FILE = Path(__file__).with_name("kinds.json")
FIXED_PART = 0.3
"""The seconds that a case costs beside fitting and calling it."""


def kinds(graph: Graph, results: Mapping[str, Any]) -> set[str]:
    """The kinds of output of a model, from its parsed graph and what the methods of its source return. Logarithms of probabilities are of
    the kind of these."""
    found = set()
    for method, result in results.items():
        if method.endswith("log_proba"):
            continue
        several = isinstance(result, (list, tuple)) and any(hasattr(each, "shape") for each in result)
        for array in result if several else [result]:
            form = "several " * (several and not method.startswith("staged")) + _form(array)
            found.add(f"{method}: {form}, {_trees(graph.select(method)) if method in graph.outputs else 'an option'}")
    return found


def _form(array: Any) -> str:
    sparse, array = hasattr(array, "toarray"), array if hasattr(array, "dtype") else np.asarray(array, object)
    columns = "×".join("1" if count == 1 else "many" for count in array.shape[1:])
    return f"{'sparse ' * sparse}{'strings' if array.dtype.kind in 'UO' else 'numbers'} [{columns}]"


def _trees(graph: Graph) -> str:
    trees = [node.op.n_trees for node in graph.nodes if isinstance(node.op, TreeEnsemble)]
    return "no trees" if not trees else "one tree" if trees == [1] else "trees"


@functools.cache
def known() -> dict[str, list[str]]:
    """Case → the kinds of output for which it was chosen."""
    chosen: dict[str, list[str]] = json.loads(FILE.read_text())
    return chosen


def methods(name: str) -> list[str]:
    """The methods of a case whose kinds of output no case before it has; none if it was not chosen."""
    return list(dict.fromkeys(kind.partition(":")[0] for kind in known().get(name, ())))


def cover(kinds: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> dict[str, list[str]]:
    """Cases that have all kinds together, each with the kinds that those before it lack: always the one with the most for its seconds."""
    left, chosen = set().union(*kinds.values()), {}
    while left:
        best = max(sorted(kinds), key=lambda name: len(left & set(kinds[name])) / (seconds[name] + FIXED_PART))
        chosen[best] = sorted(left & set(kinds[best]))
        left -= set(kinds[best])
    return chosen


def _measure() -> None:
    import time

    from test_estimators import CASES, on_numpy, results

    found, seconds = {}, {}
    for name, case in CASES.items():
        start = time.perf_counter()
        model, X, compiled = on_numpy(name)
        found[name] = kinds(compiled.graph, results(case, model, X))
        seconds[name] = round(time.perf_counter() - start, 1)  # not more: times differ from run to run
    FILE.write_text(json.dumps(cover(found, seconds), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _measure()
