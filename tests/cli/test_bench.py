"""`hbc bench`, as a user types it: answers are compared first, every engine has a time or a reason."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from test_verify import run

import hbc

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def frame() -> Any:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return X.iloc[:, :4].assign(city=np.where(y, "Bern", "Graz"), kind=y)


def files(model: Any, X: Any, folder: Path) -> tuple[Path, Path]:
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    if hasattr(X, "to_parquet"):
        X.to_csv(folder / "rows.csv", index=False)
        return folder / "model.pkl", folder / "rows.csv"
    np.save(folder / "rows.npy", X)
    return folder / "model.pkl", folder / "rows.npy"


def engines(model: Any, X: Any, folder: Path, *options: str) -> dict[str, Any]:
    said, _ = run("bench", *files(model, X, folder), "--trust", "--rows", "1,50", "--json", *options)
    return json.loads(said)["engines"]


def test_a_pipeline_on_a_frame_with_strings(frame: Any, tmp_path: Path) -> None:
    encode = make_column_transformer((OneHotEncoder(), ["city"]), (StandardScaler(), list(frame.columns[:4])))
    model = make_pipeline(encode, LogisticRegression(max_iter=1000)).fit(frame.iloc[:, :5], frame["kind"])
    said, _ = run("bench", *files(model, frame, tmp_path), "--trust", "--rows", "1,50", "--backends", "numpy")
    lines = said.splitlines()
    assert lines[0].split("  ")[0] == "engine"
    assert lines[0].endswith("50 rows, times the source")
    assert lines[1].split()[:2] == ["source", "yes"]
    assert any(line.startswith("hbc:numpy  ") and " yes " in line for line in lines)
    assert lines[-1].startswith("predict_proba on 569 rows of ")


def test_each_engine_has_times_or_a_reason(tmp_path: Path) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = X.astype(np.float32)
    model = RandomForestClassifier(5, random_state=0, n_jobs=2).fit(X, y)
    found = engines(model, X, tmp_path)
    assert list(found)[:2] == ["source", "onnxruntime"]
    assert {f"hbc:{name}" for name, available in hbc.backends().items() if available} <= set(found)
    for each in found.values():
        if "reason" not in each:
            assert each["agrees"]
            assert set(each["call_seconds"]) == {"1", "50"}
            assert min(each["call_seconds"].values()) > 0
    assert "reason" not in found["source"]
    assert found["hbc:numpy"]["largest_difference"] <= 1e-6


def test_a_regressor_through_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("skl2onnx")
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    found = engines(LinearRegression().fit(X, X[:, 0]), X, tmp_path, "--backends", "numpy")
    assert found["onnxruntime"]["agrees"]
    assert found["onnxruntime"]["call_seconds"]["50"] > 0


def test_a_booster_is_compared_by_its_probabilities(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    pytest.importorskip("onnxmltools")
    X, y = load_breast_cancer(return_X_y=True)
    lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, y).booster_.save_model(tmp_path / "trees.txt")
    np.save(tmp_path / "rows.npy", X.astype(np.float32))
    said, _ = run("bench", tmp_path / "trees.txt", tmp_path / "rows.npy", "--rows", "20", "--backends", "numpy", "--json")
    found = json.loads(said)
    assert found["method"] == "predict"
    assert found["engines"]["hbc:numpy"]["agrees"]
    assert found["engines"]["onnxruntime"]["agrees"]


def test_an_answer_that_differs_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = LinearRegression().fit(X, X[:, 0])
    paths = files(model, X, tmp_path)
    monkeypatch.setattr(sys.modules["hbc.cli.bench"], "_compiled_call", lambda *_: lambda X: model.predict(X) + 1e-3)
    said, _ = run("bench", *paths, "--trust", "--backends", "numpy", "--json", "--rows", "1", status=1)
    found = json.loads(said)["engines"]["hbc:numpy"]
    assert not found["agrees"]
    assert found["call_seconds"] is None
    assert found["answers"].startswith("NO: 60 of 60 differ")


@pytest.mark.every_case
def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    X = np.zeros((5, 2))
    paths = files(LinearRegression().fit(X, X[:, 0]), X, tmp_path)
    _, said = run("bench", *paths, "--trust", "--rows", "0", status=1)
    assert "--rows: found '0', expected positive whole numbers" in said
    _, said = run("bench", *paths, "--trust", "--method", "transform", status=1)
    assert "--method: found 'transform', expected one of predict" in said
    _, said = run("bench", *paths, status=1)
    assert "--trust" in said
    for backends in ("tmv", "numpy,tmv"):
        _, said = run("bench", *paths, "--trust", "--backends", backends, status=1)
        assert "tmv" in said
        assert "numpy" in said
