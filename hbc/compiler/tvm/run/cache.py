"""The cache of compiled code. The methods and models of this process share the code of functions that differ only in their data, and the
next process finds it on disk."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import tvm_ffi

from hbc.cache.identity import environment
from hbc.cache.store import store
from hbc.compiler.tvm.run.code import NAME, Code, Unloaded, load_library
from hbc.compiler.tvm.run.entry import SYMBOL, entry
from hbc.compiler.tvm.run.llvm_ir import object_of, with_aligned_arrays, with_own_workspace
from hbc.compiler.tvm.run.targets import Machine, compile_module
from hbc.linker.elf import LinkError, read_object
from hbc.linker.shared_library import shared_library
from hbc.process import building, shielded

CAPACITY = 64 << 20
"""The most bytes of code to keep for later models: in a search, models often differ only in data. The code used last is always kept."""
ENGINE, IR = 1_250_000, 5
"""An estimate of the bytes that a function's code takes where it is not linked: ENGINE, and IR for each character of its LLVM IR as text.

Measured with mallinfo2: a chain of 5 operators takes 1.4 MB, walks of trees 2.0 to 2.9, nested choices 2.7. TVM's JIT engine takes 1.0 to
1.3 MB of that, most of it LLVM's tables of the processor. The rest is the IR, which TVM keeps. A linked library takes 20 to 200 KB."""
EXPORTED = (f"__tvm_ffi_{NAME}", SYMBOL, "__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace")
"""What is looked for in a library: the function, the entry from Python, and two pointers that TVM fills in, which only functions with a
workspace have."""

_alive: WeakValueDictionary[tuple[Machine, Any], Code] = WeakValueDictionary()
_recent: OrderedDict[tuple[Machine, Any], Code] = OrderedDict()  # the one used last is last


@building
def compiled(function: Any, machine: Machine) -> Code:
    """The code of a TIR function. It is compiled unless a model, this process's cache or the one on disk has it.

    Functions are the same where their structure is: names do not count, every number does to the last bit (-0.0 is not 0.0).
    Finding out takes about 1 ms, for which compiling needs 100 to 1,000.
    """
    function = function.with_attr("global_symbol", NAME)
    key = machine, tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]
    code = _alive.get(key)
    if code is None:
        code = _alive[key] = _linked(function, machine) if machine.links else _in_memory(_compiled(function, machine))
    _recent[key] = code
    _recent.move_to_end(key)
    size = sum(code.bytes for code in _recent.values())
    while size > CAPACITY and len(_recent) > 1:
        size -= _recent.popitem(last=False)[1].bytes
    return code


def _linked(function: Any, machine: Machine) -> Code:
    """The function's code from the cache on disk, or compiled, linked and put there.

    The key is TVM's structural hash: 64 bits, the same in every process, with different values for 0.0 and -0.0. Two of a million functions
    share one with a chance of 3 in 100 million.
    """
    key = _key(function, machine)
    library = _found(key)
    if library is not None:
        return load_library(library, found=True)
    module = _compiled(function, machine)
    try:
        library = _library(module)
    except LinkError:
        return _in_memory(module)
    _keep(key, library)
    return load_library(library)


@building
def compiled_for_elsewhere(function: Any, machine: Machine) -> Code:
    """The code of a TIR function for another computer: found in the cache on disk, or compiled, but not loaded. Raises LinkError."""
    function = function.with_attr("global_symbol", NAME)
    key = _key(function, machine)
    library = _found(key)
    if library is None:
        library = _library(_compiled(function, machine))
        _keep(key, library)
    return Unloaded(library)


def _key(function: Any, machine: Machine) -> str:
    """The key of a function in the cache on disk."""
    facts = (environment(), machine.options, tvm_ffi.structural_hash(function))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _found(key: str) -> bytes | None:
    kept = store()
    found = kept and kept.find("function", key)
    return kept.get(found["code"]) if kept and found else None


def _keep(key: str, library: bytes) -> None:
    if kept := store():
        kept.refer("function", key, {"code": kept.put(library)})


def _compiled(function: Any, machine: Machine) -> Any:
    """TVM's module of a function."""
    return shielded(lambda: compile_module({NAME: function}, machine))


def _library(module: Any) -> bytes:
    """A compiled function as a shared library. Raises LinkError.

    TVM's JIT, which makes code in memory instead, takes as long (0.3 s for 500 trees), and nothing of it can be kept.
    """
    text = with_own_workspace(with_aligned_arrays(shielded(lambda: str(module.inspect_source("ll")))))
    code = object_of(text + entry())
    defined = {symbol.name for symbol in read_object(code).symbols}
    return shared_library(code, [name for name in EXPORTED if name in defined])


def _in_memory(module: Any) -> Code:
    """The code of a compiled function by TVM's JIT, or for a GPU."""
    return Code(module, ENGINE + IR * len(module.inspect_source("ll")))
