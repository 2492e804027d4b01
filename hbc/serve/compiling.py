"""Compiling in a process of its own, which puts the code into the cache and ends: the server's processes find it there.

A process that has compiled keeps the compiler and what it needed: 680 MB with a forest of 4.5 million nodes, of which one that has
found the code has 38. And if the compiler takes all memory, or crashes, no request is lost.

The server sends the path of a file, and the other process a line when it has compiled it. What a model needs to be ready comes first: the
server sends the path again for the rest. It ends when nobody can send it more: also
when the server is killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hbc.cache.store import store
from hbc.errors import ArtifactError, HbcError
from hbc.loading import load
from hbc.serve.served import Served
from hbc.serve.statistics import Statistics


def has_cache() -> bool:
    """Whether a process finds in the cache what another has compiled."""
    found = store()
    return found is not None and found.takes()


def command_of(module: str, argument: str) -> list[str]:
    """The command that runs a module as a program which finds modules where this process does. `python -m` would look into the current
    folder first: a file `json.py` beside the models would be run."""
    code = (
        "import sys; sys.path[:] = sys.argv.pop().split('\\n'); import runpy; "
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, module, argument, "\n".join(sys.path)]


class Compiler:
    """Compiles the methods of saved models for the cache. options: of `hbc.load`, as JSON. methods: compile no others; (): all."""

    def __init__(self, options: Mapping[str, Any], methods: Sequence[str]) -> None:
        self._told = json.dumps({"options": dict(options), "methods": list(methods)})
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def end(self) -> None:
        """End the process, if there is one: the next `compile` starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def compile(self, path: Path, first: bool, later: bool = False) -> None:
        """Compile the methods of a file. first: `Served.first` only. later: requests are answered meanwhile, and come first. Raises
        ArtifactError if the process ends before it is done. A file that cannot be loaded is no error here: who loads it next finds out.

        It starts a process, if there is none. That goes on until `end`, and takes the next file."""
        if self._process is None:
            # A process group of its own: Ctrl-C is for the server, which ends this process. Not a session: Linux shares the processor
            # between sessions first, and its priority would hold in its own only.
            self._process = subprocess.Popen(
                command_of("hbc.serve.compiling", self._told),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._stopped:
            process.kill()
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps({"path": os.fspath(path), "first": first, "later": later}) + "\n")
            process.stdin.flush()
        if not process.stdout.readline():
            process.communicate()
            self._process = None
            raise ArtifactError(
                path=os.fspath(path),
                found=f"that the process which compiles it has ended with {_words(process.returncode)}",
                expected="compiled code",
                advice="If memory was short, compile the model where there is more: CompiledModel.save(path, code=…), --trust-code.",
            )

    def stop(self) -> None:
        """End the process, now and in future. Any thread may call this: the one that waits for it goes on."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()


def _words(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _main(told: str) -> None:
    """Compile the files that come on stdin, in a thread: at the end of stdin the process ends, whatever it does."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    os.nice(5)  # other models may be answering: on a full processor it gets a quarter of what a worker gets
    document = json.loads(told)
    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def compile_all() -> None:
        try:
            while True:
                work = asked.get()
                path = Path(work["path"])
                if work["later"]:  # a tenth of what a worker gets; in all threads of this process
                    os.setpriority(os.PRIO_PGRP, 0, max(10, os.getpriority(os.PRIO_PGRP, 0)))
                with contextlib.suppress(HbcError, OSError, ValueError):
                    model = load(path, **document["options"])
                    served = Served("", "", path, None, model, Statistics(), document["methods"])
                    served.warm_up(served.first if work["first"] else ())
                print("done", file=answers, flush=True)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=compile_all, daemon=True).start()
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
