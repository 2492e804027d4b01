"""Tensors of gRPC's messages: what a request holds, and what an answer is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.errors import counted
from hbc.serve.failures import Failure
from hbc.serve.grpc.messages import Messages
from hbc.serve.plans import LONGEST, ONE_ROW, Columns, value_in
from hbc.serve.served import Served
from hbc.serve.tensors import Tensor, dtype_of, from_bytes, shape_of, text, to_bytes

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype → the field of InferTensorContents that holds it. FP16 has none: it is sent raw."""


def read(request: Any) -> list[Tensor]:
    """The tensors of a ModelInferRequest. Raises Failure for one that is no tensor, and for both kinds of contents in one request."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise Failure(
            "invalid", f"raw_input_contents: found {len(raw)}, expected one for each of {len(request.inputs)} inputs."
        )
    return [_tensor(each, raw[place] if raw else None) for place, each in enumerate(request.inputs)]


def row_of(request: Any, served: Served) -> dict[str, Any] | None:
    """The record that the tensors of a ModelInferRequest are, if each is a raw column of one row. None for all others: they are read as
    tensors, which takes 100 µs more for 30 columns.

    To read the names and shapes of 30 tensors takes 25 µs. So they are kept, under the bytes of the message without values and id."""
    raw, count = request.raw_input_contents[:], served.n_features
    if not served.names or not len(request.inputs) == len(raw) == count or sum(map(len, raw)) > LONGEST:
        return None
    rest = Messages.ModelInferRequest()
    rest.CopyFrom(request)
    rest.ClearField("raw_input_contents")
    rest.ClearField("id")
    key = rest.SerializeToString(deterministic=True)
    known = served.plans.columns(key)
    columns = known or _columns_of_one_row(request.inputs, served.known_names)
    if columns is None:
        return None
    names, datatypes = columns
    values = [value_in(data, datatype, len(data)) for data, datatype in zip(raw, datatypes, strict=True)]
    if None in values:
        return None
    if known is None and len(key) <= LONGEST:
        served.plans.learn_columns(key, columns)
    return dict(zip(names, values, strict=True))


def _columns_of_one_row(inputs: Any, known: frozenset[str]) -> Columns | None:
    """The names and datatypes of inputs, if they are known columns of one row without parameters and contents."""
    names = tuple(each.name for each in inputs)
    if len({*names}) < len(names) or not known.issuperset(names):
        return None
    if any(each.shape not in ONE_ROW or each.parameters or each.HasField("contents") for each in inputs):
        return None
    return names, tuple(each.datatype for each in inputs)


def _tensor(given: Any, raw: bytes | None) -> Tensor:
    name, datatype, shape = given.name, given.datatype, shape_of(given.name, given.shape)
    dtype = dtype_of(name, datatype)
    if given.parameters:
        _refuse_shared_memory(given)
    if raw is not None:
        if given.HasField("contents"):
            raise Failure("invalid", f"input {name!r}: found contents beside raw_input_contents, expected one of the two.")
        return from_bytes(name, datatype, shape, raw)
    field = CONTENTS.get(datatype)
    if field is None:
        raise Failure("invalid", f"input {name!r}: found no raw_input_contents, which {datatype} has to be sent in.")
    others = [found.name for found, _ in given.contents.ListFields() if found.name != field]
    if others:
        raise Failure("invalid", f"input {name!r}: found {', '.join(others)}, expected {field} for {datatype}.")
    found = getattr(given.contents, field)
    count = math.prod(shape)
    if len(found) != count:
        raise Failure(
            "invalid", f"input {name!r}: found {counted(len(found), 'element')}, expected {count} for the shape {list(shape)}."
        )
    if datatype == "BYTES":
        values = np.empty(count, object)
        values[:] = [text(name, element) for element in found]
    else:
        wide = np.array(found)
        values = wide.astype(dtype)
        if dtype.kind in "iu" and (values != wide).any():
            raise Failure("invalid", f"input {name!r}: found {wide[values != wide][0]}, which is no {datatype}.")
    return Tensor(name, datatype, values.reshape(shape))


def _refuse_shared_memory(given: Any) -> None:
    """Raises Failure for an input or output that stands in memory that client and server share, or that asks for class labels."""
    for key in ("shared_memory_region", "classification"):
        if key in given.parameters:
            raise Failure("unsupported", f"{given.name!r}: found the parameter {key!r}, which this server does not have.")


def asked(request: Any) -> list[str]:
    """The names of the outputs that a ModelInferRequest asks for. Raises Failure for what cannot be had."""
    for output in request.outputs:
        if output.parameters:
            _refuse_shared_memory(output)
    return [output.name for output in request.outputs]


def answer(request: Any, version: str, tensors: Sequence[Tensor]) -> Any:
    """The ModelInferResponse, its values in raw_output_contents as Triton's are."""
    found = Messages.ModelInferResponse(model_name=request.model_name, model_version=version, id=request.id)
    for tensor in tensors:
        found.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.values.shape)
        found.raw_output_contents.append(to_bytes(tensor.values))
    return found


def timeout_of(request: Any) -> float | None:
    """The seconds of the request parameter `timeout`, which counts microseconds; None without one. Raises Failure for another kind."""
    if "timeout" not in request.parameters:
        return None
    choice = request.parameters["timeout"]
    kind = choice.WhichOneof("parameter_choice")
    value = getattr(choice, kind) if kind in ("int64_param", "uint64_param") else -1
    if value < 0:
        raise Failure("invalid", "parameter timeout: expected microseconds as a whole number.")
    return value / 1e6 if value else None
