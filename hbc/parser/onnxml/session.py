"""An ONNX model as ONNX Runtime computes it, for comparing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
WORDS = {"predict": "label", "predict_proba": "prob"}
"""Method → the word in the name of the output that it is, where the graph has several outputs."""


def session_call(model: Any, method: str) -> Callable[[Any], Any] | None:
    """The function of a matrix that gives the output for a method; None for several inputs, inputs that are not numbers, and where it is
    not plain which output is meant."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    if len(outputs) > 1:
        outputs = [name for name in outputs if WORDS.get(method, method) in name.lower()]
    entries = session.get_inputs()
    if len(outputs) != 1 or len(entries) != 1 or entries[0].type not in DTYPES:
        return None
    name, dtype = entries[0].name, DTYPES[entries[0].type]

    def call(X: Any) -> Any:
        (value,) = session.run(outputs, {name: np.ascontiguousarray(X, dtype)})
        # A ZipMap gives a dict for each row.
        return np.array([list(row.values()) for row in value], np.float32) if isinstance(value, list) else value

    return call
