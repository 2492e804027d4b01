"""What hbc knows of the process that it runs in: how many CPUs it may use, what `HBC_DEBUG` asks for, and when it is a forked child."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


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


# --- fork --------------------------------------------------------------------------------------------------------------


class Renewable(Protocol):
    """An object with locks or threads, which a forked child must not use: locks may be held by threads that the child lacks."""

    def after_fork(self) -> None:
        """Replace the locks and forget the threads. Called in the child, before anything else of hbc's runs there."""
        ...


_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """From now on, call `thing.after_fork()` in every forked child. The object is not kept alive for it."""
    _renewable.add(thing)


def _after_fork() -> None:
    for thing in list(_renewable):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
