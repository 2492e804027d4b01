"""What hbc knows of the process that it runs in: how many CPUs it may use, what `HBC_DEBUG` asks for, when it forks and when it ends."""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar


def cpus() -> int:
    """The number of CPUs that this process may use (at least 1). Where the system has no affinity, all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- HBC_DEBUG ---------------------------------------------------------------------------------------------------------

PASSES, CHOICES, GRAPHS, SOURCE = 1, 2, 3, 4
"""The levels of HBC_DEBUG. Each also shows what the lower ones do."""


def debug_level() -> int:
    """The level that the environment variable HBC_DEBUG asks for: 0 (nothing, also without the variable) to 4. Raises ValueError for
    anything else."""
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
    """The same function, which one thread at a time runs, of all those decorated with this: what optimizes or compiles. They may call
    each other. A daemon thread that calls one when the interpreter ends is ended by SystemExit.

    They share one lock because a fork takes it as well (see below), and could not take several in an order that suits everybody. It
    costs little: TVM compiles one function at a time anyway, and the rest is Python. No user's code runs under it, which could wait for
    a thread that wants to fork.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _building:  # a lock of C's: no signal comes between taking it and this block
            if _closed and not _in_main_thread():
                raise SystemExit
            return function(*args, **kwargs)

    return alone


def shielded(work: Callable[[], T]) -> T:
    """What work() returns or raises, computed where no signal handler runs. Called by functions under `building`.

    Python runs signal handlers in the main thread wherever that is: also in a function that C++ called. What a handler raises there
    (KeyboardInterrupt) goes through C++, which makes a RuntimeError of it or loses it. So the main thread waits while another one works,
    and raises what its handlers raised once that is done.
    """
    if not _in_main_thread():
        with _compiler:
            return work()
    steps: list[str] = []  # the first one decides: appending is one step for all threads
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
    except RuntimeError:  # no more threads: the interpreter ends, or the system has a limit
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
        errors.clear()  # their tracebacks hold this frame


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


# --- calls in flight -----------------------------------------------------------------------------------------------------

_in_flight: list[int] = []
"""The threads that run compiled code without Python's lock, once for every call: appending and removing are one step for all threads."""


def run_free(free: Callable[..., T], held: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """What free(*arguments) returns, compiled code that frees Python's lock while it runs. When the interpreter ends, held, the same code
    with the lock held: see `close`. Costs 0.2 µs."""
    thread = threading.get_ident()
    _in_flight.append(thread)
    try:
        return (held if _closed else free)(*arguments)
    finally:
        _in_flight.remove(thread)


def close() -> None:
    """Wait until no other thread compiles or runs compiled code without Python's lock, and let none begin.

    To be registered with `atexit`, after the imports of libraries. When the interpreter ends it takes Python's lock for good. A thread that
    comes back from C++ and asks for it is unwound by pthread_exit (before Python 3.14), also through C++ destructors that must not be
    unwound: the process aborts ("terminate called without an active exception"). One that does not come back runs code that is being freed.
    """
    global _closed
    with _building, _compiler:
        _closed = True
    own = threading.get_ident()
    while any(thread != own for thread in _in_flight):
        time.sleep(0.001)


# --- fork --------------------------------------------------------------------------------------------------------------


class Renewable(Protocol):
    """An object with threads of its own, which a forked child does not have."""

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
    for thing in list(_renewable):
        thing.after_fork()


# A fork waits for a compiler at work: the child would have a half-changed LLVM, and locks of TVM's, LLVM's and Python's that nobody opens.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
