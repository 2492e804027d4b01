"""A row of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "transform",
    "score_samples",
    "apply",
    "raw_score",
    "staged_predict",
    "staged_predict_proba",
    "staged_predict_log_proba",
    "staged_decision_function",
)
"""The methods that a compiled model has if its source has them, as methods or as options of other methods (`Case.options`)."""


@dataclass(frozen=True)
class Case:
    """One model of the table. `make()` returns a fitted model, and a matrix or frame to score: about 200 rows, float64 if it is an array.

    rtol, atol: the tolerances of float64 outputs; `reason` says why they are wider than the default. float32 outputs have the contract's
        1e-5 and 1e-6.
    rounded_ends: why zeros (and ones of probabilities) are not compared exactly, if the source's own come from the rounding of its sums.
    rounded_logs: the same of zeros of predict_log_proba alone.
    sample: also give the matrix to `hbc.convert`, because the model does not know its own columns.
    methods: the methods to compare, with methods that METHODS lacks at the end. Default: all that the source has.
    float32: also score the matrix as float32.
    options: method → call (model, matrix), for methods that the source has as an option only (LightGBM's predict(pred_leaf=True) is
        `apply`).
    stored_zeros: a sparse result stores the same zeros as the source's, and no others.
    one_row: also score one row alone. (hbc rejects it where the source returns an array of another shape.)
    convert_input: makes the source's own input from the matrix before each call of the source (xgboost.DMatrix).
    """

    name: str
    make: Callable[[], tuple[Any, Any]]
    rtol: float = 1e-7
    atol: float = 1e-9
    reason: str = ""
    rounded_ends: str = ""
    rounded_logs: str = ""
    sample: bool = False
    methods: tuple[str, ...] | None = None
    float32: bool = True
    options: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    convert_input: Callable[[Any], Any] | None = None
    stored_zeros: bool = True
    one_row: bool = True
