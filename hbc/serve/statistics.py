"""Statistics of one version of a model: counts and durations, in the terms of Triton. They are added up in the event loop alone."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

BUCKETS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper bounds of the histogram of request durations, in seconds."""

MOST_SIZES = 128
"""The most sizes of batches that are counted apart. Others count as the next larger one that is known, or as 0."""

MISSING, UNSEEN, OUTSIDE_BELOW, OUTSIDE_ABOVE = range(4)
"""What is counted of a column."""


@dataclass
class Statistics:
    """What has happened with one version of a model since the server has known its name. Durations are sums, in seconds."""

    success: int = 0
    failure: int = 0
    rows: int = 0
    """Rows of the requests that were answered: Triton's inference count."""
    executions: int = 0
    """Calls of the model. Requests that are computed together count once."""
    request_seconds: float = 0.0
    """From the reading of requests to the writing of answers, of those that were answered."""
    failure_seconds: float = 0.0
    queue_seconds: float = 0.0
    input_seconds: float = 0.0
    infer_seconds: float = 0.0
    output_seconds: float = 0.0
    histogram: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Answered requests by their duration: one count for each bucket, and for longer ones."""
    batches: dict[int, list[float]] = field(default_factory=dict)
    """Rows of a call of the model → [calls, seconds]."""
    drift: dict[str, list[int]] = field(default_factory=dict)
    """Column → how often it was MISSING, UNSEEN, OUTSIDE_BELOW and OUTSIDE_ABOVE, where that is counted (drift.py)."""
    drift_rows: int = 0
    """The rows that were looked at for it."""
    last: float = 0.0
    """The time of the last answered request, in seconds since 1970."""

    def answered(self, rows: int, read: float, queued: float, inferred: float, written: float) -> None:
        """Count a request that was answered, and how long its parts took."""
        total = read + queued + inferred + written
        self.success += 1
        self.rows += rows
        self.request_seconds += total
        self.input_seconds += read
        self.queue_seconds += queued
        self.infer_seconds += inferred
        self.output_seconds += written
        self.histogram[bisect_left(BUCKETS, total)] += 1

    def failed(self, seconds: float) -> None:
        self.failure += 1
        self.failure_seconds += seconds

    def executed(self, rows: int, seconds: float) -> None:
        """Count a call of the model."""
        self.executions += 1
        size = self.batches.get(rows)
        if size is None:
            if len(self.batches) >= MOST_SIZES:
                rows = min((known for known in self.batches if known >= rows), default=0)
            size = self.batches.setdefault(rows, [0, 0.0])
        size[0] += 1
        size[1] += seconds

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {**vars(self), "batches": {str(size): list(found) for size, found in self.batches.items()}}

    def add(self, other: dict[str, Any]) -> None:
        """Add the counts of `as_dict`, of another process."""
        for name, value in other.items():
            mine = getattr(self, name)
            if name == "histogram":
                self.histogram = [a + b for a, b in zip(mine, value, strict=True)]
            elif name == "batches":
                for size, (calls, seconds) in value.items():
                    known = self.batches.setdefault(int(size), [0, 0.0])
                    known[0] += calls
                    known[1] += seconds
            elif name == "drift":
                for column, counts in value.items():
                    old = self.drift.get(column, [0] * len(counts))
                    self.drift[column] = [a + b for a, b in zip(old, counts, strict=True)]
            else:
                setattr(self, name, max(mine, value) if name == "last" else mine + value)
