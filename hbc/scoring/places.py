"""Files and folders, local or behind a URL that fsspec knows: how they are found, opened, written aside and renamed."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hbc.errors import ArtifactError, requires
from hbc.lazy import record

ADVICE = "Files that were finished before stay good: mend what is wrong and start again."


@record
class Place:
    """A file or folder: `name` as a message calls it, and its path in a file system of fsspec."""

    name: str
    fs: Any
    path: str
    local: bool

    def child(self, relative: str) -> Place:
        """The place of this name below the folder."""
        return Place(f"{self.name.rstrip('/')}/{relative}", self.fs, f"{self.path.rstrip('/')}/{relative}", self.local)

    @property
    def parent(self) -> Place:
        """The folder that it lies in."""
        folder = self.path.rstrip("/").rpartition("/")[0] or "/"
        return Place(self.name.rstrip("/").rpartition("/")[0] or folder, self.fs, folder, self.local)

    def exists(self) -> bool:
        with reaching(self.name):
            return bool(self.fs.exists(self.path))

    def is_folder(self) -> bool:
        with reaching(self.name):
            return bool(self.fs.isdir(self.path))

    def size(self) -> int | None:
        """The bytes of the file, None if there is none."""
        try:
            with reaching(self.name):
                return int(self.fs.info(self.path)["size"])
        except FileNotFoundError:
            return None

    def make_folder(self) -> None:
        """Make the folder and those above it. Raises ArtifactError if it cannot."""
        with writing(self.name):
            self.fs.makedirs(self.path, exist_ok=True)

    def remove(self) -> None:
        """Remove the file, or the folder and all in it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path, recursive=self.is_folder())

    def read(self) -> bytes:
        with reaching(self.name):
            return bytes(self.fs.cat_file(self.path))

    def write(self, data: bytes) -> None:
        """Write a small file, aside and then renamed."""
        with self.aside(self.parent) as temporary, writing(self.name), temporary.fs.open(temporary.path, "wb") as file:
            file.write(data)

    @contextlib.contextmanager
    def aside(self, folder: Place) -> Iterator[Place]:
        """A place in `folder` to write to, which takes this file's name at the end of the context. If the context raises, it is removed,
        and what was there before stays. Two processes that write the same file do not meet: each has a name of its own. Raises
        ArtifactError for a device or a pipe."""
        # A rename would replace /dev/null itself.
        if self.local and os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ArtifactError(path=self.name, found="no regular file", expected="the name of a file to write")
        temporary = folder.child(f".{self.path.rpartition('/')[2][:100]}.{secrets.token_hex(8)}.part")
        try:
            yield temporary
            with writing(self.name):
                if self.local:
                    with open(temporary.path, "rb") as file:
                        os.fsync(file.fileno())
                    os.replace(temporary.path, self.path)
                else:
                    self.fs.mv(temporary.path, self.path)
        except BaseException:
            with contextlib.suppress(Exception):
                self.fs.rm_file(temporary.path)
            raise


def place_of(name: str | os.PathLike[str]) -> Place:
    """The Place of a path, which becomes absolute, or of a URL. Raises ArtifactError for a URL of a kind that fsspec does not know,
    BackendUnavailableError without fsspec."""
    with requires("score"):
        from fsspec import filesystem
        from fsspec.core import url_to_fs
    text = os.fspath(name)
    if "://" not in text:
        path = os.path.abspath(text)
        return Place(path, filesystem("file"), path, True)
    with reaching(text):
        try:
            fs, path = url_to_fs(text)
        except (ImportError, ValueError) as error:
            raise ArtifactError(
                path=text, found=f"a URL that cannot be opened ({error})", expected="a path, or a URL that fsspec knows"
            ) from error
    local = text.startswith("file://")
    return Place(path if local else text, fs, path, local)


@contextlib.contextmanager
def reaching(name: str) -> Iterator[None]:
    """A context in which what goes wrong behind a URL becomes an ArtifactError that names it. The libraries of file systems have errors of
    their own, such as botocore's where there are no credentials: they are no OSError, or one without a name. What Python itself raises of
    other kinds (a file that is not there, a wrong value) stays."""
    try:
        yield
    except (FileNotFoundError, ImportError, ValueError):
        raise
    except Exception as error:
        if "://" not in name:
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ArtifactError(
            path=name,
            found=f"a URL that cannot be reached ({reason})",
            expected="one that can",
            advice="fsspec's settings hold its keys and its endpoint.",
        ) from error


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """A context in which an OSError becomes an ArtifactError that names the file and says what is wrong with its place."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).strip() or type(error).__name__
        raise ArtifactError(
            path=name,
            found=f"a place that cannot be written to ({re.sub(r'.*Detail: .errno [0-9]+. ', '', reason)})",  # as pyarrow says it
            expected="one with space and permission for a new file",
            advice=ADVICE,
        ) from error


def same_file(one: Place, other: Place) -> bool:
    """Whether two places are one file, also by way of links."""
    if one.local and other.local:
        first, second = Path(one.path), Path(other.path)
        return first.resolve() == second.resolve() or (first.exists() and second.exists() and first.samefile(second))
    return type(one.fs) is type(other.fs) and one.path == other.path


def files_below(root: str, pattern: str) -> Mapping[str, Any]:
    """Path → no facts of the files below a folder of this computer whose path from there matches a glob. Raises ArtifactError for a folder
    that cannot be read. fsspec passes over such folders, and over links to folders: their rows would be missing in the results."""
    from fsspec.utils import glob_translate

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            return
        raise ArtifactError(
            path=str(error.filename),
            found=f"a folder that cannot be read ({error.strerror})",
            expected="folders whose files can all be scored",
            advice="Name the others, or give a glob that leaves it out.",
        ) from error

    def leads_on(folder: str, name: str) -> bool:
        path = os.path.join(folder, name)
        if is_hidden(name) or not _may_hold(pattern, path[len(root) + 1 :]):
            return False
        real = os.path.realpath(path)
        return os.path.commonpath([real, os.path.realpath(folder)]) != real  # else it is a link to a folder that it lies in

    wanted = re.compile(glob_translate(pattern))
    found: dict[str, Any] = {}
    for folder, below, names in os.walk(root or "/", onerror=refuse, followlinks=True):
        below[:] = [name for name in below if leads_on(folder, name)]
        paths = (os.path.join(folder, name) for name in names)
        found.update({path: {} for path in paths if wanted.match(path[len(root) + 1 :])})
    return found


def _may_hold(pattern: str, folder: str) -> bool:
    """Whether a file below a folder can match a glob."""
    parts = folder.split("/")
    for wanted, part in zip(pattern.split("/"), parts, strict=False):
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted):
            return False
    return len(parts) < len(pattern.split("/"))


def is_hidden(relative: str) -> bool:
    """Whether a part of the path begins with a dot or _, as files do that are no data, or is the `lost+found` of a volume. `_day=1` is a
    partition."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) or part == "lost+found"
        for part in relative.split("/")
    )
