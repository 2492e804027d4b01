"""The process that hbc runs in: the number of its CPUs, the level of `HBC_DEBUG`, and how hbc gets through forks, signals and the exit."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar


def cpus() -> int:
    """The number of CPUs that this process may use (at least 1). On a system without CPU affinity, all CPUs of the machine. A container's
    limit counts: Linux stops threads that have used it up for the rest of each tenth of a second, with all that they hold."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(able, _cpu_limit() or able)


CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@functools.cache
def _cpu_limit() -> int | None:
    """The CPUs, rounded up, that Linux's control groups allow this process and those above it together; None for no limit."""
    found = []
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = CGROUPS / "cpu" if controllers else CGROUPS  # version 1, and version 2
        folder = top / path.strip("/")  # which a container may not see: then its own is at the top
        while True:
            found += _quota(folder)
            if folder == top:
                break
            folder = folder.parent
    return min(found, default=None)


def _quota(folder: Path) -> list[int]:
    """[the CPUs that a control group allows]; [] for no limit. `cpu.max` has "max 100000", or microseconds of each period."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):
            quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
            return [-(-quota // period)] if quota > 0 else []
    return []


def in_subinterpreter() -> bool:
    """Whether this code runs in a subinterpreter of CPython, as under mod_wsgi without `WSGIApplicationGroup %{GLOBAL}`."""
    if not hasattr(ctypes, "pythonapi"):
        return False
    current, number = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_GetID
    current.restype, number.argtypes, number.restype = ctypes.c_void_p, [ctypes.c_void_p], ctypes.c_int64
    return bool(number(current()))


# --- HBC_DEBUG ---------------------------------------------------------------------------------------------------------

PASSES, CHOICES, GRAPHS, SOURCE = 1, 2, 3, 4
"""The levels of HBC_DEBUG. Each level also shows the output of the lower ones."""


def debug_level() -> int:
    """The level that the environment variable HBC_DEBUG asks for: 0 (nothing,
    also without the variable) to 4. Raises ValueError for anything else."""
    text = os.environ.get("HBC_DEBUG", "") or "0"
    if text not in ("0", "1", "2", "3", "4"):
        raise ValueError(
            f"HBC_DEBUG={text!r}: expected 0 (nothing), 1 (passes), 2 (choices), 3 (graphs) or 4 (generated source)"
        )
    return int(text)


def show(level: int, text: Callable[[], str]) -> None:
    """Print text() to stderr if HBC_DEBUG asks for this level or a higher one."""
    if debug_level() >= level:
        print(text(), file=sys.stderr)


# --- building ------------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")
_building = threading.RLock()
_compiler = threading.RLock()
_closed = False


def building(function: Callable[P, T]) -> Callable[P, T]:
    """A decorator for functions that optimize or compile: at any time only one thread runs such functions. They may call each other. If a
    daemon thread calls one when the interpreter ends, SystemExit ends that thread.

    All these functions share one lock, because a fork takes it as well (see below): with several locks, a fork could not take them in the
    order in which every thread takes them. One lock costs little: TVM compiles one function at a time anyway, and the rest is Python. No
    code of the user runs under the lock, since it could wait for a thread that wants to fork.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _building:  # a lock written in C: no signal handler runs between taking it and this block
            if _closed and not _in_main_thread():
                raise SystemExit
            return function(*args, **kwargs)

    return alone


_elsewhere = threading.local()


class CompilerNeeded(Exception):
    """Something has to be compiled in a thread that is in `compiling_elsewhere`."""


@contextlib.contextmanager
def compiling_elsewhere() -> Iterator[None]:
    """A context in which this thread compiles nothing that the cache on disk could keep: it raises CompilerNeeded instead, before the
    compiler is imported. A server then has another process compile it."""
    _elsewhere.asked = True
    try:
        yield
    finally:
        _elsewhere.asked = False


def require_compiling_here() -> None:
    """Raise CompilerNeeded in the context `compiling_elsewhere`. Called before something is compiled that the cache could keep."""
    if getattr(_elsewhere, "asked", False):
        raise CompilerNeeded


