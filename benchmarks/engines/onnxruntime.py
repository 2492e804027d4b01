"""ONNX Runtime through skl2onnx and onnxmltools; only the output that the method returns is asked for.

float64 rows are cast in the call: the converters' graphs of trees are float32 (skl2onnx's for double do not load)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.engines import Task

WANTED = {"predict_proba": "probabilities", "decision_function": "scores", "score_samples": "score_samples"}
"""Method → the name of its output in the graph. Other methods have the first output: labels, values or transformed rows."""


def load(task: Task) -> Any:
    """The estimator."""
    return pickle.loads((Path(task.folder) / "model.pkl").read_bytes())


def build(model: Any, task: Task) -> Any:
    """A call of a session with the number of threads of all engines."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    graph = _converted(model, task)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    known = [output.name for output in session.get_outputs()]
    wanted = known[:1] if task.method in ("predict", "transform") else [WANTED[task.method]]
    if task.dtype == "float64":
        return lambda X: session.run(wanted, {name: X.astype(np.float32)})[0]
    return lambda X: session.run(wanted, {name: X})[0]


def _converted(model: Any, task: Task) -> Any:
    if task.library == "sklearn":
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        options = {"zipmap": False} if task.method == "predict_proba" else None
        return to_onnx(model, initial_types=[("X", FloatTensorType([None, task.features]))], options=options)
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, task.features]))]
    if task.library == "lightgbm":
        return onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False)
    return onnxmltools.convert_xgboost(model, initial_types=types)
