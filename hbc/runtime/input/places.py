"""Categories of pandas as the numbers that a model computes with: their places among those of fitting (Column.category_values)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.signature import Column
from hbc.ir.types import Array

MISSING = float("nan")


class Places:
    """A value of a record → its place among the categories of one column, a float. NaN for None and NaN, and where the source does not ask
    for known categories also for unknown ones. Raises KeyError for other values: a number is no category among strings, and to XGBoost a
    float none among integers."""

    def __init__(self, fact: Column) -> None:
        self.values = list(fact.category_values)
        self.strict = bool(fact.category_dtype)
        self._known = {(self._kind(value), value): float(place) for place, value in enumerate(self.values)}
        self._kinds = {kind for kind, _ in self._known}

    def _kind(self, value: Any) -> str:
        """The class of values that pandas compares with each other: numbers, bool, strings. "" for other values."""
        if isinstance(value, (bool, np.bool_)):
            return "bool"
        if isinstance(value, str):
            return "string"
        if isinstance(value, (int, np.integer)):
            return "integer" if self.strict else "number"
        return ("float" if self.strict else "number") if isinstance(value, (float, np.floating)) else ""

    def __call__(self, value: Any) -> float:
        if value is None:
            return MISSING
        kind = self._kind(value)
        place = self._known.get((kind, value)) if kind else None
        if place is not None:
            return place
        if isinstance(value, (float, np.floating)) and value != value:
            return MISSING
        if self.strict or kind not in self._kinds:
            raise KeyError(value)
        return MISSING

    def knows(self, value: Any) -> bool:
        """Whether a value is one of the categories."""
        return (self._kind(value), value) in self._known

    def among(self, held: Any) -> Array:
        """The places of a pandas.Categorical, as LightGBM finds them (basic.py, _data_from_pandas): by pandas itself, unless the categories
        are equal."""
        if list(held.categories) != self.values:
            held = held.set_categories(self.values)
        codes = np.asarray(held.codes)
        return np.where(codes < 0, np.nan, codes)
