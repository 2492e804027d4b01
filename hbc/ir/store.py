"""Writes and reads the file of a saved model: one zip with a JSON document and
npy arrays. Nothing in it is ever executed, unpickled or extracted to disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hbc.errors import ArtifactError
from hbc.ir.types import Array

FORMAT = "hbc-model"
VERSION = 2
_DOCUMENT = "model.json"
_ARRAYS = "arrays/"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal models are equal files

EXPANSION = 200
SMALL = 1 << 28
"""A file may unpack to SMALL bytes (256 MiB) or to EXPANSION times its own size, whichever is more. Arrays of a large forest unpack to
about 10 times their size, a zip bomb to 1000 times."""

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    ValueError,
    TypeError,
    EOFError,
    OSError,
    RuntimeError,  # encrypted, unknown compression (NotImplementedError), nested too deeply (RecursionError)
    MemoryError,
    OverflowError,
    SyntaxError,  # numpy parses the header of an array as Python literals
)


def dump(document: Mapping[str, Any], arrays: Mapping[str, Array], file: IO[bytes]) -> None:
    """Write a zip file with a JSON document and the arrays that it refers to by key."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = {"format": FORMAT, "version": VERSION, **document}
        archive.writestr(zipfile.ZipInfo(_DOCUMENT, _EPOCH), json.dumps(header, indent=1), zipfile.ZIP_DEFLATED)
        for key, array in sorted(arrays.items()):
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{_ARRAYS}{key}.npy", _EPOCH), buffer.getbuffer(), zipfile.ZIP_DEFLATED)


def load(file: IO[bytes] | str | Path, name: str = "") -> tuple[dict[str, Any], dict[str, Array]]:
    """(the document, the arrays by key) of a file that `dump` wrote. `name` stands for the file in messages. Raises ArtifactError for any
    other file, and FileNotFoundError if there is none."""
    path = name or str(file)
    try:
        with zipfile.ZipFile(file) as archive:
            _require_harmless(archive, path)
            document = _document(archive, path)
            names = [member for member in archive.namelist() if member.startswith(_ARRAYS)]
            arrays = {Path(member).stem: _array(archive.read(member)) for member in names}
    except (FileNotFoundError, ArtifactError):
        raise
    except _UNREADABLE as error:
        raise ArtifactError(
            path=path,
            found=f"a file that cannot be read ({type(error).__name__}: {error})",
            expected="a model saved by hbc (CompiledModel.save)",
            advice="hbc.convert takes models of other libraries.",
        ) from error
    return document, arrays


def _require_harmless(archive: zipfile.ZipFile, path: str) -> None:
    """Raise ArtifactError for a file that would unpack to too much. The declared sizes are enough to know that before anything is unpacked,
    since zipfile unpacks no more than the declared size."""
    packed = sum(member.compress_size for member in archive.infolist())
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(SMALL, EXPANSION * packed):
        raise ArtifactError(
            path=path, found=f"{packed} bytes that unpack to {unpacked}", expected=f"at most {EXPANSION} times as many"
        )


def _document(archive: zipfile.ZipFile, path: str) -> dict[str, Any]:
    found = "a zip file of something else"
    if _DOCUMENT in archive.namelist():
        document = json.loads(archive.read(_DOCUMENT))
        if isinstance(document, dict) and document.get("format") == FORMAT:
            if not isinstance(document["version"], int) or document["version"] > VERSION:
                raise ArtifactError(
                    path=path,
                    found=f"format version {document['version']!r}",
                    expected=f"at most {VERSION}",
                    advice="It was saved by a newer hbc: upgrade with pip install -U hbc, or save it again.",
                )
            return document
    raise ArtifactError(path=path, found=found, expected="a model saved by hbc", advice="Use CompiledModel.save to make one.")


def _array(data: bytes) -> Array:
    stream = io.BytesIO(data)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.read(1):
        raise ValueError("an array with bytes behind its end")
    return array


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it. The old file stays whole until the new one is complete.
    Raises ArtifactError if `path` is a folder or its folder does not exist."""
    target = Path(path)
    if target.is_dir():
        raise ArtifactError(path=str(path), found="a folder", expected="the name of a file to write")
    if not target.parent.is_dir():
        raise ArtifactError(path=str(path), found="no such folder", expected="an existing folder to write to")
    # The name is not from tempfile, which makes files that only their owner can read. So the umask decides, as for any new file.
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise ArtifactError(
                path=str(path),
                found=f"a place that cannot be written to ({error.strerror or error})",
                expected="one with space and permission for a new file",
            ) from error
        raise
