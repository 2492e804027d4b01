"""LightGBM writes _ for the spaces in the names of columns that it is fitted on. Wherever hbc finds its columns by name, the names of the
data are found too. It was "found no column 'mean_radius' (did you mean 'mean radius'?)"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("orjson")
from lightgbm import LGBMRegressor
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

import hbc
from hbc.adapters.hosted import Failure, Hosted
from hbc.cli import app
from hbc.engines.worker import WorkerMethod
from hbc.serve.tensors import Tensor

X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=["mean radius", "k", "worst  area of it"])
FOUND = pd.DataFrame({"note": "n", "worst  area of it": X.iloc[:, 2], "mean radius": X.iloc[:, 0], "k": X.k})
"""The columns in another order, and one more."""


@pytest.fixture(scope="module")
def source() -> Any:
    return LGBMRegressor(n_estimators=5, min_child_samples=2, verbose=-1).fit(X, X["mean radius"] * 2 - X.k)


@pytest.fixture(scope="module")
def saved(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.hbc"
    hbc.convert(source, "numpy").save(path)
    return path


def close(found: Any, source: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), source.predict(X), rtol=1e-9)


@pytest.mark.parametrize(
    "columns", [FOUND.columns, ["note", "worst__area_of_it", "mean_radius", "k"]], ids=["own", "LightGBM's"]
)
def test_arrow_and_engines(source: Any, saved: Path, columns: Any) -> None:
    table = pa.Table.from_pandas(FOUND.set_axis(columns, axis=1))
    close(hbc.load(saved).arrow("predict")(table)["predict"], source)
    worker = WorkerMethod(saved, keep="note")
    assert worker.reads(table.column_names) == ["note", columns[2], "k", columns[1]]
    close(worker(table)["predict"], source)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "jsonl"])
def test_files(source: Any, saved: Path, suffix: str, tmp_path: Path) -> None:
    path, out = tmp_path / f"rows.{suffix}", tmp_path / "out.parquet"
    if suffix == "jsonl":
        FOUND.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        getattr(FOUND, f"to_{suffix}")(path, **{"index": False} if suffix == "csv" else {})
    hbc.score(saved, path, out, keep=["note", "k"])
    assert pd.read_parquet(out).columns.tolist() == ["note", "k", "predict"]
    np.testing.assert_allclose(pd.read_parquet(out)["predict"], source.predict(X), rtol=1e-9)
    if suffix in ("parquet", "csv"):
        done = CliRunner().invoke(app, ["predict", str(saved), str(path), "-o", str(out)])
        assert done.exit_code == 0, done.output
        close(pd.read_parquet(out)["predict"], source)


def test_folders_that_give_a_column(source: Any, saved: Path, tmp_path: Path) -> None:
    for k in (1, 2):
        folder = tmp_path / "in" / "mean radius=3" / f"k={k}"
        folder.mkdir(parents=True)
        FOUND[["worst  area of it"]].to_parquet(folder / "part.parquet")
    hbc.score(saved, tmp_path / "in", tmp_path / "out")
    found = pd.read_parquet(tmp_path / "out" / "mean radius=3" / "k=2" / "part.parquet").predict
    np.testing.assert_allclose(found, source.predict(X.assign(**{"mean radius": 3, "k": 2})), rtol=1e-9)


def test_requests(source: Any, saved: Path) -> None:
    hosted = Hosted(saved)
    rows = FOUND.drop(columns="note")
    body = {"records": rows.to_dict("records")}
    close(json.loads(hosted.json(json.dumps(body).encode()))["predictions"]["predict"], source)
    body = {"columns": rows.to_dict("list")}
    close(json.loads(hosted.json(json.dumps(body).encode()))["predictions"]["predict"], source)
    one = json.loads(hosted.json(json.dumps({"record": rows.iloc[0].to_dict()}).encode()))["predictions"]["predict"]
    assert one == pytest.approx(source.predict(X)[0])
    (tensor,) = hosted.tensors([Tensor(name, "FP64", rows[name].to_numpy()) for name in rows])
    close(tensor.values, source)
    with pytest.raises(Failure, match=r"found no 'k' and 'K', which the model does not have"):
        hosted.rows([{"mean radius": 1.0, "K": 2.0, "worst  area of it": 3.0}])


def test_names_that_mean_one_column(source: Any, saved: Path) -> None:
    """The exact name counts. Of two others, none is chosen."""
    method = hbc.load(saved).arrow("predict")
    table = pa.Table.from_pandas(FOUND)
    close(method(table.append_column("mean_radius", table["mean radius"]).drop(["mean radius"]))["predict"], source)
    both = table.rename_columns({"mean radius": "mean_radius"}).append_column("mean radius", table["k"])
    close(method(both)["predict"], source)
    with pytest.raises(hbc.InvalidInputError, match=r"two columns of one name \(worst _area of it\)"):
        method(table.append_column("worst _area of it", table["k"]))


def test_other_sources_compare_their_names() -> None:
    """scikit-learn rejects them."""
    model = LinearRegression().fit(X.set_axis(["mean_radius", "k", "a"], axis=1), X.k)
    table = pa.Table.from_pandas(X.set_axis(["mean radius", "k", "a"], axis=1))
    with pytest.raises(ValueError, match="mean_radius"):
        model.predict(table.to_pandas())
    with pytest.raises(hbc.InvalidInputError, match="mean_radius"):
        hbc.convert(model, "numpy").arrow("predict")(table)
