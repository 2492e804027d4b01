"""ONNX Runtime through skl2onnx and onnxmltools; only the probabilities are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.engines import Task


def load(task: Task) -> Any:
    """The estimator."""
    return pickle.loads((Path(task.folder) / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """A session with as many threads as everybody has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    graph = _converted(model, task)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda X: session.run(["probabilities"], {name: X})[0]


def _converted(model: Any, task: Task) -> Any:
    if task.library == "sklearn":
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

        tensor = DoubleTensorType if task.dtype == "float64" else FloatTensorType
        return to_onnx(model, initial_types=[("X", tensor([None, task.features]))], options={"zipmap": False})
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, task.features]))]
    if task.library == "lightgbm":
        return onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False)
    return onnxmltools.convert_xgboost(model, initial_types=types)
