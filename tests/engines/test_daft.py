"""Daft scores in its threads, and in processes."""

# ruff: noqa: E402 (what needs the engine is imported where it is known to be installed)

from __future__ import annotations

from pathlib import Path

import pytest

daft = pytest.importorskip("daft")

from engine_cases import METHODS, MODEL, ROWS, TABLE, require_same, run_example
from killing import KilledOnce

import hbc
from hbc.engines.daft import score
from hbc.errors import InvalidInputError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("in_processes", [False, True])
def test_answers(model: Path, files: Path, in_processes: bool) -> None:
    frame = daft.read_parquet(sorted(map(str, files.glob("*"))))
    require_same(score(frame, model, METHODS, ("id", "noted"), use_process=in_processes, batch_size=300).to_arrow())


def test_frames_in_memory(model: Path) -> None:
    frame = daft.from_arrow(TABLE.slice(0, 50))
    loaded = hbc.load(model)
    assert score(frame, loaded).to_pydict() == {"predict": MODEL.predict(TABLE.slice(0, 50).to_pandas()).tolist()}
    assert score(frame.where(daft.col("fare") > 99), loaded, keep="id").count_rows() == 0
    with pytest.raises(InvalidInputError, match="expected also 'fare'"):
        score(frame.exclude("fare"), loaded)


def test_a_query_whose_process_is_killed_fails(model: Path, files: Path, mortal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daft's own runner replaces no process. It says so, and a second run has all rows."""
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.engines.daft.WorkerMethod", KilledOnce)
    scored = score(daft.read_parquet(sorted(map(str, files.glob("*")))), model, keep="id", use_process=True)
    with pytest.raises(RuntimeError, match="unexpectedly"):
        scored.collect()
    assert mortal.exists()
    assert scored.count_rows() == ROWS


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("Daft")
    assert "predict_proba_left" in capsys.readouterr().out
