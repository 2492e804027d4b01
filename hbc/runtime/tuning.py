"""Measuring candidates against each other: a model compiled in several ways, which agree but for their speed."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from hbc.errors import UnsupportedOperatorError
from hbc.ir.graph import Graph
from hbc.runtime.model import CompiledModel

NOISE = 0.05
"""Part of a time by which one has to be shorter, to count as such."""
SECONDS = 0.15
"""For each candidate and number of rows, unless three calls take longer."""
ROUND = 0.004
HOPELESS = 4.0
"""Times as long as the fastest after two rounds: not measured further."""
RTOL, ATOL = 1e-5, 1e-6

METHODS = ("predict_proba", "decision_function", "predict", "score_samples", "transform")
"""Of these a model's first is measured."""
BATCHES = 1000
"""Which calls cycle through: few single rows would be learnt by the branch predictor and stay in the caches, with what trees they visit."""

Call = Callable[[Any], Any]
Clock = Callable[[], float]
C = TypeVar("C")


def clock_of(device: str, threads: int | None) -> Clock:
    """Of the thread, where it does all the work: on a busy processor no call of 7 ms is left alone for so long (blocks of 128 rows were
    taken for 5 % faster than the usual ones, and are 18 % slower). Others are timed by the clock on the wall."""
    return time.thread_time if device == "cpu" and threads == 1 else time.perf_counter


