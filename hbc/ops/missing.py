"""Operators that find missing values, or replace them. Operators on strings run on the host and have no lowering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hbc.ir.coded_strings import CodedStrings
from hbc.ir.graph import Node, Operator, always, has_nan, operator
from hbc.ir.magnitudes import magnitudes
from hbc.ir.types import Array, TensorType, require, type_of
from hbc.ops import tensor as t
from hbc.ops.scaling import require_columns


@operator
class Impute(Operator):
    """y[N, F] = fill[F] where x[N, F] is NaN; float dtype kept."""

    fill: Array

    columnwise = True
    removes_missing = True
    monotone = always
    keeps_values = True

    @property
    def creates_missing(self) -> bool:
        return has_nan(self.fill)

    def infer(self, x: TensorType) -> TensorType:
        require(x.is_float and type_of(self.fill).dtype == x.dtype, f"fill is {type_of(self.fill)}")
        require_columns(x, self.fill)
        return x

    def evaluate(self, x: Array) -> Array:
        return np.where(np.isnan(x), self.fill, x)

    def lower(self, x: Node) -> Node:
        return t.where(t.isnan(x), t.constant(self.fill), x)

    def magnitude(self, node: Node, bounds: Sequence[Array]) -> Array:
        return np.maximum(bounds[0], magnitudes(self.fill))


@operator
class MissingText(Operator):
    """y = whether a string is missing; bool. `nan` and `none`: whether NaN and None count as missing; `value`: a string that
    counts as missing, or None."""

    nan: bool
    none: bool
    value: str | None

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "str", "the operand must be strings")
        return x.with_dtype("bool")

    def evaluate(self, x: Array) -> Array:
        missing = np.zeros(x.shape, bool)
        if self.nan:
            missing |= np.not_equal(x, x).astype(bool)
        if self.none:
            missing |= np.frompyfunc(lambda item: item is None, 1, 1)(x).astype(bool)
        if self.value is not None:
            missing |= np.equal(x, self.value).astype(bool)
        return missing

    def of_coded_strings(self, x: CodedStrings) -> Array:
        missing = self.evaluate(x.distinct())
        return np.stack([x.looked_up(column, j) for j, column in enumerate(missing.T)], axis=1)


@operator
class ImputeText(Operator):
    """y[N, F] = fill[F] where missing[N, F], else x[N, F]; strings."""

    fill: Array

    elementwise = True

    def infer(self, missing: TensorType, x: TensorType) -> TensorType:
        require(missing.dtype == "bool" and x.dtype == "str" and missing.shape == x.shape, "the operands must be bool and str")
        require_columns(x, self.fill)
        return x

    def evaluate(self, missing: Array, x: Array) -> Array:
        return np.where(missing, self.fill.astype(object), x)

    def of_coded_strings(self, missing: Array, x: CodedStrings) -> CodedStrings:
        values = tuple(
            np.append(known, np.array([fill], object)) for known, fill in zip(x.values, self.fill.tolist(), strict=True)
        )
        codes = [
            np.where(missing[:, j], len(known), codes) for j, (codes, known) in enumerate(zip(x.codes, x.values, strict=True))
        ]
        return CodedStrings(tuple(codes), values)
