"""Where the cache lies, and whether what is found there may be trusted."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
"""Linux's list of this process's file systems."""
LOCAL = frozenset(["btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "squashfs", "tmpfs", "xfs", "zfs"])
"""The kinds of file systems whose files stay readable while they are mapped, whatever other computers do."""


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


@cache
def is_local(folder: Path) -> bool:
    """Whether a folder lies on a file system of this computer, as Linux lists them; elsewhere False. On a network's, another computer can
    delete a file that is mapped here, and who reads it then is killed."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return False
    real, longest, kind = Path(os.path.realpath(folder)), 0, ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = mount.split()[4].replace(r"\040", " ")
        if len(point) >= longest and real.is_relative_to(point):  # of two at one place, the later one is seen
            longest, kind = len(point), source.split()[0]
    return kind in LOCAL


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read and write, and its parents as usual. Raises OSError, also if the folder is another
    user's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own(folder.lstat()):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it")
