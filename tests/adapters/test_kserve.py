"""The adapter for KServe, with KServe itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_models import FRAME, LISTS, MIXED, NUMBERS, X, close, records, saved
from ports import free_port

pytest.importorskip("kserve")

from kserve.errors import InvalidInput
from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput

from hbc.adapters.kserve import HbcModel


def ready(folder: Path, which: str, **options: Any) -> HbcModel:
    model = HbcModel("m", saved(folder, which).parent, **options)
    assert not model.ready
    assert model.load()
    return model


def request(rows: int, outputs: tuple[str, ...]) -> InferRequest:
    inputs = []
    for name in FRAME.columns:
        values = FRAME[name].to_numpy(object if name == "town" else float)[:rows]
        inputs.append(InferInput(name, [rows], "BYTES" if name == "town" else "FP64"))
        inputs[-1].set_data_from_numpy(values)
    return InferRequest("m", inputs, request_id="7", request_outputs=[RequestedOutput(name) for name in outputs])


def test_version_1(tmp_path: Path) -> None:
    model = ready(tmp_path, "mixed")
    assert model.predict({"instances": records(3)}) == {"predictions": MIXED.predict(FRAME[:3]).tolist()}
    assert model.predict(json.dumps({"instances": records(3)}).encode()) == {"predictions": MIXED.predict(FRAME[:3]).tolist()}
    shares = HbcModel("m", tmp_path, "predict_proba")
    shares.load()
    close(shares.predict({"instances": records(3)})["predictions"], MIXED.predict_proba(FRAME[:3]))
    numbers = ready(tmp_path, "numbers")
    assert numbers.predict({"instances": X[:3].tolist()}) == {"predictions": NUMBERS.predict(X[:3]).tolist()}
    for bad in ({}, {"instances": []}, {"instances": "x"}, {"instances": [[1, 2]]}, b"{", b"\xff", b"[1]", b"[" * 5000):
        with pytest.raises(InvalidInput):
            numbers.predict(bad)


def test_version_2(tmp_path: Path) -> None:
    model = ready(tmp_path, "mixed")
    assert {each["name"]: each["datatype"] for each in model.get_input_types()} == {
        "age": "FP64",
        "town": "BYTES",
        "fare": "FP64",
    }
    for rows in (1, 4):
        found = model.predict(request(rows, ("predict", "predict_proba")))
        assert found.id == "7"
        labels, shares = found.outputs
        assert np.ravel(labels.as_numpy()).tolist() == MIXED.predict(FRAME[:rows]).tolist()
        close(shares.as_numpy(), MIXED.predict_proba(FRAME[:rows]))
    with pytest.raises(InvalidInput, match="nothing"):
        model.predict(request(2, ("nothing",)))


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_no_tensors(name: str, tmp_path: Path) -> None:
    """Most were errors of status 500, and 2.5 became 2."""
    datatype, shape, values, said = LISTS[name]
    bad = request(1, ())
    bad.inputs[0] = InferInput("age", shape, datatype, values)
    with pytest.raises(InvalidInput, match=f"input 'age': {said}"):
        ready(tmp_path, "mixed").predict(bad)


def test_bytes_of_another_length(tmp_path: Path) -> None:
    bad = request(2, ())
    for place, shape in {0: [3], 1: [2, 2]}.items():
        bad.inputs[place].shape = shape
        with pytest.raises(InvalidInput, match="found data that is no FP64"):
            ready(tmp_path, "mixed").predict(bad)
        bad = request(2, ())
        bad.inputs[0], bad.inputs[1] = bad.inputs[1], bad.inputs[0]


def test_the_server(tmp_path: Path, server: Any) -> None:
    saved(tmp_path, "mixed")
    port = free_port()
    words = ["-m", "hbc.adapters.kserve", "--model_name", "m", "--model_dir", str(tmp_path), "--http_port", str(port)]
    body = {
        "inputs": [
            {"name": "age", "datatype": "FP64", "shape": [3], "data": FRAME["age"].tolist()[:3]},
            {"name": "town", "datatype": "BYTES", "shape": [3], "data": FRAME["town"].tolist()[:3]},
            {"name": "fare", "datatype": "FP64", "shape": [3], "data": FRAME["fare"].tolist()[:3]},
        ],
        "outputs": [{"name": "predict_proba"}, {"name": "predict"}],
    }
    with server.running(sys.executable, *words, "--grpc_port", str(free_port()), cwd=tmp_path) as process:
        answer = server.ask(process, port, "/v2/models/m/infer", body)
        shares, labels = answer["outputs"]
        close(np.reshape(shares["data"], shares["shape"]), MIXED.predict_proba(FRAME[:3]))
        assert labels["data"] == MIXED.predict(FRAME[:3]).tolist()
        found = server.ask(process, port, "/v1/models/m:predict", {"instances": records(3)})
        assert found == {"predictions": MIXED.predict(FRAME[:3]).tolist()}
        status, refused = server.post(port, "/v1/models/m:predict", {"instances": [{"age": 1}]})
        assert status == 400
        assert "town" in refused["error"]
