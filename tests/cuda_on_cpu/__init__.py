"""Runs code for CUDA on this computer's processor, for tests.

`emulated()` puts g++ and cuda_on_cpu.h in the place of the driver. In this context hbc takes a GPU for present. TVM's own host function
checks the arguments, computes grid and block and calls the kernel, as on a card. Arrays are copied to memory that stands for the card's.

    with emulated(seed=1) as card:
        compiled = hbc.convert(model, "tvm", device="cuda")
        compiled.predict(X)
    sanitized(card.launches[-1])        # the same launch once more, under ASan and UBSan
    without_races(card.launches[-1])    # and with a look at every access to memory
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from unittest import mock
from weakref import WeakValueDictionary

import numpy as np
import tvm_ffi

from hbc.compiler.tvm import compiler
from hbc.compiler.tvm.run import cache, lanes
from hbc.compiler.tvm.run.card import TO_CARD, AsOnCard
from hbc.compiler.tvm.run.code import Code
from hbc.compiler.tvm.run.cuda import CudaExecutable
from hbc.compiler.tvm.run.methods import GraphMethods, cuda_source
from hbc.compiler.tvm.run.targets import Machine, machine
from hbc.errors import DeviceMemoryError
from hbc.ir.types import Array
from hbc.tuning import machine as measured_machine

HERE = Path(__file__).parent
FLAGS = ("-std=gnu++14", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", f"-I{HERE}")
PLAIN = ("-O1",)
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

PATTERN = {"f": np.nan, "i": -77, "u": 77, "b": True}
"""Kind of dtype → what stands in the results before the kernel writes them. bools: as bytes, see `_room`."""


def _words(name: str, count: int) -> str:
    """The parameters of TVM's functions for PTX that are words of a fragment."""
    return ", ".join(f"__{name}{i}" for i in range(count))


DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
PTX = (
    (re.compile(r'asm volatile\("cp\.async\.wait_group (\d+);"[^;]*;'), r"emu::wait_for_copies(\1);"),
    (re.compile(r'asm volatile\("cp\.async\.wait_all;"[^;]*;'), "emu::wait_for_all_copies();"),
    (re.compile(r'asm volatile\("cp\.async\.commit_group;"[^;]*;'), "emu::commit_copies();"),
    (
        re.compile(r'asm volatile\("cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], (\d+);"[^;]*;'),
        r"emu::copy_later(__dst_mem, __src_mem, \1);",
    ),
    *(
        (
            re.compile(rf'asm volatile\("mma\.sync\.aligned\.m16n8k{k}\.row\.col\.s32\.([us])8\.([us])8\.s32 [^;]*;"[^;]*;'),
            f"const uint32_t a[] = {{{_words('a', k // 8)}}}, b[] = {{{_words('b', k // 16)}}}, c[] = {{{_words('c', 4)}}};"
            rf"uint32_t d[4]; emu::multiply({k}, '\1', '\2', a, b, c, d); " + " ".join(f"__d{i} = d[{i}];" for i in range(4)),
        )
        for k in (16, 32)
    ),
    (re.compile(r'asm volatile\("prmt\.b32 %0, %1, %2, %3;"[^;]*;'), "__d = __byte_perm(__a, __b, __c);"),
)
"""The PTX that TVM writes, and what stands for it."""
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\((\d+)(?:, *\d+)?\) )?(\w+)\(([^)]*)\)\s*\{')


class EmulationError(Exception):
    """A kernel did what it must not do: it waits for threads that do not come, asks for too much memory, or touches memory of others."""


# --- compiling


@functools.cache
def cannot_run() -> str | None:
    """Why kernels cannot be run here; None if they can."""
    if sys.platform != "linux":
        return "the emulator of CUDA is for Linux"
    try:
        subprocess.run(["g++", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "no g++"
    return None


def compiled(name: str, text: str, command: Sequence[str], inputs: Sequence[Path] = ()) -> Path:
    """The file that g++ makes of a text. It is kept in the system's folder for temporary files, for later runs."""
    facts = repr((text, command, [path.read_bytes() for path in (*inputs, *sorted(HERE.glob("*.[hi]*")))]))
    folder = Path(tempfile.gettempdir()) / f"hbc-cuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}-{name}"
    if not found.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:  # others may compile the same
            source, made = Path(own) / f"{found.stem}.cpp", Path(own) / name
            source.write_text(text)
            done = subprocess.run(
                ["g++", *FLAGS, *command, "-o", str(made), str(source), *map(str, inputs)], capture_output=True, text=True
            )
            if done.returncode:
                raise EmulationError(f"g++ does not compile the kernel:\n{done.stderr[:4000]}")
            made.replace(found)
    return found


@functools.cache
def scheduler(flags: tuple[str, ...]) -> Path:
    """The object file of cuda_on_cpu.cpp."""
    return compiled("scheduler.o", (HERE / "cuda_on_cpu.cpp").read_text(), (*flags, "-c"))


class Kernel(NamedTuple):
    """A kernel in CUDA C: its name, the types of its parameters, and the text from its first line to the end of the file."""

    name: str
    types: tuple[str, ...]
    bounds: int

    @property
    def pointers(self) -> tuple[bool, ...]:
        return tuple("*" in kind for kind in self.types)


def kernels_of(source: str) -> list[Kernel]:
    """The kernels that a text defines."""
    found = []
    for bounds, name, parameters in KERNEL.findall(source):
        types = [part.rsplit(None, 1)[0].replace("__restrict__", "").strip() for part in parameters.split(",") if part.strip()]
        found.append(Kernel(name, tuple(types), int(bounds or 0)))
    return found


def for_gxx(source: str) -> str:
    """CUDA C as g++ takes it, with a function of TVM's calling convention for each kernel."""
    body = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#include"))
    wrappers = []
    for kernel in kernels_of(source):
        own = source[source.index(f" {kernel.name}(", source.rindex(f" {kernel.name}(")) :].partition('extern "C"')[0]
        values = ", ".join(
            f"({kind})a[{i}].{'pointer' if '*' in kind else 'real' if kind in ('float', 'double') else 'integer'}"
            for i, kind in enumerate(kernel.types)
        )
        dynamic = int(bool(DYNAMIC.search(own)))
        facts = f'"{kernel.name}", body_{kernel.name}, {len(kernel.types)}, {kernel.bounds}, {dynamic}'
        wrappers.append(
            f"static void body_{kernel.name}(const emu::Any* a) {{ {kernel.name}({values}); }}\n"
            f'extern "C" int __tvm_ffi_{kernel.name}(void*, const emu::Any* a, int32_t n, emu::Any* r) {{\n'
            f"  return emu::launch({{{facts}}}, a, n, r);\n}}\n"
        )
    body = DYNAMIC.sub(r"\1* \2 = (\1*)emu::dynamic_memory();", body)
    for pattern, instead in PTX:
        body = pattern.sub(instead, body)
    return f'#include "cuda_on_cpu.h"\n{body}\n{"".join(wrappers)}'


def library(source: str) -> Path:
    """The shared library of the kernels of a text."""
    return compiled("kernels.so", for_gxx(source), (*PLAIN, "-shared"), [scheduler(PLAIN)])


# --- launching


class _Any(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64))


class _Last(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("grid", "block", "dynamic")),
        ("parameters", ctypes.c_int),
        ("arguments", _Any * 64),
        ("name", ctypes.c_char_p),
    )


class Launch(NamedTuple):
    """A launch: the text of the kernel, its name, grid, block, bytes of dynamic shared memory, and its arguments: arrays as they are
    after it, and the bits of numbers."""

    source: str
    kernel: str
    arguments: tuple[Array | int, ...]
    grid: int
    block: int
    dynamic: int


def launched(launch: Launch, seed: int = 0) -> None:
    """Launch a kernel on arrays as they are; it changes them. Raises EmulationError."""
    loaded = ctypes.CDLL(str(library(launch.source)))
    loaded.emu_error.restype = ctypes.c_char_p
    loaded.emu_seed(ctypes.c_uint64(seed))
    numbers = [argument.ctypes.data if isinstance(argument, np.ndarray) else int(argument) for argument in launch.arguments]
    numbers += [launch.grid, launch.block, *([launch.dynamic] if launch.dynamic else ())]
    arguments = (_Any * len(numbers))(*((1, 0, number & (1 << 64) - 1) for number in numbers))
    loaded[f"__tvm_ffi_{launch.kernel}"](None, arguments, len(numbers), ctypes.byref(_Any()))
    if message := loaded.emu_error().decode():
        raise EmulationError(message)


class Stream:
    """A queue of copies and launches. They run when someone waits for the stream, or by chance before."""

    value = 0

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()


class Card:
    """What stands for a GPU. seed: of the order of blocks, threads and streams; 0 for their own order. size: the bytes of its memory.
    launches: all so far, without their arguments if lanes are kept. others: further cards, by number.

    It has the members of hbc's own Card. Nothing that is put on a stream is done at once: it is done when the stream is waited for, or at
    any other call, as chance decides. So memory that is used too early holds what it must not hold.
    """

    lock = RLock()
    """All cards together do one thing at a time: kernels have one scheduler."""

    def __init__(self, seed: int, size: int, keeps_lanes: bool, number: int = 0) -> None:
        self.seed, self.size, self.keeps_lanes, self.number = seed, size, keeps_lanes, number
        self.others: dict[int, Card] = {}
        self.launches: list[Launch] = []
        self.arrays: WeakValueDictionary[int, Array] = WeakValueDictionary()
        """Address → array, of all tensors."""
        self.streams: list[Stream] = []
        self.foreign: dict[int, Stream] = {}
        """Handle → the stream of another library."""
        self.at_once = 0
        """The most streams that had something to do at the same time."""
        self.used = 0
        self._random = random.Random(seed)

    # --- the members of hbc's Card

    def stream(self) -> Stream:
        stream = Stream()
        self.streams.append(stream)
        return stream

    def pinned(self, size: int) -> Array:
        return np.full(size, 0xA5, np.uint8)

    def over_bus(self, array: Array) -> Any:
        self.arrays[array.ctypes.data] = array
        return tvm_ffi.from_dlpack(AsOnCard(array, 0))

    def memory(self, shape: Sequence[int], dtype: Any) -> Any:
        return self.tensor(np.full(shape, PATTERN[np.dtype(dtype).kind], dtype))

    def send(self, array: Array) -> Any:
        return self.tensor(array)

    def copy(self, array: Array, tensor: Any, way: int, stream: Any) -> None:
        there = self.array(tensor)

        def copy() -> None:
            mine = there[: len(array)]
            to, source = (mine, array) if way == TO_CARD else (array, mine)
            to[...] = source

        self._put(stream, copy)

    def copied(self, tensor: Any, stream: Any) -> Any:
        given = self.array(tensor)
        found = self.memory(given.shape, given.dtype)
        there = self.array(found)

        def copy() -> None:
            there[...] = given

        self._put(stream, copy)
        return found

    def launch(self, stream: Any, function: Any, arguments: Sequence[Any]) -> None:
        self._put(stream, lambda: function(*arguments))

    def wait(self, stream: Any) -> None:
        with self.lock:
            self._do_some()
            while self.of(stream).queue:
                self._do_one(self.of(stream))

    # --- how it is made

    def of(self, stream: Any) -> Stream:
        """A stream of this card, or of another library by its handle."""
        if isinstance(stream, Stream):
            return stream
        if (stream.value or 0) not in self.foreign:
            self.foreign[stream.value or 0] = self.stream()
        return self.foreign[stream.value or 0]

    def _put(self, stream: Any, work: Callable[[], None]) -> None:
        with self.lock:
            self.of(stream).queue.append(work)
            self.at_once = max(self.at_once, sum(1 for each in self.streams if each.queue))
            self._do_some()

    def _do_some(self) -> None:
        """What chance lets the card do now, of all streams."""
        for stream in self.streams:
            while self.seed and stream.queue and self._random.random() < 0.3:
                self._do_one(stream)

    def _do_one(self, stream: Stream) -> None:
        try:
            stream.queue.popleft()()
        except BaseException:
            stream.queue.clear()
            raise

    def tensor(self, array: Array) -> Any:
        """A copy of an array, which says that it lies on a CUDA device. It begins at a multiple of 256 bytes, as on a card. Raises
        DeviceMemoryError."""
        if self.used + array.nbytes > self.size:
            raise DeviceMemoryError(
                device=f"cuda:{self.number}", wanted=array.nbytes, free=self.size - self.used, total=self.size
            )
        memory = np.empty(array.nbytes + 256, np.uint8)
        start = -memory.ctypes.data % 256
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        self.arrays[copy.ctypes.data] = copy
        self.used += array.nbytes
        weakref.finalize(copy, self._freed, array.nbytes)
        return tvm_ffi.from_dlpack(AsOnCard(copy, 0))

    def _freed(self, size: int) -> None:
        self.used -= size

    def array(self, tensor: Any) -> Array:
        """The memory of a tensor."""
        return self.arrays[tensor.data_ptr()]


class Emulated(Code):
    """The code of a TVM module whose kernels run here."""

    def __init__(self, module: Any, card: Card) -> None:
        self.source, self.card = cuda_source(module), card
        path = library(self.source)
        module.clear_imports()
        module.import_module(tvm_ffi.load_module(str(path)))
        self.emulator = ctypes.CDLL(str(path))
        self.emulator.emu_error.restype = self.emulator.emu_last.restype = ctypes.c_void_p
        super().__init__(module, 0)

    def __call__(self, *arguments: Any) -> Any:
        self.emulator.emu_seed(ctypes.c_uint64(self.card.seed))
        result = super().__call__(*arguments)
        message = ctypes.string_at(self.emulator.emu_error()).decode()
        if message:
            raise EmulationError(message)
        self.card.launches.append(self._launch())
        return result

    def _launch(self) -> Launch:
        last = _Last.from_address(self.emulator.emu_last())
        kernel = next(kernel for kernel in kernels_of(self.source) if kernel.name == last.name.decode())
        arguments = (
            []
            if self.card.keeps_lanes
            else [  # others will write to these arrays
                self.card.arrays[given.value] if pointer else given.value
                for given, pointer in zip(last.arguments, kernel.pointers, strict=False)
            ]
        )
        return Launch(self.source, kernel.name, tuple(arguments), last.grid, last.block, last.dynamic)


@contextmanager
def emulated(
    seed: int = 0, size: int = 1 << 34, keeps_lanes: bool = False, kind: Callable[[int], str] = lambda number: "emulated GPU"
) -> Iterator[Card]:
    """A context in which hbc runs code for CUDA on the processor. Code that is compiled in it is not kept after it.

    Yields the card "cuda:0", whose `others` are those of other numbers. Kernels of all of them are in its `launches`.
    size: the bytes of a card's memory. keeps_lanes: whether memory of one call is used for the next, as on a card. Without it, arrays on
    the card have just the rows of a call, so that sanitizers find a row too many. kind: number of a card → its kind."""
    card = Card(seed, size, keeps_lanes)

    def of_number(executable: CudaExecutable) -> Card:
        number = machine(executable.options.device, None).number
        return card.others.setdefault(number, Card(seed, size, keeps_lanes, number)) if number else card

    executable = type("Executable", (CudaExecutable,), {"_card": property(of_number)})
    exact = () if keeps_lanes else ((lanes, "rounded", lambda rows: rows), (lanes.Lanes, "give_back", lambda self, lane: None))
    with ExitStack() as stack:
        for place, name, new in (
            (cache, "_in_memory", lambda module: Emulated(module, card)),
            (cache, "_alive", WeakValueDictionary()),
            (cache, "_recent", OrderedDict()),
            (compiler, "CudaExecutable", executable),
            (Machine, "missing", None),
            (measured_machine, "gpu", kind),
            (GraphMethods, "compile_all", lambda self: None),
            *exact,
        ):
            stack.enter_context(mock.patch.object(place, name, new))
        yield card


# --- sanitizers


def sanitized(launch: Launch, seed: int = 0) -> list[Array]:
    """The arrays of a launch after it has been run once more, by a program of its own with ASan and UBSan. Raises EmulationError with what
    they find. Each array has memory of its own, so that the first byte after it is found."""
    program = compiled("alone", alone(launch), SANITIZED, [scheduler(SANITIZED)])
    return _run_alone(program, launch, seed)


def without_races(launch: Launch, seed: int = 0) -> list[Array]:
    """The same, by a program that looks at every access to memory. Raises EmulationError where two threads use the same byte, one of them
    writes, and nothing puts one before the other."""
    kernels = compiled("alone.o", alone(launch), (*PLAIN, "-fsanitize=thread", "-c"))
    return _run_alone(compiled("races", "", PLAIN, [kernels, scheduler((*PLAIN, "-DEMU_RACES"))]), launch, seed)


def alone(launch: Launch) -> str:
    """The text of a program that runs a launch."""
    return f'{for_gxx(launch.source)}#define KERNEL __tvm_ffi_{launch.kernel}\n#include "alone.inc"\n'


def _run_alone(program: Path, launch: Launch, seed: int) -> list[Array]:
    """The arrays of a launch after a program has run it."""
    arrays = [argument for argument in launch.arguments if isinstance(argument, np.ndarray)]
    head = [seed, len(launch.arguments), launch.grid, launch.block, launch.dynamic]
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "given", Path(folder) / "result"
        with given.open("wb") as file:
            file.write(np.array(head, np.int64).tobytes())
            for argument in launch.arguments:
                is_array = isinstance(argument, np.ndarray)
                number = argument.nbytes if is_array else np.uint64(argument).astype(np.int64)
                file.write(np.array([is_array, number], np.int64).tobytes())
                file.write(argument.tobytes() if is_array else b"")
        # Stacks of fibres look like leaks.
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        done = subprocess.run([str(program), str(given), str(result)], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise EmulationError(done.stderr[-6000:])
        memory = result.read_bytes()
    ends = np.cumsum([array.nbytes for array in arrays])
    return [
        np.frombuffer(memory[end - array.nbytes : end], array.dtype).reshape(array.shape)
        for array, end in zip(arrays, ends, strict=True)
    ]
