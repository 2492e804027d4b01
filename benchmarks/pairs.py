"""Compares the answers of a source and of hbc. Then times both in one process, in turns."""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks import report
from benchmarks.engines.worker import measure
from benchmarks.run import check

OURS, SOURCE = "hbc:tvm", "native"


def versions(distributions: Iterable[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in distributions}


def compare(
    calls: Mapping[str, Callable[[Any], Any]], X: Any, batches: Sequence[int], rounds: int, budget: float
) -> dict[str, dict[str, Any]]:
    """The comparison of answers, and the times of OURS and SOURCE, for batches of so many rows. There are up to 100 different batches.
    The two take turns in beginning."""
    expected = calls[SOURCE](X)
    engines: dict[str, dict[str, Any]] = {
        name: {"answers": (answers := _check(call(X), expected)), "status": answers["verdict"], "times_us": {}}
        for name, call in calls.items()
    }
    for turn in range(rounds):
        for rows in batches:
            parts = [X[start : start + rows] for start in range(0, min(len(X), 100 * rows), rows)]
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                gc.collect()
                engines[name]["times_us"].setdefault(str(rows), []).append(measure(calls[name], parts, budget))
    return engines


def _check(found: Any, expected: Any) -> dict[str, Any]:
    """The result of `check`. For sparse matrices with equal positions each entry counts as a row."""
    if not scipy.sparse.issparse(expected):
        return check(found, expected)
    found, expected = (matrix.sorted_indices() for matrix in (found, expected))
    if not all(np.array_equal(getattr(found, part), getattr(expected, part)) for part in ("indptr", "indices")):
        return {"verdict": "wrong"}
    return check(found.data[:, np.newaxis], expected.data[:, np.newaxis])


def table(results: dict[str, Any], first: str) -> str:
    """µs a row of both for each size of batch, and their ratio; `first` is the head of the first column."""
    batches = results["settings"]["batches"]
    heads = [f"{rows:,} row{'s' * (rows > 1)}: scikit-learn | hbc:tvm | ratio" for rows in reversed(batches)]
    lines = [f"| {first} | {' | '.join(heads)} | rows a second | answers |", "|" + "---|" * (3 + 3 * len(batches))]
    for name, workload in results["workloads"].items():
        cells = []
        for rows in reversed(batches):
            source, ours = (report.microseconds(workload["engines"][engine], rows) for engine in (SOURCE, OURS))
            assert source is not None
            assert ours is not None
            cells += [report.figure(source / rows), report.figure(ours / rows), report.times(source / ours)]
        most = report.microseconds(workload["engines"][OURS], max(batches))
        cells += [f"{1e6 * max(batches) / (most or np.nan):,.0f}", workload["engines"][OURS]["status"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
