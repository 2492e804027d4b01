"""tritonclient's gRPC client before hbc's server, and its messages beside ours."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_grpc import FRAME, Running, X, models, server

triton = pytest.importorskip("tritonclient.grpc")

__all__ = ["models", "server"]


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as found:
        yield found


def matrix(rows: Any) -> list[Any]:
    made = triton.InferInput("input", rows.shape, "FP32")
    made.set_data_from_numpy(rows)
    return [made]


def frame(rows: int) -> list[Any]:
    made = []
    for name in FRAME.columns:
        texts = name == "town"
        made.append(triton.InferInput(name, [rows], "BYTES" if texts else "FP64"))
        made[-1].set_data_from_numpy(FRAME[name].to_numpy(object if texts else float)[:rows])
    return made


def outputs(*names: str) -> list[Any]:
    return [triton.InferRequestedOutput(name) for name in names]


def test_answers(client: Any, models: dict[str, Any]) -> None:
    for rows in (1, 6):
        found = client.infer("mixed", frame(rows), outputs=outputs("predict", "predict_proba"), request_id="9")
        assert found.get_response().id == "9"
        assert [label.decode() for label in found.as_numpy("predict")] == models["mixed"].predict(FRAME[:rows]).tolist()
        np.testing.assert_allclose(found.as_numpy("predict_proba"), models["mixed"].predict_proba(FRAME[:rows]), rtol=1e-6)
    found = client.infer("numbers", matrix(X[:3]), outputs=outputs("predict_proba"), client_timeout=20, timeout=20_000_000)
    np.testing.assert_allclose(found.as_numpy("predict_proba"), models["numbers"].predict_proba(X[:3]), rtol=1e-6)


def test_streams_and_calls_that_come_back_later(client: Any, models: dict[str, Any]) -> None:
    came: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: came.put((result, error)))
    for place in range(3):
        client.async_stream_infer("numbers", matrix(X[place : place + 1]), outputs=outputs("predict_proba"))
    client.async_stream_infer("nobody", matrix(X[:1]))
    for place in range(3):
        result, error = came.get(timeout=20)
        assert error is None
        expected = models["numbers"].predict_proba(X[place : place + 1])
        np.testing.assert_allclose(result.as_numpy("predict_proba"), expected, rtol=1e-6)
    _, error = came.get(timeout=20)
    assert "nobody" in str(error)
    client.stop_stream()
    client.async_infer("numbers", matrix(X[:2]), lambda result, error: came.put((result, error)), outputs=outputs("predict"))
    result, error = came.get(timeout=20)
    assert error is None
    assert (result.as_numpy("predict") == models["numbers"].predict(X[:2])).all()


def test_everything_else(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mixed")
    assert not client.is_model_ready("nobody")
    assert "statistics" in client.get_server_metadata(as_json=True)["extensions"]
    assert [each.name for each in client.get_model_metadata("mixed").inputs] == ["age", "town", "fare"]
    assert client.get_model_config("mixed").config.input[1].data_type == 13
    assert client.get_inference_statistics("mixed").model_stats[0].version == "1"
    assert {each.name for each in client.get_model_repository_index().models} == {"mixed", "numbers"}
    client.unload_model("numbers")
    assert not client.is_model_ready("numbers")
    client.load_model("numbers")
    assert client.is_model_ready("numbers")
    for asked in (
        lambda: client.infer("numbers", matrix(X[:2, :3])),
        lambda: client.infer("numbers", matrix(X[:2]), outputs=outputs("nothing")),
        lambda: client.infer("numbers", matrix(X[:2]), model_version="7"),
        lambda: client.load_model("numbers", config="{}"),
    ):
        with pytest.raises(triton.InferenceServerException):
            asked()


def test_our_messages_are_those_of_triton() -> None:
    """Every field of ours has the name, the number and the type that it has there."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    from hbc.serve.grpc import messages

    def repeated(field: Any) -> bool:  # protobuf 5 has only the label, of which later ones warn
        return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)

    def compare(mine: Any, theirs: Any) -> int:
        for field in mine.fields:
            other = theirs.fields_by_name[field.name]
            assert (other.number, other.type, repeated(other)) == (field.number, field.type, repeated(field)), field.full_name
        return len(mine.fields) + sum(compare(each, theirs.nested_types_by_name[each.name]) for each in mine.nested_types)

    known = {**model_config_pb2.DESCRIPTOR.message_types_by_name, **service_pb2.DESCRIPTOR.message_types_by_name}
    ours = vars(messages.Messages)
    assert sum(compare(message.DESCRIPTOR, known[name]) for name, message in ours.items()) > 100
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for name, (taken, given, *streams) in messages.methods_of(messages.INFERENCE).items():
        theirs = methods[name]
        assert (taken.DESCRIPTOR.full_name, given.DESCRIPTOR.full_name) == (
            theirs.input_type.full_name,
            theirs.output_type.full_name,
        )
        assert streams == [theirs.client_streaming, theirs.server_streaming]
