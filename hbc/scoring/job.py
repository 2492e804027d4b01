"""Job: the scoring of many fragments, by threads of this process or by the workers of an engine, which goes on where it was stopped."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from hbc.errors import ArtifactError, HbcError, requires
from hbc.lazy import cached_property, record
from hbc.scoring.fragment import score_fragment, score_to_stdout, try_fragment
from hbc.scoring.inputs import Fragment
from hbc.scoring.places import Place, place_of
from hbc.scoring.scorer import Options, forget_scorer, give_scorer, scorer_of
from hbc.scoring.work import FOLDER, Manifest, clear, locked

ENGINES = {"ray": "hbc.engines.ray", "spark": "hbc.engines.spark", "dask": "hbc.engines.dask"}
"""Engine → the module whose `map_tasks(function, tasks, workers, address)` yields function(task) for each task, in any order, from its
workers. workers: the most of them, None for all. address: of a cluster; None for the one that this process is connected to, or one that
is started here."""


@record
class Progress:
    """How far `hbc.score` is."""

    rows: int
    """The rows that were written since the start."""
    share: float | None
    """How much of the input is done, by bytes, from 0 to 1. It is None for a pipe, whose end is not known."""
    files: int
    """The files that are done."""
    of: int
    """All files."""


@record
class Task:
    """One fragment with all that it needs, as plain data for a worker."""

    model: str
    fragment: Fragment
    options: Options


def run_task(task: Task, data: bytes) -> dict[str, Any]:
    """What `score_fragment` returns for a task. data: the file of the model. An error of hbc is the value of "error", beside "input" and
    "output": an engine would try the task again, and wrap the error in one of its own."""
    try:
        give_scorer(task.model, task.options, scorer_of(task.model, task.options, data))
        try:
            return score_fragment(task.model, task.fragment, task.options)
        finally:
            forget_scorer(task.model, task.options)
    except (HbcError, FileNotFoundError) as error:
        return {"input": task.fragment.input, "output": task.fragment.output, "error": error}


class Job:
    """The scoring of some fragments. folder: that of the results; None: one file, or a pipe. bad_rows: the file for bad rows; None: a bad
    row is an error."""

    def __init__(
        self,
        model: str,
        fragments: Sequence[Fragment],
        folder: Place | None,
        options: Options,
        bad_rows: Place | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.model, self.fragments, self.options = model, fragments, options
        self.folder, self.bad_rows = folder, bad_rows
        self._watch = Watch(fragments, progress)

    @cached_property
    def _manifest(self) -> Manifest:
        folder = self.folder if self.folder is not None else place_of(self.fragments[0].output).parent
        return Manifest(folder, self.fragments, self.options, self.model)

    def try_all(self, restart: bool) -> list[dict[str, Any]]:
        """What `try_fragment` returns for each fragment, after a look at the place for the results. Nothing is written."""
        self._require_fitting(restart)
        rejected = "" if self.bad_rows is None else self.bad_rows.name
        return [try_fragment(self.model, replace(each, rejected=rejected), self.options) for each in self.fragments]

    def to_stdout(self) -> dict[str, Any]:
        """Score all fragments, one after another, to one stream on standard output. Returns rows and bad_rows."""
        return score_to_stdout(self.model, self.fragments, self.options, self.bad_rows, self._watch.teller)

    def run(
        self, restart: bool, workers: int | None, engine: str | None, address: str | None
    ) -> tuple[list[dict[str, Any]], int]:
        """(what was done for each fragment, how many of them an earlier start had finished)."""
        manifest = self._manifest
        with contextlib.ExitStack() as stack:
            if self.folder is None:
                output = place_of(self.fragments[0].output)
                work = output.parent.child(f".{output.path.rpartition('/')[2]}{FOLDER}")
                stack.enter_context(locked(work, output))
                stack.callback(clear, work, lambda name: name != "lock")
            else:
                work = self.folder.child(FOLDER)
                stack.enter_context(locked(work, self.folder))
            if restart:
                _forget(manifest, work)
            clear(work, lambda name: name.endswith(".part"))
            if self.folder is not None:
                self._require_fitting(restart)
                manifest.go_on()
                manifest.write()
            before = len(manifest.done)
            tasks = self._tasks(work)
            waiting = [task for task in tasks if manifest.below(task.fragment.output) not in manifest.done]
            self._watch.begin(before, [task.fragment for task in waiting])
            try:
                for summary in self._mapped(waiting, workers, engine, address):
                    if "error" in summary:
                        raise summary["error"]
                    manifest.finished(summary, write=self.folder is not None)
                    self._watch.finished(summary["input"])
            except BaseException:
                with contextlib.suppress(HbcError, OSError):  # the disk may be full: the first error says it
                    self._close(tasks)
                raise
            self._close(tasks)
        return list(manifest.done.values()), before

    def _tasks(self, work: Place) -> list[Task]:
        rejected = work.child("bad_rows")
        return [
            Task(
                self.model,
                replace(
                    fragment,
                    work=work.name,
                    rejected="" if self.bad_rows is None else rejected.child(f"{number:06}.jsonl").name,
                ),
                self.options,
            )
            for number, fragment in enumerate(self.fragments)
        ]

    def _mapped(
        self, tasks: list[Task], workers: int | None, engine: str | None, address: str | None
    ) -> Iterable[dict[str, Any]]:
        if engine is None:
            return in_threads(tasks, workers or 1, self._watch)
        return by_engine(engine, self.model, tasks, workers, address) if tasks else []

    def _close(self, tasks: Sequence[Task]) -> None:
        """Write what is done: the manifest, and the bad rows of the files that are done."""
        if self.folder is not None:
            self._manifest.write()
        if self.bad_rows is None:
            return
        data = []
        for task in tasks:
            if self._manifest.below(task.fragment.output) in self._manifest.done:
                with contextlib.suppress(FileNotFoundError):
                    data.append(place_of(task.fragment.rejected).read())
        self.bad_rows.write(b"".join(data))

    def _require_fitting(self, restart: bool) -> None:
        """Raise ArtifactError if the folder of the results is that of another run, or has files of their names which no manifest tells."""
        if self.folder is None or restart:
            return
        if self._manifest.earlier() is not None:
            self._manifest.go_on()
            return
        for fragment in self.fragments:
            if place_of(fragment.output).exists():
                raise ArtifactError(
                    path=fragment.output,
                    found="a file that no earlier start of this run has written",
                    expected="a folder without files of these names",
                    advice="Choose another folder, or replace the files: restart=True, on the command line --restart.",
                )


def _forget(manifest: Manifest, work: Place) -> None:
    """Remove what earlier starts have written. The manifest may not tell yet that a file is done: all that it plans are theirs."""
    try:
        document = manifest.document()
    except ArtifactError:
        document = None
    for planned in (document or {}).get("inputs", ()):
        work.parent.child(planned["output"]).remove()
    clear(work, lambda name: name != "lock")


class Stopped(Exception):
    """Ends the work on a fragment, since another one has failed or the user has interrupted."""


class Watch:
    """Counts what is done, and tells it to the caller."""

    def __init__(self, fragments: Sequence[Fragment], progress: Callable[[Progress], None] | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self.stopped = threading.Event()
        self._of, self._rows, self._done = len(fragments), 0, 0
        self._shares: dict[str, float] = {}
        self.begin(0, fragments)

    def begin(self, files: int, fragments: Sequence[Fragment]) -> None:
        """These fragments are to be scored, and `files` others are done."""
        self._files = files
        self._sizes = {fragment.input: fragment.size or 0 for fragment in fragments}
        known = all(fragment.size is not None for fragment in fragments)
        self._all = sum(self._sizes.values()) if known else None

    def teller(self, fragment: Fragment) -> Callable[[int, float], None]:
        """What is called after each batch of a fragment. It raises Stopped if the work is to end."""

        def tell(rows: int, share: float) -> None:
            if self.stopped.is_set():
                raise Stopped
            with self._lock:
                self._rows += rows
                self._shares[fragment.input] = share
                self._tell()

        return tell

    def finished(self, name: str) -> None:
        """A fragment is done."""
        with self._lock:
            self._files += 1
            self._shares.pop(name, None)
            self._done += self._sizes.get(name, 0)
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            running = sum(share * self._sizes.get(name, 0) for name, share in self._shares.items())
            share = None if self._all is None else min((self._done + running) / max(self._all, 1), 1.0)
            self._progress(Progress(self._rows, share, self._files, self._of))


def in_threads(tasks: Sequence[Task], workers: int, watch: Watch) -> Iterator[dict[str, Any]]:
    """Yields the summary of each task as it is done. `workers` threads score; for one, the caller's own."""

    def one(task: Task) -> dict[str, Any]:
        return score_fragment(task.model, task.fragment, task.options, watch.teller(task.fragment))

    if workers == 1:
        yield from map(one, tasks)
        return
    pool = ThreadPoolExecutor(workers, "hbc score")
    try:
        for future in as_completed([pool.submit(one, task) for task in tasks]):
            yield future.result()
    finally:
        watch.stopped.set()
        pool.shutdown(cancel_futures=True)


def by_engine(
    engine: str, model: str, tasks: Sequence[Task], workers: int | None, address: str | None
) -> Iterator[dict[str, Any]]:
    """Yields the summary of each task as the workers of an engine are done with it. They are sent the model, and need not see its file.
    Raises BackendUnavailableError if the engine is not installed."""
    with requires(engine, kind="engine"):
        module = importlib.import_module(ENGINES[engine])
    sent = [replace(task, fragment=_absolute(task.fragment)) for task in tasks]
    names = {there.fragment.output: here.fragment for here, there in zip(tasks, sent, strict=True)}
    function = functools.partial(run_task, data=Path(model).read_bytes())
    for summary in module.map_tasks(function, sent, workers, address):
        fragment = names[summary["output"]]
        yield {**summary, "input": fragment.input, "output": fragment.output}


def _absolute(fragment: Fragment) -> Fragment:
    """The fragment with absolute paths: workers have a working directory of their own."""
    given = {name: getattr(fragment, name) for name in ("input", "output", "work", "rejected")}
    places = {name: place_of(value) for name, value in given.items() if value}
    paths: dict[str, Any] = {name: place.path for name, place in places.items() if place.local}
    return replace(fragment, **paths)
