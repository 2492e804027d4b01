"""A run that is killed goes on, and its files are those of an undisturbed run, byte for byte. Its memory is bounded."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scoring_rows import frame_of

import hbc

FILES = 24


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(FILES):
        frame = frame_of(1500, seed=number)
        frame.loc[[7, 1400], "age"] = np.inf
        frame.to_parquet(folder / f"{number:02}.parquet")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but its manifest, and what the manifest says of each."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest = json.loads(files.pop("_hbc_score/manifest.json"))
    assert manifest["complete"]
    done = {name: {key: value for key, value in each.items() if key != "seconds"} for name, each in manifest["done"].items()}
    return {**files, "done": json.dumps(done, sort_keys=True).encode()}


def kill_and_go_on(model: Path, inputs: Path, tmp_path: Path, kills: int, seed: int) -> None:
    options = ["--keep", "id", "--methods", "predict_proba", "--bad-rows"]
    undisturbed = tmp_path / "undisturbed"
    wanted: dict[str, Any] = {"keep": "id", "methods": "predict_proba"}
    hbc.score(model, inputs, undisturbed, bad_rows=tmp_path / "undisturbed.jsonl", **wanted)
    random_moment = random.Random(seed)
    for kill in range(kills):
        output, bad = tmp_path / f"out-{kill}", tmp_path / f"bad-{kill}.jsonl"
        command = [sys.executable, "-m", "hbc", "score", str(model), str(inputs), "-o", str(output), *options, str(bad)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            enough = random_moment.randrange(FILES)
            while process.poll() is None and len(list(output.glob("*.parquet"))) < enough:
                time.sleep(0.002)
            time.sleep(random_moment.random() * 0.05)
            process.send_signal(signal.SIGKILL)
        assert all(path.read_bytes() == (undisturbed / path.name).read_bytes() for path in output.glob("*.parquet"))
        summary = hbc.score(model, inputs, output, bad_rows=bad, workers=1 + kill % 2, memory="600MB", **wanted)
        assert summary.files + summary.files_before == FILES
        assert (summary.rows, summary.bad_rows) == (1500 * FILES, 2 * FILES)
        assert contents(output) == contents(undisturbed)
        assert bad.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()


def test_killed_and_started_again(model: Path, inputs: Path, tmp_path: Path) -> None:
    kill_and_go_on(model, inputs, tmp_path, 2, seed=int.from_bytes(os.urandom(4), "big"))


@pytest.mark.slow
def test_killed_at_twenty_moments(model: Path, inputs: Path, tmp_path: Path) -> None:
    kill_and_go_on(model, inputs, tmp_path, 20, seed=1)


def test_another_model_option_or_input_is_refused(model: Path, source: Any, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert hbc.score(model, inputs, out, bad_rows=tmp_path / "bad").files == FILES
    before = contents(out)
    other = tmp_path / "other.hbc"
    hbc.convert(source, backend="numpy").save(other, metadata={"note": "another"})
    for arguments, options, found in (
        ((other, inputs, out), {}, "another model"),
        ((model, inputs, out), {"keep": "id"}, r"the option keep = \['id'\], expected \[\]"),
        ((model, inputs, out), {"compression": "zstd"}, "input that has changed"),
        ((model, inputs / "00.parquet", f"{out}/"), {}, r"an input missing: .*01\.parquet and 22 more"),
    ):
        with pytest.raises(
            hbc.ArtifactError, match=f"found .*{found}.*To begin anew: restart=True, on the command line --restart"
        ):
            hbc.score(*arguments, bad_rows=tmp_path / "bad", **options)
        assert contents(out) == before
    (out / "03.parquet").unlink()  # a file that is lost is made again
    again = hbc.score(model, inputs, out, bad_rows=tmp_path / "bad")
    assert (again.files, again.files_before) == (1, FILES - 1)
    assert contents(out) == before
    assert hbc.score(other, inputs, out, keep="id", restart=True, bad_rows=tmp_path / "bad").files == FILES
    (out / "_hbc_score" / "manifest.json").write_text("{")
    with pytest.raises(hbc.ArtifactError, match="a manifest that cannot be read"):
        hbc.score(other, inputs, out, keep="id")


def test_the_same_source_converted_again_goes_on(source: Any, inputs: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"bad_rows": tmp_path / "bad"}
    hbc.score(hbc.convert(source, backend="numpy"), inputs, tmp_path / "out", **options)
    time.sleep(1.1)  # the time of the conversion has seconds
    again = hbc.score(hbc.convert(source, backend="numpy"), inputs, tmp_path / "out", **options)
    assert (again.files, again.files_before) == (0, FILES)


MEMORY = """
import resource, sys
import hbc
model, small, large, out = sys.argv[1:]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
hbc.score(model, small, out, memory="450MB")
before = peak()
hbc.score(model, large, out, memory="450MB")
print(peak() - before)
"""


def test_memory_is_bounded_for_one_row_group(tmp_path: Path) -> None:
    """150 MB of numbers in one row group take less than half of that, beside what a file of few rows takes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 15))
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(15)])
    fitted = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(frame, X[:, 0])
    hbc.convert(fitted, backend="numpy").save(tmp_path / "model.hbc")
    rows = 1_250_000
    table = pa.table({name: rng.random(rows) for name in frame.columns})
    assert table.nbytes == 150_000_000
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=rows, use_dictionary=False, compression="none")
    pq.write_table(table.slice(0, 100_000), tmp_path / "small.parquet")
    assert pq.ParquetFile(tmp_path / "large.parquet").num_row_groups == 1
    arguments = [str(tmp_path / name) for name in ("model.hbc", "small.parquet", "large.parquet", "out.parquet")]
    done = subprocess.run([sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 70
