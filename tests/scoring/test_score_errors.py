"""What goes wrong is told clearly, finished files stay good, and nothing is left that harms the next start."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from scoring_rows import FEATURES, frame_of

import hbc
from hbc.scoring import writers
from hbc.scoring.bad_rows import bisected


def left_over(folder: Path) -> list[str]:
    """Files that are not results."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix == ".part" or path.name == "lock"
    )


@pytest.fixture
def folder(frame: pd.DataFrame, tmp_path: Path) -> Path:
    """A folder with three inputs."""
    (tmp_path / "in").mkdir()
    for name in "abc":
        frame.to_parquet(tmp_path / "in" / f"{name}.parquet", row_group_size=100)
    return tmp_path


def test_what_goes_wrong_behind_a_url_names_it(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Libraries of file systems have errors of their own: botocore's without credentials are no OSError, and came as tracebacks."""
    from hbc.cli import main

    class Locked(MemoryFileSystem):
        protocol = "locked"
        cachable = False

        def info(self, path: str, **_: Any) -> Any:
            raise RuntimeError(f"Unable to locate credentials\nfor {path}")

        isdir = exists = ls = info

    fsspec.register_implementation("locked", Locked, clobber=True)
    for source, output in (("locked://in/a.parquet", "out"), ("locked://in/*.parquet", "out"), ("in", "locked://out")):
        with pytest.raises(SystemExit) as ended:
            main(["score", str(model), source.replace("in", str(folder / "in"), source == "in"), "-o", output])
        assert ended.value.code == 1
        said = capsys.readouterr().err
        url = source if "://" in source else output
        assert said.startswith(f"hbc: {url}"), said
        assert "found a URL that cannot be reached (Unable to locate credentials)" in said
        assert said.count("\n") == 1


def test_a_corrupt_file_in_the_middle(model: Path, folder: Path) -> None:
    path = folder / "in" / "b.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(3000) + whole[3200:])
    with pytest.raises(hbc.ArtifactError, match=r"in/b\.parquet: found a file that cannot be read .* Files that were finished"):
        hbc.score(model, folder / "in", folder / "out", workers=1)
    first = (folder / "out" / "a.parquet").read_bytes()
    assert pd.read_parquet(folder / "out" / "a.parquet").shape == (500, 1)
    assert not (folder / "out" / "b.parquet").exists()
    assert not left_over(folder / "out")
    path.write_bytes(whole)  # it is mended: the error asked for it
    again = hbc.score(model, folder / "in", folder / "out")
    assert (again.files, again.files_before) == (2, 1)
    assert (folder / "out" / "a.parquet").read_bytes() == first
    hbc.score(model, folder / "in", folder / "undisturbed")
    assert (folder / "out" / "b.parquet").read_bytes() == (folder / "undisturbed" / "b.parquet").read_bytes()
    path.write_bytes(whole + b"x")
    with pytest.raises(hbc.ArtifactError, match=r"found an input that has changed: .*b\.parquet, expected the inputs"):
        hbc.score(model, folder / "in", folder / "out")
    assert (folder / "out" / "a.parquet").read_bytes() == first
    assert hbc.score(model, folder / "in" / "a.parquet", f"{folder / 'out'}/", restart=True).files == 1


def test_lines_of_json_that_nothing_can_read(model: Path, folder: Path) -> None:
    """The error says what is wrong with the first line, and not that columns are missing."""
    path = folder / "large.jsonl"
    path.write_text('{"age": 1e999, "fare": 1.0}\n')
    with pytest.raises(hbc.HbcError, match=r"large\.jsonl: .*row 0, a line that cannot be read .*too big"):
        hbc.score(model, path, folder / "out.parquet")


@pytest.mark.parametrize("cut", [0, 3, 5000])
def test_a_truncated_file(cut: int, model: Path, folder: Path) -> None:
    path = folder / "in" / "a.parquet"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(hbc.ArtifactError, match=r"a\.parquet: found a file that cannot be read"):
        hbc.score(model, path, folder / "out.parquet")
    assert [each.name for each in folder.iterdir()] == ["in"]


def test_missing_columns(model: Path, folder: Path) -> None:
    frame_of(10).rename(columns={"rooms": "room"}).to_parquet(folder / "in" / "b.parquet")
    message = r"b\.parquet: found no column 'rooms' \(did you mean 'room'\?\), expected the columns of the model"
    with pytest.raises(hbc.InvalidInputError, match=message):
        hbc.score(model, folder / "in", folder / "out", dry_run=True)
    assert not (folder / "out").exists()
    with pytest.raises(hbc.InvalidInputError, match=message):
        hbc.score(model, folder / "in", folder / "out")
    with pytest.raises(hbc.InvalidInputError, match="found no column 'key', expected the columns to keep"):
        hbc.score(model, folder / "in" / "a.parquet", folder / "o.parquet", keep="key")
    assert hbc.score(model, folder / "in" / "a.parquet", folder / "o.parquet", dry_run=True).rows == 500


def test_a_mistake_is_mended_without_a_restart(model: Path, folder: Path) -> None:
    """A start that has written no result is no obstacle for the next one. What it has written is one, and so is a file of others."""
    with pytest.raises(hbc.InvalidInputError, match="expected the columns to keep"):
        hbc.score(model, folder / "in", folder / "out", keep="key")
    assert (folder / "out" / "_hbc_score" / "manifest.json").exists()
    (folder / "out" / "a.csv").write_text("of others")
    with pytest.raises(hbc.ArtifactError, match="a file that no earlier start of this run has written"):
        hbc.score(model, folder / "in", folder / "out", output_format="csv")
    assert hbc.score(model, folder / "in", folder / "out").files == 3
    with pytest.raises(hbc.ArtifactError, match=r"found the option methods = .*To begin anew"):
        hbc.score(model, folder / "in", folder / "out", methods="predict_proba")


def test_another_separator(model: Path, folder: Path) -> None:
    frame_of(10).to_csv(folder / "x.csv", sep=";", index=False)
    with pytest.raises(
        hbc.InvalidInputError, match=r"If ';' stands between columns: separator=';', on the command line --separator\."
    ):
        hbc.score(model, folder / "x.csv", folder / "out.csv")
    assert hbc.score(model, folder / "x.csv", folder / "out.csv", separator=";").rows == 10
    with pytest.raises(ValueError, match=r"^separator: found 'ab', expected one ASCII sign"):
        hbc.score(model, folder / "x.csv", folder / "out.csv", separator="ab")  # it was a file that cannot be read


def test_columns_of_another_type(model: Path, folder: Path) -> None:
    frame = frame_of(1200)
    frame.assign(age=["many"] * 1200).to_parquet(folder / "x.parquet")
    with pytest.raises(hbc.InvalidInputError, match=r"x\.parquet, row 0 .*column 'age'.*many"):
        hbc.score(model, folder / "x.parquet", folder / "out.parquet")
    with pytest.raises(hbc.InvalidInputError, match=r"x\.parquet, all of its first 1000 rows"):
        hbc.score(model, folder / "x.parquet", folder / "out.parquet", bad_rows=folder / "bad.jsonl")


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "jsonl"])
def test_bad_rows(suffix: str, model: Path, source: Any, folder: Path) -> None:
    frame = frame_of(700)
    bad = [0, 5, 6, 350, 699]
    frame.loc[bad, "age"] = np.inf
    path = folder / f"x.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    else:
        getattr(frame, f"to_{suffix}")(path)
    with pytest.raises(hbc.InvalidInputError, match=rf"x\.{suffix}, row 0 \(the first is 0\), column 'age': found inf"):
        hbc.score(model, path, folder / "out.parquet", keep="id")
    summary = hbc.score(model, path, folder / "out.parquet", keep="id", bad_rows=folder / "bad.jsonl")
    assert (summary.rows, summary.bad_rows) == (700, 5)
    told = [json.loads(line) for line in (folder / "bad.jsonl").read_text().splitlines()]
    assert [each["row"] for each in told] == bad
    assert {(each["file"], each["column"], each["value"]) for each in told} == {(str(path), "age", "inf")}
    found = pd.read_parquet(folder / "out.parquet")
    assert found.index[found.predict.isna()].tolist() == bad
    assert found.id.astype(int).tolist() == frame.id.tolist()
    good = frame.drop(index=bad)
    assert found.predict.drop(index=bad).tolist() == source.predict(good[FEATURES]).tolist()


