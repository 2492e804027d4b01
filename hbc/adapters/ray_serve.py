"""Ray Serve: `application("model.hbc")` is an application, for `serve.run` or a configuration file."""

from __future__ import annotations

import os
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from hbc.adapters.hosted import Failure, Hosted
from hbc.serve.documents import failure as written


class HbcDeployment:
    """A deployment's replica. Over HTTP it takes and gives the plain JSON of `hbc serve`; other deployments call `rows`."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self._hosted = Hosted(path, **options)

    async def __call__(self, request: Request) -> Response:
        """The answer to a request of HTTP."""
        try:
            return Response(self._hosted.json(await request.body()), media_type="application/json")
        except Failure as failure:
            return Response(written(failure), failure.status, media_type="application/json")

    async def rows(self, rows: Any, method: str | None = None) -> Any:
        """The result of a method for dicts or lists, for a DeploymentHandle: `await handle.rows.remote([{…}], "predict_proba")`."""
        return self._hosted.rows(rows, method)


def application(path: str | os.PathLike[str], load: dict[str, Any] | None = None, **options: Any) -> Any:
    """The application. path: the model's file, on every node. load: options of `hbc.load`. options: those of `serve.deployment`, such as
    num_replicas."""
    return serve.deployment(**options)(HbcDeployment).bind(os.fspath(path), load or {})  # type: ignore[union-attr]
