"""The processors that libraries are compiled for, and the test, in the library itself, whether it runs on such a one.

A library compiled for a newer processor would end with an illegal instruction on an older one. So each function first looks into a word
that says whether the processor has been asked, and what it has said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from hbc.compiler.tvm.run.targets import Machine, host_machine
from hbc.errors import InvalidInputError

X86_64 = {
    "kind": "llvm",
    "mtriple": "x86_64-unknown-linux-gnu",
    "cl-opt": ["-vectorize-loops=false"],
    "mattr": ["+prefer-no-gather", "-prefer-256-bit"],
}
AARCH64 = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu", "cl-opt": ["-vectorize-loops=false"]}
NAMED = {
    **{f"x86-64-v{level}": {**X86_64, "mcpu": f"x86-64-v{level}"} for level in (2, 3, 4)},
    "aarch64": AARCH64,
}
"""Names that `export(target=)` takes for a target of TVM: levels of x86-64 (2: SSE4.2, Nehalem of 2008; 3: AVX2 and FMA, Haswell of 2013
and Zen; 4: AVX-512, Skylake-SP and Zen 4), and any 64-bit ARM."""


def target_named(name: str) -> dict[str, Any]:
    """The target of a name: one of NAMED, or "native" for this computer's own processor. Raises InvalidInputError."""
    if name == "native":
        return {key: list(value) if isinstance(value, tuple) else value for key, value in host_machine().options}
    if name not in NAMED:
        raise InvalidInputError(
            found=repr(name),
            expected=f"one of {', '.join(map(repr, (*NAMED, 'native')))}",
            where="target",
            advice='A dict names any other of TVM\'s targets: {"kind": "llvm", "mtriple": …, "mcpu": …}.',
        )
    return dict(NAMED[name])


def usual_target() -> dict[str, Any]:
    """What a library is compiled for unless the caller says: x86-64-v3, or on another kind of computer any processor of that kind.

    This computer's own processor would be the wrong guess: a library is built on one computer and used on another. AVX2 and FMA are in
    nearly all servers, and without AVX2 the scan of trees has no vectors of bytes.
    """
    triple = str(tvm.target.codegen.llvm_get_system_triple())
    known = {"x86_64": NAMED["x86-64-v3"], "aarch64": AARCH64}
    return dict(known.get(triple.split("-")[0], {"kind": "llvm", "mtriple": triple}))


def described(where: Machine) -> str:
    """The processor in a few words, such as "x86-64-v3 (x86_64-unknown-linux-gnu)"."""
    return f"{where.processor} ({where.triple})" if where.processor else where.triple


ARM_32 = ("arm-", "armv", "armeb", "thumb")
"""The beginnings of the triples of 32-bit ARM. There, scans of trees gave wrong sums (armv7a under qemu: 8 of each 256 rows of LightGBM
500 × 31, at LLVM's levels 0 to 3, with and without NEON). The cause is not known."""
BIG_ENDIAN = (
    "armeb",
    "aarch64_be",
    "mips-",
    "mips64-",
    "powerpc-",
    "powerpc64-",
    "ppc-",
    "ppc64-",
    "s390x",
    "sparc",
    "thumbeb",
)
"""The beginnings of the triples whose numbers begin with their highest byte."""


ATTRIBUTES = "#1000"
"""The name, in LLVM's IR, of the attributes `oldest`: those of the exported functions and of the test, which say whether the library can
run at all."""


def oldest(where: Machine) -> str:
    """The attributes of LLVM's functions that run on every processor of a kind."""
    return f'"target-cpu"="{"x86-64" if where.triple.startswith("x86_64") else "generic"}" "target-features"=""'


CPUID: Mapping[str, tuple[int, int, int]] = {
    "sse3": (1, 2, 0),
    "pclmul": (1, 2, 1),
    "ssse3": (1, 2, 9),
    "fma": (1, 2, 12),
    "cx16": (1, 2, 13),
    "sse4.1": (1, 2, 19),
    "sse4.2": (1, 2, 20),
    "movbe": (1, 2, 22),
    "popcnt": (1, 2, 23),
    "aes": (1, 2, 25),
    "avx": (1, 2, 28),
    "f16c": (1, 2, 29),
    "bmi": (7, 1, 3),
    "avx2": (7, 1, 5),
    "bmi2": (7, 1, 8),
    "avx512f": (7, 1, 16),
    "avx512dq": (7, 1, 17),
    "adx": (7, 1, 19),
    "avx512ifma": (7, 1, 21),
    "avx512cd": (7, 1, 28),
    "avx512bw": (7, 1, 30),
    "avx512vl": (7, 1, 31),
    "avx512vbmi": (7, 2, 1),
    "avx512vbmi2": (7, 2, 6),
    "gfni": (7, 2, 8),
    "vaes": (7, 2, 9),
    "vpclmulqdq": (7, 2, 10),
    "avx512vnni": (7, 2, 11),
    "avx512bitalg": (7, 2, 12),
    "avx512vpopcntdq": (7, 2, 14),
    "sahf": (0x80000001, 2, 0),
    "lzcnt": (0x80000001, 2, 5),
    "sse4a": (0x80000001, 2, 6),
    "xop": (0x80000001, 2, 11),
    "fma4": (0x80000001, 2, 16),
    "tbm": (0x80000001, 2, 21),
}
"""LLVM's features of x86-64 that it may use on its own → where the processor tells of them: leaf of CPUID, register (1: ebx, 2: ecx) and
bit. LLVM uses no other feature unless it is told to."""
HWCAP = {
    "fp-armv8": 0,
    "neon": 1,
    "aes": 3,
    "sha2": 6,
    "crc": 7,
    "lse": 8,
    "fullfp16": 9,
    "rdm": 12,
    "rcpc": 15,
    "dotprod": 20,
    "sve": 22,
}
"""LLVM's features of aarch64 → their bit in Linux's AT_HWCAP."""
OSXSAVE = 27
"""The bit of (1, ecx) that says that the system tells which registers it saves."""


