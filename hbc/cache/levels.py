"""The levels of processors that compiled code in a file is named after, and which of them this processor has."""

from __future__ import annotations

import platform
import sys

from hbc.cache.identity import processor

_V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"
LEVELS = {
    "x86-64-v4": ("x86_64", _V4),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v2": ("x86_64", _V2),
    "aarch64": ("aarch64", ""),
}
"""Level, the best of a kind first → (the kind of processor, the features that it must have by their names in /proc/cpuinfo). The levels of
x86-64 are those of its System V ABI. The code is for Linux."""


def own_levels() -> tuple[str, ...]:
    """The levels that this computer's processor has, the best first. Empty where the system is not Linux, or Python is of 32 bits."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return ()
    features = set(processor()[1].split())
    return tuple(
        level for level, (kind, needed) in LEVELS.items() if kind == platform.machine() and features.issuperset(needed.split())
    )
