"""The timing loop of all benchmarks."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Call = Callable[[Any], Any]


def measure(call: Call, batches: Sequence[Any], budget: float) -> dict[str, float]:
    """Times of single calls in µs. Calls take different batches in turn, because the branch predictor would learn a single row. A
    quarter of the budget warms up the caches, which the other engines have used. A call that takes longer than the budget is made once."""
    gc.disable()
    times = _times(call, batches, budget / 4)
    if times[0] < budget:
        times = _times(call, batches, budget)
    gc.enable()
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e6
    return {"p50": float(p50), "p99": float(p99), "min": min(times) * 1e6, "calls": len(times)}


def _times(call: Call, batches: Sequence[Any], budget: float) -> list[float]:
    clock = time.perf_counter
    times: list[float] = []
    stop = clock() + budget
    for batch in itertools.cycle(batches):
        start = clock()
        call(batch)
        end = clock()
        times.append(end - start)
        if end > stop:
            return times
    raise ValueError("no batches")
