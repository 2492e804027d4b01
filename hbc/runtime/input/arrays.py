"""Turns arrays and lists into the arrays of a graph's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hbc.errors import InvalidInputError, counted
from hbc.ir.coded_strings import CodedStrings
from hbc.ir.later import Later
from hbc.ir.signature import Kinds
from hbc.ir.types import Array
from hbc.runtime.input.coded import WORTH_CODES, encoded
from hbc.runtime.input.columns import KnownColumns, only_categories
from hbc.runtime.input.containers import RESHAPE
from hbc.runtime.input.values import beyond_exact, converted, reject_dtype, reject_strings


class ArrayReader:
    """Reads arrays and lists for a model of these columns."""

    def __init__(self, known: KnownColumns) -> None:
        self.known = known
        self.spec = known.spec

    def from_array(self, array: Array, X: Any, later: int = 0) -> tuple[Kinds, list[Array]]:
        """(the variant for an array, the inputs of its graph). X is the caller's input, from
        which the array was made; None for a column of a frame. later: as for Intake. Raises InvalidInputError."""
        known = self.known
        facts, rows = self.spec.arrays, isinstance(X, (list, tuple))
        if rows and not (facts.lists and (facts.tuples or isinstance(X, list))):
            expected = "an array or a list of rows" if facts.lists else "an array or a frame"
            raise InvalidInputError(found=f"a {type(X).__name__}", expected=expected, advice="Pass numpy.array(X).")
        array = self._shaped(array, X)
        if self.spec.frames.required:
            raise InvalidInputError(
                found=_found(array, X),
                expected="a frame, since the model picks its columns by name",
                advice="Pass pandas.DataFrame(X, columns=model.feature_names_in_).",
            )
        if rows and self.spec.frames.by_column and (self.spec.own_dtype or known.returned or known.functions):
            advice = "scikit-learn makes Python objects of it, and returns such or computes with them: pass numpy.asarray(X)."
            raise InvalidInputError(found=f"a {type(X).__name__}", expected="an array or a frame", advice=advice)
        if facts.wide_only and (array.dtype.kind == "O" or array.dtype == np.float16 or (rows and self.spec.frames.by_column)):
            found = "Python objects" if array.dtype.kind == "O" else f"a list of {array.dtype}" if rows else "float16"
            advice = (
                "The source library puts them into a frame, from which another one takes no numbers: numpy.asarray(X, float)."
            )
            raise InvalidInputError(found=found, expected="an array of numbers of 32 or 64 bits", advice=advice)
        if array.dtype.kind in "fiub":
            if rows and array.dtype.kind == "f" and array.dtype.itemsize < 8:
                array = self._of_rows(array)
            if rows and self.spec.frames.by_column and array.dtype.kind in "iub":
                self._objects_as_f32({i: array[:, i] for i in known.numbers}, rows, whole=True)
            return self.from_numbers(array, plain=array is X)
        if known.categories_only:
            raise only_categories(_found(array, X), known.where(known.categories_only[0]))
        if array.dtype.kind not in "OUT":
            reject_dtype(array.dtype, "X")
        if not self.spec.arrays.fixed_width and (np.asarray(X) if isinstance(X, (list, tuple)) else array).dtype.kind in "UT":
            advice = "The source library takes strings as Python objects: numpy.array(X, dtype=object)."
            raise InvalidInputError(found="strings of a fixed width", expected="Python objects", advice=advice)
        for i in known.functions:
            known.require_as_float(i, array.dtype)
        columns: dict[int, Array] = {}
        matrix = array.reshape(-1, 1) if self.spec.ndim == 1 else array
        if known.numbers and array.dtype.kind != "O":
            known.require_meant(known.numbers[0])
            reject_strings(known.where(known.numbers[0]), matrix[0, known.numbers[0]] if len(matrix) else "")
        texts: CodedStrings | Later | None = None
        if known.texts and array.ndim == 2 and 0 < later < len(matrix):
            texts = known.strings_later(len(matrix), lambda rows, i: encoded(matrix[rows, i]), lambda rows, i: matrix[rows, i])
        elif array.ndim == 2 and len(matrix) >= WORTH_CODES:
            texts = known.coded_strings(lambda i: encoded(matrix[:, i]))
        for i in known.texts if texts is None else ():
            columns[i] = known.strings(i, matrix[:, i])
        for i in known.numbers:
            columns[i] = known.floats(i, matrix[:, i], converted=not rows)
        kinds = known.uniform["f32" if self._objects_as_f32(columns, rows) else "f64"]
        return kinds, known.assembled(kinds, columns, len(matrix), texts)

    def _of_rows(self, array: Array) -> Array:
        """The narrow floats of a list of arrays as the source reads them. A list has no dtype, so that what is converted unless it is of
        float32 or float64 becomes float64. Raises InvalidInputError if the estimators of the model differ there."""
        widened = [self.spec.columns[i].frames_as_f64 for i in self.known.numbers]
        if self.spec.frames.by_column or (any(widened) and not all(widened)):
            advice = "The source library reads it as Python objects, or partly as float64: pass numpy.asarray(X)."
            raise InvalidInputError(found=f"a list of rows of {array.dtype}", expected="an array or a frame", advice=advice)
        return array.astype(np.float64) if any(widened) else array

    def _objects_as_f32(self, columns: Mapping[int, Array], in_list: bool, whole: bool = False) -> bool:
        """Whether the source makes float32 of these numbers, which were Python objects, or integers of a list (`whole`). Raises
        InvalidInputError if it makes both float32 and float64 of them, and float32 does not hold one."""
        kind = self.spec.arrays.objects_as_f32
        for i in self.known.numbers if kind == "exact" or (kind == "stacked" and whole) else ():
            with np.errstate(all="ignore"):
                narrow = columns[i].astype(np.float32)
            if bad := columns[i][(narrow != columns[i]) & (columns[i] == columns[i])].tolist():
                advice = "The source library may read Python objects as float32 there, and others as float64: X.astype(float)."
                raise InvalidInputError(
                    found=f"{bad[0]} among Python objects",
                    expected="numbers that float32 holds",
                    where=self.known.where(i),
                    advice=advice,
                )
        return kind == "all" or (kind == "lists" and in_list)

    def from_numbers(self, array: Array, plain: bool = True) -> tuple[Kinds, list[Array]]:
        """(the variant for an array of numbers of the right shape, the inputs of its graph). Raises InvalidInputError. `plain`: it is an
        array or a frame of one dtype, of whose integers the source makes other numbers at once."""
        known = self.known
        if known.texts and array.dtype.kind in "iub" and known.digits.issuperset(known.texts):
            kinds = known.uniform[known.kind(array.dtype)]
            columns = {i: known.strings(i, array[:, i]) for i in known.texts} | {i: array[:, i] for i in known.numbers}
            return kinds, known.assembled(kinds, columns, len(array))
        if known.texts:
            found = f"numbers ({array.dtype})"
            raise InvalidInputError(
                found=found,
                expected="strings",
                where=known.where(known.texts[0]),
                advice="The model was fitted on strings there.",
            )
        suspects = known.between if plain and array.dtype.isnative else known.at_once
        if suspects and array.dtype.kind in "iu" and array.dtype.itemsize == 8 and beyond_exact(array):
            for i in suspects:
                known.require_one_rounding(i, array[:, i] if array.ndim == 2 else array)
        if not array.dtype.isnative or array.dtype.itemsize > 8:
            array = self._native(array)
        for i in known.distinct_widths:
            known.require_width(i, array.dtype)
        for group in self.spec.frames.no_bool_alone:
            known.require_no_bool(group[0], array.dtype)
        for i in known.objects_only:
            known.require_objects(i, array)
        kinds = known.uniform[known.kind(array.dtype)]
        arrays = []
        for dtype, pick, _ in known.layouts[kinds]:
            block = array if pick is None or array.ndim == 1 else array[:, pick]
            if block.dtype != dtype:
                block = converted(block, dtype)
            arrays.append(_aligned(np.ascontiguousarray(block)))
        return kinds, arrays

    def _native(self, array: Array) -> Array:
        """The numbers of an array of the other byte order, or of more than 64 bits, as the source reads
        them. If the source accepts float32 and float64, such dtypes are neither, and become float64.
        Raises InvalidInputError if the source computes in such a dtype, or reads other numbers."""
        widened = [self.spec.columns[i].frames_as_f64 for i in self.known.numbers]
        single, computed = array.dtype.itemsize <= 4, bool(self.known.own_dtype) and not self.spec.own_dtype
        native = array.astype(np.float32 if single and not any(widened) else np.float64) if array.dtype.kind == "f" else array
        exact = (
            native is array
            or (all(widened) and not self.known.at_once)
            or (not computed if single else np.array_equal(native, array, equal_nan=True))
        )
        if not exact or self.spec.arrays.plain_floats:
            advice = "The source library does not read them as the numbers that they are, or computes in them: X.astype(float)."
            raise InvalidInputError(found=f"the dtype {array.dtype.str}", expected="numpy's usual dtypes", advice=advice)
        return native

    def _shaped(self, array: Array, X: Any) -> Array:
        """The array with the dimensions of the model's input. Raises InvalidInputError with advice for another shape."""
        n = self.spec.n_features
        if self.spec.ndim == 1:
            if array.ndim == 2 and array.shape[1] == 1:
                return array[:, 0]  # scikit-learn's column_or_1d
            if array.ndim != 1:
                raise InvalidInputError(found=_found(array, X), expected="a vector with a value for every row")
            return array
        expected = f"a matrix with a row for every sample and {counted(n, 'column')}"
        if array.ndim != 2:
            advice = RESHAPE if array.ndim == 1 else "Reshape it: X.reshape(len(X), -1)."
            raise InvalidInputError(found=_found(array, X), expected=expected, advice=advice)
        if array.shape[1] != n:
            raise InvalidInputError(
                found=counted(array.shape[1], "column"), expected=counted(n, "column"), advice=self.known.fitted_on()
            )
        return array


def _aligned(array: Array) -> Array:
    return array if array.flags.aligned else array.copy()


def _found(array: Array, X: Any) -> str:
    """The caller's input in words, for an error about its shape."""
    name = {1: "a vector", 2: "a matrix"}.get(array.ndim, "an array")
    return f"{name} of shape {array.shape}" + (
        "" if X is None or isinstance(X, np.ndarray) else f" (from a {type(X).__name__})"
    )
