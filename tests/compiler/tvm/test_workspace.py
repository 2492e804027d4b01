"""The memory that compiled code allocates in a call (compiler/tvm/run/workspace.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

import hbc

pytest.importorskip("tvm")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc of Linux")
@pytest.mark.parametrize("method", ["predict_proba", "predict"])
def test_calls_give_their_memory_back(method: str) -> None:
    """The function tests its input and returns whether it fits. It once returned before it freed its 0.6 MB."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5)).astype("f4")
    model = RandomForestClassifier(9, max_depth=7, random_state=0).fit(X, rng.integers(0, 3, 500))
    call = getattr(hbc.convert(model, "tvm", threads=1, strategy="walk"), method)
    row = X[:1]
    for _ in range(100):
        call(row)
    before = resident()
    for _ in range(1000):
        call(row)
    assert resident() - before < 64 << 20


def resident() -> int:
    """The bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
