"""What compiled code depends on besides the model: this processor, the versions of the compilers, and hbc itself."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path

MODEL = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "CPU implementer",
    "CPU part",
    "CPU variant",
    "CPU revision",
)
"""The lines of /proc/cpuinfo that tell one processor from another, besides its features."""


@cache
def processor() -> tuple[str, str]:
    """(the processor's model, its instruction sets), as the system tells them for its first processor."""
    first = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line == "\n":
                    break
                first += line
    except OSError:
        pass
    pairs = (line.partition(":") for line in first.splitlines())
    lines = {name.strip(): value.strip() for name, colon, value in pairs if colon}
    model = " ".join(lines[name] for name in MODEL if name in lines) or platform.processor()
    features = lines.get("flags", lines.get("Features", ""))
    return f"{platform.machine()} {model}", " ".join(sorted(features.split()))


@cache
def environment() -> str:
    """A digest of what decides on compiled code besides the model and its options: the processor, the versions of Python, numpy and TVM,
    and hbc's own sources. A user who upgrades or edits one of them never meets code of before."""
    found = hashlib.sha256(repr((processor(), sys.version_info[:2], sys.platform, sys.maxsize)).encode())
    for name in sorted(_distributions()):
        found.update(f"\n{name}".encode())
    for path, size, changed in _sources():
        found.update(f"\n{path} {size} {changed}".encode())
    # $HBC_WITHOUT switches off passes of the optimizer.
    found.update(os.environ.get("HBC_WITHOUT", "").encode())
    return found.hexdigest()


@cache
def programs() -> str:
    """A digest of hbc's own programs: the contents of its source files (3.8 MB, 30 ms). Unlike `environment` it is the same on every
    computer with the same hbc."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path, size, _ in _sources():
        found.update(f"\n{path} {size}\n".encode())
        with open(root / path, "rb") as file:
            found.update(file.read())
    return found.hexdigest()


def _distributions() -> list[str]:
    """The folders `apache_tvm-0.27.0.dist-info` and alike of the libraries that make or run code. `importlib.metadata` would take 20 ms to
    import."""
    wanted = ("apache_tvm", "numpy-")
    found = []
    for folder in dict.fromkeys(sys.path):
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        found += [name for name in names if name.startswith(wanted) and name.endswith(".dist-info")]
    return found


def _sources() -> list[tuple[str, int, int]]:
    """(path, bytes, time of the last change) of every source file of hbc's, sorted: 4 ms for 500 files."""
    root = str(Path(__file__).parents[1])
    found, folders = [], [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    state = entry.stat()
                    found.append((entry.path[len(root) + 1 :], state.st_size, state.st_mtime_ns))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return sorted(found)