def test_lines_that_hold_no_row(model: Path, source: Any, folder: Path) -> None:
    frame = frame_of(200)
    lines = frame.to_csv(index=False).splitlines()
    lines.insert(1, "1,2")  # row 0
    lines.insert(102, "1,2,3,4,5,6")  # row 101
    lines.append("7,Oslo,young,3,no")  # row 202
    (folder / "x.csv").write_text("\n" + "\n".join([*lines[:50], "", *lines[50:]]))  # empty lines are none
    with pytest.raises(hbc.InvalidInputError, match=r"x\.csv, row 0 \(the first is 0\): found a line of 2 values, expected 5"):
        hbc.score(model, folder / "x.csv", folder / "out.csv")
    rows = frame.to_dict("records")
    objects = [json.dumps(row) for row in rows]
    for place, line in ((0, "null"), (101, "{"), (202, json.dumps({**rows[0], "age": "young"}))):
        objects.insert(place, line)
    (folder / "x.jsonl").write_text("\n".join(objects))
    for name, more in (("x.csv", 1), ("x.jsonl", 0)):
        summary = hbc.score(model, folder / name, folder / "out.parquet", keep="id", bad_rows=folder / "bad.jsonl")
        assert (summary.rows, summary.bad_rows) == (200 + more, 3)
        told = [json.loads(line) for line in (folder / "bad.jsonl").read_text().splitlines()]
        assert [each["row"] for each in told] == [0, 101, 202]
        assert (told[2]["column"], told[2]["value"]) == ("age", "young")
        found = pd.read_parquet(folder / "out.parquet")
        assert found.predict.tolist()[:200] == source.predict(frame[FEATURES]).tolist()


