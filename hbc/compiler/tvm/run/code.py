"""Machine code in this process: loaded from a shared library, or from a module of TVM's."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from hbc.compiler.tvm.run.entry import SYMBOL, address_of
from hbc.errors import BackendUnavailableError
from hbc.process import close, run_free, temporary_folder

NAME = "run"  # the name of every function here, so that methods of different names share code

WORTH_THE_LOCK = 10_000.0
"""Nanoseconds of work, by the estimate, from which on Python's lock (GIL) is released for other threads. Releasing it takes 0.04 µs in the
entry from Python (run/entry.py, Zen 5), and 0.2 µs elsewhere. Two threads that call a model of 500 trees make 1.5 times as many calls of 8
rows (4,200 ns, by the estimate) if they hold the lock, 1.3 times as many of 16 rows (8,400 ns), and 0.75 times as many of 32 rows (16,800
ns)."""


class Code:
    """The machine code of one function. Call it with the function's arguments. It is freed when no model has it and the cache drops it.

    module: TVM's module with the function. size: the bytes that it takes. library: the shared library that it was loaded from, or None.
    found: whether that was found in the cache on disk. addresses: of the entry from Python (run/entry.py) and of the packed function, or
    None if there is no entry.
    """

    def __init__(
        self,
        module: Any,
        size: int,
        library: bytes | None = None,
        found: bool = False,
        addresses: tuple[int, int] | None = None,
    ) -> None:
        self.module = module
        self.addresses = addresses
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

    def for_work(self, nanoseconds: float) -> Any:
        """The function to call for so much work: it holds Python's lock (GIL) unless that would keep other threads waiting."""
        return self.held if nanoseconds < WORTH_THE_LOCK else self


class Unloaded(Code):
    """The code of a function for other computers: only its library."""

    def __init__(self, library: bytes) -> None:
        self.module = self.held = self.free = self.addresses = None
        self.bytes = len(library)
        self.library = library
        self.found = False


def load_library(library: bytes, found: bool = False) -> Code:
    """The code of a shared library, given its bytes. They go through a file in memory: what was compared with a digest is what is loaded,
    whatever happens to the file they came from, and also where files cannot be executed. Raises RuntimeError for what is no library."""
    _load_runtime()
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("hbc")
        try:
            with open(file, "wb", closefd=False) as stream:
                stream.write(library)
            return _loaded_from(_unique_path(file), library, found)
        finally:
            os.close(file)
    with temporary_folder() as folder:
        path = folder / "code.so"
        path.write_bytes(library)
        return _loaded_from(str(path), library, found)


def _loaded_from(path: str, library: bytes, found: bool) -> Code:
    module = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    return Code(module, len(library), library, found, _addresses(path))


def _addresses(path: str) -> tuple[int, int] | None:
    """`Code.addresses` of a library that is loaded."""
    from _ctypes import dlclose  # Windows has none, and links no libraries here

    library = ctypes.CDLL(path)
    try:
        first, second = (getattr(library, name, None) for name in (SYMBOL, f"__tvm_ffi_{NAME}"))
        return None if first is None or second is None else (address_of(first), address_of(second))
    finally:
        dlclose(library._handle)  # TVM's module keeps it loaded


_loaded = count()


def _unique_path(file: int) -> str:
    """A path of an open file by which nothing was loaded before. The system's loader takes equal paths for the same library, though the
    number of a file that was closed now stands for another."""
    number = next(_loaded)
    return "/proc/self" + "".join("//" if number >> bit & 1 else "/./" for bit in range(32)) + f"fd/{file}"


@cache
def _load_runtime() -> None:
    """Load TVM's runtime library, which gives code its workspace, unless TVM itself has. Raises BackendUnavailableError."""
    if "tvm" not in sys.modules:
        ctypes.CDLL(str(runtime_library().path), ctypes.RTLD_GLOBAL)


class RuntimeLibrary(NamedTuple):
    """TVM's runtime library: its file, and the version of TVM that it is of."""

    path: Path
    version: str


@cache
def runtime_library() -> RuntimeLibrary:
    """TVM's runtime library of 3 MB, of the installed TVM, or as `hbc runtime` (run/folder.py) has put it beside this file. Raises
    BackendUnavailableError."""
    spec = find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        for own in Path(__file__).parent.glob("libtvm_runtime-*.so"):
            return RuntimeLibrary(own, own.stem.removeprefix("libtvm_runtime-"))
        raise BackendUnavailableError(backend="tvm", reason="TVM's runtime library is not installed", extra="tvm")
    folder = Path(spec.submodule_search_locations[0])
    # `importlib.metadata` would take 20 ms to import.
    versions = [
        path.name.removeprefix("apache_tvm-").removesuffix(".dist-info")
        for path in folder.parent.glob("apache_tvm-*.dist-info")
    ]
    return RuntimeLibrary(folder / "lib" / "libtvm_runtime.so", ".".join(versions) or "unknown")


def code_versions() -> dict[str, str]:
    """See hbc.compiler.base.Backend."""
    return {"tvm": runtime_library().version, "tvm_ffi": tvm_ffi.__version__}


atexit.register(close)  # runs before the hook that tvm_ffi registered at its import: hooks run last in, first out
