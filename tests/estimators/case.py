"""What a row of the table is."""

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
    "staged_decision_function",
)
"""The methods that a compiled model has where its source has them, as methods or as options of another one (`Case.options`)."""


@dataclass(frozen=True)
class Case:
    """`make()` gives a fitted model and a matrix or frame to score (about 200 rows, float64 where it is an array).

    rtol, atol: for float64 outputs, and `reason` says why where they are wider than the default; float32 outputs have the
    contract's 1e-5 and 1e-6. sample: give the matrix to `hbc.convert` too, since the model does not know its own columns.
    methods: those to compare, last what METHODS has not; by default all that the source has. float32: also score the matrix as float32.
    options: calls (model, matrix) of what the source has by an option only (LightGBM's predict(pred_leaf=True) is `apply`).
    stored_zeros: a sparse result has the zeros that the source's stores, and no others.
    one_row: score one row by itself too (what gives an array of another shape in the source is rejected here).
    convert_input: what the source (not hbc) wants made of the matrix before a call (xgboost.DMatrix).
    """

    name: str
    make: Callable[[], tuple[Any, Any]]
    rtol: float = 1e-7
    atol: float = 1e-9
    reason: str = ""
    sample: bool = False
    methods: tuple[str, ...] | None = None
    float32: bool = True
    options: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    convert_input: Callable[[Any], Any] | None = None
    stored_zeros: bool = True
    one_row: bool = True
