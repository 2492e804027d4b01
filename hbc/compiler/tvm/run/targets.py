"""The processors that code is compiled for, and the compilation of TIR to machine code or CUDA."""

from __future__ import annotations

import math
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import count as count_from
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import compilation_pipeline

from hbc.compiler.tvm.nest.schedule import Schedule, schedule_of
from hbc.compiler.tvm.run.card import why_none
from hbc.compiler.tvm.run.workspace import with_one_workspace
from hbc.compiler.tvm.tir.dialect import Dialect
from hbc.errors import BackendUnavailableError, InvalidInputError
from hbc.lazy import cached_property, record
from hbc.process import temporary_folder

PIPELINE = "hbc"
CUDA_ARCH = "sm_90"
LEAST_ARCH = 80  # of a GPU on which a block may have 96 KB of shared memory (sm_75 has 64 in all)
TUNING = (
    *("64bit", "32bit", "16bit", "x87", "cx8", "nopl", "tuning", "fast", "slow", "prefer", "no-", "use-", "allow-light"),
    *("idiv", "sbb", "branch", "macrofusion", "false-deps", "vzeroupper", "lea-", "inc-dec", "pad-short", "ermsb", "fsrm"),
)
"""Prefixes of the LLVM features that only steer the choice of instructions."""


def _in_one_workspace(function: Any, _module: Any, _context: Any) -> Any:
    """A function for a CPU with its large arrays in one piece of memory."""
    return function if str(function.attrs["target"].kind) == "cuda" else with_one_workspace(function)


def _with_ramps(function: Any, _module: Any, _context: Any) -> Any:
    """A function for a CPU whose vectors of integers `0 + x` are `x`.

    FlattenBuffer begins an index with 0. TVM reads a vector at once if its index is a ramp, and number by number if it is 0 + ramp, so that
    LLVM had to make vectors of numbers again: a scan of 20 trees had 107,000 lines of IR, which took 2.8 s (Zen 3). Now it has 12,000, and
    takes 1.1 s. Functions for CUDA stay as they are: a GPU can read a vector only at a multiple of its size.
    """
    if str(function.attrs["target"].kind) == "cuda":
        return function

    def without_zero(sum_: Any) -> Any:
        zero = sum_.a
        is_zero = isinstance(zero, tirx.Broadcast) and isinstance(zero.value, tirx.IntImm) and zero.value.value == 0
        return sum_.b if is_zero else sum_

    return tvm_ffi.structural_map(function, (tirx.Add, without_zero))


CHOICE = "hbc.choice"
"""The function that is called in the place of a choice. No code is made for it: the choices are back before LLVM sees the calls."""


def _calls_for_choices(function: Any, _module: Any, _context: Any) -> Any:
    """A function whose choices (`Select`) are calls, for passes that treat calls and choices alike. Those of a constant stay."""

    def call_for(choice: Any) -> Any:
        if isinstance(choice.condition, tirx.IntImm):
            return choice
        return tirx.call_pure_extern(choice.ty.dtype, CHOICE, choice.condition, choice.true_value, choice.false_value)

    return tvm_ffi.structural_map(function, (tirx.Select, call_for))


def _choices_for_calls(function: Any, _module: Any, _context: Any) -> Any:
    """The function with the choices that `_calls_for_choices` took away."""

    def choice_for(call: Any) -> Any:
        name, *operands = call.args if len(call.args) == 4 else [None]
        return tirx.Select(*operands) if isinstance(name, tvm.ir.StringImm) and name.value == CHOICE else call

    return tvm_ffi.structural_map(function, (tvm.ir.Call, choice_for))


def without_choices(transform: Any) -> list[Any]:
    """A pass of TVM that sees no choices, with the passes before and after it that take them away and give them back.

    FlattenBuffer and LowerIntrin simplify by what holds where a choice is made one way, and search all that for each expression inside.
    Nothing that hbc writes becomes simpler by it. For a scan on Zen 4 the two take 0.1 in place of 0.5 s, of 1.4 s to compile.
    """
    before, after = (tvm.tirx.transform.prim_func_pass(each, opt_level=0) for each in (_calls_for_choices, _choices_for_calls))
    return [before, transform, after]


def _with_one_message(function: Any, _module: Any, _context: Any) -> Any:
    """A function whose tests of its arguments all have one message. None of hbc's calls fails one of them.

    LLVM then writes the code that fails once, in place of some 35 times: the machine code takes a tenth less time to write (16 functions,
    Zen 3: 4.23 instead of 4.75 s).
    """
    kind = tvm.ir.StringImm("TypeError")
    message = [tvm.ir.StringImm("arguments of other types than those of the compiled function")]

    def plain(test: Any) -> Any:
        return tirx.AssertStmt(test.condition, kind, message)

    return tvm_ffi.structural_map(function, (tirx.AssertStmt, plain))


