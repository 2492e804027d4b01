"""tvm_ffi imports torch where it is installed, which takes 2 s of processor time; hbc needs nothing of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _NoTorch:
    """A finder of modules that says no to `import torch` by the thread that made it. Others may import torch meanwhile."""

    left_out = ("torch",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.left_out and threading.get_ident() == self.thread:
            raise ModuleNotFoundError("hbc does not need it here", name="torch")


@contextmanager
def without_torch() -> Iterator[None]:
    """Inside, this thread's imports of torch fail, as if it were not installed, unless it was imported before. Nothing is left behind: a
    later `import torch` works, and its tensors and TVM's share memory as always (tests/compiler/tvm/test_without_torch.py).

    tvm_ffi imports torch from Python and from Cython, which a patched `builtins.__import__` does not see; its switch
    TVM_FFI_DISABLE_TORCH_C_DLPACK leaves the import in. On Windows torch is imported first as tvm_ffi wants it: torch 2.9.0 did not load
    its libraries after TVM's there.
    """
    if "torch" in sys.modules or sys.platform == "win32":
        yield
        return
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
