"""Describes the machine on which figures were measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "avx512f", "avx512_vbmi", "avx512_bf16", "amx_tile", "asimd", "sve")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS", "POLARS_MAX_THREADS")


def with_one_thread(module: str) -> None:
    """Start `python -m module` again unless every library has been told to use one thread: they read it when they are imported."""
    if any(os.environ.get(name) != "1" for name in THREADS):
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **dict.fromkeys(THREADS, "1")})


def describe() -> dict[str, Any]:
    """Processor, memory, system, load, time and the commit of this tree. A busy machine shows in `load_before`."""
    processor = _read("/proc/cpuinfo")
    flags = set((re.search(r"^(?:flags|Features)\s*:(.*)$", processor, re.M) or ["", ""])[1].split())
    return {
        "processor": (re.search(r"^model name\s*:\s*(.*)$", processor, re.M) or ["", platform.processor()])[1],
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
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
