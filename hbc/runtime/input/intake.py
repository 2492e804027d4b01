"""Turns the input of a call (array, list, frame, sparse matrix, tensor) into the arrays of a graph's inputs.

This looks at shapes, names and dtypes only. gate.py tests the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import InputSpec, Kinds, Sample
from hbc.ir.types import Array, DType
from hbc.runtime.input.arrays import ArrayReader
from hbc.runtime.input.columns import KnownColumns, variant_dtype
from hbc.runtime.input.containers import open_input
from hbc.runtime.input.frame_reader import FrameReader
from hbc.runtime.input.frame_view import FrameView
from hbc.runtime.input.frames import read_frame
from hbc.runtime.input.items import read_items
from hbc.runtime.input.record_frame import as_record_frame
from hbc.runtime.input.sparse_reader import to_dense
from hbc.runtime.input.tables import as_frame, without_sparse_columns
from hbc.runtime.input.values import strings
from hbc.runtime.sparse import is_sparse


class Intake:
    """The reader of a model's input. A call takes the caller's input, and returns (the variant for it, the inputs of that variant's graph).
    Raises InvalidInputError.

    later: if it is not 0, inputs of more rows than this may be Later, whose rows are read when they are asked for."""

    def __init__(self, spec: InputSpec, variants: Sequence[Kinds]) -> None:
        self.spec = spec
        self.columns = columns = KnownColumns(spec, variants)
        self._arrays = ArrayReader(columns)
        self._frames = FrameReader(self._arrays)
        self._first = columns.variants[0]
        self.texts, self.numbers, self.uniform = columns.texts, columns.numbers, columns.uniform
        self.positions = self._frames.positions

    def frame_of(self, X: Any) -> Any:
        """The frame (or sparse matrix) that X stands for, or X itself (tables.py). A reader is read to its end, so this happens once a
        call. Raises InvalidInputError."""
        if type(X) is np.ndarray or self.spec.ndim == 1:
            return X
        table = as_record_frame(X) if self.columns.categorical else as_frame(X)
        return without_sparse_columns(table, self.spec, self.positions)

    def require_double(self, X: Any) -> None:
        """Raise InvalidInputError for longdouble, if the source computes in it: its logarithms of probabilities below 1e-308 are finite."""
        known = self.columns
        dtype = np.asarray(X).dtype if isinstance(X, (list, tuple)) else getattr(X, "dtype", None)
        if (
            isinstance(dtype, np.dtype)
            and dtype.kind == "f"
            and dtype.itemsize > 8
            and not (known.at_once or known.frames_as_f64)
        ):
            advice = "The source library computes these logarithms in it, with more digits: X.astype(float)."
            raise InvalidInputError(found="the dtype longdouble", expected="numpy's usual dtypes", advice=advice)

    def __call__(self, X: Any, later: int = 0) -> tuple[Kinds, list[Array]]:
        if self.spec.items:
            items = read_items(X, self.spec.items)
            return self._first, [strings(items, "X") if self.spec.items == "documents" else items]
        if is_sparse(X):
            entries, X = X, to_dense(X, self.spec)
            if entries.format not in ("csr", "csc"):
                return self._arrays.from_array(X, None)  # CatBoost makes float64 of these
        value = open_input(X, mixed=bool(self.texts), vector=self.spec.ndim == 1)
        if isinstance(value, FrameView):
            return self._frames.from_frame(value, later)
        return self._arrays.from_array(value, X, later)


def describe(X: Any) -> Sample:
    """The names and dtypes of a sample's columns. A column that holds neither numbers nor strings counts as f64: the model may not read it.
    Raises InvalidInputError if X has no columns."""
    if is_sparse(X) and len(X.shape) == 2:  # as one array it might not fit into memory
        return Sample(None, (_sample_dtype(np.empty(0, X.dtype)),) * X.shape[1])
    try:
        value = open_input(as_frame(X), mixed=True)
        names = value.string_names() if isinstance(value, FrameView) else None
    except InvalidInputError as error:
        raise InvalidInputError(**{**error.facts, "where": "the sample X"}) from error
    if isinstance(value, FrameView):
        kinds = tuple([_sample_dtype(value.column(i)) for i in range(value.width)])
        categorical = tuple([i for i in range(value.width) if value.categorical(i) is not None]) if value.pandas else None
        return Sample(names, kinds, categorical)
    if value.ndim == 1:
        return Sample(None, (_sample_dtype(value),))
    if value.ndim != 2:
        raise InvalidInputError(found=f"an array of shape {value.shape}", expected="rows × columns", where="the sample X")
    if value.dtype.kind == "O":
        return Sample(None, tuple(_sample_dtype(column) for column in value.T))
    return Sample(None, (_sample_dtype(value),) * value.shape[1])


def _sample_dtype(values: Array) -> DType:
    if values.dtype.kind in "UT" or any(isinstance(v, str) for v in values.ravel().tolist() if values.dtype.kind == "O"):
        return "str"
    if values.dtype.kind == "O" and len(values) and all(v is None for v in values.tolist()):
        return "str"
    return variant_dtype(values.dtype) if values.dtype.kind in "fiub" else "f64"


def as_given(found: Any, X: Any, spec: InputSpec, positions: Callable[[FrameView], Sequence[int]]) -> Any:
    """The result `found` in the dtype of X, for methods whose result has the dtype of the input. This is the dtype of an array, list or
    sparse matrix, or the common dtype of the columns `spec.own_dtype` of a frame. `positions` finds the columns of the model in a frame."""
    dtype = np.asarray(X).dtype if isinstance(X, (list, tuple)) else getattr(X, "dtype", None)
    if dtype is None and isinstance(frame := read_frame(X), FrameView):
        stacked, position = {i for group in spec.frames.stacked for i in group}, positions(frame)
        own = {i: frame.own_dtype(position[i]) for i in spec.own_dtype or ()}
        kinds = {i: (own[i] if i in stacked else None) or frame.column(position[i]).dtype for i in own}
        dtype = np.result_type(*kinds.values())
        others = {own[i] for i in own.keys() - stacked} - {None}
        if others and (others != {np.dtype(object)} or any(kind.kind == "b" for kind in kinds.values())):
            # check_array reads all columns as float64 if some have a nullable dtype, or if bool stands beside categories.
            dtype = np.dtype(np.float64)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub" or dtype == found.dtype:
        return found
    return found.astype(dtype.newbyteorder("=") if spec.arrays.native_order else dtype)
