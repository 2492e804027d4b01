"""A description of the models for clients: an OpenAPI document. Its examples are made from each model's schema, and work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hbc.runtime.schema import Column, Output
from hbc.serve import documents, examples
from hbc.serve.plain import BY_CLASS, USUAL
from hbc.serve.served import Served
from hbc.serve.tensors import MATRIX, metadata
from hbc.version import VERSION

ERROR = {"$ref": "#/components/schemas/Error"}
FAILURES = {
    "400": "The request is wrong; the message says what was found and what is expected.",
    "401": "The token is missing or another.",
    "404": "There is no such model, version or method, or it is unloaded.",
    "413": "The request has too many bytes, rows or columns.",
    "415": "The body is compressed.",
    "429": "Too many requests wait: come again after Retry-After seconds.",
    "503": "The model is not ready, or the server stops.",
    "504": "The time of the request is over.",
}
MOST_CATEGORIES = 200
"""The most categories of a column that are listed."""


def summary(served: Served) -> dict[str, Any]:
    """A model in short."""
    return {"name": served.name, "version": served.version, "methods": list(served.methods), "classes": served.classes}


def document(models: Sequence[Served]) -> dict[str, Any]:
    """The OpenAPI document of the newest version of each model."""
    newest = {served.name: served for served in models}
    paths: dict[str, Any] = _general()
    schemas: dict[str, Any] = {"Error": _object({"error": {"type": "string"}}, ["error"])}
    for served in newest.values():
        schemas[f"{served.name}.Body"] = _body(served, {})
        methods = {"type": "array", "items": {"enum": list(served.methods)}, "minItems": 1}
        schemas[f"{served.name}.Several"] = _body(served, {"methods": methods})
        for method in served.methods:
            paths[f"/v1/models/{served.name}:{method}"] = {"post": _plain(served, method)}
        paths[f"/v1/models/{served.name}:{USUAL}"] = {"post": _plain(served, None)}
        paths[f"/v2/models/{served.name}/infer"] = {"post": _v2(served)}
        about = f"/v2/models/{served.name}"
        for path, text in (("", "its tensors"), ("/ready", "whether it is ready"), ("/stats", "its statistics")):
            paths[about + path] = {"get": _get(f"{served.name}: {text}")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hbc serve",
            "version": VERSION,
            "description": "Compiled models: the Open Inference Protocol v2, and plain JSON.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _general() -> dict[str, Any]:
    return {
        "/v1/models": {"get": _get("The models, their methods and classes")},
        "/v2": {"get": _get("The server and its extensions")},
        "/v2/health/live": {"get": _get("Whether the server runs")},
        "/v2/health/ready": {"get": _get("Whether all models are ready", {"503": {"description": "Not all are ready."}})},
        "/v2/models/stats": {"get": _get("The statistics of all models")},
        "/v2/repository/index": {
            "post": {**_get("The models and their states"), "requestBody": _json(_object({"ready": {"type": "boolean"}}, []))}
        },
        "/metrics": {
            "get": {
                "summary": "Metrics for Prometheus",
                "responses": {"200": {"description": "Text.", "content": {"text/plain": {}}}},
            }
        },
    }


def _get(summary: str, others: dict[str, Any] | None = None) -> dict[str, Any]:
    failures = {status: _failure(FAILURES[status]) for status in ("400", "401", "404", "413", "415", "503")}
    return {"summary": summary, "responses": {"200": {"description": "JSON.", **_json({})}, **failures, **(others or {})}}


def _failure(text: str) -> dict[str, Any]:
    return {"description": text, **_json(ERROR)}


def _json(schema: Any, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["examples"] = example
    return {"content": {"application/json": content}}


def _object(properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, **more}


# --- plain JSON --------------------------------------------------------------------------------------------------------


def bodies(served: Served) -> dict[str, Any]:
    """Name → an example of a body for plain JSON, in every form that the model takes."""
    form, value = examples.row(served.model)
    _, other = examples.row(served.model, 1)
    if form == "matrix":
        return {"rows": {"rows": [*value, *other]}}
    columns = {name: [value[name], other[name]] for name in value}
    return {"record": {"record": value}, "records": {"records": [value, other]}, "columns": {"columns": columns}}


def _body(served: Served, more: dict[str, Any]) -> dict[str, Any]:
    """The schema of a body of plain JSON: one of the forms, and what may be beside it."""
    names = served.names
    common = {
        "id": {"type": "string"},
        "timeout_ms": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e12},
        **more,
    }
    if names is None or served.model.spec.ndim != 2:
        return _object({"rows": {"type": "array", "items": {}}, **common}, ["rows"], additionalProperties=False)
    columns = dict(zip(names, served.model.schema.columns, strict=True))
    record = _object({name: _value(column) for name, column in columns.items()}, [n for n, c in columns.items() if c.required])
    lists = {name: {"type": "array", "items": _value(column), "minItems": 1} for name, column in columns.items()}
    forms = {
        "record": record,
        "records": {"type": "array", "items": record, "minItems": 1},
        "columns": _object(lists, record["required"], additionalProperties={"type": "array"}),
    }
    return {"oneOf": [_object({form: schema, **common}, [form], additionalProperties=False) for form, schema in forms.items()]}


def _value(column: Column) -> dict[str, Any]:
    """The schema of a value of a column. Other categories than the known ones may be taken too: they are examples."""
    kind = {"str": "string", "int64": "integer"}.get(str(column.dtype), "number")
    found: dict[str, Any] = {"type": [kind, "null"] if column.allows_missing else kind}
    if column.categories:
        found["examples"] = [examples.value(column, i) for i in range(min(len(column.categories), MOST_CATEGORIES))]
    return found


def _plain(served: Served, method: str | None) -> dict[str, Any]:
    given = {name: {"value": body} for name, body in bodies(served).items()}
    chosen = method or served.usual
    body: Any = {"$ref": f"#/components/schemas/{served.name}.Body"}
    if method is None:
        body = {"$ref": f"#/components/schemas/{served.name}.Several"}
        first = next(iter(given.values()))["value"]
        given = {"several methods": {"value": {**first, "methods": list(served.methods)}}}
    output = served.model.schema.outputs[chosen]
    answer = _object(
        {
            "model": {"type": "string"},
            "version": {"type": "string"},
            "id": {"type": "string"},
            "predictions": {"type": "object", "description": _described(output, chosen)},
            "classes": {"type": "array", "items": {}},
        },
        ["model", "version", "predictions"],
    )
    failures = {status: _failure(text) for status, text in FAILURES.items()}
    return {
        "summary": f"{served.name}: {method or 'several methods at once'}",
        "operationId": f"{served.name}.{method or USUAL}",
        "requestBody": {"required": True, **_json(body, given)},
        "responses": {"200": {"description": "The results by method.", **_json(answer)}, **failures},
        "security": [{}, {"token": []}],
    }


def _described(output: Output, method: str) -> str:
    shape = "".join(f"{size} × " for size in output.shape)
    text = f"{method}: {shape}{documents.kind_of(output.dtype)} for each row"
    if output.classes is not None and method in BY_CLASS and output.shape:
        text += "; for a record an object from classes to values"
    return f"{text}."


# --- v2 ----------------------------------------------------------------------------------------------------------------


def tensors(served: Served) -> dict[str, Any]:
    """An example of a body for v2."""
    _, value = examples.row(served.model)
    inputs, _ = metadata(served)
    if served.names is None or served.model.spec.ndim != 2:
        flat = [item for row in value for item in (row if isinstance(row, list) else [row])]
        _, datatype, shape = inputs[0]
        texts = [item if datatype == "BYTES" else float(item) for item in flat]
        size = [len(value), len(flat) // len(value)] if len(shape) == 2 else [len(value)]
        return {"inputs": [{"name": MATRIX, "datatype": datatype, "shape": size, "data": texts}]}
    given = [
        {"name": name, "datatype": datatype, "shape": [1], "data": [value[name] if datatype == "BYTES" else float(value[name])]}
        for name, datatype, _ in inputs
    ]
    return {"inputs": given, "outputs": [{"name": served.usual}]}


def _v2(served: Served) -> dict[str, Any]:
    tensor = _object(
        {
            "name": {"type": "string"},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "data": {"type": "array", "items": {}},
            "parameters": {"type": "object"},
        },
        ["name", "datatype", "shape", "data"],
    )
    properties = {
        "id": {"type": "string"},
        "inputs": {"type": "array", "items": tensor, "minItems": 1},
        "outputs": {"type": "array", "items": _object({"name": {"type": "string"}}, ["name"])},
        "parameters": {"type": "object"},
    }
    answer = _object(
        {"model_name": {"type": "string"}, "model_version": {"type": "string"}, "outputs": {"type": "array", "items": {}}},
        ["outputs"],
    )
    failures = {status: _failure(text) for status, text in FAILURES.items()}
    return {
        "summary": f"{served.name}: tensors (Open Inference Protocol v2)",
        "operationId": f"{served.name}.v2.infer",
        "requestBody": {"required": True, **_json(_object(properties, ["inputs"]), {"one row": {"value": tensors(served)}})},
        "responses": {"200": {"description": "The outputs.", **_json(answer)}, **failures},
        "security": [{}, {"token": []}],
    }
