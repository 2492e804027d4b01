"""Repository: the models that a server has, by name and version. It loads, reloads and unloads them, and never loses one for a bad file."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hbc.errors import ArtifactError, HbcError
from hbc.lazy import record
from hbc.loading import load
from hbc.process import CompilerNeeded, compiling_elsewhere
from hbc.serve.compiling import Compiler, has_cache
from hbc.serve.failures import Failure
from hbc.serve.served import Served
from hbc.serve.statistics import Statistics

MODEL = "model.hbc"
"""The name of the file in a folder NAME/VERSION of a directory of models."""

SUFFIX = ".hbc"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
FIRST = "1"
"""The version of a file that lies in no folder of a version."""

Tell = Callable[..., None]
"""Says what happened, for the log: an event, and facts by keyword."""


@record
class Place:
    """A file that may be served."""

    name: str
    version: str
    path: Path


@record
class Stamp:
    """What tells a file from another that takes its place: a file that is written anew has another."""

    size: int
    changed: int
    number: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Raises OSError."""
        found = os.stat(path)
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class Repository:
    """The models of a server. Reading is for the event loop: `get`, `index`. Changing may take seconds, and is for a thread: `refresh`,
    `load`, `unload`. A model is put in place whole, after it was warmed up; requests that hold the one before keep it to their end.

    files: the models by name, each one file. directory: a folder with NAME/VERSION/model.hbc, NAME/model.hbc and NAME.hbc. Nothing else is
    ever read. trust_code: run the compiled code in the files (`hbc.load`). drift: count what is unusual in requests (drift.py).
    methods: serve no others; (): all. put_off: whether a model that has to be compiled is put in place without the methods that are not
    `Served.first`. Somebody must call `finish` then, which puts it in place with all. released: called, in any thread, after a model was
    put in place, and when the last request is answered that held a model which was replaced or unloaded.
    Raises ValueError for a name that no URL can hold, or twice."""

    def __init__(
        self,
        files: Mapping[str, Path],
        directory: Path | None = None,
        *,
        trust_code: bool = False,
        backend: Any = None,
        device: Any = None,
        drift: bool = False,
        methods: Sequence[str] = (),
        put_off: bool = False,
        tell: Tell = lambda event, **facts: None,
        released: Callable[[], None] = lambda: None,
    ) -> None:
        for name in files:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"name of a model: found {name!r}, expected letters, digits, _, - and . only: NAME=FILE gives one"
                )
        self.files = dict(files)
        self.directory = None if directory is None else Path(os.path.realpath(directory))
        self._options: dict[str, Any] = {"trust_code": trust_code, "backend": backend, "device": device}
        self._drift = drift
        self._methods = tuple(methods)
        self._put_off = put_off
        self.unfinished = False
        """Whether there is something for `finish`."""
        self._tell = tell
        self._released = released
        self._compiler = self._later = Compiler(self._options, self._methods)
        """The one that compiles what is loaded now, and the one for what was put off."""
        self._ready: dict[str, dict[str, Served]] = {}
        self._usual: dict[str, Served] = {}
        self._unloaded: set[str] = set()
        self._failed: dict[tuple[str, str], tuple[Any, str]] = {}
        self._statistics: dict[tuple[str, str], Statistics] = {}
        self._changing = threading.Lock()
        self._looked = False
        """Whether the first look at the files is over: before, a model that is not there may be on its way."""
        self._told: set[str] = set()
        self._stopped = False

    # --- for the event loop --------------------------------------------------------------------------------------------

    def get(self, name: str, version: str | None = None) -> Served:
        """The model; of several versions the one with the highest number. Raises Failure if it is not ready or unknown."""
        found = self._usual.get(name) if version is None else self._ready.get(name, {}).get(version)
        if found is None:
            raise self._absent(name, version)
        return found

    def _absent(self, name: str, version: str | None) -> Failure:
        which = f"model {name!r}" if version is None else f"version {version!r} of model {name!r}"
        if name in self._unloaded:
            return Failure("missing", f"{which} is unloaded; POST /v2/repository/models/{name}/load loads it.")
        reasons = [why for (known, v), (_, why) in list(self._failed.items()) if known == name and version in (None, v)]
        if reasons:
            return Failure("unavailable", f"{which} is not ready: {reasons[0]}", retry_after=5)
        if not self._looked:
            return Failure(
                "unavailable", f"{which} is not ready: the server has just started, and loads its models.", retry_after=1
            )
        return Failure("missing", f"there is no {which}; GET /v1/models lists those that there are.")

    def all(self) -> list[Served]:
        """All that is ready, by name and version."""
        return [found for _, versions in sorted(self._ready.items()) for _, found in sorted(versions.items(), key=_number)]

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are ready, by number."""
        return sorted(self._ready.get(name, {}), key=int)

    def index(self) -> list[dict[str, str]]:
        """Name, version, state (READY or UNAVAILABLE) and the reason for every model that is known."""
        found = [{"name": s.name, "version": s.version, "state": "READY", "reason": ""} for s in self.all()]
        ready = {(s.name, s.version) for s in self.all()}
        for (name, version), (_, why) in sorted(self._failed.items()):
            if (name, version) not in ready:
                found.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": why})
        found += [{"name": n, "version": "", "state": "UNAVAILABLE", "reason": "unloaded"} for n in sorted(self._unloaded)]
        return found

    def statistics(self) -> dict[tuple[str, str], Statistics]:
        """(name, version) → its statistics, also of models that are not ready any more."""
        return dict(self._statistics)

    @property
    def ready(self) -> bool:
        """Whether all files were looked at, and there is a model, and one for each file that was named; those that were unloaded on purpose
        count. A bad file in the directory costs only its own model."""
        there = {*self._ready, *self._unloaded}
        return self._looked and bool(there) and there.issuperset(self.files)

    def require_named(self) -> None:
        """Raise HbcError for a file that was named and could not be loaded."""
        for (name, _), (_, why) in sorted(self._failed.items()):
            if name in self.files and name not in self._ready:
                raise HbcError(why)

    # --- for a thread --------------------------------------------------------------------------------------------------

    def refresh(self) -> list[str]:
        """Look at the files, load those that are new or have changed, and drop those that are gone. Returns the names that changed.

        A file that cannot be read, since somebody is writing it for example, keeps the model of before. It is tried again when it
        changes."""
        with self._changing:
            places = self._places()
            known = {(p.name, p.version) for p in places}
            with self._compiling():
                changed = [p.name for p in places if p.name not in self._unloaded and self._load(p)]
            for name, versions in list(self._ready.items()):
                gone = [v for v in versions if (name, v) not in known]
                if gone:
                    self._put(name, {v: served for v, served in versions.items() if v not in gone})
                    self._tell("model gone", model=name, versions=gone)
                    changed.append(name)
            for key in [k for k in list(self._failed) if k not in known]:
                del self._failed[key]
            self._looked = True
            return changed

    def load(self, name: str) -> None:
        """Load a model, anew if it is loaded. Raises Failure if there is no file for it, or none of its files can be read."""
        with self._changing:
            places = [place for place in self._places() if place.name == name]
            if not places:
                raise Failure("missing", f"there is no file for a model {name!r}.")
            with self._compiling():
                for place in places:
                    self._load(place, again=True)
            bad = [self._failed[p.name, p.version][1] for p in places if (p.name, p.version) in self._failed]
            if bad:
                raise Failure("invalid", f"model {name!r}: {bad[0]}")
            self._unloaded.discard(name)

    def finish(self) -> None:
        """Compile the methods that were put off, and put the models in place with them. If that fails, the log says why, and the models
        stay as they are until they are loaded again.

        Models can be loaded and unloaded meanwhile, for on a full processor this takes minutes. What is loaded then is left for the next
        call."""
        with self._changing:
            self.unfinished = False
            waiting = [served for served in self.all() if served.later]
            self._later, self._compiler = self._compiler, Compiler(self._options, self._methods)
            if self._stopped:
                self.stop()
        try:
            for served in waiting:
                whole = self._loaded(Place(served.name, served.version, served.path), served.stamp, later=True)
                with self._changing:
                    if whole is not None and self._ready.get(served.name, {}).get(served.version) is served:
                        self._put_in_place(whole)
        finally:
            self._later.end()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """A context in which files are loaded. The process that compiles ends with it, unless there is more for it in `finish`."""
        try:
            yield
        finally:
            if not self.unfinished:
                self._compiler.end()

    def unload(self, name: str) -> None:
        """Answer no more requests for a model. Those that have come are answered. Raises Failure for an unknown one."""
        with self._changing:
            if name not in self._ready and name not in self._unloaded:
                raise self._absent(name, None)
            self._unloaded.add(name)
            self._put(name, {})
            self._tell("model unloaded", model=name)

    def leave_out(self, name: str) -> None:
        """Do not load a model until `load` is called for it: it was unloaded in another process."""
        self._unloaded.add(name)

    def stop(self) -> None:
        """Compile nothing more: the server stops. What is being loaded fails."""
        self._stopped = True
        self._compiler.stop()
        self._later.stop()

    def _load(self, place: Place, again: bool = False) -> bool:
        """Load a file if it has changed. Returns whether there is a new model. again: also if it has not."""
        key = place.name, place.version
        before = self._ready.get(place.name, {}).get(place.version)
        try:
            stamp = Stamp.of(place.path)
        except OSError as error:
            self._fail(place, None, error)
            return False
        failed = self._failed.get(key)
        if not again and ((before is not None and before.stamp == stamp) or (failed is not None and failed[0] == stamp)):
            return False
        served = self._loaded(place, stamp)
        if served is None:
            return False
        self._unloaded.discard(place.name)
        self._put_in_place(served)
        return True

    def _loaded(self, place: Place, stamp: Stamp, later: bool = False) -> Served | None:
        """The model of a file, ready to be called. None: the log says why not, or the file is no longer the one with this stamp: the next
        look takes it. later: with the methods that were put off."""
        try:
            statistics = self._statistics.setdefault((place.name, place.version), Statistics())
            served = self._warmed(place, stamp, statistics, later)
            if self._drift:
                served.watch()
            return served if Stamp.of(place.path) == stamp else None
        except Exception as error:  # also a library's own, of a damaged file or a full device: it costs no other model
            self._fail(place, stamp, error)
            return None

    def _fail(self, place: Place, stamp: Stamp | None, error: Exception) -> None:
        """Keep why a file could not be loaded, and tell it. A model that was there before stays."""
        why = str(error if isinstance(error, HbcError) else _unreadable(place, error))
        before = self._failed.get((place.name, place.version))
        # Not the stamp of what is there now: that may be another file already, which is to be tried.
        self._failed[place.name, place.version] = (stamp, why)
        # Not each time that the files are looked at; and not if the reason is that the process which compiles was ended.
        if before != (stamp, why) and not self._stopped:
            kept = place.version in self._ready.get(place.name, {})
            # For a file that was named and has never been loaded, `require_named` raises the same as an error.
            level = "info" if place.name in self.files and not kept else "error"
            self._tell("model not loaded", level=level, model=place.name, version=place.version, reason=why, kept=kept)

    def _put_in_place(self, served: Served) -> None:
        """Answer the next requests with this model."""
        self._failed.pop((served.name, served.version), None)
        self._put(served.name, {**self._ready.get(served.name, {}), served.version: served})
        self.unfinished = self.unfinished or bool(served.later)
        without = {"without": list(served.later)} if served.later else {}
        self._tell("model loaded", model=served.name, version=served.version, path=str(served.path), **without)

    def _warmed(self, place: Place, stamp: Stamp, statistics: Statistics, later: bool) -> Served:
        """The model of a file, ready to be called. Another process compiles it, if that is needed and there is a cache. What the cache has
        not kept, because it is full for example, is compiled here. later: with the methods that were put off."""
        whole = later or not self._put_off

        def warmed(whole: bool) -> Served:
            model = load(place.path, **self._options)
            served = Served(place.name, place.version, place.path, stamp, model, statistics, self._methods)
            served.warm_up(() if whole else served.first)
            return served

        if has_cache():
            for found_whole in (True,) if whole else (True, False):
                with contextlib.suppress(CompilerNeeded), compiling_elsewhere():
                    return warmed(found_whole)
            (self._later if later else self._compiler).compile(place.path, first=not whole, later=later)
            self._tell("model compiled", model=place.name, version=place.version)
            with contextlib.suppress(CompilerNeeded), compiling_elsewhere():
                return warmed(whole)
        return warmed(True)

    def _put(self, name: str, versions: dict[str, Served]) -> None:
        """Put the versions of a model in place. The event loop sees the old ones or the new ones: each dict is replaced whole."""
        for old in self._ready.get(name, {}).values():
            if old not in versions.values():
                weakref.finalize(old, self._released).atexit = False
        if versions:
            self._usual[name] = versions[max(versions, key=int)]
            self._ready[name] = versions
        else:
            self._usual.pop(name, None)
            self._ready.pop(name, None)
        self._released()

    def _places(self) -> list[Place]:
        """The files that there are. A name that is used twice, or that no URL can hold, is left out, and the log says so once."""
        places = [Place(name, FIRST, path) for name, path in self.files.items()]
        for place in self._found():
            if place.name in self.files:
                self._once(f"{place.path}: the name {place.name!r} is that of a file that was given: left out")
            elif any((p.name, p.version) == (place.name, place.version) for p in places):
                self._once(f"{place.path}: there is another version {place.version} of {place.name!r}: left out")
            else:
                places.append(place)
        return places

    def _found(self) -> list[Place]:
        """The files in the directory. Links that lead out of it are not followed. Names that begin with a dot are passed over: Kubernetes
        has `..data` beside what it mounts. Of a folder that cannot be read, such as the `lost+found` of a volume, what was loaded stays."""
        if self.directory is None:
            return []
        found: list[Place] = []
        with self._leaving_out(self.directory, found):
            for entry in sorted(self.directory.iterdir()):
                if not entry.name.startswith("."):
                    with self._leaving_out(entry, found):
                        found += _places_at(entry)
        return [place for place in found if self._allowed(place)]

    @contextmanager
    def _leaving_out(self, folder: Path, found: list[Place]) -> Iterator[None]:
        """A context in which a folder that cannot be read is left out, and the log says so once. The models that were loaded from it are
        found still, if it is not gone."""
        try:
            yield
        except OSError as error:
            self._once(f"{folder}: {error.strerror}: left out")
            if not isinstance(error, FileNotFoundError):
                found += [Place(s.name, s.version, s.path) for s in self.all() if s.path.is_relative_to(folder)]

    def _allowed(self, place: Place) -> bool:
        if not NAME.fullmatch(place.name):
            self._once(f"{place.path}: a model's name has letters, digits, _, - and . only: left out")
            return False
        if not Path(os.path.realpath(place.path)).is_relative_to(self.directory or "/"):
            self._once(f"{place.path}: leads out of the directory: left out")
            return False
        return True

    def _once(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell("model left out", level="error", reason=what)


def _places_at(entry: Path) -> list[Place]:
    """The files that an entry of the directory is or has. Raises OSError for a folder that cannot be read."""
    if entry.suffix == SUFFIX and entry.is_file():
        return [Place(entry.stem, FIRST, entry)]
    if not entry.is_dir():
        return []
    versions = sorted(sub for sub in entry.iterdir() if VERSION.fullmatch(sub.name) and (sub / MODEL).is_file())
    unnumbered = [Place(entry.name, FIRST, entry / MODEL)] if (entry / MODEL).is_file() else []
    return [*unnumbered, *(Place(entry.name, sub.name, sub / MODEL) for sub in versions)]


def _unreadable(place: Place, error: Exception) -> ArtifactError:
    return ArtifactError(
        path=os.fspath(place.path), found=f"{type(error).__name__} ({error})", expected="a file that can be read, and runs here"
    )


def _number(entry: tuple[str, Served]) -> int:
    return int(entry[0])