def first_passes() -> list[Any]:
    """The passes that make buffers of one axis, and vectors."""
    return [
        *without_choices(tirx.transform.FlattenBuffer()),
        tirx.transform.VectorizeLoop(True),
        tvm.tirx.transform.prim_func_pass(_with_ramps, opt_level=0),
        tirx.transform.VerifyMemory(),
    ]


def _pipeline() -> Any:
    """The passes that the functions of hbc need. Those that simplify are left out, since their rules hold for real numbers but not for
    floats: `x - x` becomes 0, `not a < b` becomes `b <= a`. LLVM simplifies anyway, by the rules of IEEE 754."""

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower(mod: Any, _context: Any) -> Any:
        cuda = any(str(function.attrs["target"].kind) == "cuda" for function in mod.functions.values())
        passes = [
            *first_passes(),
            tvm.tirx.transform.prim_func_pass(_in_one_workspace, opt_level=0),
            tirx.transform.AnnotateEntryFunc(),
            tirx.transform.SplitHostDevice(),
            tirx.transform.MakePackedAPI(),
            # Exported functions for CUDA are called by others, to whom TVM's messages say which argument is wrong.
            *([] if cuda else [tvm.tirx.transform.prim_func_pass(_with_one_message, opt_level=0)]),
        ]
        return tvm.ir.transform.Sequential(passes)(mod)

    def finish_host() -> Any:
        return tvm.ir.transform.Sequential([tirx.transform.LowerTVMBuiltin(), *without_choices(tirx.transform.LowerIntrin())])

    def finish_device() -> Any:
        return tvm.ir.transform.Sequential([tirx.transform.LowerWarpMemory(), *without_choices(tirx.transform.LowerIntrin())])

    return lower, finish_host, finish_device


compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)


@record
class Machine:
    """A processor to compile for. options: the items of TVM's target dict. cuda: whether it is a GPU. number: which GPU of the computer."""

    options: tuple[tuple[str, Any], ...]
    cuda: bool = False
    number: int = 0

    @cached_property
    def target(self) -> Any:
        """TVM's target object."""
        return tvm.target.Target({key: list(value) if isinstance(value, tuple) else value for key, value in self.options})

    def at_level(self, level: int) -> Machine:
        """The machine at one of LLVM's levels of optimization (TVM's own is 3). A GPU, or a target that names a level, stays as it is."""
        return self if self.cuda else Machine(tuple(sorted({"opt-level": level, **dict(self.options)}.items())))

    @property
    def plain_loops(self) -> Machine:
        """The machine without LLVM's search for the cheapest addresses in loops (loop strength reduction), if it is of x86-64.

        For methods of few values (`Plan.few_values`) the search is half of the time to write machine code, and a fifth of all. Without it
        19 models took 0.97 times as long for one row and for many (0.87 to 1.08, Zen 3). Searches, deep trees and quantiles need it.
        """
        if not self.x86:
            return self
        options = dict(self.options)
        return Machine(tuple(sorted({**options, "cl-opt": (*options.get("cl-opt", ()), "-disable-lsr=true")}.items())))

    @property
    def rolled_loops(self) -> Machine:
        """The machine, where it is a Zen 3 as a Zen 2, whose loops LLVM unrolls less.

        LLVM's table says that Zen 3 holds loops of 4,096 operations, for which LLVM unrolls nearly every loop eight times. Trees gain
        nothing by it: without, LLVM takes a quarter less time (rows of 1 to 3,000, six ensembles: 0.97 to 1.03 times as long a call, one
        of 100 trees 0.75 for one row and 1.10 for nine). k-means would take 1.4 times as long. LLVM's table for Zen 4 is of this kind
        too, but the times there are not measured.
        """
        options = dict(self.options)
        return Machine(tuple(sorted({**options, "mcpu": "znver2"}.items()))) if self.processor == "znver3" else self

    @property
    def schedule(self) -> Schedule:
        """The loops of functions on this processor."""
        return schedule_of(self.cuda)

    @property
    def arch(self) -> str:
        """The architecture of a GPU, such as "sm_90"."""
        return str(dict(self.options).get("arch", CUDA_ARCH))

    @property
    def processor(self) -> str:
        """LLVM's name of a CPU, such as "znver5"; "" if the target names none."""
        return str(dict(self.options).get("mcpu", ""))

    @property
    def shares(self) -> bool:
        """Whether a block of a GPU may have as much shared memory as `GpuTiles` takes."""
        number = re.match(r"sm_(\d+)", self.arch)
        return self.cuda and number is not None and int(number[1]) >= LEAST_ARCH

    @property
    def links(self) -> bool:
        """Whether its code can become a shared library here (hbc/linker knows ELF for two processors) that this computer loads."""
        return not self.cuda and sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

    def has(self, feature: str) -> bool:
        """Whether a CPU has a feature by LLVM's name, such as "avx2". False for a GPU."""
        return not self.cuda and bool(tvm.target.codegen.llvm_cpu_has_features(feature, self.target))

    @cached_property
    def triple(self) -> str:
        """LLVM's name of a CPU's kind and system, such as "x86_64-unknown-linux-gnu"."""
        return str(dict(self.options).get("mtriple") or tvm.target.codegen.llvm_get_system_triple())

    @property
    def x86(self) -> bool:
        """Whether it is a CPU of Intel's and AMD's kind."""
        return not self.cuda and self.triple.startswith(("x86_64", "i686", "amd64"))

    @cached_property
    def dialect(self) -> Dialect:
        """The instructions that generated code may use."""
        if self.cuda:
            return Dialect(llvm=False)
        if not self.x86:
            arm = self.triple.startswith(("aarch64", "arm64"))
            neon = arm and self.has("neon")
            return Dialect(llvm=True, fused=arm, byte_masks=True, byte_lookup=neon, neon=neon)
        # Without these two, AVX-512 (Xeon Phi) has no compares of bytes and no such instructions for 32 bytes.
        wide = self.has("avx512bw") and self.has("avx512vl")
        # Zen 4 does 512 bits in two halves, and compares them into masks in half of its pipes: AVX2's compares are twice as fast.
        halves = self.processor == "znver4" and wide
        return Dialect(
            llvm=True,
            fused=wide or self.has("fma"),
            wide=wide,
            byte_permute=self.has("avx512vbmi"),
            byte_lookup=self.has("avx2"),
            byte_masks=halves or not wide,
            quick_walks=self.processor == "znver5" and wide,
        )

    @cached_property
    def missing(self) -> str | None:
        """Why this computer cannot run the code; None if it can."""
        if self.cuda:
            return _missing_gpu(self.number)
        host = host_machine()
        if self == host:
            return None
        features = set(tvm.target.codegen.llvm_get_cpu_features(self.target))
        own = set(tvm.target.codegen.llvm_get_cpu_features(host.target))
        triple = dict(self.options).get("mtriple")
        if triple is not None and not str(triple).startswith(tvm.target.codegen.llvm_get_system_triple().split("-")[0]):
            return f"the target's instruction set is that of {triple}"
        lacking = sorted(str(feature) for feature in features - own if not _tuning(str(feature)))
        return f"this computer's processor lacks {', '.join(lacking[:8])}" if lacking else None


