"""The folder for what is not finished: the lock that keeps two runs apart, and the manifest that tells what is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hbc.errors import ArtifactError
from hbc.scoring.inputs import Fragment
from hbc.scoring.places import Place, place_of, writing
from hbc.scoring.scorer import Options
from hbc.version import VERSION

FOLDER = "_hbc_score"
"""The folder in that of the results. Spark, pyarrow and Hive pass over names that begin with _."""
RESTART = "To begin anew: restart=True, on the command line --restart. It removes what the earlier run has written."
FREE = ("memory",)
"""The options that change no byte of the results: a run may go on with others."""


@contextlib.contextmanager
def locked(folder: Place, results: Place) -> Iterator[None]:
    """A context in which no other process of this computer is in one for the same folder. Raises ArtifactError if one is, for `results`,
    the file or folder that the caller knows. A process that is killed leaves no lock. Behind a URL there is none: two runs there write
    the same files, each whole."""
    if not folder.local:
        yield
        return
    import fcntl

    path = os.path.join(folder.path, "lock")
    while True:
        folder.make_folder()
        with writing(path):
            try:
                file = open(path, "a+")  # noqa: SIM115  open as long as the lock is held
            except FileNotFoundError:  # the one that held the lock has removed the folder meanwhile
                continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            who = file.read(200).strip() or "another process"
            file.close()
            raise ArtifactError(
                path=results.name,
                found=f"results that {who} is writing",
                expected="one run at a time",
                advice="Wait for it, or stop it: then start again, and it goes on.",
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                break
        file.close()  # the one that held the lock has removed the file meanwhile
    with file:
        with contextlib.suppress(OSError):  # a full disk: who holds the lock is told to people only
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(folder.path)  # if nothing is in it


class Manifest:
    """What a run writes into a folder, and which of its files are done. It is kept as JSON, so that the next start goes on."""

    def __init__(self, folder: Place, fragments: Sequence[Fragment], options: Options, model: str) -> None:
        self._folder, self.place = folder, folder.child(f"{FOLDER}/manifest.json")
        asked = {name: value for name, value in asdict(options).items() if name not in (*FREE, "digest")}
        self.model, self.options = {"path": model, "sha256": options.digest}, json.loads(json.dumps(asked))
        self.fragments = fragments
        self.done: dict[str, dict[str, Any]] = {}
        """The path of an output below the folder → what was done for it."""
        self._written, self._took = 0.0, 0.0

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all that decides the bytes of the results."""
        inputs = [self._facts(fragment) for fragment in self.fragments]
        said = [VERSION, self.model["sha256"], self.options, inputs]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def go_on(self) -> None:
        """Take over what the manifest of an earlier start says is done, if there is one. Raises ArtifactError if the model, the options or
        the inputs are others now, or if it cannot be read."""
        document = self.earlier()
        if document is None:
            return
        if document["fingerprint"] != self.fingerprint and (difference := self._difference(document)):
            found, expected = difference
            raise ArtifactError(path=self._folder.name, found=found, expected=expected, advice=RESTART)
        for fragment in self.fragments:
            name = self.below(fragment.output)
            done = document["done"].get(name)
            if done is not None and place_of(fragment.output).size() == done["output_bytes"]:
                self.done[name] = done

    def below(self, output: str) -> str:
        """The path of an output below the folder, so that the folder may be moved."""
        return output.removeprefix(self._folder.name.rstrip("/")).lstrip("/")

    def _facts(self, fragment: Fragment) -> dict[str, Any]:
        names = ("input", "format", "size", "modified", "output_format", "compression")
        return {name: getattr(fragment, name) for name in names} | {"output": self.below(fragment.output)}

    def earlier(self) -> Any:
        """The manifest of an earlier start. None if there is none, or if a start with other options has ended before it wrote a result,
        such as one with a wrong name. (Behind a URL, where nothing is locked, it may still be at work.)"""
        document = self.document()
        if document is None or document["fingerprint"] == self.fingerprint or document["done"] or not self._folder.local:
            return document
        written = any(self._folder.child(planned["output"]).exists() for planned in document["inputs"])
        return document if written else None

    def document(self) -> Any:
        """The manifest that is there, None if there is none. Raises ArtifactError if it cannot be read."""
        try:
            document = json.loads(self.place.read())
            if document["format"] != 1 or not {"hbc", "fingerprint", "model", "options", "inputs", "done"} <= document.keys():
                raise ValueError("another format")
            for planned in document["inputs"]:
                if ".." in planned["output"].split("/"):  # --restart removes these files
                    raise ValueError(f"an output outside of the folder, {planned['output']!r}")
            return document
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise ArtifactError(
                path=self.place.name,
                found=f"a manifest that cannot be read ({error})",
                expected="what hbc wrote",
                advice=RESTART,
            ) from error

    def _difference(self, document: Any) -> tuple[str, str] | None:
        """(found, expected): what is different from the earlier start, so that it cannot go on. None if only inputs have changed that it
        has not finished: somebody has mended them."""
        if document["hbc"] != VERSION:
            return f"hbc {VERSION}", f"hbc {document['hbc']}, with which the run was started"
        if document["model"]["sha256"] != self.model["sha256"]:
            return (
                f"another model ({self.model['path']})",
                f"the one with which the run was started ({document['model']['path']})",
            )
        for name, value in self.options.items():
            if (before := document["options"].get(name)) != value:
                return f"the option {name} = {value!r}", f"{before!r}, with which the run was started"
        before = {each["input"]: each for each in document["inputs"]}
        now = {fragment.input: self._facts(fragment) for fragment in self.fragments}
        for what, names in (
            ("a new input", now.keys() - before.keys()),
            ("an input missing", before.keys() - now.keys()),
            (
                "an input that has changed",
                {name for name in now.keys() & before.keys() if self._spoils(document, before[name], now[name])},
            ),
        ):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                return f"{what}: {min(names)}{more}", "the inputs with which the run was started"
        if [each["input"] for each in document["inputs"]] != [fragment.input for fragment in self.fragments]:
            return "inputs in another order", "the order with which the run was started"
        return None

    def _spoils(self, document: Any, before: Any, now: Mapping[str, Any]) -> bool:
        """Whether an input is another one than at the earlier start, so that what that start has done does not hold."""
        if now["output"] not in document["done"]:
            before, now = ({**each, "size": None, "modified": None} for each in (before, now))
        return bool(before != now)

    def finished(self, summary: dict[str, Any], write: bool) -> None:
        """Note that a fragment is done. The file is written at most once a second, and for at most a twentieth of the time: what it does
        not say yet would be scored again."""
        name = self.below(summary["output"])
        self.done[name] = {**summary, "output": name}
        if write and time.monotonic() - self._written > max(1.0, 20 * self._took):
            self.write()

    def write(self) -> None:
        """Write the manifest."""
        started = time.monotonic()
        document = {
            "about": "hbc score: a second start with the same model, options and inputs goes on from here",
            "format": 1,
            "hbc": VERSION,
            "fingerprint": self.fingerprint,
            "model": self.model,
            "options": self.options,
            "inputs": [self._facts(fragment) for fragment in self.fragments],
            "complete": len(self.done) == len(self.fragments),
            "done": self.done,
        }
        self.place.write(json.dumps(document, indent=1, ensure_ascii=False).encode())
        self._written = time.monotonic()
        self._took = self._written - started


def clear(folder: Place, of: Callable[[str], bool]) -> None:
    """Remove the files in a folder whose names are meant."""
    if folder.is_folder():
        for path in folder.fs.ls(folder.path, detail=False):
            name = path.rstrip("/").rpartition("/")[2]
            if of(name):
                folder.child(name).remove()
