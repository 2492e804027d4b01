"""Models fitted on categories of pandas behind a server: a request holds the categories themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from serving import Running, running, settings

import hbc

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

RANDOM = np.random.default_rng(6)
ROWS = 160
PLACES = RANDOM.integers(0, 3, (ROWS, 2))
FRAME = pd.DataFrame(
    {
        "size": pd.Categorical.from_codes(PLACES[:, 0], [10, 20, 30]),
        "x": RANDOM.normal(size=ROWS),
        "town": pd.Categorical.from_codes(PLACES[:, 1], ["Bonn", "Köln", "Ulm"]),
    }
)
Y = (PLACES.sum(1) % 2 + FRAME.x > 0.5).astype(int)
DATATYPES = {"size": "INT64", "x": "FP64", "town": "BYTES"}


def models() -> dict[str, tuple[Any, pd.DataFrame]]:
    options = {"n_estimators": 5, "min_child_samples": 3, "min_data_per_group": 3, "cat_smooth": 1, "verbose": -1, "n_jobs": 1}
    strings = FRAME[["x", "town"]]
    return {
        "light": (lightgbm.LGBMClassifier(**options).fit(FRAME, Y), FRAME),
        "light-strings": (lightgbm.LGBMClassifier(**options).fit(strings, Y), strings),
        "xg": (
            xgboost.XGBClassifier(n_estimators=5, enable_categorical=True, n_jobs=1).fit(FRAME[["size", "x"]], Y),
            FRAME[["size", "x"]],
        ),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, tuple[Any, pd.DataFrame]]]]:
    place: Path = tmp_path_factory.mktemp("categories")
    found = models()
    for name, (model, frame) in found.items():
        hbc.convert(model, "numpy", frame).save(place / f"{name}.hbc")
    with running(settings(files={name: str(place / f"{name}.hbc") for name in found}, drift=True)) as server:
        yield server, found


@pytest.mark.parametrize("name", ["light", "light-strings", "xg"])
def test_records_columns_and_tensors(served: Any, name: str) -> None:
    server, known = served
    model, frame = known[name]
    expected = model.predict_proba(frame[:9])
    records = json.loads(json.dumps(frame[:9].to_dict("records")))
    named = {"names": list(frame), "rows": 9}
    for _ in range(2):
        for body in ({"records": records}, {"columns": {column: [row[column] for row in records] for column in frame}}):
            found = server.json("POST", f"/v1/models/{name}:predict_proba", body)
            np.testing.assert_allclose(found["predictions"]["predict_proba"], expected, rtol=1e-5)
        inputs = [
            {"name": column, "shape": [9], "datatype": DATATYPES[column], "data": [row[column] for row in records]}
            for column in named["names"]
        ]
        body = {"inputs": inputs, "outputs": [{"name": "predict_proba"}]}
        found = server.json("POST", f"/v2/models/{name}/infer", body)
        np.testing.assert_allclose(np.reshape(found["outputs"][0]["data"], (9, 2)), expected, rtol=1e-5)


def test_values_that_are_no_categories(served: Any) -> None:
    server, known = served
    model, frame = known["light"]
    record = {"size": 20, "x": 0.25, "town": "Ulm"}
    for changed in ({"size": None}, {"size": 99}, {"town": None}, {"town": "Rome"}):
        row = record | changed
        given = pd.DataFrame({name: [row[name]] for name in row}).assign(
            **{name: pd.Categorical([row[name]]).set_categories(frame[name].cat.categories) for name in ("size", "town")}
        )
        found = server.json("POST", "/v1/models/light:predict_proba", {"records": [row]})["predictions"]["predict_proba"]
        np.testing.assert_allclose(found, model.predict_proba(given), rtol=1e-6, err_msg=str(changed))
    for wrong in ({"size": "20"}, {"size": True}, {"size": [20]}, {"town": 3}):
        server.json("POST", "/v1/models/light:predict", {"records": [record | wrong]}, status=400)
    server.json("POST", "/v1/models/xg:predict", {"record": {"size": 99, "x": 0.5}}, status=400)


def test_the_schema_and_the_drift_know_the_categories(served: Any) -> None:
    server, _ = served
    status, _, page = server.ask("GET", "/metrics")
    assert status == 200
    before = sum(
        float(line.split()[-1])
        for line in page.decode().splitlines()
        if line.startswith("hbc_column_unseen") and "size" in line
    )
    server.json("POST", "/v1/models/light:predict", {"records": [{"size": 99, "x": 0.5, "town": "Ulm"}]})
    page = server.ask("GET", "/metrics")[2]
    after = sum(
        float(line.split()[-1])
        for line in page.decode().splitlines()
        if line.startswith("hbc_column_unseen") and "size" in line
    )
    assert after == before + 1
    document = server.json("GET", "/openapi.json")
    assert "Köln" in json.dumps(document, ensure_ascii=False)
