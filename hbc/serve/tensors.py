"""Tensors of the Open Inference Protocol v2, for HTTP and gRPC: their datatypes, their bytes, and how a model reads them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hbc.errors import counted
from hbc.ir.types import Array
from hbc.lazy import record
from hbc.serve.engine import Form, Request
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.served import Outputs, Served

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BYTES": np.dtype(object),
}
"""Datatype of the protocol → numpy's."""

DATATYPES = {dtype: name for name, dtype in DTYPES.items()}

MOST_AXES, LARGEST_SIZE, MOST_ELEMENTS = 8, 1 << 31, 1 << 59
"""The bounds of a shape. numpy has arrays of less than 2^63 bytes, and counts an axis of length 0 as one of length 1."""

MATRIX = "input"
"""The name of the one tensor of a model whose columns have no names."""


@record
class Tensor:
    """A named tensor. `values`: an array of `shape`, of DTYPES[datatype]; strings for BYTES."""

    name: str
    datatype: str
    values: Array


def dtype_of(name: str, datatype: Any) -> np.dtype[Any]:
    """Raises Failure for a datatype that the protocol does not have."""
    found = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        raise Failure("invalid", f"input {name!r}: found the datatype {datatype!r}, expected one of {', '.join(DTYPES)}.")
    return found


