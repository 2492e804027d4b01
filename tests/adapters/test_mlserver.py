"""The adapter for MLServer, with MLServer itself: its server answers over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_models import FRAME, LISTS, MIXED, NUMBERS, X, close, saved
from ports import free_port

pytest.importorskip("mlserver")

import mlserver
from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.settings import ModelParameters, ModelSettings
from mlserver.types import InferenceRequest, RequestInput, RequestOutput

from hbc.adapters.mlserver import HbcModel


def ready(folder: Path, which: str) -> Any:
    """The runtime, loaded from a folder."""
    parameters = ModelParameters(uri=str(saved(folder, which).parent))
    model = HbcModel(ModelSettings(name="m", implementation=HbcModel, parameters=parameters))
    assert asyncio.run(model.load())
    return model


def inputs(rows: int) -> list[Any]:
    return [
        NumpyCodec.encode_input("age", FRAME["age"].to_numpy()[:rows]),
        StringCodec.encode_input("town", FRAME["town"].tolist()[:rows]),
        NumpyCodec.encode_input("fare", FRAME["fare"].to_numpy()[:rows]),
    ]


def test_a_frame(tmp_path: Path) -> None:
    model = ready(tmp_path, "mixed")
    assert {each.name for each in asyncio.run(model.metadata()).inputs} == {"age", "town", "fare"}
    wanted = [RequestOutput(name="predict"), RequestOutput(name="predict_proba")]
    for rows in (1, 5):
        found = asyncio.run(model.predict(InferenceRequest(id="7", inputs=inputs(rows), outputs=wanted)))
        assert (found.id, found.model_name) == ("7", "m")
        labels, shares = found.outputs
        assert StringCodec.decode_output(labels) == MIXED.predict(FRAME[:rows]).tolist()
        close(NumpyCodec.decode_output(shares), MIXED.predict_proba(FRAME[:rows]))


def test_a_matrix(tmp_path: Path) -> None:
    model = ready(tmp_path, "numbers")
    wanted = [RequestOutput(name="predict_proba"), RequestOutput(name="predict")]
    found = asyncio.run(model.predict(InferenceRequest(inputs=[NumpyCodec.encode_input("input", X[:3])], outputs=wanted)))
    close(NumpyCodec.decode_output(found.outputs[0]), NUMBERS.predict_proba(X[:3]))
    assert (NumpyCodec.decode_output(found.outputs[1]).ravel() == NUMBERS.predict(X[:3])).all()


def test_what_the_model_rejects_has_status_400(tmp_path: Path) -> None:
    model = ready(tmp_path, "mixed")
    for bad in (inputs(2)[:2], [NumpyCodec.encode_input("age", np.zeros((2, 2)))]):
        with pytest.raises(mlserver.errors.MLServerError) as caught:
            asyncio.run(model.predict(InferenceRequest(inputs=bad)))
        assert caught.value.status_code == 400


def test_a_file_that_cannot_be_read_has_status_400(tmp_path: Path) -> None:
    """A reload answered 500, with a traceback in the log. The model of before goes on."""
    model = ready(tmp_path, "mixed")
    (tmp_path / "model.hbc").write_bytes(b"PK" + bytes(50))
    for expected in ("model 'm': .*model.hbc: found", "model.hbc"):
        with pytest.raises(mlserver.errors.MLServerError, match=expected) as caught:
            asyncio.run(model.load())
        assert caught.value.status_code == 400
        (tmp_path / "model.hbc").unlink(missing_ok=True)
    assert asyncio.run(model.predict(InferenceRequest(inputs=inputs(1)))).outputs


@pytest.mark.parametrize("name", LISTS)
def test_lists_that_are_no_tensors(name: str, tmp_path: Path) -> None:
    """2.5 became 2, and a number among strings the empty string."""
    datatype, shape, values, said = LISTS[name]
    given = RequestInput(name="age", datatype=datatype, shape=shape, data=values)
    with pytest.raises(mlserver.errors.MLServerError, match=f"input 'age': {said}") as caught:
        asyncio.run(ready(tmp_path, "mixed").predict(InferenceRequest(inputs=[given, *inputs(1)[1:]])))
    assert caught.value.status_code == 400


def test_base64_is_what_it_says(tmp_path: Path) -> None:
    town = Base64Codec.encode_input("town", [each.encode() for each in FRAME["town"][:3]], use_bytes=False)
    age, _, fare = inputs(3)
    found = asyncio.run(ready(tmp_path, "mixed").predict(InferenceRequest(inputs=[age, town, fare])))
    assert StringCodec.decode_output(found.outputs[0]) == MIXED.predict(FRAME[:3]).tolist()


def test_the_server(tmp_path: Path, server: Any) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    saved(folder, "mixed")
    settings = {"name": "m", "implementation": "hbc.adapters.mlserver.HbcModel", "parameters": {"uri": "."}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    ports = {key: free_port() for key in ("http_port", "grpc_port", "metrics_port")}
    (tmp_path / "settings.json").write_text(json.dumps({**ports, "parallel_workers": 0, "host": "127.0.0.1"}))
    port = ports["http_port"]
    body = {
        "inputs": [
            {"name": "age", "datatype": "FP64", "shape": [3], "data": FRAME["age"].tolist()[:3]},
            {"name": "town", "datatype": "BYTES", "shape": [3, 1], "data": FRAME["town"].tolist()[:3]},
            {"name": "fare", "datatype": "FP64", "shape": [3], "data": FRAME["fare"].tolist()[:3]},
        ],
        "outputs": [{"name": "predict_proba"}, {"name": "predict"}],
    }
    with server.running("mlserver", "start", str(tmp_path), cwd=tmp_path) as process:
        answer = server.ask(process, port, "/v2/models/m/infer", body)
        shares, labels = answer["outputs"]
        close(np.reshape(shares["data"], shares["shape"]), MIXED.predict_proba(FRAME[:3]))
        assert labels["data"] == MIXED.predict(FRAME[:3]).tolist()
        status, refused = server.post(port, "/v2/models/m/infer", {"inputs": body["inputs"][:2]})
        assert status == 400
        assert "fare" in refused["error"]
