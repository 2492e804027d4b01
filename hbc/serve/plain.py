"""The plain JSON of `POST /v1/models/NAME:METHOD`: a record, records, columns or rows in, results with the names of classes out.

{"record": {"age": 31, "city": "Ulm"}}                  → {"predictions": {"predict": "yes"}, …}
{"records": [{…}, {…}]}, {"columns": {"age": [31, 7]}}, {"rows": [[31, "Ulm"]]}  → {"predictions": {"predict": ["yes", "no"]}, …}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.errors import counted
from hbc.serve.documents import described, parsed, written
from hbc.serve.engine import Answer, Request
from hbc.serve.failures import Failure
from hbc.serve.jsonable import jsonable
from hbc.serve.limits import Limits
from hbc.serve.numbers import MANY, STAND_IN, cut_out, is_whole
from hbc.serve.served import Served

FORMS = ("record", "records", "columns", "rows")
KEYS = {*FORMS, "methods", "id", "timeout_ms"}
ROWS = {list, dict}
BY_CLASS = ("predict_proba", "predict_log_proba", "decision_function")
"""The methods whose columns are the classes."""

USUAL = "infer"
"""In the path in place of a method: the model's usual one, or those that the body names."""


def read(served: Served, method: str, body: bytes, limits: Limits, asked: float) -> tuple[Request, str | None]:
    """(the request, its id). Raises Failure for a body that says anything else than what the module describes."""
    document = _with_matrix(body) if served.reads_matrices and len(body) >= MANY else None
    if document is None:
        document = parsed(body)
    form = "record" if "record" in document else next((key for key in FORMS if key in document), None)
    if form is None or len(document) > 1:
        _check_keys(document)
    assert form is not None
    value = document[form]
    request_id = document.get("id")
    methods = _methods(served, method, document.get("methods"))
    deadline = None
    if "timeout_ms" in document:
        timeout = document["timeout_ms"]
        if type(timeout) not in (int, float) or not 0 < timeout < 1e12:
            raise Failure("invalid", f"timeout_ms: found {described(timeout)}, expected a positive number.")
        deadline = asked + timeout / 1000
    if form == "record":
        if type(value) is not dict:
            raise Failure("invalid", f"record: found {described(value)}, expected an object from names of columns to values.")
        if len(value) > limits.columns:
            raise _too_wide(len(value), limits)
        return Request(served, methods, "record", value, 1, deadline, asked), request_id
    rows = _rows(form, value, limits)
    if rows > limits.rows:
        raise Failure("too_large", f"{form}: found {rows} rows, expected at most {limits.rows}.")
    if form == "rows" and served.model.spec.frames.required:
        raise Failure(
            "invalid", "rows: found rows without names, expected records or columns: the model picks columns by name."
        )
    given: Any = "matrix" if form == "rows" else form
    return Request(served, methods, given, value, rows, deadline, asked), request_id


def _with_matrix(body: bytes) -> dict[str, Any] | None:
    """The body with its rows as a matrix of float64, which all sources make of a list of such rows. None for other rows."""
    start = body.find(b"[[")
    end = body.rfind(b"]]") + 2  # from the end, since it stands there: 40 kB from the beginning take 30 µs
    found = cut_out(body, start, end)
    if found is None or is_whole(body[start:end]) or found[1].ndim != 2:
        return None
    document, rows = found
    stands = document.get("rows")
    return {**document, "rows": rows} if type(stands) is int and stands == STAND_IN else None


def _check_keys(document: dict[str, Any]) -> None:
    """Raise Failure for keys that the module does not know, for two forms of rows or none, and for an id that is no string."""
    unknown = [key for key in document if key not in KEYS]
    if unknown:
        raise Failure("invalid", f"body: found the key {unknown[0]!r:.60}, expected some of {', '.join(sorted(KEYS))}.")
    forms = [key for key in FORMS if key in document]
    if len(forms) != 1:
        raise Failure("invalid", f"body: found {' and '.join(forms) or 'no rows'}, expected one of {', '.join(FORMS)}.")
    if not isinstance(document.get("id", ""), str):
        raise Failure("invalid", f"id: found {described(document['id'])}, expected a string.")


