"""The artefact: one zip of JSON and npy members. Nothing in it is ever executed or unpickled."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hbc.errors import ArtifactError
from hbc.ir.types import Array

FORMAT = "hbc-model"
VERSION = 1
_DOCUMENT = "model.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal models are equal files


def dump(document: Mapping[str, Any], arrays: Mapping[str, Array], file: IO[bytes]) -> None:
    """Write a document and the arrays that it refers to."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = {"format": FORMAT, "version": VERSION, **document}
        archive.writestr(zipfile.ZipInfo(_DOCUMENT, _EPOCH), json.dumps(header, indent=1))
        for key, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"arrays/{key}.npy", _EPOCH), buffer.getvalue(), zipfile.ZIP_DEFLATED)


def load(file: IO[bytes] | str | Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what `dump` wrote. Raises ArtifactError for anything else, FileNotFoundError where there is no file."""
    path = str(file) if isinstance(file, (str, Path)) else "model"
    try:
        with zipfile.ZipFile(file) as archive:
            document = json.loads(archive.read(_DOCUMENT))
            if not isinstance(document, dict) or document.get("format") != FORMAT:
                raise ArtifactError(path=path, found="a zip file of something else", expected="a model saved by hbc")
            if document["version"] > VERSION:
                raise ArtifactError(
                    path=path,
                    found=f"format version {document['version']}",
                    expected=f"at most {VERSION}",
                    advice="Upgrade hbc to read it.",
                )
            names = [name for name in archive.namelist() if name.startswith("arrays/")]
            arrays = {
                Path(name).stem: np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False) for name in names
            }
    except FileNotFoundError:
        raise
    except ArtifactError:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, TypeError) as error:
        raise ArtifactError(
            path=path,
            found=f"a file that cannot be read ({type(error).__name__}: {error})",
            expected="a model saved by hbc (CompiledModel.save)",
        ) from error
    return document, arrays


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: the old file stays whole until the new one is."""
    target = Path(path)
    if not target.parent.is_dir():
        raise ArtifactError(path=str(path), found="no such folder", expected="an existing folder to write to")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
