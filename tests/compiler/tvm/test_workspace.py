"""The memory that compiled code takes for a call (compiler/tvm/run/workspace.py and llvm_ir.py)."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

import hbc

pytest.importorskip("tvm")

from hbc.compiler.tvm.run import cache
from hbc.compiler.tvm.run.llvm_ir import LARGEST_OWN, object_of, with_own_workspace
from hbc.linker.shared_library import shared_library

CODE = """
@__TVMBackendAllocWorkspace = global ptr null, align 8
@__TVMBackendFreeWorkspace = global ptr null, align 8

define ptr @allocate() {{
  %1 = load ptr, ptr @__TVMBackendAllocWorkspace, align 8, !dbg !67
  %workspace = tail call ptr %1(i32 1, i32 0, i64 {bytes}, i32 1, i32 8), !dbg !67
  ret ptr %workspace
}}

define i32 @release(ptr %place) {{
  %1 = load ptr, ptr @__TVMBackendFreeWorkspace, align 8
  %2 = tail call i32 %1(i32 1, i32 0, ptr nonnull %place)
  ret i32 %2
}}
"""
"""Code that allocates as TVM writes it."""


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hbc links libraries for Linux")
def test_a_library_has_memory_for_one_call_and_asks_tvm_for_others(tmp_path: Path) -> None:
    foreign, freed = ctypes.create_string_buffer(64), []
    here = ctypes.addressof(foreign)
    allocate, release = _library(tmp_path, 5000, lambda *_: here, lambda kind, id_, place: freed.append(place) or 7)
    own = allocate()
    assert own != here
    assert own % 4096 == 0
    ctypes.memset(own, 1, 5000)
    assert (allocate(), allocate()) == (here, here)
    assert release(here) == 7
    assert freed == [here]
    assert release(own) == 0
    assert freed == [here]
    assert (allocate(), allocate()) == (own, here)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hbc links libraries for Linux")
def test_large_workspaces_come_from_tvm() -> None:
    text = CODE.format(bytes=LARGEST_OWN + 1)
    assert with_own_workspace(text) == text
    both = CODE.format(bytes=LARGEST_OWN + 1) + CODE.format(bytes=100).replace("@allocate", "@other").replace(
        "@release", "@free"
    )
    assert "[100 x i8]" in with_own_workspace(both)
    assert "icmp ule i64 %bytes, 100" in with_own_workspace(both)


def _library(folder: Path, size: int, allocate: Any, release: Any) -> tuple[Any, Any]:
    """(allocate, release) of a library with CODE, for which TVM's functions are the ones given."""
    pointers = ["__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace"]
    code = object_of(with_own_workspace(CODE.format(bytes=size)))
    path = folder / "code.so"
    path.write_bytes(shared_library(code, ["allocate", "release", *pointers]))
    library = ctypes.CDLL(str(path))
    number, place = ctypes.c_int, ctypes.c_void_p
    library.kept = [
        ctypes.CFUNCTYPE(place, number, number, ctypes.c_uint64, number, number)(allocate),
        ctypes.CFUNCTYPE(number, number, number, place)(release),
    ]
    for name, function in zip(pointers, library.kept, strict=True):
        place.in_dll(library, name).value = ctypes.cast(function, place).value
    library.allocate.restype, library.release.argtypes = place, [place]
    return library.allocate, library.release


def test_threads_that_call_the_same_code_have_memory_each(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(cache, "object_of", lambda text: texts.append(text) or object_of(text))
    monkeypatch.setenv("HBC_CACHE", "")
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 6)).astype("f4")
    y = (X[:, 0] * X[:, 1] > 0) + 2 * (X[:, 2] > 0)
    model = RandomForestClassifier(41, max_depth=6, random_state=0).fit(X, y)
    compiled = hbc.convert(model, "tvm", threads=1, strategy="scan")
    handle, expected = compiled.bind("predict_proba", X.dtype), model.predict_proba(X)
    if sys.platform.startswith("linux"):
        assert any("@hbc_workspace =" in text for text in texts)
    parts = [slice(start, start + 500) for start in range(0, 4000, 500)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for part, found in zip(parts, pool.map(lambda part: handle(X[part]), parts), strict=True):
                np.testing.assert_allclose(found, expected[part], rtol=1e-5, atol=1e-6)


def resident() -> int:
    """The bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
