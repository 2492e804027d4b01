"""Modules of LLVM's IR, which TVM gives as text: their memory, their debug information, and their object files."""

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

ALLOCATED = re.compile(r" = (?:tail )?call ptr %\S+\(i32 1, i32 %?\w+, i64 (\d+), i32 \d+, i32 \d+\)")
"""A call that allocates so many bytes of workspace."""

BACKEND = re.compile(r"(?m)^  (%\S+) = load ptr, ptr @__TVMBackend(Alloc|Free)Workspace, [^\n]*$")
"""TVM's function that allocates workspace, or frees it, as code reads it before a call."""

LARGEST_OWN, PAGE = 1 << 18, 1 << 12
"""The most bytes of workspace that a library keeps for itself, and what they begin at a multiple of."""

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


def with_own_workspace(text: str) -> str:
    """The module with memory of its own for the workspace of one call at a time. Other calls meanwhile get theirs from TVM, as all calls
    do where the workspace is large, and in code that has none.

    TVM's two calls take 50 ns, these 5: one row of 500 trees of 31 leaves takes 928 in place of 973 ns (Zen 4). On the stack it would take
    no time, but threads may have less of it than code needs, and nothing would tell. Pages that no call touches take no memory.
    """
    sizes = [size for size in map(int, ALLOCATED.findall(text)) if size <= LARGEST_OWN]
    if not sizes:
        return text
    return (
        BACKEND.sub(r"  \1 = getelementptr i8, ptr @hbc_\2Workspace, i64 0", text)
        + f"""
@hbc_workspace = internal global [{max(sizes)} x i8] zeroinitializer, align {PAGE}
@hbc_workspace_taken = internal global i64 0, align {ALIGNED}

define internal ptr @hbc_AllocWorkspace(i32 %kind, i32 %id, i64 %bytes, i32 %code, i32 %bits) nounwind {{
  %fits = icmp ule i64 %bytes, {max(sizes)}
  br i1 %fits, label %try, label %other
try:
  %taken = atomicrmw xchg ptr @hbc_workspace_taken, i64 1 acquire, align 8
  %free = icmp eq i64 %taken, 0
  br i1 %free, label %own, label %other
own:
  ret ptr @hbc_workspace
other:
  %allocate = load ptr, ptr @__TVMBackendAllocWorkspace, align 8
  %place = tail call ptr %allocate(i32 %kind, i32 %id, i64 %bytes, i32 %code, i32 %bits)
  ret ptr %place
}}

define internal i32 @hbc_FreeWorkspace(i32 %kind, i32 %id, ptr %place) nounwind {{
  %is.own = icmp eq ptr %place, @hbc_workspace
  br i1 %is.own, label %own, label %other
own:
  store atomic i64 0, ptr @hbc_workspace_taken release, align 8
  ret i32 0
other:
  %free = load ptr, ptr @__TVMBackendFreeWorkspace, align 8
  %result = tail call i32 %free(i32 %kind, i32 %id, ptr %place)
  ret i32 %result
}}
"""
    )


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
