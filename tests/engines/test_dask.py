"""Dask scores with its own schedulers, and with processes of which one is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import distributed
import pandas as pd
import pyarrow as pa
import pytest
from engine_cases import METHODS, MODEL, NAMES, ROWS, TABLE, require_same
from fragment_cases import killed_once, require_same_files
from killing import KilledOnce

import hbc
from hbc.engines.dask import score
from hbc.errors import InvalidInputError

# pandas 3.1 warns of what Dask does in it.
pytestmark = pytest.mark.filterwarnings("ignore")


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_answers(model: Path, files: Path, scheduler: str) -> None:
    scored = score(dd.read_parquet(files), model, METHODS, ("id", "noted"))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        found = scored.compute()
    require_same(arrow(found))
    assert list(scored.columns) == ["id", "noted", *NAMES]
    pd.testing.assert_series_equal(found.dtypes, scored.dtypes)


def test_only_the_columns_of_the_model_are_read(model: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score(dd.read_parquet(files), hbc.load(model), keep="id").optimize().pprint()
    assert "columns=['id', 'town', 'age', 'fare', 'visits']" in capsys.readouterr().out


def test_the_index_stays_and_partitions_may_be_empty(model: Path) -> None:
    frame = TABLE.slice(0, 100).to_pandas().set_index("id")
    frame["town"] = frame["town"].astype("category")
    lazy = dd.from_pandas(frame, npartitions=4)
    found = score(lazy[lazy["visits"] > 0], model).compute(scheduler="sync")
    wanted = frame[frame["visits"] > 0]
    assert list(found.index) == list(wanted.index)
    assert found["predict"].tolist() == MODEL.predict(wanted.astype({"town": str})).tolist()
    assert found.index.name == "id"
    assert len(score(lazy[lazy["fare"] > 99], model).compute(scheduler="sync")) == 0


def test_what_is_refused(model: Path) -> None:
    with pytest.raises(TypeError, match=r"frame: found .*of type DataFrame\), expected a DataFrame of Dask"):
        score(TABLE.to_pandas(), model)
    frame = dd.from_pandas(TABLE.slice(0, 20).to_pandas(), npartitions=2)
    with pytest.raises(InvalidInputError, match="expected also 'fare'"):
        score(frame.drop(columns="fare"), model)
    mixed = TABLE.slice(0, 20).to_pandas().astype({"age": object})
    mixed.loc[15, "age"] = "old"
    with dask.config.set({"dataframe.convert-string": False}), pytest.raises(InvalidInputError, match="age"):
        score(dd.from_pandas(mixed, npartitions=2), model).compute(scheduler="sync")
    sparse = frame.astype({"age": pd.SparseDtype(float)})
    with pytest.raises(InvalidInputError, match=r"column age.*frame\.astype"):
        score(sparse, model)
    dense = sparse.astype({"age": "float64"})
    assert score(dense, model).compute(scheduler="sync").equals(score(frame, model).compute(scheduler="sync"))


@pytest.mark.parametrize("address", ["bogus", "foo://bar:1"])
def test_an_address_that_is_none(
    model: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A cluster was started here instead, and nothing said so. Nor does a client stay that cannot compute anything."""
    monkeypatch.setattr(distributed, "LocalCluster", None)
    with pytest.raises(
        ValueError, match=rf"engine_address: found '{address}' .*, expected that of a cluster, such as tcp://host:8786"
    ):
        hbc.score(model, files, tmp_path / "out", engine="dask", engine_address=address)
    with pytest.raises(ValueError, match="No global client"):
        distributed.get_client()
    assert len(score(dd.from_pandas(TABLE.slice(0, 20).to_pandas(), npartitions=2), model).compute()) == 20


def test_a_worker_is_killed(model: Path, files: Path, mortal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.engines.dask.WorkerMethod", KilledOnce)
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        found = score(dd.read_parquet(files), model, METHODS, ("id", "noted")).compute()
    require_same(arrow(found))
    assert len(found) == ROWS
    assert mortal.exists()


def test_files_of_hbc_score(model: Path, files: Path, mortal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, of which one is killed in the middle of a file. Paths are relative, and an error of a file is the caller's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").symlink_to(files)
    mortal.unlink(missing_ok=True)
    monkeypatch.setattr("hbc.scoring.job.run_task", killed_once)
    require_same_files("dask", model, Path("in"), Path("."), workers=2)
    assert mortal.exists()
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="no_such"), dask.config.set({"distributed.worker.daemon": False}):
        hbc.score(model, files, tmp_path / "x", keep="no_such", engine="dask", workers=1)
