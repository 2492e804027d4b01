"""The adapter for BentoML, with BentoML itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hosted_models import FRAME, MIXED, close, records, saved
from ports import free_port

pytest.importorskip("bentoml")


def test_the_server(tmp_path: Path, server: Any) -> None:
    path = saved(tmp_path, "mixed")
    (tmp_path / "app.py").write_text(
        f"from hbc.adapters.bentoml import service\n\nModel = service({str(path)!r}, 'model', workers=1)\n"
    )
    port = free_port()
    with server.running(sys.executable, "-m", "bentoml", "serve", "app:Model", "--port", str(port), cwd=tmp_path) as process:
        body = {"records": records(3), "methods": ["predict", "predict_proba"]}
        found = server.ask(process, port, "/predict", body)
        assert found["predictions"]["predict"] == MIXED.predict(FRAME[:3]).tolist()
        close(found["predictions"]["predict_proba"], MIXED.predict_proba(FRAME[:3]))
        one = server.ask(process, port, "/predict", {"record": records(1)[0]})
        assert one["predictions"]["predict"] == MIXED.predict(FRAME[:1])[0]
        status, refused = server.post(port, "/predict", {"record": {"age": 1}})
        assert status == 400
        assert "town" in str(refused)
