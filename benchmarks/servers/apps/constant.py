"""A server that reads a request's body and answers a constant: what uvicorn itself takes."""

import json
import os

count = {"batch": 100}.get(os.environ["MODEL_KIND"], 1)
BODY = json.dumps({"probabilities": [0.5] * count}).encode()
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())],
}
END = {"type": "http.response.body", "body": BODY}


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    """An ASGI application."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(END)
