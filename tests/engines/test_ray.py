"""Ray Data scores with actors, of which one is killed."""

# ruff: noqa: E402 (what needs the engine is imported where it is known to be installed)

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

from engine_cases import METHODS, MODEL, TABLE, require_same, run_example
from fragment_cases import killed_once, require_same_files
from killing import KilledOnce

import hbc
from hbc.engines.ray import map_tasks, score
from hbc.errors import InvalidInputError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # 15 s on a quiet computer


@pytest.fixture(scope="module", autouse=True)
def cluster(mortal: Path) -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield
    ray.shutdown()


def table(dataset: object) -> pa.Table:
    return pa.concat_tables(ray.get(dataset.to_arrow_refs()))  # type: ignore[attr-defined]


def test_answers(model: Path, files: Path) -> None:
    dataset = ray.data.read_parquet(str(files))
    require_same(table(score(dataset, model, METHODS, ("id", "noted"), workers=2)))
    found = score(ray.data.from_pandas(TABLE.slice(0, 50).to_pandas()), hbc.load(model), batch_size=16).to_pandas()
    assert found["predict"].tolist() == MODEL.predict(TABLE.slice(0, 50).to_pandas()).tolist()
    with pytest.raises(InvalidInputError, match="expected also 'fare'"):
        score(dataset.drop_columns(["fare"]), model)


def test_strange_values_and_empty_blocks(model: Path) -> None:
    """Nulls, dictionaries, decimals, lists and a long string come through Ray's blocks as they do through none."""
    rows = TABLE.slice(0, 60)
    towns = ["Ulm", None, "U\0lm", "\n", "x" * 2_000_000, *rows["town"].to_pylist()[5:]]
    strange = pa.table(
        {
            "id": pa.array([None if i % 9 == 0 else Decimal(i) / 8 for i in range(60)], pa.decimal128(9, 3)),
            "town": pa.array(towns).dictionary_encode(),
            "age": pa.array([None, np.nan, np.inf, -0.0, 1e300, *[20.0 + i for i in range(55)]]),
            "fare": rows["fare"],
            "visits": rows["visits"],
            "noted": pa.array([None if i % 7 == 0 else ["a"] * (i % 3) for i in range(60)]),
        }
    )
    blocks = [strange.slice(0, 0), strange.slice(0, 20), strange.slice(20, 0), strange.slice(20)]
    found = table(score(ray.data.from_arrow(blocks), model, METHODS, ("id", "noted"), workers=1))
    assert found.select(["id", "noted"]).equals(strange.select(["id", "noted"]))
    assert found.drop(["id", "noted"]).equals(hbc.load(model).arrow(METHODS)(strange))
    with pytest.raises(Exception, match="dates to numbers"):
        table(score(ray.data.from_arrow(strange.set_column(2, "age", pa.array([date(2026, 1, 1)] * 60))), model, workers=1))


def test_an_actor_is_killed(model: Path, files: Path, mortal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.engines.ray.WorkerMethod", KilledOnce)
    require_same(table(score(ray.data.read_parquet(str(files)), model, METHODS, ("id", "noted"), workers=2)))
    assert mortal.exists()


def test_files_of_hbc_score(model: Path, files: Path, mortal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.scoring.job.run_task", killed_once)
    require_same_files("ray", model, files, tmp_path, workers=2)
    assert mortal.exists()
    with pytest.raises(ValueError, match="found 'ray://other:10001' in a process that is connected to Ray"):
        next(map_tasks(abs, [-3], 1, "ray://other:10001"))


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example("Ray Data")
    assert pq.read_table("scored").column_names == ["town", "predict_proba_left", "predict_proba_stayed"]
