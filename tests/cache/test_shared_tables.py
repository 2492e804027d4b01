"""Large tables of code that is found in the cache are mapped: processes share them, and a damaged one is compiled anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from sklearn.ensemble import ExtraTreesClassifier

import hbc
from hbc.cache.folder import is_local
from hbc.cache.store import MAPPED

pytestmark = pytest.mark.skipif(not is_local(Path("/tmp")), reason="mapped on Linux's own file systems only")

ANSWER = """
import json, re, sys
import numpy as np
import hbc
model = hbc.load(sys.argv[1])
X = np.load(sys.argv[2])
found = {"predict_proba": model.predict_proba(X).tolist(), "predict": model.predict(X).tolist()}
model.schema
found["mapped"] = re.findall(r"(r\\S+) .*/objects/../([0-9a-f]{64})$", open("/proc/self/maps").read(), re.MULTILINE)
found["tvm"] = "tvm" in sys.modules
variant = model.variants[model._main]
found["kept"] = "graph" in vars(variant.source)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, np.ndarray]:
    """(a folder with a saved forest and rows, the forest, the rows). Its tables take some MB."""
    folder = tmp_path_factory.mktemp("forest")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 6)).astype(np.float32)
    source = ExtraTreesClassifier(60, random_state=0).fit(X, rng.integers(0, 2, 4000))
    hbc.convert(source).save(folder / "model.hbc")
    np.save(folder / "rows.npy", X[:200] + np.float32(0.1))
    return folder, source, X[:200] + np.float32(0.1)


def answer(folder: Path, cache: Path) -> dict[str, Any]:
    """What a new process says of the forest."""
    command = [sys.executable, "-c", ANSWER, str(folder / "model.hbc"), str(folder / "rows.npy")]
    environment = {**os.environ, "HBC_CACHE": str(cache)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def require_right(found: dict[str, Any], source: Any, X: np.ndarray) -> None:
    np.testing.assert_allclose(found["predict_proba"], source.predict_proba(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["predict"], source.predict(X))


def test_tables_are_mapped_and_a_damaged_one_is_compiled_anew(forest: Any, tmp_path: Path) -> None:
    folder, source, X = forest
    cold = answer(folder, tmp_path)
    require_right(cold, source, X)
    assert cold["tvm"]
    assert not cold["mapped"]

    warm = answer(folder, tmp_path)
    require_right(warm, source, X)
    assert not warm["tvm"]
    tables = {digest: permissions for permissions, digest in warm["mapped"]}
    assert tables
    assert set(tables.values()) == {"r--s"}
    assert len(warm["mapped"]) == len(tables)  # both methods read the same mapping
    assert not warm["kept"]  # the schema has read the graph, and let go of it

    for digest in tables:
        (path,) = tmp_path.rglob(digest)
        assert path.stat().st_size >= MAPPED
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    again = answer(folder, tmp_path)
    require_right(again, source, X)
    assert again["tvm"]
    assert {digest for _, digest in answer(folder, tmp_path)["mapped"]} == set(tables)
