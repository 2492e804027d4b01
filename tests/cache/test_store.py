"""The store of compiled code on disk: whatever is damaged, missing or another user's counts as not there."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from hbc.cache import folder
from hbc.cache.folder import cache_folder, is_local, is_own
from hbc.cache.store import MAPPED, Store, store


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def files(kept: Store) -> list[Path]:
    return sorted(path for path in kept.folder.rglob("*") if path.is_file())


def test_what_is_put_is_found(kept: Store) -> None:
    digest = kept.put(b"code")
    assert digest == hashlib.sha256(b"code").hexdigest()
    assert kept.get(digest) == b"code"
    kept.refer("model", "key", {"code": digest})
    assert kept.find("model", "key") == {"code": digest}
    assert kept.find("model", "another") is None
    assert kept.get("0" * 64) is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:3] + b"#" + data[4:], lambda data: data + b" "]
)
def test_damaged_files_are_not_there(kept: Store, damage) -> None:
    digest = kept.put(b"machine code")
    kept.refer("model", "key", {"code": digest})
    for path in files(kept):
        path.write_bytes(damage(path.read_bytes()))
    assert kept.put(b"machine code") == digest
    assert kept.get(digest) == b"machine code"
    for path in files(kept):
        path.write_bytes(damage(path.read_bytes()))
    assert kept.get(digest) is None
    assert kept.find("model", "key") is None
    assert files(kept) == []  # they are written anew the next time
    assert kept.get(kept.put(b"machine code")) == b"machine code"


LARGE = bytes(range(256)) * (MAPPED // 256)


def mapped(name: str) -> list[str]:
    """The mappings of this process that have a file of this name: address range, permissions, and so on."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(name)]


def test_large_files_are_mapped_for_reading_only(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hbc.cache.store.is_local", lambda folder: True)
    digest, small = kept.put(LARGE), kept.put(LARGE[1:])
    view, read = kept.view(digest), kept.view(small)
    assert view == LARGE
    assert read == LARGE[1:]
    assert view is not None
    assert view.readonly
    if Path("/proc/self/maps").exists():
        assert [line.split()[1] for line in mapped(digest)] == ["r--s"]
        assert not mapped(small)
    kept.clear()
    assert view == LARGE  # a file that is deleted or replaced stays what it was for those who have it
    assert kept.view(digest) is None


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"#" + data[1:], lambda data: data[:-1] + b"#"])
def test_large_damaged_files_are_not_there(kept: Store, damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hbc.cache.store.is_local", lambda folder: True)
    digest = kept.put(LARGE)
    (path,) = files(kept)
    path.write_bytes(damage(LARGE))
    assert kept.view(digest) is None
    assert files(kept) == []
    assert kept.view(kept.put(LARGE)) == LARGE


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX")
def test_large_files_that_others_may_write_are_not_mapped(kept: Store) -> None:
    digest = kept.put(LARGE)
    files(kept)[0].chmod(0o666)
    assert kept.view(digest) is None


MOUNTS = """\
22 1 0:21 / / rw - {root} /dev/vda rw
23 22 0:22 / /home/with\\040space rw,relatime shared:1 - {home} server:/home rw
"""


@pytest.mark.parametrize(
    ("root", "home", "place", "local"),
    [
        ("ext4", "nfs4", "/home/with space/hbc", False),
        ("ext4", "nfs4", "/home/with", True),
        ("nfs4", "tmpfs", "/home/with space", True),
        ("fuse.sshfs", "ext4", "/srv", False),
    ],
)
def test_files_of_a_network_are_not_mapped(
    root: str, home: str, place: str, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.format(root=root, home=home))
    monkeypatch.setattr(folder, "MOUNTS", tmp_path / "mountinfo")
    is_local.cache_clear()
    assert is_local(Path(place)) is local
    monkeypatch.setattr(folder, "MOUNTS", tmp_path / "none")
    is_local.cache_clear()
    assert not is_local(Path(place))
    is_local.cache_clear()


def test_only_this_user_can_read_and_write(kept: Store) -> None:
    kept.put(b"code")
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(kept))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX")
def test_files_that_others_may_write_are_not_read(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = kept.put(b"code")
    for mode in (0o620, 0o602):
        files(kept)[0].chmod(mode)
        assert kept.get(digest) is None
    files(kept)[0].chmod(0o600)
    assert kept.get(digest) == b"code"
    monkeypatch.setenv("HBC_CACHE", str(kept.folder.parent))
    assert store() is not None
    kept.folder.chmod(0o770)
    assert store() is None
    kept.folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)  # everything belongs to somebody else, if that is not root
    assert is_own(kept.folder.stat()) == (kept.folder.stat().st_uid == 0)


def test_links_are_not_followed(kept: Store, tmp_path: Path) -> None:
    digest = kept.put(b"code")
    (path,) = files(kept)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert kept.get(digest) is None


def test_a_folder_that_cannot_be_written_to_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = Store(tmp_path / "file")
    digest = kept.put(b"code")
    kept.refer("model", "key", {})
    assert kept.get(digest) is None
    assert kept.find("model", "key") is None
    assert kept.usage().files == 0


def test_the_files_used_longest_ago_go_first(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = [kept.put(bytes([number]) * 1000) for number in range(10)]
    for age, digest in enumerate(reversed(digests)):
        os.utime(kept._object(digest), (time.time() - 100 * age - 100,) * 2)
    assert kept.get(digests[0]) is not None  # which is used now
    monkeypatch.setenv("HBC_CACHE_LIMIT", "5000")
    kept.shrink()
    assert kept.usage().bytes == 4000
    assert [bool(kept.get(digest)) for digest in digests] == [True] + [False] * 6 + [True] * 3
    monkeypatch.setenv("HBC_CACHE_LIMIT", "100")
    assert kept.get(kept.put(b"x" * 101)) is None  # more than there may be at all


def test_what_a_killed_process_left_is_never_read_and_goes(kept: Store) -> None:
    digest = kept.put(b"code")
    left = files(kept)[0].with_name("abc.0123456789abcdef.tmp")
    left.write_bytes(b"half")
    kept.shrink()
    assert left.exists()  # perhaps another process is writing it
    os.utime(left, (0, 0))
    kept.shrink()
    assert not left.exists()
    assert kept.get(digest) == b"code"


def test_clear(kept: Store) -> None:
    kept.put(b"code")
    assert kept.clear().files == 1
    assert kept.usage().files == 0


def test_clear_says_what_it_could_not_delete(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.put(b"code")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # root may delete anything but on a disk that is read-only
    assert kept.clear().files == 0


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HBC_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.setenv("HBC_CACHE", "")
    assert cache_folder() is None
    assert store() is None
    monkeypatch.delenv("HBC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/hbc")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/hbc")
    monkeypatch.setenv("HBC_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="HBC_CACHE_LIMIT"):
        store()  # whether or not there is something to keep
    with pytest.raises(ValueError, match="HBC_CACHE_LIMIT"):
        Store(Path("/nowhere")).usage()
