"""Models in files and folders: versions, reload without a lost request, bad files, and what is never read."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from serving import folder, numbers, people, running, settings, until

import hbc
from hbc.errors import HbcError
from hbc.serve.failures import Failure
from hbc.serve.logs import Log
from hbc.serve.process import settle
from hbc.serve.repository import Repository
from hbc.serve.served import Served


def put(source: str, target: Path) -> None:
    """Copy a model so that it appears whole, with another stamp than what was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(".new")
    shutil.copy(folder() / f"{source}.hbc", new)
    new.replace(target)


def told() -> tuple[list[dict[str, Any]], Any]:
    lines: list[dict[str, Any]] = []
    return lines, lambda event, **facts: lines.append({"event": event, **facts})


def test_folders_of_versions(tmp_path: Path) -> None:
    put("people", tmp_path / "a" / "2" / "model.hbc")
    put("numbers", tmp_path / "a" / "10" / "model.hbc")
    put("people", tmp_path / "b" / "model.hbc")
    put("people", tmp_path / "c.hbc")
    (tmp_path / "a" / "x").mkdir()
    (tmp_path / "notes.txt").write_text("")
    repository = Repository({}, tmp_path)
    assert not repository.ready
    assert sorted(repository.refresh()) == ["a", "a", "b", "c"]
    assert repository.refresh() == []
    assert repository.versions("a") == ["2", "10"]
    assert repository.get("a").version == "10"  # by number, not by text
    assert repository.get("a", "2").names == repository.get("b").names
    assert [each["name"] for each in repository.index()] == ["a", "a", "b", "c"]
    assert repository.ready
    for name, version in (("a", "3"), ("x", None), ("..", None), ("a/2", None), ("", None)):
        with pytest.raises(Failure) as error:
            repository.get(name, version)
        assert error.value.kind == "missing"
    shutil.rmtree(tmp_path / "a" / "10")
    assert repository.refresh() == ["a"]
    assert repository.get("a").version == "2"
    shutil.rmtree(tmp_path / "a")
    repository.refresh()
    with pytest.raises(Failure):
        repository.get("a")


def test_models_that_were_replaced_are_freed(tmp_path: Path) -> None:
    """Also one that a request still holds when the garbage collector is told to leave alone what stays."""
    path = tmp_path / "m.hbc"
    put("people", path)
    calls: list[None] = []
    repository = Repository({"m": path}, released=lambda: calls.append(None))
    try:
        repository.refresh()
        settle()
        models = [weakref.ref(repository.get("m").model)]
        for source in ("numbers", "people", "people"):
            put(source, path)
            repository.refresh()
            models.append(weakref.ref(repository.get("m").model))
            settle()
        assert [each() is None for each in models] == [True, True, True, False]

        held = repository.get("m")
        repository.unload("m")
        settle()
        assert models[-1]() is held.model
        before = len(calls)
        del held
        assert len(calls) == before + 1
        settle()
        assert models[-1]() is None
    finally:
        gc.unfreeze()


def test_a_bad_file_in_the_directory_costs_no_other_model(tmp_path: Path) -> None:
    """The server stays ready: also while a further version is being written."""
    put("people", tmp_path / "named.hbc")
    put("people", tmp_path / "models" / "a" / "1" / "model.hbc")
    repository = Repository({"named": tmp_path / "named.hbc"}, tmp_path / "models")
    repository.refresh()
    assert repository.ready
    bad = [tmp_path / "models" / "a" / "2" / "model.hbc", tmp_path / "models" / "b.hbc"]
    bad[0].parent.mkdir()
    for path in bad:
        path.write_bytes(b"PK")
    repository.refresh()
    repository.require_named()
    assert [each["state"] for each in repository.index()] == ["READY", "READY", "UNAVAILABLE", "UNAVAILABLE"]
    assert repository.ready
    for path in bad:
        put("people", path)
    repository.refresh()
    assert [each["state"] for each in repository.index()] == ["READY"] * 4
    repository.unload("named")
    assert repository.ready

    bad[1].write_bytes(b"PK")
    named = Repository({"b": bad[1]}, tmp_path / "models")
    named.refresh()
    assert named.versions("a") == ["1", "2"]
    assert not named.ready
    with pytest.raises(HbcError, match=rf"^{bad[1]}: found a file that cannot be read [^:]*\.$"):
        named.require_named()
    missing = Repository({"c": tmp_path / "c.hbc"})
    missing.refresh()
    with pytest.raises(
        HbcError, match=r"c\.hbc: found FileNotFoundError .*, expected a file that can be read, and runs here\.$"
    ):
        missing.require_named()


