"""Several workers: one of them compiles, and all share the memory of large tables."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

pytest.importorskip("tvm")

from serving import until
from sklearn.ensemble import ExtraTreesClassifier
from test_workers import Process, served

import hbc
from hbc.cache.folder import is_local
from hbc.serve.repository import Repository

X = np.random.default_rng(0).normal(size=(4000, 6)).astype(np.float32)


def saved(path: Path, seed: int) -> Any:
    """A forest whose tables take some MB, which is put in place at once."""
    source = ExtraTreesClassifier(60, random_state=seed).fit(X, np.random.default_rng(seed).integers(0, 2, len(X)))
    hbc.convert(source).save(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    return source


def asked(process: Process, method: str = "predict_proba") -> Any:
    body = json.dumps({"rows": X[:50].tolist()}).encode()
    with urlopen(Request(f"http://127.0.0.1:{process.port}/v1/models/forest:{method}", body), timeout=30) as answer:
        return json.load(answer)["predictions"][method]


def maps(process: Process) -> list[str]:
    """What each worker has mapped."""
    return [Path(f"/proc/{worker}/maps").read_text() for worker in process.workers]


def tables(text: str) -> set[str]:
    """The numbers of the mapped files of the cache. Each is mapped for reading only."""
    found = re.findall(r" (\S+) \S+ \S+ (\d+) +\S*/objects/../[0-9a-f]{64}", text)
    assert {permissions for permissions, _ in found} <= {"r--s"}
    return {number for _, number in found}


@pytest.mark.skipif(not is_local(Path("/tmp")), reason="mapped on Linux's own file systems only")
def test_one_worker_compiles_and_all_share_the_tables(tmp_path: Path) -> None:
    path, cache = tmp_path / "forest.hbc", tmp_path / "cache"
    source = saved(path, 1)
    options = ["--methods", "predict_proba,transform", "--poll", "0"]
    with served(*options, workers=2, models=(str(path),), cache=cache) as process:
        (left,) = process.events("compiled")
        assert left["models"] == ["forest"]
        assert left["process"] not in process.workers
        assert len(process.events("worker ended")) == 0
        first, second = map(tables, maps(process))
        assert first
        assert first == second
        assert not any("libtvm_compiler" in text for text in maps(process))
        for _ in range(4):
            np.testing.assert_allclose(asked(process), source.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        with pytest.raises(HTTPError, match="40"):
            asked(process, "predict")

        after = saved(path, 2)
        process.process.send_signal(signal.SIGHUP)
        until(lambda: len(process.events("model loaded")) == 5, 60)
        for _ in range(4):
            np.testing.assert_allclose(asked(process), after.predict_proba(X[:50]), rtol=1e-5, atol=1e-6)
        assert sum("libtvm_compiler" in text for text in maps(process)) == 1  # the other has found what this one compiled
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(30) == 0

    with served(*options, workers=2, models=(str(path),), cache=cache) as process:
        assert process.events("compiled") == []
        first, second = map(tables, maps(process))
        assert first
        assert first == second


def test_a_model_with_none_of_the_methods_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "forest.hbc"
    saved(path, 1)
    repository = Repository({"forest": path}, methods=["transform"])
    repository.refresh()
    (entry,) = repository.index()
    assert entry["state"] != "READY"
    assert "expected one of transform" in entry["reason"]
