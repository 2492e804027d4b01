"""The Open Inference Protocol v2 over HTTP: JSON, and the extension for binary tensors."""

from __future__ import annotations

from typing import Any

from hbc.serve.documents import described, parsed, written
from hbc.serve.engine import Answer, Request
from hbc.serve.failures import Failure
from hbc.serve.jsonable import jsonable
from hbc.serve.limits import Limits
from hbc.serve.lists import from_list
from hbc.serve.messages import Head, Reply
from hbc.serve.numbers import MANY, STAND_IN, cut_out
from hbc.serve.plans import LONGEST, MARK, Wanted, one_row
from hbc.serve.served import Served
from hbc.serve.statistics import Statistics
from hbc.serve.tensors import (
    Tensor,
    asked_outputs,
    dtype_of,
    from_bytes,
    metadata,
    output_tensors,
    request_of,
    shape_of,
    to_bytes,
)
from hbc.version import VERSION

EXTENSIONS = ["binary_tensor_data", "model_repository", "statistics", "schedule_policy"]
LENGTH = b"inference-header-content-length"
REFUSED = ("sequence_id", "shared_memory_region", "classification")
"""Parameters of extensions that hbc does not have. To ignore them would change the answer."""


def read(served: Served, head: Head, body: bytes, limits: Limits, asked: float) -> tuple[Request, Wanted]:
    """(the request, how its answer is wanted). Raises Failure."""
    binary = bool(head.json_length)
    length = _length(head.json_length, len(body)) if binary else len(body)
    text = body[:length]
    planned = len(body) <= LONGEST
    if planned and (found := _by_plan(served, body, text, binary, asked)) is not None:
        return found
    document = None if binary or len(body) < MANY else _with_array(body)
    if document is None:
        document = parsed(text)
    inputs, outputs = document.get("inputs"), document.get("outputs", [])
    if type(inputs) is not list or type(outputs) is not list:
        where, found = ("inputs", inputs) if type(inputs) is not list else ("outputs", outputs)
        raise Failure("invalid", f"{where}: found {described(found)}, expected a list of objects.")
    if len(inputs) > limits.columns:
        raise Failure("too_large", f"inputs: found {len(inputs)}, expected at most {limits.columns}.")
    parameters = _parameters(document, "parameters")
    wanted = _wanted(document.get("id"), outputs, parameters)
    deadline = None
    if "timeout" in parameters:
        timeout = parameters["timeout"]
        if type(timeout) is not int or not 0 <= timeout < 1 << 62:
            raise Failure("invalid", f"parameters.timeout: found {described(timeout)}, expected a number of microseconds.")
        deadline = asked + timeout / 1e6 if timeout else None
    methods = asked_outputs(served, wanted.names)
    raw = None if not binary else body[length:] if planned else memoryview(body)[length:]  # a slice of bytes is a copy
    row = one_row(served.known_names, served.n_features, inputs, raw)
    if row is not None:
        chosen = methods or (served.usual,)
        for method in chosen:
            served.predictor(method)
        if planned:
            served.plans.learn(text, binary, document, chosen, wanted)
        return Request(served, chosen, "record", row, 1, deadline, asked), wanted
    tensors = _tensors(inputs, raw)
    request = request_of(served, tensors, methods, limits, deadline, asked)
    if planned and request.form == "matrix" and request.value.ndim == 2 and (binary or len(body) < MANY):
        served.plans.learn(text, binary, document, request.methods, wanted, request.value.shape)
    return request, wanted


def _by_plan(served: Served, body: bytes, text: bytes, binary: bool, asked: float) -> tuple[Request, Wanted] | None:
    """The same for a request like one that has come before. None if there is none, and where the usual way must say what is wrong."""
    found = served.plans.of_bytes(text, body) if binary else served.plans.of_json(text)
    if found is None:
        return None
    plan, request_id, value = found
    deadline = asked + plan.timeout if plan.timeout else None
    form, rows = ("record", 1) if plan.shape is None else ("matrix", plan.shape[0])
    return Request(served, plan.methods, form, value, rows, deadline, asked), plan.wants(request_id)  # type: ignore[arg-type]


def _with_array(body: bytes) -> dict[str, Any] | None:
    """The body with the numbers of its first tensor as an array of float64, if that is a tensor of floats whose numbers are not nested.
    None for others."""
    found = body.find(MARK)
    start = body.find(b"[", found, found + len(MARK) + 2)
    cut = cut_out(body, start, body.find(b"]", start) + 1) if found >= 0 else None
    if cut is None:
        return None
    document, numbers = cut
    inputs = document.get("inputs")
    first = inputs[0] if type(inputs) is list and inputs else None
    if type(first) is not dict or first.get("datatype") not in ("FP32", "FP64"):
        return None
    stands = first.get("data")
    if type(stands) is not int or stands != STAND_IN:
        return None
    first["data"] = numbers
    return document


