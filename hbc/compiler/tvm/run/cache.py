"""Compiled code, shared in this process by all methods and models whose functions are the same but for the data passed to them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi

from hbc.compiler.tvm.run.targets import Machine, compile_module

CAPACITY = 256  # compiled functions, of 20 to 200 KB each
NAME = "run"  # of every function here: methods of other names share them too


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    module: Any = None


_entries: OrderedDict[tuple[Machine, Any], _Entry] = OrderedDict()  # the one used last is last
_lock = threading.Lock()


def compiled(function: Any, machine: Machine) -> tuple[Any, Any]:
    """The module of a TIR function, and the function in it. Two threads that ask for the same one compile it once.

    Functions are the same where their structure is: names do not count, every number does to the last bit (-0.0 is not 0.0).
    Finding out takes about 1 ms, for which compiling needs 100 to 1,000.
    """
    function = function.with_attr("global_symbol", NAME)
    key = machine, tvm_ffi.StructuralKey(function)  # type: ignore[call-arg]
    with _lock:
        entry = _entries.setdefault(key, _Entry())
        _entries.move_to_end(key)
        while len(_entries) > CAPACITY:
            _entries.popitem(last=False)
    with entry.lock:
        if entry.module is None:
            entry.module = compile_module({NAME: function}, machine)
        return entry.module, entry.module[NAME]


def _after_fork() -> None:
    # Another thread of the parent may have been compiling: its locks would stay locked in the child for ever.
    global _lock
    _lock = threading.Lock()
    for entry in list(_entries.values()):
        entry.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
