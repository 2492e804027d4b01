"""Runs code for AVX-512 on a processor without it, for tests.

In `emulated("znver4")`, hbc takes this computer's processor for Zen 4. The TIR is that for Zen 4. LLVM makes machine code of this
processor from it: vectors of 64 bytes become pairs of 32. Only the instructions that TIR asks for by name have no such form. They call
functions of avx512_on_cpu.cpp. On a processor with AVX-512 the code runs as it is.

    with emulated("znver4"):
        compiled = hbc.convert(model, "tvm")
        compiled.predict(X)

`HBC_PROCESSOR=znver4 pytest …` does this to all tests.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

import cuda_on_cpu
from cuda_on_cpu import compiled

from hbc.compiler.tvm import compiler
from hbc.compiler.tvm.run import cache, targets
from hbc.compiler.tvm.run.code import NAME, Code, load_library
from hbc.compiler.tvm.run.targets import Machine, compile_module, host_machine
from hbc.process import shielded

HERE = Path(__file__).parent

INTRINSIC = re.compile(r"(?m)^declare (.+) @llvm\.x86\.avx512\.([\w.]+)\((.*)\).*\n")
"""The declaration of an instruction in LLVM's IR: the type of its result, its name, and its operands."""
PROCESSOR = re.compile(r'("target-cpu"="[^"]*")(?: ("target-features"="[^"]*"))?')
"""What a module says of the processor of its functions. Functions that pass vectors to each other must say the same."""


def cannot_run() -> str | None:
    """Why code for AVX-512 cannot be run here; None if it can."""
    return cuda_on_cpu.cannot_run() if platform.machine() == "x86_64" else "the emulator of AVX-512 is for x86-64"


@functools.cache
def library() -> Any:
    """The functions of avx512_on_cpu.cpp."""
    return ctypes.CDLL(str(compiled("avx512.so", (HERE / "avx512_on_cpu.cpp").read_text(), ("-O2", "-shared"))))


def with_functions(text: str) -> str:
    """A module of LLVM's IR whose instructions of AVX-512 are functions, defined in it: they call those of `library` by their addresses."""
    if not (found := INTRINSIC.findall(text)):
        return text
    processor = PROCESSOR.search(text)
    assert processor is not None
    text = INTRINSIC.sub("", text).replace("@llvm.x86.avx512.", "@avx512.")
    return text + "".join(_function(*each, " ".join(filter(None, processor.groups()))) for each in found)


def _function(result: str, name: str, operands: str, processor: str) -> str:
    """The definition of an instruction as a function."""
    kinds = [operand.removesuffix(" immarg") for operand in operands.split(", ")]
    address = ctypes.cast(library()[name.replace(".", "_")], ctypes.c_void_p).value
    lines = [f"  %p{i} = alloca {kind}, align 64" for i, kind in enumerate([*kinds, result])]
    lines += [f"  store {kind} %{i}, ptr %p{i}, align 64" for i, kind in enumerate(kinds)]
    lines += [
        f"  call void inttoptr (i64 {address} to ptr)({', '.join(f'ptr %p{i}' for i in range(len(kinds) + 1))})",
        f"  %result = load {result}, ptr %p{len(kinds)}, align 64",
        f"  ret {result} %result",
    ]
    parameters = ", ".join(f"{kind} %{i}" for i, kind in enumerate(kinds))
    return "\n".join([f"\ndefine internal {result} @avx512.{name}({parameters}) nounwind {processor} {{", *lines, "}\n"])


@contextmanager
def emulated(processor: str | None = None, always: bool = False) -> Iterator[None]:
    """A context in which hbc runs code for AVX-512 on this computer. Code that is compiled in it is not kept after it.

    processor: what hbc takes this computer's processor for, by LLVM's name: code without a target is then made for it. always: call the
    functions also where the processor has the instructions."""
    missing, linked = Machine.__dict__["missing"], cache._linked
    here = host_machine()
    host = here if processor is None else Machine(tuple(sorted({**dict(here.options), "mcpu": processor}.items())))

    def why_missing(machine: Machine) -> str | None:
        """What `Machine.missing` is of this computer itself."""
        with mock.patch.object(targets, "host_machine", return_value=here):
            return missing.__get__(machine)  # type: ignore[no-any-return]

    def emulates(machine: Machine) -> bool:
        """Whether code of a machine is emulated."""
        named = str(dict(machine.options).get("mtriple", platform.machine()))
        if machine.cuda or not named.startswith(platform.machine()) or not machine.dialect.wide:
            return False
        return always or why_missing(machine) is not None

    def link(function: Any, machine: Machine) -> Code:
        """`cache._linked`, with code for this processor."""
        if not emulates(machine):
            return linked(function, machine)
        level = {key: value for key, value in machine.options if key == "opt-level"}
        own = Machine(tuple(sorted({**dict(here.options), **level}.items())))
        module, object_of = shielded(lambda: compile_module({NAME: function}, own)), cache.object_of
        with mock.patch.object(cache, "object_of", lambda text: object_of(with_functions(text))):
            return load_library(cache._library(module))

    with ExitStack() as stack:
        for place, name, new in (
            (Machine, "missing", property(lambda self: None if emulates(self) else why_missing(self))),
            (targets, "host_machine", lambda: host),
            (compiler, "host_machine", lambda: host),
            (cache, "_linked", link),
            (cache, "_alive", WeakValueDictionary()),
            (cache, "_recent", OrderedDict()),
        ):
            stack.enter_context(mock.patch.object(place, name, new))
        yield
