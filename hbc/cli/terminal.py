"""What commands share: options, the line that shows progress, and what they print."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from hbc.errors import counted


def backends() -> list[str]:
    """The names for the shell's completion."""
    from hbc.compiler.base import BACKENDS

    return list(BACKENDS)


Backend = Annotated[
    str | None,
    typer.Option(
        help="tvm, torch, torchscript, onnx or numpy. By default a saved model's own, otherwise tvm.",
        autocompletion=backends,
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. By default cpu, or a saved model's own.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Read a pickle, which runs the code in it: only for files that you trust.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]


def row_counts(text: str) -> list[int]:
    """The numbers of `--rows`. Raises ValueError for anything else."""
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(
            f"--rows: found {text!r}, expected positive whole numbers with commas between them, such as 1,1000,100000"
        )
    return counts


def names_in(option: str, text: str) -> list[str]:
    """The names that an option holds, with commas between them. Raises ValueError if one is empty."""
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise ValueError(f"{option}: found {text!r}, expected names with commas between them")
    return names


def quoted(path: object) -> str:
    """A path as the shell takes it, for commands in messages."""
    return shlex.quote(str(path))


def warned(message: object) -> None:
    """Print a warning on stderr."""
    typer.echo(f"hbc: warning: {message}", err=True)


def size_of(count: int) -> str:
    """Bytes in the unit in which they are 1 or more, up to MB: "36 bytes", "2.5 kB", "1,073.7 MB"."""
    if count < 1e3:
        return counted(count, "byte")
    return f"{count / 1e3:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def print_json(found: Any) -> None:
    typer.echo(json.dumps(found, indent=1))


@contextmanager
def progress(doing: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done and for how long, while the context lasts. It gives a function that changes the text.
    If stderr is no terminal, it has the lines of `now_and_then`. Nothing is shown with `quiet`."""
    if quiet:
        yield lambda text: None
        return
    if not sys.stderr.isatty():
        last = [doing]

        def keep(text: str) -> None:
            last[0] = text

        with now_and_then(lambda: last[0]):
            yield keep
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing)
        yield lambda text: shown.update(task, description=text, refresh=True)


FIRST_LINE, LINES_APART = 10, 60
"""Seconds until the first line in a log, and at most between two."""


@contextmanager
def now_and_then(doing: Callable[[], str]) -> Iterator[None]:
    """While the context lasts, a line on stderr now and then that says for how long it has lasted, and what is being done: after 10, 20 and
    40 s, and then each minute. So a log (of CI, of cron) shows that a command is alive, and has nothing of a short one. A thread writes."""
    clock, over = Clock(), threading.Event()

    def write() -> None:
        apart: float = FIRST_LINE
        while not over.wait(apart):
            with suppress(OSError):  # nobody reads it any more
                print(f"hbc: {clock.seconds:.0f} s: {doing()}", file=sys.stderr, flush=True)
            apart = min(clock.seconds, LINES_APART)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def without_noise() -> Iterator[None]:
    """A context in which nothing reaches stderr, not even from C++: LightGBM prints what it then raises as an error too. It is only for
    reading files, where hbc's own message says the same."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Clock:
    """Counts seconds from its making."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return round(time.perf_counter() - self.started, 3)
