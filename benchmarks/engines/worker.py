"""The process of one engine. It reads requests, one in a line, and answers each with a line of JSON. All engines are timed here, by the
same loop."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.engines import Task
from benchmarks.timing import Call, measure


class Worker:
    """Answers the requests: a method for each."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.batches: dict[int, list[Any]] = {}
        self.method = ""

    def start(
        self, module: str, distributions: Sequence[str], task: dict[str, Any], cores: Sequence[int], rows: str
    ) -> dict[str, Any]:
        """Reads the model, converts it, and makes the first call. Returns times in seconds, and the memory in MiB that was added by
        converting."""
        os.sched_setaffinity(0, cores)
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        resource.setrlimit(resource.RLIMIT_DATA, (half, half))
        self.rows, self.batches, self.method = np.load(rows), {}, task["method"]
        started = time.perf_counter()
        engine = importlib.import_module(f"benchmarks.engines.{module}")
        model = engine.load(Task(**task))
        loaded, before = time.perf_counter(), _memory()
        self.call = engine.build(model, Task(**task))
        try:
            self.call(self.rows[:1].copy())
        except ValueError:  # hbc rejects a single row for estimators that return another shape for it
            self.call(self.rows[:2].copy())
        built = time.perf_counter()
        peak = None if before is None else round((_memory(peak=True) or 0) - before, 1)
        versions = {name: importlib.metadata.version(name) for name in distributions}
        return {"load_s": loaded - started, "convert_s": built - loaded, "convert_peak_mib": peak, "versions": versions}

    def answer(self, to: str, rows: int | None = None) -> dict[str, Any]:
        """Writes the results for all rows, or for the first ones. For neighbours these are the distances, since equally near points have no
        fixed order. Rows come first, also where there is an array for each output."""
        found = self._call(self.rows[:rows])
        if self.method == "kneighbors":
            found = found[0]
        elif isinstance(found, list) and isinstance(found[0], np.ndarray):
            found = np.stack(found, axis=1)
        np.save(to, found.toarray() if hasattr(found, "toarray") else np.asarray(found))
        return {}

    def measure(self, rows: int, budget: float) -> dict[str, float]:
        """Times calls of so many rows. Each batch has its own memory, as batches of users do."""
        if rows not in self.batches:
            count = min(1000, len(self.rows) // rows)
            self.batches[rows] = [self.rows[i * rows : (i + 1) * rows].copy() for i in range(count)]
        return measure(self._call, self.batches[rows], budget)

    @property
    def _call(self) -> Call:
        if self.call is None:
            raise RuntimeError("not started")
        return self.call


def _memory(peak: bool = False) -> float | None:
    """Resident memory in MiB, or its peak since the last call without `peak`. None where Linux does not say."""
    try:
        if not peak:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        with open("/proc/self/status") as file:
            found = re.search(rf"Vm{'HWM' if peak else 'RSS'}:\s+(\d+) kB", file.read())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None


def main() -> None:
    """Answer until the requests end. What libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
