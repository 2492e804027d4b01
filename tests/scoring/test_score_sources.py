"""Files, folders, globs, hive partitions, URLs and pipes; which columns are read; the names and dtypes of the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from installed import older
from scoring_rows import FEATURES, frame_of

import hbc
from hbc.scoring.inputs import fragments_of
from hbc.scoring.readers import ParquetReader


def hive(frame: pd.DataFrame, folder: Path) -> None:
    """The frame in four files, by two columns that the folders name."""
    for number, part in enumerate(np.array_split(np.arange(len(frame)), 4)):
        place = folder / f"year={2020 + number % 2}" / f"town={'Zürich' if number < 2 else 'Oslo'}"
        place.mkdir(parents=True, exist_ok=True)
        frame.iloc[part].drop(columns="town").to_parquet(place / f"part-{number}.parquet")


def test_hive_partitions_are_columns(model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    hive(frame, tmp_path / "in")
    summary = hbc.score(model, tmp_path / "in", tmp_path / "out", keep="id,year,town", workers=2)
    assert (summary.files, summary.rows) == (4, 500)
    found = pd.concat(
        [
            pq.ParquetFile(path).read().to_pandas().assign(folder=path.parts[-3])
            for path in (tmp_path / "out").rglob("*.parquet")
        ]
    )
    found = found.sort_values("id", ignore_index=True)
    assert ("year=" + found.year.astype(str)).tolist() == found.folder.tolist()
    whole = frame.assign(town=found.town)
    assert found.predict.tolist() == source.predict(whole[FEATURES]).tolist()
    assert set(found.town) == {"Zürich", "Oslo"}


def test_missing_values_and_signs_in_partitions(tmp_path: Path) -> None:
    for name in ("a=1/b=x%3Dy", "a=__HIVE_DEFAULT_PARTITION__/b=2", "a=-3/b=03"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.csv").touch()
    (tmp_path / "in" / "_hidden").mkdir()
    (tmp_path / "in" / "_hidden" / "x.csv").touch()
    (tmp_path / "in" / ".x.csv").touch()
    fragments = fragments_of([str(tmp_path / "in")], None).fragments
    assert [fragment.partitions for fragment in fragments] == [
        (("a", "-3"), ("b", "03")),
        (("a", "1"), ("b", "x=y")),
        (("a", None), ("b", "2")),
    ]


def test_globs_and_several_sources(model: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    for month in ("05", "06"):
        (tmp_path / month).mkdir()
        frame.to_parquet(tmp_path / month / "x.parquet")
        frame.to_csv(tmp_path / month / "y.csv", index=False)
    assert hbc.score(model, str(tmp_path / "*" / "*.parquet"), tmp_path / "one").files == 2
    assert sorted(path.relative_to(tmp_path / "one").as_posix() for path in (tmp_path / "one").rglob("*.parquet")) == [
        "05/x.parquet",
        "06/x.parquet",
    ]
    sources = [tmp_path / "05" / "x.parquet", tmp_path / "06" / "x.parquet", str(tmp_path / "05" / "*")]
    assert hbc.score(model, sources, tmp_path / "two").files == 3  # a file that two sources name is scored once
    assert (tmp_path / "two" / "06" / "x.parquet").exists()
    assert (tmp_path / "two" / "05" / "y.csv").exists()
    (tmp_path / "05" / "x.csv").write_bytes((tmp_path / "05" / "y.csv").read_bytes())
    with pytest.raises(hbc.ArtifactError, match=r"results have the same name as those of .*x\.csv \(x\.jsonl\)"):
        hbc.score(model, tmp_path / "05", tmp_path / "three", output_format="jsonl")


def test_no_folder_is_passed_over(model: Path, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec leaves out links to folders, and folders that it may not read: half of the rows were missing, and nothing said so."""
    data, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    for folder in (data / "day=1", data / "day=2", data / ".hidden", data / "lost+found", elsewhere):
        folder.mkdir(parents=True)
        frame.to_parquet(folder / "x.parquet")
    (data / "day=3").symlink_to(elsewhere)
    (data / "day=1" / "loop").symlink_to(data)

    def found(*sources: Any) -> list[str]:
        fragments = fragments_of([str(source) for source in sources], str(tmp_path / "out")).fragments
        return [each.input.removeprefix(f"{data}/") for each in fragments]

    all_days = ["day=1/x.parquet", "day=2/x.parquet", "day=3/x.parquet"]
    assert found(data) == found(data / "*" / "*.parquet") == found(data / "**" / "x.parquet") == all_days
    assert found(data / "day=[13]" / "*") == all_days[::2]
    assert hbc.score(model, data, tmp_path / "out").rows == 3 * len(frame)
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith(("day=2", ".hidden", "lost+found")):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for source in (data, data / "*" / "*.parquet", data / "**" / "x.parquet", data / "day=*" / "x.parquet"):
        with pytest.raises(hbc.ArtifactError, match=r"day=2: found a folder that cannot be read \(Permission denied\)"):
            found(source)
    assert found(data / "day=[13]" / "*", data / "day=1" / "*.parquet") == all_days[::2]


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_urls(scheme: str, model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    root = f"memory://scoring-{os.getpid()}" if scheme == "memory" else f"file://{tmp_path}"
    fs = fsspec.filesystem(scheme)
    for name in ("a", "b"):
        fs.makedirs(f"{root}/in", exist_ok=True)
        with fs.open(f"{root}/in/{name}.parquet", "wb") as file:
            frame.to_parquet(file)
    summary = hbc.score(model, f"{root}/in", f"{root}/out", keep="id")
    assert (summary.files, summary.rows) == (2, 1000)
    with fs.open(f"{root}/out/b.parquet", "rb") as file:
        found = pd.read_parquet(file)
    assert found.predict.tolist() == source.predict(frame[FEATURES]).tolist()
    again = hbc.score(model, f"{root}/in/*.parquet", f"{root}/out", keep="id")
    assert (again.files, again.files_before, again.rows) == (0, 2, 1000)
    assert [path for path in fs.find(f"{root}/out") if path.endswith(".part")] == []
    if scheme == "memory":
        fs.rm(root, recursive=True)


def test_pipes(model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(frame)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table, 60)
    command = [sys.executable, "-m", "hbc", "score", str(model), "-", "-o", "-", "--keep", "id", "--methods", "predict_proba"]
    done = subprocess.run(command, input=stream.getvalue().to_pybytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = pa.ipc.open_stream(done.stdout).read_pandas()
    np.testing.assert_allclose(found.iloc[:, 1:].to_numpy(), source.predict_proba(frame[FEATURES]), rtol=1e-9)
    assert found.id.tolist() == frame.id.tolist()


def test_only_columns_that_are_needed_are_read(
    model: Path, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    pieces = ParquetReader.pieces

    def spied(self: ParquetReader, columns: Any, rows: int, at_once: int) -> Any:
        seen.append(sorted(columns))
        return pieces(self, columns, rows, at_once)

    monkeypatch.setattr(ParquetReader, "pieces", spied)
    frame.to_parquet(tmp_path / "x.parquet")
    hbc.score(model, tmp_path / "x.parquet", tmp_path / "out.parquet", keep="id")
    assert {tuple(columns) for columns in seen} == {("age", "id", "rooms", "town")}


def test_dtype_and_compression(model: Path, source: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "x.parquet")
    output = tmp_path / "out.parquet"
    hbc.score(model, tmp_path / "x.parquet", output, methods="predict_proba", dtype="float32", compression="zstd")
    found = pq.ParquetFile(output)
    assert {str(kind) for kind in found.schema_arrow.types} == {"float"}
    assert found.metadata.row_group(0).column(0).compression == "ZSTD"
    expected = source.predict_proba(frame[FEATURES]).astype("f4")
    np.testing.assert_allclose(found.read().to_pandas().to_numpy(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="compression: found 'bz2', expected for parquet one of snappy"):
        hbc.score(model, tmp_path / "x.parquet", tmp_path / "y.parquet", compression="bz2")


@pytest.mark.skipif(older("lightgbm", 4, 7), reason="it names the columns of an array itself")
def test_a_model_without_names_takes_columns_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    source = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(X, y)
    compiled = hbc.convert(source, backend="numpy")
    frame = pd.DataFrame(X, columns=list("cba"))
    for suffix, write in (("parquet", frame.to_parquet), ("csv", lambda path: frame.to_csv(path, index=False))):
        write(tmp_path / f"x.{suffix}")
        hbc.score(compiled, tmp_path / f"x.{suffix}", tmp_path / "out.parquet")
        found = pd.read_parquet(tmp_path / "out.parquet").iloc[:, 0]
        np.testing.assert_allclose(found, source.predict(X, validate_features=False), rtol=1e-5)
    frame.assign(more=1).to_parquet(tmp_path / "x.parquet")
    hbc.score(compiled, tmp_path / "x.parquet", tmp_path / "out.parquet", keep="more")
    with pytest.raises(hbc.InvalidInputError, match="found 4 columns besides those that are kept, expected 3"):
        hbc.score(compiled, tmp_path / "x.parquet", tmp_path / "out.parquet")


def test_columns_by_name_where_the_library_goes_by_position(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=list("abc"))
    source = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(frame, frame.a)
    compiled = hbc.convert(source, backend="numpy")
    frame.assign(z=1.0)[list("zcba")].to_parquet(tmp_path / "x.parquet")
    hbc.score(compiled, tmp_path / "x.parquet", tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet").predict
    np.testing.assert_allclose(found, source.predict(frame), rtol=1e-5)
    frame.rename(columns={"c": "d"}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(hbc.InvalidInputError, match="found no column 'c'"):
        hbc.score(compiled, tmp_path / "x.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_files_without_rows(suffix: str, model: Path, tmp_path: Path) -> None:
    frame = frame_of(0) if suffix != "jsonl" else frame_of(1)
    path = tmp_path / f"x.{suffix}"
    writers = {
        "parquet": frame.to_parquet,
        "csv": lambda path: frame.to_csv(path, index=False),
        "jsonl": lambda path: frame.to_json(path, orient="records", lines=True),
    }
    writers[suffix](path)
    summary = hbc.score(model, path, tmp_path / "out.parquet", keep="id")
    assert summary.rows == len(frame)
    assert pd.read_parquet(tmp_path / "out.parquet").columns.tolist() == ["id", "predict"]


def test_a_file_without_a_byte(model: Path, tmp_path: Path) -> None:
    for suffix in ("csv", "jsonl"):
        (tmp_path / f"x.{suffix}").touch()
        with pytest.raises(hbc.HbcError, match=f"x.{suffix}: found (a file that cannot be read|no column)"):
            hbc.score(model, tmp_path / f"x.{suffix}", tmp_path / "out.parquet")
