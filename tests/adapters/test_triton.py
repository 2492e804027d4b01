"""Triton's folders: python_backend's interface, played by a module of the same names, and the ONNX file in ONNX Runtime.

By hand, in November 2026: the folders of both models ran in Triton 2.51 itself (nvidia-pytriton 0.7), asked by tritonclient over HTTP and
gRPC."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from hosted_models import FRAME, MIXED, NUMBERS, X, close, saved

from hbc.adapters.triton_folder import write_python
from hbc.errors import ArtifactError
from hbc.serve.grpc.messages import DATA_TYPES, Messages


class Tensor:
    """pb_utils.Tensor: strings are arrays of bytes."""

    def __init__(self, name: str, values: Any) -> None:
        assert values.dtype != object or all(type(each) is bytes for each in values.ravel())
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._values


class TritonError(Exception):
    """pb_utils.TritonError."""

    INVALID_ARG, INTERNAL = 3, 1

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class InferenceResponse:
    """pb_utils.InferenceResponse."""

    def __init__(self, output_tensors: list[Tensor], error: Any = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class InferenceRequest:
    """pb_utils.InferenceRequest."""

    def __init__(self, tensors: list[Tensor], names: list[str]) -> None:
        self._tensors, self._names = tensors, names

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def requested_output_names(self) -> list[str]:
        return self._names


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function: the model of a folder, as python_backend makes it."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError, module.InferenceResponse = Tensor, TritonError, InferenceResponse
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    monkeypatch.delitem(sys.modules, "hbc.adapters.triton", raising=False)

    def started(folder: Path) -> Any:
        monkeypatch.syspath_prepend(str(folder / "1"))
        monkeypatch.delitem(sys.modules, "model", raising=False)
        model = importlib.import_module("model").TritonPythonModel()
        model.initialize({"model_name": folder.name, "model_version": "1", "model_repository": str(folder)})
        return model

    return started


def export(model: Path, folder: Path, *words: str) -> Any:
    """The configuration of the folder that `hbc export --triton` writes."""
    command = [sys.executable, "-m", "hbc", "export", str(model), "--triton", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (folder / "config.pbtxt").read_text()
    return text_format.Parse(text, Messages.ModelConfig())


def types(side: Any) -> dict[str, tuple[str, list[int]]]:
    names = {number: name for name, number in DATA_TYPES.items()}
    return {each.name: (names[each.data_type], list(each.dims)) for each in side}


def test_a_frame(tmp_path: Path, backend: Any) -> None:
    folder = tmp_path / "mixed"
    config = export(saved(tmp_path, "mixed"), folder)
    assert (config.name, config.backend, config.max_batch_size) == ("mixed", "python", 0)
    assert types(config.input) == {"age": ("FP64", [-1]), "town": ("BYTES", [-1]), "fare": ("FP64", [-1])}
    assert types(config.output)["predict"] == ("BYTES", [-1])
    assert types(config.output)["predict_proba"] == ("FP64", [-1, 2])
    model = backend(folder)
    towns = np.array([town.encode() for town in FRAME["town"]], object)
    tensors = [Tensor("age", FRAME["age"].to_numpy()), Tensor("town", towns), Tensor("fare", FRAME["fare"].to_numpy())]
    good = InferenceRequest(tensors, ["predict", "predict_proba"])
    found, refused = model.execute([good, InferenceRequest(tensors[:2], ["predict"])])
    assert [label.decode() for label in found.outputs["predict"]] == MIXED.predict(FRAME).tolist()
    close(found.outputs["predict_proba"], MIXED.predict_proba(FRAME))
    assert refused.error.code == TritonError.INVALID_ARG
    assert "fare" in str(refused.error)


def test_a_matrix_has_the_dtype_of_its_sample(tmp_path: Path, backend: Any) -> None:
    folder = tmp_path / "numbers"
    write_python(folder, saved(tmp_path, "numbers"))
    config = text_format.Parse((folder / "config.pbtxt").read_text(), Messages.ModelConfig())
    assert types(config.input) == {"input": ("FP32", [-1, 4])}
    every = list(types(config.output))
    (found,) = backend(folder).execute([InferenceRequest([Tensor("input", X)], every)])
    assert sorted(found.outputs) == sorted(every)
    for name, (datatype, dims) in types(config.output).items():
        values = found.outputs[name]
        assert len(values.shape) == len(dims)
        assert datatype == {"f": "FP64", "b": "BOOL"}[values.dtype.kind]
    close(found.outputs["predict_proba"], NUMBERS.predict_proba(X))
    assert (found.outputs["predict"] == NUMBERS.predict(X)).all()


def test_an_onnx_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    config = export(saved(tmp_path, "mixed"), folder, "--onnx", "--columns", "--methods", "predict,predict_proba")
    assert (config.name, config.platform) == ("mixed", "onnxruntime_onnx")
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"))
    known = {"tensor(double)": "FP64", "tensor(string)": "BYTES"}
    for described, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert types(described) == {each.name: (known[each.type], [-1, *each.shape[1:]]) for each in real}
    feed = {name: FRAME[name].to_numpy(object if name == "town" else float)[:, None] for name in FRAME.columns}
    labels, shares = session.run(["predict", "predict_proba"], feed)
    assert labels.tolist() == MIXED.predict(FRAME).tolist()
    close(shares, MIXED.predict_proba(FRAME))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    model, folder = saved(tmp_path, "numbers"), tmp_path / "there"
    folder.mkdir()
    with pytest.raises(ArtifactError, match="there"):
        write_python(folder, model)
    for words in (
        ["-o", "x.onnx", "--triton", str(tmp_path / "x")],
        [],
        ["--triton", str(tmp_path / "x"), "--dtype", "float64"],
    ):
        done = subprocess.run([sys.executable, "-m", "hbc", "export", str(model), *words], capture_output=True, text=True)
        assert done.returncode == 1, words
        assert "expected" in done.stderr or "does not take" in done.stderr
    assert not (tmp_path / "x").exists()
