"""The choices of `hbc tune`, kept in the user's cache folder: one file for each model's structure, backend and machine.

The folder is $HBC_CACHE, or `hbc` in $XDG_CACHE_HOME or ~/.cache. A model's structure is everything but the values of leaves. A model
that is trained anew has other splits, and so another structure.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from hbc.cache.folder import cache_folder
from hbc.compiler.base import CompileOptions, code_versions, known_backends, load_compiler, recalls
from hbc.errors import ArtifactError
from hbc.ir.graph import Graph
from hbc.ir.store import write_atomically
from hbc.lazy import record
from hbc.ops.tree import TreeEnsemble
from hbc.tuning.machine import this_machine

VERSION = 2  # it changes with the format of these files, and with the meaning of a strategy's name


@record
class Choice:
    """How a model is run. threads, block: None leaves it to the caller or the backend. batch: the rows of a call for which "auto"
    estimates times, or None for 1 to 100,000. It replaces the caller's batch size, because it is what was measured."""

    strategy: str
    threads: int | None = None
    block: int | None = None
    batch: int | None = None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" for {self.batch:,} row" + "s" * (self.batch != 1)
        threads = "" if self.threads is None else f", {self.threads} thread" + "s" * (self.threads != 1)
        return self.strategy + batch + threads + ("" if self.block is None else f", blocks of {self.block:,} rows")

    def applied(self, options: CompileOptions) -> CompileOptions:
        """The caller's options with this choice. Threads and blocks that the caller has set stay."""
        threads, block = options.threads or self.threads, options.block or self.block
        return replace(options, threads=threads, block=block, batch_size=self.batch)


@record
class Tuned:
    """The result of `hbc tune` for a model. rows: the numbers of rows in a call that were measured. overall: the choice for all of them
    together. each: the choice for each of them. note: the words for `explain()`."""

    rows: tuple[int, ...]
    overall: Choice
    each: tuple[Choice, ...]
    note: str

    def choice(self, batch_size: int | None) -> Choice:
        """The choice for calls of so many rows: that of the nearest number measured (by its logarithm). None: the choice for all."""
        if batch_size is None:
            return self.overall
        return self.each[int(np.argmin(np.abs(np.log(np.array(self.rows) / batch_size))))]


def folder() -> Path | None:
    """The folder of the files. It need not exist. None if nothing is to be kept."""
    base = cache_folder()
    return None if base is None else base / "tuned"


def path_of(graph: Graph, backend: str, options: CompileOptions) -> Path | None:
    """The path of the file for a model. None if nothing is to be kept. The versions of the backend's packages are part of it, so they are
    imported, but for those of a backend whose code in the cache needs less: loading such a model must not import TVM's compiler."""
    base = folder()
    if base is None:
        return None
    kind = options.device.partition(":")[0]  # which one of several equal GPUs does not matter
    facts = {
        "version": VERSION,
        "structure": structure(graph),
        "backend": backend,
        "libraries": _versions(backend),
        "options": {**asdict(options), "device": kind, "batch_size": None, "target": repr(options.target)},
        "machine": this_machine(options.device),
    }
    return base / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]}.json"


def _versions(backend: str) -> dict[str, str]:
    """Package → version, of those that a backend needs. Raises BackendUnavailableError."""
    packages = known_backends()[backend].packages
    if recalls(backend):
        found = code_versions(backend)
    else:
        load_compiler(backend)
        found = {name: getattr(sys.modules.get(name), "__version__", "") for name in packages}
    return {name: found[name] for name in packages}


def structure(graph: Graph) -> str:
    """A hash of the graph's operators, the types of their values, and the trees without the values of their leaves."""
    found = hashlib.sha256()
    for node in graph.nodes:
        found.update(f"{type(node.op).__name__} {node.type}\n".encode())
        if isinstance(node.op, TreeEnsemble):
            op = node.op
            found.update(f"{op.values.shape} {op.values.dtype} {op.output} {op.exact} {op.near}\n".encode())
            for array in (op.roots, op.feature, op.threshold, op.left, op.right, op.missing_left, op.target):
                found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def find(graph: Graph, backend: str, options: CompileOptions, strategies: tuple[str, ...]) -> Tuned | None:
    """The choices kept for this model on this machine, or None. A damaged file gives a warning and None."""
    base = folder()
    if base is None or not base.is_dir() or not any(isinstance(node.op, TreeEnsemble) for node in graph.nodes):
        return None
    path = path_of(graph, backend, options)
    assert path is not None
    try:
        document = json.loads(path.read_text())
        rows = tuple(int(count) for count in document["rows"])
        each = tuple(_choice(entry, strategies) for entry in document["each"])
        if not rows or min(rows) < 1 or len(each) != len(rows):
            raise ValueError(f"{len(each)} choices for the rows {rows}")
        return Tuned(rows, _choice(document["overall"], strategies), each, str(document["note"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"{path}: the choice that hbc tune kept cannot be read and is ignored ({reason}). Tune again, or delete it."
        warnings.warn(message, UserWarning, stacklevel=2)
        return None


def _choice(entry: Mapping[str, Any], strategies: tuple[str, ...]) -> Choice:
    choice = Choice(**entry)
    numbers = (choice.threads, choice.block, choice.batch)
    if choice.strategy not in strategies or any(n is not None and (type(n) is not int or n < 1) for n in numbers):
        raise ValueError(f"the choice {choice}")
    return choice


def keep(tuned: Tuned, graph: Graph, backend: str, options: CompileOptions) -> Path | None:
    """Write the choices to their file and return its path. Returns None if HBC_CACHE says that nothing is to be kept, and None with a
    warning where it is impossible."""
    path = path_of(graph, backend, options)
    if path is None:
        return None
    facts = {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": this_machine(options.device)}
    text = json.dumps({**asdict(tuned), **facts}, indent=1)

    def write(file: IO[bytes]) -> object:
        return file.write(text.encode() + b"\n")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write)
    except (OSError, ArtifactError) as error:
        message = f"the choice cannot be kept for later calls of hbc.convert: {error}. Set HBC_CACHE to a folder that can be written to."
        warnings.warn(message, UserWarning, stacklevel=4)  # above `hbc.tune` and what checks its arguments
        return None
    return path
