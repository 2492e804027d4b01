"""Turns arrays and lists into the arrays of a graph's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.errors import InvalidInputError
from hbc.ir.signature import Kinds
from hbc.ir.types import Array
from hbc.runtime.input.coded import WORTH_CODES, encoded
from hbc.runtime.input.columns import KnownColumns, count_of_columns, only_categories
from hbc.runtime.input.containers import RESHAPE
from hbc.runtime.input.values import converted, reject_dtype, reject_strings


class ArrayReader:
    """Reads arrays and lists for a model of these columns."""

    def __init__(self, known: KnownColumns) -> None:
        self.known = known
        self.spec = known.spec

    def from_array(self, array: Array, X: Any) -> tuple[Kinds, list[Array]]:
        """(the variant for an array, the inputs of its graph). X is the caller's input, from
        which the array was made; None for a column of a frame. Raises InvalidInputError."""
        known = self.known
        if isinstance(X, tuple) and not self.spec.arrays.tuples:
            raise InvalidInputError(found="a tuple", expected="an array or a list of rows", advice="Pass numpy.array(X).")
        array = self._shaped(array, X)
        if self.spec.frames.required:
            raise InvalidInputError(
                found=_found(array, X),
                expected="a frame, since the model picks its columns by name",
                advice="Pass pandas.DataFrame(X, columns=model.feature_names_in_).",
            )
        if (self.spec.own_dtype or known.returned) and isinstance(X, (list, tuple)) and self.spec.frames.by_column:
            advice = "scikit-learn converts it to Python objects, and returns such: pass numpy.asarray(X)."
            raise InvalidInputError(found=f"a {type(X).__name__}", expected="an array or a frame", advice=advice)
        if array.dtype.kind in "fiub":
            return self.from_numbers(array)
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
            reject_strings(known.where(known.numbers[0]), matrix[0, known.numbers[0]] if len(matrix) else "")
        texts = known.coded_strings(lambda i: encoded(matrix[:, i])) if array.ndim == 2 and len(matrix) >= WORTH_CODES else None
        for i in known.texts if texts is None else ():
            columns[i] = known.strings(i, matrix[:, i])
        for i in known.numbers:
            columns[i] = known.floats(i, matrix[:, i])
        kinds = known.uniform["f64"]
        return kinds, known.assembled(kinds, columns, len(matrix), texts)

    def from_numbers(self, array: Array) -> tuple[Kinds, list[Array]]:
        """(the variant for an array of numbers of the right shape, the inputs of its graph). Raises InvalidInputError."""
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
        if not array.dtype.isnative or array.dtype.itemsize > 8:
            array = self._native(array)
        for i in known.distinct_widths:
            known.require_width(i, array.dtype)
        for i in known.objects_only:
            known.require_objects(i, array.dtype)
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
        exact = native is array or all(widened) or (not computed if single else np.array_equal(native, array, equal_nan=True))
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
        expected = f"a matrix with a row for every sample and {count_of_columns(n)}"
        if array.ndim != 2:
            advice = RESHAPE if array.ndim == 1 else "Reshape it: X.reshape(len(X), -1)."
            raise InvalidInputError(found=_found(array, X), expected=expected, advice=advice)
        if array.shape[1] != n:
            raise InvalidInputError(
                found=count_of_columns(array.shape[1]), expected=count_of_columns(n), advice=self.known.fitted_on()
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
