"""Describes the machine on which figures were measured."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512vbmi", "avx512_bf16", "amx_tile", "asimd", "sve")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS", "POLARS_MAX_THREADS")


def with_one_thread(arguments: Sequence[str]) -> None:
    """Start `python -m …` again unless every library has been told to use one thread: they read it when they are imported."""
    if any(os.environ.get(name) != "1" for name in THREADS):
        os.execve(sys.executable, [sys.executable, "-m", *arguments], {**os.environ, **dict.fromkeys(THREADS, "1")})


@functools.cache
def name() -> str:
    """LLVM's name of the processor, such as znver5: the folder of this machine's results. Without TVM that of its instruction set."""
    try:
        import tvm
    except ImportError:
        return platform.machine()
    return str(tvm.target.codegen.llvm_get_system_cpu())


def blas() -> list[str]:
    """The kernels of each BLAS that is loaded, such as "openblas SkylakeX". Empty where nothing tells."""
    try:
        import scipy.linalg  # noqa: F401  (loads NumPy's BLAS and SciPy's)
        import threadpoolctl
    except ImportError:
        return []
    loaded = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return sorted({f"{pool['internal_api']} {pool.get('architecture', '')}".strip() for pool in loaded})


def describe() -> dict[str, Any]:
    """Processor, memory, system, load, time and the commit of this tree. A busy machine shows in `load_before`. Results that other
    benchmarks have just written are no uncommitted change."""
    processor = _read("/proc/cpuinfo")
    flags = set((re.search(r"^(?:flags|Features)\s*:(.*)$", processor, re.M) or ["", ""])[1].split())
    return {
        "processor": (re.search(r"^model name\s*:\s*(.*)$", processor, re.M) or ["", platform.processor()])[1],
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "blas": blas(),
        "load_before": os.getloadavg(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude)results")),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
