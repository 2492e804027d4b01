"""What the page shows: the models, what has happened with them, and their columns and results. `GET /overview` and `/overview/models`."""

from __future__ import annotations

from typing import Any

from hbc.runtime.schema import Column
from hbc.serve import documents
from hbc.serve.jsonable import jsonable
from hbc.serve.served import Served
from hbc.serve.service import Service
from hbc.serve.statistics import BUCKETS, Statistics
from hbc.serve.workers import Family
from hbc.version import VERSION


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
        "rates": family.rates(),
        "models": models,
    }


def described(served: Served) -> dict[str, Any]:
    """A model's methods, columns and results. `form`: how a row of it is sent, "record" (by the names of columns), "row" or "item"."""
    schema = served.model.schema
    form = "item" if served.model.spec.ndim == 1 else "row" if served.names is None else "record"
    columns = [
        {
            "name": ("value" if form == "item" else f"column {place}") if column.name is None else column.name,
            "kind": _asked_for(column),
            "categories": jsonable(column.categories and list(column.categories)),
            "missing": column.allows_missing,
        }
        for place, column in enumerate(schema.columns)
    ]
    return {
        "name": served.name,
        "version": served.version,
        "methods": list(served.methods),
        "usual": served.usual,
        "form": form,
        "columns": columns,
        "outputs": [
            {
                "name": name,
                "kind": documents.kind_of(output.dtype),
                "shape": output.shape,
                "classes": jsonable(output.names and list(output.names)),
            }
            for name, output in schema.outputs.items()
            if name in served.methods
        ],
    }


def _asked_for(column: Column) -> str:
    """What is asked for in a form: "text", "number", or what the items of a model are."""
    if column.kind in ("document", "string") or column.dtype == "str":
        return "text"
    return "number" if column.kind in ("number", "category", "unread") else column.kind
