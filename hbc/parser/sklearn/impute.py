"""Converters for SimpleImputer, IterativeImputer and MissingIndicator of sklearn.impute."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.signature import Arrays, Column
from hbc.ir.types import NUMPY_DTYPES, Array, dtype_name
from hbc.lazy import record
from hbc.ops import tensor as t
from hbc.ops.checks import CheckNotAll, CheckValues
from hbc.ops.missing import Impute, ImputeText, MissingText
from hbc.parser.frame import Frame, Refusal, as_frame, select_columns
from hbc.parser.front_door import as_numbers, in_dtype_of, note, note_input, note_no_bool_alone
from hbc.parser.registry import Result, converts, public_name
from hbc.parser.release import since
from hbc.parser.sklearn.shared.common import as_float, checked, own_float, rejected, without_missing
from hbc.parser.walk import child, transform_child


@record
class Missing:
    """An imputer's `missing_values`: NaN, None, pandas.NA (which stands for both of these), a number or a string."""

    value: Any

    @property
    def nan(self) -> bool:
        return isinstance(self.value, numbers.Real) and self.value != self.value

    @property
    def na(self) -> bool:
        return type(self.value).__name__ == "NAType"

    @property
    def texts(self) -> bool:
        """Whether the input must be strings: for None or a string the source rejects numbers."""
        return self.value is None or isinstance(self.value, str)

    def mask(self, x: Node) -> Node:
        """Whether each value of x[N, F] is missing, bool[N, F] (sklearn.utils._mask._get_mask).
        Raises Refusal if `value` does not fit the dtype of x."""
        if x.type.dtype == "str":
            text = self.value if isinstance(self.value, str) else None
            return MissingText(self.nan or self.na, self.value is None or self.na, text)(x)
        if self.nan or self.na:
            return t.isnan(as_float(x))
        dtype = NUMPY_DTYPES[x.type.dtype]
        try:
            common = np.result_type(dtype, self.value)  # a Python number takes x's dtype, a numpy scalar may widen it
            value = np.array(self.value).astype(common)
        except (OverflowError, TypeError):
            raise Refusal(f"missing_values={self.value!r} does not fit {dtype}.", "Use a number of the data's dtype.") from None
        return t.equal(t.cast(x, dtype_name(common)), t.constant(value))


def _bits(fill: Array) -> int:
    """The least width, 8, 16, 32 or 64, of signed integers that hold the numbers of `fill`. (The source rejects bool.)"""
    fits = [bits for bits in (8, 16, 32) if ((fill >= -(1 << (bits - 1))) & (fill < 1 << (bits - 1))).all()]
    return fits[0] if fits else 64


def _fill_dtype(m: Any) -> Any:
    """The dtype that fill values are cast to."""
    return m._fill_dtype if since(1, 8) else m.statistics_.dtype  # 1.8 keeps statistics as Python objects


@converts("sklearn.impute.SimpleImputer", frame=True)
def simple_imputer(m: Any, x: Node | Frame) -> Result:
    missing = Missing(m.missing_values)
    statistics = np.asarray(m.statistics_)
    empty = np.array([item != item for item in statistics.tolist()], bool)
    keeps_empty = m.keep_empty_features or (m.strategy == "constant" and not since(1, 8))  # 1.8 drops them for "constant", too
    kept = np.arange(len(statistics)) if keeps_empty else np.flatnonzero(~empty)
    if m._fit_dtype.kind == "O":
        return _impute_strings(m, as_frame(x), missing, statistics, kept)
    if m.strategy not in ("most_frequent", "constant"):
        x = own_float(as_numbers(x))
    else:
        # Integers are never NaN: if NaN is the missing value, none of them is replaced.
        note(x, Column(objects_stay=True, returned=True))
        if missing.nan:
            note_no_bool_alone(x)
            note(x, Column(none_apart=True))
        else:
            note(x, Column(integer_bits=_bits(statistics[kept])))
        if (m.strategy == "constant" and _fill_dtype(m).kind == "i") or not (missing.nan or (statistics[kept] >= 0).all()):
            note(x, Column(signed=True))
    given = x = as_numbers(x)
    dtype = NUMPY_DTYPES[x.type.dtype]
    nan = missing.nan or missing.na
    x = checked(m, x, allow_nan=nan)
    if m.strategy == "constant" and not np.can_cast(_fill_dtype(m), dtype, casting="same_kind"):
        x = rejected(m, x, f"this imputer was fitted on {_fill_dtype(m)}")
    mask = missing.mask(x)
    y = select_columns(x, kept.tolist())
    try:
        with np.errstate(invalid="ignore"):
            fill = statistics[kept].astype(_fill_dtype(m)).astype(dtype)
    except OverflowError as error:
        raise Refusal(
            f"its fill_value does not fit the dtype that it was fitted on, and the source fails too ({error})."
        ) from None
    if not nan:
        y = t.where(select_columns(mask, kept.tolist()), t.constant(fill), y)
    elif x.type.is_float:
        y = Impute(fill)(y)
    if m.add_indicator and len(m.indicator_.features_):
        y = t.concat([y, t.cast(select_columns(mask, list(m.indicator_.features_)), dtype_name(dtype))])
        note_input(Arrays(native_order=True))  # of numpy.hstack
    return in_dtype_of(given, y) if m.strategy in ("most_frequent", "constant") else y