def shape_of(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape. Raises Failure for one that no array has."""
    fits = len(sizes) <= MOST_AXES and all(0 <= size < LARGEST_SIZE for size in sizes)
    if not fits or math.prod(size or 1 for size in sizes) > MOST_ELEMENTS:
        expected = f"at most {MOST_AXES} sizes from 0 to {LARGEST_SIZE - 1}, and at most {MOST_ELEMENTS} elements"
        raise Failure("invalid", f"input {name!r}: found the shape {list(sizes)!s:.80}, expected {expected}.")
    return tuple(sizes)


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], raw: bytes | memoryview) -> Tensor:
    """The tensor of the protocol's bytes: little-endian, row-major; BYTES are elements with their lengths before them. Raises Failure for
    other lengths, and for BYTES that are no UTF-8."""
    dtype = dtype_of(name, datatype)
    count = math.prod(shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, _texts(name, count, raw).reshape(shape))
    if len(raw) != count * dtype.itemsize:
        raise Failure(
            "invalid",
            f"input {name!r}: found {counted(len(raw), 'byte')}, expected {count * dtype.itemsize} for {datatype}{list(shape)}.",
        )
    values = np.frombuffer(raw, dtype).copy()  # aligned, and writable: compiled code takes no other array as it is
    if datatype == "BOOL" and count and values.view(np.uint8).max() > 1:
        raise Failure("invalid", f"input {name!r}: found a byte that is neither 0 nor 1, expected BOOL.")
    return Tensor(name, datatype, values.reshape(shape))


def _texts(name: str, count: int, raw: bytes | memoryview) -> Array:
    values = np.empty(min(count, len(raw) // 4), object)
    place = 0
    for i in range(count):
        if len(raw) - place < 4:
            raise Failure("invalid", f"input {name!r}: the bytes end in element {i}, expected {counted(count, 'element')}.")
        (size,) = struct.unpack_from("<I", raw, place)
        place += 4
        if len(raw) - place < size:
            raise Failure(
                "invalid", f"input {name!r}: found an element of {counted(size, 'byte')}, where {len(raw) - place} are left."
            )
        values[i] = text(name, raw[place : place + size])
        place += size
    if place != len(raw):
        raise Failure("invalid", f"input {name!r}: {len(raw) - place} bytes are left after {counted(count, 'element')}.")
    return values


def text(name: str, raw: bytes | memoryview) -> str:
    """The string of an element of BYTES. Raises Failure for what is no UTF-8."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise Failure("invalid", f"input {name!r}: found bytes that are no UTF-8 text, expected a string.") from error


def to_bytes(values: Array) -> bytes:
    """The protocol's bytes of an array that `output_tensor` has made."""
    if values.dtype == object:
        parts = []
        for value in values.ravel():
            raw = value.encode()
            parts += [struct.pack("<I", len(raw)), raw]
        return b"".join(parts)
    return values.tobytes()


def output_tensor(name: str, values: Any) -> Tensor:
    """An output as a tensor. Labels that are no numbers become BYTES: their text."""
    array = np.asarray(values)
    datatype = DATATYPES.get(array.dtype)
    if datatype is not None and datatype != "BYTES" and array.flags.c_contiguous:
        return Tensor(name, datatype, array)  # what nearly all models return: 1 µs instead of 4
    if array.dtype.kind in "OUST":
        texts = np.empty(array.shape, object)
        texts.ravel()[:] = [each if type(each) is str else str(each) for each in array.ravel().tolist()]
        return Tensor(name, "BYTES", texts)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    datatype = DATATYPES.get(little.dtype)
    if datatype is None:
        little, datatype = array.astype("<f8"), "FP64"
    return Tensor(name, datatype, np.ascontiguousarray(little).reshape(array.shape))


# --- tensors to requests -----------------------------------------------------------------------------------------------


def request_of(
    served: Served, tensors: Sequence[Tensor], methods: Sequence[str], limits: Limits, deadline: float | None, asked: float
) -> Request:
    """The request for tensors: one matrix [rows, columns], or one tensor [rows] or [rows, 1] for each column. `methods`: those asked for,
    or none for the usual one. Raises Failure for tensors that do not fit together, or do not fit the model."""
    chosen = tuple(dict.fromkeys(methods)) or (served.usual,)
    for method in chosen:
        served.predictor(method)
    if not tensors:
        raise Failure("invalid", "inputs: found none, expected a matrix, or a tensor for each column.")
    if len(tensors) > limits.columns:
        raise Failure("too_large", f"inputs: found {len(tensors)}, expected at most {limits.columns}.")
    form, value, rows = _read(served, tensors)
    if rows > limits.rows:
        raise Failure("too_large", f"inputs: found {rows} rows, expected at most {limits.rows}.")
    if form == "matrix" and value.ndim == 2 and value.shape[1] > limits.columns:
        raise Failure("too_large", f"inputs: found {value.shape[1]} columns, expected at most {limits.columns}.")
    return Request(served, chosen, form, value, rows, deadline, asked)


def _read(served: Served, tensors: Sequence[Tensor]) -> tuple[Form, Any, int]:
    first = tensors[0]
    shape = first.values.shape
    names = served.names
    alone = len(tensors) == 1 and (names is None or first.name not in names or (len(shape) == 2 and shape[1] != 1))
    if alone:
        if served.model.spec.ndim == 1:
            return "matrix", first.values.reshape(-1) if len(shape) == 2 and shape[1] == 1 else first.values, len(first.values)
        if len(shape) != 2:
            raise Failure(
                "invalid", f"input {first.name!r}: found the shape {list(shape)}, expected [rows, {served.n_features}]."
            )
        return "matrix", first.values, shape[0]
    if names is None:
        raise Failure("invalid", f"inputs: found {len(tensors)}, expected one matrix: the model's columns have no names.")
    columns = _columns(tensors)
    rows = len(first.values)
    if rows == 1 and all(values.dtype.char in "dlqfiO?" for values in columns.values()):
        # A dict of one row is the same frame, and is read in a tenth of the time. Python's own numbers are those of 64 bits.
        row = {name: values[0] if values.dtype.char in "fi" else values.item() for name, values in columns.items()}
        return "record", row, 1
    return "columns", columns, rows


def _columns(tensors: Sequence[Tensor]) -> Mapping[str, Array]:
    """Name → values [rows]. Raises Failure for other shapes, and for a name that comes twice."""
    if not tensors[0].values.ndim:
        raise Failure("invalid", f"input {tensors[0].name!r}: found the shape [], expected [rows] or [rows, 1].")
    rows = tensors[0].values.shape[0]
    columns: dict[str, Array] = {}
    for tensor in tensors:
        values = tensor.values
        if values.shape != (rows,):
            if values.shape != (rows, 1):
                raise Failure(
                    "invalid", f"input {tensor.name!r}: found the shape {list(values.shape)}, expected [{rows}] or [{rows}, 1]."
                )
            values = values.reshape(rows)
        if tensor.name in columns:
            raise Failure("invalid", f"input {tensor.name!r}: it comes twice.")
        columns[tensor.name] = values
    return columns


def asked_outputs(served: Served, names: Sequence[str]) -> tuple[str, ...]:
    """The methods that give the outputs with these names. Raises Failure for a name that no method gives, or
    none yet."""
    methods = []
    for name in names:
        method = name if name in served.predictors else next((m for m in served.methods if name.startswith(f"{m}_")), None)
        if method is None:
            raise Failure("invalid", f"outputs: found {name!r}, expected some of {', '.join(served.methods)}.")
        served.predictor(method)
        methods.append(method)
    return tuple(dict.fromkeys(methods))


def output_tensors(request: Request, outputs: Outputs, names: Sequence[str]) -> list[Tensor]:
    """The outputs that were asked for, in their order; all, if `names` is empty. Raises Failure for a name that is not among them."""
    chosen: list[str] = []
    for name in names or outputs:
        if name in outputs:
            chosen.append(name)
            continue
        parts = [key for key in outputs if key.startswith(f"{name}_") and name in request.methods]
        if not parts:
            raise Failure("invalid", f"outputs: found {name!r}, expected some of {', '.join(outputs)}.")
        chosen += parts
    alone = request.form == "record"
    return [output_tensor(name, _as_row(outputs[name]) if alone else outputs[name]) for name in dict.fromkeys(chosen)]


def _as_row(value: Any) -> Array:
    """The result for a record with an axis of rows."""
    return np.array([value], object) if isinstance(value, str) else np.asarray(value)[None]


def metadata(served: Served) -> tuple[list[tuple[str, str, list[int]]], list[tuple[str, str, list[int]]]]:
    """(inputs, outputs) of a model as (name, datatype, shape); -1 stands for any size. The columns, where they have names; otherwise one
    matrix. Numbers are FP64, as JSON's and pandas' are; other datatypes are read as numpy's arrays of these are."""
    spec, schema = served.model.spec, served.model.schema
    datatypes = ["BYTES" if column.dtype in ("str", None) else "FP64" for column in schema.columns]
    if served.names is None or spec.ndim != 2:
        shape = [-1] if spec.ndim == 1 else [-1, spec.n_features]
        inputs = [(MATRIX, "BYTES" if "BYTES" in datatypes else "FP64", shape)]
    else:
        inputs = [(name, datatype, [-1]) for name, datatype in zip(served.names, datatypes, strict=True)]
    outputs = []
    for method in served.methods:
        said = schema.outputs[method]
        known = served.outputs.get(method) or {method: (np.dtype(said.dtype), said.shape)}
        outputs += [(name, _datatype(dtype), [-1, *shape]) for name, (dtype, shape) in known.items()]
    return inputs, outputs


def _datatype(dtype: np.dtype[Any]) -> str:
    """The datatype in which results of a dtype of numpy are sent."""
    return "BYTES" if dtype.kind in "OUST" else DATATYPES.get(dtype.newbyteorder("<"), "FP64")
