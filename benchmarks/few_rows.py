"""Calls of one row and of few rows, one thread: how much more a row of them costs than a row of a call of 10,000 rows.

The source answers the same batches in the same process. All answers are compared with its own before anything is timed. `predict_proba`
makes the array of its answer; a handle (`bind`) writes into an array that the caller gives, and looks less at its input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

import hbc
from benchmarks import report, trees
from benchmarks.report import SOURCE
from benchmarks.session import Run, versions
from benchmarks.side_by_side import cut, in_turns

WORKLOADS = ("lightgbm-500x31", "lightgbm-500x255", "xgboost-500-depth8", "forest-500-depth8")
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 100, 200, 10_000)
PREDICT, HANDLE = "hbc: predict_proba", "hbc: handle, out given"
DISTRIBUTIONS = ("hbc", "apache-tvm", "scikit-learn", "lightgbm", "xgboost-cpu")
GOALS = {1: {PREDICT: 1.8, HANDLE: 1.0}}
"""µs of one row of LightGBM 500 × 31."""
RATIOS = {8: 3.0, 32: 1.7, 64: 1.7, 100: 1.7}
"""The most that a row of such a call may cost, in rows of a call of 10,000. For LightGBM 500 × 31."""

LEGEND = (
    "µs a row: median over the rounds of a round's median call. In brackets: times a row of a call of 10,000 rows. Goals for "
    "LightGBM 500 × 31: one row 1.8 µs through predict_proba and 1.0 through a handle; a row of 8 at most 3 times, of 32 to 100 at most "
    "1.7 times a row of 10,000. Nothing is subtracted: the clock takes some 0.05 µs of a call, and the function that passes `out` to the "
    "handle as much."
)
OPTIONS: dict[str, dict[str, Any]] = {}


def into(handle: Any, out: dict[int, Any]) -> Callable[[Any], Any]:
    """A call of the handle that writes into the array that there is for so many rows."""
    return lambda X: handle(X, out[len(X)])


def run(run: Run) -> None:
    size = trees.QUICK if run.quick else trees.FULL
    batches = [1, 8, 100] if run.quick else list(BATCHES)
    run.settings.update(size=asdict(size), batches=batches)
    rounds, budget = run.given("rounds", 5, 1), run.given("budget", 0.3, 0.02)
    run.on_one_core()
    for name in run.steps(run.asked(dict.fromkeys(WORKLOADS))):
        trained = trees.prepare(trees.BY_NAME[name], size)
        X = np.load(trained.rows)
        compiled = hbc.convert(trained.model, "tvm", X[:10], threads=1)
        handle = compiled.bind("predict_proba", X.dtype)
        parts = {rows: [np.ascontiguousarray(part) for part in cut(X, rows, 1_000)] for rows in batches}
        checked = [part for rows in batches for part in parts[rows][:2] if len(part) == rows]
        source = functools.partial(trained.model.predict_proba, **({"num_threads": 1} if trained.library == "lightgbm" else {}))
        calls = {
            SOURCE: source,
            PREDICT: compiled.predict_proba,
            HANDLE: into(handle, {rows: handle.empty(rows) for rows in batches}),
        }
        run.say(name)
        engines = in_turns(calls, SOURCE, {rows: parts[rows] for rows in batches}, checked, rounds, budget)
        engines[SOURCE]["versions"] = versions(DISTRIBUTIONS)
        run.results["workloads"][name] = {"engines": engines}


def markdown(results: dict[str, Any]) -> str:
    batches = results["settings"]["batches"]
    lines = [report.heading(results, "One row and few rows", LEGEND), ""]
    for name, workload in results["workloads"].items():
        lines += [f"## {name}", "", f"| rows of a call | {' | '.join(workload['engines'])} | most allowed |"]
        lines.append("|" + "---|" * (2 + len(workload["engines"])))
        for rows in batches:
            cells = []
            for engine in workload["engines"].values():
                time, many = (report.microseconds(engine, each) for each in (rows, batches[-1]))
                ratio = f" ({time / rows / (many / batches[-1]):.2f})" if time and many else ""
                status = "" if engine["status"] == "exact" else f" {engine['status']}"
                cells.append(f"{report.figure(time and time / rows)}{ratio}{status}")
            limit = ""
            if name == "lightgbm-500x31":
                limit = (
                    f"{RATIOS[rows]} times"
                    if rows in RATIOS
                    else " and ".join(f"{goal} µs" for goal in GOALS.get(rows, {}).values())
                )
            lines.append(f"| {rows:,} | {' | '.join(cells)} | {limit} |")
        lines.append("")
    return "\n".join(lines)