@dataclass(frozen=True)
class Tuning:
    """What `hbc.tune` found. model: compiled in the way that was chosen; rows: of a call; seconds: of a call for each, by candidate;
    left_out: candidates that were not measured, and why; path: where the choice is kept, None where it could not be."""

    model: CompiledModel
    rows: tuple[int, ...]
    seconds: dict[str, list[float]]
    chosen: str
    left_out: dict[str, str]
    path: Path | None

    def __str__(self) -> str:
        width = max(map(len, self.seconds))
        lines = [f"{'µs a call, rows':<{width + 2}}" + "".join(f"{count:>12,}" for count in self.rows)]
        for name, times in self.seconds.items():
            figures = "".join(f"{1e6 * each:>12,.{1 if each < 1e-4 else 0}f}" for each in times)
            lines.append(f"{name:<{max(width + 2, 15)}}{figures}" + "  ← chosen" * (name == self.chosen))
        lines += [f"not measured: {name} ({reason})" for name, reason in self.left_out.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Found(Generic[C]):
    """overall: the choice for all numbers of rows together; each: for each of them."""

    rows: tuple[int, ...]
    usual: C
    overall: C
    each: tuple[C, ...]
    seconds: dict[str, list[float]]
    left_out: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        counts = " | ".join(f"{count:,}" for count in self.rows)
        names = dict.fromkeys((str(self.overall), str(self.usual)))
        times = "; ".join(f"{name} {' | '.join(f'{1e6 * t:,.3g}' for t in self.seconds[name])}" for name in names)
        return f"µs a call of {counts} row{'s' * (self.rows != (1,))}: {times}"


def search(
    made: Callable[[C], CompiledModel],
    strategies: Sequence[C],
    told: Sequence[C],
    schedules: Callable[[C], Sequence[C]],
    data: Any,
    rows: tuple[int, ...],
    clock: Clock,
) -> Found[C]:
    """Measure the strategies, of which the first is the usual one, and those that are `told` the rows, each the usual one for its number
    of rows; then the schedules of the best; last the winners against the usual ones anew, since of many candidates one may win by luck."""
    usual, left_out, method = strategies[0], {}, ""
    models: dict[C, CompiledModel] = {}
    same: dict[C, C] = {}  # of the candidates that are the same, the one that is measured
    for choice in (*strategies, *told):
        try:
            model = made(choice)._prepare(compile=False)
        except UnsupportedOperatorError as error:
            left_out[str(choice)] = error.culprits[0].reason
            continue
        method = method or next((name for name in METHODS if name in model.methods), model.methods[0])
        compiled = _compiled(model, method)
        same[choice] = next((other for other in models if _compiled(models[other], method) == compiled), choice)
        if same[choice] == choice:
            models[choice] = model
        elif choice in strategies:
            left_out[str(choice)] = f"what {same[choice]} chooses"
    batches = [_batches(data, count) for count in rows]
    some = _take(data, np.arange(min(_length(data), 1000)))

    def measured(choices: Mapping[C, CompiledModel]) -> dict[C, list[float]]:
        calls = agreeing({choice: getattr(model, method) for choice, model in choices.items()}, some, usual)
        races = [race(calls, part, clock) for part in batches]
        return {choice: [found[choice] for found in races] for choice in calls}

    times = measured(models)
    best = overall(times, usual)
    variants = {choice: made(choice) for choice in schedules(best)}
    if variants:
        models |= variants
        again = measured({usual: models[usual], best: models[best], **variants})
        times |= {choice: list(map(min, times.get(choice, found), found)) for choice, found in again.items()}
    leaders = [min(times, key=lambda choice: times[choice][place]) for place in range(len(rows))]
    final = dict.fromkeys([usual, overall(times, usual), *leaders, *(same[choice] for choice in told)])
    decisive = measured({choice: models[choice] for choice in final}) if len(final) > 1 else {usual: times[usual]}
    times |= decisive  # what is shown is what decides
    each = tuple(
        overall({c: [found[place]] for c, found in decisive.items()}, same[choice]) for place, choice in enumerate(told)
    )
    seconds = {str(choice): found for choice, found in times.items()}
    return Found(rows, usual, overall(decisive, usual), each, seconds, left_out)


def _compiled(model: CompiledModel, method: str) -> list[Graph]:
    """What is compiled for a method."""
    return [variant.plan.graph.select(method) for variant in model.variants.values()]


def _length(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "shape") else len(data)


def _batches(data: Any, rows: int) -> list[Any]:
    """Of so many rows each; rows come again where there are too few."""
    count = max(min(BATCHES, _length(data) // rows), 1)
    return [_take(data, np.arange(i * rows, (i + 1) * rows) % _length(data)) for i in range(count)]


def _take(data: Any, rows: Any) -> Any:
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if hasattr(data, "to_batches"):  # pyarrow
        return data.take(rows)
    return [data[i] for i in rows] if isinstance(data, (list, tuple)) else data[rows]


def race(calls: Mapping[C, Call], batches: Sequence[Any], clock: Clock) -> dict[C, float]:
    """The least seconds of a call. Candidates take turns, so that whatever else the machine does hits all alike; the calls of each cycle
    through the batches."""
    rows = {name: itertools.cycle(batches) for name in calls}
    seconds: dict[C, float] = {}
    repeats: dict[C, int] = {}
    for name, call in calls.items():
        call(batches[0])
        seconds[name] = _timed(call, rows[name], 1, clock)
        repeats[name] = max(int(ROUND / max(seconds[name], 1e-7)), 1)
    turn, spent = 0, dict.fromkeys(calls, 0.0)
    while turn < 3 or any(spent[name] < SECONDS for name in calls if seconds[name] < HOPELESS * min(seconds.values())):
        for name, call in calls.items():
            if turn >= 2 and (seconds[name] > HOPELESS * min(seconds.values()) or (turn >= 3 and spent[name] >= SECONDS)):
                continue
            found = _timed(call, rows[name], repeats[name], clock)
            spent[name] += found * repeats[name]
            seconds[name] = min(seconds[name], found)
        turn += 1
    return seconds


def _timed(call: Call, rows: Iterator[Any], repeats: int, clock: Clock) -> float:
    batches = list(itertools.islice(rows, repeats))
    start = clock()
    for batch in batches:
        call(batch)
    return (clock() - start) / repeats


def agreeing(calls: Mapping[C, Call], rows: Any, reference: C) -> dict[C, Call]:
    """Those whose answers are the reference's, and a warning about others."""
    wanted = _answers(calls[reference](rows))
    kept = {}
    for name, call in calls.items():
        if all(_same(a, b) for a, b in zip(_answers(call(rows)), wanted, strict=True)):
            kept[name] = call
        else:
            warnings.warn(
                f"{name} does not give the same answers as {reference}, and is left out. Please report it.", stacklevel=3
            )
    return kept


def _answers(found: Any) -> list[Any]:
    return [np.asarray(each) for each in found] if isinstance(found, (list, tuple)) else [np.asarray(found)]


def _same(found: Any, wanted: Any) -> bool:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if found.dtype.kind != "f":
        return bool((found == wanted).all())
    return bool(np.allclose(found, wanted, RTOL, ATOL, equal_nan=True))


def overall(times: Mapping[C, Sequence[float]], usual: C) -> C:
    """The candidate whose times, relative to the usual one's, are least on average; but for noise none may be longer."""
    gains = {
        name: float(np.mean(np.array(found) / times[usual]))
        for name, found in times.items()
        if name != usual and all(f <= u * (1 + NOISE) for f, u in zip(found, times[usual], strict=True))
    }
    best = min(gains, key=gains.__getitem__, default=usual)
    return best if gains.get(best, 1.0) < 1 - NOISE else usual
