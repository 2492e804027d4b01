"""Converters for sklearn.feature_selection. Each selector keeps the columns of `get_support`; RFE and RFECV also predict from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Arrays, Column
from hbc.ops.columns import SelectColumns
from hbc.parser.frame import Frame, FrameColumn
from hbc.parser.front_door import as_numbers, container_of, is_alone, note, note_input, only_looks
from hbc.parser.registry import Outputs, Result, converts
from hbc.parser.set_output import hands_on
from hbc.parser.sklearn.shared.common import checked
from hbc.parser.walk import child


def _selected(m: Any, x: Node) -> Node:
    """The selected columns, in their order. They keep their dtype, also if none is left: the dtype then still counts beside other columns.
    NaN and inf are accepted if the selector's tags say so."""
    kept = np.flatnonzero(m.get_support())
    note(x, Column(objects_stay=True, returned=not len(kept)))
    missing = bool(m.__sklearn_tags__().input_tags.allow_nan)
    return SelectColumns(kept)(checked(m, x, allow_nan=missing, allow_inf=missing))


@converts(
    "sklearn.feature_selection.GenericUnivariateSelect",
    "sklearn.feature_selection.SelectFdr",
    "sklearn.feature_selection.SelectFpr",
    "sklearn.feature_selection.SelectFromModel",
    "sklearn.feature_selection.SelectFwe",
    "sklearn.feature_selection.SelectKBest",
    "sklearn.feature_selection.SelectPercentile",
    "sklearn.feature_selection.SequentialFeatureSelector",
    "sklearn.feature_selection.VarianceThreshold",
    frame=True,
)
def selector(m: Any, x: Node | Frame) -> Result:
    y = _selected(m, as_numbers(x))
    if hands_on(m):
        note_input(Arrays(plain_floats=True))  # pandas keeps the other byte order, at which other libraries stop
    if not isinstance(x, Frame) or hands_on(m) != "pandas" or container_of(x) not in ("given", "pandas") or is_alone():
        return y
    # It then picks the columns of a pandas frame, each in its own dtype.
    only_looks(y.inputs[0])
    origins = [x.columns[i].origin for i in np.flatnonzero(m.get_support())]
    return Frame(tuple(FrameColumn(y, i, origin) for i, origin in enumerate(origins)))


@converts("sklearn.feature_selection.RFE", "sklearn.feature_selection.RFECV")
def recursive_elimination(m: Any, x: Node) -> Result:
    y = _selected(m, x)
    estimator: Outputs = child(m.estimator_, y, "estimator_")
    delegated = ("predict", "predict_proba", "predict_log_proba", "decision_function")
    return {"transform": y, **{method: estimator[method] for method in delegated if method in estimator}}
