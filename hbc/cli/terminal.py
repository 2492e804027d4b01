"""What commands share: options, the line that shows progress, and what they print."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer


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


def warned(message: object) -> None:
    """Print a warning on stderr."""
    typer.echo(f"hbc: warning: {message}", err=True)


def print_json(found: Any) -> None:
    typer.echo(json.dumps(found, indent=1))


@contextmanager
def progress(doing: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done and for how long, while the context lasts. It gives a function that changes the text.
    Nothing is shown with `quiet`, or if stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(doing)
        yield lambda text: shown.update(task, description=text, refresh=True)


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
