"""Compiled code touches no byte outside of its arrays. Before and behind the arrays are pages without access: a process that reads or
writes a byte there ends with SIGSEGV."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

import numpy as np
import pytest
from test_estimators import CASES, call, converted, source_methods, turns

from hbc.compiler.tvm.kernels import hashes
from hbc.compiler.tvm.nest import function, model_data
from hbc.compiler.tvm.trees.walk import walk
from hbc.ir.types import NUMPY_DTYPES, Array

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of Linux"),
    pytest.mark.filterwarnings("ignore:Found unknown categories"),
]
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
PAGE, NO_ACCESS = mmap.PAGESIZE, 0  # PROT_NONE
FIRST = [name for name in CASES if not turns()[name]]
ROWS = (1, 2, 3, 15, 16, 17, 31, 64, 65, 255, 256, 300)
"""Numbers of rows on both sides of each number that kernels take together, and 300 for the rest behind the last full block."""


def guarded(shape: tuple[int, ...], dtype: Any, *, at_end: bool, alignment: int = 1) -> Array:
    """Zeros between two pages without access, as close as the alignment allows to the second one, or right behind the first."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    inner = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, inner + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(memory, np.uint8)
    assert LIBC is not None
    for page in (0, PAGE + inner):
        if LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + page), ctypes.c_size_t(PAGE), NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = PAGE + ((inner - size) // alignment * alignment if at_end else 0)
    return whole[start : start + size].view(kind).reshape(shape)


def copy_of(array: Array, *, at_end: bool) -> Array:
    result = guarded(array.shape, array.dtype, at_end=at_end)
    result[...] = array
    return result


def guarded_table(size: int, dtype: str) -> Array:
    return guarded((size,), NUMPY_DTYPES[dtype], at_end=True, alignment=64)


def test_the_guard_ends_a_process() -> None:
    """Without this the other tests would prove nothing."""
    for place in (-1, 8):
        child = os.fork()
        if child == 0:
            array = guarded((8,), np.uint8, at_end=place > 0)
            ctypes.c_uint8.from_address(array.ctypes.data + place).value  # noqa: B018
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) in (7, 11)  # SIGBUS, SIGSEGV


DOUBLE = ("NMF",)
"""Cases whose source takes float64 only."""


@pytest.mark.parametrize("name", FIRST)
def test_nothing_beside_the_arrays_is_touched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (model_data, function, walk, hashes):
        monkeypatch.setattr(module, "aligned", guarded_table)
    case = CASES[name]
    model, X, compiled = converted(case, "tvm")
    if not isinstance(X, np.ndarray) or X.ndim != 2 or not compiled._plain:
        pytest.skip("takes no plain matrix")
    # One method of one dtype: LLVM takes most of the time, and what they share is most of their code.
    bound = [m for m in source_methods(case, model) if m in compiled._calls]
    bound = [m for m in bound if not compiled._calls[m].returns and len(call(case, model, m, X[:2])) == 2]
    if not bound:
        pytest.skip("returns no array with a row for each")
    method = bound[-1]
    single = case.float32 and np.dtype(np.float32) in compiled._plain
    handle = compiled.bind(method, np.float64 if name in DOUBLE else np.float32 if single else None)
    if handle._answers.returned is None:
        pytest.skip("returns several arrays")
    data = np.ascontiguousarray(np.resize(X, (max(ROWS), X.shape[1])).astype(handle.dtype))
    for rows in ROWS if case.one_row else ROWS[1:]:
        expected = getattr(compiled, method)(data[:rows])
        for at_end in (True, False):
            out = guarded(expected.shape, handle.out_dtype, at_end=at_end)
            assert handle(copy_of(data[:rows], at_end=at_end), out) is out
            np.testing.assert_array_equal(out, expected)
