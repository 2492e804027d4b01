"""BentoML: `service("model.hbc")` is a service, for the module that `bentoml serve` names."""

from __future__ import annotations

import json
import os
from typing import Any

import bentoml
from bentoml.exceptions import BadInput

from hbc.adapters.hosted import Failure, Hosted


def service(path: str | os.PathLike[str], name: str = "hbc", **options: Any) -> Any:
    """A service of BentoML with one API, `predict`. Its body is that of `hbc serve`: "record", "records", "columns" or "rows", and
    "methods".

    path: the model's file, or a folder with model.hbc. options: those of `bentoml.service`, such as workers and traffic."""

    @bentoml.service(name=name, **options)
    class Service:
        def __init__(self) -> None:
            self.model = Hosted(path, name)

        @bentoml.api
        def predict(
            self,
            record: dict[str, Any] | None = None,
            records: list[dict[str, Any]] | None = None,
            columns: dict[str, list[Any]] | None = None,
            rows: list[list[Any]] | None = None,
            methods: list[str] | None = None,
        ) -> dict[str, Any]:
            given = {"record": record, "records": records, "columns": columns, "rows": rows, "methods": methods}
            body = json.dumps({key: value for key, value in given.items() if value is not None}).encode()
            try:
                return json.loads(self.model.json(body))
            except Failure as failure:
                if failure.status >= 500:
                    raise
                raise BadInput(failure.message) from failure

    return Service