def _length(text: str, most: int) -> int:
    """Raises Failure for what is no place in the body."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) <= most):
        raise Failure(
            "invalid",
            f"Inference-Header-Content-Length: found {text!r:.40}, expected a number of at most {most}, the body's bytes.",
        )
    return int(text)


def _parameters(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Raises Failure for what is no object, and for parameters that cannot be ignored."""
    found = document.get("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        raise Failure("invalid", f"{where}: found {described(found)}, expected an object.")
    for name in REFUSED:
        if found.get(name):
            raise Failure("invalid", f"{where}.{name}: this server does not have that extension.")
    return found


def _wanted(request_id: Any, outputs: list[Any], parameters: dict[str, Any]) -> Wanted:
    """Raises Failure."""
    if request_id is not None and type(request_id) is not str:
        raise Failure("invalid", f"id: found {described(request_id)}, expected a string.")
    names, binary = [], {}
    for place, output in enumerate(outputs):
        name = output.get("name") if type(output) is dict else None
        if type(name) is not str:
            raise Failure("invalid", f"outputs[{place}]: found {described(output)}, expected an object with a name.")
        names.append(name)
        asked = _parameters(output, f"outputs[{place}].parameters").get("binary_data")
        if asked is not None:
            binary[name] = _boolean(asked, f"outputs[{place}].parameters.binary_data")
    usual = _boolean(parameters.get("binary_data_output", False), "parameters.binary_data_output")
    return Wanted(request_id, names, binary, usual)


def _boolean(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise Failure("invalid", f"{where}: found {described(value)}, expected true or false.")
    return value


def _tensors(inputs: list[Any], raw: bytes | memoryview | None) -> list[Tensor]:
    """Raises Failure for inputs that are no tensors, and for bytes that are too many or too few."""
    tensors = []
    place = 0
    for number, each in enumerate(inputs):
        if type(each) is not dict:
            raise Failure("invalid", f"inputs[{number}]: found {described(each)}, expected an object.")
        name = each.get("name")
        if type(name) is not str:
            raise Failure("invalid", f"inputs[{number}].name: found {described(name)}, expected a string.")
        shape = _shape(name, each.get("shape"))
        size = _parameters(each, f"inputs[{number}].parameters").get("binary_data_size")
        if size is None:
            tensors.append(from_list(name, each.get("datatype"), shape, each.get("data")))
            continue
        if raw is None or type(size) is not int or not 0 <= size <= len(raw) - place:
            left = 0 if raw is None else len(raw) - place
            raise Failure(
                "invalid",
                f"input {name!r}: found a binary_data_size of {described(size)}, where {left} bytes are left after the JSON.",
            )
        if "data" in each:
            raise Failure("invalid", f"input {name!r}: found data beside binary_data_size, expected one of them.")
        dtype_of(name, each.get("datatype"))
        tensors.append(from_bytes(name, each["datatype"], shape, raw[place : place + size]))
        place += size
    if raw is not None and place != len(raw):
        raise Failure("invalid", f"body: {len(raw) - place} bytes are left after the tensors.")
    return tensors


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    if type(shape) is not list or set(map(type, shape)) - {int}:
        raise Failure("invalid", f"input {name!r}: found the shape {described(shape)}, expected a list of sizes.")
    return shape_of(name, shape)


# --- answers -----------------------------------------------------------------------------------------------------------


def write(request: Request, answer: Answer, wanted: Wanted) -> Reply:
    """The answer, with bytes behind the JSON for the outputs that are asked for so."""
    served = request.served
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for tensor in output_tensors(request, answer.outputs, wanted.names):
        values = tensor.values
        about: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(values.shape)}
        if wanted.binary.get(tensor.name, wanted.usual_binary):
            data = to_bytes(values)
            about["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            about["data"] = jsonable(values.ravel())
        outputs.append(about)
    document: dict[str, Any] = {"model_name": served.name, "model_version": served.version, "outputs": outputs}
    if wanted.request_id is not None:
        document["id"] = wanted.request_id
    text = written(document)
    if not raw:
        return Reply(200, text)
    headers = ((b"content-type", b"application/octet-stream"), (LENGTH, str(len(text)).encode()))
    return Reply(200, b"".join([text, *raw]), headers)


def server_metadata() -> dict[str, Any]:
    return {"name": "hbc", "version": VERSION, "extensions": EXTENSIONS}


def model_metadata(served: Served, versions: list[str]) -> dict[str, Any]:
    inputs, outputs = metadata(served)
    return {
        "name": served.name,
        "versions": versions,
        "platform": "hbc",
        "inputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in inputs],
        "outputs": [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in outputs],
    }


def model_statistics(name: str, version: str, found: Statistics) -> dict[str, Any]:
    """The statistics of a version, as Triton writes them. Durations are in nanoseconds."""

    def duration(seconds: float, count: int) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * 1e9)}

    return {
        "name": name,
        "version": version,
        "last_inference": round(found.last * 1000),
        "inference_count": found.rows,
        "execution_count": found.executions,
        "inference_stats": {
            "success": duration(found.request_seconds, found.success),
            "fail": duration(found.failure_seconds, found.failure),
            "queue": duration(found.queue_seconds, found.success),
            "compute_input": duration(found.input_seconds, found.success),
            "compute_infer": duration(found.infer_seconds, found.success),
            "compute_output": duration(found.output_seconds, found.success),
            "cache_hit": duration(0, 0),
            "cache_miss": duration(0, 0),
        },
        "batch_stats": [
            {"batch_size": size, "compute_infer": duration(seconds, int(calls))}
            for size, (calls, seconds) in sorted(found.batches.items())
        ],
    }
