"""The machine that `hbc tune` measures on: the processor, and for a GPU its kind."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import re
from functools import cache
from pathlib import Path

from hbc.process import cpus

DRIVER = "libcuda.so.1"
MAJOR, MINOR = 75, 76
"""Numbers of the driver's attributes of a GPU: the two parts of its compute capability."""


def this_machine(device: str) -> str:
    """The processor as `processor` says it. For the device of a GPU, also the GPU as `gpu` says it: two of one kind are the same."""
    name, _, number = device.partition(":")
    return processor() if name == "cpu" else f"{processor()}, {gpu(int(number or 0))}"


@cache
def processor() -> str:
    """The processor's name, a hash of its instruction sets, and the number of CPUs that this process may use."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    facts = [(re.search(rf"^{name}\s*:\s*(.*)$", text, re.M) or ["", ""])[1] for name in ("model name", "cpu family", "model")]
    flags = (re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M) or ["", ""])[1]
    able = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:8]
    return f"{platform.machine()} {' '.join(facts) or platform.processor()}, {able}, {cpus()} CPUs"


@cache
def gpu(number: int) -> str:
    """The kind of a GPU of this computer, such as "NVIDIA H200 of compute capability 9.0"; "no GPU" if there is none of this number. The
    driver is asked, since it is there for every backend."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return "no GPU"
    device, name, major, minor = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), number)
        or driver.cuDeviceGetName(name, len(name), device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    )
    return "no GPU" if failed else f"{name.value.decode()} of compute capability {major.value}.{minor.value}"
