"""AWS Lambda and whatever calls a function with an event: `handler = make_handler("model.hbc")`."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable
from typing import Any

from hbc.adapters.hosted import Failure, Hosted

HEADERS = {"content-type": "application/json"}


def make_handler(path: str | os.PathLike[str], **options: Any) -> Callable[[Any, Any], Any]:
    """The function `handler(event, context)`. The model is loaded now: once for each environment, before its first event.

    An event of API Gateway or of a function's URL has a "body", and gets an answer with "statusCode". Any other event is the body itself,
    in the plain JSON of `hbc serve`, and gets the answer itself; one that the model rejects raises ValueError, which Lambda reports.
    options: those of `hbc.load`."""
    hosted = Hosted(path, **options)

    def handler(event: Any, context: Any = None) -> Any:
        if not (isinstance(event, dict) and "body" in event):
            try:
                return json.loads(hosted.json(json.dumps(event).encode()))
            except Failure as failure:
                raise ValueError(failure.message) from failure
        try:
            answer = hosted.json(_body(event))
        except Failure as failure:
            return {"statusCode": failure.status, "headers": HEADERS, "body": json.dumps({"error": failure.message})}
        return {"statusCode": 200, "headers": HEADERS, "body": answer.decode()}

    return handler


def _body(event: dict[str, Any]) -> bytes:
    """The bytes of an event's body. Raises Failure for what is no base64 though it says so."""
    body = event["body"] or ""
    if not event.get("isBase64Encoded"):
        return str(body).encode(errors="surrogatepass")  # half of a pair is no JSON
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Failure("invalid", f"body: found no base64 ({error}).") from error
