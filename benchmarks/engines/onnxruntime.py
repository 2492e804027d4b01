"""ONNX Runtime through skl2onnx and onnxmltools; only the output that the method returns is asked for.

float64 rows are cast in the call: the converters' graphs of trees are float32 (skl2onnx's for double do not load)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.engines import Task
from hbc.parser.onnxml.others import as_onnx

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
    graph = as_onnx(model, np.empty((1, task.features), np.float32))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    known = [output.name for output in session.get_outputs()]
    wanted = known[:1] if task.method in ("predict", "transform") else [WANTED[task.method]]
    if task.dtype == "float64":
        return lambda X: session.run(wanted, {name: X.astype(np.float32)})[0]
    return lambda X: session.run(wanted, {name: X})[0]
