"""A headless Chromium, driven by the DevTools protocol through a pair of pipes: no other package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 30

KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "Home": (36, ""),
    "End": (35, ""),
    " ": (32, " "),
}
"""Key → its number, and the text that it makes."""


def program() -> str | None:
    """The path of the browser, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser with one tab. It is a context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hbc-browser-", ignore_cleanup_errors=True)
        read, theirs_write = os.pipe()
        theirs_read, self._write = os.pipe()
        path = program()
        assert path is not None
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "--window-size=1280,900"]
        # Chromium reads from its file 3 and writes to 4.
        start = 'exec "$0" "$@" 3<&"$READ" 4>&"$WRITE"'
        self._process = subprocess.Popen(
            ["bash", "-c", start, path, *options, "about:blank"],
            env={**os.environ, "READ": str(theirs_read), "WRITE": str(theirs_write), "HOME": self._folder.name},
            pass_fds=[theirs_read, theirs_write],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._read, self._rest, self._number = read, b"", 0
        self.messages: list[str] = []
        """What the page wrote to its console, and its errors."""
        target = next(t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session: str | None = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(OSError):
            os.close(self._write)  # Chromium ends when its pipe does
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        self._folder.cleanup()

    _session = None

    def _ask(self, method: str, **parameters: Any) -> Any:
        """The result of a call. Raises AssertionError with what the browser says is wrong."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            found = self._next(end)
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self._note(found)

    def _next(self, end: float) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: Any) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded":
            self.messages.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(str(told["args"]))

    # --- the page ------------------------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self._ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, code: str) -> Any:
        """The value of an expression of JavaScript, as JSON holds it."""
        found = self._ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, code: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({code})"):
            assert time.monotonic() < end, (code, self.run("document.body.innerText"), self.messages)
            time.sleep(0.03)

    def press(self, *keys: str) -> None:
        """Press keys one after the other: names of KEYS, or characters."""
        for key in keys:
            code, text = KEYS.get(key, (0, key))
            told = {"key": key, "windowsVirtualKeyCode": code, "code": key if key in KEYS and key != " " else ""}
            self._ask("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
            self._ask("Input.dispatchKeyEvent", type="keyUp", **told)

    def write(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def dark(self, dark: bool) -> None:
        """Let the page think that the user likes dark colours, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", features=features)

    def width(self, width: int, height: int = 900) -> None:
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        """Write a screenshot of the whole page."""
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