def shielded(work: Callable[[], T]) -> T:
    """Returns the result of work(), or raises its error. No signal handler runs inside work(). Only functions under `building` call this.

    Python runs signal handlers in the main thread, wherever that thread is: also in a Python function that C++ has called. An exception
    of a handler (KeyboardInterrupt) then passes through C++, which turns it into a RuntimeError or loses it. So if the main thread calls
    this, another thread does the work. The main thread waits, and then raises the exception of a handler that ran while it waited.
    """
    if not _in_main_thread():
        with _compiler:
            return work()
    steps: list[str] = []  # the first entry decides who goes on; appending is atomic
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        with _compiler:
            steps.append("begun")
            if steps[0] == "begun":
                try:
                    results.append(work())
                except BaseException as error:
                    errors.append(error)
        done.set()

    try:
        _thread.start_new_thread(run, ())  # an interrupted threading.Thread.start() would not tell whether the thread runs
    except RuntimeError:  # no thread can be started: the interpreter ends, or the system's limit is reached
        with _compiler:
            return work()
    except BaseException as error:
        steps.append("given up")
        if steps[0] == "given up":
            raise
        errors.append(error)
    while True:
        try:
            done.wait()
            break
        except BaseException as error:
            errors.insert(0, error)
    try:
        if errors:
            raise errors[0]
        return results[0]
    finally:
        errors.clear()  # a traceback refers to this call's variables, and so to itself


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


# --- calls in flight -----------------------------------------------------------------------------------------------------

_in_flight: list[int] = []
"""The threads that run compiled code without Python's lock (GIL), an entry for each call. Appending and removing are atomic."""

CLOSED, CALLS = 0, 1
flights = (ctypes.c_int64 * 2)()
"""The same for compiled code that releases the lock itself: whether it must hold the lock, since the interpreter ends (CLOSED); and the
number of its calls that have released it (CALLS). Compiled code reads and writes this while it holds the lock."""


def run_free(free: Callable[..., T], held: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """The result of free(*arguments). `free` is compiled code that releases Python's lock (GIL) while it runs. When the interpreter ends,
    `held` is called instead: the same code, which keeps the lock (see `close`). This costs 0.2 µs."""
    thread = threading.get_ident()
    _in_flight.append(thread)
    try:
        return (held if _closed else free)(*arguments)
    finally:
        _in_flight.remove(thread)


def close() -> None:
    """Wait until no other thread compiles or runs compiled code without Python's lock (GIL), and let no thread begin to.

    It must be registered with `atexit` after the imports of libraries. When the interpreter ends, it takes the lock for good. A thread that
    comes back from C++ and asks for the lock is then ended by pthread_exit (before Python 3.14). That unwinds C++ destructors which must
    not be unwound, and the process aborts ("terminate called without an active exception"). A thread that does not come back runs code
    that is being freed.
    """
    global _closed
    with _building, _compiler:
        _closed = True
        flights[CLOSED] = 1
    own = threading.get_ident()
    while flights[CALLS] or any(thread != own for thread in _in_flight):
        time.sleep(0.001)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder that is deleted at the end of the context.

    `tempfile.TemporaryDirectory` deletes it also when the interpreter ends, before `close` waits for the thread that compiles into it: that
    thread then fails with FileNotFoundError.
    """
    folder = Path(tempfile.mkdtemp(prefix="hbc-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- fork --------------------------------------------------------------------------------------------------------------


class Renewable(Protocol):
    """An object with threads of its own. A forked child does not inherit these threads."""

    def after_fork(self) -> None:
        """Forget the threads. Called in the child, before anything else of hbc's runs there."""
        ...


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """From now on, call `thing.after_fork()` in every forked child. The object is not kept alive for it."""
    _renewable.add(thing)


def _before_fork() -> None:
    _building.acquire()
    _compiler.acquire()


def _after_fork() -> None:
    _compiler.release()
    _building.release()


def _after_fork_in_child() -> None:
    _after_fork()
    own = threading.get_ident()
    _in_flight[:] = [thread for thread in _in_flight if thread == own]
    flights[CALLS] = 0
    for thing in list(_renewable):
        thing.after_fork()


# A fork waits until no thread compiles. Otherwise the child would inherit a half-changed LLVM, and locks of TVM, LLVM and Python that no
# thread of the child releases.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
