"""An ONNX model as ONNX Runtime computes it, for comparing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hbc.ir.types import NUMPY_DTYPES
from hbc.parser.onnxml.graph import Source

WORDS = {"predict": "label", "predict_proba": "prob"}
"""Method → the word in the name of the output that it is, where the graph has several outputs."""


def session_call(model: Any, method: str, threads: int | None = None) -> Callable[[Any], Any] | None:
    """The function of X that gives the output for a method. X is a matrix or a frame, whose columns the inputs take one after the other;
    where each input is one column, those of a frame are found by name. None where it is not plain which output is meant, and for
    a map, which ONNX Runtime takes one at a time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    if len(outputs) > 1:
        outputs = [name for name in outputs if WORDS.get(method, method) in name.lower()]
    source = Source(model)
    if len(outputs) != 1 or source.takes_dicts:
        return None

    def call(X: Any) -> Any:
        (value,) = session.run(outputs, fed(source, X))
        # A ZipMap gives a dict for each row.
        return np.array([list(row.values()) for row in value], np.float32) if isinstance(value, list) else value

    return call


def fed(source: Source, X: Any) -> dict[str, Any]:
    """Name of an input → its columns of X, in the dtype that the graph declares."""
    by_name = source.names is not None and hasattr(X, "columns")
    free = X.shape[1] - sum(tensor.width or 0 for tensor in source.inputs)
    found, start = {}, 0
    for tensor in source.inputs:
        stop = start + (free if tensor.width is None else tensor.width)
        part = X[tensor.name] if by_name else X.iloc[:, start:stop] if hasattr(X, "iloc") else X[:, start:stop]
        values = np.ascontiguousarray(part, np.dtype(object if tensor.dtype == "str" else NUMPY_DTYPES[tensor.dtype]))
        found[tensor.name] = values.reshape(-1) if tensor.rank == 1 else values.reshape(len(X), stop - start)
        start = stop
    return found
