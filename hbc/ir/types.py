"""The types of values in a graph: dtype and shape, such as `f32[N, 10]`.
N is the number of rows, which is known only when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hbc.lazy import record

Array = npt.NDArray[Any]
DType = Literal["bool", "i8", "u8", "i16", "u16", "i32", "i64", "f32", "f64", "str"]
Dim = int | Literal["N"]

N: Literal["N"] = "N"

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "str": np.dtype(object),
}
RTOL, ATOL = 1e-5, 1e-6
"""The tolerances of hbc's contract: numbers a (of the source) and b (of hbc) agree if |a - b| <= ATOL + RTOL · |a|."""
FLOAT32_LIMIT = float(np.nextafter(2.0**128 - 2.0**103, 0))
"""The largest float64 that rounds to a finite float32."""
_NAMES: dict[np.dtype[Any], DType] = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name != "str"}  # type: ignore[misc]


class DTypeError(TypeError):
    """Raised for a numpy dtype that no tensor can have."""


def require(condition: bool, message: str) -> None:
    """Raise TypeError with the message unless the condition is true. `Operator.infer` uses it."""
    if not condition:
        raise TypeError(message)


def dtype_name(dtype: npt.DTypeLike) -> DType:
    """The short name of a numpy dtype, such as "f32"; "str" for every dtype of
    strings and for `object`. Raises DTypeError for dtypes that no tensor can have."""
    dtype = np.dtype(dtype)
    if dtype.kind in "UOT":
        return "str"
    try:
        return _NAMES[dtype.newbyteorder("=")]
    except KeyError:
        raise DTypeError(f"{dtype} has no tensor type; known are {', '.join(NUMPY_DTYPES)}") from None


@record
class TensorType:
    """The dtype and shape of a value. Only the first axis can be the rows, `N`."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY_DTYPES:
            raise TypeError(f"unknown dtype {self.dtype!r}")
        if N in self.shape[1:]:
            raise TypeError(f"{self}: rows (N) must be the first axis")

    @property
    def batched(self) -> bool:
        """Whether the first axis is the rows. Otherwise it is a constant."""
        return bool(self.shape) and self.shape[0] == N

    @property
    def columns(self) -> int:
        """F, for a matrix `[N, F]`. Raises TypeError for other shapes."""
        if len(self.shape) != 2:
            raise TypeError(f"{self} is not a matrix")
        return int(self.shape[1])

    @property
    def width(self) -> int:
        """The length of the last axis; 1 for a scalar, and for a vector `[N]`."""
        last = self.shape[-1] if self.shape else 1
        return last if isinstance(last, int) else 1

    @property
    def is_float(self) -> bool:
        return self.dtype in ("f32", "f64")

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape)) or '()'}]"


def type_of(array: Array) -> TensorType:
    """The type of a constant array."""
    return TensorType(dtype_name(array.dtype), array.shape)


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape of the result of numpy's broadcasting, with N for the rows. Raises TypeError if the shapes do not fit."""
    rank = max(map(len, shapes))
    result: list[Dim] = []
    for axis in range(-rank, 0):
        dims = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(dims) > 1:
            raise TypeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        result.append(dims.pop() if dims else 1)
    return tuple(result)
