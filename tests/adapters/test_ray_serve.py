"""The adapter for Ray Serve, with Ray itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hosted_models import FRAME, MIXED, close, records, saved
from ports import free_port

pytest.importorskip("ray.serve")

APP = """
import sys, time, ray
from ray import serve
from hbc.adapters.ray_serve import application

ray.init(num_cpus=2, include_dashboard=False)
serve.start(http_options={{"host": "127.0.0.1", "port": {port}}})
handle = serve.run(application({path!r}, num_replicas=1))
print("HANDLE", handle.rows.remote([{record!r}], "predict").result()[0], flush=True)
time.sleep(600)
"""


def test_the_server(tmp_path: Path, server: Any) -> None:
    path, port = saved(tmp_path, "mixed"), free_port()
    (tmp_path / "app.py").write_text(APP.format(path=str(path), port=port, record=records(1)[0]))
    with server.running(sys.executable, str(tmp_path / "app.py"), cwd=tmp_path) as process:
        found = server.ask(process, port, "/", {"records": records(3), "methods": ["predict", "predict_proba"]})
        assert found["predictions"]["predict"] == MIXED.predict(FRAME[:3]).tolist()
        close(found["predictions"]["predict_proba"], MIXED.predict_proba(FRAME[:3]))
        status, refused = server.post(port, "/", {"record": {"age": 1}})
        assert status == 400
        assert "town" in refused["error"]
        server.until(lambda: f"HANDLE {MIXED.predict(FRAME[:1])[0]}" in (tmp_path / "log").read_text())