def test_a_name_that_is_no_utf8_costs_no_other_model(tmp_path: Path) -> None:
    """The log could not write it, which ended the server."""
    put("people", tmp_path / "a.hbc")
    (tmp_path / os.fsdecode(b"b\xff.hbc")).write_bytes(b"")
    stream = io.StringIO()
    repository = Repository({}, tmp_path, tell=Log(stream).tell)
    assert repository.refresh() == ["a"]
    first, _ = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "model left out"
    assert first["reason"].startswith(os.fsdecode(bytes(tmp_path) + b"/b\xff.hbc: a model's name"))


def test_a_library_that_fails_costs_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("people", tmp_path / "a.hbc")
    put("people", tmp_path / "b.hbc")
    real = Served.warm_up

    def warm_up(served: Served, *args: Any) -> None:
        if served.name == "a":
            raise RuntimeError("no memory on the device")
        real(served, *args)

    monkeypatch.setattr(Served, "warm_up", warm_up)
    repository = Repository({}, tmp_path)
    assert repository.refresh() == ["b"]
    assert "no memory on the device" in repository.index()[1]["reason"]


def test_a_bad_file_keeps_the_model_of_before(tmp_path: Path) -> None:
    path = tmp_path / "m.hbc"
    put("people", path)
    lines, tell = told()
    repository = Repository({"m": path}, tell=tell)
    repository.refresh()
    first = repository.get("m")
    whole = (folder() / "numbers.hbc").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PK\3\4", pickle.dumps({"a": 1})):
        path.write_bytes(content)
        assert repository.refresh() == []
        assert repository.get("m") is first
        assert repository.ready
        assert (lines[-1]["event"], lines[-1]["level"]) == ("model not loaded", "error")
        assert lines[-1]["kept"]
        count = len(lines)
        repository.refresh()
        assert len(lines) == count  # it is said once, and the file is not read again
    path.unlink()
    repository.refresh()
    assert repository.get("m") is first
    path.write_bytes(whole)
    assert repository.refresh() == ["m"]
    assert repository.get("m").names == tuple(numbers()[0])
    assert repository.get("m").statistics is first.statistics
    path.write_bytes(b"")
    with pytest.raises(Failure, match=r"m\.hbc"):
        repository.load("m")
    assert repository.get("m").names == tuple(numbers()[0])


