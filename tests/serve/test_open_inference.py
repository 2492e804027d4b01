"""The Open Inference Protocol v2 over HTTP, by tritonclient and by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tritonclient.http as triton
from serving import Running, numbers, people
from tritonclient.utils import InferenceServerException

INFER = "/v2/models/people/infer"


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    found = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield found
    found.close()


def inputs_of(rows: int, binary: bool) -> list[Any]:
    X, _ = people()
    inputs = []
    for name in X:
        text = X[name].dtype.kind not in "f"
        values = X[name][:rows].to_numpy(object if text else "f8")
        each = triton.InferInput(name, [rows], "BYTES" if text else "FP64")
        each.set_data_from_numpy(values, binary_data=binary)
        inputs.append(each)
    return inputs


@pytest.mark.every_case
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("rows", [1, 6])
def test_tritonclient_gets_the_sources_answers(client: Any, binary: bool, rows: int) -> None:
    X, model = people()
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("predict_proba", "predict")]
    answer = client.infer("people", inputs_of(rows, binary), outputs=outputs, request_id="r-1", timeout=5_000_000)
    assert answer.get_response()["id"] == "r-1"
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["predict_proba", "predict"]
    np.testing.assert_allclose(answer.as_numpy("predict_proba"), model.predict_proba(X[:rows]), rtol=1e-9)
    labels = [each if isinstance(each, str) else each.decode() for each in answer.as_numpy("predict").tolist()]
    assert labels == list(model.predict(X[:rows]))
    usual = client.infer("people", inputs_of(rows, binary))
    assert [output["name"] for output in usual.get_response()["outputs"]] == ["predict"]


def test_a_matrix(client: Any) -> None:
    Y, trees = numbers()
    values = Y[:5].to_numpy()
    for dtype, datatype in (("f8", "FP64"), ("f4", "FP32")):
        each = triton.InferInput("input", [5, 5], datatype)
        each.set_data_from_numpy(values.astype(dtype))
        found = client.infer("numbers", [each], model_version="1").as_numpy("predict")
        np.testing.assert_allclose(found, trees.predict(Y[:5].astype(dtype)), rtol=1e-9)


def test_about_the_server(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("people")
    assert client.is_model_ready("people", "1")
    assert not client.is_model_ready("nobody")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("people")
    assert found["inputs"][0] == {"name": "age", "datatype": "FP64", "shape": [-1]}
    assert found["inputs"][2]["datatype"] == "BYTES"
    assert {"name": "predict_proba", "datatype": "FP64", "shape": [-1, 2]} in found["outputs"]
    assert {"name": "predict", "datatype": "BYTES", "shape": [-1]} in found["outputs"]
    assert client.get_model_metadata("numbers")["outputs"][0] == {"name": "predict", "datatype": "FP64", "shape": [-1]}


def test_statistics_and_metrics_count(server: Running, client: Any) -> None:
    def counts() -> tuple[int, int, int]:
        (found,) = client.get_inference_statistics("people")["model_stats"]
        return found["inference_count"], found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]

    before = counts()
    client.infer("people", inputs_of(6, True))
    client.infer("people", inputs_of(1, False))
    with pytest.raises(InferenceServerException):
        client.infer("people", inputs_of(1, False)[:2])
    assert [b - a for a, b in zip(before, counts(), strict=True)] == [7, 2, 1]
    _, headers, data = server.ask("GET", "/metrics")
    text = data.decode()
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    rows, success, failed = counts()
    labels = 'model="people",version="1"'
    assert f"nv_inference_request_success{{{labels}}} {success}\n" in text
    assert f"nv_inference_request_failure{{{labels}}} {failed}\n" in text
    assert f"nv_inference_count{{{labels}}} {rows}\n" in text
    assert f'hbc_request_seconds_bucket{{{labels},le="+Inf"}} {success}\n' in text
    assert server.json("GET", "/v2/models/stats")["model_stats"][0]["name"] == "numbers"


def test_loading_and_unloading(client: Any) -> None:
    index = client.get_model_repository_index()
    assert {(each["name"], each["state"]) for each in index} == {("people", "READY"), ("numbers", "READY")}
    client.unload_model("numbers")
    assert not client.is_model_ready("numbers")
    with pytest.raises(InferenceServerException, match="unloaded"):
        client.get_model_metadata("numbers")
    client.load_model("numbers")
    assert client.is_model_ready("numbers")
    with pytest.raises(InferenceServerException, match="no file"):
        client.load_model("nobody")
    with pytest.raises(InferenceServerException, match="own files only"):
        client.load_model("numbers", config="{}")
    with pytest.raises(InferenceServerException):
        client.unload_model("nobody")


def tensor(name: str, datatype: str, data: list[Any], **others: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data, **others}


AGE, FARE = tensor("age", "FP64", [31.5]), tensor("fare", "FP64", [10.25])
SEX, PORT = tensor("sex", "BYTES", ["f"]), tensor("port", "BYTES", ["S"])
GOOD = [AGE, FARE, SEX, PORT]


def test_one_row_by_any_datatype_is_the_frame_of_it(server: Running) -> None:
    """The short way of one row and the way of tensors agree: the same row twice gives the same result twice."""
    _, model = people()
    for datatype, dtype in (("FP64", "f8"), ("FP32", "f4"), ("INT64", "i8"), ("INT32", "i4"), ("UINT8", "u1"), ("FP16", "f2")):
        number = 31 if dtype[0] in "iu" else 31.7
        frame = pd.DataFrame({"age": np.array([number], dtype), "fare": np.array([10], dtype), "sex": ["f"], "port": ["S"]})
        inputs = [tensor("age", datatype, [number]), tensor("fare", datatype, [10]), SEX, PORT]
        twice = [{**each, "shape": [2], "data": each["data"] * 2} for each in inputs]
        try:
            expected = model.predict_proba(frame)[0]
            answers = [
                server.json("POST", INFER, {"inputs": given, "outputs": [{"name": "predict_proba"}]})
                for given in (inputs, twice)
            ]
        except AssertionError:
            assert datatype in ("FP16",)  # scikit-learn computes in it, which hbc refuses
            continue
        one, two = (np.reshape(answer["outputs"][0]["data"], (-1, 2)) for answer in answers)
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_allclose(one[0], expected, rtol=1e-5)


def test_nested_data_and_columns_of_one(server: Running) -> None:
    shaped = [{**each, "shape": [1, 1], "data": [each["data"]]} for each in GOOD]
    plain = server.json("POST", INFER, {"inputs": GOOD})
    assert server.json("POST", INFER, {"inputs": shaped}) == plain
    assert server.json("POST", INFER, {"inputs": list(reversed(GOOD))}) == plain


@pytest.mark.parametrize("rows", [1, 2, 400])
def test_null_is_a_missing_value(server: Running, rows: int) -> None:
    """As in plain JSON and in the adapters for other servers. It was refused here alone. The model says whether its column takes it."""
    Y, trees = numbers()
    frame = pd.concat([Y, Y], ignore_index=True)[:rows]
    frame.loc[::2, "w"] = np.nan
    data = [None if value != value else value for value in frame.to_numpy().ravel().tolist()]
    matrix = {"name": "input", "datatype": "FP64", "shape": [rows, 5], "data": data}
    (found,) = server.json("POST", "/v2/models/numbers/infer", {"inputs": [matrix]})["outputs"]
    np.testing.assert_allclose(found["data"], trees.predict(frame), rtol=1e-9)
    given = [{**each, "shape": [rows], "data": each["data"] * rows} for each in (AGE, FARE, SEX)]
    port = tensor("port", "BYTES", ["S", None] * (rows // 2) if rows > 1 else [None])
    (found,) = server.json("POST", INFER, {"inputs": [*given, port], "outputs": [{"name": "predict_proba"}]})["outputs"]
    records = [{"age": 31.5, "fare": 10.25, "sex": "f", "port": each} for each in port["data"]]
    plain = server.json("POST", "/v1/models/people:predict_proba", {"records": records})["predictions"]["predict_proba"]
    np.testing.assert_allclose(np.reshape(found["data"], (-1, 2)), plain, rtol=1e-9)


BAD: list[tuple[Any, str]] = [
    ({}, "inputs: found null"),
    ({"inputs": []}, "inputs: found none"),
    ({"inputs": [3]}, "inputs[0]: found 3"),
    ({"inputs": [{}]}, "inputs[0].name"),
    ({"inputs": [{"name": "age", "shape": [1], "datatype": "FP65", "data": [1]}]}, "'FP65'"),
    ({"inputs": [{**AGE, "datatype": []}]}, "datatype"),
    ({"inputs": [{**AGE, "shape": [-1]}]}, "shape"),
    ({"inputs": [{**AGE, "shape": [2]}]}, "found 1 value, expected 2"),
    ({"inputs": [{**AGE, "shape": [1 << 40]}]}, "shape"),
    ({"inputs": [{**AGE, "shape": [0, *[(1 << 31) - 1] * 3], "data": []}]}, "shape"),
    ({"inputs": [{**AGE, "shape": [0]}]}, "found 1 value, expected 0"),
    ({"inputs": [{**AGE, "data": [[1, 2]]}]}, "age"),
    ({"inputs": [{**AGE, "data": ["x"]}]}, "found 'x' in the data of FP64"),
    ({"inputs": [{**AGE, "data": [True]}, FARE, SEX, PORT]}, "found True in the data of FP64"),
    ({"inputs": [{**AGE, "datatype": "INT64", "data": [None]}]}, "found null in the data of INT64"),
    ({"inputs": [AGE, {**FARE, "data": [None]}, SEX, PORT]}, "NaN"),
    ({"inputs": [{**AGE, "datatype": "INT8", "data": [300]}]}, "integers from -128 to 127"),
    ({"inputs": [{**AGE, "datatype": "INT64", "data": [1 << 63]}, FARE, SEX, PORT]}, "integers from"),
    ({"inputs": [{**AGE, "datatype": "UINT64", "data": [-1]}]}, "integers from 0"),
    ({"inputs": [AGE, AGE, SEX, PORT]}, "it comes twice"),
    ({"inputs": [AGE, {**FARE, "shape": [2], "data": [1, 2]}]}, "expected [1] or [1, 1]"),
    ({"inputs": [AGE, FARE, SEX]}, "port"),
    ({"inputs": GOOD, "outputs": [{"name": "fly"}]}, "outputs: found 'fly'"),
    ({"inputs": GOOD, "outputs": [3]}, "outputs[0]"),
    ({"inputs": GOOD, "outputs": {}}, "outputs: found an object"),
    ({"inputs": GOOD, "id": 7}, "id: found 7"),
    ({"inputs": GOOD, "parameters": {"timeout": "x"}}, "timeout"),
    ({"inputs": GOOD, "parameters": {"sequence_id": 3}}, "sequence_id"),
    ({"inputs": GOOD, "parameters": []}, "parameters: found a list"),
    ({"inputs": GOOD, "outputs": [{"name": "predict", "parameters": {"classification": 2}}]}, "classification"),
    ({"inputs": [{**AGE, "parameters": {"shared_memory_region": "x"}}]}, "shared_memory_region"),
    ({"inputs": [{**AGE, "parameters": {"binary_data_size": 8}}]}, "0 bytes are left"),
]


@pytest.mark.every_case
@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_is_wrong_is_said(server: Running, case: int) -> None:
    body, message = BAD[case]
    assert message in server.json("POST", INFER, body, status=400)["error"]


def binary(server: Running, document: Any, raw: bytes, length: str | None = None) -> tuple[int, bytes]:
    text = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(text)) if length is None else length}
    status, _, data = server.ask("POST", INFER, text + raw, headers)
    return status, data


def test_bytes_that_do_not_fit(server: Running) -> None:
    sized = {"name": "age", "datatype": "FP64", "shape": [1], "parameters": {"binary_data_size": 8}}
    texts = {"name": "sex", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    number = struct.pack("<d", 31.5)
    good = [sized, FARE, texts, PORT]
    assert binary(server, {"inputs": good}, number + b"\1\0\0\0f")[0] == 200
    for inputs, raw, length in [
        (good, number + b"\1\0\0\0", None),  # too short
        (good, number + b"\1\0\0\0fx", None),  # too long
        (good, number + b"\2\0\0\0f", None),  # an element longer than what is left
        (good, number + b"\0\0\0\0f", None),  # a byte is left
        (good, number + b"\xff\xff\xff\xff\xff", None),
        (good, number + b"\1\0\0\0\xff", None),  # no UTF-8
        ([{**sized, "parameters": {"binary_data_size": -8}}], number, None),
        ([{**sized, "parameters": {"binary_data_size": 7}}], number[:7], None),
        ([{**sized, "data": [1.0]}], number, None),
        ([{**sized, "datatype": "BOOL", "parameters": {"binary_data_size": 1}}], b"\2", None),
        ([{**texts, "shape": [1 << 30]}], b"\0\0\0\0\0", None),
        (good, number + b"\1\0\0\0f", "-1"),
        (good, number + b"\1\0\0\0f", "99999999"),
        (good, number + b"\1\0\0\0f", "1e3"),
    ]:
        status, data = binary(server, {"inputs": inputs}, raw, length)
        assert status == 400, data
        assert b"error" in data


def test_time_is_over(server: Running) -> None:
    error = server.json("POST", INFER, {"inputs": GOOD, "parameters": {"timeout": 1}}, status=504)["error"]
    assert "time is over" in error
    assert server.json("POST", INFER, {"inputs": GOOD, "parameters": {"timeout": 0}})["outputs"]
