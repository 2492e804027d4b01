"""`make benchmark`: tree ensembles on every engine, side by side in one run. Answers are checked before anything is timed, every engine
has the same threads and cores, and the engines take turns round by round, so that the machine's noise hits all alike."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import engines as registry
from benchmarks import limits, machine, report, trees
from benchmarks.engines import Engine, Task
from benchmarks.engines.process import EngineError, Process

RESULTS = Path(__file__).parent / "results"
RTOL, ATOL = 1e-5, 1e-6
"""The tolerances of hbc's contract. An engine is exact if all its probabilities are within them."""
WRONG, WRONG_ROWS = 1e-3, 0.01
"""An engine is wrong, and not timed, if more than the share WRONG_ROWS of rows is off by more than WRONG. Between exact and wrong it is
inexact."""


@dataclass(frozen=True)
class Settings:
    """How to measure. After `convert_limit` or `call_limit` seconds an engine is given up."""

    batches: tuple[int, ...] = (1, 8, 32, 64, 100, 1_000, 10_000)
    rounds: int = 7
    budget: float = 0.15
    threads: int = 1
    convert_limit: float = 60.0
    call_limit: float = 90.0

    @property
    def cores(self) -> list[int]:
        """The cores to use: the last ones, because the first one serves the system's interrupts and this process."""
        return sorted(os.sched_getaffinity(0))[-self.threads :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if hbc failed or was not exact anywhere."""
    options = _parser().parse_args(arguments)
    size = trees.QUICK if options.quick else trees.FULL
    rounds, budget, batches = (
        (2, 0.02, (1, 100, 1_000)) if options.quick else (Settings.rounds, Settings.budget, Settings.batches)
    )
    settings = Settings(
        tuple(options.batches or batches),
        options.rounds or rounds,
        options.budget or budget,
        options.threads,
        options.convert_limit,
    )
    try:
        workloads, engines = _chosen(options.only)
    except ValueError as error:
        print(error)
        return 2
    out = options.out or (trees.CACHE / "last.json" if options.quick or options.only else RESULTS / "trees.json")
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "settings": {"size": asdict(size), **asdict(settings), "cores": settings.cores},
        "workloads": {},
    }
    for workload in workloads:
        results["workloads"][workload.name] = run(workload, engines, size, settings)
        results["machine"]["load_after"] = os.getloadavg()
        report.write(results, out, report.markdown(results))  # after each workload, so that a stopped run keeps its results
        print(report.details(workload.name, results["workloads"][workload.name]), flush=True)
    print(report.summary(results))
    print(f"\nwritten: {out} and {out.with_suffix('.md')}")
    return 1 if report.failures(results) else 0


def run(workload: trees.Workload, engines: Sequence[Engine], size: trees.Size, settings: Settings) -> dict[str, Any]:
    """One workload on every engine: convert, check, then measure in turns."""
    _say(f"{workload.name}: training, unless it is in the cache")
    prepared = trees.prepare(workload, size)
    results: dict[str, dict[str, Any]] = {engine.name: {} for engine in engines}
    running: dict[str, Process] = {}
    try:
        for engine in engines:
            _say(f"{workload.name}: {engine.name}")
            started = _started(engine, prepared, settings, results[engine.name])
            if started is not None:
                running[engine.name] = started
        for turn in range(settings.rounds):
            _say(f"{workload.name}: round {turn + 1} of {settings.rounds}")
            measure_round(running, settings, results, turn)
    finally:
        for process in running.values():
            process.end()
    goals = dict(zip(("rows", "one_row"), workload.goals, strict=True))
    return {"model": prepared.facts, "goals": goals, "limit": limits.limit(prepared), "engines": results}


def _started(engine: Engine, prepared: trees.Prepared, settings: Settings, result: dict[str, Any]) -> Process | None:
    """A process whose answers have been checked; None if there is nothing to measure. `result` says how it went."""
    workload = prepared.workload
    task = Task(
        workload.library,
        str(prepared.folder),
        workload.classes,
        trees.FEATURES,
        workload.dtype,
        settings.threads,
        engine.option,
    )
    try:
        process = Process(engine, task)
        result |= process.start(prepared.rows, settings.cores, settings.convert_limit)
        result["answers"] = check(process.answer(settings.call_limit), prepared.expected)
    except (EngineError, ValueError) as error:
        result |= {"status": "failed", "reason": str(error)}
        return None
    result["status"] = result["answers"]["verdict"]
    if result["status"] == "wrong":
        process.end()
        return None
    return process


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Compares probabilities with the native library's. Of two classes, the second one alone is enough."""
    two = expected.shape[1] == 2
    wanted = expected[:, 1] if two and found.size == len(expected) else expected
    if found.size != wanted.size:
        raise ValueError(f"answer: {found.shape} values for {expected.shape} probabilities")
    difference = np.abs(found.reshape(wanted.shape).astype(np.float64) - wanted).reshape(len(expected), -1)
    allowed = (ATOL + RTOL * np.abs(wanted)).reshape(len(expected), -1)
    differing = float((~(difference <= allowed)).any(axis=1).mean())  # NaN differs
    wrong = float((~(difference <= WRONG)).any(axis=1).mean())
    verdict = "exact" if differing == 0 else "inexact" if wrong <= WRONG_ROWS else "wrong"
    largest = float(np.nan_to_num(difference, nan=np.inf).max())
    return {"verdict": verdict, "largest_difference": largest, "rows_differing": differing, "rows_wrong": wrong}


def measure_round(running: dict[str, Process], settings: Settings, results: dict[str, dict[str, Any]], turn: int) -> None:
    """Measures every batch size on every engine once. Another engine begins each time. A call that takes ten times the budget is not
    repeated in later rounds."""
    for rows in settings.batches:
        names = list(running)
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else []:
            rounds = results[name].setdefault("times_us", {}).setdefault(str(rows), [])
            if rounds and rounds[0]["p50"] > 10 * settings.budget * 1e6:
                continue
            try:
                rounds.append(running[name].measure(rows, settings.budget, settings.call_limit))
            except EngineError as error:
                results[name] |= {"status": "failed", "reason": f"{rows} rows: {error}"}
                del running[name]


def _chosen(patterns: Sequence[str]) -> tuple[list[trees.Workload], Sequence[Engine]]:
    """The workloads and engines that `--only` names. If patterns match workloads only, all engines run, and the other way round."""
    workloads = [w for w in trees.WORKLOADS if any(fnmatch.fnmatchcase(w.name, p) for p in patterns)]
    engines = registry.matching(patterns) if patterns else ()
    for pattern in patterns:
        if not (fnmatch.filter([w.name for w in trees.WORKLOADS], pattern) or registry.matching([pattern])):
            known = ", ".join([*(w.name for w in trees.WORKLOADS), *(e.name for e in registry.DEFAULT)])
            raise ValueError(f"nothing is called {pattern}; known are {known}, and strategies as in hbc:tvm:walk")
    return workloads or trees.WORKLOADS, engines or registry.DEFAULT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="workloads and engines, by name or wildcard")
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: does everything work?")
    parser.add_argument("--batches", nargs="+", type=int, metavar="ROWS")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--budget", type=float, help="seconds a measurement takes, one for each engine, batch size and round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--convert-limit", type=float, default=Settings.convert_limit, metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="the JSON file; the table goes beside it")
    return parser


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