def test_a_file_that_is_replaced_while_a_bad_one_is_read_is_tried(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "m.hbc"
    path.write_bytes(b"PK\3\4")

    def load_and_replace(*args: Any, **options: Any) -> Any:
        try:
            return hbc.load(*args, **options)
        finally:
            put("people", path)

    monkeypatch.setattr(hbc.serve.repository, "load", load_and_replace)
    repository = Repository({"m": path})
    assert repository.refresh() == []
    monkeypatch.undo()
    assert repository.refresh() == ["m"]


def test_what_is_never_read(tmp_path: Path) -> None:
    """Files outside of the directory, by links or by names; pickles; names that no URL holds, or twice."""
    inside, outside = tmp_path / "models", tmp_path / "outside"
    put("people", outside / "secret.hbc")
    inside.mkdir()
    (inside / "link.hbc").symlink_to(outside / "secret.hbc")
    (inside / "folder").symlink_to(outside)
    (inside / "1").mkdir()
    (inside / "evil.pkl").write_bytes(pickle.dumps(1))
    put("people", inside / "a b.hbc")
    put("people", inside / "twice.hbc")
    put("people", inside / "twice" / "model.hbc")
    put("people", inside / "given.hbc")
    lines, tell = told()
    repository = Repository({"given": folder() / "numbers.hbc"}, inside, tell=tell)
    repository.refresh()
    repository.refresh()
    assert {(s.name, s.path.name) for s in repository.all()} == {
        ("given", "numbers.hbc"),
        ("twice", repository.get("twice").path.name),
    }
    reasons = [line["reason"] for line in lines if line["event"] == "model left out"]
    assert len(reasons) == 4, reasons
    with pytest.raises(Failure, match="no file"):
        repository.load("../outside/secret")
    with pytest.raises(ValueError, match="NAME=FILE"):
        Repository({"a b": folder() / "numbers.hbc"})


def test_folders_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lost+found` of a volume ended the server. What was loaded stays while its folder cannot be read, and is told once; what Kubernetes
    mounts comes by links from `..data`, which others take the place of."""
    for name in ("first", "second"):
        put("people" if name == "first" else "numbers", tmp_path / f"..{name}" / "linked.hbc")
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "linked.hbc").symlink_to("..data/linked.hbc")
    put("people", tmp_path / "a" / "3" / "model.hbc")
    (tmp_path / "lost+found").mkdir()
    locked = {tmp_path / "lost+found"}
    stat = Path.is_file

    def is_file(path: Path) -> bool:
        if locked & {path, *path.parents}:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    lines, tell = told()
    repository = Repository({}, tmp_path, tell=tell)
    assert sorted(repository.refresh()) == ["a", "linked"]
    assert repository.get("linked").names == repository.get("a").names
    (tmp_path / "next").symlink_to("..second")
    (tmp_path / "next").replace(tmp_path / "..data")
    locked.add(tmp_path / "a")
    assert repository.refresh() == ["linked"]
    assert repository.get("linked").names != repository.get("a").names
    assert repository.refresh() == []
    assert [line["reason"] for line in lines if line["event"] == "model left out"] == [
        f"{tmp_path / name}: Permission denied: left out" for name in ("lost+found", "a")
    ]
    shutil.rmtree(tmp_path / "a")
    assert repository.refresh() == ["a"]


def test_a_named_file_that_is_gone_is_told_once(tmp_path: Path) -> None:
    put("people", tmp_path / "m.hbc")
    lines, tell = told()
    repository = Repository({"m": tmp_path / "m.hbc"}, tell=tell)
    repository.refresh()
    (tmp_path / "m.hbc").unlink()
    for _ in range(3):
        assert repository.refresh() == []
    assert [line["event"] for line in lines] == ["model loaded", "model not loaded"]
    assert repository.get("m") is not None


def test_reload_and_unload_lose_no_request(tmp_path: Path) -> None:
    """While requests come, the file is replaced many times by another model: every answer is that of one of the two, none is an error."""
    path = tmp_path / "m.hbc"
    put("people", path)
    record = people()[0][:1].to_dict("records")[0]
    expected = {"1 lives" if people()[1].predict(people()[0][:1])[0] == "lives" else "1 dies"}
    found: list[tuple[int, bytes]] = []
    with running(settings(files={"m": str(path)}, poll=0.02)) as server:
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                status, _, data = server.ask("POST", "/v1/models/m:predict", {"record": record})
                found.append((status, data))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            before = server.worker.repository.get("m")
            put("people", path)
            until(lambda before=before: server.worker.repository.get("m") is not before)
            path.write_bytes(path.read_bytes()[:500])  # half a file changes nothing
            os.utime(path, ns=(1, 1))
        stop.set()
        for thread in threads:
            thread.join()
        assert len(found) > 20
        assert {status for status, _ in found} == {200}
        assert {b'"predict":"' + text.split()[1].encode() + b'"' in data for _, data in found for text in expected} == {True}
        assert server.worker.repository.get("m").statistics.success == len(found)