def _impute_strings(m: Any, frame: Frame, missing: Missing, statistics: Array, kept: Array) -> Node:
    """The output of an imputer that was fitted on Python objects, strings [N, K]. Raises Refusal unless all its fill values are strings,
    and for add_indicator, which would put numbers beside them."""
    fill = statistics[kept].tolist()
    others = [(int(i), item) for i, item in zip(kept, fill, strict=True) if not isinstance(item, str)]
    if others:
        column, item = others[0]
        advice = "Impute numbers and strings apart, with a ColumnTransformer."
        if isinstance(item, (bool, np.bool_)):  # such as a column of bool with nulls, in polars and Arrow
            advice = "Make numbers of bool before: cast the columns to float, and fit again. The source returns Python objects for them."
        raise Refusal(f"it was fitted on Python objects, and {frame.name(column)} is not a column of strings.", advice)
    if m.add_indicator and len(m.indicator_.features_):
        raise Refusal("it puts an indicator of missing values beside strings.", "Use a MissingIndicator beside it.")
    frame.need_strings(range(len(frame)))
    x = checked(m, frame.matrix(strings=True), allow_nan=True, allow_inf=True)
    known = Column(knows_none=missing.value is None or missing.na, knows_nan=missing.nan or missing.na)
    note(x, known | Column(numbers_unknown=True))
    if not (missing.nan or missing.na):
        x = without_missing(m, x)
    x = select_columns(x, kept.tolist())
    return ImputeText(np.array(fill, dtype=np.str_))(missing.mask(x), x)


@converts("sklearn.impute.IterativeImputer")
def iterative_imputer(m: Any, x: Node) -> Result:
    """Missing values are first replaced by those of the initial imputer. Then each column is predicted from others, in the same rounds as
    in fitting.

    Here every estimator predicts all rows, and the result is taken where the column was missing. This is safe: the estimators see only
    finite numbers. A batch in which every value is missing is rejected, because the source does not predict it at all.
    """
    if m.sample_posterior:
        raise Refusal("sample_posterior=True draws random numbers.", "Fit it with sample_posterior=False.")
    missing = Missing(m.missing_values)
    x = own_float(checked(m, x, allow_nan=missing.nan))
    mask = missing.mask(x)
    initial = transform_child(m.initial_imputer_, x, "initial_imputer_")
    empty = np.asarray(m._is_empty_feature)
    kept = np.arange(len(empty)) if m.keep_empty_features else np.flatnonzero(~empty)
    if initial.type.columns != len(kept):
        raise Refusal("its initial imputation keeps columns that were empty in fitting.", "Set keep_empty_features=True.")
    gone = select_columns(mask, kept.tolist())
    if m.keep_empty_features:
        gone = t.logical_and(gone, t.constant(~empty))
    dtype = x.type.dtype
    columns = [select_columns(initial, [i]) for i in range(len(kept))]
    steps = m.imputation_sequence_ if m.n_iter_ else ()
    if len(steps):
        gone = _not_all(m, gone)
    for place, step in enumerate(steps):
        i = int(step.feat_idx)
        others = t.concat([columns[int(j)] for j in step.neighbor_feat_idx])
        (found,) = child(step.estimator, others, f"imputation_sequence_[{place}]")["predict"]
        low, high = np.asarray(m._min_value)[i], np.asarray(m._max_value)[i]
        common = dtype_name(np.result_type(NUMPY_DTYPES[as_float(found).type.dtype], low.dtype))
        found = t.cast(t.reshape(found, "N", 1), common)
        found = t.maximum(found, float(low)) if np.isfinite(low) else found
        found = t.minimum(found, float(high)) if np.isfinite(high) else found
        columns[i] = t.where(select_columns(gone, [i]), t.cast(found, dtype), columns[i])
    y = t.concat(columns)
    if not m.add_indicator:
        return y
    features = np.asarray(m.indicator_.features_).tolist()
    return t.concat([y, t.cast(select_columns(mask, features), dtype)]) if features else y


