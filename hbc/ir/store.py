"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

from hbc.errors import ArtifactError


def write_atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it. The old file stays whole until the new one is complete.
    Raises ArtifactError if `path` is a folder, a device or a pipe, or its folder does not exist."""
    target = Path(path)
    if target.exists() and not target.is_file():  # a rename would replace /dev/null itself
        found = "a folder" if target.is_dir() else "a device or a pipe"
        raise ArtifactError(path=str(path), found=found, expected="the name of a file to write")
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