def _methods(served: Served, method: str, asked: Any) -> tuple[str, ...]:
    """The methods to call: those of the body, or that of the path, or the usual one. Raises Failure for an unknown one."""
    if asked is None:
        if method == USUAL:
            return (served.usual,)
        if method not in served.predictors:
            message = f"path: model {served.name!r} has no method {method!r:.60}, but {', '.join(served.methods)}."
            raise Failure("missing", message)
        served.predictor(method)
        return (method,)
    if not isinstance(asked, list) or not asked or not all(isinstance(name, str) for name in asked):
        raise Failure("invalid", f"methods: found {described(asked)}, expected a list of names.")
    if method != USUAL:
        raise Failure("invalid", f"methods: the path names {method!r:.60} already; post to …:{USUAL} to choose several.")
    for name in asked:
        served.predictor(name)
    return tuple(dict.fromkeys(asked))


def _rows(form: str, value: Any, limits: Limits) -> int:
    """The number of rows. Raises Failure for another type than the form's, and for too many columns."""
    if form == "columns":
        if type(value) is not dict or not value:
            raise Failure("invalid", f"columns: found {described(value)}, expected an object from names of columns to lists.")
        if len(value) > limits.columns:
            raise _too_wide(len(value), limits)
        lengths = {name: len(each) if type(each) is list else -1 for name, each in value.items()}
        rows = next(iter(lengths.values()))
        for name, length in lengths.items():
            if length < 0:
                raise Failure("invalid", f"columns[{name!r:.60}]: found {described(value[name])}, expected a list.")
            if length != rows:
                raise Failure(
                    "invalid",
                    f"columns[{name!r:.60}]: found {counted(length, 'value')}, expected {rows} as in the first column.",
                )
        if not rows:
            raise Failure("invalid", "columns: found empty lists, expected at least one row.")
        return rows
    if type(value) is np.ndarray:
        if value.shape[1] > limits.columns:
            raise _too_wide(value.shape[1], limits)
        return len(value)
    if type(value) is not list:
        expected = "a list of objects" if form == "records" else "a list of rows"
        raise Failure("invalid", f"{form}: found {described(value)}, expected {expected}.")
    if form == "records":
        for place, row in enumerate(value):
            if type(row) is not dict:
                raise Failure("invalid", f"records[{place}]: found {described(row)}, expected an object.")
        if not value:
            raise Failure(
                "invalid", "records: found an empty list, expected at least one object: it says nothing of the columns."
            )
    if set(map(type, value)) <= ROWS:
        widest = max(map(len, value), default=0)
    else:
        widest = max((len(row) for row in value if type(row) in (list, dict)), default=0)
    if widest > limits.columns:
        raise _too_wide(widest, limits)
    return len(value)


def _too_wide(columns: int, limits: Limits) -> Failure:
    return Failure("too_large", f"body: found {columns} columns, expected at most {limits.columns}.")


def write(request: Request, answer: Answer, request_id: str | None) -> bytes:
    """The body of the answer."""
    served = request.served
    document: dict[str, Any] = {"model": served.name, "version": served.version}
    if request_id is not None:
        document["id"] = request_id
    classes = served.classes
    if request.form == "record":
        document["predictions"] = {name: _one(served, name, value) for name, value in answer.outputs.items()}
    else:
        document["predictions"] = {name: jsonable(values) for name, values in answer.outputs.items()}
        if classes is not None and any(name in BY_CLASS for name in answer.outputs):
            document["classes"] = served.class_labels
    return written(document)


def _one(served: Served, name: str, value: Any) -> Any:
    """The result for a record. Where it has a number for each class, an object from the names of classes to these."""
    if type(value) is np.ndarray:
        classes: Sequence[Any] | None = served.classes
        if classes is not None and name in BY_CLASS and value.shape == (len(classes),):
            values = jsonable(value)
            return dict(zip(served.class_texts, values.tolist() if type(values) is np.ndarray else values, strict=True))
    return jsonable(value)