def _not_all(m: Any, mask: Node) -> Node:
    """The mask bool[N, F]. A batch in which every value is missing is rejected."""
    flags = CheckNotAll(
        public_name(type(m)),
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.ones((mask.type.columns, 1), np.int8),
        counts=np.ones(mask.type.columns, np.int64),
        nan=np.zeros(mask.type.columns, bool),
        none=np.zeros(mask.type.columns, bool),
        columns=tuple(f"column {i}" for i in range(mask.type.columns)),
        allowed=False,
    )(t.cast(mask, "i8"))
    return t.cast(flags, "bool")


@converts("sklearn.impute.MissingIndicator", frame=True)
def missing_indicator(m: Any, x: Node | Frame) -> Result:
    missing = Missing(m.missing_values)
    frame = as_frame(x)
    if missing.texts:
        frame.need_strings(range(len(frame)))
    kinds = ["str" if dtype == "str" else "number" for dtype in frame.dtypes]
    groups = [[i for i, kind in enumerate(kinds) if kind == wanted] for wanted in ("number", "str")]
    wanted = set(np.asarray(m.features_).tolist())
    error_on_new = m.features == "missing-only" and m.error_on_new
    masks, positions = [], []
    for columns in filter(None, groups):
        # All columns are read, also those that are not part of the result, because the source checks them.
        y = frame.select(columns).matrix(strings=True)
        if y.type.dtype == "str":
            note_input(Arrays(fixed_width=False))
            note(y, Column(numbers_unknown=True))
            y = checked(m, y, allow_nan=True, allow_inf=True)
            y = y if missing.nan else without_missing(m, y)
        else:
            note_no_bool_alone(frame.select(columns) if len(columns) == len(frame) else y)
            note(y, Column(objects_stay=True))
            if missing.nan:
                note(y, Column(none_apart=True))
            y = checked(m, y, allow_nan=missing.nan)
        new = np.array([i not in wanted for i in columns]) & error_on_new
        if missing.nan and y.type.dtype != "str":
            y, new = _no_nan(m, y, new), np.zeros_like(new)
        mask = missing.mask(y)
        if new.any():
            mask = _none_new(m, mask, columns, new, frame)
        masks.append(mask)
        positions += columns
    order = [positions.index(i) for i in np.asarray(m.features_).tolist()]
    return select_columns(t.concat(masks), order)


def _no_nan(m: Any, x: Node, columns: Array) -> Node:
    """x. NaN is rejected in some columns (bool[F]): the test of the input does it. Integers need none.

    `_none_new` tests the mask, in numpy before each call, which took 600 µs for one row of 300 columns (Zen 4).
    """
    if not x.type.is_float or not columns.any():
        return x
    some = checked(m, select_columns(x, np.flatnonzero(columns).tolist()))
    if columns.all():
        return some
    others = select_columns(x, np.flatnonzero(~columns).tolist())
    return select_columns(t.concat([others, some]), np.argsort(np.argsort(columns, kind="stable")).tolist())


def _none_new(m: Any, mask: Node, columns: list[int], new: Array, frame: Frame) -> Node:
    """The mask bool[N, len(columns)]. A missing value is rejected in `new` columns, which had none in fitting, as the source does."""
    flags = t.cast(mask, "i8")
    none = np.zeros(len(columns), bool)
    flags = CheckValues(
        public_name(type(m)),
        allow_nan=True,
        allow_inf=True,
        min_rows=0,
        values=np.ones((len(columns), 1), np.int8),
        counts=new.astype(np.int64),
        nan=none,
        none=none,
        columns=tuple(f"{frame.name(i)}, as the flag of a missing value" for i in columns),
        allowed=False,
    )(flags)
    return t.cast(flags, "bool")
