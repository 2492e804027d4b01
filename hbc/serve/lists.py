"""Tensors whose values are a list, as JSON has them."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import numpy as np

from hbc.errors import counted
from hbc.serve.documents import described
from hbc.serve.failures import Failure
from hbc.serve.tensors import Tensor, dtype_of


def from_list(name: str, datatype: Any, shape: tuple[int, ...], data: Any) -> Tensor:
    """The tensor of JSON's data, flat or nested. Raises Failure for values that the datatype does not hold exactly, but for the rounding of
    numbers to FP32 and FP16. null, which the protocol itself does not have, is a missing value: NaN among floats,
    None among strings."""
    dtype = dtype_of(name, datatype)
    if type(data) is np.ndarray and data.size == math.prod(shape):
        with np.errstate(over="ignore"):
            return Tensor(name, datatype, data.astype(dtype, copy=False).reshape(shape))
    if type(data) is np.ndarray:
        data = data.tolist()
    if type(data) is not list:
        raise Failure("invalid", f"input {name!r}: found {described(data)} as data, expected a list.")
    flat = _flat(data, shape, name)
    taken: set[type]
    bounds: tuple[int, int] | None = None  # of integers
    if datatype == "BYTES":
        taken, expected = {str, NoneType}, "strings"
    elif datatype.startswith("FP"):
        taken, expected = {int, float, NoneType}, "numbers"
    elif datatype == "BOOL":
        taken, expected = {bool}, "true or false"
    else:
        bounds = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        taken, expected = {int}, f"integers from {bounds[0]} to {bounds[1]}"
    if set(map(type, flat)) - taken or (bounds and flat and not (bounds[0] <= min(flat) and max(flat) <= bounds[1])):
        wrong = next(v for v in flat if type(v) not in taken or (bounds and not bounds[0] <= v <= bounds[1]))
        raise Failure("invalid", f"input {name!r}: found {described(wrong)} in the data of {datatype}, expected {expected}.")
    if datatype == "BYTES":
        values = np.empty(len(flat), object)
        values[:] = flat
    elif datatype.startswith("FP"):
        try:
            with np.errstate(over="ignore"):
                values = np.array(flat, np.float64).astype(dtype)
        except OverflowError as error:  # of integers of 309 digits
            raise Failure("invalid", f"input {name!r}: found an integer that is too large for {datatype}.") from error
    else:
        values = np.array(flat, dtype)
    return Tensor(name, datatype, values.reshape(shape))


def _flat(data: list[Any], shape: tuple[int, ...], name: str) -> list[Any]:
    """The values in order. Raises Failure where they are not as many as the shape says."""
    count = math.prod(shape)
    levels = 0
    while data and type(data[0]) is list and levels < len(shape) - 1:
        if any(type(part) is not list or len(part) != shape[levels + 1] for part in data) or (
            levels == 0 and len(data) != shape[0]
        ):
            raise Failure("invalid", f"input {name!r}: found nested data of other sizes, expected {list(shape)}.")
        data = [value for part in data for value in part]
        levels += 1
    if len(data) != count:
        raise Failure(
            "invalid", f"input {name!r}: found {counted(len(data), 'value')}, expected {count} for the shape {list(shape)}."
        )
    return data
