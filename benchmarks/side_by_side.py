"""Engines side by side: each converts, its answers are checked, and then they take turns, round by round, so that the machine's noise hits
all alike. Either each engine has a process in an environment of its own (`on_engines`), or all are calls in this one (`in_turns`)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.answers import Array, check
from benchmarks.engines import Engine, Task
from benchmarks.engines.process import EngineError, Process
from benchmarks.timing import Call, measure
from benchmarks.trained import Trained


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


class Processes:
    """The processes of engines. `lasting`: they serve all models of a run, because starting one takes two seconds or more, and one that
    died is started again. Otherwise `end` is called after each model, and no engine knows of the one before."""

    def __init__(self, lasting: bool) -> None:
        self.lasting = lasting
        self._running: dict[tuple[str, int], Process] = {}

    def of(self, engine: Engine, task: Task) -> Process:
        """The engine's process, with that task. A process keeps its number of threads."""
        process = self._running.get((engine.name, task.threads))
        if process is None or process.is_dead:
            process = self._running[engine.name, task.threads] = Process(engine, task, self.lasting)
        process.task = task
        return process

    def end(self) -> None:
        for process in self._running.values():
            process.end()
        self._running.clear()


@contextmanager
def processes(lasting: bool) -> Iterator[Processes]:
    """Processes of engines, which end with the context."""
    found = Processes(lasting)
    try:
        yield found
    finally:
        found.end()


def on_engines(
    model: Trained, engines: Sequence[Engine], settings: Settings, say: Callable[[str], None], alive: Processes
) -> dict[str, dict[str, Any]]:
    """A trained model on every engine: name → {status, answers, times_us, convert_s …}, or {status, reason}."""
    results: dict[str, dict[str, Any]] = {engine.name: {} for engine in engines}
    running: dict[str, Process] = {}
    try:
        for engine in engines:
            say(f"{model.name}: {engine.name} converts")
            result = results[engine.name]
            try:
                process = alive.of(engine, model.task(engine, settings.threads))
                start(process, model.rows, model.expected, settings, result)
            except (EngineError, ValueError) as error:
                result |= {"status": "failed", "reason": str(error)}
                continue
            if result["status"] != "wrong":
                running[engine.name] = process
            elif not alive.lasting:
                process.end()
        for turn in range(settings.rounds):
            say(f"{model.name}: round {turn + 1} of {settings.rounds}")
            measure_round(running, settings, results, turn)
    finally:
        if not alive.lasting:
            alive.end()
    return results


def start(process: Process, rows: Path, expected: Array | None, settings: Settings, result: dict[str, Any]) -> Array:
    """Converts, and checks the answers for as many rows as are expected (None: these are the right ones). Returns the answers; `result`
    says how it went."""
    result |= process.start(rows, settings.cores, settings.convert_limit)
    answer = process.answer(settings.call_limit, None if expected is None else len(expected))
    result["answers"] = check(answer, answer if expected is None else expected)
    result["status"] = result["answers"]["verdict"]
    return answer


def measure_round(running: dict[str, Process], settings: Settings, results: dict[str, dict[str, Any]], turn: int) -> None:
    """Measures every batch size on every engine once. Another engine begins each time. A call that takes ten times the budget is not
    repeated in later rounds."""
    for rows in settings.batches:
        for name in _from(list(running), turn):
            rounds = results[name].setdefault("times_us", {}).setdefault(str(rows), [])
            if rounds and rounds[0]["p50"] > 10 * settings.budget * 1e6:
                continue
            try:
                rounds.append(running[name].measure(rows, settings.budget, settings.call_limit))
            except EngineError as error:
                results[name] |= {"status": "failed", "reason": f"{rows} rows: {error}"}
                del running[name]


def in_turns(
    calls: Mapping[str, Call],
    source: str,
    batches: Mapping[int, Sequence[Any]],
    checked: Sequence[Any],
    rounds: int,
    budget: float,
) -> dict[str, dict[str, Any]]:
    """Calls of this process: name → {status, answers, times_us}. The answers for each batch of `checked` are compared with those of
    `source`, and the worst counts. `batches`: rows of a call → the batches that calls cycle through."""
    results: dict[str, dict[str, Any]] = {}
    expected = [calls[source](batch) for batch in checked]
    for name, call in calls.items():
        found = [check(call(batch), each) for batch, each in zip(checked, expected, strict=True)]
        worst = max(found, key=lambda each: (each["rows_wrong"], each["rows_differing"], each["largest_difference"]))
        results[name] = {"answers": worst, "status": worst["verdict"], "times_us": {}}
    for turn in range(rounds):
        for rows, parts in batches.items():
            for name in _from(list(calls), turn):
                times = results[name]["times_us"].setdefault(str(rows), [])
                if not times or times[0]["p50"] <= 10 * budget * 1e6:
                    gc.collect()
                    times.append(measure(calls[name], parts, budget))
    return results


def cut(X: Any, rows: int, most: int = 100) -> list[Any]:
    """Up to so many batches of X with so many rows each."""
    return [
        X[start : start + rows] for start in range(0, min(X.shape[0] if hasattr(X, "shape") else len(X), most * rows), rows)
    ]


def _from(names: list[str], turn: int) -> list[str]:
    """The names, beginning with another one each turn."""
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]
