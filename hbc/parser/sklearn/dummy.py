"""Converters for sklearn.dummy: predictions that do not depend on the input."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array, N
from hbc.ops import tensor as t
from hbc.parser.frame import Frame, Refusal
from hbc.parser.labels import labels
from hbc.parser.registry import Result, converts, has_own_labels
from hbc.parser.sklearn.shared.members import columns_of, constant_rows


@converts("sklearn.dummy.DummyRegressor", frame=True)
def dummy_regressor(m: Any, x: Node | Frame) -> Result:
    """`predict` gives `constant_` for every row, f64[N] or f64[N, K]."""
    rows = constant_rows(x, np.asarray(m.constant_)[0])
    return {"predict": t.reshape(rows, N) if m.n_outputs_ == 1 else rows}


def _row(m: Any) -> Array:
    """The labels that `predict` gives for every row, one for each target. numpy.tile makes their dtype, as in scikit-learn: it is that of
    these labels and not of all classes, and Python's where `constant` is a number of Python."""
    several = m.n_outputs_ > 1
    if m._strategy == "constant":
        row = m.constant if several else [m.constant]
    else:
        pairs = zip(m.classes_, m.class_prior_, strict=True) if several else [(m.classes_, m.class_prior_)]
        row = [classes[prior.argmax()] for classes, prior in pairs]
    return np.tile(row, (1, 1))[0]


@has_own_labels("sklearn.dummy.DummyClassifier")
def _labels_fit_a_tensor(m: Any) -> bool:
    return _row(m).dtype not in (object, np.float16, np.uint32, np.uint64)


@converts("sklearn.dummy.DummyClassifier", frame=True)
def dummy_classifier(m: Any, x: Node | Frame) -> Result:
    """`predict` gives the most frequent class or the constant one. `predict_proba` gives the frequencies of the training set (strategy
    "prior"), or 1 for that class. Raises Refusal for strategies that predict at random."""
    if m._strategy in ("stratified", "uniform"):
        raise Refusal(f"with strategy={m._strategy!r} it predicts at random.", "Use the strategy 'prior' or 'most_frequent'.")
    several = m.n_outputs_ > 1
    every: list[tuple[Array, Array]] = list(
        zip(m.classes_, m.class_prior_, strict=True) if several else [(m.classes_, m.class_prior_)]
    )
    constants = np.reshape(m.constant, -1) if m._strategy == "constant" else [None] * len(every)
    row = _row(m)
    predicted, probas = [], []
    for place, ((classes, prior), constant) in enumerate(zip(every, constants, strict=True)):
        index = int(np.argmax(prior) if constant is None else np.flatnonzero(classes == constant)[0])
        predicted.append(labels(row, constant_rows(x, np.asarray(place))))
        certain = np.eye(len(classes))[index]
        probas.append(constant_rows(x, np.asarray(prior, np.float64) if m._strategy == "prior" else certain))
    return {
        "predict": columns_of(predicted) if several else predicted[0],
        "predict_proba": tuple(probas),
        "predict_log_proba": tuple(t.log(proba) for proba in probas),
    }
