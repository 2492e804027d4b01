"""Imports of tvm_ffi and TVM without the parts that hbc does not use: torch and NVIDIA's driver where they are installed, TVM's graph
language, and others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEFT_OUT = "torch"
"""It would take 2 s of processor time."""
LATER = ("tvm.relax", "tvm_ffi.cpp", "tvm_ffi._optional_torch_c_dlpack", "importlib.metadata._adapters")
"""TVM's language of graphs with its operators and schedules (0.4 s of processor time), tvm_ffi's C++ compiler (8 ms), its short way for
torch's tensors (7 ms, and where an older torch was imported before, 2.6 say, it runs a C++ compiler or warns that it cannot), and the
reader of e-mail that `importlib.metadata` keeps for the text of a package's metadata (12 ms)."""
PROCESSES, OF_PROCESSES = "tvm.runtime.disco", "runtime.disco.SessionThreaded"
"""TVM's runtime of several processes, and a function of its C++, which most packages of TVM do not have."""
NAMES_OPERATORS = "tvm.tirx.script.builder.ir"
"""It gives operators the names that TVM prints, and looks up many that do not exist."""
PRINTED_NAME = "TScriptPrinterName"
"""The attribute of an operator that holds this name."""
OF_CUDA = "cuda.bindings.driver"
"""NVIDIA's driver for Python, which comes with torch for GPUs. tvm_ffi asks of arguments only whether they are streams of it. It takes
46 ms of processor time (AMD Zen 5), and imports `subprocess`."""


class _Later(ModuleType):
    """A module that is imported when something in it is used first."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _forget(self.__name__)
        return getattr(import_module(self.__name__), name)


class _Nothing:
    """A class without instances."""


class _OfCuda(_Later):
    """What tvm_ffi keeps as NVIDIA's driver. It has the class of streams as soon as somebody has imported the driver. Before that nobody
    can have a stream."""

    def __getattr__(self, name: str) -> Any:
        if name != "CUstream":
            return super().__getattr__(name)
        driver = sys.modules.get(self.__name__, self)
        return _Nothing if driver is self else getattr(driver, name, _Nothing)  # another thread may be importing it


class _Finder:
    """A finder of modules that leaves out torch and NVIDIA's driver, and puts off the modules of LATER. It concerns only the thread that
    made it: others may import what they like meanwhile. `after` undoes what it changes in TVM."""

    def __init__(self, after: ExitStack) -> None:
        self.thread = threading.get_ident()
        self.after = after
        self.later = {*LATER}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if threading.get_ident() != self.thread:
            return None
        if name == NAMES_OPERATORS:
            self.after.enter_context(_answer_in_python(sys.modules["tvm.ir._ffi_api"]))
        if name == PROCESSES and sys.modules["tvm_ffi"].get_global_func(OF_PROCESSES, allow_missing=True) is None:
            raise ModuleNotFoundError("TVM's C++ has nothing for it, and TVM goes on without", name=name)
        if name == LEFT_OUT:
            raise ModuleNotFoundError("hbc does not need it here", name=LEFT_OUT)
        if name not in self.later and name != OF_CUDA:
            return None
        self.later.discard(name)  # from now on it can be imported
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _OfCuda if module.__name__ == OF_CUDA else _Later


@contextmanager
def lean_imports() -> Iterator[None]:
    """Inside, this thread's imports of torch fail, as if it were not installed, unless it was imported before; and what hbc does not use
    of TVM is put off until something in it is used. Nothing is left behind: a later `import torch` works, and its tensors and TVM's share
    memory as always; a later `import tvm.relax` and `tvm.relax.op` work too (tests/cache/test_lean_imports.py).

    tvm_ffi imports torch from Python and from Cython, which a patched `builtins.__import__` does not see; its switch
    TVM_FFI_DISABLE_TORCH_C_DLPACK leaves the import in. On Windows torch is imported first as tvm_ffi wants it: torch 2.9.0 did not load
    its libraries after TVM's there.
    """
    if sys.platform == "win32":
        yield
        return
    with ExitStack() as after:
        finder = _Finder(after)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
        try:
            yield
        finally:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
            for name in (*LATER, OF_CUDA):
                _forget(name)


@contextmanager
def _answer_in_python(operators: ModuleType) -> Iterator[None]:
    """Inside, Python answers what would be an error of TVM's C++, which TVM catches: the lookup of an operator that does not exist, and a
    printed name that an operator has already.

    An error of C++ has a trace of the calls. The first one reads the symbols of all libraries of the process: 0.3 s of processor time, or
    1.2 s where torch, scikit-learn and LightGBM are loaded (AMD Zen 3). `operators` is the module of TVM's functions for them.
    """
    get, register, attribute = operators.GetOp, operators.RegisterOpAttr, operators.OpGetAttr
    known = set(operators.ListOpNames())

    def get_known(name: str) -> Any:
        if name not in known:
            raise KeyError(name)
        return get(name)

    def register_new(name: str, key: str, value: Any, level: int) -> None:
        if key == PRINTED_NAME and name in known and attribute(get(name), key) == value:
            return
        register(name, key, value, level)  # makes the operator, where there is none
        known.add(name)

    operators.GetOp, operators.RegisterOpAttr = get_known, register_new  # type: ignore[attr-defined]
    try:
        yield
    finally:
        operators.GetOp, operators.RegisterOpAttr = get, register  # type: ignore[attr-defined]


def _forget(name: str) -> None:
    """Let the next import of a module that was put off find the true one."""
    if isinstance(sys.modules.get(name), _Later):
        del sys.modules[name]
    parent, _, last = name.rpartition(".")
    if isinstance(getattr(sys.modules.get(parent), last, None), _OfCuda):
        delattr(sys.modules[parent], last)  # `from cuda.bindings import driver` would find it there
