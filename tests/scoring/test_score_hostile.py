"""Odd names, odd folders, inputs that change, strings that are none: each is told, and nothing is left out silently."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scoring_rows import frame_of

import hbc
from hbc.scoring import writers
from hbc.scoring.readers import ParquetReader
from hbc.scoring.work import locked

NAMES = ["a b", "東ü", "a[1]", "a*b", "q?", "#h", "100%", "x::y", "~t", "new\nline", "it's", "-dash", "é", "e\u0301", "c=d"]


def write(path: Path, frame: pd.DataFrame | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (frame_of(20) if frame is None else frame).to_parquet(path)


def test_odd_names(model: Path, tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / "in" / f"{name}.parquet")
    assert hbc.score(model, tmp_path / "in", tmp_path / "out").files == len(NAMES)
    assert hbc.score(model, tmp_path / "in", tmp_path / "out").files_before == len(NAMES)
    assert {path.stem for path in (tmp_path / "out").glob("*.parquet")} == set(NAMES)
    for name in NAMES:
        assert hbc.score(model, tmp_path / "in" / f"{name}.parquet", tmp_path / f"{name}.parquet").rows == 20


def test_a_name_that_is_no_utf8(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet")
    shutil.copy(tmp_path / "in" / "a.parquet", os.fsencode(tmp_path / "in") + b"/\xff.parquet")
    with pytest.raises(hbc.ArtifactError, match=r"in/\?\.parquet: found a name that is no UTF-8"):
        hbc.score(model, tmp_path / "in", tmp_path / "out")


def test_an_empty_name(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the current folder: a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="source: found an empty name"):
        hbc.score(model, "", "out")
    with pytest.raises(ValueError, match="sink: found an empty name"):
        hbc.score(model, "a.parquet", "")
    assert os.listdir() == ["a.parquet"]


def test_two_folders_of_one_name(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "k=1" / "k=2" / "a.parquet")
    with pytest.raises(hbc.InvalidInputError, match="two folders that give the column 'k'"):
        hbc.score(model, tmp_path / "in", tmp_path / "out", keep="k")
    assert hbc.score(model, tmp_path / "in", tmp_path / "other").files == 1


def test_digits_of_other_scripts_are_strings(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "k=٣" / "a.parquet")
    hbc.score(model, tmp_path / "in", tmp_path / "out", keep="k")
    assert pq.ParquetFile(tmp_path / "out" / "k=٣" / "a.parquet").read().column("k")[0].as_py() == "٣"


@pytest.mark.parametrize("output", ["../precious", "a/../../precious", 7])
def test_restart_removes_nothing_outside_of_the_folder(model: Path, tmp_path: Path, output: Any) -> None:
    """Whoever can write into the folder of the results had any file of the user's removed."""
    write(tmp_path / "in" / "a.parquet")
    hbc.score(model, tmp_path / "in", tmp_path / "out")
    manifest, precious = tmp_path / "out" / "_hbc_score" / "manifest.json", tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out" / "a").mkdir()
    document = json.loads(manifest.read_text())
    document["inputs"][0]["output"] = output
    manifest.write_text(json.dumps(document))
    with pytest.raises(hbc.ArtifactError, match="a manifest that cannot be read"):
        hbc.score(model, tmp_path / "in", tmp_path / "out")
    assert hbc.score(model, tmp_path / "in", tmp_path / "out", restart=True).rows == 20
    assert precious.read_text() == "mine"


def test_restart_removes_what_the_manifest_does_not_tell_yet(model: Path, tmp_path: Path) -> None:
    """A run was killed after it had renamed a file and before it wrote the manifest, and the input is gone since."""
    for name in "ab":
        write(tmp_path / "in" / f"{name}.parquet")
    hbc.score(model, tmp_path / "in", tmp_path / "out")
    manifest = tmp_path / "out" / "_hbc_score" / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["done"]["b.parquet"]
    manifest.write_text(json.dumps(document))
    (tmp_path / "in" / "b.parquet").unlink()
    hbc.score(model, tmp_path / "in", tmp_path / "out", restart=True)
    assert not (tmp_path / "out" / "b.parquet").exists()


