"""The page at `/`: files of plain HTML, CSS and JavaScript, and what a browser may do with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hbc.serve.messages import Reply

FOLDER = Path(__file__).parent
FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
"""Path → file, content type. They hold nothing of the models: who has no token may read them."""

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        b"form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


@cache
def reply(path: str) -> Reply:
    """The answer for one of FILES."""
    file, kind = FILES[path]
    return Reply(200, (FOLDER / file).read_bytes(), ((b"content-type", kind), *HEADERS))
