"""`hbc score` as a user types it: its options, its summary and its exit status. tests/scoring has the rest."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMRegressor
from test_commands import run

import hbc
from hbc.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and one with three inputs."""
    folder = tmp_path_factory.mktemp("scored")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 3)), columns=list("abc"))
    fitted = LGBMRegressor(n_estimators=3, verbose=-1).fit(frame, frame.a)
    hbc.convert(fitted, backend="numpy").save(folder / "model.hbc")
    (folder / "in").mkdir()
    for name in "xyz":
        frame.to_parquet(folder / "in" / f"{name}.parquet")
    frame.assign(b="much").to_csv(folder / "bad.csv", index=False)
    return folder


def test_options_and_summary(folder: Path, tmp_path: Path) -> None:
    options = [folder / "model.hbc", folder / "in", "-o", tmp_path / "out", "--keep", "a", "--output-format", "jsonl", "--json"]
    done = json.loads(run("score", *options))
    assert (done["files"], done["files_before"], done["rows"], done["columns"]) == (3, 0, 900, ["a", "predict"])
    assert json.loads(run("score", *options))["files_before"] == 3
    assert "3 finished by an earlier start" in run("score", *options[:-1])
    assert run("score", *options[:-1], "--quiet") == ""
    assert len((tmp_path / "out" / "x.jsonl").read_text().splitlines()) == 300
    trial = run("score", *options[:2], "--dry-run")
    assert trial == "dry run: 900 rows of 3 files can be scored; columns predict\n"


def both(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int | str | None, str, str]:
    """The exit status of a command in this process, and all that is written to standard output and standard error."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return ended.value.code, *capfd.readouterr()


def test_files_that_are_left_out_are_named(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A folder of which half had another suffix was scored by half, and nothing said so."""
    for name in ("a.parquet", "b.data", "_SUCCESS", ".hidden", "notes.txt"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes((folder / "in" / "x.parquet").read_bytes())
    command = ["score", folder / "model.hbc", tmp_path / "in", "-o"]
    status, out, err = both(capfd, *command, tmp_path / "out", "--json")
    named = [str(tmp_path / "in" / name) for name in ("b.data", "notes.txt")]
    assert status == 0
    assert json.loads(out)["left_out"] == named
    assert err.startswith(f"hbc: warning: left out, since the suffix names no format: {', '.join(named)}.")
    assert both(capfd, *command, tmp_path / "out", "--quiet")[2] == ""
    _, out, err = both(capfd, *command, tmp_path / "all", "--input-format", "parquet", "--json")
    assert (json.loads(out)["files"], json.loads(out)["left_out"], err) == (3, [], "")


def test_exit_status(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = run("score", folder / "model.hbc", folder / "bad.csv", "-o", tmp_path / "out.csv", ok=False)
    assert "bad.csv, row 0 (the first is 0), column 'b': found text that is no number (the value 'much')" in told
    assert "expected a .hbc file" in run("score", folder / "bad.csv", folder / "bad.csv", "-o", tmp_path / "out.csv", ok=False)
    command = ["score", str(folder / "model.hbc"), str(folder / "in" / "x.parquet")]
    assert both(capfd, *command, "-o", "-", "--json")[0] == 2
    assert subprocess.run([sys.executable, "-m", "hbc", *command], capture_output=True).returncode == 2


def test_closed_streams(folder: Path, tmp_path: Path) -> None:
    """They were an AttributeError."""
    command = f"exec {sys.executable} -m hbc score {folder / 'model.hbc'}"
    x = folder / "in" / "x.parquet"
    for arguments, status, told in (
        (f"{x} -o {tmp_path / 'out.parquet'} <&- >&- 2>&-", 0, ""),
        (f"{x} -o - >&-", 1, "standard output: found a place that cannot be written to (it is closed)"),
        (f"- -o {tmp_path / 'out.parquet'} <&-", 1, "standard input is closed"),
    ):
        done = subprocess.run(f"{command} {arguments}", shell=True, capture_output=True, text=True)
        assert done.returncode == status
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 300


def test_control_c_in_a_terminal(folder: Path, tmp_path: Path) -> None:
    """The bar is drawn, the command ends with 130, and the next start goes on."""
    frame = pd.read_parquet(folder / "in" / "x.parquet")
    (tmp_path / "in").mkdir()
    for number in range(150):
        frame.to_parquet(tmp_path / "in" / f"{number:03}.parquet")
    outer, inner = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "hbc",
        "score",
        folder / "model.hbc",
        tmp_path / "in",
        "-o",
        tmp_path / "out",
        "--workers",
        "1",
    ]
    with subprocess.Popen(list(map(str, command)), stderr=inner, stdout=subprocess.DEVNULL) as process:
        os.close(inner)
        while process.poll() is None and not list((tmp_path / "out").glob("*.parquet")):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        shown = b""
        try:
            while piece := os.read(outer, 65536):
                shown += piece
        except OSError:  # Linux: the other end is closed
            pass
    os.close(outer)
    if process.returncode != 0:  # it was not through before the signal
        assert process.returncode == 130, shown.decode()
        assert b"interrupted. Files that were finished stay" in shown
        assert b"Traceback" not in shown
    assert not list((tmp_path / "out").rglob("*.part"))
    again = hbc.score(folder / "model.hbc", tmp_path / "in", tmp_path / "out")
    assert again.files + again.files_before == 150
    assert again.rows == 150 * 300
