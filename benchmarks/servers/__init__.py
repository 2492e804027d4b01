"""The servers that `python -m benchmarks serving` compares: how each is started, what a request to it is, and where its answer stands."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

APPS = Path(__file__).parent / "apps"
NUMBERS = 20
"""The columns of the workloads `row` and `batch`."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Task:
    """What is asked of a server: the model's folder (model.hbc, model.onnx, and model.txt or model.joblib), and the rows of one request."""

    name: str
    folder: Path
    rows: list[list[Any]]
    names: list[str]
    expected: Array
    """The source's probability of the second class for each row."""

    @property
    def records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]

    @property
    def mixed(self) -> bool:
        return self.name == "mixed"


@dataclass(frozen=True)
class Request:
    """One request of HTTP, and how its answer is read."""

    path: str
    body: bytes
    read: Callable[[bytes], Any]
    """The body of an answer → the probabilities that it holds."""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


@dataclass(frozen=True)
class Server:
    """`command` makes a shell's words of (python, port, task, scratch folder). `request` makes the request of a task, or None if this
    server does not take such rows."""

    name: str
    environment: str
    """One of benchmarks/peers, or "main"."""
    command: Callable[[Path, int, Task, Path], list[str]]
    request: Callable[[Task], Request | None]
    variables: Callable[[Task, Path], dict[str, str]] = lambda task, scratch: {}


# --- requests ------------------------------------------------------------------------------------------------------------


def plain(task: Task) -> Request:
    """The usual body of a hand-written service: rows of numbers, or records of mixed values."""
    body = {"records": task.records} if task.mixed else {"rows": task.rows}
    return Request("/predict", json.dumps(body).encode(), lambda answer: json.loads(answer)["probabilities"])


def v2(name: str, output: str) -> Callable[[Task], Request]:
    """The Open Inference Protocol, as JSON: a matrix, or a tensor for each column."""

    def make(task: Task) -> Request:
        body = {"inputs": tensors(task), "outputs": [{"name": output}]}
        return Request(f"/v2/models/{name}/infer", json.dumps(body).encode(), v2_answer)

    return make


def tensors(task: Task) -> list[dict[str, Any]]:
    """The rows as tensors of the protocol."""
    count = len(task.rows)
    if not task.mixed:
        flat = [value for row in task.rows for value in row]
        return [{"name": "X", "datatype": "FP32", "shape": [count, len(task.names)], "data": flat}]
    columns = zip(task.names, zip(*task.rows, strict=True), strict=True)
    return [
        {"name": name, "datatype": "BYTES" if isinstance(values[0], str) else "FP64", "shape": [count, 1], "data": list(values)}
        for name, values in columns
    ]


def v2_binary(name: str, output: str) -> Callable[[Task], Request]:
    """The same with the binary extension, as tritonclient sends it."""

    def make(task: Task) -> Request:
        head, raw = [], []
        for tensor in tensors(task):
            data = tensor.pop("data")
            if tensor["datatype"] == "BYTES":
                raw.append(b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in data))
            else:
                raw.append(np.array(data, {"FP32": "<f4", "FP64": "<f8"}[tensor["datatype"]]).tobytes())
            head.append({**tensor, "parameters": {"binary_data_size": len(raw[-1])}})
        text = json.dumps({"inputs": head, "outputs": [{"name": output, "parameters": {"binary_data": False}}]}).encode()
        headers = (("content-type", "application/octet-stream"), ("inference-header-content-length", str(len(text))))
        return Request(f"/v2/models/{name}/infer", text + b"".join(raw), v2_answer, headers)

    return make


def v2_answer(answer: bytes) -> Any:
    """The values of the one output of an answer, rows of several classes as they are."""
    (output,) = json.loads(answer)["outputs"]
    return np.reshape(output["data"], output["shape"])


def hbc_rows(task: Task) -> Request | None:
    """The plain JSON of `hbc serve`: rows as lists."""
    return None if task.mixed else _hbc({"rows": task.rows})


