"""A GPU of this computer as calls use it: memory, streams and copies, by CUDA's runtime library, which TVM's library for GPUs needs too."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import tvm_ffi

from hbc.errors import DeviceMemoryError
from hbc.ir.types import Array

CUDA = 2
"""DLPack's number for the memory of a GPU."""
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
NO_WAITING = 1
"""cudaStreamNonBlocking: the stream does not wait for the work of other libraries on the default one."""
TO_CARD, FROM_CARD, WITHIN_CARD = 1, 2, 3
MEMORY, NO_DEVICE, OLD_DRIVER = 2, 100, 35
"""Numbers of CUDA's errors: no memory is left, there is no GPU, the driver is missing or too old."""


class CudaError(RuntimeError):
    """A call of CUDA's runtime library failed. code: the number of the error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"CUDA: {text} (error {code})")
        self.code = code


@cache
def runtime() -> Any:
    """CUDA's runtime library; None where there is none. A library that this process has loaded is found by its name."""
    for name in RUNTIMES:
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        found.cudaGetErrorString.restype = ctypes.c_char_p
        return found
    return None


def call(name: str, *arguments: Any) -> None:
    """Call a function of CUDA's runtime library. Raises CudaError."""
    library = runtime()
    code = getattr(library, name)(*arguments)
    if code:
        library.cudaGetLastError()  # else the next call of anyone finds it again
        raise CudaError(code, library.cudaGetErrorString(code).decode())


def why_none() -> str:
    """Why CUDA finds no GPU here, with what to do, as a part of a sentence; "" where it finds one, or nothing is known."""
    if runtime() is None:
        return "CUDA's runtime library (libcudart) is not found: install NVIDIA's driver and CUDA"
    count, own, driver = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    try:
        call("cudaGetDeviceCount", ctypes.byref(count))
    except CudaError as error:
        call("cudaRuntimeGetVersion", ctypes.byref(own))
        call("cudaDriverGetVersion", ctypes.byref(driver))
        if error.code == OLD_DRIVER and driver.value:
            return f"its NVIDIA driver is for CUDA {version(driver.value)}, and CUDA {version(own.value)} is needed: update the driver"
        if error.code == OLD_DRIVER:
            return "no NVIDIA driver is installed"
        if error.code == NO_DEVICE:
            return "its NVIDIA driver sees no GPU ($CUDA_VISIBLE_DEVICES may hide it)"
        return str(error)
    return ""


def version(number: int) -> str:
    """A version of CUDA as people write it: 13000 is "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}"


class AsOnCard:
    """An array of this process as DLPack hands over one that lies on a GPU."""

    def __init__(self, array: Array, number: int) -> None:
        self.array, self.number = array, number

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.number

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # A DLTensor begins with the address of its data. The kind of device follows, and its number.
        device = (ctypes.c_int32 * 2).from_address((pointer(capsule, b"dltensor") or 0) + 8)
        device[0], device[1] = CUDA, self.number
        return capsule


class Card:
    """A GPU. number: which one of the computer. Several threads may use it at once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.device = tvm_ffi.device("cuda", number)

    def stream(self) -> Any:
        """A new stream: a queue of copies and launches, which run in order. It ends with the object."""
        handle = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(handle), NO_WAITING)
        weakref.finalize(handle, runtime().cudaStreamDestroy, ctypes.c_void_p(handle.value)).atexit = False
        return handle

    def pinned(self, size: int) -> Array:
        """Bytes of the host that the card can read and write while the host does other things."""
        place = ctypes.c_void_p()
        self._call("cudaMallocHost", ctypes.byref(place), ctypes.c_size_t(size))
        memory = (ctypes.c_uint8 * size).from_address(place.value or 0)
        weakref.finalize(memory, runtime().cudaFreeHost, place).atexit = False
        return np.frombuffer(memoryview(memory), np.uint8)

    def memory(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """A tensor in the card's memory. Raises DeviceMemoryError."""
        allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        try:
            return allocate(tvm_ffi.Shape(tuple(int(size) for size in shape)), tvm_ffi.dtype(str(dtype)), self.device, None)
        except Exception as error:  # TVM has no class for it
            if "out of memory" not in str(error):
                raise
            raise self.full(int(np.prod(shape)) * dtype.itemsize) from error

    def over_bus(self, array: Array) -> Any:
        """Pinned memory as a tensor of the card, which reads and writes it over the bus while a kernel runs. Its address is the same there:
        64-bit systems have one space of addresses."""
        return tvm_ffi.from_dlpack(AsOnCard(array, self.number))

    def send(self, array: Array) -> Any:
        """A copy of an array on the card, complete when this returns. Raises DeviceMemoryError."""
        array = np.ascontiguousarray(array)
        found = self.memory(array.shape, array.dtype)
        if array.nbytes:
            stream = ctypes.c_void_p()
            self.copy(array, found, TO_CARD, stream)
            self.wait(stream)
        return found

    def copy(self, array: Array, tensor: Any, way: int, stream: Any) -> None:
        """Put the copy of an array of the host to the beginning of a tensor of the card on a stream, or the other way."""
        here, there = ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p(tensor.data_ptr())
        places = (there, here) if way == TO_CARD else (here, there)
        call("cudaMemcpyAsync", *places, ctypes.c_size_t(array.nbytes), way, stream)

    def copied(self, tensor: Any, stream: Any) -> Any:
        """A copy of a tensor of the card, by a copy on a stream. Raises DeviceMemoryError."""
        shape, dtype = tuple(map(int, tensor.shape)), np.dtype(str(tensor.dtype))
        found = self.memory(shape, dtype)
        places = ctypes.c_void_p(found.data_ptr()), ctypes.c_void_p(tensor.data_ptr())
        size = ctypes.c_size_t(int(np.prod(shape)) * dtype.itemsize)
        call("cudaMemcpyAsync", *places, size, WITHIN_CARD, stream)
        return found

    def launch(self, stream: Any, function: Any, arguments: Sequence[Any]) -> None:
        """Put a compiled function on a stream."""
        with tvm_ffi.use_raw_stream(self.device, stream.value or 0):
            function(*arguments)

    def wait(self, stream: Any) -> None:
        """Wait until all that was put on a stream is done. Raises CudaError if some of it failed."""
        call("cudaStreamSynchronize", stream)

    def full(self, wanted: int) -> DeviceMemoryError:
        """The error that so many bytes are not free on the card."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return DeviceMemoryError(device=f"cuda:{self.number}", wanted=wanted, free=free.value, total=total.value)

    def _call(self, name: str, *arguments: Any) -> None:
        call("cudaSetDevice", self.number)  # it belongs to the thread, and other libraries change it; a stream knows its own
        try:
            call(name, *arguments)
        except CudaError as error:
            if error.code != MEMORY:
                raise
            raise DeviceMemoryError(device="the host's pinned memory", wanted=None, free=None, total=None) from error