def processor_test(where: Machine) -> str:
    """The function @hbc.runs of a library, in LLVM's IR: whether this processor has what the code was compiled for (i1)."""
    features = [str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(where.target)]
    if where.triple.startswith("x86_64"):
        test = _x86_64(features)
    elif where.triple.startswith("aarch64") and "linux" in where.triple:
        test = _aarch64(features)
    else:
        return "define internal i1 @hbc.runs() nounwind {\n  ret i1 true\n}\n"
    return f"""@hbc.known = internal global i32 0, align 4
define internal i1 @hbc.runs() {ATTRIBUTES} {{
  %known = load atomic i32, ptr @hbc.known monotonic, align 4
  %new = icmp eq i32 %known, 0
  br i1 %new, label %ask, label %answer
ask:
  %has = call i1 @hbc.has()
  %found = select i1 %has, i32 1, i32 2
  store atomic i32 %found, ptr @hbc.known monotonic, align 4
  ret i1 %has
answer:
  %runs = icmp eq i32 %known, 1
  ret i1 %runs
}}
{test}"""


def _x86_64(features: Sequence[str]) -> str:
    masks: dict[tuple[int, int], int] = {}
    for feature in features:
        if feature in CPUID:
            leaf, register, bit = CPUID[feature]
            masks[leaf, register] = masks.get((leaf, register), 0) | 1 << bit
    saved = (0xE6 if "avx512f" in features else 6) if "avx" in features else 0
    if saved:
        masks[1, 2] = masks.get((1, 2), 0) | 1 << OSXSAVE
    blocks = []
    for number, ((leaf, register), mask) in enumerate(sorted(masks.items())):
        blocks.append(f"""  %largest{number} = call i32 @hbc.cpuid(i32 {_signed(leaf & 0x80000000)}, i32 0)
  %told{number} = icmp uge i32 %largest{number}, {_signed(leaf)}
  br i1 %told{number}, label %look{number}, label %no
look{number}:
  %found{number} = call i32 @hbc.cpuid(i32 {_signed(leaf)}, i32 {register})
  %bits{number} = and i32 %found{number}, {_signed(mask)}
  %all{number} = icmp eq i32 %bits{number}, {_signed(mask)}
  br i1 %all{number}, label %next{number}, label %no
next{number}:
""")
    if saved:
        blocks.append(f"""  %both = call {{ i32, i32 }} asm sideeffect "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %registers = extractvalue {{ i32, i32 }} %both, 0
  %kept = and i32 %registers, {saved}
  %saved = icmp eq i32 %kept, {saved}
  br i1 %saved, label %yes, label %no
""")
    else:
        blocks.append("  br label %yes\n")
    return f"""define internal i32 @hbc.cpuid(i32 %leaf, i32 %register) {ATTRIBUTES} {{
  %all = call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid", "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}}"(i32 %leaf, i32 0)
  %a = extractvalue {{ i32, i32, i32, i32 }} %all, 0
  %b = extractvalue {{ i32, i32, i32, i32 }} %all, 1
  %c = extractvalue {{ i32, i32, i32, i32 }} %all, 2
  %first = icmp eq i32 %register, 0
  %second = icmp eq i32 %register, 1
  %other = select i1 %second, i32 %b, i32 %c
  %wanted = select i1 %first, i32 %a, i32 %other
  ret i32 %wanted
}}
define internal i1 @hbc.has() {ATTRIBUTES} {{
{"".join(blocks)}yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def _signed(word: int) -> int:
    """32 bits as a signed number, which is how IR writes them."""
    return word - (1 << 32) if word >> 31 else word


def _aarch64(features: Sequence[str]) -> str:
    mask = sum(1 << bit for feature, bit in HWCAP.items() if feature in features)
    return f"""declare i64 @getauxval(i64)
define internal i1 @hbc.has() {ATTRIBUTES} {{
  %found = call i64 @getauxval(i64 16)
  %bits = and i64 %found, {mask}
  %all = icmp eq i64 %bits, {mask}
  ret i1 %all
}}
"""