def _missing_gpu(number: int) -> str | None:
    """Why there is no GPU of a number; None if there is one."""
    if tvm.runtime.cuda(number).exist:
        return None
    count = next(i for i in count_from(0) if not tvm.runtime.cuda(i).exist)
    if not count:
        reason = why_none()
        return "this computer has no CUDA device that TVM can use" + (f": {reason}" if reason else "")
    return f"this computer has {count} CUDA device{'s' * (count > 1)} that TVM can use, and none is 'cuda:{number}'"


def _arch(number: int) -> str:
    """The architecture of a GPU of this computer, such as "sm_90"; the usual one if there is no such GPU."""
    card = tvm.runtime.cuda(number)
    return f"sm_{card.compute_version.replace('.', '')}" if card.exist else CUDA_ARCH


def _tuning(feature: str) -> bool:
    """Whether an LLVM feature only steers the choice of instructions."""
    return feature.startswith(TUNING)


@cache
def host_machine() -> Machine:
    """The processor of this computer. It is always the same object, which asks LLVM once for its instructions. That takes 0.6 ms
    (Zen 3), and was done for each model."""
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    # hbc writes vector instructions where they gain. LLVM would try the other loops, which doubles the time of compilation.
    options: dict[str, Any] = {"kind": "llvm", "mcpu": cpu, "cl-opt": ("-vectorize-loops=false",)}
    if tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"):
        # LLVM would load the nodes of interleaved walks with gathers, which take three times as long (docs/tree-kernels.md §4).
        # For Intel's processors it would store vectors of 64 bytes in halves, and then not keep them in registers: scans of 700 leaves in
        # lockstep would take 0.46 instead of 0.37 µs a row.
        options["mattr"] = ("+prefer-no-gather", "-prefer-256-bit")
    return Machine(tuple(sorted(options.items())))


