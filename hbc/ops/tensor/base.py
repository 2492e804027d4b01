"""The base classes of tensor operators. Every compiler must run these operators, and their dtypes never change silently."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hbc.ir.graph import Operator
from hbc.ir.types import Array, DType, TensorType, broadcast_shapes, require

FLOATS = ("f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64", *FLOATS)
NUMERIC = ("i8", "u8", "i16", "u16", "i32", "i64", *FLOATS)


class TensorOperator(Operator):
    """An operator that every compiler must run."""

    level = "tensor"


class Unary(TensorOperator):
    """y = function(x), element by element. Dtype and shape are kept unless the subclass says otherwise."""

    function: ClassVar[Any]  # a numpy ufunc, or a function of an array
    dtypes: ClassVar[tuple[str, ...]] = FLOATS
    result: ClassVar[DType | None] = None
    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype in self.dtypes, f"the operand must be one of {', '.join(self.dtypes)}")
        return x.with_dtype(self.result or x.dtype)

    def evaluate(self, x: Array) -> Array:
        return np.asarray(type(self).function(x))


class Binary(TensorOperator):
    """y = function(a, b) with numpy's broadcasting. Both operands have one dtype."""

    function: ClassVar[Any]  # a numpy ufunc
    dtypes: ClassVar[tuple[str, ...]] = NUMERIC
    result: ClassVar[DType | None] = None
    elementwise = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require(a.dtype == b.dtype, "both operands must have the same dtype")
        require(a.dtype in self.dtypes, f"operands must be one of {', '.join(self.dtypes)}")
        return TensorType(self.result or a.dtype, broadcast_shapes(a.shape, b.shape))

    def evaluate(self, a: Array, b: Array) -> Array:
        return np.asarray(type(self).function(a, b))
