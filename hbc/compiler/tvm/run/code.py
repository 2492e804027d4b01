"""Machine code in this process: loaded from a shared library, or from a module of TVM's."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import tvm_ffi

from hbc.process import close, run_free

NAME = "run"  # the name of every function here, so that methods of different names share code


class Code:
    """The machine code of one function. Call it with the function's arguments. It is freed when no model has it and the cache drops it.

    module: TVM's module with the function. size: the bytes that it takes. library: the shared library that it was loaded from, or None.
    found: whether that was found in the cache on disk.
    """

    def __init__(self, module: Any, size: int, library: bytes | None = None, found: bool = False) -> None:
        self.module = module
        self.held = module[NAME]
        """The function, called with Python's lock held: for calls that end before another thread could make use of the lock."""
        self.held.release_gil = False
        self.free = module[NAME]
        """The function, called with Python's lock released. Only `run_free` may call it."""
        self.bytes = size
        self.library = library
        self.found = found

    def __call__(self, *arguments: Any) -> Any:
        return run_free(self.free, self.held, arguments)


def load_library(library: bytes, found: bool = False) -> Code:
    """The code of a shared library, given its bytes. They go through a file in memory: what was compared with a digest is what is loaded,
    whatever happens to the file they came from, and also where files cannot be executed. Raises RuntimeError for what is no library."""
    _load_runtime()
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("hbc")
        try:
            with open(file, "wb", closefd=False) as stream:
                stream.write(library)
            return Code(load(_unique_path(file), "so"), len(library), library, found)
        finally:
            os.close(file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code.so")
        path.write_bytes(library)
        return Code(load(str(path), "so"), len(library), library, found)


_loaded = count()


def _unique_path(file: int) -> str:
    """A path of an open file by which nothing was loaded before. The system's loader takes equal paths for the same library, though the
    number of a file that was closed now stands for another."""
    number = next(_loaded)
    return "/proc/self" + "".join("//" if number >> bit & 1 else "/./" for bit in range(32)) + f"fd/{file}"


@cache
def _load_runtime() -> None:
    """Load TVM's runtime library, which gives code its workspace, unless TVM itself has."""
    if "tvm" in sys.modules:
        return
    spec = find_spec("tvm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    ctypes.CDLL(str(Path(spec.submodule_search_locations[0], "lib", "libtvm_runtime.so")), ctypes.RTLD_GLOBAL)


atexit.register(close)  # runs before the hook that tvm_ffi registered at its import: hooks run last in, first out
