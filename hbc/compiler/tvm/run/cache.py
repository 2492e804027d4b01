"""The cache of compiled code. The methods and models of this process share the code of functions that differ only in their data."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import tvm_ffi

from hbc.compiler.tvm.run.targets import Machine, compile_module
from hbc.process import building, close, run_free, shielded

CAPACITY = 128 << 20
"""The most bytes of code to keep for later models: in a search, models often differ only in data. The code used last is always kept."""
ENGINE, IR = 1_250_000, 5
"""An estimate of the bytes that a function's code takes: ENGINE, and IR for each character of its LLVM IR as text.

Measured with mallinfo2: a chain of 5 operators takes 1.4 MB, walks of trees 2.0 to 2.9, nested choices 2.7. The JIT engine takes 1.0 to
1.3 MB of that, most of it LLVM's tables of the processor. Machine code takes 20 to 200 KB. The rest is the IR, which TVM keeps. TVM frees
all of it only with the function. Linking an object file instead would need a linker on the user's computer."""
NAME = "run"  # the name of every function here, so that methods of different names share code


class Code:
    """The machine code of one function. Call it with the function's arguments. It is freed when no model has it and the cache drops it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.held = module[NAME]
        """The function, called with Python's lock held: for calls that end before another thread could make use of the lock."""
        self.held.release_gil = False
        self.free = module[NAME]
        """The function, called with Python's lock released. Only `run_free` may call it."""
        self.bytes = ENGINE + IR * len(module.inspect_source("ll"))

    def __call__(self, *arguments: Any) -> Any:
        return run_free(self.free, self.held, arguments)


_alive: WeakValueDictionary[tuple[Machine, Any], Code] = WeakValueDictionary()
_recent: OrderedDict[tuple[Machine, Any], Code] = OrderedDict()  # in the order of their last use


@building
def compiled(function: Any, machine: Machine) -> Code:
    """The code of a TIR function. It is compiled unless a model or the cache has it.

    Functions are the same if their structure is: names don't count, but every number counts to the last bit (-0.0 is not 0.0). The
    comparison takes about 1 ms, where compiling takes 100 to 1,000.
    """
    function = function.with_attr("global_symbol", NAME)
    key = machine, tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]
    code = _alive.get(key)
    if code is None:
        code = _alive[key] = shielded(lambda: Code(compile_module({NAME: function}, machine)))
    _recent[key] = code
    _recent.move_to_end(key)
    size = sum(code.bytes for code in _recent.values())
    while size > CAPACITY and len(_recent) > 1:
        size -= _recent.popitem(last=False)[1].bytes
    return code


atexit.register(close)  # runs before the hook that tvm_ffi registered at its import: hooks run last in, first out