def test_bisection_finds_every_set_of_bad_rows() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = int(rng.integers(1, 40))
        bad = set(np.flatnonzero(rng.random(rows) < rng.choice([0.02, 0.3, 1.0])).tolist())

        def answer(part: pa.RecordBatch, bad: set[int] = bad) -> list[int]:
            if found := bad & set(part.column(0).to_pylist()):
                raise hbc.InvalidInputError(found=str(found), expected="others")
            return part.column(0).to_pylist()

        answers, told = bisected(pa.RecordBatch.from_pydict({"x": np.arange(rows)}), answer)
        assert [index for index, _ in told] == sorted(bad)
        assert [value for each in answers for value in each] == sorted(set(range(rows)) - bad)


def test_a_pipe_is_not_replaced(model: Path, folder: Path) -> None:
    """A rename would put a file in its place: as root, in that of /dev/null."""
    pipe = folder / "pipe.parquet"
    os.mkfifo(pipe)
    with pytest.raises(hbc.ArtifactError, match="found no regular file"):
        hbc.score(model, folder / "in" / "a.parquet", pipe)
    with pytest.raises(hbc.ArtifactError, match="found a device or a pipe"):
        hbc.load(model).save(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "feather"])
def test_a_pipe_has_no_file(form: str, model: Path, folder: Path) -> None:
    with pytest.raises(hbc.ArtifactError, match=r"found a pipe or a device, expected a regular file.* stream of Arrow"):
        hbc.score(model, "/dev/null", folder / "out.parquet", input_format=form)


def test_output_is_input(model: Path, folder: Path) -> None:
    with pytest.raises(hbc.ArtifactError, match=r"found the file that is read"):
        hbc.score(model, folder / "in" / "a.parquet", folder / "in" / "a.parquet")
    with pytest.raises(hbc.ArtifactError, match=r"found a folder in .*in, which is read"):
        hbc.score(model, folder / "in", folder / "in" / "out")
    (folder / "link").symlink_to(folder / "in")
    with pytest.raises(hbc.ArtifactError, match=r"found the file that is read"):
        hbc.score(model, str(folder / "in" / "*.parquet"), folder / "link")
    with pytest.raises(hbc.ArtifactError, match="file that is read or written besides"):
        hbc.score(model, folder / "in", folder / "out", bad_rows=folder / "in" / "a.parquet")


def test_files_of_others_are_not_replaced(model: Path, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "b.parquet").write_text("mine")
    with pytest.raises(hbc.ArtifactError, match=r"b\.parquet: found a file that no earlier start of this run has written"):
        hbc.score(model, folder / "in", folder / "out")
    assert (folder / "out" / "b.parquet").read_text() == "mine"


class FullDisk(writers.Writer):
    """A Writer whose disk is full at the third batch."""

    def write(self, batch: Any) -> None:
        self.batches = getattr(self, "batches", 0) + 1
        if self.batches == 3:
            raise OSError(28, "No space left on device")
        super().write(batch)


