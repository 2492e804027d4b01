"""Races calls against each other: finds the fastest for each number of rows, and compares their results."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from hbc.ir.types import ATOL, RTOL

NOISE = 0.05
"""A time counts as shorter than another only if it is shorter by this part of it."""
SECONDS = 0.15
"""The time of measurement for each candidate and number of rows, unless three calls take longer."""
ROUND = 0.004
"""The time of one turn of a candidate, in seconds."""
HOPELESS = 4.0
"""A candidate that takes this many times as long as the fastest after two rounds is not measured further."""
BATCHES = 1000
"""The number of batches that calls cycle through. The branch predictor would learn a few single rows, and they would stay in the caches
with the part of the trees that they visit."""

Call = Callable[[Any], Any]
Clock = Callable[[], float]
C = TypeVar("C")


def clock_of(device: str, threads: int | None) -> Clock:
    """The clock to time a model's calls with: the thread's processor time where one thread does all the
    work, otherwise the wall clock. On a busy processor no call of 7 ms is left alone for so long: by
    the wall clock, blocks of 128 rows seemed 5 % faster than the usual ones, and are 18 % slower."""
    return time.thread_time if device == "cpu" and threads == 1 else time.perf_counter


def length(data: Any) -> int:
    return int(data.shape[0]) if hasattr(data, "shape") else len(data)


def batches_of(data: Any, rows: int) -> list[Any]:
    """Up to `BATCHES` batches of so many rows each. Rows come again where the data has too few."""
    count = max(min(BATCHES, length(data) // rows), 1)
    return [take(data, np.arange(i * rows, (i + 1) * rows) % length(data)) for i in range(count)]


def take(data: Any, rows: Any) -> Any:
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if hasattr(data, "to_batches"):  # pyarrow
        return data.take(rows)
    return [data[i] for i in rows] if isinstance(data, (list, tuple)) else data[rows]


def race(calls: Mapping[C, Call], batches: Sequence[Any], clock: Clock) -> dict[C, float]:
    """Candidate → the least seconds of one call. Candidates take turns, so that other work of the machine hits all alike. The calls of each
    candidate cycle through the batches."""
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
    """The calls that give the same answers as the reference. The others are left out, with a warning."""
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
    """The candidate whose times, relative to those of the usual one, are the least on average. A candidate with a time that is longer
    than the usual one's by more than noise does not count. The usual one wins unless another is faster by more than noise."""
    gains = {
        name: float(np.mean(np.array(found) / times[usual]))
        for name, found in times.items()
        if name != usual and all(f <= u * (1 + NOISE) for f, u in zip(found, times[usual], strict=True))
    }
    best = min(gains, key=gains.__getitem__, default=usual)
    return best if gains.get(best, 1.0) < 1 - NOISE else usual
