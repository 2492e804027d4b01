"""Tensors whose values are a list, as JSON has them."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import numpy as np

from hbc.serve.documents import described
from hbc.serve.failures import Failure
from hbc.serve.tensors import Tensor, dtype_of


def from_list(name: str, datatype: Any, shape: tuple[int, ...], data: Any, missing: bool = False) -> Tensor:
    """The tensor of JSON's data, flat or nested. Raises Failure for values that the datatype does not hold exactly, but for the rounding of
    numbers to FP32 and FP16. missing: null is a missing value, NaN among numbers and None among strings; the protocol itself has none."""
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
    if datatype == "BYTES":
        taken = {str, NoneType} if missing else {str}
        expected = "strings"
        values = np.empty(len(flat), object)
        values[:] = flat
        bad = bool(set(map(type, flat)) - taken)
        wrong = next((value for value in flat if type(value) not in taken), None) if bad else None
    elif datatype.startswith("FP"):
        taken = {int, float, NoneType} if missing else {int, float}
        expected = "numbers"
        bad = bool(set(map(type, flat)) - taken)
        wrong = next((value for value in flat if type(value) not in taken), None) if bad else None
        if not bad:
            try:
                with np.errstate(over="ignore"):
                    values = np.array(flat, np.float64).astype(dtype)
            except OverflowError as error:  # of integers of 309 digits
                raise Failure("invalid", f"input {name!r}: found an integer that is too large for {datatype}.") from error
    else:
        kind = bool if datatype == "BOOL" else int
        least, most = (0, 1) if kind is bool else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        expected = "true or false" if kind is bool else f"integers from {least} to {most}"
        bad = bool(set(map(type, flat)) - {kind}) or (bool(flat) and not (least <= min(flat) and max(flat) <= most))
        wrong = next((v for v in flat if type(v) is not kind or not least <= v <= most), None) if bad else None
        if not bad:
            values = np.array(flat, dtype)
    if bad:
        raise Failure("invalid", f"input {name!r}: found {described(wrong)} in the data of {datatype}, expected {expected}.")
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
        raise Failure("invalid", f"input {name!r}: found {len(data)} values, expected {count} for the shape {list(shape)}.")
    return data
