"""gRPC: the Open Inference Protocol and health checks, spoken with plain grpcio; and with tritonclient where it is installed."""

from __future__ import annotations

import asyncio
import io
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import hbc
from hbc.serve.engine import Engine
from hbc.serve.grpc.messages import HEALTH, INFERENCE, Health, Messages, methods_of
from hbc.serve.grpc.server import GrpcServer, Tls
from hbc.serve.limits import Limits
from hbc.serve.logs import Log
from hbc.serve.repository import Repository
from hbc.serve.service import Service
from hbc.serve.workers import Family

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype("float32")
FRAME = pd.DataFrame(
    {
        "age": rng.integers(20, 60, 60).astype(float),
        "town": rng.choice(["Köln", "Ulm", "Bonn"], 60),
        "fare": X[:, 0].astype(float),
    }
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two models, and their files by name: a matrix of numbers, and a frame with strings whose labels are strings."""
    folder = tmp_path_factory.mktemp("models")
    numbers = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0)).fit(X, X[:, 0] > 0)
    columns = make_column_transformer((StandardScaler(), ["age", "fare"]), (OneHotEncoder(), ["town"]))
    mixed = make_pipeline(columns, LogisticRegression()).fit(FRAME, np.where(X[:, 0] > 0, "yes", "no"))
    hbc.convert(numbers, "numpy").save(folder / "numbers.hbc")
    hbc.convert(mixed, "numpy", FRAME).save(folder / "mixed.hbc")
    return {"numbers": numbers, "mixed": mixed, "folder": folder}


class Running:
    """A gRPC server in a thread of its own, with its event loop."""

    def __init__(self, files: dict[str, Path], limits: Limits | None = None, tls: Tls | None = None, **options: Any) -> None:
        self.repository = Repository(files)
        self.repository.refresh()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.port = self.run(self._start(limits, tls, options))

    async def _start(self, limits: Limits | None, tls: Tls | None, options: dict[str, Any]) -> int:
        limits = limits or Limits()
        self.engine = Engine(limits)
        self.log = io.StringIO()
        self.service = Service(self.repository, self.engine, limits, Log(self.log), **options)
        self.server = GrpcServer(self.service, Family(self.repository), "127.0.0.1:0", tls)
        await self.server.start()
        return int(self.server.address.rpartition(":")[2])

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def stop(self) -> None:
        self.run(self.server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.engine.close()
        assert self.log.getvalue() == ""


@pytest.fixture(scope="module")
def server(models: dict[str, Any]) -> Iterator[Running]:
    running = Running({name: models["folder"] / f"{name}.hbc" for name in ("numbers", "mixed")})
    yield running
    running.stop()


def stub(channel: Any, service: str = INFERENCE) -> Any:
    """The methods of a service, as functions."""
    kinds = {(False, False): channel.unary_unary, (True, True): channel.stream_stream, (False, True): channel.unary_stream}
    return SimpleNamespace(
        **{
            name: kinds[streams](f"/{service}/{name}", taken.SerializeToString, given.FromString)
            for name, (taken, given, *pair) in methods_of(service).items()
            for streams in [tuple(pair)]
        }
    )


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield stub(channel)


def request(rows: Any = X[:3], model: str = "numbers", raw: bool = True, outputs: tuple[str, ...] = ("predict_proba",)) -> Any:
    """A request of one matrix of float32."""
    made = Messages.ModelInferRequest(model_name=model, id="7")
    tensor = made.inputs.add(name="input", datatype="FP32", shape=rows.shape)
    if raw:
        made.raw_input_contents.append(rows.tobytes())
    else:
        tensor.contents.fp32_contents.extend(rows.ravel().tolist())
    for name in outputs:
        made.outputs.add(name=name)
    return made


def columns(frame: pd.DataFrame, raw: bool) -> Any:
    """A request of one tensor for each column."""
    made = Messages.ModelInferRequest(model_name="mixed")
    for name in frame.columns:
        texts = name == "town"
        tensor = made.inputs.add(name=name, datatype="BYTES" if texts else "FP64", shape=[len(frame)])
        values = [text.encode() for text in frame[name]] if texts else frame[name].tolist()
        if raw and texts:
            made.raw_input_contents.append(b"".join(len(v).to_bytes(4, "little") + v for v in values))
        elif raw:
            made.raw_input_contents.append(frame[name].to_numpy().tobytes())
        else:
            getattr(tensor.contents, "bytes_contents" if texts else "fp64_contents").extend(values)
    for name in ("predict", "predict_proba"):
        made.outputs.add(name=name)
    return made


def array(answer: Any, name: str, dtype: Any) -> Any:
    """An output of numbers."""
    place = [output.name for output in answer.outputs].index(name)
    return np.frombuffer(answer.raw_output_contents[place], dtype).reshape(answer.outputs[place].shape)


@pytest.mark.parametrize("raw", [True, False])
def test_answers_are_those_of_the_source(client: Any, models: dict[str, Any], raw: bool) -> None:
    answer = client.ModelInfer(request(raw=raw))
    assert (answer.model_name, answer.model_version, answer.id) == ("numbers", "1", "7")
    np.testing.assert_allclose(array(answer, "predict_proba", "f8"), models["numbers"].predict_proba(X[:3]), rtol=1e-6)
    for rows in (1, 5):
        answer = client.ModelInfer(columns(FRAME[:rows], raw))
        assert [output.name for output in answer.outputs] == ["predict", "predict_proba"]
        expected = models["mixed"].predict_proba(FRAME[:rows])
        np.testing.assert_allclose(array(answer, "predict_proba", "f8"), expected, rtol=1e-6)
        labels = b"".join(len(v).to_bytes(4, "little") + v.encode() for v in models["mixed"].predict(FRAME[:rows]))
        assert answer.raw_output_contents[0] == labels
        assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("BYTES", [rows])


def test_a_request_that_names_no_output_gets_the_usual_one(client: Any, models: dict[str, Any]) -> None:
    answer = client.ModelInfer(request(outputs=()))
    assert [output.name for output in answer.outputs] == ["predict"]
    assert (array(answer, "predict", "?") == models["numbers"].predict(X[:3])).all()


def test_streams_answer_in_order_and_go_on_after_an_error(client: Any, models: dict[str, Any]) -> None:
    made = [request(X[i : i + 1]) for i in range(4)]
    made[2].model_name = "nobody"
    found = list(client.ModelStreamInfer(iter(made)))
    assert "nobody" in found[2].error_message
    assert found[2].infer_response.id == "7"
    for place in (0, 1, 3):
        expected = models["numbers"].predict_proba(X[place : place + 1])
        np.testing.assert_allclose(array(found[place].infer_response, "predict_proba", "f8"), expected, rtol=1e-6)


def bad(change: Callable[[Any], Any], **options: Any) -> Any:
    made = request(**options)
    change(made)
    return made


BAD = [
    (bad(lambda r: setattr(r, "model_name", "nobody")), "NOT_FOUND", "nobody"),
    (bad(lambda r: setattr(r, "model_version", "3")), "NOT_FOUND", "version '3'"),
    (bad(lambda r: r.raw_input_contents.append(b"")), "INVALID_ARGUMENT", "found 2, expected one for each of 1"),
    (bad(lambda r: r.inputs[0].contents.fp32_contents.append(1)), "INVALID_ARGUMENT", "one of the two"),
    (bad(lambda r: r.inputs[0].shape.append(2)), "INVALID_ARGUMENT", "bytes"),
    (bad(lambda r: setattr(r.inputs[0], "datatype", "FP8")), "INVALID_ARGUMENT", "FP8"),
    (bad(lambda r: r.inputs[0].shape.__setitem__(0, -3)), "INVALID_ARGUMENT", "sizes from 0"),
    (bad(lambda r: r.inputs[0].shape.extend([0, 2**62])), "INVALID_ARGUMENT", "sizes from 0"),
    (bad(lambda r: r.inputs[0].shape.extend([1] * 70)), "INVALID_ARGUMENT", "at most 8 sizes"),
    (bad(lambda r: r.outputs.add(name="nothing")), "INVALID_ARGUMENT", "nothing"),
    (bad(lambda r: r.inputs[0].contents.fp32_contents.pop(), raw=False), "INVALID_ARGUMENT", "11 elements"),
    (bad(lambda r: setattr(r.inputs[0], "datatype", "FP16"), raw=False), "INVALID_ARGUMENT", "FP16"),
    (bad(lambda r: setattr(r.inputs[0], "datatype", "FP64"), raw=False), "INVALID_ARGUMENT", "expected fp64_contents"),
    (bad(lambda r: r.ClearField("inputs")), "INVALID_ARGUMENT", "raw_input_contents"),
    (
        bad(lambda r: r.outputs[0].parameters["classification"].MergeFrom(Messages.InferParameter(int64_param=2))),
        "UNIMPLEMENTED",
        "classification",
    ),
    (
        bad(lambda r: r.parameters["timeout"].MergeFrom(Messages.InferParameter(string_param="soon"))),
        "INVALID_ARGUMENT",
        "timeout",
    ),
    (request(X[:2, :3]), "INVALID_ARGUMENT", "4"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("made", "code", "says"), BAD)
def test_bad_requests_say_what_was_found(client: Any, made: Any, code: str, says: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.ModelInfer(made)
    assert caught.value.code().name == code
    assert says in caught.value.details()


@pytest.mark.every_case
@pytest.mark.parametrize(("datatype", "value"), [("INT8", 200), ("INT16", 70000), ("UINT8", 256)])
def test_integers_that_their_type_cannot_hold_are_refused(client: Any, datatype: str, value: int) -> None:
    made = Messages.ModelInferRequest(model_name="numbers")
    tensor = made.inputs.add(name="input", datatype=datatype, shape=[1, 4])
    getattr(tensor.contents, "uint_contents" if datatype[0] == "U" else "int_contents").extend([1, 2, 3, value])
    with pytest.raises(grpc.RpcError, match=f"found {value}, which is no {datatype}"):
        client.ModelInfer(made)


def test_metadata_health_and_configuration(client: Any, server: Running) -> None:
    assert client.ServerLive(Messages.ServerLiveRequest()).live
    assert client.ServerReady(Messages.ServerReadyRequest()).ready
    assert client.ModelReady(Messages.ModelReadyRequest(name="mixed")).ready
    assert not client.ModelReady(Messages.ModelReadyRequest(name="nobody")).ready
    assert client.ServerMetadata(Messages.ServerMetadataRequest()).name == "hbc"
    found = client.ModelMetadata(Messages.ModelMetadataRequest(name="mixed"))
    assert {each.name: each.datatype for each in found.inputs} == {"age": "FP64", "town": "BYTES", "fare": "FP64"}
    assert "predict_proba" in {each.name for each in found.outputs}
    assert list(found.versions) == ["1"]
    config = client.ModelConfig(Messages.ModelConfigRequest(name="mixed")).config
    assert [(each.name, each.data_type) for each in config.input] == [("age", 12), ("town", 13), ("fare", 12)]
    assert config.max_batch_size == 0
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health = stub(channel, HEALTH)
        for service, status in (("", 1), (INFERENCE, 1), ("mixed", 1)):
            assert health.Check(Health.HealthCheckRequest(service=service)).status == status
        with pytest.raises(grpc.RpcError, match="nobody"):
            health.Check(Health.HealthCheckRequest(service="nobody"))
        watched = health.Watch(Health.HealthCheckRequest(service="nobody"))
        assert next(watched).status == 3
        watched.cancel()


def test_statistics_count_requests_rows_and_failures(client: Any) -> None:
    def found() -> Any:
        return client.ModelStatistics(Messages.ModelStatisticsRequest(name="numbers")).model_stats[0]

    before = found()
    client.ModelInfer(request(X[:5]))
    with pytest.raises(grpc.RpcError):
        client.ModelInfer(request(X[:5, :2]))
    after = found()
    assert after.inference_count - before.inference_count == 5
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.fail.count - before.inference_stats.fail.count == 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert {size.batch_size for size in after.batch_stats} >= {5}
    assert len(client.ModelStatistics(Messages.ModelStatisticsRequest()).model_stats) == 2


def test_repository(models: dict[str, Any]) -> None:
    server = Running({"numbers": models["folder"] / "numbers.hbc"})
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            client = stub(channel)
            name = {"model_name": "numbers"}
            client.RepositoryModelUnload(Messages.RepositoryModelUnloadRequest(**name))
            with pytest.raises(grpc.RpcError, match="unloaded"):
                client.ModelInfer(request())
            assert [each.state for each in client.RepositoryIndex(Messages.RepositoryIndexRequest()).models] == ["UNAVAILABLE"]
            assert not client.RepositoryIndex(Messages.RepositoryIndexRequest(ready=True)).models
            client.RepositoryModelLoad(Messages.RepositoryModelLoadRequest(**name))
            assert len(client.ModelInfer(request()).outputs) == 1
            asked = Messages.RepositoryModelLoadRequest(**name)
            asked.parameters["file:1/model.hbc"].bytes_param = b"x"
            with pytest.raises(grpc.RpcError, match="file:1/model"):
                client.RepositoryModelLoad(asked)
            with pytest.raises(grpc.RpcError, match="elsewhere"):
                client.RepositoryIndex(Messages.RepositoryIndexRequest(repository_name="elsewhere"))
    finally:
        server.stop()


def test_the_token_is_asked_for(models: dict[str, Any]) -> None:
    server = Running({"numbers": models["folder"] / "numbers.hbc"}, token="s3cret")
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            client = stub(channel)
            for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "s3cret"),)):
                for call in (client.ModelInfer, client.ModelStatistics):
                    asked = request() if call is client.ModelInfer else Messages.ModelStatisticsRequest()
                    with pytest.raises(grpc.RpcError) as caught:
                        call(asked, metadata=metadata)
                    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                    list(client.ModelStreamInfer(iter([request()]), metadata=metadata))
            assert client.ModelInfer(request(), metadata=(("authorization", "Bearer s3cret"),)).outputs
            assert client.ServerReady(Messages.ServerReadyRequest()).ready
    finally:
        server.stop()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, models: dict[str, Any]) -> Iterator[tuple[Running, threading.Event]]:
    """A server whose calls wait in a thread until the event is set."""
    go = threading.Event()
    server = Running({"numbers": models["folder"] / "numbers.hbc"}, Limits(queue=2))
    (served,) = server.repository.all()
    monkeypatch.setattr(served.cost, "seconds", lambda rows: 1.0)
    predictor = served.predictors["predict_proba"]
    answer = predictor.matrix
    monkeypatch.setattr(predictor, "matrix", lambda value: (go.wait(20), answer(value))[1])
    yield server, go
    go.set()
    server.stop()


def until(condition: Callable[[], bool]) -> None:
    """Wait up to 20 s."""
    waited = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came")


def test_deadlines_cancelled_calls_and_a_full_queue(slow: tuple[Running, threading.Event]) -> None:
    server, go = slow
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        client = stub(channel)
        first = client.ModelInfer.future(request())
        until(lambda: server.repository.all()[0].pending == 1 and server.engine.waiting == 0)  # it is being computed
        with pytest.raises(grpc.RpcError) as caught:
            client.ModelInfer(request(), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        late = request()
        late.parameters["timeout"].int64_param = 100_000
        with pytest.raises(grpc.RpcError) as caught:
            client.ModelInfer(late)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: server.engine.waiting == 0)
        waiting = [client.ModelInfer.future(request()) for _ in range(2)]
        until(lambda: server.engine.waiting == 2)
        with pytest.raises(grpc.RpcError) as caught:
            client.ModelInfer(request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ("grpc-retry-pushback-ms", "1000") in [(key, value) for key, value in caught.value.trailing_metadata()]
        waiting[0].cancel()
        until(lambda: server.engine.waiting == 1)  # it has left the queue
        go.set()
        assert first.result(20).outputs
        assert waiting[1].result(20).outputs


def test_a_server_that_stops_ends_what_runs_and_says_so(slow: tuple[Running, threading.Event]) -> None:
    server, go = slow
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        client, health = stub(channel), stub(channel, HEALTH)
        watched = health.Watch(Health.HealthCheckRequest())
        assert next(watched).status == 1
        running = client.ModelInfer.future(request())
        until(lambda: server.repository.all()[0].pending == 1)
        server.service.draining = True
        server.loop.call_soon_threadsafe(server.server.drain)
        assert next(watched).status == 2
        assert health.Check(Health.HealthCheckRequest()).status == 2
        assert not client.ServerReady(Messages.ServerReadyRequest()).ready
        stopped = asyncio.run_coroutine_threadsafe(server.server.stop(20), server.loop)
        go.set()
        assert running.result(20).outputs
        stopped.result(20)
        with pytest.raises(grpc.RpcError) as caught:
            client.ModelInfer(request(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_clients_may_be_kept_from_loading(models: dict[str, Any]) -> None:
    server = Running({"numbers": models["folder"] / "numbers.hbc"}, control=False)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for name in ("Load", "Unload"):
                asked = getattr(Messages, f"RepositoryModel{name}Request")(model_name="numbers")
                with pytest.raises(grpc.RpcError, match="may not load") as caught:
                    getattr(stub(channel), f"RepositoryModel{name}")(asked)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED  # HTTP says 403
            assert stub(channel).ModelInfer(request()).outputs
    finally:
        server.stop()


def test_tls(tmp_path: Path, models: dict[str, Any]) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run([*made, *files], cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl")
    tls = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = Running({"numbers": models["folder"] / "numbers.hbc"}, tls=tls)
    try:
        trusted = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
        options = (("grpc.ssl_target_name_override", "localhost"),)
        with grpc.secure_channel(f"127.0.0.1:{server.port}", trusted, options) as channel:
            assert stub(channel).ModelInfer(request()).outputs
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel, pytest.raises(grpc.RpcError):
            stub(channel).ModelInfer(request(), timeout=5)
    finally:
        server.stop()


def test_descriptors_are_those_of_the_protocol_files(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    from hbc.serve.grpc.messages import DESCRIPTORS

    made = tmp_path / "protocol.binpb"
    files = ["inference.proto", "health.proto"]
    assert protoc.main(["", f"-I{DESCRIPTORS.parent}", "--include_imports", f"--descriptor_set_out={made}", *files]) == 0
    assert made.read_bytes() == DESCRIPTORS.read_bytes()
