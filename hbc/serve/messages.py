"""Head and Reply: a request's head as both ways of HTTP read it, and an answer before it is written."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hbc.lazy import record
from hbc.serve.failures import Failure

JSON = (b"content-type", b"application/json")
JSON_ONLY = (JSON,)


@record
class Head:
    """What the server reads of a request's head. Texts are "" where a header is missing."""

    method: str
    path: str
    """Decoded."""
    query: str = ""
    content_encoding: str = ""
    authorization: str = ""
    request_id: str = ""
    traceparent: str = ""
    origin: str = ""
    host: str = ""
    json_length: str = ""
    """Inference-Header-Content-Length: where the JSON of a body with binary tensors ends."""


FIELDS = {
    b"content-encoding": "content_encoding",
    b"authorization": "authorization",
    b"x-request-id": "request_id",
    b"traceparent": "traceparent",
    b"origin": "origin",
    b"host": "host",
    b"inference-header-content-length": "json_length",
}
"""Header, in small letters → field of Head."""


def head_of(method: str, path: str, query: str, headers: list[tuple[bytes, bytes]]) -> Head:
    """The Head of a request. A header that comes twice counts as one with a comma, which no reader of these takes. `path` is decoded."""
    found: dict[str, str] = {}
    for name, value in headers:
        field = FIELDS.get(name)
        if field is not None:
            text = value.decode("latin-1")
            found[field] = f"{found[field]}, {text}" if field in found else text
    return Head(method, path, query, **found)


def decoded_path(raw: bytes) -> str:
    """The path of a URL without its escapes. Raises Failure for what is no UTF-8."""
    text = raw.decode("ascii", "replace")
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise Failure("invalid", "path: found bytes that are no UTF-8 text.") from error


class Reply:
    """An answer of HTTP. Content-Length, Date and the like are added when it is written."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: tuple[tuple[bytes, bytes], ...] = JSON_ONLY) -> None:
        self.status = status
        self.body = body
        self.headers = headers


@record
class Route:
    """Where an inference request goes."""

    protocol: str
    """"v2" or "plain"."""
    name: str
    version: str | None
    method: str = ""
    """The method of the model that the path names; "" for none."""


V2 = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
PLAIN = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?:([^/:]+)")


def route_of(path: str) -> Route | None:
    """The route of a path to which inference requests are posted: /v2/models/NAME[/versions/N]/infer and
    /v1/models/NAME[/versions/N]:METHOD. None for any other."""
    if (found := PLAIN.fullmatch(path)) is not None:
        return Route("plain", found[1], found[2], found[3])
    if (found := V2.fullmatch(path)) is not None:
        return Route("v2", found[1], found[2])
    return None
