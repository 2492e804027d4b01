"""Folders of Triton's model repository: NAME/config.pbtxt and NAME/1/, for its python_backend or for its ONNX Runtime."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hbc.adapters.hosted import FILE, Hosted
from hbc.errors import ArtifactError
from hbc.serve.tensors import metadata

CODE = '''"""Written by `hbc export --triton`. The image of Triton must have hbc with the extra tvm (docs/serving-elsewhere.md)."""

from hbc.adapters.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
ONNX_TYPES = {
    1: "TYPE_FP32",
    2: "TYPE_UINT8",
    3: "TYPE_INT8",
    4: "TYPE_UINT16",
    5: "TYPE_INT16",
    6: "TYPE_INT32",
    7: "TYPE_INT64",
    8: "TYPE_STRING",
    9: "TYPE_BOOL",
    10: "TYPE_FP16",
    11: "TYPE_FP64",
    12: "TYPE_UINT32",
    13: "TYPE_UINT64",
}
"""ONNX's number of an element type → Triton's name."""

DTYPES_OF: dict[str | None, str] = {"float32": "FP32", "float64": "FP64", "int64": "INT64"}

Tensors = Sequence[tuple[str, str, Sequence[int]]]
"""Name, data type of Triton, dimensions."""


def write_python(folder: Path, model: Path) -> None:
    """Write a folder for the python_backend: it holds a copy of the saved model, and needs hbc in Triton's image. Raises ArtifactError if
    the folder is there already, and what `hbc.load` does."""
    served = Hosted(model, backend="numpy").served
    inputs, outputs = metadata(served)
    dtypes = {column.dtype for column in served.model.schema.columns}
    if len(inputs) == 1 and served.names is None and len(dtypes) == 1:
        # Triton takes the declared type only: that of the sample which the model was converted with.
        ((name, datatype, shape),) = inputs
        inputs = [(name, DTYPES_OF.get(dtypes.pop(), datatype), shape)]
    described = [[(name, triton_type(datatype), shape) for name, datatype, shape in each] for each in (inputs, outputs)]
    _require_new(folder)
    version = folder / "1"
    version.mkdir(parents=True)
    shutil.copyfile(model, version / FILE)
    (version / "model.py").write_text(CODE)
    (folder / "config.pbtxt").write_text(config(folder.name, 'backend: "python"', *described))


def write_onnx(folder: Path, model: Any, **options: Any) -> None:
    """Write a folder for Triton's ONNX Runtime, which needs no hbc. model: a CompiledModel. options: those of its `export` for .onnx.
    Raises ArtifactError if the folder is there already, and what `export` does."""
    import onnx

    _require_new(folder)
    version = folder / "1"
    version.mkdir(parents=True)
    try:
        model.export(version / "model.onnx", **options)
    except BaseException:
        shutil.rmtree(folder)
        raise
    graph = onnx.load(version / "model.onnx", load_external_data=False).graph
    described = [
        [
            (
                each.name,
                ONNX_TYPES[each.type.tensor_type.elem_type],
                [d.dim_value or -1 for d in each.type.tensor_type.shape.dim],
            )
            for each in side
        ]
        for side in (graph.input, graph.output)
    ]
    (folder / "config.pbtxt").write_text(config(folder.name, 'platform: "onnxruntime_onnx"', *described))


def config(name: str, backend: str, inputs: Tensors, outputs: Tensors) -> str:
    """The text of config.pbtxt. `max_batch_size` is 0: the dimensions include the rows, and a request of one row takes microseconds, so
    that batches would pay nothing."""
    lines = [f"name: {json.dumps(name)}", backend, "max_batch_size: 0"]
    for side, tensors in (("input", inputs), ("output", outputs)):
        entries = [
            f"  {{ name: {json.dumps(each, ensure_ascii=False)} data_type: {kind} dims: {list(shape)} }}"
            for each, kind, shape in tensors
        ]
        lines.append(f"{side} [\n" + ",\n".join(entries) + "\n]")
    return "\n".join([*lines, "instance_group [ { kind: KIND_CPU } ]"]) + "\n"


def triton_type(datatype: str) -> str:
    """The protocol's datatype in the words of a configuration."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _require_new(folder: Path) -> None:
    if folder.exists():
        advice = "Remove it first, or name another: the folder's name is the model's name."
        raise ArtifactError(path=str(folder), found="a file or folder of this name", expected="none", advice=advice)
