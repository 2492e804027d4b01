"""Modules of LLVM's IR, which TVM gives as text: their arrays on the stack, their debug information, and their object files."""

from __future__ import annotations

import re

import tvm_ffi

from hbc.compiler.tvm.nest.model_data import ALIGNED
from hbc.process import shielded, temporary_folder

ARRAY = re.compile(r"(?m)^(  %\S+ = alloca .*), align 16(?=,|$)")
"""An array on the stack, as TVM allocates it."""


LOCATION = re.compile(r",? !dbg !\d+")
"""The debug information of an instruction or a function."""

UNCALLED = re.compile(r"(?ms)^define weak [^\n]*@(?:__tvm_ffi_main|__truncsfhf2|__extendhfsf2)\(.*?^}\n")
"""A function that TVM writes into every module of a CPU: another name of its first one, and two conversions of float16."""

HALF = re.compile(r"(?m)^(?!declare ).*\bhalf\b")
"""Code with numbers of float16."""


def with_aligned_arrays(text: str) -> str:
    """The module with its arrays on the stack at the beginnings of cache lines.

    TVM puts them at multiples of 16 bytes, of which one process in two has others than the next. Vectors of 32 bytes then lie across cache
    lines, and some across pages. A library of LightGBM 500 × 31 for AVX2 took 0.50 to 0.71 µs a row for calls of 8 rows, and now takes 0.49
    in every process; hbc itself 0.63 or 0.72, now 0.62. With AVX-512 there is no difference. The text takes 15 ms to make and read.
    """
    return ARRAY.sub(rf"\1, align {ALIGNED}", text)


def without_debug_information(text: str) -> str:
    """The module without the debug information that TVM writes. The machine code stays the same, byte for byte, and takes up to a quarter
    less time (0.30 instead of 0.41 s for 10 trees of 3 classes, of which 6 ms are spent here; Zen 3). hbc's linker drops it anyway."""
    lines = LOCATION.sub("", text).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("    #dbg_", "!llvm.dbg.cu")))


def without_uncalled(text: str) -> str:
    """The module without functions of TVM's that nothing calls. They take 6 % of the time to write machine code (24 models, Zen 3)."""
    less = UNCALLED.sub("", text)
    return text if HALF.search(less) else less  # LLVM would write calls of the two


def object_of(text: str) -> bytes:
    """The object file of a module, without debug information and what nothing calls. No optimization runs a second time."""
    with temporary_folder() as folder:
        source, target = folder / "code.ll", folder / "code.o"
        source.write_text(without_uncalled(without_debug_information(text)))

        def compile_object() -> None:
            module = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(str(source), "ll")
            module.write_to_file(str(target), "o")

        shielded(compile_object)
        return target.read_bytes()
