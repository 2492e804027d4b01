"""Drift: counts of missing values, of categories that the model does not know, and of numbers beyond those that it compares with.

It is off unless the server is told otherwise. The counts are in the metrics, by column: what they were in training is for the reader to
know, and an alarm is for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hbc.lazy import record
from hbc.runtime.model import CompiledModel
from hbc.runtime.value_ranges import ranges_of
from hbc.serve.examples import column_names
from hbc.serve.statistics import MISSING, OUTSIDE_ABOVE, OUTSIDE_BELOW, UNSEEN, Statistics

FEW_ROWS = 8
"""Up to so many rows of a matrix are looked at as Python's numbers, which is quicker than a dozen calls of numpy."""


@record(eq=False)
class Watched:
    """One column that is looked at."""

    place: int
    name: str
    """Its name, in requests and in the metrics. Columns without names have a made one in the metrics."""
    known: frozenset[Any] | None
    """Its categories; None: it has none."""
    low: float
    high: float
    """The range; -inf and +inf where there is none."""
    counts: list[int]
    """The counts, of Statistics.drift."""


class Drift:
    """Looks at the rows of a model. `look` may be called from several threads."""

    def __init__(self, model: CompiledModel, statistics: Statistics) -> None:
        ranges = ranges_of(model)
        self._columns: list[Watched] = []
        self._statistics = statistics
        self._adding = threading.Lock()
        names = column_names(model)
        for place, column in enumerate(model.schema.columns):
            if column.dtype is None:  # nothing reads it, or it is no column
                continue
            name = f"column {place}" if names is None else names[place]
            known = None if column.categories is None else frozenset(column.categories)
            low, high = ranges.get(place, (-np.inf, np.inf)) if known is None and column.dtype != "str" else (-np.inf, np.inf)
            counts = statistics.drift.setdefault(name, [0] * 4)
            self._columns.append(Watched(place, name, known, low, high, counts))

    @property
    def checked(self) -> list[Watched]:
        """The columns that are looked at."""
        return self._columns

    def look(self, form: str, value: Any) -> None:
        """Count the rows of a request that was answered. form: one of the engine's."""
        with self._adding:
            if form == "record":
                self._statistics.drift_rows += 1
                self._record(value)
            elif form == "records":
                self._statistics.drift_rows += len(value)
                for row in value:
                    self._record(row)
            elif form == "columns":
                rows = 0
                for column in self._columns:
                    values = value.get(column.name)
                    if values is not None:
                        rows = len(values)
                        _count(column, values)
                self._statistics.drift_rows += rows
            else:
                self._matrix(value)

    def _record(self, row: Mapping[str, Any]) -> None:
        for column in self._columns:
            value = row.get(column.name)
            if value is None or value != value:
                column.counts[MISSING] += 1
            elif column.known is not None:
                if value not in column.known:
                    column.counts[UNSEEN] += 1
            elif type(value) is not str:
                if value < column.low:
                    column.counts[OUTSIDE_BELOW] += 1
                elif value > column.high:
                    column.counts[OUTSIDE_ABOVE] += 1

    def _matrix(self, X: Any) -> None:
        self._statistics.drift_rows += len(X)
        if not isinstance(X, np.ndarray):
            if X and isinstance(X[0], Sequence) and not isinstance(X[0], str):
                values = list(zip(*X, strict=True))
                for column in self._columns:
                    _count(column, values[column.place])
        elif X.ndim == 2 and (len(X) <= FEW_ROWS or X.dtype.kind not in "fiub"):
            values = X.T.tolist()
            for column in self._columns:
                _count(column, values[column.place])
        elif X.ndim == 2:
            for column in self._columns:
                _count(column, X[:, column.place])


def _count(column: Watched, values: Any) -> None:
    """Count the values of a column."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        for value in values.tolist() if isinstance(values, np.ndarray) else values:
            if value is None or value != value:
                column.counts[MISSING] += 1
            elif column.known is not None:
                column.counts[UNSEEN] += value not in column.known
            elif type(value) is not str:
                column.counts[OUTSIDE_BELOW] += value < column.low
                column.counts[OUTSIDE_ABOVE] += value > column.high
        return
    missing = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    column.counts[MISSING] += missing
    if column.known is not None:
        column.counts[UNSEEN] += len(values) - missing - int(np.isin(values, list(column.known)).sum())
    else:
        if column.low > -np.inf:
            column.counts[OUTSIDE_BELOW] += int((values < column.low).sum())
        if column.high < np.inf:
            column.counts[OUTSIDE_ABOVE] += int((values > column.high).sum())
