"""Compiled code, shared in this process by all methods and models whose functions are the same but for the data passed to them."""

from __future__ import annotations

import atexit
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import tvm_ffi

from hbc.compiler.tvm.run.targets import Machine, compile_module
from hbc.process import building, close, run_free, shielded

CAPACITY = 128 << 20
"""Bytes of code that is kept although no model has it, in case that the next one does (a search over models that differ in data)."""
ENGINE, IR = 1_250_000, 5
"""The bytes that code takes: so many, and so many for each character of its LLVM IR as text. Measured with mallinfo2: a chain of 5
operators takes 1.4 MB, walks of trees 2.0 to 2.9, nested choices 2.7. The JIT engine takes 1.0 to 1.3 MB of that, most of it LLVM's tables
of the processor, and the IR, which TVM keeps, the rest; machine code is 20 to 200 KB. TVM frees none of it before the function, and to
link an object file in its place would need a linker on the user's computer."""
NAME = "run"  # of every function here: methods of other names share them too


class Code:
    """Machine code of one function, to be called with its arguments. It is freed with the last model that has it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.held = module[NAME]
        """The function as it is called with Python's lock held: for what is done before another thread could make use of the lock."""
        self.held.release_gil = False
        self.free = module[NAME]
        """The function that frees Python's lock meanwhile. To be called by `run_free` alone."""
        self.bytes = ENGINE + IR * len(module.inspect_source("ll"))

    def __call__(self, *arguments: Any) -> Any:
        return run_free(self.free, self.held, arguments)


_alive: WeakValueDictionary[tuple[Machine, Any], Code] = WeakValueDictionary()
_recent: OrderedDict[tuple[Machine, Any], Code] = OrderedDict()  # the one used last is last


@building
def compiled(function: Any, machine: Machine) -> Code:
    """The code of a TIR function, compiled unless a model or the cache has it.

    Functions are the same where their structure is: names do not count, every number does to the last bit (-0.0 is not 0.0).
    Finding out takes about 1 ms, for which compiling needs 100 to 1,000.
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


atexit.register(close)  # before what tvm_ffi registered when it was imported: the last comes first
