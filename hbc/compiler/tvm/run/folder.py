"""The smallest folder that runs compiled code: numpy, tvm_ffi, TVM's runtime library and hbc, as they are installed here."""

from __future__ import annotations

import base64
import compileall
import hashlib
import os
import py_compile
import shutil
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import NamedTuple

from hbc.errors import ArtifactError, BackendUnavailableError

NEEDED = ("numpy", "apache-tvm-ffi", "typing_extensions")
"""The distributions that calls of compiled code import."""
LIBRARY = "tvm/lib/libtvm_runtime.so"
"""TVM's runtime library in the distribution apache-tvm: the one file of its 300 MB that calls need."""
HBC = Path(__file__).parents[3]
OWN_PLACE = Path(__file__).parent.relative_to(HBC.parent)
"""Where the runtime library goes: to `run/code.py`, which looks for it there."""


class Made(NamedTuple):
    """A folder that was made: distribution → version, and its bytes."""

    versions: dict[str, str]
    bytes: int


def make_folder(folder: Path) -> Made:
    """Make the folder, and say what is in it. It appears whole or not at all. With it in $PYTHONPATH, Python needs no other package for
    saved models with compiled code. It is for this kind of processor and this version of Python.

    Every file is compared with the SHA-256 that its distribution lists. Tests, headers and types are left out.

    Raises ArtifactError if there is such a folder and it is not empty, or if an installed file is damaged; BackendUnavailableError if a
    distribution is missing."""
    if sys.platform != "linux":
        raise BackendUnavailableError(backend="tvm", reason="compiled code is saved for Linux only")
    _require_new(folder)
    if not folder.absolute().parent.is_dir():
        raise ArtifactError(path=str(folder), found="no such folder to make it in", expected="an existing one")
    libraries = {name: _installed(name) for name in (*NEEDED, "apache-tvm")}
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        for name in NEEDED:
            for file in libraries[name].files or ():
                if _is_needed(file):
                    _write(temporary / file, _checked(file))
        shutil.copytree(HBC, temporary / HBC.name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in _about_hbc():
            _write(temporary / file, _checked(file))
        tvm = libraries["apache-tvm"]
        for file in tvm.files or ():
            if str(file) == LIBRARY:
                _write(temporary / OWN_PLACE / f"libtvm_runtime-{tvm.version}.so", _checked(file))
            elif "licenses" in file.parts:
                _write(temporary / "apache_tvm.licenses" / file.name, _checked(file))
        # Python looks whether a source has changed by its contents: by its time, a copy of the folder would be compiled at each start.
        compileall.compile_dir(temporary, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        temporary.chmod(0o755)
        _require_new(folder)  # another process may have made it meanwhile
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Made({name: library.version for name, library in libraries.items()}, size)


def _require_new(folder: Path) -> None:
    """Raise ArtifactError if there is such a file, or such a folder and it is not empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ArtifactError(
            path=str(folder), found="a folder that is not empty, or a file", expected="the name of a new folder"
        )


def _installed(name: str) -> Distribution:
    """A distribution. Raises BackendUnavailableError if it is missing, or has no list of its files."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise BackendUnavailableError(backend="tvm", reason=f"{name} is not installed", extra="tvm") from None
    if not found.files:
        raise BackendUnavailableError(backend="tvm", reason=f"{name} has no list of its files: it was not installed by pip")
    return found


def _about_hbc() -> list[PackagePath]:
    """The licence and the version of hbc's own distribution. None where hbc is used from its sources."""
    try:
        files = distribution("hbc").files or []
    except PackageNotFoundError:
        return []
    return [file for file in files if file.name in ("LICENSE", "METADATA") and file.parts[0].endswith(".dist-info")]


def _is_needed(file: PackagePath) -> bool:
    """Whether a file of a distribution is copied: programs, libraries, licences. The list of its files would not be true any more."""
    if ".." in file.parts or "tests" in file.parts:
        return False
    if file.parts[0].endswith(".dist-info"):
        return file.name != "RECORD"
    return file.suffix == ".py" or ".so" in file.suffixes


def _checked(file: PackagePath) -> bytes:
    """The bytes of an installed file. Raises ArtifactError if its distribution lists another digest."""
    path = Path(str(file.locate()))
    data = path.read_bytes()
    if file.hash is not None:
        found = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
        if found != file.hash.value:
            raise ArtifactError(
                path=str(path),
                found=f"a file with the {file.hash.mode} {found}",
                expected=f"{file.hash.value}, as it was installed",
                advice="Someone has changed it: install it again with pip.",
            )
    return data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
