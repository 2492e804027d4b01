"""Converts ONNX models with the operators of ai.onnx and ai.onnx.ml that skl2onnx and onnxmltools export.

The source library is ONNX Runtime: dtypes, rounding and class labels are those of its CPU kernels
(onnxruntime/core/providers/cpu/ml). Outputs are those of `InferenceSession.run`, except for the dictionaries of a ZipMap: `predict_proba`
gives the matrix from which they are made, and `classes_` names its columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Node
from hbc.ir.signature import Frames
from hbc.parser.frame import Frame, Refusal
from hbc.parser.front_door import note_input
from hbc.parser.onnxml import linear, ml, positions, svm, tensor, tree_operators
from hbc.parser.onnxml.graph import OWNER, Source, outputs_as_methods
from hbc.parser.registry import Described, Result, attributes, converts, describes, takes_items

__all__ = ["linear", "ml", "positions", "read_bytes", "read_file", "svm", "tensor", "tree_operators"]


def read_file(path: Path) -> Any:
    """The onnx.ModelProto in a file, with its external data."""
    import onnx

    return onnx.load(str(path))


def read_bytes(data: bytes) -> Any:
    """The onnx.ModelProto in serialized bytes."""
    import onnx

    return onnx.load_model_from_string(data)


@describes("onnx.ModelProto")
def _columns(m: Any) -> Described:
    source = Source(m)
    try:
        return source.width, source.names
    except Refusal as refusal:
        raise UnsupportedOperatorError(culprits=[Culprit(OWNER, "model", refusal.reason, refusal.advice)]) from refusal


@takes_items("onnx.ModelProto")
def _dicts(m: Any) -> str:
    try:
        return "dicts" if Source(m).takes_dicts else ""
    except Refusal:  # `_columns` makes an error of it
        return ""


@attributes("onnx.ModelProto")
def _classes(m: Any) -> dict[str, object]:
    source = Source(m)
    found: dict[str, object] = {} if source.width is None or source.takes_dicts else {"n_features_in_": source.width}
    return found if source.classes is None else {**found, "classes_": source.classes}


@converts("onnx.ModelProto", frame=True)
def onnx_model(m: Any, x: Node | Frame) -> Result:
    """Each output of the graph is a method; `outputs_as_methods` names them."""
    source = Source(m)
    if source.names is not None:
        note_input(Frames(by_column=True))
    return outputs_as_methods(source, source.run(x))