def test_an_input_that_changes_while_it_goes_to_standard_output(model: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    code = (
        "import os, hbc, sys\nhbc.score(sys.argv[1], sys.argv[2], '-', progress=lambda progress: os.utime(sys.argv[2], (1, 1)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model), str(tmp_path / "a.parquet")], capture_output=True)
    assert b"a.parquet: found a file that was changed after the start" in done.stderr


def test_one_model_in_memory_from_several_threads(model: Path, tmp_path: Path) -> None:
    """The first call that ended took the model from the others, and a fifth one from the first."""
    for number in range(6):
        write(tmp_path / "in" / f"{number}.parquet")
    compiled = hbc.load(model)
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(hbc.score, compiled, tmp_path / "in", tmp_path / f"out-{i}", workers=1) for i in range(6)]
    assert [call.result().files for call in calls] == [6] * 6


def test_given_scorers_are_taken_back_one_by_one(model: Path) -> None:
    from hbc.scoring.scorer import Options, Scorer, forget_scorer, give_scorer, scorer_of

    options = Options(digest="x")
    scorers = [Scorer(hbc.load(model), options) for _ in range(6)]
    for each in scorers:
        give_scorer("a model in memory", options, each)
    for _ in scorers:
        assert scorer_of("a model in memory", options) in scorers
        forget_scorer("a model in memory", options)
    with pytest.raises(FileNotFoundError):
        scorer_of("a model in memory", options)


def wrong_utf8(rows: int) -> pa.Array:
    """A column of strings of which the second is no UTF-8, as other writers make them."""
    values = pa.array([b"Oslo", b"\xff", *[b"Oslo"] * (rows - 2)])
    return pa.Array.from_buffers(pa.string(), rows, values.buffers())


def test_strings_that_are_no_utf8(model: Path, tmp_path: Path) -> None:
    frame = frame_of(20)
    table = pa.Table.from_pandas(frame)
    pq.write_table(table.set_column(1, "town", wrong_utf8(20)), tmp_path / "x.parquet")
    with pytest.raises(hbc.InvalidInputError, match=r"row 1 .*column 'town': found a string that is no UTF-8"):
        hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.parquet")
    hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.parquet", bad_rows=tmp_path / "bad")
    told = [json.loads(line) for line in (tmp_path / "bad").read_text().splitlines()]
    assert [(each["row"], each["column"], each["value"]) for each in told] == [(1, "town", "\ufffd")]
    pq.write_table(table.append_column("more", wrong_utf8(20)), tmp_path / "x.parquet")
    with pytest.raises(hbc.ArtifactError, match="columns that jsonl does not hold"):
        hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.jsonl", keep="more")


def test_nan_in_lists_is_null_in_json(model: Path, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(frame_of(1)).append_column("more", pa.array([[{"a": [float("nan"), 1.5]}]]))
    pq.write_table(table, tmp_path / "x.parquet")
    hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.jsonl", keep="more")
    assert json.loads((tmp_path / "out.jsonl").read_text(), parse_constant=pytest.fail)["more"] == [{"a": [None, 1.5]}]


def test_a_group_of_feather_in_several_batches(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 2 GiB of strings in a group are several batches. Only the first was written."""
    write(tmp_path / "x.parquet")

    class Split:
        """A table whose `combine_chunks` gives two chunks."""

        def __init__(self, table: Any) -> None:
            self._table = table

        def combine_chunks(self) -> Any:
            half = self._table.num_rows // 2
            return pa.concat_tables([self._table.slice(0, half).combine_chunks(), self._table.slice(half).combine_chunks()])

    class Tables:
        @staticmethod
        def from_batches(batches: Any, schema: Any) -> Any:
            return Split(pa.Table.from_batches(batches, schema))

    class Halved(writers.Writer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._pa = type("pa", (), {"Table": Tables, "CompressedOutputStream": pa.CompressedOutputStream})

    monkeypatch.setattr(writers, "Writer", Halved)
    hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.feather", keep="id")
    assert pd.read_feather(tmp_path / "out.feather").id.tolist() == list(range(20))


def test_a_folder_of_work_that_another_run_takes_is_left_to_it(tmp_path: Path) -> None:
    """A run that ends removes its own files, not those of one that has begun meanwhile."""
    from hbc.scoring.places import place_of

    folder = place_of(tmp_path / "work")
    with locked(folder, folder):
        assert (tmp_path / "work" / "lock").exists()
    assert not (tmp_path / "work").exists()
    with locked(folder, folder):
        (tmp_path / "work" / "other.part").touch()
    assert os.listdir(tmp_path / "work") == ["other.part"]


def test_strings_that_become_long_make_batches_small(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows said how large a batch may be. The others would be 24 MB together."""
    frame = frame_of(3_500)
    frame["note"] = [f"{i:06}" * (1 if i < 1_500 else 2_000) for i in range(3_500)]
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=1_500)
    sizes = []
    pieces = ParquetReader.pieces

    def spied(self: ParquetReader, columns: Any, rows: int, at_once: int) -> Any:
        for piece in pieces(self, columns, rows, at_once):
            sizes.append(piece.batch.nbytes)
            yield piece

    monkeypatch.setattr(ParquetReader, "pieces", spied)
    assert hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.parquet", keep="note", memory="500MB").rows == 3_500
    assert max(sizes) < 10 << 20


OPERATIONS = ("replace", "unlink", "rmdir", "fsync", "mkdir")
KILLED = """
import os, sys
import hbc
model, source, out, bad, last, *names = sys.argv[1:]
left = [int(last)]
def counted(name):
    function = getattr(os, name)
    def call(*given, **named):
        for moment in "before", "after":
            if moment == "after":
                done = function(*given, **named)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), 9)
        return done
    return call
for name in names:
    setattr(os, name, counted(name))
hbc.score(model, source, out, keep="id", bad_rows=bad, workers=1)
"""


def kill_at(moments: list[int], model: Path, tmp_path: Path, single: bool) -> None:
    """Kill a run just before and just after operations on files: between the renaming of a result and the manifest, and others."""
    for name in "ab":
        frame = frame_of(50)
        frame.loc[[3, 40], "age"] = float("inf")
        write(tmp_path / "in" / f"{name}.parquet", frame)
    source = tmp_path / "in" / "a.parquet" if single else tmp_path / "in"
    suffix = ".parquet" if single else ""
    hbc.score(model, source, tmp_path / f"whole{suffix}", keep="id", bad_rows=tmp_path / "whole.jsonl", workers=1)

    def results(name: str) -> dict[str, bytes]:
        place = tmp_path / name
        return {path.name: path.read_bytes() for path in ([place] if single else place.glob("*.parquet"))}

    for moment in moments:
        out = tmp_path / "o" / f"out{suffix}"
        out.parent.mkdir()
        given = [str(each) for each in (model, source, out, tmp_path / "o" / "bad.jsonl", moment)]
        done = subprocess.run([sys.executable, "-c", KILLED, *given, *OPERATIONS], capture_output=True)
        assert done.returncode == -9, (moment, done.stderr)
        hbc.score(model, source, out, keep="id", bad_rows=tmp_path / "o" / "bad.jsonl", workers=1)
        assert list(results(f"o/out{suffix}").values()) == list(results(f"whole{suffix}").values()), moment
        assert (tmp_path / "o" / "bad.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes(), moment
        left = {path.name for path in out.parent.rglob("*") if path.is_file() and path.suffix != ".part"}
        expected = {"out.parquet"} if single else {"a.parquet", "b.parquet", "manifest.json", "000000.jsonl", "000001.jsonl"}
        assert left == {*expected, "bad.jsonl"}, moment
        shutil.rmtree(out.parent)


def test_killed_beside_a_renaming(model: Path, tmp_path: Path) -> None:
    kill_at([9, 12], model, tmp_path, single=False)


@pytest.mark.slow
@pytest.mark.parametrize("single", [True, False])
def test_killed_beside_every_operation(single: bool, model: Path, tmp_path: Path) -> None:
    kill_at(list(range(1, 17 if single else 33)), model, tmp_path, single)


def test_a_full_disk_is_told_by_the_result(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name in the lock, which is for people only, was written first: an OSError without a path, and the lock stayed."""

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    write(tmp_path / "a.parquet")
    assert hbc.score(model, tmp_path / "a.parquet", tmp_path / "out.parquet").rows == 20
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "out.parquet"]
