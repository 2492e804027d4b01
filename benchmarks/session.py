"""One run of one benchmark: its options, what it has found, where that goes, and the bar that shows how far it is."""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import machine, report

T = TypeVar("T")

COMMON: dict[str, dict[str, Any]] = {
    "--quick": {"action": "store_true", "help": "small models and few repeats: does everything work?"},
    "--only": {"nargs": "+", "default": [], "metavar": "NAME", "help": "some of its workloads, by name or wildcard"},
    "--rounds": {"type": int, "help": "how often the engines take turns"},
    "--budget": {"type": float, "help": "seconds of a measurement: one engine, one number of rows, one round"},
    "--minutes": {"type": float, "help": "no further workload is begun after so many minutes"},
    "--out": {"type": Path, "help": "the file of results; the tables go beside it"},
}
"""The options of every benchmark. A module has further ones in OPTIONS, with the arguments of `add_argument`."""
PARTS = ("engines", "prepare", "emulate")
"""Options of some benchmarks with which a run measures less than all of it, or nothing."""


class CannotRun(Exception):
    """This machine lacks what the benchmark needs. The text says what, and how to get it."""


@dataclass
class Run:
    """What a benchmark gets. It fills `results["workloads"]` by name, and calls `keep` after each."""

    name: str
    options: argparse.Namespace
    markdown: Callable[[dict[str, Any]], str]
    results: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        size = "quick" if self.options.quick else "full"
        self.results |= {
            "benchmark": self.name,
            "machine": machine.describe(),
            "settings": {"size": {"name": size}, "threads": 1},
            "workloads": {},
        }

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)

    @property
    def settings(self) -> dict[str, Any]:
        return self.results["settings"]

    @property
    def path(self) -> Path:
        """The file of results. A run of a part, a quick one, or a rehearsal does not replace what is kept in git."""
        if self.options.out is not None:
            return Path(self.options.out)
        part = self.quick or self.options.only or any(getattr(self.options, name, None) for name in PARTS)
        return (report.CACHE / "last" if part else report.RESULTS / machine.name()) / f"{self.name}.json.gz"

    def given(self, option: str, full: T, quick: T) -> T:
        """The value of an option, or what it is by default, which is noted among the settings."""
        value = getattr(self.options, option.replace("-", "_"), None)
        chosen: T = (quick if self.quick else full) if value is None or value == [] else value
        self.settings[option] = chosen
        return chosen

    def asked(self, names: Iterable[str], quick: Sequence[str] = ()) -> list[str]:
        """The names of workloads that `--only` lets through; without it, `quick` in a quick run. Raises ValueError for a pattern that names
        none."""
        known, patterns = list(names), self.options.only
        if self.quick and not patterns and quick:
            return list(quick)
        for pattern in patterns:
            if not fnmatch.filter(known, pattern):
                raise ValueError(f"--only: nothing is called {pattern}; known are {', '.join(known)}")
        return [name for name in known if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]

    def on_one_core(self) -> None:
        """Bind this process to one core: the last one, because the first one serves the system's interrupts."""
        self.settings["cores"] = [core := max(os.sched_getaffinity(0))]
        os.sched_setaffinity(0, {core})

    def steps(self, things: Sequence[T], name: Callable[[T], str] = str) -> Iterator[T]:
        """The things one after the other, with a bar. After `--minutes` no further one is begun, and the results say how many are left."""
        minutes = self.options.minutes
        with _bar(self.name, len(things)) as tell:
            for number, thing in enumerate(things):
                if minutes is not None and time.monotonic() > self.started + 60 * minutes:
                    self.results["not_begun"] = [name(each) for each in things[number:]]
                    return
                tell(name(thing), number)
                yield thing
                self.keep()
            tell("done", len(things))

    def say(self, text: str) -> None:
        """Show what is done inside of a step, or before the first one."""
        if _TELL:
            _TELL[-1](text, None)
        else:
            _line(f"{self.name}: {text}")

    def keep(self) -> None:
        """Write the results so far, so that a stopped run keeps them."""
        self.results["machine"]["load_after"] = os.getloadavg()
        self.results["machine"]["seconds"] = round(time.monotonic() - self.started, 1)
        report.write(self.results, self.path, self.markdown)

    def finish(self) -> int:
        """Write and print the tables. Returns the exit status: 1 if hbc failed or was not exact anywhere."""
        self.keep()
        print(self.markdown(self.results))
        print(f"written: {self.path} and {report.tables_of(self.path)}")
        return 1 if report.failures(self.results) else 0


_TELL: list[Callable[[str, int | None], None]] = []


def _line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[str, int | None], None]]:
    """A function that shows a text and how many are done: a bar on a terminal, a line for each elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def line(text: str, done: int | None) -> None:
            if done is not None:
                _line(f"{name} {done}/{total}: {text}")

        _TELL.append(line)
        yield line
        _TELL.pop()
        return
    columns = (
        TextColumn("{task.fields[name]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total, name=name)

        def bar(text: str, done: int | None) -> None:
            shown.update(task, description=text, refresh=True, **({} if done is None else {"completed": done}))

        _TELL.append(bar)
        yield bar
        _TELL.pop()


def parser_of(name: str, description: str, options: Mapping[str, dict[str, Any]]) -> argparse.ArgumentParser:
    """The parser of a benchmark's options."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=description)
    for option, arguments in {**COMMON, **options}.items():
        parser.add_argument(option, **arguments)
    return parser


def versions(distributions: Iterable[str]) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in distributions}