def machine(device: str, target: Mapping[str, Any] | None) -> Machine:
    """The machine for the arguments of `hbc.convert(device=, target=)`.

    Raises BackendUnavailableError for a device other than cpu and cuda, InvalidInputError for a kind of target other than llvm and cuda,
    and for llvm on a GPU.
    """
    name, _, number_of_gpu = device.lower().partition(":")
    if name in ("cuda", "gpu"):
        number = min(int(number_of_gpu or 0), 2**31 - 1)  # TVM takes 32 bits
        options = {"kind": "cuda", "arch": _arch(number), **(target or {})}
        if options["kind"] != "cuda":
            raise _wrong_kind(options["kind"], "'cuda'", '{"kind": "cuda", "arch": "sm_90"}')
        return Machine(tuple(sorted(_frozen(options).items())), cuda=True, number=number)
    if device.lower() != "cpu":
        raise BackendUnavailableError(backend="tvm", reason=f"it has no device {device!r}, only 'cpu' and 'cuda'")
    if target is None:
        return host_machine()
    options = {"kind": "llvm", **target}
    if options["kind"] == "cuda":
        return Machine(tuple(sorted(_frozen(options).items())), cuda=True)
    if options["kind"] != "llvm":
        raise _wrong_kind(options["kind"], "'llvm' or 'cuda'", '{"kind": "llvm", "mcpu": "haswell"}')
    return Machine(tuple(sorted(_frozen(options).items())))


def _wrong_kind(kind: Any, expected: str, example: str) -> InvalidInputError:
    """example: a dict as Python reads it, and also JSON, since the command line takes that."""
    advice = f"A target is a dict such as {example}."
    return InvalidInputError(found=f"kind {kind!r}", expected=expected, where="target", advice=advice)


def _frozen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with lists as tuples, so that they can be hashed."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def compile_module(functions: Mapping[str, Any], where: Machine) -> Any:
    """Compile TIR functions. Returns a TVM module with an entry for each function.

    Only one thread at a time may call it, through `process.shielded`: LLVM's options are global while TVM compiles.
    """
    module = tvm.IRModule({name: _exact_literals(f) if where.cuda else f for name, f in functions.items()})
    with _exact_cuda() if where.cuda else nullcontext():
        return tvm.tirx.build(module, target=where.target, pipeline=PIPELINE)


def _exact_literals(function: Any) -> Any:
    """A function for CUDA whose float64 constants are exact.

    TVM writes them into CUDA C with 15 places after the point: 2^-40 became 0.000000000000909, and pow(x, 1/3) was wrong from the
    thirteenth digit on. Those that change so are written as the integers of their bits.
    """

    def exact(constant: Any) -> Any:
        value = constant.value
        if constant.ty.dtype != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
            return constant
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))

    return tvm_ffi.structural_map(function, (tirx.FloatImm, exact))


CALLBACK = "tvm_callback_cuda_compile"


@contextmanager
def _exact_cuda() -> Iterator[None]:
    """In this context TVM calls CUDA's compiler by `compile_cuda`. TVM's own callback asks for fast arithmetic, in which NaN and exact
    comparisons are lost. The callback of before is put back afterwards, since other users of TVM in this process may have chosen it."""
    usual = tvm.get_global_func(CALLBACK, allow_missing=True)
    tvm.register_global_func(CALLBACK, compile_cuda, override=True)
    try:
        yield
    finally:
        if usual is not None:
            tvm.register_global_func(CALLBACK, usual, override=True)


def compile_cuda(code: str) -> bytes:
    """A fat binary of CUDA code by nvcc, in IEEE arithmetic: no contraction, no approximations, subnormals kept."""
    target = tvm.target.Target.current(allow_none=True)
    arch = str(target.attrs.get("arch", CUDA_ARCH)) if target is not None else CUDA_ARCH
    return nvcc(code, arch)


def nvcc(code: str, arch: str) -> bytes:
    """A fat binary of CUDA code for one architecture (such as `sm_90`), with PTX for later ones.

    Raises BackendUnavailableError if there is no nvcc on the PATH, or if it does not know the architecture, RuntimeError if it fails.
    """
    number = arch.removeprefix("sm_")
    with temporary_folder() as folder:
        source, binary = folder / "kernels.cu", folder / "kernels.fatbin"
        source.write_text(code)
        versions = ["-gencode", f"arch=compute_{number},code=[sm_{number},compute_{number}]"]
        command = ["nvcc", "--fatbin", "-O3", "--fmad=false", *versions, "-o", str(binary), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BackendUnavailableError(
                backend="tvm", reason="device 'cuda' needs NVIDIA's compiler nvcc on the PATH"
            ) from None
        if "Unsupported gpu architecture" in done.stderr:
            raise BackendUnavailableError(
                backend="tvm",
                reason=f"this computer's nvcc does not know the GPU {arch!r} of the target",
                advice="`nvcc --list-gpu-code` prints those that it knows; newer GPUs need a newer CUDA.",
            )
        if done.returncode:
            raise RuntimeError(f"nvcc failed:\n{done.stderr}\n{code}")
        return binary.read_bytes()
