"""What the page shows: the models, what has happened with them, and their columns and results. `GET /overview` and `/overview/models`."""

from __future__ import annotations

from typing import Any

from hbc.serve.served import Served
from hbc.serve.service import Service
from hbc.serve.statistics import BUCKETS, Statistics
from hbc.serve.tensors import metadata
from hbc.serve.workers import Family
from hbc.version import VERSION

KINDS = {"BYTES": "text", "BOOL": "boolean"}
"""Datatype of a column → its kind in words; the others are "integer" and "number"."""


def live(service: Service, family: Family) -> dict[str, Any]:
    """The state of the server, and what has happened with each model in all processes. `loaded` changes when a model is loaded anew."""
    known = family.statistics()
    ready = {(each.name, each.version): each for each in service.repository.all()}
    models = []
    for entry in service.repository.index():
        key = entry["name"], entry["version"]
        served = ready.get(key)
        found = known.get(key, Statistics())
        models.append(
            {
                **entry,
                "loaded": None if served is None else str(served.stamp),
                "success": found.success,
                "failure": found.failure,
                "rows": found.rows,
                "request_seconds": found.request_seconds,
                "histogram": found.histogram,
            }
        )
    return {
        "version": VERSION,
        "ready": service.ready,
        "workers": family.size,
        "bounds": BUCKETS,
        "models": models,
    }


def described(served: Served) -> dict[str, Any]:
    """A model's methods, columns and results. `form`: how a row of it is sent, "record" (by the names of columns), "row" or "item"."""
    inputs, outputs = metadata(served)
    spec = served.model.spec
    if served.names is None or spec.ndim == 1:
        datatype = inputs[0][1]
        names = ["value"] if spec.ndim == 1 else [f"column {i}" for i in range(served.n_features)]
        form, datatypes = ("item" if spec.ndim == 1 else "row"), [datatype] * len(names)
    else:
        form, names, datatypes = "record", list(served.names), [datatype for _, datatype, _ in inputs]
    columns = [
        {"name": name, "kind": _kind(datatype), "categories": None} for name, datatype in zip(names, datatypes, strict=True)
    ]
    return {
        "name": served.name,
        "version": served.version,
        "methods": list(served.methods),
        "usual": served.usual,
        "form": form,
        "columns": columns,
        "outputs": [
            {"name": name, "datatype": datatype, "classes": served.classes if shape[1:] and served.classes else None}
            for name, datatype, shape in outputs
        ],
    }


def _kind(datatype: str) -> str:
    return KINDS.get(datatype, "number" if datatype.startswith("FP") else "integer")