def hbc_records(task: Task) -> Request | None:
    """The plain JSON of `hbc serve`: values by name. A model that was fitted on an array has no names: it is asked by rows."""
    if not task.mixed:
        return None
    return _hbc({"record": task.records[0]} if len(task.rows) == 1 else {"records": task.records})


def _hbc(rows: dict[str, Any]) -> Request:
    def read(answer: bytes) -> Any:
        found = json.loads(answer)["predictions"]["predict_proba"]
        return list(found.values()) if isinstance(found, dict) else found

    return Request("/v1/models/model:predict_proba", json.dumps(rows).encode(), read)


# --- servers -------------------------------------------------------------------------------------------------------------


def _uvicorn(app: str) -> Callable[[Path, int, Task, Path], list[str]]:
    def command(python: Path, port: int, task: Task, scratch: Path) -> list[str]:
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-access-log",
            "--log-level",
            "warning",
            "--app-dir",
            str(APPS),
        ]
        return [str(python), "-m", "uvicorn", app, "--loop", "uvloop", "--http", "httptools", *options]

    return command


def _hbc_serve(python: Path, port: int, task: Task, scratch: Path) -> list[str]:
    return [str(python), "-m", "hbc", "serve", f"model={task.folder / 'model.hbc'}", "--port", str(port)]


def _bentoml(python: Path, port: int, task: Task, scratch: Path) -> list[str]:
    return [str(python), "-m", "bentoml", "serve", "bento:Service", "--working-dir", str(APPS), "--port", str(port)]


def _ray(python: Path, port: int, task: Task, scratch: Path) -> list[str]:
    return [str(python), str(APPS / "ray_serve.py"), str(port)]


def _mlserver(python: Path, port: int, task: Task, scratch: Path) -> list[str]:
    runtime = "mlserver_sklearn.SKLearnModel" if task.mixed else "mlserver_lightgbm.LightGBMModel"
    uri = task.folder / ("model.joblib" if task.mixed else "model.txt")
    settings = {"name": "model", "implementation": runtime, "parameters": {"uri": str(uri)}}
    if task.mixed:
        settings["parameters"]["content_type"] = "pd"  # type: ignore[index]
    (scratch / "model-settings.json").write_text(json.dumps(settings))
    free = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2, "parallel_workers": 0, "host": "127.0.0.1"}
    (scratch / "settings.json").write_text(json.dumps(free))
    return [str(python.parent / "mlserver"), "start", str(scratch)]


def _mlserver_request(task: Task) -> Request:
    """MLServer's LightGBM answers the probability of the second class as `predict`."""
    make = v2("model", "predict_proba" if task.mixed else "predict")
    found = make(task)
    if not task.mixed:
        return found
    body = json.loads(found.body)
    for tensor in body["inputs"]:
        tensor["parameters"] = {"content_type": "str" if tensor["datatype"] == "BYTES" else "np"}
    return Request(found.path, json.dumps({**body, "parameters": {"content_type": "pd"}}).encode(), found.read)


def _model(task: Task, scratch: Path) -> dict[str, str]:
    return {"MODEL_FOLDER": str(task.folder), "MODEL_KIND": task.name}


HBC = "hbc serve"
CONSTANT = "uvicorn, a constant"
SERVERS: Sequence[Server] = (
    Server(CONSTANT, "fastapi", _uvicorn("constant:app"), plain, _model),
    Server(f"{HBC}, rows", "main", _hbc_serve, hbc_rows),
    Server(f"{HBC}, records", "main", _hbc_serve, hbc_records),
    Server(f"{HBC}, v2 JSON", "main", _hbc_serve, v2("model", "predict_proba")),
    Server(f"{HBC}, v2 binary", "main", _hbc_serve, v2_binary("model", "predict_proba")),
    Server("FastAPI + native library", "fastapi", _uvicorn("native:app"), plain, _model),
    Server("FastAPI + ONNX Runtime", "fastapi", _uvicorn("onnx_runtime:app"), plain, _model),
    Server("MLServer", "mlserver", _mlserver, _mlserver_request),
    Server("BentoML", "bentoml", _bentoml, plain, _model),
    Server("Ray Serve", "ray", _ray, plain, _model),
)
