"""Logs: one JSON object a line on stderr, with the id of the request and its W3C trace where there is one."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from typing import Any, TextIO

import orjson

TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class Log:
    """Writes lines to a stream, stderr by default. quiet: only failures of the server itself."""

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet

    def tell(self, event: str, level: str = "info", **facts: Any) -> None:
        """Write what has happened. level: "info", or "error", which is written with `quiet` too."""
        if level == "error" or not self._quiet:
            self._write(level, event, facts)

    def failed(self, event: str, error: BaseException, **facts: Any) -> None:
        """Write an error that is the server's own, with its traceback."""
        text = "".join(traceback.format_exception(error))
        self._write("error", event, {**facts, "error": f"{type(error).__name__}: {error}", "traceback": text})

    def _write(self, level: str, event: str, facts: dict[str, Any]) -> None:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        line = {"time": stamp, "level": level, "event": event, "process": os.getpid(), **facts}
        try:
            text = orjson.dumps(line, default=str).decode()
        except TypeError:  # the name of a file that is no UTF-8, in which Python has surrogates
            text = json.dumps(line, default=str)
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads the log any more: the server goes on
            pass


class Forward(logging.Handler):
    """Hands what libraries log (uvicorn, asyncio) to a Log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"source": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            self._log.failed(record.getMessage().strip(), record.exc_info[1], **facts)
        else:
            level = "error" if record.levelno >= logging.ERROR else "info"
            self._log.tell(record.getMessage().strip(), level, **facts)


def trace_of(traceparent: str) -> dict[str, str]:
    """The trace and the caller's span of a W3C header `traceparent`; {} for what is none."""
    found = TRACE.fullmatch(traceparent)
    if found is None or traceparent.startswith("ff") or not found[1].strip("0") or not found[2].strip("0"):
        return {}
    return {"trace": found[1], "span": found[2]}
