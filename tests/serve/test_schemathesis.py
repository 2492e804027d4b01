"""schemathesis, which makes requests from the OpenAPI document: none of them is answered with an error of the server.

It is no part of the test extra, since it brings plugins for pytest. Install it into an environment of its own and put that on $PATH."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest
from serving import running, settings

from hbc.serve.service import Service


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("schemathesis") is None, reason="no schemathesis")
def test_no_request_breaks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """504 is what a request with a time of a microsecond asks for."""
    statuses: Counter[int] = Counter()
    reply, refuse = Service._reply, Service.refuse

    def counted(self: Service, *arguments: Any) -> Any:
        found = reply(self, *arguments)
        statuses[found.status] += 1
        return found

    def refused(self: Service, *arguments: Any) -> Any:
        found = refuse(self, *arguments)
        statuses[found.status] += 1
        return found

    monkeypatch.setattr(Service, "_reply", counted)
    monkeypatch.setattr(Service, "refuse", refused)
    with running(settings()) as server:
        address = f"http://127.0.0.1:{server.port}"
        options = ["--url", address, "-n", "100", "--continue-on-failure", "--checks", "not_a_server_error"]
        run = ["schemathesis", "run", f"{address}/openapi.json", *options]
        found = subprocess.run(run, capture_output=True, text=True, timeout=600)
        assert "Test cases" in found.stdout, found.stdout[-2000:] + found.stderr[-2000:]
    assert statuses[200] > 100
    assert statuses[400] > 500
    assert not [status for status in statuses if status >= 500 and status != 504], statuses