def test_a_full_disk(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hbc.scoring.fragment.MOST_ROWS", 100)
    hbc.score(model, folder / "in", folder / "whole", workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(writers, "Writer", FullDisk)
        with pytest.raises(hbc.ArtifactError, match=r"out/a\.parquet: found a place that cannot be written to \(No space left"):
            hbc.score(model, folder / "in", folder / "out", workers=1)
    assert not left_over(folder / "out")
    assert hbc.score(model, folder / "in", folder / "out").files == 3
    assert (folder / "out" / "a.parquet").read_bytes() == (folder / "whole" / "a.parquet").read_bytes()


def test_standard_output_is_full(model: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hbc", "score", str(model), str(folder / "in" / "a.parquet"), "-o", "-"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "standard output: found a place that cannot be written to (No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written_to(model: Path, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(hbc.ArtifactError, match="cannot be written to"):
        hbc.score(model, folder / "in", folder / "file" / "out")
    with pytest.raises(hbc.ArtifactError, match="found a file, expected the name of a folder"):
        hbc.score(model, folder / "in", folder / "file")
    with pytest.raises(hbc.ArtifactError, match="the name of a file, for the results of 3 files"):
        hbc.score(model, folder / "in", folder / "out.parquet")
    with pytest.raises(hbc.ArtifactError, match="a URL that cannot be opened"):
        hbc.score(model, folder / "in", "nothing://out")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        hbc.score(model, folder / "nothing", folder / "out")


def test_two_runs_at_once(model: Path, folder: Path) -> None:
    (folder / "out" / "_hbc_score").mkdir(parents=True)
    with open(folder / "out" / "_hbc_score" / "lock", "w") as lock:
        lock.write("process 7 on elsewhere")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(hbc.ArtifactError, match="found results that process 7 on elsewhere is writing, expected one run"):
            hbc.score(model, folder / "in", folder / "out")
    assert hbc.score(model, folder / "in", folder / "out").files == 3  # a lock that nobody holds is none
    assert not left_over(folder / "out")
    (folder / ".one.csv_hbc_score").mkdir()
    with open(folder / ".one.csv_hbc_score" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(hbc.ArtifactError, match=r"one\.csv: found results that another process is writing"):
            hbc.score(model, next((folder / "in").iterdir()), folder / "one.csv")


def test_an_interrupt_ends_all_threads(model: Path, folder: Path) -> None:
    before = set(threading.enumerate())

    def interrupt(progress: Any) -> None:
        if progress.files == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hbc.score(model, folder / "in", folder / "out", workers=1, progress=interrupt)
    assert set(threading.enumerate()) == before
    assert not left_over(folder / "out")
    again = hbc.score(model, folder / "in", folder / "out")
    assert (again.files, again.files_before, again.rows) == (2, 1, 1500)


def test_an_input_that_changes_meanwhile(model: Path, folder: Path) -> None:
    def change(progress: Any) -> None:
        os.utime(folder / "in" / "a.parquet", (1, 1))

    with pytest.raises(hbc.ArtifactError, match=r"a\.parquet: found a file that was changed after the start"):
        hbc.score(model, folder / "in", folder / "out", workers=1, progress=change)
    assert not (folder / "out" / "a.parquet").exists()


def test_options(model: Path, folder: Path) -> None:
    a = folder / "in" / "a.parquet"
    for wrong, message in (
        ({"memory": "much"}, "memory: found 'much', expected a number of bytes, such as 1GiB"),
        ({"memory": "1MB"}, "memory: found '1MB', expected more than 400MiB"),
        ({"dtype": "int8"}, "dtype: found 'int8'"),
        ({"methods": "predict_prob"}, "predict_prob"),
        ({"keep": "predict"}, "keep: found 'predict', which is the name of another column"),
        ({"engine": "dusk"}, r"engine: found 'dusk', expected one of ray, spark, dask \(did you mean 'dask'\?\)"),
        ({"input_format": "xls"}, "format: found 'xls'"),
    ):
        with pytest.raises(ValueError, match=message):
            hbc.score(model, a, folder / "out.parquet", **wrong)
    with pytest.raises(ValueError, match="sink: found None"):
        hbc.score(model, a, None)
    with pytest.raises(TypeError, match="model: found dict, expected a CompiledModel"):
        hbc.score({}, a, folder / "out.parquet")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source: found int, expected the names of files"):
        hbc.score(model, [1], folder / "out.parquet")  # type: ignore[list-item]
    table = pa.table({"age": [1.0], "rooms": [1], "town": ["Oslo"], "x": [1]})
    (folder / "x=2").mkdir()
    pq.write_table(table, folder / "x=2" / "y.parquet")
    with pytest.raises(hbc.InvalidInputError, match=r"found a column 'x', and a folder that gives its value \(x=2\)"):
        hbc.score(model, folder / "x=2", folder / "out", keep="x")
