"""Where the cache lies, and whether what is found there may be trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def cache_folder() -> Path | None:
    """$HBC_CACHE, or `hbc` in $XDG_CACHE_HOME or ~/.cache. It need not exist. None if HBC_CACHE is set to nothing, or if the user has no
    home: then nothing is kept."""
    own, shared = os.environ.get("HBC_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own is not None:
        return Path(own).absolute() if own else None
    if shared and os.path.isabs(shared):
        return Path(shared, "hbc")
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home, ".cache", "hbc")


def is_own(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user (or to root), and no other user may write to it. Code that another user could have
    written is never loaded."""
    if not hasattr(os, "geteuid"):
        return True  # Windows: folders of a user are private
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read and write, and its parents as usual. Raises OSError, also if the folder is another
    user's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own(folder.lstat()):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it")
