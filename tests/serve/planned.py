"""Requests that have plans, and what the server makes of them with and without one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from serving import folder

from hbc.serve import v2
from hbc.serve.failures import Failure
from hbc.serve.limits import Limits
from hbc.serve.messages import Head
from hbc.serve.plans import Plans
from hbc.serve.repository import Repository
from hbc.serve.served import Served


def model(name: str) -> Served:
    repository = Repository({}, folder())
    repository.refresh()
    return next(each for each in repository.all() if each.name == name)


def outcome(served: Served, body: bytes, length: int | None = None, limits: Limits | None = None) -> Any:
    """What the server makes of a request: every value with its type, and how the answer is wanted; or the error."""
    head = Head("POST", "", json_length="" if length is None else str(length))
    try:
        request, wanted = v2.read(served, head, body, limits or Limits(), 100.0)
    except Failure as failure:
        return failure.kind, failure.message
    value = request.value
    if request.form == "record":
        value = [(name, type(each), repr(each)) for name, each in value.items()]
    elif request.form == "matrix":
        value = value.dtype, value.shape, value.tobytes(), value.flags.carray
    elif request.form == "columns":
        value = [(name, each.dtype, each.tolist()) for name, each in value.items()]
    asked = wanted.request_id, wanted.names, wanted.binary, wanted.usual_binary
    return request.methods, request.form, repr(value), request.rows, request.deadline, asked


def without_plan(served: Served, body: bytes, length: int | None = None) -> Any:
    kept, served.plans = served.plans, Plans()
    try:
        return outcome(served, body, length)
    finally:
        served.plans = kept


def planned(served: Served, body: bytes, length: int | None = None) -> None:
    """Make a plan of this request, whatever the plans were before."""
    served.plans = Plans()
    for _ in range(2):
        outcome(served, body, length)
    assert len(served.plans) == 1


VALUES: dict[str, tuple[str, Any]] = {
    "age": ("FP64", 31.5),
    "fare": ("FP64", 10.25),
    "sex": ("BYTES", "f"),
    "port": ("BYTES", "S"),
}


def document(values: dict[str, tuple[str, Any]] = VALUES, shape: Any = (1,), **others: Any) -> dict[str, Any]:
    inputs = [
        {"name": name, "datatype": datatype, "shape": list(shape), "data": [value]}
        for name, (datatype, value) in values.items()
    ]
    return {"inputs": inputs, **others}


def as_bytes(
    values: dict[str, tuple[str, Any]] = VALUES, write: Callable[[Any], str] = json.dumps, **others: Any
) -> tuple[bytes, int]:
    """(the body with bytes behind the JSON, the length of the JSON)."""
    found, raw = document(values, **others), b""
    for tensor in found["inputs"]:
        (value,) = tensor.pop("data")
        if tensor["datatype"] == "BYTES":
            part = struct.pack("<I", len(value.encode())) + value.encode()
        else:
            part = struct.pack({"FP64": "<d", "FP32": "<f", "INT64": "<q", "BOOL": "<?"}[tensor["datatype"]], value)
        tensor["parameters"] = {"binary_data_size": len(part)}
        raw += part
    text = write(found).encode()
    return text + raw, len(text)


def with_value(name: str, datatype: str, value: Any) -> dict[str, tuple[str, Any]]:
    return {**VALUES, name: (datatype, value)}


def matrix(values: Any, datatype: str = "FP64", raw: bool = False, **others: Any) -> tuple[bytes, int | None]:
    """(the body of a request for a matrix, the length of the JSON where bytes follow)."""
    array = np.asarray(values, {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8", "FP16": "<f2"}[datatype])
    about: dict[str, Any] = {"name": "input", "shape": list(array.shape), "datatype": datatype}
    if not raw:
        return json.dumps({**others, "inputs": [{**about, "data": np.asarray(values).ravel().tolist()}]}).encode(), None
    about["parameters"] = {"binary_data_size": array.nbytes}
    text = json.dumps({**others, "inputs": [about]}).encode()
    return text + array.tobytes(), len(text)


PREDICT = [{"name": "predict"}]
